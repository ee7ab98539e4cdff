"""Loads language models and generates text with them."""

from __future__ import annotations

import dataclasses
import os
import queue
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from thresher import _engine
from thresher.llm import loading
from thresher.llm.async_stream import AsyncStream
from thresher.llm.cache import PagePool
from thresher.llm.draft_model import DraftModel
from thresher.llm.engine import Engine, EngineStats
from thresher.llm.formats.tensors import BLOCKS
from thresher.llm.kv_cache import KVCache
from thresher.llm.layer_groups import divide, layer_groups
from thresher.llm.models.decoder import PAGE_TOKENS, Decoder
from thresher.llm.models.sharding import Share
from thresher.llm.profile_window import ProfileWindow
from thresher.llm.rank_group import RankGroup
from thresher.llm.request import Delta, Request, RequestStats
from thresher.llm.runner import CACHES, Runner, page_bytes
from thresher.llm.runner_order import RunnerOrder
from thresher.llm.sampling import Logprobs, SamplingParams
from thresher.llm.tokenizer import Message, Tokenizer
from thresher.machine import Backend, open_device

if TYPE_CHECKING:
    from thresher.profiler.control import Profile

Prompt = str | Sequence[int]

_DEFAULT_LENGTH = 8192
_MORE_SCORES = 32  # of a step, for guesses and for tokens of prompts


@dataclasses.dataclass(slots=True)
class Completion:
    """One answer.

    Attributes:
      text: of the answer; empty where the model has no tokenizer.
      token_ids: its tokens, the one that ended it included.
      logprobs: one a token, where they were asked for.
      finish_reason: "stop", "length", "cancel" or "error".
    """

    text: str = ""
    token_ids: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[Logprobs] = dataclasses.field(default_factory=list)
    finish_reason: str | None = None

    def add(self, delta: Delta) -> None:
        """Appends what a step added."""
        self.text += delta.text
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs
        self.finish_reason = delta.finish_reason


@dataclasses.dataclass(slots=True)
class Output:
    """What came of a prompt.

    Attributes:
      prompt_token_ids: its tokens.
      completions: the answers, params.n of them.
      stats: times and numbers of tokens.
      prompt_logprobs: one a token of the prompt from the second on, where they were asked for.
    """

    prompt_token_ids: list[int]
    completions: list[Completion]
    stats: RequestStats
    prompt_logprobs: list[Logprobs] = dataclasses.field(default_factory=list)

    @property
    def text(self) -> str:
        """The text of the first answer."""
        return self.completions[0].text


class LLM:
    """A language model that is loaded.

        llm = thresher.llm.LLM("path/to/model")
        print(llm.chat([{"role": "user", "content": "What is the capital of France?"}]).text)

    Any number of threads may use it at a time: what they ask for is computed together.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        precision: str = "model",
        weights: str = "model",
        kv_cache: str | None = None,
        kv_cache_bytes: int | None = None,
        max_batch: int = 32,
        max_length: int | None = None,
        max_step_tokens: int = 512,
        max_waiting: int = 1024,
        prefix_cache: bool = True,
        prefix_cache_ttl_s: float | None = None,
        speculation: str | None = None,
        draft_model: str | os.PathLike[str] | None = None,
        draft_tokens: int = 4,
        allow_grammars: bool = False,
        num_threads: int = 0,
        device: str = "cpu",
        ranks: RankGroup | None = None,
    ) -> None:
        """Loads a model.

        Args:
          path: a Hugging Face folder (config.json, *.safetensors, tokenizer.json) or a GGUF file.
          precision: of products with weights: "model" (as they are stored), "fp32", "bf16", "fp16", "int8",
            "int8_weight" or "int4_weight".
          weights: how matrices are kept: "model" (as they are stored), "fp32", or quantised while they are loaded to
            "q8_0", "q5_1", "q5_0", "q4_1" or "q4_0"; of these, "q4_0:128" says that 128 numbers share a scale instead
            of 32 (a multiple of 32 up to 512; rows that are no whole groups get the largest that they are).
          kv_cache: how keys and values are kept: "f32", "bf16", "f16", or with a scale for 32 numbers in 8 bits
            ("q8_0") or 4 ("q4_0"). Default: "f32" with precision "fp32", else "bf16".
          kv_cache_bytes: memory for them. Default: enough for max_batch sequences of max_length, but at most a quarter
            of the machine's or the device's memory.
          max_batch: how many sequences are computed together.
          max_length: tokens of a prompt with its answer; default: what the model was made for, at most 8192.
          max_step_tokens: tokens of one step, of all sequences together.
          max_waiting: how many answers may wait; more are refused.
          prefix_cache: beginnings that prompts share are computed once.
          prefix_cache_ttl_s: for how long they are kept; default: until the room is wanted.
          speculation: "ngram" guesses how an answer goes on from what stands in it and its prompt already, and checks
            several tokens in a step: the same tokens, sooner, in texts that repeat; None: one token after the other.
          draft_model: a smaller model with the same tokens, which guesses instead; it gets pages of its own for
            max_batch sequences, and the options of this one.
          draft_tokens: how many are guessed at a time.
          allow_grammars: answers may be asked to keep to a grammar. llguidance does not return from some grammars, and
            all requests wait: for those whose authors you know.
          num_threads: default: as many as the engine has.
          device: what computes, and holds weights, keys and values: "cpu", or an NVIDIA GPU: "cuda", "cuda:1".
          ranks: processes that compute this model together, of which this is rank 0; the others call ``follow``. They
            end when the model is closed. kv_cache_bytes are those of each.

        Raises:
          FileNotFoundError: something is missing at `path`.
          ValueError: the model or an option is not supported; the message names it.
          MemoryError: there is no room for keys and values.
        """
        cache = kv_cache or ("f32" if precision == "fp32" else "bf16")
        if cache not in CACHES:
            raise ValueError(f"kv_cache: expected one of {', '.join(CACHES)}, got {cache!r}")
        _at_least_one(max_batch=max_batch, max_step_tokens=max_step_tokens, max_waiting=max_waiting)
        if speculation not in (None, "ngram"):
            raise ValueError(f"speculation: expected 'ngram' or None, got {speculation!r}")
        if speculation and draft_model is not None:
            raise ValueError("expected one way to guess, got speculation and draft_model; leave one of them out")
        _at_least_one(draft_tokens=draft_tokens)
        if ranks is not None and (ranks.rank or device != "cpu"):
            raise ValueError(f"ranks: expected rank 0 of them on the CPU, got rank {ranks.rank} on {device!r}")
        _engine.initialize()
        self._ranks = ranks
        engine = _device(device)
        loaded = loading.load(Path(path), weights)
        self.config = loaded.config
        most = self.config.max_positions
        length = min(max_length or min(most, _DEFAULT_LENGTH), most)
        _at_least_one(max_length=length - 1)
        if max_length is not None and max_length > most:
            raise ValueError(f"max_length: expected at most {most}, which the model was made for, got {max_length}")
        options: dict[str, Any] = {
            "max_batch": max_batch,
            "max_tokens": max(max_step_tokens, max_batch),
            "cache": cache,
            "precision": precision,
            "num_threads": num_threads,
            "device": engine,
        }
        self.runner = _runner(
            *(loaded, Path(path), length, kv_cache_bytes, weights),
            max_scored=max_batch + _MORE_SCORES,
            ranks=ranks,
            **options,
        )
        text = loaded.text.result()
        self.tokenizer: Tokenizer | None = text.tokenizer
        drafter = None
        if draft_model is not None:
            small = loading.load(Path(draft_model), weights)
            _check_same_tokens(loaded, small)
            draft_runner = _runner(small, Path(draft_model), length, None, weights, **options)
            drafter = DraftModel(draft_runner, _cache(draft_runner), self.config.vocab_size, draft_tokens)
        self.engine = Engine(
            self.runner,
            _cache(self.runner, prefix_cache_ttl_s),
            vocab_size=self.config.vocab_size,
            max_length=length,
            eos_token_ids=text.eos_token_ids,
            tokenizer=self.tokenizer,
            max_waiting=max_waiting,
            prefix_cache=prefix_cache,
            draft_tokens=draft_tokens if speculation or drafter else 0,
            draft_model=drafter,
            allow_grammars=allow_grammars,
        )

    # ---- generation ----

    def generate(
        self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | None = None, **options: Any
    ) -> list[Output]:
        """Answers prompts, together.

        Args:
          prompts: one or many, as text or tokens.
          params: options for all of them.
          **options: fields of SamplingParams, instead of or beside `params`.

        Returns:
          One Output a prompt, in their order.

        Raises:
          ValueError: a prompt or an option is not legal; nothing was computed then.
        """
        params = _params(params, options)
        one = isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], int))
        tokens = [self.encode(prompt) for prompt in ([prompts] if one else prompts)]  # type: ignore[arg-type]
        pending: list[_Pending] = []
        try:
            for prompt in tokens:
                pending.append(_Pending(self.engine, prompt, params))
            return [each.result() for each in pending]
        except BaseException:
            for each in pending:
                self.engine.cancel(each.request)
            raise

    def stream(self, prompt: Prompt, params: SamplingParams | None = None, **options: Any) -> Stream:
        """Answers one prompt, token by token.

        Raises:
          ValueError: the prompt or an option is not legal.
        """
        return self._stream(self.encode(prompt), _params(params, options))

    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Output:
        """Answers a chat.

        Args:
          messages: each with "role" and "content".
          params: options.
          tools: what the model may call.
          template_options: more names for the chat template.
          **options: fields of SamplingParams.

        Raises:
          ChatTemplateError: the model has no chat template, or it refuses the messages.
          ValueError: the prompt or an option is not legal.
        """
        prompt = self._with_tokenizer().chat_prompt(messages, tools, **(template_options or {}))
        return self.generate(prompt, params, **options)[0]

    def stream_chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Stream:
        """The same, token by token."""
        prompt = self._with_tokenizer().chat_prompt(messages, tools, **(template_options or {}))
        return self._stream(prompt, _params(params, options))

    async def stream_async(
        self, prompt: Prompt, params: SamplingParams | None = None, *, priority: int = 0, **options: Any
    ) -> AsyncIterator[Delta]:
        """As stream(), for asyncio. Whoever stops listening cancels the request.

        Raises:
          ValueError: the prompt or an option is not legal.
          QueueFullError: too many requests wait.
        """
        params = _params(params, options)
        stream = AsyncStream(self.engine, [self.encode(prompt)], params, priority)
        try:
            while deltas := await stream.take():
                for _, delta in deltas:
                    if delta.error is not None:
                        raise delta.error
                    yield delta
        finally:
            stream.leave()

    async def generate_async(
        self, prompt: Prompt, params: SamplingParams | None = None, *, priority: int = 0, **options: Any
    ) -> list[Completion]:
        """The answers to one prompt, for asyncio."""
        params = _params(params, options)
        completions = [Completion() for _ in range(params.n)]
        async for delta in self.stream_async(prompt, params, priority=priority):
            completions[delta.index].add(delta)
        return completions

    # ---- the rest ----

    def encode(self, prompt: Prompt) -> list[int]:
        """Tokens of a prompt."""
        if isinstance(prompt, str):
            return self._with_tokenizer().encode(prompt)
        return [int(token) for token in prompt]

    def stats(self) -> EngineStats:
        """The engine now, and sums since it began."""
        return self.engine.stats()

    def profile_window(
        self, *, steps: int, request: int | None = None, batch: int | None = None, trace: bool | str | Path = True
    ) -> Future[Profile]:
        """Profiles some steps of the model while it answers: where their time goes, by phase and operator.

        Args:
          steps: how many.
          request: begins with the first step that computes the request of this number, counted from 0 since the model
            was loaded, or a later one.
          batch: or with the first that computes so many answers.
          trace: where to keep every record for a time line, as in ``thresher.profiler.profile``.

        Returns:
          What gives the profile when the steps are over: ``result().op_report()``. Cancelled if close() comes before
          the first of them.

        Raises:
          ValueError: steps, or what they begin with, are not legal.
          RuntimeError: another window is not over.
        """
        window = ProfileWindow(trace, steps=steps, request=request, batch=batch)
        self.engine.profile(window)
        return window.result

    def decode_bytes(self, length: int) -> int:
        """Memory that a step reads in which one sequence of `length` tokens gets one more: weights and its pages."""
        return self.runner.read_bytes(length)

    def close(self) -> None:
        """Cancels what is open and ends the engine's thread, and other ranks."""
        self.engine.close()
        ranks, self._ranks = self._ranks, None
        if ranks is not None:
            ranks.end()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _with_tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise ValueError("expected a model with a tokenizer for text, got none; pass tokens")
        return self.tokenizer

    def _stream(self, prompt: list[int], params: SamplingParams) -> Stream:
        return Stream(self.engine, prompt, params)


def _runner(
    loaded: loading.Loaded,
    path: Path,
    length: int,
    kv_cache_bytes: int | None,
    weights: str,
    *,
    cache: str,
    device: _engine.Device | None,
    ranks: RankGroup | None = None,
    **options: Any,
) -> Runner:
    """A runner whose pages take so many bytes, or are enough for max_batch sequences of `length` tokens."""
    config = loaded.config
    numbers = BLOCKS[cache][0]
    if config.head_size % numbers:
        raise ValueError(
            f"kv_cache: expected heads of a multiple of {numbers} numbers for {cache}, got {config.head_size}; "
            "use f32, bf16 or f16"
        )
    if length > config.max_positions:
        raise ValueError(f"{path}: expected a model for {length} tokens, got one for {config.max_positions}")
    share = Share() if ranks is None else Share(ranks.rank, ranks.size)
    decoder = Decoder(config, loaded.tensors, length, share)
    groups = layer_groups(config.windows, length)
    policies = [group.policy for group in groups]
    sizes = [page_bytes(decoder, cache, group) for group in groups]
    step = options["max_tokens"]
    budget = kv_cache_bytes
    if budget is None:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if device is not None:
            memory = int(device.info["memory_bytes"])
        one = [policy.most(length, step, PAGE_TOKENS) for policy in policies]
        wanted = options["max_batch"] * sum(n * size for n, size in zip(one, sizes, strict=True))
        budget = min(wanted, max(memory // 4, sum(sizes)))
    pages = divide(budget, policies, sizes, length, step, PAGE_TOKENS)
    if not all(pages):
        raise ValueError(f"kv_cache_bytes: expected at least {sum(sizes)}, one page, got {budget}")
    order = RunnerOrder(str(path.absolute()), weights, length, pages, {**options, "cache": cache})
    if ranks is None:
        return order.make(loaded, decoder, device=device)
    ranks.tell(order)
    error: Exception | None = None
    try:
        runner = order.make(loaded, decoder, ranks=ranks)
    except Exception as found:
        error = found
    ranks.agree(error)
    return runner


def _cache(runner: Runner, ttl_s: float | None = None) -> KVCache:
    """The accounts of a runner's pages."""
    pools = [PagePool(pages, PAGE_TOKENS, ttl_s) for pages in runner.pages]
    return KVCache(pools, [group.policy for group in runner.groups])


def _check_same_tokens(large: loading.Loaded, small: loading.Loaded) -> None:
    own, other = large.text.result().tokenizer, small.text.result().tokenizer
    if own is not None and other is not None:
        same = own.backend.get_vocab() == other.backend.get_vocab()
    else:
        same = large.config.vocab_size == small.config.vocab_size
    if not same:
        raise ValueError("draft_model: expected the tokens of the model, got others; take a smaller one of its family")


class _Pending:
    """Collects the answers to one prompt; wakes whoever waits only when they are whole."""

    def __init__(self, engine: Engine, prompt: list[int], params: SamplingParams) -> None:
        self._completions = [Completion() for _ in range(params.n)]
        self._open = params.n
        self._error: Exception | None = None
        self._done = threading.Event()
        self.request = engine.submit(prompt, params, self._take)

    def _take(self, delta: Delta) -> None:
        self._completions[delta.index].add(delta)
        self._error = self._error or delta.error
        self._open -= delta.finish_reason is not None
        if not self._open:
            self._done.set()

    def result(self) -> Output:
        """Waits; raises what made the request fail."""
        self._done.wait()
        if self._error is not None:
            raise self._error
        return _output(self.request, self._completions)


class Stream(Iterator[Delta]):
    """The answers to one prompt as they are computed: iterate over what each step adds, or wait for the result()."""

    def __init__(self, engine: Engine, prompt: list[int], params: SamplingParams, priority: int = 0) -> None:
        self._engine = engine
        self._deltas: queue.SimpleQueue[Delta] = queue.SimpleQueue()
        self._completions = [Completion() for _ in range(params.n)]
        self._open = params.n
        self.request: Request = engine.submit(prompt, params, self._deltas.put, priority)

    def __next__(self) -> Delta:
        if not self._open:
            raise StopIteration
        delta = self._deltas.get()
        self._completions[delta.index].add(delta)
        self._open -= delta.finish_reason is not None
        if delta.error is not None:
            self.cancel()
            raise delta.error
        return delta

    def result(self) -> Output:
        """Waits for all answers.

        Raises:
          Exception: what made the request fail.
        """
        for _ in self:
            pass
        return _output(self.request, self._completions)

    def cancel(self) -> None:
        """Ends the request; what is still under way comes with finish_reason "cancel"."""
        self._engine.cancel(self.request)


def _output(request: Request, completions: list[Completion]) -> Output:
    return Output(request.prompt, completions, request.stats, request.prompt_logprobs)


def _params(params: SamplingParams | None, options: Mapping[str, Any]) -> SamplingParams:
    if params is None:
        return SamplingParams(**options)
    return dataclasses.replace(params, **options) if options else params


def _device(name: str) -> _engine.Device | None:
    """The device of this name; None: the CPU."""
    kind, colon, index = name.partition(":")
    if name == "cpu":
        return None
    if kind != "cuda" or (colon and not index.isdecimal()):
        raise ValueError(f"device: expected 'cpu', 'cuda' or 'cuda:N', got {name!r}")
    obstacle = Backend("cuda").obstacle()
    if obstacle is not None:
        raise ValueError(f"device: {name!r} is not available: {obstacle}")
    opened: _engine.Device = open_device("cuda", int(index or 0))
    return opened


def _at_least_one(**values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise ValueError(f"{name}: expected 1 or more, got {value}")

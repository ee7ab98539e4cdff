"""A model that is served: what its endpoints share."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, TypeVar

from thresher.llm import LLM, AsyncStream, Delta, EngineClosedError, QueueFullError, SamplingParams, TextEncoder
from thresher.llm.tokenizer import Tokenizer
from thresher.serve.encoding import Encoding
from thresher.serve.metrics import Metrics
from thresher.web.errors import ApiError

_LONG_TEXT = 20_000  # characters beyond which a thread makes tokens of a text, and others go on meanwhile
_SMOOTHING = 0.1
_SHUTDOWN = "the server is shutting down; try again"
T = TypeVar("T")
_NAMED = re.compile(r"([a-z_]+): expected ")


class Service:
    """A model and its state, for the endpoints; belongs to one event loop."""

    def __init__(
        self,
        llm: LLM,
        name: str,
        *,
        encoder: TextEncoder | None = None,
        encoder_name: str = "embedding",
        grammars: bool = False,
        stall_s: float = 10.0,
    ) -> None:
        """Serves a model.

        Args:
          llm: the model.
          name: as clients call it.
          encoder: for /v1/embeddings and /v1/rerank; None: there are none.
          encoder_name: as clients call that.
          grammars: clients may send grammars for answers; with some of these an answer never ends, nor does the step.
          stall_s: a step that takes longer than this counts as one that never ends.
        """
        self.llm = llm
        self.name = name
        self.grammars = grammars
        self.created = int(time.time())
        self.metrics = Metrics(llm, name)
        self._encoding = None if encoder is None else Encoding(encoder, encoder_name, self.metrics)
        self._stall_s = stall_s
        self._open: set[Answers] = set()
        self._draining = False
        self._request_s = 1.0  # a request takes about so long

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's.

        Raises:
          ApiError: it has none.
        """
        if self.llm.tokenizer is None:
            raise ApiError(400, "expected a model with a tokenizer for text, got one without; send tokens")
        return self.llm.tokenizer

    @property
    def condition(self) -> str:
        """How it is: ok, draining (the server ends), stalled (a step does not end) or dead (the engine's thread)."""
        engine = self.llm.engine
        if engine.failure is not None:
            return "dead"
        encoding = self._encoding
        if engine.busy_s > self._stall_s or (encoding is not None and encoding.busy_s > self._stall_s):
            return "stalled"
        return "draining" if self._draining else "ok"

    def check_name(self, name: str | None) -> None:
        """Refuses requests for another model.

        Raises:
          ApiError: it is another.
        """
        if name is not None and name != self.name:
            raise _other_model(self.name, name)

    @property
    def models(self) -> list[tuple[str, int, int]]:
        """Of each model its name, since when it is served, and its longest text."""
        found = [(self.name, self.created, self.llm.engine.max_length)]
        if self._encoding is not None:
            found.append((self._encoding.name, self._encoding.created, self._encoding.encoder.max_length))
        return found

    def encoding(self, name: str | None) -> Encoding:
        """The encoder.

        Raises:
          ApiError: there is none, it is called otherwise, or the server takes no requests.
        """
        encoding = self._encoding
        if encoding is None:
            raise ApiError(
                404,
                "expected a model for embeddings, got none; start the server with --embedding",
                code="model_not_found",
            )
        if name is not None and name != encoding.name:
            raise _other_model(encoding.name, name)
        if self._draining:
            raise ApiError(503, _SHUTDOWN, code="draining")
        return encoding

    async def beside_the_loop(self, size: int, work: Callable[[], T]) -> T:
        """What `work` gives about so many characters, in a thread where they are many; ValueError becomes a refusal."""
        try:
            return work() if size <= _LONG_TEXT else await asyncio.to_thread(work)
        except ValueError as error:
            raise refusal(error) from None

    async def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Tokens of a text."""
        tokenizer = self.tokenizer
        if len(text) <= _LONG_TEXT:
            return tokenizer.encode(text, special=special)
        return await asyncio.to_thread(tokenizer.encode, text, special=special)

    async def answer(self, prompts: Sequence[Sequence[int]], params: SamplingParams, priority: int = 0) -> Answers:
        """Submits prompts; use what it gives with `async with`.

        Raises:
          ApiError: they are refused.
        """
        condition = self.condition
        if condition != "ok":
            self.metrics.refuse(503)
            raise ApiError(503, f"expected an engine that takes requests, got one that is {condition}", code=condition)
        try:
            if params.form is None:
                stream = AsyncStream(self.llm.engine, prompts, params, priority)
            else:
                stream = await self._beside_the_loop(prompts, params, priority)
        except QueueFullError as error:
            self.metrics.refuse(429)
            wait_s = max(1, math.ceil(self._request_s))
            raise ApiError(429, str(error), code="queue_full", headers={"retry-after": str(wait_s)}) from None
        except EngineClosedError as error:
            raise ApiError(503, str(error), code="dead") from None
        except ModuleNotFoundError as error:
            raise ApiError(501, str(error)) from None
        except ValueError as error:
            raise refusal(error) from None
        return Answers(self, stream)

    async def _beside_the_loop(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, priority: int
    ) -> AsyncStream:
        """Submits prompts from a thread, as grammars take their time to be read."""
        loop = asyncio.get_running_loop()
        made = asyncio.ensure_future(
            asyncio.to_thread(AsyncStream, self.llm.engine, prompts, params, priority, loop=loop)
        )
        try:
            return await asyncio.shield(made)
        except asyncio.CancelledError:
            made.add_done_callback(lambda done: None if done.exception() else done.result().leave())
            raise

    def drain(self) -> None:
        """Takes no requests from now on."""
        self._draining = True

    def abort(self) -> None:
        """Fails what is open: it is answered with 503."""
        if self._encoding is not None:
            self._encoding.abort(ApiError(503, _SHUTDOWN, code="shutting_down"))
        for answers in list(self._open):
            answers.stream.fail(ApiError(503, _SHUTDOWN, code="shutting_down"))

    def opened(self, answers: Answers) -> None:
        """Answers are waited for."""
        self._open.add(answers)

    def closed(self, answers: Answers, time_s: float) -> None:
        """They are no longer."""
        self._open.discard(answers)
        if answers.stream.over:
            self._request_s += (time_s - self._request_s) * _SMOOTHING


class Answers:
    """The answers to the prompts of one request; leaving its block cancels what is still under way."""

    def __init__(self, service: Service, stream: AsyncStream) -> None:
        self._service = service
        self.stream = stream
        self.requests = stream.requests
        self._began = time.monotonic()
        self._last: dict[tuple[int, int], float] = {}  # when an answer got its last token
        self._left = [request.params.n for request in stream.requests]

    async def __aenter__(self) -> Answers:
        self._service.opened(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._service.closed(self, time.monotonic() - self._began)
        if not self.stream.over:
            self.stream.leave()
            for left in self._left:
                for _ in range(left):
                    self._service.metrics.end_answer("cancel")

    async def take(self) -> list[tuple[int, Delta]]:
        """What is new, each with the number of its prompt; empty: that was all.

        Raises:
          ApiError: a request failed.
        """
        taken = await self.stream.take()
        now = time.monotonic()
        metrics = self._service.metrics
        for number, delta in taken:
            key = (number, delta.index)
            if delta.token_ids:
                last = self._last.get(key)
                if last is None:
                    metrics.first.observe(now - self._began)
                else:
                    metrics.between.observe(now - last)
                self._last[key] = now
            if delta.finish_reason is not None:
                metrics.end_answer(delta.finish_reason)
                self._left[number] -= 1
                if not self._left[number]:
                    metrics.end(self.requests[number].stats, now)
            if delta.error is not None:
                raise _failed(delta.error)
        return taken

    def usage(self) -> dict[str, Any]:
        """Numbers of tokens up to now, as OpenAI's API has them."""
        stats = [request.stats for request in self.requests]
        prompt, output = sum(s.prompt_tokens for s in stats), sum(s.output_tokens for s in stats)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
            "prompt_tokens_details": {"cached_tokens": sum(s.cached_tokens for s in stats)},
            "completion_tokens_details": {"accepted_prediction_tokens": sum(s.accepted_tokens for s in stats)},
        }


def _other_model(name: str, got: str) -> ApiError:
    return ApiError(404, f"expected the model {name!r}, got {got[:80]!r}", param="model", code="model_not_found")


def refusal(error: ValueError) -> ApiError:
    """The error about a value that the engine refuses."""
    message = str(error)
    named = _NAMED.match(message)
    code = "context_length_exceeded" if message.startswith("prompt: expected at most") else "invalid_value"
    return ApiError(400, message, param=None if named is None else named[1], code=code)


def _failed(error: Exception) -> ApiError:
    if isinstance(error, ApiError):
        return error
    if isinstance(error, EngineClosedError):
        return ApiError(503, str(error), code="dead")
    if isinstance(error, ValueError):
        return refusal(error)
    return ApiError(500, f"expected an answer, got {type(error).__name__} in the engine; see the server's log")

"""How fast a loaded model answers."""

from __future__ import annotations

import bisect
import dataclasses
import resource
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from thresher.llm.api import LLM, Stream
from thresher.llm.request import Delta
from thresher.llm.sampling import SamplingParams

_SHORT = 16  # tokens of a prompt
_ANSWERS_ALONE = 3


@dataclasses.dataclass(frozen=True, slots=True)
class BenchResult:
    """What a load took; medians over rounds.

    Attributes:
      batch: requests at a time.
      prompt_tokens: of each request.
      output_tokens: of each answer.
      ttft_ms: to the first token of the first request that has one.
      prefill_tokens_per_s: tokens of prompts, until the last request has its first token.
      token_ms: between two tokens of an answer, once all are under way.
      decode_tokens_per_s: of all answers together, then.
      read_gb_per_s: of weights and pages, where one request decodes alone.
      roof_share: of the measured speed of reading memory; None: that has not been measured (`thresher peaks`), or
        several requests share what is read.
    """

    batch: int
    prompt_tokens: int
    output_tokens: int
    ttft_ms: float
    prefill_tokens_per_s: float
    token_ms: float
    decode_tokens_per_s: float
    read_gb_per_s: float | None
    roof_share: float | None

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return dataclasses.asdict(self)


def bench(llm: LLM, *, batch: int, prompt_tokens: int, output_tokens: int, rounds: int = 3) -> BenchResult:
    """Measures one load: `batch` requests that come at the same time, each with another prompt.

    Args:
      llm: the model.
      batch: requests at a time.
      prompt_tokens: of each; random tokens, so that nothing is found in the cache.
      output_tokens: of each, counted from when all are under way; at least 2.
      rounds: how often, after one more that is not counted.

    Raises:
      ValueError: the lengths do not fit the model.
    """
    if output_tokens < 2:
        raise ValueError(f"output_tokens: expected 2 or more, got {output_tokens}")
    random = np.random.default_rng(0)
    ttft, prefill, between = [], [], []
    for number in range(rounds + 1):
        prompts = random.integers(0, llm.config.vocab_size, (batch, prompt_tokens)).tolist()
        times = _times(llm, prompts, output_tokens)
        if not number:
            continue
        firsts = [own[0] for own in times]
        ttft.append(min(firsts))
        prefill.append(max(firsts))
        between.append(_between(times))
    token_s = statistics.median(between)
    read = share = None
    if batch == 1:
        read = llm.decode_bytes(prompt_tokens + output_tokens // 2) / token_s / 1e9
        share = _share(read)
    return BenchResult(
        batch,
        prompt_tokens,
        output_tokens,
        statistics.median(ttft) * 1e3,
        batch * prompt_tokens / statistics.median(prefill),
        token_s * 1e3,
        batch / token_s,
        read,
        share,
    )


def _times(llm: LLM, prompts: list[list[int]], output_tokens: int) -> list[list[float]]:
    """When the tokens of answers came, in seconds since the prompts did; until each has so many from when all began."""
    params = SamplingParams(temperature=0, ignore_eos=True)
    changed = threading.Condition()
    times: list[list[float]] = [[] for _ in prompts]
    ended: list[Exception | None] = []
    begin = time.monotonic()

    def deliver(own: list[float]) -> Callable[[Delta], None]:
        def take(delta: Delta) -> None:
            with changed:
                own.extend([time.monotonic() - begin] * len(delta.token_ids))
                if delta.finish_reason is not None:
                    ended.append(delta.error)
                changed.notify()

        return take

    def enough() -> bool:
        if not all(times):
            return False
        start = max(own[0] for own in times)
        return all(len(own) - bisect.bisect_left(own, start) >= output_tokens for own in times)

    requests = [llm.engine.submit(prompt, params, deliver(own)) for prompt, own in zip(prompts, times, strict=True)]
    with changed:
        changed.wait_for(lambda: ended or enough())
        early = not enough()
        for request in requests:
            llm.engine.cancel(request)
        changed.wait_for(lambda: len(ended) == len(requests))
    for error in ended:
        if error is not None:
            raise error
    if early:
        raise ValueError(
            f"output_tokens: expected answers that fit into {llm.engine.max_length} tokens with their prompts until all"
            f" are under way and have {output_tokens} more, got longer ones; load the model with a larger max_length"
        )
    return times


def _between(times: list[list[float]]) -> float:
    """Seconds between two tokens of an answer while all were under way."""
    start, end = max(own[0] for own in times), min(own[-1] for own in times)
    inside = [[at for at in own if start <= at <= end] for own in times]
    return statistics.median((own[-1] - own[0]) / (len(own) - 1) for own in inside)


@dataclasses.dataclass(frozen=True, slots=True)
class GapResult:
    """What a long prompt does to answers beside it.

    Attributes:
      prompt_tokens: of the prompt.
      alone_p99_ms: between two tokens of an answer without it, 99 of 100 times at most.
      beside_p99_ms: of answers of the same length while the prompt is computed.
      beside_tokens: of answers in that time.
      prefill_s: from when the prompt came to its first token.
    """

    prompt_tokens: int
    alone_p99_ms: float
    beside_p99_ms: float
    beside_tokens: int
    prefill_s: float

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return dataclasses.asdict(self)


def bench_gap(llm: LLM, *, prompt_tokens: int, answer_tokens: int = 100) -> GapResult:
    """Measures the time between tokens of answers without a long prompt and while one is computed beside them.

    One answer follows the other, so that they are as long beside the prompt as without it.

    Args:
      llm: the model, made for two sequences or more.
      prompt_tokens: of the prompt.
      answer_tokens: of an answer.

    Raises:
      ValueError: the prompt does not fit the model.
    """
    random = np.random.default_rng(1)

    def tokens(count: int) -> list[int]:
        found: list[int] = random.integers(0, llm.config.vocab_size, count).tolist()
        return found

    def ask() -> Stream:
        return llm.stream(tokens(_SHORT), temperature=0, ignore_eos=True, max_tokens=answer_tokens)

    def gaps(stream: Stream, going: Callable[[], bool], begin: Sequence[float] = ()) -> list[float]:
        """Of an answer, as long as it goes on; `begin`: when tokens came that were taken before."""
        times = [*begin]
        for _ in stream:
            times.append(time.monotonic())
            if not going():
                stream.cancel()
                break
        found: list[float] = np.diff(times).tolist()
        return found

    # Once before, so that plans are made and the engine knows how long tokens take.
    llm.generate([tokens(_SHORT), tokens(min(prompt_tokens, 512))], temperature=0, max_tokens=8, ignore_eos=True)
    alone = [gap for _ in range(_ANSWERS_ALONE) for gap in gaps(ask(), lambda: True)]
    # One has begun when the prompt comes: a token of it follows, however soon the prompt is done.
    begun = ask()
    next(begun)
    begin = [time.monotonic()]
    prompt = llm.stream(tokens(prompt_tokens), temperature=0, max_tokens=1, ignore_eos=True)

    def going() -> bool:
        return not prompt.request.stats.first_token and prompt.request.open > 0

    beside = gaps(begun, going, begin)
    while going():
        beside += gaps(ask(), going)
    return GapResult(
        prompt_tokens,
        float(np.percentile(alone, 99)) * 1e3,
        float(np.percentile(beside, 99)) * 1e3,
        len(beside),
        prompt.result().stats.ttft_s,
    )


def peak_memory_bytes() -> int:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _share(gb_per_s: float) -> float | None:
    from thresher.machine.roofs import known_peaks

    known = known_peaks()
    return None if known is None else gb_per_s / known.all_threads.dram_read_gb_per_s.median

"""How fast a loaded model answers."""

from __future__ import annotations

import dataclasses
import resource
import statistics
import time
from typing import Any

import numpy as np

from thresher.llm.api import LLM
from thresher.llm.sampling import SamplingParams


@dataclasses.dataclass(frozen=True, slots=True)
class BenchResult:
    """What a load took; medians over rounds.

    Attributes:
      batch: requests at a time.
      prompt_tokens: of each request.
      output_tokens: of each answer.
      ttft_ms: to the first token of the first request that has one.
      prefill_tokens_per_s: tokens of prompts, until the last request has its first token.
      token_ms: between two tokens of an answer.
      decode_tokens_per_s: of all answers together.
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
      output_tokens: of each, at least 2.
      rounds: how often, after one more that is not counted.

    Raises:
      ValueError: the lengths do not fit the model.
    """
    if output_tokens < 2:
        raise ValueError(f"output_tokens: expected 2 or more, got {output_tokens}")
    random = np.random.default_rng(0)
    params = SamplingParams(temperature=0, max_tokens=output_tokens, ignore_eos=True)
    ttft, prefill, between = [], [], []
    for number in range(rounds + 1):
        prompts = random.integers(0, llm.config.vocab_size, (batch, prompt_tokens)).tolist()
        begin = time.monotonic()
        outputs = llm.generate(prompts, params)
        if not number:
            continue
        firsts = [o.stats.first_token for o in outputs]
        lasts = [o.stats.finished for o in outputs]
        ttft.append(min(firsts) - begin)
        prefill.append(max(firsts) - begin)
        between.append(statistics.median((b - a) / (output_tokens - 1) for a, b in zip(firsts, lasts, strict=True)))
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


@dataclasses.dataclass(frozen=True, slots=True)
class GapResult:
    """What a long prompt does to an answer that is under way.

    Attributes:
      prompt_tokens: of the prompt.
      alone_p99_ms: between two tokens of the answer without it, 99 of 100 times at most.
      beside_p99_ms: while the prompt is computed.
      beside_tokens: of the answer in that time.
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


def bench_gap(llm: LLM, *, prompt_tokens: int, alone_tokens: int = 100) -> GapResult:
    """Measures the time between tokens of an answer before and while a prompt is computed beside it.

    Args:
      llm: the model, made for two sequences or more.
      prompt_tokens: of the prompt.
      alone_tokens: how many tokens of the answer come before it.

    Raises:
      ValueError: the prompt does not fit the model.
    """
    random = np.random.default_rng(1)

    def tokens(count: int) -> list[int]:
        found: list[int] = random.integers(0, llm.config.vocab_size, count).tolist()
        return found

    # Once before, so that plans are made and the engine knows how long tokens take.
    llm.generate([tokens(16), tokens(min(prompt_tokens, 512))], temperature=0, max_tokens=8, ignore_eos=True)
    answer = llm.stream(tokens(16), temperature=0, ignore_eos=True)
    times: list[float] = []
    try:
        while len(times) <= alone_tokens:
            next(answer)
            times.append(time.monotonic())
        alone = np.diff(times)
        prompt = llm.stream(tokens(prompt_tokens), temperature=0, max_tokens=1, ignore_eos=True)
        times = times[-1:]
        while not prompt.request.stats.first_token:
            next(answer)
            times.append(time.monotonic())
        stats = prompt.result().stats
    except StopIteration:
        raise ValueError("expected an answer longer than the prompt takes, got its end; raise max_length") from None
    finally:
        answer.cancel()
    return GapResult(
        prompt_tokens,
        float(np.percentile(alone, 99)) * 1e3,
        float(np.percentile(np.diff(times), 99)) * 1e3,
        len(times) - 1,
        stats.ttft_s,
    )


def peak_memory_bytes() -> int:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _share(gb_per_s: float) -> float | None:
    from thresher.machine.roofs import known_peaks

    known = known_peaks()
    return None if known is None else gb_per_s / known.all_threads.dram_read_gb_per_s.median

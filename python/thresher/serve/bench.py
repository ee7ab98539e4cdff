"""How fast a server of OpenAI's API answers, under a load."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from thresher.serve.client import Target, Timing

_WORDS = (
    *("river", "stone", "window", "garden", "letter", "morning", "paper", "train", "mountain", "bread", "winter"),
    *("music", "table", "forest", "bridge", "candle", "harbour", "pencil", "silver", "market", "road", "cloud"),
    *("island", "engine", "summer", "village", "answer", "number", "field", "story"),
)
_PERCENTILES = (50, 90, 95, 99)


@dataclasses.dataclass(frozen=True, slots=True)
class Load:
    """What is asked of a server.

    Attributes:
      concurrency: requests at a time; None: by rate.
      rate: requests a second, at random times (exponential gaps); None: by concurrency.
      requests: how many; None: as many as the duration has.
      duration_s: how long requests are sent; None: until all were.
      prompts: texts, one after the other; empty: random words.
      prompt_words: of random prompts.
      output_tokens: of each answer, at most.
      ignore_eos: answers have as many; not every server takes that.
      seed: of words and gaps.
    """

    concurrency: int | None = None
    rate: float | None = None
    requests: int | None = None
    duration_s: float | None = None
    prompts: Sequence[str] = ()
    prompt_words: int = 64
    output_tokens: int = 64
    ignore_eos: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if (self.concurrency is None) == (self.rate is None):
            raise ValueError("expected either a concurrency or a rate")
        if self.requests is None and self.duration_s is None:
            raise ValueError("expected a number of requests or a duration, got none")


@dataclasses.dataclass(frozen=True, slots=True)
class ServeResult:
    """What came of a load. Times are in milliseconds, percentiles by their number.

    Attributes:
      requests: that were sent.
      succeeded: that were answered.
      refused: with 429.
      failed: neither.
      errors: how often each message of a failure came.
      duration_s: from the first request to the last answer.
      requests_per_s: that were answered.
      output_tokens_per_s: of all answers.
      prompt_tokens: of all prompts that were answered.
      output_tokens: of all answers.
      ttft_ms: to the first token.
      inter_token_ms: between two parts of an answer.
      latency_ms: to the end of an answer.
    """

    requests: int
    succeeded: int
    refused: int
    failed: int
    errors: dict[str, int]
    duration_s: float
    requests_per_s: float
    output_tokens_per_s: float
    prompt_tokens: int
    output_tokens: int
    ttft_ms: dict[str, float]
    inter_token_ms: dict[str, float]
    latency_ms: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return dataclasses.asdict(self)


async def first_model(target: Target) -> str:
    """The first model of a server's list.

    Raises:
      OSError: there is no such server.
      ValueError: it has no such list.
    """
    status, body = await target.get("/models")
    try:
        return str(json.loads(body)["data"][0]["id"])
    except (ValueError, LookupError, TypeError):
        raise ValueError(f"expected a list of models, got status {status}: {body[:200]!r}; give --model") from None


async def bench_serve(
    target: Target, model: str, load: Load, progress: Callable[[int], None] = lambda done: None
) -> list[Timing]:
    """Sends a load to a server and waits for all answers.

    Args:
      target: the server.
      model: as it calls it.
      load: what is asked.
      progress: is told how many requests have ended.
    """
    chance = random.Random(load.seed)
    timings: list[Timing] = []
    begin = time.monotonic()

    def body(number: int) -> dict[str, Any]:
        if load.prompts:
            text = load.prompts[number % len(load.prompts)]
        else:
            text = " ".join(chance.choices(_WORDS, k=load.prompt_words))
        asked: dict[str, Any] = {
            "model": model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": load.output_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return asked | {"ignore_eos": True} if load.ignore_eos else asked

    def more(number: int) -> bool:
        if load.requests is not None and number >= load.requests:
            return False
        return load.duration_s is None or time.monotonic() - begin < load.duration_s

    async def ask(number: int) -> None:
        timings.append(await target.stream("/chat/completions", body(number)))
        progress(len(timings))

    if load.rate is not None:
        open_ = []
        number, due = 0, begin
        while more(number):
            open_.append(asyncio.ensure_future(ask(number)))
            number += 1
            due += chance.expovariate(load.rate)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
        await asyncio.gather(*open_)
        return timings
    numbers = iter(range(1 << 62))

    async def worker() -> None:
        while more(number := next(numbers)):
            await ask(number)

    await asyncio.gather(*(worker() for _ in range(load.concurrency or 1)))
    return timings


def summary(timings: Sequence[Timing]) -> ServeResult:
    """Sums up what came of a load."""
    good = [t for t in timings if not t.error]
    duration = max((t.ended for t in timings), default=0.0) - min((t.begun for t in timings), default=0.0)
    tokens = sum(t.output_tokens for t in good)
    return ServeResult(
        requests=len(timings),
        succeeded=len(good),
        refused=sum(t.refused for t in timings),
        failed=sum(t.failed for t in timings),
        errors=dict(Counter(t.error[:200] for t in timings if t.failed)),
        duration_s=duration,
        requests_per_s=len(good) / duration if duration else 0.0,
        output_tokens_per_s=tokens / duration if duration else 0.0,
        prompt_tokens=sum(t.prompt_tokens for t in good),
        output_tokens=tokens,
        ttft_ms=_percentiles(first_ms(timings)),
        inter_token_ms=_percentiles(gaps_ms(timings)),
        latency_ms=_percentiles([(t.ended - t.begun) * 1e3 for t in good]),
    )


def first_ms(timings: Sequence[Timing]) -> list[float]:
    """Times to the first token of what was answered."""
    return [(t.times[0] - t.begun) * 1e3 for t in timings if not t.error and t.times]


def gaps_ms(timings: Sequence[Timing]) -> list[float]:
    """Times between the parts of what was answered."""
    return [(b - a) * 1e3 for t in timings if not t.error for a, b in zip(t.times, t.times[1:], strict=False)]


def _percentiles(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    found = np.percentile(values, _PERCENTILES)
    return {f"p{p}": float(value) for p, value in zip(_PERCENTILES, found, strict=True)} | {
        "mean": float(np.mean(values)),
        "max": float(np.max(values)),
    }

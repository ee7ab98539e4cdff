"""How long calls took, as counts in steps of about one percent: what percentiles are made of."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

STEPS_PER_OCTAVE = 64
LAST_STEP = STEPS_PER_OCTAVE * 60  # of nanoseconds: 36 years
PERCENTILES = (50, 95, 99)

# (step, how many), each step once, in order.
Counts = tuple[tuple[int, int], ...]


def step_of(ns: float) -> int:
    """The step of a duration: 64 times the logarithm of its nanoseconds to base 2, rounded."""
    return min(max(round(STEPS_PER_OCTAVE * math.log2(max(ns, 1.0))), 0), LAST_STEP)


def milliseconds(step: int) -> float:
    """What durations of a step take, within 0.6 %."""
    return float(2 ** (step / STEPS_PER_OCTAVE)) / 1e6


def counted(pairs: Iterable[tuple[float, int]]) -> Counts:
    """Counts by step, from durations in nanoseconds and how many there were of each."""
    counts: Counter[int] = Counter()
    for ns, count in pairs:
        counts[step_of(ns)] += count
    return tuple(sorted(counts.items()))


def percentiles(counts: Mapping[int, int]) -> dict[str, float | None]:
    """What 50, 95 and 99 of 100 calls take at most: "p50_ms", "p95_ms", "p99_ms"; None where there are no calls."""
    total = sum(counts.values())
    found: dict[str, float | None] = {f"p{percent}_ms": None for percent in PERCENTILES}
    seen = 0
    wanted = list(PERCENTILES) if total else []
    for step in sorted(counts):
        seen += counts[step]
        while wanted and 100 * seen >= wanted[0] * total:
            found[f"p{wanted.pop(0)}_ms"] = milliseconds(step)
    return found


def to_text(counts: Mapping[int, int]) -> str:
    """What the history holds."""
    return json.dumps({str(step): counts[step] for step in sorted(counts)})


def from_text(text: str | None) -> dict[int, int]:
    """The inverse of `to_text`; nothing of what is none."""
    try:
        data: Any = json.loads(text or "{}")
        return {int(step): int(count) for step, count in data.items()}
    except (ValueError, AttributeError, TypeError):
        return {}

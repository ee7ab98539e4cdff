"""How long calls take."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True, slots=True)
class Latency:
    """How long calls took, in milliseconds.

    >>> Latency.of([2.0, 1.0, 4.0])
    Latency(count=3, mean_ms=2.3333, min_ms=1.0, p50_ms=2.0, p90_ms=3.6, p95_ms=3.8, p99_ms=3.96, max_ms=4.0)

    Attributes:
      count: calls.
      mean_ms: their mean.
      min_ms: the shortest.
      p50_ms: the median; p90_ms, p95_ms, p99_ms: as many percent of the calls took at most this long, between two
        calls on a straight line.
      max_ms: the longest.
    """

    count: int
    mean_ms: float
    min_ms: float
    p50_ms: float
    p90_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float

    @staticmethod
    def of(milliseconds: Sequence[float]) -> Latency:
        """The summary of some calls.

        Raises:
          ValueError: there are none.
        """
        if not milliseconds:
            raise ValueError("expected the times of one call at least, got none; time some calls first")
        points = np.percentile(milliseconds, (0, 50, 90, 95, 99, 100)).round(4).tolist()
        return Latency(len(milliseconds), round(float(np.mean(milliseconds)), 4), *points)

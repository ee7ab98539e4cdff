"""Summaries of timed samples. Standard library only; every duration is in milliseconds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


def percentile(samples: Sequence[float], fraction: float) -> float:
    """The value below which `fraction` of the samples lie, interpolated linearly between neighbours.

    Raises:
      ValueError: there are no samples, or fraction is outside [0, 1].
    """
    if not samples:
        raise ValueError("percentile: at least one sample is needed, got none")
    if not 0.0 <= fraction <= 1.0:
        raise ValueError(f"percentile: the fraction must lie in [0, 1], got {fraction}")
    ordered = sorted(samples)
    position = fraction * (len(ordered) - 1)
    low = math.floor(position)
    high = math.ceil(position)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def median(samples: Sequence[float]) -> float:
    """The 50th percentile."""
    return percentile(samples, 0.5)


@dataclass(frozen=True)
class Summary:
    """What the tables show of one list of samples.

    Attributes:
      spread: p90 / p10, 1.0 for a perfectly quiet host.
      mean_error: standard error of the mean divided by the mean: how far chance alone moves the mean.
    """

    count: int
    median: float
    mean: float
    p10: float
    p90: float
    minimum: float
    maximum: float
    spread: float
    mean_error: float


def summarise(samples: Sequence[float]) -> Summary:
    """Summary of positive samples.

    Raises:
      ValueError: there are no samples.
    """
    mean = math.fsum(samples) / len(samples) if samples else math.nan
    p10 = percentile(samples, 0.1)
    p90 = percentile(samples, 0.9)
    if len(samples) > 1:
        variance = math.fsum((value - mean) ** 2 for value in samples) / (len(samples) - 1)
        mean_error = math.sqrt(variance / len(samples)) / mean
    else:
        mean_error = 0.0
    return Summary(
        count=len(samples),
        median=percentile(samples, 0.5),
        mean=mean,
        p10=p10,
        p90=p90,
        minimum=min(samples),
        maximum=max(samples),
        spread=p90 / p10,
        mean_error=mean_error,
    )

"""Rounding that keeps sums."""

import math
from collections.abc import Sequence


def apportion(values: Sequence[float], total: int) -> list[int]:
    """Rounds numbers to integers whose sum is given, by the method of largest remainders.

    Args:
        values: Numbers whose exact sum lies within ``len(values)`` of ``total``; may be negative.
        total: What the result adds up to.

    Returns:
        One integer per value, each less than 1 away from it as long as the values add up to ``total``.
    """
    rounded = [math.floor(value) for value in values]
    if not rounded:
        return rounded
    # Ties go to the earlier value, so that the same input always gives the same table.
    order = sorted(range(len(values)), key=lambda i: (rounded[i] - values[i], i))
    missing = total - sum(rounded)
    for step in range(abs(missing)):
        index = order[step % len(order)] if missing > 0 else order[-1 - step % len(order)]
        rounded[index] += 1 if missing > 0 else -1
    return rounded


def percentages(weights: Sequence[float]) -> list[float]:
    """Shares of a whole in percent with two decimals, which add up to exactly 100.00 when printed.

    Args:
        weights: Non-negative numbers; if all are 0, every part gets an equal share.

    Returns:
        One percentage per weight; empty if there are no weights.
    """
    whole = sum(weights)
    if not weights:
        return []
    if whole <= 0:
        weights, whole = [1.0] * len(weights), float(len(weights))
    return [hundredths / 100 for hundredths in apportion([weight / whole * 10_000 for weight in weights], 10_000)]

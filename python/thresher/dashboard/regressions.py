"""Runs that are slower than those before them, found without anybody asking."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from statistics import median
from typing import Any

from thresher.dashboard.store import Run
from thresher.profiler.compare.verdict import noise_percent

LEAST_CALLS = 20  # a run with fewer says nothing
LEAST_RUNS = 3  # that a run is compared with
MOST_RUNS = 20
LEAST_PERCENT = 5.0
# Runs with other ones are not compared.
CIRCUMSTANCES = ("cpu", "threads")


@dataclasses.dataclass(frozen=True, slots=True)
class Regression:
    """A run that is slower than those before it.

    Attributes:
      run: the run.
      base: what it was compared with.
      slower_percent: by how much its mean call takes longer than the median of theirs.
      noise_percent: how much runs that are equally fast may differ by chance, as theirs show.
    """

    run: Run
    base: tuple[Run, ...]
    slower_percent: float
    noise_percent: float

    def to_dict(self) -> dict[str, Any]:
        """What JSON can hold."""
        return {
            "run": self.run.to_dict(),
            "base": [run.id for run in self.base],
            "slower_percent": self.slower_percent,
            "noise_percent": self.noise_percent,
        }


def find_regressions(runs: Sequence[Run]) -> list[Regression]:
    """Compares the newest run of each name with those before it under the same circumstances.

    It is a regression where its mean call takes at least 5 % longer than the median of theirs, and by more than the
    noise that they show among themselves. Runs with fewer than 20 calls count for nothing, and three have to be there.
    """
    groups: dict[object, list[Run]] = {}
    for run in sorted(runs, key=lambda run: -run.first_s):
        if run.calls >= LEAST_CALLS:
            groups.setdefault((run.name, *(run.about.get(key) for key in CIRCUMSTANCES)), []).append(run)
    found = []
    for newest, *older in groups.values():
        base = older[:MOST_RUNS]
        if len(base) < LEAST_RUNS:
            continue
        times = [run.busy_ms / run.calls for run in base]
        noise = noise_percent(times, [newest.busy_ms / newest.calls]) or 0.0
        slower = 100 * (newest.busy_ms / newest.calls / median(times) - 1)
        if slower > max(LEAST_PERCENT, noise):
            found.append(Regression(newest, tuple(base), slower, noise))
    return sorted(found, key=lambda one: -one.slower_percent)

"""PerformanceProfiler: what a recorded run says about where its time goes."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

from thresher.profiler.compare import load_report

REPORT, TRACE = "report.json", "trace.thrtrace"
_LEAST_SHARE = 5.0  # percent; an operator below it is no bottleneck


@dataclasses.dataclass(frozen=True, slots=True)
class Bottleneck:
    """Something that takes time, and what to do about it.

    Attributes:
      severity: "high", "medium" or "info".
      title: what it is.
      detail: with which figures.
      advice: what to do; "" where nothing is wrong with it.
      operator: the operator it is about, None for none.
      share: percent of the operators' time, None where it is about something else.
    """

    severity: str
    title: str
    detail: str
    advice: str
    operator: str | None = None
    share: float | None = None

    def __str__(self) -> str:
        """Two or three lines for people."""
        return f"[{self.severity}] {self.title}\n  {self.detail}" + (f"\n  {self.advice}" if self.advice else "")


class PerformanceProfiler:
    """Reads a recorded run.

    >>> import tempfile, torch, thresher
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()).eval()
    >>> run = thresher.PerformanceProfiler(thresher.profile(model, torch.randn(8, 64), tempfile.mkdtemp()))
    >>> any(found.operator == "linear" for found in run.find_bottlenecks())
    True
    >>> [layer["name"] for layer in run.layers()]  # all of it, and what is called "0" in it
    ['model', '0']
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Reads a run.

        Args:
          path: the folder that ``thresher.profile`` made, or a trace or report of ``thresher profile`` and
            ``thresher report``, or a trace of PyTorch's profiler.

        Raises:
          ValueError: it is none of these.
          OSError: it cannot be read.
        """
        self.path = Path(path)
        file = self.path
        if file.is_dir():
            candidates = [file / REPORT, file / TRACE]
            found = [one for one in candidates if one.is_file()]
            if not found:
                raise ValueError(
                    f"{file}: expected {REPORT} or {TRACE} in the folder, got neither; thresher.profile makes them"
                )
            file = found[0]
        self.report: dict[str, Any] = load_report(file)

    def find_bottlenecks(self, limit: int = 10) -> list[Bottleneck]:
        """What to look at first: what the rules of docs/profiling/reading.md found, then the largest operators.

        Args:
          limit: how many at most.

        Raises:
          ValueError: limit is below 1.
        """
        if limit < 1:
            raise ValueError(f"limit: expected at least 1, got {limit}; the default is 10")
        found = [
            Bottleneck(one["severity"], one["title"], one["detail"], one["advice"], one["operator"])
            for one in self.report["overview"].get("findings", [])
        ]
        rows = sorted(self.report["operators"], key=lambda row: -row["self_ns"])
        whole = sum(row["self_ns"] for row in rows) or 1
        for row in rows:
            share = 100 * row["self_ns"] / whole
            if share >= _LEAST_SHARE:
                found.append(_operator(row, share))
        return found[:limit]

    def operators(self) -> list[dict[str, Any]]:
        """The rows of the operators, the largest first; docs/profiling/report_data.md explains their keys."""
        return sorted(self.report["operators"], key=lambda row: -row["self_ns"])

    def layers(self) -> list[dict[str, Any]]:
        """The time of each module of the model: name, count, total_ns, self_ns, share, source; the largest first."""
        return sorted(self.report.get("modules_flat", []), key=lambda row: -row["total_ns"])

    def summary(self, limit: int = 10) -> str:
        """The bottlenecks as text."""
        found = self.find_bottlenecks(limit)
        return "\n".join(map(str, found)) if found else "nothing was recorded that takes time"


def _operator(row: dict[str, Any], share: float) -> Bottleneck:
    detail = f"{row['count']} runs, {row['mean_ns'] / 1e3:.1f} us each, {row['self_ns'] / 1e6:.2f} ms together"
    peak, bound = row["percent_of_peak"], row["bound"]
    if peak is not None:
        detail += f"; {peak:.0f} % of what the machine can do, bound by {bound}"
    advice = ""
    if peak is None:
        advice = "" if row["not_modelled"] else "`thresher peaks` measures what the machine can do; record again then."
    elif bound == "overhead":
        advice = "It is too small for its cost of starting: give it more rows, with a larger batch."
    elif bound == "memory" and row["flops"]:
        advice = "It waits for memory: fewer bytes, by precision='bf16' or 'int8', or more rows at once."
    elif peak < 60:
        advice = "`thresher tune` may find a faster blocking for its sizes."
    severity = "medium" if advice and share >= 20 else "info"
    return Bottleneck(severity, f"{row['name']} takes {share:.0f} %", f"{detail}.", advice, row["name"], share)

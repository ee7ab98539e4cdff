"""Sums by operator under the names that torch.profiler gives them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

from thresher.profiler.report import OpReport, Row

_SORT_KEYS = ("self_cpu_time_total", "cpu_time_total", "cpu_time", "count", "flops", "key")


@dataclass(frozen=True)
class KeyAverage:
    """All runs of one operator. Times are in microseconds.

    Operators of the engine do not run inside each other, so that a "self" time is the time itself.

    Attributes:
        key: Name of the operator.
        count: How often it ran.
        cpu_time_total: Sum of the runs.
        flops: Floating-point operations of all runs, None where not modelled.
        phase: "inference", "prefill" or "decode".
        section: "forward", "reshape" or "alloc".
    """

    key: str
    count: int
    cpu_time_total: float
    flops: float | None
    phase: str
    section: str

    @property
    def self_cpu_time_total(self) -> float:
        """The same as `cpu_time_total`."""
        return self.cpu_time_total

    @property
    def cpu_time(self) -> float:
        """Mean of the runs."""
        return self.cpu_time_total / self.count

    @staticmethod
    def of(row: Row, phase: str, section: str) -> KeyAverage:
        """That of a row of the operator report."""
        return KeyAverage(row.opname, row.count, row.total_ns / 1e3, row.flops, phase, section)


class KeyAverages(Sequence[KeyAverage]):
    """The operators of a report, in its order; ``table()`` prints them as torch.profiler does."""

    def __init__(self, report: OpReport) -> None:
        self._rows = [
            KeyAverage.of(row, phase.name, section.name)
            for phase in report.phases
            for section in phase.sections
            for row in section.rows
        ]

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> KeyAverage: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[KeyAverage]: ...

    def __getitem__(self, index: int | slice) -> KeyAverage | Sequence[KeyAverage]:
        return self._rows[index]

    @property
    def self_cpu_time_total(self) -> float:
        """Sum of all operators, in microseconds."""
        return sum(row.self_cpu_time_total for row in self._rows)

    def table(self, sort_by: str | None = None, row_limit: int = 100, max_name_column_width: int = 55) -> str:
        """The operators as text.

        Args:
            sort_by: "self_cpu_time_total", "cpu_time_total", "cpu_time", "count" or "flops", largest first, or "key";
                None: in the order of the report.
            row_limit: How many rows; -1 for all.
            max_name_column_width: Longer names are cut.

        Raises:
            ValueError: Another `sort_by`, or a width below 4.
        """
        if sort_by is not None and sort_by not in _SORT_KEYS:
            raise ValueError(f"sort_by: expected one of {', '.join(_SORT_KEYS)}, got {sort_by!r}; name one of these")
        if max_name_column_width < 4:
            raise ValueError(
                f"max_name_column_width: expected at least 4, got {max_name_column_width}; leave room for a name"
            )
        rows = self._rows
        if sort_by == "key":
            rows = sorted(rows, key=lambda row: row.key)
        elif sort_by is not None:
            rows = sorted(rows, key=lambda row: -(getattr(row, sort_by) or 0))
        whole = self.self_cpu_time_total
        cells = [
            (
                _cut(row.key, max_name_column_width),
                f"{100 * row.self_cpu_time_total / whole if whole else 0:.2f}%",
                _time(row.self_cpu_time_total),
                _time(row.cpu_time_total),
                _time(row.cpu_time),
                str(row.count),
                "--" if row.flops is None or not row.cpu_time_total else f"{row.flops / row.cpu_time_total / 1e3:.2f}",
            )
            for row in (rows if row_limit < 0 else rows[:row_limit])
        ]
        head = ("Name", "Self CPU %", "Self CPU", "CPU total", "CPU time avg", "# of Calls", "GFLOP/s")
        widths = [max(len(line[i]) for line in (head, *cells)) for i in range(len(head))]
        rule = "  ".join("-" * width for width in widths)
        lines = [
            "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in (head, *cells)
        ]
        return "\n".join([rule, lines[0], rule, *lines[1:], rule, f"Self CPU time total: {_time(whole)}", ""])


def _cut(name: str, width: int) -> str:
    return name if len(name) <= width else f"{name[: width - 3]}..."


def _time(microseconds: float) -> str:
    if microseconds >= 1e6:
        return f"{microseconds / 1e6:.3f}s"
    return f"{microseconds / 1e3:.3f}ms" if microseconds >= 1e3 else f"{microseconds:.3f}us"

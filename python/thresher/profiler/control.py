"""Switching the profiler on and off, and asking it for reports."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, overload

from thresher.profiler import formats
from thresher.profiler.report import OpReport

if TYPE_CHECKING:
    from rich.console import Group

_TextFormat = Literal["text", "json", "csv"]
_FORMATTERS = {
    "text": formats.to_text,
    "json": formats.to_json,
    "csv": formats.to_csv,
    "rich": formats.to_rich,
}


def start() -> None:
    """Records operators from now on; what was recorded before stays."""
    _engine().profile_start()


def stop() -> None:
    """Records no longer; what was recorded stays."""
    _engine().profile_stop()


def reset() -> None:
    """Forgets all that was recorded; whether the profiler is on does not change."""
    _engine().profile_reset()


def is_enabled() -> bool:
    """Whether operators are recorded now."""
    return bool(_engine().profile_enabled())


def collect() -> OpReport:
    """Sums up what was recorded. Reading does not erase."""
    engine = _engine()
    return OpReport.from_summary(engine.profile_summary(), version=engine.version())


@overload
def op_report(format: _TextFormat = "text") -> str: ...


@overload
def op_report(format: Literal["rich"]) -> Group: ...


def op_report(format: str = "text") -> str | Group:
    """The operator report of what was recorded so far. Reading does not erase.

    Args:
        format: "text", "json", "csv", or "rich" for something that a rich console prints.

    Raises:
        ValueError: Another format.
        ImportError: "rich" was asked for and is not installed.
    """
    report: str | Group = render(collect(), format)
    return report


def render(report: OpReport, format: str = "text") -> Any:
    """A report in one of the formats of ``op_report``.

    Raises:
        ValueError: Another format.
        ImportError: "rich" was asked for and is not installed.
    """
    if format not in _FORMATTERS:
        raise ValueError(f"op_report format: wanted one of {', '.join(_FORMATTERS)}, found {format!r}")
    return _FORMATTERS[format](report)


class Profile:
    """What the context manager ``profile`` gives: the report of its block."""

    def __init__(self) -> None:
        self._report: OpReport | None = None

    @property
    def report(self) -> OpReport:
        """The report of the block; inside the block, of what has been recorded so far."""
        return collect() if self._report is None else self._report

    def op_report(self, format: str = "text") -> Any:
        """The report in one of the formats of ``thresher.profiler.op_report``; the same errors."""
        return render(self.report, format)

    def _finish(self) -> None:
        self._report = collect()


@contextmanager
def profile() -> Iterator[Profile]:
    """Profiles a block.

    If the profiler was off, earlier records are forgotten first and it is off again afterwards; if it was on, it stays
    on and the report contains the earlier records, too.

    Yields:
        An object whose ``op_report()`` and ``report`` stay as they are at the end of the block.
    """
    was_enabled = is_enabled()
    if not was_enabled:
        reset()
        start()
    result = Profile()
    try:
        yield result
    finally:
        if not was_enabled:
            stop()
        result._finish()


def _engine() -> Any:
    # Not at the top: reading a report from a file needs no engine.
    return importlib.import_module("thresher._engine")

"""Switching the profiler on and off, and asking it for reports."""

from __future__ import annotations

import importlib
import json
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from thresher.machine.roofs import known_peaks
from thresher.profiler import formats, tracing
from thresher.profiler.averages import KeyAverages
from thresher.profiler.events import number_of
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


DEFAULT_TRACE_BYTES = 4 << 30
DEFAULT_MEMORY_BYTES = 256 << 20


def start(trace: bool | str | Path | None = None, *, max_bytes: int | None = None) -> None:
    """Records operators from now on; what was recorded before stays.

    Args:
        trace: what also keeps every record, for a time line: a new file (".thrtrace"; readable even if the process is
            killed), or True for memory (``save_trace`` writes it). None or False: only the sums of the operator report.
        max_bytes: of the trace; what comes after it is counted as dropped. By default 4 GiB in a file, 256 MiB in
            memory.

    Raises:
        ValueError: a trace is running already, the file exists or cannot be written, or a THRESHER_* variable has a
            value that cannot be used.
    """
    engine = _engine()
    engine.initialize()  # what the environment asks for comes before what the program asks for
    if trace is not None and trace is not False:
        path = "" if trace is True else str(_place(Path(trace)))
        limit = max_bytes or (DEFAULT_TRACE_BYTES if path else DEFAULT_MEMORY_BYTES)
        engine.trace_start(path, limit)
        annotate(tracing.context())
        tracing.begin()
    engine.profile_start()


def stop() -> None:
    """Records no longer; what was recorded stays. Completes a running trace, and warns if records are missing in it."""
    engine = _engine()
    with suppress(ValueError):  # a wrong variable: whatever compiles or loads a model says so
        engine.initialize()
    engine.profile_stop()
    _say_how_devices_are_timed(engine.device_times()["obstacle"])
    if not engine.trace_status()["running"]:
        return
    annotate(tracing.end())
    status = engine.trace_stop()
    if status["dropped"] or status["problem"]:
        warnings.warn(
            f"the trace {status['path'] or 'in memory'} lacks {status['dropped']} records: {status['problem']}",
            stacklevel=2,
        )


_said: set[str] = set()


def _say_how_devices_are_timed(obstacle: str) -> None:
    if not obstacle or obstacle in _said:
        return
    _said.add(obstacle)
    import logging  # takes as long to import as a small model to load

    logging.getLogger("thresher").warning(
        "times on the GPU come from events, with the gaps between kernels in them, and not from CUPTI: %s", obstacle
    )


def _place(path: Path) -> Path:
    target = path.expanduser().absolute()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(
            error.errno,
            f"trace {target}: expected a folder to write into, got: {error.strerror or error}; choose another place",
        ) from error
    return target


def annotate(entries: Mapping[str, Any]) -> None:
    """Adds to what the running trace tells about itself.

    Args:
        entries: what JSON can hold, by name; a later entry replaces an earlier one of the same name.

    Raises:
        ValueError: no trace runs.
        TypeError: JSON cannot hold an entry.
    """
    _engine().trace_annotate(json.dumps(dict(entries)))


def trace_file() -> Path | None:
    """The file that the running or last trace goes to; None: there is none, or it is in memory."""
    path = _engine().trace_status()["path"]
    return Path(path) if path else None


def save_trace(path: str | Path) -> None:
    """Writes what the running or last trace holds so far to a new file, complete in itself.

    Args:
        path: a file that does not exist yet; missing folders are made.

    Raises:
        ValueError: there has been no trace, or the file exists or cannot be written.
    """
    _engine().trace_save(str(_place(Path(path))))


def export_trace(path: str | Path, *, force: bool = False) -> None:
    """Writes the running or last trace as a time line or a page.

    Args:
        path: a new file: .thrtrace (native), .json or .json.gz (Chrome), .pftrace (Perfetto) or .html.
        force: replaces a file that exists; not a .thrtrace, which the engine writes.

    Raises:
        ValueError: another suffix, or there has been no trace.
        OSError: the file exists or cannot be written.
    """
    target = Path(path).expanduser().absolute()
    if target.suffix == ".thrtrace":
        save_trace(target)
        return
    from thresher.profiler.analysis import build_report
    from thresher.profiler.export import check_output, write_text, write_trace
    from thresher.profiler.html import render as render_page
    from thresher.profiler.trace import read_trace

    check_output(target, force=force)
    with tempfile.TemporaryDirectory(prefix="thresher-") as folder:
        native = Path(folder) / target.with_suffix(".thrtrace").name
        save_trace(native)
        trace = read_trace(native)
    if target.suffix == ".html":
        write_text(target, render_page(build_report(trace)), force=force)
    else:
        write_trace(trace, target, force=force)


@contextmanager
def record_function(name: str) -> Iterator[None]:
    """Marks a block in the trace, and as a range for a tool that takes those of NVTX.

    Args:
        name: what the time line shows.
    """
    engine = _engine()
    profiled, listening = engine.profile_enabled(), engine.nvtx_listening()
    if not (profiled or listening):
        yield
        return
    if listening:
        engine.nvtx_push(name)
    start_ns = engine.profile_now_ns()
    try:
        yield
    finally:
        if listening:
            engine.nvtx_pop()
        engine.profile_event(number_of("thresherRange"), engine.profile_site(name), start_ns)


_step: dict[str, int] = {}


def step() -> None:
    """Marks the end of one step of the program, such as a request or a batch, and the start of the next.

    Steps are what the reports break the time down by; without marks each call of a model is one.
    """
    engine = _engine()
    if not engine.profile_enabled():
        _step.clear()
        return
    if "start_ns" in _step:
        number = _step.get("number", 0)
        engine.profile_event(number_of("thresherStep"), engine.profile_site(f"Step#{number}"), _step["start_ns"])
        _step["number"] = number + 1
    _step["start_ns"] = engine.profile_now_ns()  # after the record of the last step, which it must not overlap


def reset() -> None:
    """Forgets all that the operator report sums up; whether the profiler is on does not change, nor does a trace."""
    _engine().profile_reset()


def is_enabled() -> bool:
    """Whether operators are recorded now."""
    return bool(_engine().profile_started())


def collect() -> OpReport:
    """Sums up what was recorded. Reading does not erase."""
    engine = _engine()
    return OpReport.from_summary(engine.profile_summary(), version=engine.version(), peaks=known_peaks())


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
        raise ValueError(f"op_report format: expected one of {', '.join(_FORMATTERS)}, got {format!r}")
    return _FORMATTERS[format](report)


class Profile:
    """What the context manager ``profile`` gives: the report and the trace of its block."""

    def __init__(self) -> None:
        self._report: OpReport | None = None

    @property
    def report(self) -> OpReport:
        """The report of the block; inside the block, of what has been recorded so far."""
        return collect() if self._report is None else self._report

    def op_report(self, format: str = "text") -> Any:
        """The report in one of the formats of ``thresher.profiler.op_report``; the same errors."""
        return render(self.report, format)

    def step(self) -> None:
        """Marks the end of one step of the program and the start of the next; see ``thresher.profiler.step``."""
        step()

    def key_averages(self) -> KeyAverages:
        """The operators of the block under the names of torch.profiler: ``p.key_averages().table(sort_by="count")``."""
        return KeyAverages(self.report)

    def export_chrome_trace(self, path: str | Path) -> None:
        """Writes the block as Chrome JSON, compressed where the name ends in ".gz".

        Args:
            path: a file; one that exists is replaced, as torch.profiler does.

        Raises:
            ValueError: the name ends in neither .json nor .json.gz, or the block kept no trace.
            OSError: the file cannot be written.
        """
        if not str(path).endswith((".json", ".json.gz")):
            raise ValueError(
                f"export_chrome_trace: expected a name that ends in .json or .json.gz, got {path}; "
                "export(path) writes other kinds"
            )
        export_trace(path, force=True)

    def save_trace(self, path: str | Path) -> None:
        """Writes the trace of the block, until the next trace starts; see ``thresher.profiler.save_trace``."""
        save_trace(path)

    def export(self, path: str | Path) -> None:
        """Writes the block as a time line or a page, until the next trace starts.

        Args:
            path: a new file: .thrtrace (native), .json or .json.gz (Chrome), .pftrace (Perfetto) or .html.

        Raises:
            ValueError: another suffix, or the block kept no trace.
            OSError: the file exists or cannot be written.
        """
        export_trace(path)

    def _finish(self) -> None:
        self._report = collect()


@contextmanager
def profile(trace: bool | str | Path = True) -> Iterator[Profile]:
    """Profiles a block.

    If the profiler was off, earlier records are forgotten first and it is off again afterwards; if it was on, it stays
    on and the report contains the earlier records, too. A trace that was running goes on and is the block's.

    Args:
        trace: where to keep every record for a time line, as in ``start``; False: nowhere.

    Yields:
        An object whose ``op_report()`` and ``report`` stay as they are at the end of the block.

    Raises:
        ValueError: the trace's file exists or cannot be written.
    """
    was_enabled = is_enabled()
    was_traced = bool(_engine().trace_status()["running"])
    if not was_enabled:
        reset()
    start(trace=None if was_traced else trace)
    result = Profile()
    try:
        yield result
    finally:
        if was_enabled and not was_traced:
            stop()
            start()
        elif not was_enabled and was_traced:
            _engine().profile_stop()
        elif not was_enabled:
            stop()
        result._finish()


def _engine() -> Any:
    # Not at the top: reading a report from a file needs no engine.
    return importlib.import_module("thresher._engine")

"""Recording a script for ``thresher profile``: what is kept, where, and what becomes of it at the end."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

NATIVE_SUFFIX = ".thrtrace"


@dataclass(frozen=True)
class RecordingOptions:
    """What a recording is to leave.

    Attributes:
        trace: A trace; its suffix names the format. None: none.
        html: A page. None: none.
        with_torch: Whether PyTorch's profiler runs, too.
        measure_peaks: Whether the machine's peaks are measured where they are not known.
        force: Whether files that exist are replaced.
    """

    trace: Path | None
    html: Path | None
    with_torch: bool
    measure_peaks: bool
    force: bool

    @property
    def native(self) -> Path | None:
        """Where the engine writes its trace while the script runs; it is what a killed script leaves."""
        if self.trace is not None and self.trace.suffix == NATIVE_SUFFIX:
            return self.trace
        if self.with_torch:
            return None
        target = self.trace or self.html
        return None if target is None else target.with_name(target.name + NATIVE_SUFFIX)

    def check(self) -> None:
        """Finds out before the script runs whether all of it can be done.

        Raises:
            ValueError: A suffix is not known.
            OutputError: A file cannot be written.
        """
        from thresher.profiler.export import CHROME_SUFFIXES, PERFETTO_SUFFIXES, OutputError, check_output

        suffixes = (NATIVE_SUFFIX, *CHROME_SUFFIXES, *PERFETTO_SUFFIXES)
        if self.trace is not None and not self.trace.name.endswith(suffixes):
            raise ValueError(
                f"--trace {self.trace}: expected a name that ends in one of {', '.join(suffixes)}; choose another name"
            )
        for path in (self.trace, self.html):
            if path is not None:
                check_output(path, force=self.force)
        native = self.native
        if native is None or native in (self.trace, self.html):
            return
        if native.exists() and not self.force:
            raise OutputError(
                f"{native}: expected no such file, got what an earlier recording left that was killed; "
                f"`thresher report {native}` shows it; remove it or add --force"
            )
        check_output(native, force=self.force)


class Recording:
    """One recording; `start`, run the script, `finish`."""

    def __init__(self, wishes: RecordingOptions, script: str, arguments: list[str]) -> None:
        """Prepares a recording of a script or module of this name."""
        self._wishes = wishes
        self._script = script
        self._arguments = arguments
        self._torch_profile: Any = None
        self._energy: Any = None
        self._torch_trace: Path | None = None
        self._torch_about: dict[str, Any] = {}

    def start(self) -> None:
        """Records from now on.

        Raises:
            ValueError, OSError: The trace's file cannot be written.
            ImportError: PyTorch's profiler was asked for and cannot be had.
        """
        from thresher import profiler
        from thresher.profiler.energy import EnergyMeter

        if self._wishes.with_torch:
            import thresher.torch_profiler as torch_profiler

            self._torch_profile = torch_profiler.profile(record_shapes=True, profile_memory=True, with_modules=True)
        native = self._wishes.native
        if native is None:
            profiler.start()
        else:
            if self._wishes.force and native.is_file():
                native.unlink()
            profiler.start(trace=native)
        if native is None and self._wishes.with_torch:  # a trace of the engine measures its own
            self._energy = EnergyMeter()
            self._energy.start()
        if self._torch_profile is not None:
            self._torch_profile.start()

    def finish(self, exit_code: int | None) -> Any:
        """Ends the recording.

        Args:
            exit_code: That of the script.

        Returns:
            The operator report.
        """
        from thresher import profiler

        about: dict[str, Any] = {}
        try:
            if self._torch_profile is not None:
                self._torch_profile.stop()
            if self._wishes.native is not None or self._energy is not None:
                about = self._about(exit_code)
            if self._wishes.native is not None:
                with suppress(ValueError):  # the script has stopped the trace: then it is complete already
                    profiler.annotate(about)
        finally:
            profiler.stop()
        self._torch_about = about
        return profiler.collect()

    def torch_table(self) -> str:
        """The table of PyTorch's profiler, "" if it did not run."""
        if self._torch_profile is None:
            return ""
        averages = self._torch_profile.key_averages()
        return f"{averages.table(sort_by='self_cpu_time_total', row_limit=25)}\n"

    def write(self) -> list[Path]:
        """Writes what was wished for.

        Returns:
            The files.

        Raises:
            OSError: One cannot be written; what was recorded stays.
            ValueError: The recording cannot be read.
        """
        from thresher.profiler.analysis import build_report
        from thresher.profiler.export import write_trace
        from thresher.profiler.trace import read_trace

        wishes, native = self._wishes, self._wishes.native
        if self._torch_profile is not None and (wishes.trace or wishes.html):
            self._export_torch(self._torch_about)
        source = self._torch_trace or native
        if source is None:
            return []
        written = [wishes.trace] if native == wishes.trace and wishes.trace is not None else []
        trace = None
        if wishes.trace is not None and wishes.trace not in written:
            if self._torch_trace is not None and wishes.trace.name.endswith((".json", ".json.gz")):
                _copy(self._torch_trace, wishes.trace, force=wishes.force)
            else:
                trace = read_trace(source)
                write_trace(trace, wishes.trace, force=wishes.force)
            written.append(wishes.trace)
        if wishes.html is not None:
            from thresher.cli.report import write_page

            trace = trace or read_trace(source)
            # Its name is what the user called it, not that of the file in between.
            trace.meta["file"] = (wishes.trace or wishes.html.with_suffix(NATIVE_SUFFIX)).name
            write_page(build_report(trace), wishes.html, force=wishes.force)
            written.append(wishes.html)
        self.discard()
        return written

    def kept(self) -> Path | None:
        """Where the recording can be read from after `write` has failed, None for nowhere."""
        return next((path for path in (self._wishes.native, self._torch_trace) if path and path.is_file()), None)

    def discard(self) -> None:
        """Removes files that were only needed on the way."""
        for path in (self._torch_trace, self._wishes.native):
            if path is not None and path != self._wishes.trace:
                path.unlink(missing_ok=True)

    def _about(self, exit_code: int | None) -> dict[str, Any]:
        """What the trace tells of the run."""
        from thresher import _engine
        from thresher.profiler.tracing import versions

        return {
            "script": self._script,
            "arguments": self._arguments,
            "exit_code": exit_code,
            **versions(),
            **({} if self._energy is None else {"energy": self._energy.stop()}),
            "peaks": _peaks(_engine.profile_summary().get("num_threads"), measure=self._wishes.measure_peaks),
        }

    def _export_torch(self, about: dict[str, Any]) -> None:
        """Writes the trace of PyTorch's profiler to a file in between, with what it does not know itself."""
        from thresher import _engine

        target = self._wishes.trace or self._wishes.html
        assert target is not None
        target.parent.mkdir(parents=True, exist_ok=True)
        machine = _engine.profile_summary()
        about = {
            **{name: machine.get(name) for name in ("cpu", "isa", "num_threads")},
            "engine_version": _engine.version(),
            **about,
        }
        # The name is always the same, so that what a killed recording left is replaced.
        folder = target.with_name(f".{target.name}.torch")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            raw = folder / "trace.json"
            self._torch_profile.export_chrome_trace(str(raw))
            between = target.with_name(f"{target.name}.torch.json")
            _add_member(raw, between, "thresher", about)
            self._torch_trace = between
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def finishing_first(finish: Callable[[int], object]) -> Iterator[None]:
    """Within this block os._exit, which ends a process at once, finishes the recording first."""
    leave, process = os._exit, os.getpid()

    def finish_and_leave(status: int) -> None:
        os._exit = leave
        # A forked child has nothing to finish: the recording is its parent's.
        if os.getpid() == process:
            with suppress(BaseException):
                finish(status)
            with suppress(BaseException):
                sys.stdout.flush()
                sys.stderr.flush()
        leave(status)

    os._exit = finish_and_leave  # type: ignore[assignment]
    try:
        yield
    finally:
        os._exit = leave


def _peaks(num_threads: object, *, measure: bool) -> dict[str, Any]:
    from thresher.machine.roofs import known_peaks, peaks

    try:
        found = known_peaks()
        if found is not None and isinstance(num_threads, int) and num_threads > found.all_threads.num_threads:
            found = known_peaks(num_threads)
        if found is None and measure:
            typer.echo("thresher: measuring the peaks of this machine, once; --no-peaks leaves that out", err=True)
            found = peaks()
    except (ValueError, MemoryError) as error:
        return {"reason": str(error)}
    except KeyboardInterrupt:
        return {"reason": "the measurement was interrupted; `thresher peaks` measures them"}
    if found is None:
        return {"reason": "they were not measured (--no-peaks); `thresher peaks` measures them"}
    return found.to_dict()


def _add_member(source: Path, target: Path, name: str, value: Any) -> None:
    """Copies a JSON object, with one member more."""
    import json

    from thresher.whole_file import writing

    with source.open("rb") as old, writing(target) as new:
        old.seek(-min(64, source.stat().st_size), os.SEEK_END)
        if not old.read().rstrip().endswith(b"}"):
            raise OSError(f"{target}: expected PyTorch's whole trace, got a part of it; make room and record again")
        old.seek(0)
        begin = old.read(1 << 16)
        brace = begin.index(b"{") + 1
        new.write(begin[:brace] + f"\n{json.dumps(name)}: {json.dumps(value)},".encode() + begin[brace:])
        shutil.copyfileobj(old, new, 1 << 20)


def _copy(source: Path, target: Path, *, force: bool) -> None:
    from thresher.profiler.export import open_output

    with source.open("rb") as old, open_output(target, force=force) as new:
        shutil.copyfileobj(old, new, 1 << 20)

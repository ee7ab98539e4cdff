"""MemoryProfiler: the memory that a block of a program takes."""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from thresher import _engine, profiler, startup
from thresher.measure.resident import forget_peak, resident_bytes
from thresher.profiler.analysis import build_report
from thresher.profiler.trace import read_trace


@dataclasses.dataclass(frozen=True, slots=True)
class MemoryReport:
    """What a block took, in bytes; ``print`` shows it as text.

    Attributes:
      engine_before: what the engine held when the block began.
      engine_peak: the most it held at once inside.
      engine_after: what it held at the end.
      resident_before: memory of the whole process that was in RAM; None where nobody counts it.
      resident_peak: the most of it inside; None where the peak cannot be reset.
      resident_after: at the end.
      held: what the models compiled in this process hold at the end, as (what, bytes).
      notes: why something is not known.
    """

    engine_before: int
    engine_peak: int
    engine_after: int
    resident_before: int | None
    resident_peak: int | None
    resident_after: int | None
    held: tuple[tuple[str, int], ...]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        """A table."""
        lines = [f"{'':16}{'before':>12}{'peak':>12}{'after':>12}"]
        for name, kind in (("engine", "engine"), ("whole process", "resident")):
            cells = [getattr(self, f"{kind}_{when}") for when in ("before", "peak", "after")]
            lines.append(f"{name:16}" + "".join(f"{_text(cell):>12}" for cell in cells))
        if self.held:
            lines.append("compiled models hold at the end")
        lines += [f"{_text(size):>12}  {name}" for name, size in self.held]
        return "\n".join([*lines, *self.notes])


class MemoryProfiler:
    """Watches the memory that a block takes.

    >>> import torch, thresher
    >>> model = thresher.compile(torch.nn.Linear(256, 256).eval())
    >>> with torch.no_grad(), thresher.MemoryProfiler() as p:
    ...     _ = model(torch.randn(8, 256))
    >>> report = p.report()
    >>> report.engine_peak >= 256 * 256 * 4  # the packed weights
    True

    The engine's memory is counted exactly, by records of what it takes and gives back; results of a model belong to
    PyTorch. The whole process is what Linux counts as resident, PyTorch's and Python's own included. One block at a
    time: it needs the trace of the profiler.
    """

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._report: MemoryReport | None = None
        self._notes: list[str] = []
        self._before: tuple[int, int | None] = (0, None)
        self._recorded: profiler.Profile | None = None

    def __enter__(self) -> MemoryProfiler:
        """Begins to watch.

        Raises:
          ValueError: a trace is running already.
        """
        startup.initialize()
        if _engine.trace_status()["running"]:
            raise ValueError(
                "MemoryProfiler: expected no running trace, got one, which has the engine's memory in it; "
                "call thresher.profiler.stop() first"
            )
        self._report = None
        obstacle = forget_peak()
        self._notes = [f"the peak of the process is not known: {obstacle}"] if obstacle else []
        self._before = (_engine.allocated_bytes(), resident_bytes())
        self._recorded = self._stack.enter_context(profiler.profile(trace=True))
        return self

    def __exit__(self, *error: object) -> None:
        """Ends it; an error inside goes on, and the report is of what came before it."""
        after, resident = _engine.allocated_bytes(), resident_bytes()
        peak = None if self._notes else resident_bytes(peak=True)
        self._stack.close()
        in_trace = self._peak()
        self._report = MemoryReport(
            engine_before=self._before[0],
            engine_peak=max(in_trace, self._before[0], after),
            engine_after=after,
            resident_before=self._before[1],
            resident_peak=peak,
            resident_after=resident,
            held=_held(),
            notes=tuple(self._notes),
        )

    def report(self) -> MemoryReport:
        """What the block took.

        Raises:
          ValueError: there has been no block, or it has not ended.
        """
        if self._report is None:
            raise ValueError("MemoryProfiler: expected a block that has ended, got none; use it in a `with` statement")
        return self._report

    def _peak(self) -> int:
        assert self._recorded is not None
        with tempfile.TemporaryDirectory(prefix="thresher-") as folder:
            file = Path(folder) / "memory.thrtrace"
            self._recorded.save_trace(file)
            return build_report(read_trace(file))["memory"]["peak_bytes"] or 0


def _held() -> tuple[tuple[str, int], ...]:
    if "thresher.compiler" not in sys.modules:  # then nothing is compiled
        return ()
    stats = sys.modules["thresher.compiler"].compilation_stats()
    parts = (
        ("packed weights", stats.weights_held.packed),
        ("constants that the engine made", stats.weights_held.engine),
        ("row-major copies of parameters", stats.weights_held.copied),
        ("working memory of the largest plan", stats.peak_arena_bytes),
        ("weights of the models' own, read in place", stats.weights_held.original),
    )
    return tuple((name, size) for name, size in parts if size)


def _text(size: int | None) -> str:
    return "-" if size is None else f"{size / 1e6:.2f} MB"

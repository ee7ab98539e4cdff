"""What became of the engine's records in PyTorch's profiler."""

from __future__ import annotations

import dataclasses

from thresher.torch_shim import library


@dataclasses.dataclass(frozen=True)
class Session:
    """The counts of one session of PyTorch's profiler; a cycle of a schedule is a session.

    Attributes:
        number: of the session in this process, from 1.
        finished: whether PyTorch has asked for the trace.
        start_ns: begin of PyTorch's window, since the Unix epoch.
        stop_ns: its end.
        runtime: rows of host threads.
        kernels: rows of kernels.
        copies: rows of copies and fills.
        annotations: bars over the kernels of a `record_function`.
        memory: changes of memory handed to PyTorch.
        dropped: records that the engine lost.
        unlinked: kernels and copies that belong to no operator and no `record_function`.
        out_of_window: records that began before the session or ended after it; they are not in the trace.
        before_launch: kernels and copies without a launch, or that start before it.
        error: why nothing was recorded; empty if all went well.
    """

    number: int
    finished: bool
    start_ns: int
    stop_ns: int
    runtime: int
    kernels: int
    copies: int
    annotations: int
    memory: int
    dropped: int
    unlinked: int
    out_of_window: int
    before_launch: int
    error: str


def last_session() -> Session | None:
    """The counts of the newest session that recorded the engine; None if there was none."""
    shim = library.loaded()
    if shim is None:
        return None
    session = Session(**shim.last_session())
    return session if session.number else None

"""The profiler: where the time goes, by operator.

    import thresher

    thresher.profiler.start()
    model(inputs)
    print(thresher.profiler.op_report())

or ``THRESHER_PROFILE=ON`` in the environment, or ``with thresher.profiler.profile() as p: ...``.
"""

import importlib
from typing import TYPE_CHECKING, Any

from thresher.profiler.averages import KeyAverage, KeyAverages
from thresher.profiler.control import (
    Profile,
    annotate,
    collect,
    export_trace,
    is_enabled,
    op_report,
    profile,
    record_function,
    render,
    reset,
    save_trace,
    start,
    step,
    stop,
    trace_file,
)
from thresher.profiler.report import OpReport, Phase, Row, Section

if TYPE_CHECKING:
    from thresher.profiler.server import ProfilerServer, serve

__all__ = [
    "KeyAverage",
    "KeyAverages",
    "OpReport",
    "Phase",
    "Profile",
    "ProfilerServer",
    "Row",
    "Section",
    "annotate",
    "collect",
    "export_trace",
    "is_enabled",
    "op_report",
    "profile",
    "record_function",
    "render",
    "reset",
    "save_trace",
    "serve",
    "start",
    "step",
    "stop",
    "trace_file",
]


def __getattr__(name: str) -> Any:
    # http.server takes longer to import than all the rest, and few processes want it.
    if name in ("ProfilerServer", "serve"):
        return getattr(importlib.import_module("thresher.profiler.server"), name)
    raise AttributeError(f"module 'thresher.profiler' has no attribute {name!r}")

"""The profiler: where the time goes, by operator.

    import thresher

    thresher.profiler.start()
    model(inputs)
    print(thresher.profiler.op_report())

or ``THRESHER_PROFILE=ON`` in the environment, or ``with thresher.profiler.profile() as p: ...``.
"""

from thresher.profiler.control import (
    Profile,
    annotate,
    collect,
    export,
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

__all__ = [
    "OpReport",
    "Phase",
    "Profile",
    "Row",
    "Section",
    "annotate",
    "collect",
    "export",
    "is_enabled",
    "op_report",
    "profile",
    "record_function",
    "render",
    "reset",
    "save_trace",
    "start",
    "step",
    "stop",
    "trace_file",
]

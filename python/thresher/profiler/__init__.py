"""The profiler: where the time goes, by operator.

    import thresher

    thresher.profiler.start()
    model(inputs)
    print(thresher.profiler.op_report())

or ``THRESHER_PROFILE=ON`` in the environment, or ``with thresher.profiler.profile() as p: ...``.
"""

from thresher.profiler.control import Profile, collect, is_enabled, op_report, profile, render, reset, start, stop
from thresher.profiler.report import OpReport, Phase, Row, Section

__all__ = [
    "OpReport",
    "Phase",
    "Profile",
    "Row",
    "Section",
    "collect",
    "is_enabled",
    "op_report",
    "profile",
    "render",
    "reset",
    "start",
    "stop",
]

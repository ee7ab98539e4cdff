"""From a trace to what a person wants to know of it.

    from thresher.profiler.analysis import build_report
    from thresher.profiler.trace import read_trace

    report = build_report(read_trace("run.thrtrace"))
    report["overview"]["findings"]

The report is plain data for JSON. Nothing here needs PyTorch or the engine.
"""

from thresher.profiler.analysis.build import FORMAT, FORMAT_VERSION, build_report

__all__ = ["FORMAT", "FORMAT_VERSION", "build_report"]

"""Traces as data: reading what the profiler or PyTorch's profiler has written.

    from thresher.profiler.trace import read_trace

    trace = read_trace("run.thrtrace")            # or .json, .json.gz
    trace.events["dur_ns"].max(), trace.meta["cpu"]

Nothing here needs PyTorch or the engine.
"""

from thresher.profiler.trace.events import EVENT, Category
from thresher.profiler.trace.model import Lane, Site, Totals, Trace, TraceError
from thresher.profiler.trace.native import NativeWriter
from thresher.profiler.trace.reader import read_trace

__all__ = ["EVENT", "Category", "Lane", "NativeWriter", "Site", "Totals", "Trace", "TraceError", "read_trace"]

"""Chrome JSON traces, up to the report that is made of them; behind a "Z", compressed."""

from __future__ import annotations

import gzip

from fuzz_targets import as_file

from thresher.profiler.analysis import build_report
from thresher.profiler.trace import TraceError, read_trace

# Of more events the reader keeps a part in memory and the rest in a file.
FEW = 8


def run(data: bytes) -> None:
    limit = FEW if len(data) % 2 else 100_000
    if data[:1] == b"Z":
        data = gzip.compress(data[1:], 1)
    with as_file(data, "trace.json") as path:
        try:
            trace = read_trace(path, limit=limit)
        except TraceError:
            return
        build_report(trace)

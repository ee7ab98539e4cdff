"""A trace much larger than the memory that may be used becomes a report with exact sums."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from trace_samples import HEAD, START, STEPS, encoder_records, sites

from thresher.profiler.trace import NativeWriter

_BYTES = 200_000_000
_MEMORY = 900 << 20
_SCRIPT = f"""
import json, resource, sys
resource.setrlimit(resource.RLIMIT_AS, ({_MEMORY}, {_MEMORY}))
from thresher.profiler.analysis import build_report
from thresher.profiler.trace import read_trace
trace = read_trace(sys.argv[1], limit=300_000)
report = build_report(trace)
# Not getrusage: what it calls the peak begins with the memory of the process that started this one.
with open("/proc/self/status") as status:
    peak = next(line for line in status if line.startswith("VmHWM:"))
print(json.dumps({{
    "peak_kib": int(peak.split()[1]),
    "kept": len(trace.events),
    "events": report["source"]["events"],
    "count": sum(row["count"] for row in report["operators"]),
    "total": sum(row["total_ns"] for row in report["operators"]),
    "overview": report["overview"]["total"],
    "shown": report["timeline"]["shown"],
}}))
"""


@pytest.mark.thorough
@pytest.mark.release_build
@pytest.mark.skipif(sys.platform != "linux", reason="the limit of memory is Linux's")
def test_a_large_trace_needs_little_memory(tmp_path: Path) -> None:
    file = tmp_path / "large.thrtrace"
    rows = encoder_records(20_000)
    is_op = rows["kind"] == 0
    extent = int(rows["end_ns"].max()) - START + 1000
    repeats = _BYTES // rows.nbytes
    with NativeWriter(file, HEAD) as writer:
        writer.sites(sites())
        for number in range(repeats):
            part = rows.copy()
            part["start_ns"] += number * extent
            part["end_ns"] += number * extent
            for begin in range(0, len(part), 8192):
                writer.records(part[begin : begin + 8192])
        writer.close(stop_ns=START + repeats * extent)
    assert file.stat().st_size > 0.9 * _BYTES
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", _SCRIPT, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert 0 < found["peak_kib"] < 500 << 10
    assert found["events"] == repeats * 20_000 * (2 * STEPS + 2)
    assert found["kept"] <= 300_000
    assert 0 < found["shown"] <= 40_000
    assert found["count"] == repeats * int(is_op.sum())
    assert found["total"] == repeats * int((rows["end_ns"] - rows["start_ns"])[is_op].sum())
    by_category = found["overview"]["by_category"]
    assert sum(by_category.values()) == found["overview"]["wall_ns"]
    # The operators do not overlap, so that all of their time is in these two.
    assert by_category["kernel"] + by_category["copy"] == found["total"]

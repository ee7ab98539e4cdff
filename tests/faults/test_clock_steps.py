"""A wall clock that is set forth and back while things run: no duration and no wait depends on it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from kineto_trace import require_shim
from processes import lines_of

HERE = Path(__file__).parent

STEPPING = """
import ctypes, json, sys, threading, time
clock = ctypes.CDLL(None)
clock.step_wall_clock.argtypes = [ctypes.c_int64]
before = time.time()
clock.step_wall_clock(1000)
assert 990 < time.time() - before < 1010, "the clock cannot be set"
clock.step_wall_clock(-1000)
HOUR, YEAR = 3600, 365 * 86400
"""


@pytest.fixture(scope="module")
def wall_clock(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("needs a C compiler, to make a wall clock that can be set")
    library = tmp_path_factory.mktemp("clock") / "wall_clock.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(HERE / "wall_clock.c"), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return str(library)


@pytest.fixture
def stepping(wall_clock: str, python: Any) -> Any:
    def run(code: str, *arguments: object) -> Any:
        # A sanitizer's library has to be the first.
        preload = " ".join(filter(None, [os.environ.get("LD_PRELOAD"), wall_clock]))
        return python(STEPPING + code, *arguments, LD_PRELOAD=preload)

    return run


def test_a_profile(stepping: Any, model_file: Path, tmp_path: Path) -> None:
    code = """
import numpy as np, thresher
from thresher import _engine, profiler
model = thresher.load(sys.argv[1])
x = np.ones((4, 128), np.float32)
model(x)
begin = time.monotonic_ns()
profiler.start(trace=sys.argv[2])
for seconds in (HOUR, -3 * HOUR, 10 * YEAR, -11 * YEAR, 2, -1):
    with profiler.record_function("block"):
        for _ in range(50):
            model(x)
        clock.step_wall_clock(seconds)
    profiler.step()
profiler.stop()
print(json.dumps([time.monotonic_ns() - begin, json.loads(profiler.op_report("json")),
                  [[r["start_ns"], r["end_ns"]] for r in _engine.profile_records()]]))
"""
    path = tmp_path / "run.thrtrace"
    (line,) = lines_of(stepping(code, model_file, path))
    elapsed, report, records = json.loads(line)
    assert len(records) > 300
    assert all(0 <= end - start <= elapsed for start, end in records)
    assert max(end for _, end in records) - min(start for start, _ in records) <= elapsed
    (phase,) = report["phases"]
    assert phase["calls"] == 300
    assert 0 < phase["wall_ms"] <= elapsed / 1e6
    assert phase["rows_ms"] + phase["gap_ms"] == pytest.approx(phase["wall_ms"])
    assert phase["gap_ms"] >= 0

    from thresher.profiler.analysis import build_report
    from thresher.profiler.trace import read_trace

    trace = read_trace(path)
    total = build_report(trace)["overview"]["total"]
    assert sum(total["by_category"].values()) == total["wall_ns"] <= elapsed


def test_records_reach_the_file_while_the_clock_is_behind(stepping: Any, tmp_path: Path) -> None:
    code = """
from pathlib import Path
from thresher import profiler
path = Path(sys.argv[1])
profiler.start(trace=path)
for seconds in (-YEAR, 2 * YEAR, -HOUR):
    clock.step_wall_clock(seconds)
    size = path.stat().st_size
    with profiler.record_function("work"):
        pass
    begin = time.monotonic()
    while path.stat().st_size == size:
        assert time.monotonic() - begin < 10, "the record does not arrive"
        time.sleep(0.01)
print("arrived")
"""
    assert lines_of(stepping(code, tmp_path / "run.thrtrace")) == ["arrived"]


def test_threads_that_wait_for_work_wake(stepping: Any, model_file: Path) -> None:
    code = """
import numpy as np, thresher
from thresher import _engine
_engine.set_num_threads(2)
model = thresher.load(sys.argv[1], threads=2)
x = np.ones((64, 128), np.float32)
wanted = model(x)["output"]
for seconds in (-YEAR, HOUR, -HOUR, 2 * YEAR):
    clock.step_wall_clock(seconds)
    time.sleep(0.02)  # the workers have gone to sleep
    assert np.array_equal(model(x)["output"], wanted)
print("woken")
"""
    assert lines_of(stepping(code, model_file)) == ["woken"]


def test_the_cache(stepping: Any, tmp_path: Path) -> None:
    code = """
import warnings
warnings.simplefilter("error")
from thresher import cache
cache.set_dir(sys.argv[1])
for seconds in (0, YEAR, -3 * YEAR, HOUR):
    clock.step_wall_clock(seconds)
    assert cache.store("sums", seconds, seconds)
    assert cache.prune() == [], "age alone removes nothing"
    for known in (0, YEAR, -3 * YEAR, HOUR):
        assert cache.load("sums", known) in (None, known)
    assert cache.load("sums", seconds) == seconds
print(len(cache.entries()), len(cache.prune(older_than_days=30)), len(cache.entries()))
clock.step_wall_clock(10 * YEAR)
print(len(cache.prune(older_than_days=30)))
"""
    # The file system's own clock did not step: before the last step all files seem to be from the future.
    assert lines_of(stepping(code, tmp_path / "cache")) == ["4 0 4", "4"]


@pytest.mark.thorough
def test_the_profiler_of_pytorch(stepping: Any) -> None:
    """A step before a session, as after a suspended night, must not move the engine's rows out of it."""
    pytest.importorskip("torch")
    require_shim()
    code = """
import warnings
warnings.simplefilter("ignore")
import torch, thresher.torch_profiler as torch_profiler
from torch.profiler import ProfilerActivity, profile
model = torch.compile(torch.nn.Linear(64, 64).eval(), backend="thresher")
x = torch.ones(8, 64)
with torch.no_grad():
    model(x)
    found = []
    for seconds in (0, 8 * HOUR, -20 * HOUR):
        clock.step_wall_clock(seconds)
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as prof:
            model(x)
        session = torch_profiler.last_session()
        rows = [event for event in prof.events() if event.device_type == torch.autograd.DeviceType.PrivateUse1]
        shortest = min((row.time_range.elapsed_us() for row in rows), default=None)
        found.append([session.kernels, session.out_of_window, len(rows), shortest])
print(json.dumps(found))
"""
    found = json.loads(lines_of(stepping(code))[-1])
    for kernels, out_of_window, rows, shortest in found:
        assert kernels == found[0][0] > 0
        assert (out_of_window, rows) == (0, kernels)
        assert shortest >= 0

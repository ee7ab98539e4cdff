"""Exact times of a device's work by CUPTI: on a GPU by the real one, on the emulator by a stand-in."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROFILED = """
import json, sys
import numpy as np
from thresher import _engine, profiler, startup
startup.initialize()
device = _engine.Device(sys.argv[1])
stream = device.stream()
graph = _engine.Graph()
(value,) = graph.add("layer_norm", [graph.input("x", "f32", (8, 256)), None, None])
graph.set_outputs(graph.add("softmax", [value]))
plan = _engine.Plan.build(graph, _engine.WeightStore(), device=device, name="two_steps")
x = np.zeros((8, 256), np.float32)
buffer, out = device.empty(x.nbytes), device.empty(x.nbytes)
def work():
    stream.copy_in(buffer, x)
    plan.launch(stream, [buffer], [out])
    stream.fill(out, 0, 64)
    stream.copy_out(x, out)
sessions = []
work()
for trace in (False, True):
    profiler.reset()
    begin = _engine.profile_now_ns()
    profiler.start(trace=trace)
    work()
    before = [r["name"] for r in _engine.profile_records() if r["kind"] == "device"]
    work()
    profiler.stop()
    records = [r for r in _engine.profile_records() if r["kind"] == "device"]
    keys = ("name", "start_ns", "end_ns", "value", "lane")
    sessions.append({
        "records": [{key: r[key] for key in keys} for r in records],
        "before": before,
        "times": _engine.device_times(),
        "dropped": _engine.profile_dropped(),
        "begin": begin,
        "end": _engine.profile_now_ns(),
        "clock": sum(r["event"] == "thresherClockCalibration" for r in _engine.profile_records()),
    })
    work()
print(json.dumps(sessions))
"""
NAMES = ["Memcpy HtoD", "layer_norm", "softmax", "Memset", "Memcpy DtoH"]
ENABLED = [f"enable {kind}" for kind in (39, 5, 4, 10, 1, 2)]


def run(library: str, **environment: str) -> Any:
    command = [sys.executable, "-c", PROFILED, library]
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def stand_in(gpu: Any, tmp_path: Path) -> dict[str, str]:
    if gpu.is_real:
        pytest.skip("a GPU has the real one")
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("needs a C compiler, to make a stand-in for CUPTI")
    folder = tmp_path / "lib"
    folder.mkdir()
    source = Path(__file__).with_name("cupti_stand_in.c")
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(folder / "libcupti.so.13"), str(source), "-lpthread"]
    subprocess.run(command, check=True)
    return {"LD_LIBRARY_PATH": str(folder), "CUPTI_LINES": str(tmp_path / "lines")}


@pytest.mark.gpu
def test_records_have_the_times_that_cupti_tells(gpu: Any, stand_in: dict[str, str]) -> None:
    for session in run(gpu.library, **stand_in):
        assert session["times"] == {"exact": True, "obstacle": ""}
        assert session["before"] == NAMES, "records appear when their stream is waited for"
        assert session["dropped"] == 0 and session["clock"] == 0
        records = session["records"]
        assert [r["name"] for r in records] == NAMES * 2
        # From the beginning of the first piece of the work to the end of the last.
        assert [r["end_ns"] - r["start_ns"] for r in records] == [5000] * len(records)
        assert all(session["begin"] < r["value"] <= r["start_ns"] < session["end"] for r in records)
    # CUPTI belongs to others while nothing is profiled.
    lines = Path(stand_in["CUPTI_LINES"]).read_text().split("\n")[:-1]
    assert lines == ["subscribe", *ENABLED, "unsubscribe"] * 2


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ({"CUPTI_HELD": "1"}, "another tool of this process, such as torch.profiler or Nsight, has CUPTI"),
        ({"CUPTI_WITHOUT": "10"}, "cuptiActivityEnable failed: CUPTI_ERROR_INVALID_KIND"),
        # Where the machine has the real one, that says what it lacks: a driver.
        ({"LD_LIBRARY_PATH": ""}, "libcupti.so.13 cannot be opened|cuptiSubscribe failed: CUPTI_ERROR_"),
    ],
)
def test_times_of_events_where_cupti_is_not_to_be_had(
    gpu: Any, stand_in: dict[str, str], setting: dict[str, str], reason: str
) -> None:
    sessions = run(gpu.library, **{**stand_in, **setting})
    assert sum(session["clock"] for session in sessions) >= 1, "the clocks are compared"
    for session in sessions:
        assert session["times"]["exact"] is False and re.search(reason, session["times"]["obstacle"])
        assert [r["name"] for r in session["records"]] == NAMES * 2 and session["dropped"] == 0
        assert [r["end_ns"] - r["start_ns"] for r in session["records"]] != [5000] * len(session["records"])
    if "CUPTI_WITHOUT" in setting:
        assert Path(stand_in["CUPTI_LINES"]).read_text().split("\n")[:-1][-1] == "unsubscribe"


@pytest.mark.gpu
def test_on_a_gpu(real_gpu: Any) -> None:
    for session in run(real_gpu.library):
        assert session["times"]["exact"] or session["times"]["obstacle"]
        assert [r["name"] for r in session["records"]] == NAMES * 2 and session["dropped"] == 0
        assert all(r["end_ns"] > r["start_ns"] >= r["value"] for r in session["records"])

"""What the profiler is told of a device's work."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nvtx_ranges import build_listener, ranges_of

from thresher import _engine
from thresher.profiler.trace import read_trace
from thresher.profiler.trace.events import Category


@pytest.fixture
def profiler() -> Iterator[None]:
    _engine.profile_reset()
    _engine.profile_start()
    yield
    _engine.profile_stop()
    _engine.profile_reset()


class _Work:
    """Copies, three kernels of a plan, and a fill. The plan is made beforehand."""

    def __init__(self, lab: Any) -> None:
        def build(graph: Any) -> Any:
            (value,) = graph.add("layer_norm", [graph.input("x", "f32", (8, 256)), None, None])
            (value,) = graph.add("pointwise", [value], {"program": "s0=mul(in0,2.0); s1=tanh(s0)"})
            return graph.add("softmax", [value])

        self._lab = lab
        self._plan = lab.plan(build)
        self()

    def __call__(self) -> None:
        lab = self._lab
        x = np.random.default_rng(0).standard_normal((8, 256)).astype(np.float32)
        buffer, out = lab.put(x), lab.device.empty(x.nbytes)
        self._plan.launch(lab.stream, [buffer], [out])
        lab.stream.fill(out, 0, 64)
        lab.get(out, x)


@pytest.fixture
def work(lab: Any) -> _Work:
    return _Work(lab)


_NAMES = ["Memcpy HtoD", "layer_norm", "pointwise", "softmax", "Memset", "Memcpy DtoH"]


def test_kernels_copies_and_fills(lab: Any, work: _Work, profiler: None) -> None:
    before = _engine.profile_now_ns()
    work()
    after = _engine.profile_now_ns()
    records = _engine.profile_records()
    done = [r for r in records if r["kind"] == ("op" if lab.is_cpu else "device")]
    assert [r["name"] for r in done] == _NAMES
    assert [r["section"] for r in done] == ["reshape", "forward", "forward", "forward", "reshape", "reshape"]
    assert len({r["correlation"] for r in done}) == len(done) and all(r["correlation"] for r in done)
    kernel = {r["name"]: r["kernel"] for r in done}
    variant = kernel["layer_norm"].removeprefix("layer_norm fp32 ")
    assert kernel["pointwise"] == f"mul+tanh fp32 {variant}"
    for r in done:
        assert before <= r["value"] <= r["start_ns"] <= r["end_ns"]
        # The clocks of a device and its host are compared to within some microseconds.
        assert r["end_ns"] <= after + 1_000_000
    amounts = {r["name"]: (r["flops"], r["bytes"]) for r in done}
    assert amounts["layer_norm"] == (7 * 8 * 256, 2 * 4 * 8 * 256)
    assert amounts["Memcpy HtoD"] == (0, 4 * 8 * 256) and amounts["Memset"] == (0, 64)
    if lab.is_cpu:
        return
    assert variant.startswith("cuda sm_")
    assert all(r["device"] == 1 for r in done)
    assert len({r["lane"] for r in done}) == 1
    launches = {r["correlation"]: r for r in records if r["kind"] == "runtime" and r["correlation"]}
    assert set(launches) == {r["correlation"] for r in done}
    events = [launches[r["correlation"]]["event"] for r in done]
    assert events == ["thresherDataTransferHtoD", *["thresherLaunchStream"] * 4, "thresherDataTransferDtoH"]
    assert all(launches[r["correlation"]]["start_ns"] == r["value"] for r in done)
    if lab.is_real:
        assert all(r["end_ns"] > r["start_ns"] for r in done), "the device's clock stands still"
    # In order on their stream.
    for earlier, later in pairwise(done):
        assert later["start_ns"] >= earlier["end_ns"] - 5_000


def test_memory(lab: Any, profiler: None) -> None:
    buffer = lab.device.empty(123_456)
    del buffer
    changes = [r for r in _engine.profile_records() if r["kind"] == "memory"]
    assert [r["value"] for r in changes] == [123_456, -123_456]
    assert [r["event"] for r in changes] == ["Memory (Allocation)", "Memory (Release)"]
    assert {r["device"] for r in changes} == {0 if lab.is_cpu else 1}
    # Bytes held on the device.
    assert changes[0]["correlation"] - changes[1]["correlation"] == 123_456


def test_the_report_sums_them_up(work: _Work, profiler: None) -> None:
    for _ in range(3):
        work()
    rows = {row["name"]: row for row in _engine.profile_summary()["rows"]}  # type: ignore[attr-defined]
    assert set(rows) == set(_NAMES)
    assert all(row["count"] == 3 for row in rows.values())
    assert rows["softmax"]["flops"] == 3 * 5 * 8 * 256


def test_nothing_is_recorded_while_nobody_wants_it(work: _Work) -> None:
    _engine.profile_reset()
    work()
    assert not [r for r in _engine.profile_records() if r["kind"] in ("op", "device")]


def test_traces_have_a_lane_for_each_stream(lab: Any, work: _Work, tmp_path: Path) -> None:
    path = tmp_path / "run.thrtrace"
    _engine.trace_start(str(path), 1 << 24)
    try:
        work()
        other = lab.device.stream()
        buffer = lab.device.empty(64)
        other.fill(buffer, 1, 64)
        other.synchronize()
    finally:
        _engine.trace_stop()
    trace = read_trace(path)
    on_device = trace.events[np.isin(trace.events["category"], [Category.KERNEL, Category.COPY])]
    assert len(on_device) == len(_NAMES) + 1
    lanes = {trace.lanes[index].name for index in np.unique(on_device["lane"]).tolist()}
    if lab.is_cpu:
        assert all(name.startswith("thresher:0 stream") for name in lanes)
        return
    assert len(lanes) == 2 and all(name.startswith("cuda:0 stream ") for name in lanes)
    labels = {trace.names[index] for index in on_device["name"].tolist()}
    assert {"Memcpy HtoD", "Memcpy DtoH", "Memset"} < labels
    host = trace.events[trace.events["category"] == Category.RUNTIME]
    assert set(on_device["correlation"].tolist()) <= set(host["correlation"].tolist())


@pytest.mark.gpu
def test_launches_are_nvtx_ranges(gpu: Any, tmp_path: Path) -> None:
    code = """
import sys
import numpy as np
from thresher import _engine, startup
startup.initialize()
device = _engine.Device(sys.argv[1])
graph = _engine.Graph()
(value,) = graph.add("layer_norm", [graph.input("x", "f32", (8, 256)), None, None])
graph.set_outputs(graph.add("softmax", [value]))
plan = _engine.Plan.build(graph, _engine.WeightStore(), device=device, name="two_steps", graphs=True)
x = np.zeros((8, 256), np.float32)
for _ in range(3):
    plan.run([x], [x.copy()])
"""
    lines = tmp_path / "lines"
    tool = {"NVTX_INJECTION64_PATH": build_listener(tmp_path), "NVTX_LISTENER_LINES": str(lines)}
    command = [sys.executable, "-c", code, gpu.library]
    subprocess.run(command, env={**os.environ, **tool}, check=True, timeout=120)
    found = [range.path for range in ranges_of(lines)]
    assert found.count(("two_steps",)) == 3
    steps = [path[1].split()[0] for path in found if len(path) == 2]
    # Launched step by step at first, while a graph of the device is captured where it has any, and then as one.
    assert len(steps) in (4, 6) and steps[:4] == ["layer_norm", "softmax"] * 2

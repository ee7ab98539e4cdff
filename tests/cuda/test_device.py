"""Memory, copies, streams and events of devices."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from thresher import _engine


def test_info(lab: Any) -> None:
    info = lab.device.info
    assert info["kind"] in ("cpu", "cuda") and info["name"]
    assert info["memory_bytes"] > 0 and info["multiprocessors"] > 0
    assert bool(info["compute_capability"]) == (not lab.is_cpu)
    if lab.is_real:
        assert float(info["compute_capability"]) >= 8.0
        assert info["driver_version"] >= info["runtime_version"] >= 13000


def test_an_index_that_is_not_there(lab: Any) -> None:
    if lab.is_cpu:
        with pytest.raises(ValueError, match="expected 0, the one CPU, got 1"):
            _engine.Device(index=1)
        return
    for index in (-1, 1000):
        with pytest.raises(ValueError, match=rf"expected a cuda device from 0 to \d+, got {index}"):
            _engine.Device(lab.library, index)


@pytest.mark.parametrize("size", [1, 3, 255, 4096, 1_000_003])
def test_there_and_back(lab: Any, size: int) -> None:
    sent = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    assert np.array_equal(lab.get(lab.put(sent), sent * 0), sent)


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.int32, np.bool_])
def test_every_type(lab: Any, dtype: Any) -> None:
    sent = (np.arange(24).reshape(2, 3, 4) % 5).astype(dtype)
    assert np.array_equal(lab.get(lab.put(sent), np.zeros_like(sent)), sent)


def test_copies_and_fills_touch_their_range_only(lab: Any) -> None:
    content = np.arange(1000, dtype=np.int32)
    source, target = lab.put(content), lab.put(-content)
    lab.stream.copy(target, source, nbytes=400, to_offset=40, source_offset=80)
    lab.stream.fill(target, 0xAB, nbytes=5, offset=3)
    expected = -content
    expected[10:110] = content[20:120]
    expected.view(np.uint8)[3:8] = 0xAB
    assert np.array_equal(lab.get(target, content), expected)
    assert np.array_equal(lab.get(source, content), content)


def test_nothing_is_copied_beyond_a_buffer(lab: Any) -> None:
    buffer = lab.device.empty(16)
    assert buffer.nbytes == 16
    with pytest.raises(ValueError, match="to: expected 20 bytes from 0, got a buffer of 16"):
        lab.stream.copy_in(buffer, np.zeros(5, np.float32))
    with pytest.raises(ValueError, match="expected 8 bytes from 12"):
        lab.stream.fill(buffer, 0, 8, offset=12)
    with pytest.raises(ValueError, match="expected -1 bytes"):
        lab.stream.fill(buffer, 0, -1)
    with pytest.raises(ValueError, match="row-major"):
        lab.stream.copy_out(np.zeros((4, 4), np.float32)[:, ::2], buffer)
    with pytest.raises(ValueError, match="at least 1 byte"):
        lab.device.empty(0)


@pytest.mark.gpu
def test_what_is_another_device_s_is_refused(gpu: Any) -> None:
    cpu = _engine.Device()
    with pytest.raises(ValueError, match="expected a buffer of the stream's own device"):
        cpu.stream().fill(gpu.device.empty(4), 0, 1)
    plan = gpu.plan(lambda graph: graph.add("softmax", [graph.input("x", "f32", (1,))]))
    with pytest.raises(ValueError, match="stream: expected one of the plan's own device"):
        plan.launch(cpu.stream(), [], [])


@pytest.mark.gpu
def test_a_device_without_memory_left_goes_on(gpu: Any) -> None:
    with pytest.raises(MemoryError):
        gpu.device.empty(1 << 50)
    sent = np.arange(100, dtype=np.float32)
    assert np.array_equal(gpu.get(gpu.put(sent), sent * 0), sent)


def test_events_measure_time(lab: Any) -> None:
    count = 1 << 24 if lab.is_real else 1 << 16
    buffer = lab.device.empty(count)
    before, after = lab.device.event(), lab.device.event()
    lab.stream.record(before)
    for value in range(4):
        lab.stream.fill(buffer, value, count)
    lab.stream.record(after)
    after.synchronize()
    assert 0 < after.ns_since(before) < 10e9
    assert after.ns_since(after) == 0


def test_a_stream_waits_for_another(lab: Any) -> None:
    """The second stream reads what the first one writes; without the event it would read it too early, now and then."""
    count = 1 << 24 if lab.is_real else 1 << 12
    first, second = lab.stream, lab.device.stream()
    source, target = lab.device.empty(count), lab.device.empty(count)
    out = np.zeros(count, np.uint8)
    for value in range(1, 21):
        written = lab.device.event()
        first.fill(source, value, count)
        first.record(written)
        second.wait(written)
        second.copy(target, source, count)
        read = lab.device.event()
        second.record(read)
        first.wait(read)
        second.copy_out(out.view(np.bool_), target)
        assert out.min() == out.max() == value


def test_what_came_from_a_device_outlives_its_name(lab: Any) -> None:
    device = _engine.Device(lab.library)
    stream, event, buffer = device.stream(), device.event(), device.empty(64)
    del device
    stream.fill(buffer, 7, 64)
    stream.record(event)
    stream.synchronize()
    out = np.zeros(64, np.uint8)
    stream.copy_out(out.view(np.bool_), buffer)
    assert (out == 7).all()
    del stream
    event.synchronize()


_FORKED = """
import gc, os, sys
import numpy as np
from thresher import _engine, startup
startup.initialize()
library = sys.argv[1]
_engine.profile_start()
device = _engine.Device(library)
stream, buffer, event = device.stream(), device.empty(64), device.event()
graph = _engine.Graph()
graph.set_outputs(graph.add("softmax", [graph.input("x", "f32", (4, 8))]))
plan = _engine.Plan.build(graph, _engine.WeightStore(), device=device, graphs=True)
x, y = np.zeros((4, 8), np.float32), np.zeros((4, 8), np.float32)
for _ in range(3):
    plan.run([x], [y])
pid = os.fork()
if pid == 0:
    uses = {
        "run": lambda: plan.run([x], [y]),
        "open": lambda: _engine.Device(library),
        "look": lambda: _engine.library_devices(library),
        "allocate": lambda: device.empty(8),
        "stream": lambda: device.stream(),
        "event": lambda: device.event(),
        "fill": lambda: stream.fill(buffer, 0, 8),
        "record": lambda: stream.record(event),
        "wait": lambda: event.synchronize(),
    }
    for name, use in uses.items():
        try:
            use()
            print(name, "did not fail", flush=True)
        except NotImplementedError as error:
            print(name, "got a child that was forked from it" in str(error), flush=True)
    _engine.profile_stop()
    del uses, plan, stream, buffer, event, device  # nothing of the driver's is given back
    gc.collect()
    print("child", flush=True)
    sys.exit(7)
print("status", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
plan.run([x], [y])
_engine.profile_stop()
print("parent", float(y.sum()), flush=True)
"""


@pytest.mark.gpu
@pytest.mark.threads_after_fork
def test_a_child_of_fork_is_told_so(gpu: Any) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FORKED, gpu.library], capture_output=True, text=True, timeout=120, check=False
    )
    uses = ("run", "open", "look", "allocate", "stream", "event", "fill", "record", "wait")
    lines = [*(f"{use} True" for use in uses), "child", "status 7", "parent 4.0"]
    assert done.stdout.splitlines() == lines, done.stderr

"""The connection to PyTorch's profiler where something is in its way. Each test has a process of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kineto_trace import KinetoTrace, read_json, require_shim, run_script
from processes import run_with_torch

from thresher.doctor import Level, checks
from thresher.torch_shim import library

require_shim()

MODEL = """
import json, os, sys, threading, warnings
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

def make():
    torch.manual_seed(0)
    model = torch.compile(nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 8)).eval(), backend="thresher")
    x = torch.randn(4, 32)
    with torch.no_grad():
        model(x)
    return model, x

def run(model, x, **options):
    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1], **options) as prof:
        model(x)
    return prof

def kernels(prof):
    return sum(e.device_type == torch.autograd.DeviceType.PrivateUse1 for e in prof.events())
"""


def run_for_json(code: str, *arguments: str) -> Any:
    return read_json(run_with_torch(code, *arguments))


def test_nothing_is_renamed_before_it_is_asked_for() -> None:
    code = """
model, x = make()
import thresher, thresher.profiler
before = torch._C._get_privateuse1_backend_name()
import thresher.torch_profiler
print(json.dumps([before, torch._C._get_privateuse1_backend_name()]))
"""
    assert run_for_json(MODEL + code) == ["privateuseone", "thresher"]


@pytest.mark.thorough
def test_importing_twice_and_late() -> None:
    code = """
import importlib
model, x = make()
profile(activities=[ProfilerActivity.CPU]).__enter__().__exit__(None, None, None)  # Kineto is initialised before us
import thresher.torch_profiler as first
importlib.reload(first)
del sys.modules["thresher.torch_profiler"]
import thresher.torch_profiler as second
print(json.dumps([second.status().connected, kernels(run(model, x)), first.last_session().kernels]))
"""
    connected, seen, counted = run_for_json(MODEL + code)
    assert connected and seen == counted > 0


def test_the_package_does_not_need_pytorch() -> None:
    code = "import sys, thresher, thresher.torch_shim.library as l; l.available(); sys.exit('torch' in sys.modules)"
    assert run_script(code).returncode == 0


@pytest.mark.thorough
def test_another_backend_owns_the_name() -> None:
    code = """
model, x = make()
torch.utils.rename_privateuse1_backend("npu")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import thresher.torch_profiler as t
messages = [str(w.message) for w in caught if "PyTorch's profiler" in str(w.message)]
print(json.dumps([t.status().connected, messages]))
"""
    connected, messages = run_for_json(MODEL + code)
    assert not connected
    assert len(messages) == 1
    assert "got it taken by 'npu'" in messages[0]


def test_another_accelerator_is_in_use() -> None:
    code = """
torch.accelerator.is_available = lambda: True
torch.accelerator.current_accelerator = lambda: torch.device("cuda")
warnings.simplefilter("ignore")
import thresher.torch_profiler as t
print(json.dumps([t.status().connected, t.status().reason, torch._C._get_privateuse1_backend_name()]))
"""
    connected, reason, name = run_for_json(MODEL + code)
    assert not connected
    assert "got cuda" in reason and "CUDA_VISIBLE_DEVICES" in reason
    assert name == "privateuseone", "PyTorch's own accelerator keeps its precedence"


@pytest.mark.parametrize(
    "version", ["2.14.0+cpu", *(pytest.param(version, marks=pytest.mark.thorough) for version in ("2.12.1", "3.13.0"))]
)
def test_another_minor_version_is_never_loaded(version: str) -> None:
    code = f"""
torch.__version__ = {version!r}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import thresher.torch_profiler as t
loaded = [name for name in sys.modules if name.startswith("thresher._torch_shim")]
name = torch._C._get_privateuse1_backend_name()
print(json.dumps([t.status().connected, t.status().reason, loaded, len(caught), name]))
"""
    connected, reason, loaded, warned, name = run_for_json(MODEL + code)
    assert not connected and not loaded and warned == 1
    assert name == "privateuseone", "a name without a profiler would only be in the way"
    assert f"expected the connection to the profiler of PyTorch {version[:4]}" in reason
    assert "2.13" in reason and "pip install 'torch==2.13.*'" in reason


def test_no_library_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("thresher.__path__", [str(tmp_path)])
    assert library.available() == []
    with pytest.raises(library.ShimError, match=r"has none for any PyTorch\. Install the wheel"):
        library.load("2.13.0", cxx11_abi=True)
    finding = checks.check_torch_profiler()
    assert (finding.level, bool(finding.cure)) == (Level.WARN, True)


def test_library_that_does_not_load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import importlib.machinery

    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    (tmp_path / f"_torch_shim_9_8{suffix}").write_text("no library")
    (tmp_path / "_torch_shim_9_9.cpython-01-other.so").write_text("another Python's")
    monkeypatch.setattr("thresher.__path__", [str(tmp_path)])
    assert library.available() == ["9.8"]
    with pytest.raises(library.ShimError, match=r"expected to load thresher\._torch_shim_9_8 into PyTorch 9\.8\.1"):
        library.load("9.8.1", cxx11_abi=True)
    with pytest.raises(library.ShimError, match="without"):
        library.load("9.8.1", cxx11_abi=False)


def test_doctor_reports_the_connection() -> None:
    finding = checks.check_torch_profiler()
    assert finding.level is Level.OK
    assert "2.13" in finding.found


@pytest.mark.threads_after_fork
def test_fork_while_profiling() -> None:
    code = """
import thresher.torch_profiler as t
model, x = make()
prof = profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1])
prof.start()
with torch.no_grad():
    model(x)
reading, writing = os.pipe()
child = os.fork()
if child == 0:
    # The child goes on computing and ends the session that it inherited, as leaving the block would.
    with torch.no_grad():
        model(x)
    prof.stop()
    os.write(writing, json.dumps(t.last_session().error).encode())
    os._exit(0)
os.close(writing)
_, state = os.waitpid(child, 0)
with torch.no_grad():
    model(x)
prof.stop()
s = t.last_session()
once = kernels(run(model, x))
print(json.dumps([os.waitstatus_to_exitcode(state), kernels(prof), once, s.dropped, s.unlinked, s.out_of_window]))
"""
    status, seen, once, *problems = run_for_json(MODEL + code)
    assert status == 0
    assert seen == 2 * once > 0
    assert problems == [0, 0, 0]


@pytest.mark.threads_after_fork
def test_profile_in_a_forked_child() -> None:
    code = """
import thresher.torch_profiler as t
model, x = make()
parent = kernels(run(model, x))
reading, writing = os.pipe()
child = os.fork()
if child == 0:
    os.write(writing, json.dumps([kernels(run(model, x)), t.last_session().error]).encode())
    os._exit(0)
os.close(writing)
_, state = os.waitpid(child, 0)
print(json.dumps([os.waitstatus_to_exitcode(state), parent, *json.loads(os.read(reading, 1000) or "[0, null]")]))
"""
    status, parent, child, error = run_for_json(MODEL + code)
    assert (status, error) == (0, "")
    assert child == parent > 0


@pytest.mark.thorough
def test_spawned_processes() -> None:
    code = """
import thresher.torch_profiler
from torch.utils.data import DataLoader, Dataset
loader = DataLoader(list(range(4)), num_workers=2, multiprocessing_context="spawn")
if __name__ == "__main__":
    print(json.dumps([int(v) for v in loader]))
"""
    assert read_json(run_script(MODEL + code)) == [0, 1, 2, 3]


def test_the_process_ends_inside_a_session() -> None:
    code = """
import thresher.torch_profiler
model, x = make()
prof = profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1])
prof.start()
model(x)
print("end")
"""
    done = run_with_torch(MODEL + code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("end\n")


def test_another_tool_holds_the_interface() -> None:
    code = """
import ctypes
import thresher.torch_profiler as t
from thresher import _engine
model, x = make()
address = _engine.pti_api(1)
members = ctypes.cast(address, ctypes.POINTER(ctypes.c_void_p))
register = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(members[1])
Requested = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t), ctypes.c_void_p)
Completed = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p)
requested, completed = Requested(lambda *a: None), Completed(lambda *a: None)
assert register(ctypes.cast(requested, ctypes.c_void_p), ctypes.cast(completed, ctypes.c_void_p), None) == 0
busy = kernels(run(model, x)), t.last_session().error
assert register(None, None, None) == 0
print(json.dumps([*busy, kernels(run(model, x)), t.last_session().error]))
"""
    seen, error, later, later_error = run_for_json(MODEL + code)
    assert seen == 0
    assert "another tool holds the tracing interface" in error
    assert later > 0 and later_error == ""


def test_without_connection_the_events_are_merged_into_exported_traces(tmp_path: Path) -> None:
    code = """
torch.__version__ = "2.12.1"
warnings.simplefilter("ignore")
import thresher.torch_profiler as t
model, x = make()
with torch.no_grad(), t.profile(record_shapes=True) as prof:
    for _ in range(3):
        model(x)
prof.export_chrome_trace(sys.argv[1])
with torch.no_grad(), t.profile(schedule=torch.profiler.schedule(wait=1, warmup=1, active=1),
                                on_trace_ready=torch.profiler.tensorboard_trace_handler(sys.argv[2])) as prof:
    for _ in range(3):
        model(x)
        prof.step()
print("[]")
"""
    run_for_json(MODEL + code, str(tmp_path / "t.json.gz"), str(tmp_path))
    trace = KinetoTrace(tmp_path / "t.json.gz")
    assert any(event["name"] == "aten::empty" for event in trace.host)
    kernels = [event for event in trace.device if event["cat"] == "kernel"]
    assert kernels
    calls = [event for event in trace.events if event.get("name") == "thresherCall"]
    assert len(calls) == 3
    (cycle,) = tmp_path.glob("*.pt.trace.json")
    assert sum(event.get("name") == "thresherCall" for event in json.loads(cycle.read_text())["traceEvents"]) == 1

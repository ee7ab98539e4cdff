"""A process that has computed and profiled forks: the child computes, the parent's trace stays whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from processes import lines_of, run_with_torch

LOADED = """
import json, os, signal, sys, threading, time
import numpy as np, thresher
from thresher import _engine, profiler
_engine.set_num_threads(2)
model = thresher.load(sys.argv[1], threads=2)
x = np.random.default_rng(0).standard_normal((64, 128)).astype(np.float32)
wanted = model(x)["output"]

def right():
    return np.array_equal(model(x)["output"], wanted)

def threads():
    return len(os.listdir("/proc/self/task"))

def ended(child, seconds=30):
    '''The exit code of a child; -99 for one that hangs.'''
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pid, state = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(state)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -99
"""


@pytest.mark.threads_after_fork
def test_fork(python: Any, model_file: Path, tmp_path: Path) -> None:
    code = (
        LOADED
        + """
profiler.start(trace=sys.argv[2])
right(), right()
codes = []
for _ in range(5):
    child = os.fork()
    if child == 0:
        alone = threads()
        ok = right() and right()
        # Its pool is new, its records are its own, and a trace of its own can be had.
        fresh = alone == 1 and threads() >= 2 and not _engine.trace_status()["running"]
        own = sum(r["section"] == "call" for r in _engine.profile_records()) > 0
        profiler.start(trace=f"{sys.argv[2]}-{os.getpid()}")
        right()
        profiler.stop()
        os._exit(0 if ok and fresh and own else 10 + ok + 2 * fresh + 4 * own)
    codes.append(ended(child))
    right()
profiler.stop()
print(codes, right(), [phase["executions"] for phase in json.loads(profiler.op_report("json"))["phases"]])
"""
    )
    path = tmp_path / "run.thrtrace"
    assert lines_of(python(code, model_file, path)) == ["[0, 0, 0, 0, 0] True [7]"]
    from thresher.profiler.trace import read_trace

    traces = {file.name: read_trace(file) for file in tmp_path.glob("run.thrtrace*")}
    assert len(traces) == 6
    for trace in traces.values():
        assert trace.meta["complete"] is True and trace.meta["dropped"] == 0
    assert len({trace.meta["pid"] for trace in traces.values()}) == 6


FORKS_WHILE_BUSY = (
    LOADED
    + """
stop = False
def work():
    while not stop:
        model(x)
workers = [threading.Thread(target=work) for _ in range(3)]
for worker in workers:
    worker.start()
profiler.start(trace=sys.argv[2])
codes = []
for _ in range(int(sys.argv[3])):
    child = os.fork()
    if child == 0:
        os._exit(0 if right() and right() else 1)
    codes.append(ended(child, 10))
stop = True
for worker in workers:
    worker.join()
profiler.stop()
print(sorted(set(codes)), right())
"""
)


@pytest.mark.threads_after_fork
def test_fork_while_other_threads_compute(python: Any, model_file: Path, tmp_path: Path) -> None:
    assert lines_of(python(FORKS_WHILE_BUSY, model_file, tmp_path / "run.thrtrace", 40)) == ["[0] True"]
    from thresher.profiler.trace import read_trace

    trace = read_trace(tmp_path / "run.thrtrace")
    assert trace.meta["complete"] is True and trace.meta["dropped"] == 0


@pytest.mark.thorough
@pytest.mark.threads_after_fork
def test_many_forks_while_other_threads_compute(python: Any, model_file: Path, tmp_path: Path) -> None:
    done = python(FORKS_WHILE_BUSY, model_file, tmp_path / "run.thrtrace", 2000, timeout=600)
    assert lines_of(done) == ["[0] True"]


@pytest.mark.thorough
@pytest.mark.release_build  # the allocators of sanitizers are not safe to fork while another thread allocates
def test_fork_while_another_thread_compiles(python: Any) -> None:
    pytest.importorskip("torch")
    code = """
import os, signal, threading, time
import torch, thresher
torch.set_num_threads(1)
model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(6))).eval()
class Own(torch.nn.Module):
    # Of a code of its own: TorchDynamo's guards of a function that another thread calls may be locked by a fork.
    def __init__(self):
        super().__init__()
        self.model = model
    def forward(self, x):
        return self.model(x)
fast, own = (thresher.compile(one, dynamic=True) for one in (model, Own().eval()))
with torch.no_grad():
    for rows in (2, 3):
        fast(torch.ones(rows, 256))
        own(torch.ones(rows, 256))
def build():
    rows = 3
    with torch.no_grad():
        while not stop:
            rows += 1
            fast(torch.ones(rows, 256))
stop, codes = False, []
builder = threading.Thread(target=build)
builder.start()
x = torch.ones(1000, 256)
with torch.no_grad():
    wanted = model(x)
for number in range(12):
    time.sleep(0.01)
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # a child that waits for its parent's threads waits for ever
        with torch.no_grad():
            found = own(torch.ones(1000 + number, 256))[:1000]
        os._exit(0 if torch.allclose(found, wanted, atol=1e-4) else 1)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
stop = True
builder.join()
print(sorted(set(codes)))
"""
    assert lines_of(python(code, timeout=300, OMP_NUM_THREADS="1")) == ["[0]"]


@pytest.mark.parametrize("method", [pytest.param("fork", marks=pytest.mark.threads_after_fork), "spawn", "forkserver"])
def test_multiprocessing(method: str, model_file: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        """
import multiprocessing, sys
import numpy as np, thresher
from thresher import profiler

def work(seed):
    x = np.random.default_rng(seed).standard_normal((64, 128)).astype(np.float32)
    return thresher.load(sys.argv[1], threads=2)(x)["output"]

if __name__ == "__main__":
    profiler.start(trace=sys.argv[3])
    wanted = [work(seed) for seed in range(4)]
    with multiprocessing.get_context(sys.argv[2]).Pool(2) as pool:
        found = pool.map(work, range(4))
    profiler.stop()
    print(all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True)))
"""
    )
    command = [sys.executable, str(script), str(model_file), method, str(tmp_path / "run.thrtrace")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert lines_of(done) == ["True"]
    assert done.stderr == ""
    from thresher.profiler.trace import read_trace

    assert read_trace(tmp_path / "run.thrtrace").meta["complete"] is True


@pytest.mark.threads_after_fork
def test_workers_of_a_data_loader(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    code = """
import sys
import torch, thresher
from thresher import profiler
from torch.utils.data import DataLoader, Dataset
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 8)).eval()
fast = thresher.compile(model)
samples = torch.randn(16, 4, 64)
class Computed(Dataset):
    def __len__(self):
        return len(samples)
    def __getitem__(self, at):
        with torch.no_grad():
            return fast(samples[at])
with torch.no_grad():
    fast(samples[0])
    profiler.start(trace=sys.argv[1])
    wanted = torch.stack([fast(sample) for sample in samples])
    for _ in range(2):
        found = torch.cat(list(DataLoader(Computed(), batch_size=4, num_workers=2, multiprocessing_context="fork")))
        assert torch.equal(found, wanted)
    fast(samples[0])
    profiler.stop()
print(profiler.collect().phase("inference").calls)
"""
    done = run_with_torch(code, str(tmp_path / "run.thrtrace"), THRESHER_NUM_THREADS="2")
    assert lines_of(done) == ["17"], "the workers' calls are not the parent's"


@pytest.mark.parametrize("target", ["report.json", "report-{pid}.json"])
def test_a_child_that_ends_like_its_parent_leaves_the_parents_report(target: str, python: Any, tmp_path: Path) -> None:
    code = """
import os, sys
from thresher import _engine
_engine.profile_record("forward", "work", 0, 1)
if os.fork() == 0:
    if os.fork() == 0:
        # Longer than the parent.
        import time
        time.sleep(1)
    sys.exit()
os.wait()
print(os.getpid())
"""
    environment = {"THRESHER_PROFILE": "1", "THRESHER_PROFILE_OUTPUT": str(tmp_path / target)}
    (pid, *_) = lines_of(python(code, **environment))
    report = json.loads((tmp_path / target.replace("{pid}", pid)).read_text())
    assert report["records"] == 1
    if "{pid}" not in target:
        assert os.listdir(tmp_path) == ["report.json"]

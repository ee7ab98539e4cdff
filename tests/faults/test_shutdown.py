"""A process that ends, or is asked to, while models run: no crash, no hang, nothing lost that was asked for."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from processes import lines_of

LOADED = """
import atexit, os, signal, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it
import numpy as np, thresher
from thresher import _engine, profiler
_engine.set_num_threads(2)
model = thresher.load(sys.argv[1], threads=2)
x = np.ones((64, 128), np.float32)
wanted = model(x)["output"]

def forever():
    while True:
        model(x)

def busy(count, daemon=True):
    threads = [threading.Thread(target=forever, daemon=daemon) for _ in range(count)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    return threads
"""

ENDINGS = {
    "falls off the end": "",
    "sys.exit": "sys.exit(3)",
    "exception": "raise RuntimeError('meant')",
    "interrupt": "raise KeyboardInterrupt",
    "os._exit": "sys.stdout.flush(); os._exit(3)",
    "atexit calls the model": "atexit.register(lambda: print((model(x)['output'] == wanted).all()))",
}
CODES = {"sys.exit": 3, "exception": 1, "interrupt": 130, "os._exit": 3}


def quiet(done: Any) -> None:
    """Ended by itself, and said nothing of leaks or crashes."""
    assert done.returncode >= 0, f"killed by signal {-done.returncode}: {done.stderr}"
    for word in ("nanobind", "terminate", "Fatal", "core dumped", "leaked"):
        assert word not in done.stderr, done.stderr


@pytest.mark.parametrize("ending", list(ENDINGS))
def test_daemon_threads_are_inside_a_model(ending: str, python: Any, model_file: Path) -> None:
    for count in (1, 6):
        done = python(LOADED + f"busy({count})\nprint('end', flush=True)\n{ENDINGS[ending]}\n", model_file)
        if ending == "interrupt" and done.returncode == -signal.SIGINT:
            done.returncode = 130  # Python ends itself by the signal, as it does without Thresher
        quiet(done)
        assert done.returncode == CODES.get(ending, 0), done.stderr
        printed = ["end", "True"] if ending.startswith("atexit") else ["end"]
        assert done.stdout.splitlines() == printed


@pytest.mark.thorough
def test_many_ends(python: Any, model_file: Path) -> None:
    for _ in range(60):
        quiet(python(LOADED + "busy(4)\nprofiler.start()\ntime.sleep(0.01 * (os.getpid() % 7))\n", model_file))


def test_daemon_threads_while_the_profiler_is_on(python: Any, model_file: Path, tmp_path: Path) -> None:
    report, trace = tmp_path / "report.json", tmp_path / "run.thrtrace"
    environment = {
        "THRESHER_PROFILE": "1",
        "THRESHER_PROFILE_OUTPUT": str(report),
        "THRESHER_PROFILE_TRACE": str(trace),
    }
    quiet(python(LOADED + "busy(4)\nprint('end')\n", model_file, **environment))
    assert json.loads(report.read_text())["phases"][0]["executions"] > 0
    from thresher.profiler.trace import read_trace

    assert read_trace(trace).meta["complete"] is True


def test_an_exception_on_a_thread_harms_nobody_else(python: Any, model_file: Path) -> None:
    code = """
raised = []
threading.excepthook = lambda hook: raised.append(repr(hook.exc_value))  # printed by several at a time, lines mix
def fail():
    model(x)
    raise ValueError("meant")
threads = [threading.Thread(target=fail) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print((model(x)["output"] == wanted).all(), *raised)
"""
    done = python(LOADED + code, model_file)
    quiet(done)
    assert lines_of(done) == ["True" + 4 * " ValueError('meant')"]


@pytest.mark.parametrize("leaving", ["sys.exit(5)", "raise KeyboardInterrupt", "raise ValueError('meant')"])
def test_a_callback_that_leaves(leaving: str, python: Any) -> None:
    """What a pass, a measurement or a progress bar raises goes through the engine, which works on."""
    code = f"""
import sys
import numpy as np
from thresher import _engine
calls = []
def leave(*arguments):
    calls.append(arguments)
    {leaving}
def graph():
    made = _engine.Graph()
    made.set_outputs([made.constant("c", np.ones(4, np.float32), weight=True)])
    return made
store = _engine.WeightStore()
for action in (
    lambda: _engine.Plan.build(graph(), store, passes=[("mine", leave)]),
    lambda: _engine.Plan.build(graph(), store, dump=leave),
    lambda: _engine.measure_peaks([1], quick=True, progress=leave),
    lambda: _engine.tune_product("fp32", 8, 16, 16, 1, quick=True, progress=leave),
):
    before = len(calls)
    try:
        action()
    except BaseException as error:
        print(type(error).__name__, len(calls) > before)
found = np.zeros(4, np.float32)
_engine.Plan.build(graph(), store).run([], [found])
print(found.tolist(), flush=True)
leave()
"""
    done = python(code)
    quiet_unless_interrupted = done if "Keyboard" not in leaving else None
    if quiet_unless_interrupted is not None:
        quiet(done)
    name = {"s": "SystemExit", "r": "KeyboardInterrupt" if "Keyboard" in leaving else "ValueError"}[leaving[0]]
    assert done.stdout.splitlines() == [f"{name} True"] * 4 + ["[1.0, 1.0, 1.0, 1.0]"], done.stderr


class Server:
    """A process that answers requests until it is told to end."""

    def __init__(self, code: str, arguments: Sequence[object], **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, arguments)],
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n", self.process.communicate()[1]

    def end(self, number: signal.Signals, seconds: float = 30) -> tuple[int, str, str]:
        self.process.send_signal(number)
        try:
            out, err = self.process.communicate(timeout=seconds)
        finally:
            self.process.kill()
        return self.process.returncode, out, err


def test_an_interrupt_in_the_middle_of_a_request(model_file: Path) -> None:
    code = (
        LOADED
        + """
print("ready", flush=True)
seen = 0
while seen < 20:
    try:
        while True:
            model(x)
    except KeyboardInterrupt:
        seen += 1
        print((model(x)["output"] == wanted).all(), flush=True)
"""
    )
    server = Server(code, [model_file])
    choose = random.Random(0)
    assert server.process.stdout is not None
    for _ in range(20):
        time.sleep(choose.random() * 0.02)
        server.process.send_signal(signal.SIGINT)
        assert server.process.stdout.readline() == "True\n"
    assert server.process.wait(30) == 0


def test_an_interrupt_while_a_model_is_compiled(python: Any) -> None:
    pytest.importorskip("torch")
    code = """
import signal, threading, time, _thread
signal.signal(signal.SIGINT, signal.default_int_handler)
import torch, thresher
model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(20))).eval()
x = torch.ones(2, 64)
with torch.no_grad():
    wanted = model(x)
    thresher.compile(model)(x)
    seen = 0
    for attempt in range(6):
        torch._dynamo.reset()
        fast = thresher.compile(model)
        timer = threading.Timer(0.02 + 0.05 * attempt, _thread.interrupt_main)
        timer.start()
        try:
            fast(x)
            timer.join()
            time.sleep(0.01)
        except KeyboardInterrupt:
            seen += 1
        except AssertionError as error:  # PyTorch's, where a callback of its guards swallowed the interrupt
            assert "Guard failed" in str(error), error
            seen += 1
        assert torch.allclose(fast(x), wanted, atol=1e-5)
print(seen > 0)
"""
    assert lines_of(python(code)) == ["True"]


@pytest.mark.parametrize("handled", [True, False])
def test_being_asked_to_end_while_busy(handled: bool, model_file: Path, tmp_path: Path) -> None:
    report, trace = tmp_path / "report.json", tmp_path / "run.thrtrace"
    handler = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))\n" if handled else ""
    code = LOADED + handler + "busy(3)\nprint('ready', flush=True)\nforever()\n"
    environment = {
        "THRESHER_PROFILE": "1",
        "THRESHER_PROFILE_OUTPUT": str(report),
        "THRESHER_PROFILE_TRACE": str(trace),
    }
    code_found, _, said = Server(code, [model_file], **environment).end(signal.SIGTERM)
    assert code_found == (9 if handled else -signal.SIGTERM), said
    from thresher.profiler.trace import read_trace

    found = read_trace(trace)
    assert found.meta["complete"] is handled, "without a handler the process is gone at once"
    assert len(found.names) > 0
    assert report.exists() is handled
    if handled:
        assert json.loads(report.read_text())["phases"][0]["executions"] > 0
        assert said == ""


def test_a_compiled_model_and_threads_that_are_joined(python: Any) -> None:
    pytest.importorskip("torch")
    code = """
import threading
import torch, thresher
fast = thresher.compile(torch.nn.Linear(64, 64).eval())
x = torch.ones(8, 64)
with torch.no_grad():
    fast(x)
def work():
    with torch.no_grad():
        for _ in range(300):
            fast(x)
for _ in range(4):
    threading.Thread(target=work).start()
print("end")
"""
    done = python(code)
    quiet(done)
    assert lines_of(done) == ["end"]

"""`thresher profile` with traces and pages: whatever the script does, what was recorded is kept."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from page_data import page_data
from processes import run_command_with_torch, without_settings

pytest.importorskip("typer")
pytest.importorskip("rich")
pytestmark = pytest.mark.skipif(importlib.util.find_spec("thresher._engine") is None, reason="the engine is not built")

# Three operators of a millisecond, without a model.
WORK = """
import os, sys, time
from thresher import _engine
for number in range(3):
    now = _engine.profile_now_ns()
    time.sleep(0.001)
    _engine.profile_record("forward", "linear", now, _engine.profile_now_ns())
open("ran", "a").write("x")
"""


def thresher(*arguments: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = without_settings()
    return subprocess.run(
        [sys.executable, "-m", "thresher", *map(str, arguments)],
        env={**clean, "NO_COLOR": "1", "THRESHER_CACHE_DIR": str(cwd / "cache"), **environment},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def profile(folder: Path, *options: str, body: str = "", arguments: tuple[str, ...] = ()) -> Any:
    (folder / "script.py").write_text(WORK + body)
    return thresher("profile", "--no-peaks", *options, "script.py", *arguments, cwd=folder)


def profile_with_torch(folder: Path, *options: str, body: str) -> Any:
    (folder / "script.py").write_text(WORK + body)
    cache = str(folder / "cache")
    command = ("profile", "--no-peaks", *options, "script.py")
    return run_command_with_torch(*command, folder=folder, THRESHER_CACHE_DIR=cache)


def trace_of(path: Path) -> Any:
    from thresher.profiler.trace import read_trace

    return read_trace(path)


def files(folder: Path) -> set[str]:
    return {name for name in os.listdir(folder) if name not in ("script.py", "ran", "cache")}


def kernels(path: Path) -> int:
    from thresher.profiler.trace import Category

    trace = trace_of(path)
    return int((trace.events["category"] == Category.KERNEL).sum())


def test_native_trace(tmp_path: Path) -> None:
    body = "print(sys.argv)\nsys.exit(7)\n"
    done = profile(tmp_path, "--trace", "run.thrtrace", body=body, arguments=("--trace", "x", "-o"))
    assert done.returncode == 7, done.stderr
    assert done.stdout.startswith(f"{['script.py', '--trace', 'x', '-o']}\n")
    assert "*** forward ***" in done.stdout
    assert f"wrote {tmp_path / 'run.thrtrace'}" in done.stderr
    assert files(tmp_path) == {"run.thrtrace"}
    assert kernels(tmp_path / "run.thrtrace") == 3
    meta = trace_of(tmp_path / "run.thrtrace").meta
    assert meta["complete"] and meta["dropped"] == 0
    assert (meta["script"], meta["arguments"], meta["exit_code"]) == ("script.py", ["--trace", "x", "-o"], 7)
    assert meta["python"] == ".".join(map(str, sys.version_info[:3]))
    assert meta["energy"]["joules"] is None or meta["energy"]["joules"] > 0
    assert meta["energy"]["joules"] is not None or "expected" in meta["energy"]["reason"]
    assert "thresher peaks" in meta["peaks"]["reason"], "there is no cache, and --no-peaks measures nothing"
    report = thresher("report", "run.thrtrace", cwd=tmp_path)
    assert report.returncode == 0 and "linear" in report.stdout


def test_peaks_are_measured_once_and_then_known(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(WORK)
    first = thresher("profile", "--trace", "a.thrtrace", "script.py", cwd=tmp_path)
    assert first.returncode == 0 and "measuring the peaks" in first.stderr
    second = profile(tmp_path, "--trace", "b.thrtrace")
    assert "measuring" not in second.stderr
    a, b = (trace_of(tmp_path / name).meta["peaks"]["by_threads"] for name in ("a.thrtrace", "b.thrtrace"))
    assert a == b and a[0]["fp32_gflops"]["median"] > 0


@pytest.mark.parametrize("name", ["run.json", "run.json.gz", "run.pftrace"])
def test_other_formats_leave_nothing_else_behind(tmp_path: Path, name: str) -> None:
    done = profile(tmp_path, "--trace", name)
    assert done.returncode == 0, done.stderr
    assert files(tmp_path) == {name}
    content = (tmp_path / name).read_bytes()
    if name.endswith(".pftrace"):
        assert b"linear" in content
        return
    data = json.loads(gzip.decompress(content) if name.endswith(".gz") else content)
    assert sum(event.get("cat") == "kernel" for event in data["traceEvents"]) == 3
    assert data["thresher"]["script"] == "script.py"


def test_page(tmp_path: Path) -> None:
    done = profile(tmp_path, "--html", "out/run.html")
    assert done.returncode == 0, done.stderr
    assert os.listdir(tmp_path / "out") == ["run.html"]
    report = page_data(tmp_path / "out" / "run.html")["report"]
    assert [row["name"] for row in report["operators"]] == ["linear"]
    assert report["title"] == "script.py"
    both = profile(tmp_path, "--trace", "run.thrtrace", "--html", "run.html")
    assert both.returncode == 0, both.stderr
    assert files(tmp_path) == {"out", "run.thrtrace", "run.html"}


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("raise ValueError('oops')", 1),
        ("sys.exit('no luck')", 1),
        ("raise KeyboardInterrupt", 130),
        ("os._exit(5)", 5),
        ("import threading\nt = threading.Thread(target=os._exit, args=(6,)); t.start(); t.join(); time.sleep(60)", 6),
        ("os.chdir('/')", 0),
        ("from thresher import profiler\nprofiler.stop()", 0),
    ],
)
def test_what_was_recorded_is_kept_however_the_script_ends(tmp_path: Path, body: str, code: int) -> None:
    done = profile(tmp_path, "--trace", "run.json", "-o", "ops.json", body=body)
    assert done.returncode == code, done.stderr
    assert files(tmp_path) == {"run.json", "ops.json"}
    assert kernels(tmp_path / "run.json") == 3
    assert "0 dropped" in done.stdout
    assert json.loads((tmp_path / "ops.json").read_text())["records"] >= 3


def test_children_leave_the_recording_alone(tmp_path: Path) -> None:
    body = "child = os.fork()\nif child == 0:\n    os._exit(9)\n"
    body += "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    done = profile(tmp_path, "--trace", "run.json", body=body)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("9\n") and done.stdout.count("*** forward ***") == 1
    assert kernels(tmp_path / "run.json") == 3


def test_killed_script_leaves_a_trace_that_can_be_read(tmp_path: Path) -> None:
    body = "time.sleep(1)\nos.kill(os.getpid(), 9)\n"
    done = profile(tmp_path, "--trace", "run.json", body=body)
    assert done.returncode == -signal.SIGKILL
    assert files(tmp_path) == {"run.json.thrtrace"}
    assert kernels(tmp_path / "run.json.thrtrace") == 3
    saved = thresher("report", "run.json.thrtrace", "--chrome", "saved.json", cwd=tmp_path)
    assert saved.returncode == 0, saved.stderr
    again = profile(tmp_path, "--trace", "run.json")
    assert again.returncode == 1 and "thresher report" in again.stderr, "it is not written over"
    assert kernels(tmp_path / "run.json.thrtrace") == 3
    assert profile(tmp_path, "--trace", "run.json", "--force").returncode == 0
    assert files(tmp_path) == {"run.json", "saved.json"}


@pytest.mark.parametrize("name", ["run.thrtrace", "run.json", "run.html"])
def test_existing_file_is_kept_and_the_script_does_not_run(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("precious")
    option = "--html" if name.endswith("html") else "--trace"
    done = profile(tmp_path, option, name)
    assert done.returncode == 1
    assert "got one that exists" in done.stderr and "--force" in done.stderr
    assert (tmp_path / name).read_text() == "precious"
    assert not (tmp_path / "ran").exists()


def test_force_writes_over(tmp_path: Path) -> None:
    (tmp_path / "run.thrtrace").write_text("old")
    done = profile(tmp_path, "--force", "--trace", "run.thrtrace")
    assert done.returncode == 0, done.stderr
    assert kernels(tmp_path / "run.thrtrace") == 3


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--trace", "run.xml"), "expected a name that ends in one of .thrtrace, .json, .json.gz, .pftrace"),
        (("--trace", "."), "expected a name that ends in"),
        (("--html", "."), "got a folder"),
        (("--trace", "script.py/run.json"), "got the file script.py"),
    ],
)
def test_bad_output_is_found_before_the_script_runs(tmp_path: Path, options: tuple[str, ...], said: str) -> None:
    done = profile(tmp_path, *options)
    assert done.returncode == 1 and said in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "ran").exists()


def test_full_disk_keeps_what_was_recorded(tmp_path: Path) -> None:
    (tmp_path / "full.json").symlink_to("/dev/full")
    done = profile(tmp_path, "--trace", "full.json")
    assert done.returncode == 1
    kept = tmp_path / "full.json.thrtrace"
    assert "No space left on device" in done.stderr and f"what was recorded is in {kept}" in done.stderr
    assert "*** forward ***" in done.stdout, "the operator report is printed all the same"
    assert kernels(kept) == 3
    (tmp_path / "ops.json").symlink_to("/dev/full")
    sums = profile(tmp_path, "-o", "ops.json", body="sys.exit(4)")
    assert sums.returncode == 4 and "No space left on device" in sums.stderr


def test_torch_without_the_shim_is_a_clear_message(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(WORK)
    code = """
import sys
sys.modules["thresher.torch_profiler"] = None
sys.argv = ["thresher", "profile", "--torch", "script.py"]
from thresher.cli import main
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1
    assert "expected PyTorch's profiler with Thresher in it" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "ran").exists()


def test_torch_records_its_own_operators(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    body = "import torch\nx = torch.ones(3, 5)\nfor _ in range(4):\n    torch.softmax(x, 1)\n"
    done = profile_with_torch(tmp_path, "--torch", "--trace", "run.json", body=body)
    assert done.returncode == 0, done.stderr
    assert "aten::softmax" in done.stdout and "*** forward ***" in done.stdout
    assert files(tmp_path) == {"run.json"}
    data = json.loads((tmp_path / "run.json").read_text())
    assert data["thresher"]["script"] == "script.py" and data["schemaVersion"] == 1
    (shapes,) = {
        json.dumps(event["args"]["Input Dims"]) for event in data["traceEvents"] if event["name"] == "aten::softmax"
    }
    assert json.loads(shapes)[0] == [3, 5]
    report = thresher("report", "run.json", cwd=tmp_path)
    assert report.returncode == 0 and "aten::" in report.stdout
    binary = profile_with_torch(tmp_path, "--torch", "--trace", "run.pftrace", body=body)
    assert binary.returncode == 0, binary.stderr
    assert b"aten::softmax" in (tmp_path / "run.pftrace").read_bytes()
    native = profile_with_torch(tmp_path, "--torch", "--trace", "run.thrtrace", body=body)
    assert native.returncode == 0 and "aten::softmax" in native.stdout, native.stderr
    assert files(tmp_path) == {"run.json", "run.pftrace", "run.thrtrace"}

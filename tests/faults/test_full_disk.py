"""A full disk: what was there stays, the message says file, cause and cure, and a cache fails without harm."""

from __future__ import annotations

import gc
import os
import stat
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from file_system import fill
from processes import limit_file_size, lines_of, run_command_with_torch
from writers import WRITERS, ModelFile, SavedTrace

Disk = Callable[[str], Path]

USER_FILES = sorted(set(WRITERS) - {"CacheEntry", "TuningTable", "SavedTrace"})


@pytest.mark.parametrize("name", USER_FILES)
def test_a_file_that_the_user_asked_for(name: str, disk: Disk, capfd: pytest.CaptureFixture[str]) -> None:
    folder = disk("size=8m")
    writer = WRITERS[name](folder)
    writer.prepare()
    writer.write(1)
    fill(folder, leave=8192)
    # Commands end with exit code 1 instead of an exception.
    with pytest.raises((OSError, ValueError, RuntimeError)) as caught:
        writer.write(2)
    said = f"{caught.value}{capfd.readouterr().err}"
    assert str(writer.path) in said
    assert "No space left on device" in said
    assert "make room or" in said
    assert writer.read() == 1, "the old file is still there"
    assert writer.leftovers() == []
    (folder / "filler").unlink()
    writer.write(2)
    assert writer.read() == 2


def test_saving_a_trace(disk: Disk) -> None:
    from thresher import profiler

    folder = disk("size=128k")
    writer = SavedTrace(folder)
    try:
        with pytest.raises(ValueError, match=r"saved-1.*No space left on device"):
            writer.write(1)
        assert list(folder.iterdir()) == []
        writer.folder = disk("size=16m")
        writer.write(2)
        assert writer.read() == 1
    finally:
        profiler.stop()
        profiler.reset()


def test_a_trace_that_is_being_recorded(disk: Disk, python: Any) -> None:
    folder = disk("size=256k")
    code = """
import sys, warnings
from thresher import _engine, profiler
profiler.start(trace=sys.argv[1])
for _ in range(20_000):
    _engine.profile_record("forward", "work", 0, 1)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    profiler.stop()
print(len(caught), caught[0].message)
print(profiler.collect().records)
"""
    path = folder / "run.thrtrace"
    said, recorded = lines_of(python(code, path))
    assert said.startswith(f"1 the trace {path} lacks ") and "No space left on device" in said
    assert recorded == "20000", "the operator report is whole"
    from thresher.profiler.trace import read_trace

    trace = read_trace(path)
    assert "work" in trace.names


@pytest.mark.parametrize("name", ["CacheEntry", "TuningTable"])
def test_a_cache_is_done_without(name: str, disk: Disk) -> None:
    from thresher import cache
    from thresher.cache import CacheWarning, location

    folder = disk("size=2m")
    writer = WRITERS[name](folder)
    try:
        writer.write(1)
        fill(folder)
        location._warned.clear()
        gc.collect()  # what earlier tests left open is said before
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for version in (2, 3):
                with pytest.raises(AssertionError):  # store() returned False
                    writer.write(version)
        assert [entry.category for entry in caught] == [CacheWarning]
        assert "No space left" in str(caught[0].message) and "THRESHER_CACHE_DIR" in str(caught[0].message)
        assert writer.read() == 1
        assert writer.leftovers() == []
        (folder / "filler").unlink()
        writer.write(4)
        assert writer.read() == 4
    finally:
        cache.set_dir(None)


def test_a_limit_on_the_size_of_files_is_a_full_disk_without_root(tmp_path: Path, python: Any) -> None:
    code = f"""
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from writers import *
writers = [WRITERS[name](Path(sys.argv[1])) for name in ("ModelFile", "ChromeTrace", "Page", "OperatorReport")]
for writer in writers:
    writer.prepare()
    writer.write(1)
{limit_file_size(20_000)}
for writer in writers:
    try:
        writer.write(2)
    except BaseException as error:
        print(type(error).__name__, error)
    assert writer.read() == 1
    assert writer.leftovers() == []
"""
    done = python(code, tmp_path, Path(__file__).parent)
    said = "\n".join(lines_of(done)) + done.stderr
    assert said.count("File too large") == 4, said
    assert said.count("make room or") == 4


@pytest.fixture
def full_device(tmp_path: Path) -> Path:
    """A device that takes nothing, of the test's own: a mistake here would replace /dev/full for everybody."""
    path = tmp_path / "devices" / "full"
    path.parent.mkdir()
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 7))
        path.open("wb").close()
    except OSError as error:
        pytest.skip(f"this process may not make a device: {error}")
    return path


@pytest.mark.parametrize("suffix", [".json", ".html", ".json.gz"])
def test_a_device_that_is_full(suffix: str, full_device: Path, tmp_path: Path) -> None:
    from thresher import profiler
    from thresher.profiler.export import OutputError, open_output

    link = tmp_path / f"full{suffix}"
    link.symlink_to(full_device)
    for path in (full_device, link):
        with pytest.raises(OutputError, match="No space left on device; make room"), open_output(path) as file:
            file.write(b"x" * 100_000)
    with profiler.profile() as block, profiler.record_function("work"):
        pass
    with pytest.raises(OSError, match="No space left on device"):
        block.export(link)
    profiler.reset()
    assert full_device.is_char_device() and link.is_symlink(), "a device is written, never replaced"


def test_a_model_is_no_device(full_device: Path, tmp_path: Path) -> None:
    link = tmp_path / "model.thrmodel"
    link.symlink_to(full_device)
    for path in (full_device, link):
        writer = ModelFile(tmp_path)
        writer.path = path
        with pytest.raises(ValueError, match=f"{path}.*no regular file; nothing was written; name a file"):
            writer.write(1)
    assert full_device.is_char_device() and link.is_symlink()


def test_the_command_says_it_and_keeps_the_exit_code(disk: Disk, tmp_path: Path) -> None:
    pytest.importorskip("typer")
    folder = disk("size=64k")
    script = tmp_path / "script.py"
    script.write_text("from thresher import profiler\nwith profiler.record_function('x'): pass\nprint('ran')\n")
    fill(folder)
    for option, name in (("--output", "report.json"), ("--html", "page.html"), ("--trace", "run.json")):
        done = subprocess.run(
            [sys.executable, "-m", "thresher", "profile", "--no-peaks", option, str(folder / name), str(script)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        assert done.returncode == 1
        assert name in done.stderr and "No space left on device" in done.stderr
        assert [path.name for path in folder.iterdir() if "partial" in path.name] == []


def test_a_report_at_exit(disk: Disk, python: Any) -> None:
    folder = disk("size=64k")
    fill(folder)
    code = "import thresher\nprint('ran')\nraise SystemExit(7)"
    target = folder / "report.json"
    done = python(code, THRESHER_PROFILE="1", THRESHER_PROFILE_OUTPUT=str(target))
    assert (done.returncode, done.stdout) == (7, "ran\n")
    assert "No space left on device" in done.stderr and str(target) in done.stderr
    assert "Traceback" not in done.stderr


def test_pytorchs_trace_is_whole_or_not_there(disk: Disk, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("typer")
    folder = disk("size=96k")
    script = tmp_path / "script.py"
    script.write_text("import torch\nx = torch.ones(4)\nfor _ in range(3000): x + 1\n")
    command = ("profile", "--no-peaks", "--torch", "--trace", folder / "run.json", script)
    done = run_command_with_torch(*command)
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == 1, done.stderr
    assert not (folder / "run.json").exists()


def test_the_graphs_of_a_dump(disk: Disk) -> None:
    torch = pytest.importorskip("torch")
    import thresher

    folder = disk("size=64k")
    fill(folder, leave=4096)
    model = torch.nn.Linear(8, 8).eval()
    with pytest.raises(OSError, match=r"graphs.*No space left on device; make room"), torch.no_grad():
        thresher.compile(model, config=thresher.CompilerConfig(dump_dir=folder / "graphs"))(torch.ones(2, 8))
    (folder / "filler").unlink()
    with torch.no_grad():
        found = thresher.compile(model)(torch.ones(2, 8))
        assert torch.allclose(found, model(torch.ones(2, 8)), atol=1e-5)

"""Places that cannot be used: read-only, gone, files in place of folders, links to nowhere, no home."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from file_system import remount
from processes import lines_of
from writers import WRITERS, ModelFile, OperatorReport

Disk = Callable[[str], Path]

USER_FILES = sorted(set(WRITERS) - {"CacheEntry", "TuningTable", "SavedTrace"})

USE = """
import sys, warnings
import numpy as np
import thresher
from thresher import cache, profiler, tuning
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    tuning.apply()
    model = thresher.load(sys.argv[1])
    print(float(abs(model(np.ones((4, 128), np.float32))["output"]).sum()) > 0)
    print(cache.store("sums", 1, 1), cache.store("sums", 2, 1), cache.load("sums", 1), cache.entries())
    with profiler.profile() as block:
        model(np.ones((4, 128), np.float32))
    print(block.report.records > 0)
said = [str(entry.message) for entry in caught if entry.category is cache.CacheWarning]
print(len(said), *said)
"""


def without_a_cache(done: Any, *wanted: str) -> None:
    """Everything works, nothing is kept, and one warning says why."""
    ran, kept, profiled, said = lines_of(done)
    assert (ran, kept, profiled) == ("True", "False False None []", "True")
    assert said.startswith("1 "), said
    for words in wanted:
        assert words in said


@pytest.mark.parametrize("name", USER_FILES)
def test_a_read_only_disk(name: str, disk: Disk, capfd: pytest.CaptureFixture[str]) -> None:
    folder = disk("size=8m")
    writer = WRITERS[name](folder)
    writer.prepare()
    writer.write(1)
    remount(folder, "ro")
    with pytest.raises((OSError, ValueError, RuntimeError)) as caught:
        writer.write(2)
    said = f"{caught.value}{capfd.readouterr().err}"
    assert str(writer.path) in said
    assert "Read-only file system" in said or "no permission" in said
    assert "choose another place" in said or "name a file that can be written" in said
    assert writer.read() == 1
    remount(folder, "rw")
    writer.write(2)
    assert writer.read() == 2


def test_a_read_only_cache(disk: Disk, python: Any, model_file: Path) -> None:
    folder = disk("size=1m")
    remount(folder, "ro")
    done = python(USE, model_file, THRESHER_CACHE_DIR=str(folder / "cache"))
    without_a_cache(done, "Read-only file system", "THRESHER_CACHE_DIR")


@pytest.mark.parametrize("what", ["file", "link to nowhere", "link to itself", "below a file"])
def test_a_cache_that_is_no_folder(what: str, tmp_path: Path, python: Any, model_file: Path) -> None:
    place = tmp_path / "cache"
    if what == "link to nowhere":
        place.symlink_to(tmp_path / "gone" / "cache")
    elif what == "link to itself":
        place.symlink_to(place)
    else:
        place.write_text("mine")
    done = python(USE, model_file, THRESHER_CACHE_DIR=str(place / "deeper" if what == "below a file" else place))
    without_a_cache(done, str(place), "expected ", "THRESHER_CACHE_DIR")
    assert place.is_symlink() or place.read_text() == "mine"


def test_a_cache_that_vanishes_is_made_again(tmp_path: Path) -> None:
    from thresher import cache

    cache.set_dir(tmp_path / "cache")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(3):
                assert cache.store("sums", 1, 5)
                assert cache.load("sums", 1) == 5
                shutil.rmtree(tmp_path / "cache")
                assert cache.load("sums", 1) is None
                assert cache.entries() == [] and cache.clear() == 0 and cache.prune() == []
    finally:
        cache.set_dir(None)


def test_no_home(model_file: Path) -> None:
    """A user whom the system does not know, as in many containers, and no HOME; then a HOME that nobody can make."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("THRESHER_", "XDG_", "HOME"))}
    unknown = ["unshare", "-U", "--map-user=54321"]
    try:
        able = subprocess.run([*unknown, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        able = False

    def use(prefix: list[str], **environment: str) -> Any:
        command = [*prefix, sys.executable, "-c", USE, str(model_file)]
        return subprocess.run(
            command, env={**clean, **environment}, capture_output=True, text=True, timeout=60, check=False
        )

    without_a_cache(use([], HOME="/proc/no-home"), "expected a folder that can be written")
    if not able:
        pytest.skip("this machine lets nobody become a user that it does not know")
    without_a_cache(use(unknown), "home folder", "THRESHER_CACHE_DIR")


def test_a_working_folder_that_is_gone(python: Any, model_file: Path, tmp_path: Path) -> None:
    code = f"""
import os
os.mkdir({str(tmp_path / "here")!r})
os.chdir({str(tmp_path / "here")!r})
os.rmdir({str(tmp_path / "here")!r})
{USE}
for action in (lambda: profiler.start(trace="run.thrtrace"), lambda: block.export("run.json"),
               lambda: block.export("page.html"), lambda: block.save_trace("run.thrtrace")):
    try:
        action()
    except (OSError, ValueError) as error:
        print(type(error).__name__, error)
print(profiler.is_enabled())
"""
    *_, first, second, third, fourth, enabled = lines_of(python(code, model_file))
    for said in (first, second, third, fourth):
        assert "No such file or directory" in said
    assert enabled == "False"


def test_a_folder_that_vanishes_under_a_trace(python: Any, tmp_path: Path) -> None:
    code = """
import shutil, sys
from pathlib import Path
from thresher import profiler
folder = Path(sys.argv[1])
profiler.start(trace=folder / "run.thrtrace")
with profiler.record_function("work"):
    shutil.rmtree(folder)
profiler.save_trace(folder / "saved.thrtrace")
profiler.stop()
from thresher.profiler.trace import read_trace
print(read_trace(folder / "saved.thrtrace").names)
profiler.start(trace=folder / "again.thrtrace")
profiler.stop()
"""
    (names,) = lines_of(python(code, tmp_path / "folder"))
    assert "work" in names
    assert (tmp_path / "folder" / "again.thrtrace").is_file()


@pytest.mark.parametrize("place", ["file/run.thrtrace", "link/run.thrtrace", "loop"])
def test_a_trace_that_has_no_place(place: str, tmp_path: Path) -> None:
    from thresher import profiler

    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises((OSError, ValueError), match=r"trace.*expected .*got.*choose another"):
        profiler.start(trace=tmp_path / place)
    assert not profiler.is_enabled()


@pytest.mark.parametrize("kind", [ModelFile, OperatorReport])
def test_a_link_stays_a_link(kind: type[Any], tmp_path: Path) -> None:
    """Also one to nowhere: what it names is made."""
    (tmp_path / "far").mkdir()
    writer = kind(tmp_path)
    target = tmp_path / "far" / "target"
    writer.path.symlink_to(Path("far") / "target")
    for version in (1, 2):
        writer.write(version)
        assert writer.path.is_symlink() and target.is_file()
        assert writer.read() == version
    assert os.listdir(tmp_path / "far") == ["target"]

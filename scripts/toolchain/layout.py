"""Where things lie. The toolchain writes into build/ and dist/ and nowhere else.

THRESHER_BUILD_DIR and THRESHER_DIST_DIR name other folders, for a clone that is read only.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from . import orphans
from .process import ToolchainError, note

ROOT = Path(__file__).resolve().parent.parent.parent


def _folder(variable: str, name: str) -> Path:
    chosen = os.environ.get(variable)
    return Path(chosen).expanduser().resolve() if chosen else ROOT / name


BUILD = _folder("THRESHER_BUILD_DIR", "build")
DIST = _folder("THRESHER_DIST_DIR", "dist")
SCRIPTS = ROOT / "scripts"
REQUIREMENTS = ROOT / "requirements"
CONAN = ROOT / "conan"
_SCRATCH = BUILD / "scratch"

# Native dependencies, objects and environments depend on the interpreter that runs nox.
PYTHON_TAG = f"cp{sys.version_info.major}{sys.version_info.minor}"


def conan_home() -> Path:
    """Returns Conan's home: $THRESHER_CONAN_HOME, else build/conan. The user's own CONAN_HOME is left alone."""
    chosen = os.environ.get("THRESHER_CONAN_HOME")
    return Path(chosen).expanduser().resolve() if chosen else BUILD / "conan"


@contextmanager
def build_lock() -> Iterator[None]:
    """Lets one session at a time write into build/; a second one waits and says so.

    What a killed session left at work is ended, and its temporary files are removed.
    """
    try:
        BUILD.mkdir(parents=True, exist_ok=True)
        file = (BUILD / "lock").open("a+", encoding="utf-8")
    except OSError as error:
        raise ToolchainError(f"Wanted to write into {BUILD}; {error}. Make the folder writable.") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            note(f"another session uses {BUILD}; waiting for it to end")
            fcntl.flock(file, fcntl.LOCK_EX)
        with taken(file):
            shutil.rmtree(_SCRATCH, ignore_errors=True)
            yield


@contextmanager
def taken(lock: TextIO) -> Iterator[None]:
    """Marks a lock that this process holds as its own until the block ends."""
    try:
        if names := orphans.take_over(lock):
            note(f"the last session was killed; ended what it had left at work: {', '.join(sorted(set(names)))}")
    except OSError as error:
        raise ToolchainError(f"Wanted to write {lock.name}; {error}. Make room there or make it writable.") from error
    try:
        yield
    finally:
        with suppress(OSError):  # a mark that stays harms nobody
            orphans.leave(lock)


@contextmanager
def scratch_folder() -> Iterator[str]:
    """Makes a folder under build/ for what is needed until the block ends."""
    _SCRATCH.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_SCRATCH) as folder:
        yield folder

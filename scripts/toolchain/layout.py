"""Where things lie. The toolchain writes into build/ and dist/ and nowhere else.

THRESHER_BUILD_DIR and THRESHER_DIST_DIR name other folders, for a clone that is read only.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout  # comes with nox, as virtualenv does

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
    """Lets one session at a time write into build/; the temporary files of a killed one are removed."""
    with ExitStack() as stack:
        try:
            BUILD.mkdir(parents=True, exist_ok=True)
            stack.enter_context(session_lock(BUILD / "lock", str(BUILD)))
        except OSError as error:
            raise ToolchainError(
                f"Expected to write into {BUILD}; {error}. Make room there or make it writable."
            ) from error
        shutil.rmtree(_SCRATCH, ignore_errors=True)
        yield


@contextmanager
def session_lock(path: Path, place: str) -> Iterator[None]:
    """Lets one session at a time work in a place; a second one waits and says so.

    What a killed session left at work there is ended.

    Args:
        path: the file of the lock; beside it stands whose it is.
        place: what the lock is for, as people call it.

    Raises:
        OSError: the files cannot be written.
    """
    lock = FileLock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        note(f"another session uses {place}; waiting for it to end")
        lock.acquire()
    holder = path.with_name(f"{path.name}.session")
    try:
        if names := orphans.take_over(holder):
            note(f"the last session was killed; ended what it had left at work: {', '.join(sorted(set(names)))}")
        yield
    finally:
        with suppress(OSError):  # a mark that stays harms nobody
            holder.unlink()
        lock.release()


@contextmanager
def scratch_folder() -> Iterator[str]:
    """Makes a folder under build/ for what is needed until the block ends."""
    _SCRATCH.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_SCRATCH) as folder:
        yield folder

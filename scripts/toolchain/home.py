"""Conan's home: one session at a time, and clear words where it cannot be written."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .layout import conan_home, taken
from .process import ToolchainError, note

# Highway and GoogleTest with sanitizers, sources and objects included, take about as much.
COMFORTABLE_MIB = 200
CURE = "Make it writable, free some space there, or name another Conan home with THRESHER_CONAN_HOME."


@contextmanager
def conan_home_lock() -> Iterator[Path]:
    """Holds Conan's home, which several clones may share, until the block ends; a second session waits and says so.

    Conan locks none of its steps against a second process, and both would build the same packages.

    Yields:
        The home.

    Raises:
        ToolchainError: the home cannot be written, or a step failed; names the free space where there is little.
    """
    home = conan_home()
    try:
        home.mkdir(parents=True, exist_ok=True)
        file = (home / "thresher-lock").open("a+", encoding="utf-8")
    except OSError as error:
        raise ToolchainError(f"Wanted to write into the Conan home {home}; {error}. {CURE}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            note(f"another session uses the Conan home {home}; waiting for it to end")
            fcntl.flock(file, fcntl.LOCK_EX)
        try:
            with taken(file):
                yield home
        except OSError as error:
            raise ToolchainError(f"The Conan home {home} cannot be filled: {error}. {CURE}") from error
        except ToolchainError as error:
            free = shutil.disk_usage(home).free // 2**20
            if free >= COMFORTABLE_MIB:
                raise
            raise ToolchainError(f"{error} Only {free} MiB are free in the Conan home {home}. {CURE}") from error

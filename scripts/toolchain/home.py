"""Conan's home: one session at a time, and clear words where it cannot be written."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .layout import conan_home, session_lock
from .process import ToolchainError

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
        with session_lock(home / "thresher-lock", f"the Conan home {home}"):
            yield home
    except OSError as error:
        raise ToolchainError(f"Expected to write into the Conan home {home}; {error}. {CURE}") from error
    except ToolchainError as error:
        free = shutil.disk_usage(home).free // 2**20
        if free >= COMFORTABLE_MIB:
            raise
        raise ToolchainError(f"{error} Only {free} MiB are free in the Conan home {home}. {CURE}") from error

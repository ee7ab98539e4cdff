"""Files that appear whole or not at all, whatever happens to the process that writes them."""

from __future__ import annotations

import fcntl
import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

SUFFIX = ".partial"
_serial = itertools.count()


@contextmanager
def writing(path: Path, *, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Opens a file that takes its place when the block ends well; else the old one stays and nothing is left behind.

    Until then it lies beside its place under another name. A process that is killed leaves that, and the next writer of
    the same file removes it. Where the path is a symbolic link, the file it names is written.

    Args:
        path: The file; its folder exists.
        mode: Its permissions, of which the umask is taken away.

    Yields:
        The open file.

    Raises:
        OSError: It cannot be written.
    """
    if path.is_symlink():
        path = path.resolve()
    partial, handle = _create(path, mode)
    try:
        with open(handle, "wb") as file:
            _remove_leftovers(path)
            yield file
            file.flush()
            os.fsync(file.fileno())  # else a power failure could leave the new name with no content
            partial.replace(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise


def is_abandoned(partial: Path) -> bool:
    """Whether the process that wrote such a file has ended: a living one holds a lock on it."""
    try:
        handle = os.open(partial, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # held; or this file system has no locks, and nobody can tell
        return False
    finally:
        os.close(handle)
    return True


def _create(path: Path, mode: int) -> tuple[Path, int]:
    while True:
        partial = path.with_name(f"{path.name}.{os.getpid()}-{next(_serial)}{SUFFIX}")
        try:
            handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        except FileExistsError:  # of another process with the same number, in another container
            continue
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink > 0:
            return partial, handle
        os.close(handle)  # somebody took it for a leftover before it was locked


def _remove_leftovers(path: Path) -> None:
    with suppress(OSError):
        names = [entry.name for entry in os.scandir(path.parent)]
        for name in names:
            if name.startswith(f"{path.name}.") and name.endswith(SUFFIX) and is_abandoned(path.with_name(name)):
                path.with_name(name).unlink(missing_ok=True)

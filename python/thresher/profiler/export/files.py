"""Output files: written whole or not at all, never over another by accident."""

from __future__ import annotations

import errno
import gzip
import os
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, BinaryIO, cast

from thresher.whole_file import writing

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class OutputError(OSError):
    """A file cannot be written; the message says what was expected, what was found and what to do."""


def check_output(path: Path, *, force: bool = False) -> None:
    """Finds out before the work begins whether a file can be written.

    Args:
        path: The file; missing folders are made when it is written.
        force: Whether a file that exists may be replaced.

    Raises:
        OutputError: It cannot.
    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        mode = None
    except OSError as error:
        raise _error(path, error) from error
    if mode is not None:
        if stat.S_ISDIR(mode):
            raise OutputError(f"{path}: expected the name of a file, got a folder; name a file in it")
        if stat.S_ISREG(mode) and not force:
            raise OutputError(f"{path}: expected a new file, got one that exists; choose another name or add --force")
        if not os.access(path, os.W_OK):
            raise OutputError(f"{path}: expected a file that can be written, got no permission; choose another place")
        if not stat.S_ISREG(mode):
            return
    folder = path.parent
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        raise OutputError(f"{path}: expected a folder, got the file {folder}; choose another place")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OutputError(
            f"{path}: expected a folder that can be written, got no permission in {folder}; choose another place"
        )


@contextmanager
def open_output(path: Path, *, force: bool = False) -> Iterator[IO[bytes]]:
    """Opens a file for writing; readers see the old content or the whole new one, never a part.

    A name that ends in .gz is compressed. A device or a pipe, such as /dev/stdout, is written directly.

    Args:
        path: The file; missing folders are made.
        force: Whether a file that exists is replaced.

    Yields:
        The open file.

    Raises:
        OutputError: The file cannot be written; nothing of it is left behind.
    """
    check_output(path, force=force)
    try:
        with _opened(path) as file:
            if path.suffix == ".gz":
                # No time stamp and no name: the same trace gives the same file.
                with gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=5, mtime=0) as packed:
                    yield cast("IO[bytes]", packed)
            else:
                yield file
    except OutputError:
        raise
    except OSError as error:
        raise _error(path, error) from error


def write_text(path: Path, text: str, *, force: bool = False) -> None:
    """Writes a text file as `open_output` does; the same errors."""
    with open_output(path, force=force) as file:
        file.write(text.encode())


def _opened(path: Path) -> AbstractContextManager[BinaryIO]:
    if path.exists() and not path.is_file():
        return path.open("wb")
    target = path.resolve() if path.is_symlink() else path
    target.parent.mkdir(parents=True, exist_ok=True)
    return writing(target)


def _error(path: Path, error: OSError) -> OutputError:
    found = error.strerror or str(error)
    cure = "make room or choose another disk" if error.errno in _FULL else "choose another place"
    return OutputError(f"{path}: expected a file that can be written, got: {found}; {cure}")

"""Files in memory as they lie on disk."""

from __future__ import annotations

import mmap
import os
import stat
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class MappedFile:
    """A file in memory.

    Attributes:
        path: Where it lies.
        identity: Device, number, bytes, and when content and state changed last, in nanoseconds: a file that has the
            same ones is the same.
        data: Its bytes, read only and read from disk as they are looked at. They stay as long as the array.
        mapping: What `data` looks at.
    """

    path: Path
    identity: tuple[int, int, int, int, int]
    data: npt.NDArray[np.uint8]
    mapping: mmap.mmap

    def release(self) -> None:
        """Gives back the memory that holds what has been read; what is looked at again is read again."""
        self.mapping.madvise(mmap.MADV_DONTNEED)


def map_file(path: Path) -> MappedFile:
    """Maps a file.

    Raises:
        ValueError: It is no regular file, or empty.
        OSError: It cannot be read.
    """
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_size == 0:
            raise ValueError(
                f"{path}: expected a file of weights, got {'no regular' if found.st_size else 'an empty'} file"
            )
        identity = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return MappedFile(path, identity, np.frombuffer(mapping, np.uint8), mapping)

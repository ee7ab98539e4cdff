"""Files in memory as they lie on disk."""

from __future__ import annotations

import mmap
import os
import stat
from pathlib import Path

import numpy as np
import numpy.typing as npt


def map_file(path: Path) -> npt.NDArray[np.uint8]:
    """The bytes of a file, read only and read from disk as they are looked at. They stay as long as the array.

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
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)

"""PyTorch's OpenMP threads, which wait for their next work by spinning.

After a parallel operator of PyTorch they keep their cores busy for some milliseconds. Where a part of a model runs in
the engine right after it, the engine's threads would have to share these cores: a model of which half runs in PyTorch
was measured to become slower than eager. So they are sent home before such a part, and start again when PyTorch wants
them.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path

_SOFT = 1  # omp_pause_soft of OpenMP 5.0: threads end, settings stay
_LIBRARIES = ("libgomp", "libiomp5", "libomp")


def release_threads() -> None:
    """Ends the OpenMP threads that the calling thread's last parallel operator has left behind, if there are any."""
    _pause()(_SOFT)


@functools.cache
def _pause() -> Callable[[int], object]:
    for path in _loaded():
        try:
            pause = ctypes.CDLL(path).omp_pause_resource_all
        except (OSError, AttributeError):  # older than OpenMP 5.0
            continue
        pause.argtypes = [ctypes.c_int]
        pause.restype = ctypes.c_int
        return pause
    return lambda _: None


def _loaded() -> list[str]:
    """Paths of the OpenMP libraries of this process, those of PyTorch first."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        return []
    paths = {line.split(maxsplit=5)[-1] for line in lines if "/" in line}
    found = sorted(path for path in paths if Path(path).name.startswith(_LIBRARIES))
    return sorted(found, key=lambda path: "torch" not in path)

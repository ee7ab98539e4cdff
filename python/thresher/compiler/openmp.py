"""PyTorch's OpenMP threads, which wait for their next work by spinning.

After a parallel operator of PyTorch they keep their cores busy for some milliseconds. Where a part of a model runs in
the engine right after it, the engine's own threads would have to share these cores: a model of which half runs in
PyTorch was measured to become slower than eager. So such a part borrows PyTorch's threads, which are awake and where
the data is. Where it cannot, because their number differs or the library lacks what it takes, they are ended before
the part, and start again when PyTorch needs them.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable
from pathlib import Path

from thresher import _engine

_SOFT = 1  # omp_pause_soft of OpenMP 5.0: threads end, settings stay
_LIBRARIES = ("libgomp", "libiomp5", "libomp")
_TEAM = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads", "omp_get_max_threads")


# In a child of fork() the threads are gone, which the library does not know: it would wait for them forever.
_forked = False


def _in_child() -> None:
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def borrow_threads() -> bool:
    """Lets parts of the engine that the calling thread runs use PyTorch's threads, until give_back().

    Returns:
      Whether they do. If not, threads that the last operator left behind have been ended.
    """
    if _forked:
        return False
    if _lend() and _engine.borrow_openmp():
        return True
    release_threads()
    return False


def give_back() -> None:
    """Ends what borrow_threads() began."""
    _engine.give_back()


def release_threads() -> None:
    """Ends the OpenMP threads that the calling thread's last parallel operator has left behind, if there are any."""
    _pause()(_SOFT)


@functools.cache
def _lend() -> bool:
    """Tells the engine where PyTorch's OpenMP library is; whether there is one that can lend threads."""
    for path in _loaded()[:1]:  # another library's threads would be no help
        try:
            library = ctypes.CDLL(path)
            addresses = [ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in _TEAM]
        except (OSError, AttributeError):
            continue
        parallel, *questions = (address or 0 for address in addresses)
        _engine.set_openmp(parallel, *questions)
        return True
    return False


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

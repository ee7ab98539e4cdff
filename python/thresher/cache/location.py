"""Where the cache lies and whether it is used."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from thresher.fork_lock import ForkLock


class CacheWarning(UserWarning):
    """The cache cannot be used as it should; the program goes on without."""


_disabled: ContextVar[bool] = ContextVar("thresher_cache_disabled", default=False)
_chosen: dict[str, Path | None] = {"folder": None}
_lock = ForkLock()
_warned: set[str] = set()


def enabled() -> bool:
    """Whether results are kept: THRESHER_CACHE, unless inside `disabled()`.

    Raises:
        ValueError: THRESHER_CACHE has a value that means neither yes nor no.
    """
    from thresher import _engine

    return not _disabled.get() and bool(_engine.env_value("THRESHER_CACHE"))


@contextmanager
def disabled() -> Iterator[None]:
    """Within this block nothing is read from the cache or written to it, in this thread or asynchronous task."""
    token = _disabled.set(True)
    try:
        yield
    finally:
        _disabled.reset(token)


def set_dir(path: str | os.PathLike[str] | None) -> None:
    """Makes this process use another folder; None goes back to what the environment says. It need not exist."""
    _chosen["folder"] = None if path is None else Path(path).expanduser().absolute()


def folder() -> Path | None:
    """The folder of the cache, whether it exists or not; None where this user has no home folder and none was set."""
    from thresher import _engine

    if _chosen["folder"] is not None:
        return _chosen["folder"]
    try:
        if named := str(_engine.env_value("THRESHER_CACHE_DIR")):
            return Path(named).expanduser().absolute()
        shared = os.environ.get("XDG_CACHE_HOME", "")
        # The standard has relative paths ignored.
        base = Path(shared) if os.path.isabs(shared) else Path.home() / ".cache"
    except RuntimeError:  # no home folder is known
        return None
    return base / "thresher"


def warn_once(subject: str, message: str) -> None:
    """Warns, but only at the first call for this subject in this process."""
    with _lock:
        if subject in _warned:
            return
        _warned.add(subject)
    warnings.warn(message, CacheWarning, stacklevel=4)

"""What happens once in a process before the engine is used."""

from __future__ import annotations

import os
import warnings

from thresher.fork_lock import ForkLock

_lock = ForkLock()
_state = {"done": False}


def initialize() -> None:
    """Applies the THRESHER_* environment variables: instruction set, threads, profiler. The second call does nothing.

    Raises:
        ValueError: A variable has a value that cannot be used; the message names it and what was wanted.
    """
    with _lock:
        if _state["done"]:
            return
        from thresher import _engine

        _engine.initialize()
        _set_log_level(os.environ.get("THRESHER_LOG", ""))
        for message in _engine.check_env():
            warnings.warn(message, stacklevel=2)
        _state["done"] = True
    # The profiler's own variables; importing it takes as long as loading a small model.
    if any(name.startswith("THRESHER_PROFILE_") for name in os.environ):
        from thresher.profiler import at_exit

        at_exit.install()  # without the lock: it may use what calls this function


def _set_log_level(name: str) -> None:
    if not name:
        return
    import logging  # takes as long to import as a small model to load

    log = logging.getLogger("thresher")
    log.setLevel(name.upper())
    # Where the program has set up logging itself, its handlers print; else ours does.
    if not log.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("thresher: %(message)s"))
        log.addHandler(handler)

"""How many threads share one operator's work."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from thresher import _engine
from thresher.fork_lock import ForkLock

MOST = 1024

_lock = ForkLock()
_state: dict[str, int] = {"chosen": 0, "asked": 0}  # by set_num_threads; the most that one model asked for
_followers: list[Callable[[], None]] = []


def get_num_threads() -> int:
    """How many threads share one operator's work in models that were given no number of their own.

    The first of these that says something: ``set_num_threads``, the variable THRESHER_NUM_THREADS,
    ``torch.set_num_threads``, the variable OMP_NUM_THREADS, the cores that this process may use. The last three never
    give more than these cores, or with THRESHER_TEAMS a team's share of them.
    """
    if _state["chosen"]:
        return _state["chosen"]
    if not os.environ.get("THRESHER_NUM_THREADS") and (torch := torch_num_threads()):
        return min(torch, max(_engine.usable_cores() // _engine.num_teams(), 1))
    return _engine.default_num_threads()


def set_num_threads(n: int) -> None:
    """Chooses how many threads share one operator's work, the calling one among them.

    Holds for every model of ``thresher.compile`` without a number of its own, from its next call on, which makes its
    plans anew. A model of ``thresher.load`` keeps the number that it was loaded with.

    Args:
        n: 1 to 1024.

    Raises:
        ValueError: another number.
    """
    checked("set_num_threads", n)
    with _lock:
        changed = n != get_num_threads()
        _state["chosen"] = n
        _engine.set_num_threads(max(n, _state["asked"]))
    if changed:
        for follower in _followers:
            follower()


def torch_num_threads() -> int:
    """How many threads PyTorch's operators use; 0 where it has not been imported."""
    number: Any = getattr(sys.modules.get("torch"), "get_num_threads", None)  # None while it is being imported
    return int(number()) if number is not None else 0


def reserve(argument: int | None) -> int:
    """The number of threads for a plan that is about to be made; from then on the pool has at least as many.

    Args:
        argument: what its model was given; None: nothing.
    """
    with _lock:
        number = argument or get_num_threads()
        _state["asked"] = max(_state["asked"], argument or 0)
        if number > _engine.num_threads():
            _engine.set_num_threads(number)
    return number


def checked(name: str, n: object) -> int:
    """The number itself.

    Raises:
        ValueError: it is no number of threads.
    """
    if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= MOST:
        raise ValueError(f"{name}: expected an integer from 1 to {MOST}, got {n!r}; pass the number of threads")
    return n


def follow(changed: Callable[[], None]) -> None:
    """Has a function called whenever set_num_threads has changed the number."""
    _followers.append(changed)

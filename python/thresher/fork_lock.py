"""A lock that a forked child finds free."""

from __future__ import annotations

import os
import threading
import weakref


class ForkLock:
    """Use it with ``with``. A child made by fork() has none of its parent's other threads, which could release it.

    So what it guards must be of use at every moment: complete values are put into place by one assignment.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held = self._lock
        _locks.add(self)

    def __enter__(self) -> None:
        lock = self._lock
        lock.acquire()
        self._held = lock

    def __exit__(self, *_: object) -> None:
        self._held.release()  # in a child that was forked while this thread held it, not the new one


_locks: weakref.WeakSet[ForkLock] = weakref.WeakSet()


def _renew() -> None:
    for lock in list(_locks):
        lock._lock = threading.Lock()


os.register_at_fork(after_in_child=_renew)

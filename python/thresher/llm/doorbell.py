"""Tells event loops that a step has something for them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

_log = logging.getLogger(__name__)


class Doorbell:
    """Calls each event loop once a step, however many streams wait there; used by the engine's thread alone.

    Called for the first of them, a loop would take the interpreter from the step's others, one by one.
    """

    def __init__(self) -> None:
        self._waiting: dict[asyncio.AbstractEventLoop, list[Callable[[], None]]] = {}

    def ring(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        """Has `wake` called on a loop once the step is over."""
        self._waiting.setdefault(loop, []).append(wake)

    def step_ends(self) -> None:
        """Calls the loops."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, {}
        for loop, wakes in waiting.items():
            try:
                loop.call_soon_threadsafe(_call, wakes)
            except RuntimeError:
                _log.info("nobody waits: the event loop is closed")


def _call(wakes: Sequence[Callable[[], None]]) -> None:
    for wake in wakes:
        wake()

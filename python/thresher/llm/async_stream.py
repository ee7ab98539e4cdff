"""Answers for asyncio."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from thresher.llm.engine import Engine
from thresher.llm.request import Delta, Request
from thresher.llm.sampling import SamplingParams

if TYPE_CHECKING:
    import asyncio


class AsyncStream:
    """The answers to one or more prompts as they are computed.

    Attributes:
      requests: one a prompt.
    """

    def __init__(
        self,
        engine: Engine,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        priority: int = 0,
        *,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """Submits the prompts.

        Args:
          engine: computes them.
          prompts: tokens of each.
          params: options of each.
          priority: the lowest goes first.
          loop: where answers are taken; default: the running one.

        Raises:
          ValueError: a prompt or an option is not legal.
          QueueFullError: too many requests wait.
          EngineClosedError: the engine has been closed.
        """
        self._engine = engine
        import asyncio  # takes a tenth of the time to load this package

        self._loop = loop or asyncio.get_running_loop()
        self._ready: deque[tuple[int, Delta]] = deque()
        self._left = False
        self._rung = False  # this stream will be woken
        self._waiter: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self._open = params.n * len(prompts)
        self.requests: list[Request] = []
        try:
            for number, prompt in enumerate(prompts):
                self.requests.append(engine.submit(prompt, params, self._deliver(number), priority))
        except BaseException:
            self.cancel()
            raise

    @property
    def over(self) -> bool:
        """Whether all answers have been taken."""
        return not self._open

    async def take(self) -> list[tuple[int, Delta]]:
        """What has come since the last call, each with the number of its prompt; waits for it; empty: that was all.

        What goes wrong in a request is in its Delta.

        Raises:
          Exception: what fail() was given.
        """
        if not self._open:
            return []
        while not self._ready:
            if self._error is not None:
                raise self._error
            self._waiter = self._loop.create_future()
            await self._waiter
        taken = []
        while self._ready:
            one = self._ready.popleft()
            taken.append(one)
            if one[1].finish_reason is not None:
                self._open -= 1
        return taken

    def cancel(self) -> None:
        """Ends the requests; what is under way comes with finish_reason "cancel"."""
        for request in self.requests:
            self._engine.cancel(request)

    def leave(self) -> None:
        """Ends the requests; nobody waits for what is still under way."""
        self._left = True
        if self._open:
            self.cancel()

    def fail(self, error: Exception) -> None:
        """Ends the requests, and raises an error where their answers are waited for; to be called on the loop."""
        self._error = error
        self.cancel()
        self._wake()

    def _deliver(self, number: int) -> Callable[[Delta], None]:
        def deliver(delta: Delta) -> None:  # on the engine's thread
            if self._left or self._loop.is_closed():
                return
            self._ready.append((number, delta))
            if not self._rung:
                self._rung = True
                self._engine.doorbell.ring(self._loop, self._wake)

        return deliver

    def _wake(self) -> None:
        self._rung = False  # before anything is taken: what comes from now on rings again
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

"""A profile of some steps of a model that answers."""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from thresher.llm.scheduler import Step
from thresher.machine.backend import set_tool_windows

if TYPE_CHECKING:
    from thresher.profiler.control import Profile


class ProfileWindow:
    """Begins before the first step that fits, and ends some steps later. The engine's thread alone calls it."""

    def __init__(self, trace: bool | str | Path, *, steps: int, request: int | None, batch: int | None) -> None:
        """Says what is profiled.

        Args:
          trace: where to keep every record for a time line, as in ``thresher.profiler.profile``.
          steps: how many.
          request: from the first step on that computes the request of this number, counted from 0, or a later one.
          batch: from the first step on that computes so many answers.

        Raises:
          ValueError: there are no steps, or what they begin with is not said, or twice.
        """
        if steps < 1:
            raise ValueError(f"steps: expected 1 or more, got {steps}")
        if (request is None) == (batch is None):
            raise ValueError("expected a request or a batch that a profile begins with, got both or none")
        self.result: Future[Profile] = Future()
        self._trace, self._left = trace, steps
        self._request, self._batch = request, batch
        self._block: AbstractContextManager[Profile] | None = None
        self._profile: Profile | None = None

    def before(self, step: Step) -> None:
        """Begins, if this is the step to begin with."""
        if self._block is not None or not self._fits(step) or not self.result.set_running_or_notify_cancel():
            return
        from thresher.profiler.control import profile  # which most processes never want

        self._block = profile(self._trace)
        try:
            self._profile = self._block.__enter__()
            set_tool_windows(True)
        except Exception as error:  # the file exists, say: no reason to fail requests
            self.result.set_exception(error)

    def after(self) -> None:
        """Counts a step, and ends with the last one."""
        if self._profile is None:
            return
        self._left -= 1
        if not self._left:
            self.end()

    def end(self) -> None:
        """Ends now, with what there is; nothing where it has ended."""
        block, found = self._block, self._profile
        self._profile = None
        if block is None:
            self.result.cancel()
        elif found is not None:
            try:
                set_tool_windows(False)
                block.__exit__(None, None, None)
            except Exception as error:
                self.result.set_exception(error)
            else:
                self.result.set_result(found)

    def _fits(self, step: Step) -> bool:
        if self._batch is not None:
            return len(step.sequences) >= self._batch
        return any(answer.request.number >= (self._request or 0) for answer in step.sequences)

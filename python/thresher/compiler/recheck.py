"""Keeps threads that waited for TorchDynamo from capturing what was captured meanwhile.

TorchDynamo captures one frame at a time. A thread whose call fits no capture waits for its turn, and does not look
again when it comes: 24 threads that call a new model at once make 24 captures, of which its limit lets 8 live, and
further shapes run in PyTorch for ever. Here it looks again, with the guards of the captures that there are by then.
Where one fits, this one call runs in PyTorch, and the thread's next one in the capture.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import types
import weakref
from typing import Any

from torch._dynamo import convert_frame
from torch._dynamo.eval_frame import innermost_backend

log = logging.getLogger("thresher.compiler")

try:
    from torch._C._dynamo.eval_frame import (
        _FrameAction,
        _FrameExecStrategy,
        _get_cache_entries_for_region,
        _get_total_cache_entry_count,
        get_eval_frame_isolate_recompiles_id,
        set_fullgraph_compiled_frame_count,
    )
    from torch._dynamo.types import ConvertFrameReturn

    _TURN: types.CodeType | None = convert_frame.CatchErrorsWrapper.__call__.__code__
except (ImportError, AttributeError):  # this PyTorch looks different inside: its threads capture as for every back end
    _TURN = None

# What a capture takes from the end of its turn until TorchDynamo finds it, and much more: seconds.
_PATIENCE = 1.0


class LooksAgain:
    """Stands before the function that captures a frame, within TorchDynamo's turn.

    Args:
      convert: the function.
    """

    def __init__(self, convert: Any) -> None:
        self._torchdynamo_orig_backend = convert  # by this name TorchDynamo tells the back ends of captures apart
        self._made: tuple[types.CodeType, int] | None = None  # the last capture: how many its code has with it
        # How many captures of a code there were when threads were turned away.
        self._turned_away: weakref.WeakKeyDictionary[types.CodeType, dict[int, int]] = weakref.WeakKeyDictionary()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._torchdynamo_orig_backend, name)

    def __call__(self, frame: Any, cache_entry: Any, hooks: Any, frame_state: Any, skip: int = 0) -> Any:
        """Captures a frame, or says that it is to run as it is, and what it calls only in captures that exist."""
        code = frame.f_code
        self._await(code)
        if self._fits(frame) and self._may_turn_away(code):
            if set_fullgraph_compiled_frame_count(1) < 0:  # with fullgraph=True a call has to run a capture
                set_fullgraph_compiled_frame_count(-1)
            strategy = _FrameExecStrategy(_FrameAction.DEFAULT, _FrameAction.RUN_ONLY)
            return ConvertFrameReturn(strategy, apply_to_code=False, skip_reason="another thread has just captured it")
        result = self._torchdynamo_orig_backend(frame, cache_entry, hooks, frame_state, skip=skip + 1)
        if result.guarded_code is not None:
            self._made = code, _get_total_cache_entry_count(code) + 1
        return result

    def _await(self, code: types.CodeType) -> None:
        """Waits until the last capture can be found: its thread hands it over after its turn."""
        if self._made is None or self._made[0] is not code:
            return
        until = time.monotonic() + _PATIENCE
        while _get_total_cache_entry_count(code) < self._made[1] and time.monotonic() < until:
            time.sleep(0)
        self._made = None

    def _fits(self, frame: Any) -> bool:
        """Whether one of our captures fits the call."""
        backend = innermost_backend(self._torchdynamo_orig_backend)
        entries = _get_cache_entries_for_region(frame.f_code, get_eval_frame_isolate_recompiles_id())
        try:
            return any(
                innermost_backend(entry.backend) == backend and entry.guard_manager.check(frame.f_locals)
                for entry in entries
            )
        except Exception:
            log.debug("guards cannot be looked at again", exc_info=True)
            return False

    def _may_turn_away(self, code: types.CodeType) -> bool:
        """Notes it. A thread that comes twice while nothing was captured has guards that say otherwise elsewhere."""
        count = _get_total_cache_entry_count(code)
        counts = self._turned_away.setdefault(code, {})
        thread = threading.get_ident()
        if counts.get(thread) == count:
            return False
        counts[thread] = count
        return True


def look_again() -> None:
    """To be called by a back end: TorchDynamo looks again, from now on, before it captures for the model at hand.

    That includes threads that wait already.
    """
    if _TURN is None:
        return
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not _TURN:
        frame = frame.f_back
    turn = None if frame is None else frame.f_locals.get("self")
    convert = getattr(turn, "_torchdynamo_orig_backend", None)
    if isinstance(convert, (convert_frame.ConvertFrame, convert_frame.ConvertFrameAssert)):
        turn._torchdynamo_orig_backend = LooksAgain(convert)  # type: ignore[union-attr]  # it is a CatchErrorsWrapper

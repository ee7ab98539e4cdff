"""What profiles say of a step as a whole."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Literal

from thresher import _engine

Phase = Literal["prefill", "decode"]

_CALL = next(int(str(event["number"])) for event in _engine.profile_events() if event["name"] == "thresherCall")
_STEP = _engine.profile_site("step")


@contextlib.contextmanager
def recorded_step(phase: Phase, tokens: int) -> Iterator[None]:
    """What is computed here is a call of that phase, for that many tokens; for tools that listen, a range."""
    profiled, listening = _engine.profile_enabled(), _engine.nvtx_listening()
    if not (profiled or listening):
        yield
        return
    if listening:
        _engine.nvtx_push(phase)
    _engine.profile_phase(phase)
    start_ns = _engine.profile_now_ns()
    try:
        yield
    finally:
        if listening:
            _engine.nvtx_pop()
        _engine.profile_event(_CALL, _STEP, start_ns, tokens)
        _engine.profile_phase("inference")

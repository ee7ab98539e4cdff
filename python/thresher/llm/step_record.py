"""What profiles say of a step as a whole."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from thresher import _engine
from thresher.llm.step_inputs import Work

_CALL = next(int(str(event["number"])) for event in _engine.profile_events() if event["name"] == "thresherCall")
_STEP = _engine.profile_site("step")
_UNRECORDED = contextlib.nullcontext()


def recorded_step(work: Sequence[Work], *, first: bool = True) -> contextlib.AbstractContextManager[None]:
    """What is computed here is a call; for tools that listen, a range. Its phase is decode if it has answers alone.

    Args:
      work: of the step.
      first: whether this is all of it, or its first piece: its tokens count once.
    """
    listening = _engine.nvtx_listening()
    return _recorded(work, listening, first) if listening or _engine.profile_enabled() else _UNRECORDED


@contextlib.contextmanager
def _recorded(work: Sequence[Work], listening: bool, first: bool) -> Iterator[None]:
    answers = all(item.answering and len(item.tokens) == 1 + item.drafted for item in work)
    phase = "decode" if answers else "prefill"
    if listening:
        _engine.nvtx_push(phase)
    _engine.profile_phase(phase)
    start_ns = _engine.profile_now_ns()
    try:
        yield
    finally:
        if listening:
            _engine.nvtx_pop()
        _engine.profile_event(_CALL, _STEP, start_ns, first * sum(len(item.tokens) for item in work))
        _engine.profile_phase("inference")

"""Tells the profiler what it takes to capture a model: TorchDynamo's part, and ours before there is a plan."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from torch._dynamo.utils import get_metrics_context

from thresher import _engine
from thresher.profiler.events import number_of

_CAPTURE = number_of("thresherCaptureGraph")
_IMPORT = number_of("thresherImportGraph")
_SITE = _engine.profile_site("TorchDynamo")


def traced() -> None:
    """TorchDynamo has just traced a graph and calls us."""
    if _engine.profile_enabled():
        context = get_metrics_context()
        passed = time.time_ns() - context._start_time_ns if context.in_progress() else 0
        _engine.profile_event(_CAPTURE, _SITE, _engine.profile_now_ns() - passed)


def until_called(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """What TorchDynamo does with a compiled graph ends where it is first called, by the thread that captured it."""
    if not _engine.profile_enabled():
        return compiled
    since: list[int] = [_engine.profile_now_ns()]

    def run(*args: Any) -> Any:
        if since:
            with contextlib.suppress(IndexError):  # another thread came first
                _engine.profile_event(_CAPTURE, _SITE, since.pop())
        return compiled(*args)

    return run


@contextlib.contextmanager
def importing(site: int = _SITE) -> Iterator[None]:
    """Inside, a graph of TorchDynamo becomes one of ours."""
    start = _engine.profile_now_ns()
    try:
        yield
    finally:
        _engine.profile_event(_IMPORT, site, start)

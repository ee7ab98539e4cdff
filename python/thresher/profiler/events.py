"""The kinds of events that the engine's records are about."""

from __future__ import annotations

import functools
import importlib


@functools.cache
def number_of(name: str) -> int:
    """The number of an event in traces.

    Args:
        name: such as "thresherCall"; docs/profiling.md lists them.

    Raises:
        KeyError: the engine has no such event.
    """
    engine = importlib.import_module("thresher._engine")
    return {str(event["name"]): int(event["number"]) for event in engine.profile_events()}[name]

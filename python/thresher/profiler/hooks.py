"""Where other profilers attach to the calls of compiled models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

# Called with a graph's name and arguments while anything is recorded; its context surrounds the run of the graph.
CallRange = Callable[[str, Sequence[Any]], AbstractContextManager[object]]

_state: dict[str, CallRange | None] = {"call_range": None}


def call_range() -> CallRange | None:
    """What surrounds each recorded call of a compiled graph, None for nothing."""
    return _state["call_range"]


def set_call_range(range_of: CallRange | None) -> None:
    """Sets what surrounds each recorded call of a compiled graph.

    Args:
        range_of: makes a context manager from a graph's name and its arguments; None: nothing surrounds calls.
    """
    _state["call_range"] = range_of

"""The events of a trace: rows of one array, their categories, groups and order."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

EVENT = np.dtype(
    [
        ("start_ns", "<i8"),
        ("dur_ns", "<i8"),
        ("name", "<u4"),
        ("category", "u1"),
        ("phase", "u1"),
        ("lane", "<u2"),
        ("event", "<u2"),
        ("site", "<i4"),
        ("correlation", "<u8"),
        ("external", "<u4"),
        ("user", "<u4"),
        ("value", "<i8"),
        ("execution", "<u8"),
    ]
)
"""One event: an interval of a time line, or an allocation.

For events of the category MEMORY, `value` is the signed number of bytes, `execution` the address and `correlation`
the bytes that are allocated after it; in traces from Chrome JSON, `reserved_bytes` gives the bytes reserved.
"""

PHASES = ("inference", "prefill", "decode")


class Category(enum.IntEnum):
    """What kind of work an event is."""

    KERNEL = 0
    COPY = 1
    COMMUNICATION = 2
    RUNTIME = 3
    HOST = 4
    ANNOTATION = 5
    CALL = 6
    EXECUTION = 7
    STEP = 8
    MEMORY = 9
    PYTHON = 10
    OTHER = 11


# Bits of a group's key, from the top: category 4, phase 2, name 28, site + 1 28.
_NAME_SHIFT = 28
_PHASE_SHIFT = 56
_CATEGORY_SHIFT = 58
_LOW_28 = (1 << 28) - 1


def group_keys(events: Array) -> Array:
    """One number per event that is equal for events of equal category, phase, name and site."""
    key = events["category"].astype(np.int64) << _CATEGORY_SHIFT
    key |= (events["phase"].astype(np.int64) & 3) << _PHASE_SHIFT
    key |= (events["name"].astype(np.int64) & _LOW_28) << _NAME_SHIFT
    key |= (events["site"].astype(np.int64) + 1) & _LOW_28
    return key


def key_category(key: Array) -> Array:
    """The categories of group keys."""
    result: Array = (key >> _CATEGORY_SHIFT).astype(np.uint8)
    return result


def key_parts(key: Array) -> tuple[Array, Array, Array, Array]:
    """Category, phase, name and site of group keys."""
    return (
        key_category(key),
        ((key >> _PHASE_SHIFT) & 3).astype(np.uint8),
        ((key >> _NAME_SHIFT) & _LOW_28).astype(np.uint32),
        ((key & _LOW_28) - 1).astype(np.int32),
    )


def sort_events(events: Array) -> Array:
    """Events by start, the longer first where two start together."""
    order = np.argsort(events["start_ns"], kind="stable")
    start, duration = events["start_ns"][order], events["dur_ns"][order]
    ties = start[1:] == start[:-1]
    # Only a few events start together in the wrong order; a sort by both columns would take several times as long.
    wrong = np.flatnonzero(ties & (duration[1:] > duration[:-1]))
    if len(wrong):
        group = np.cumsum(np.r_[False, ~ties])
        mine = np.flatnonzero(np.isin(group, group[wrong]))
        order[mine] = order[mine][np.lexsort((-duration[mine], group[mine]))]
    result: Array = events[order]
    return result

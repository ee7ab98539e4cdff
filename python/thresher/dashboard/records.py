"""What processes say about themselves, a few times a second."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from thresher.dashboard.durations import LAST_STEP, Counts

MOST_RECORDS = 1000  # of one message
_ID = re.compile(r"[0-9a-f]{32}")
_MOST_TEXT = 200
# What a record is made of, in the order of a message; the first two are always known.
FIELDS = ("time_s", "calls", "busy_ms", "memory_bytes", "engine_bytes", "cache_bytes", "joules")
# What stands behind them in a message: durations of calls, as pairs of their step (durations.py) and how many.
DURATIONS = "durations"


class MessageError(ValueError):
    """A message that cannot be used; the text says what was expected and what came."""


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """One interval of a process.

    Attributes:
      time_s: its end, in seconds since the Unix epoch.
      calls: of compiled models that ended in it.
      busy_ms: how long these took together.
      memory_bytes: resident memory of the process.
      engine_bytes: memory that the engine holds: packed weights, working memory.
      cache_bytes: files of the result cache.
      joules: energy of the machine in the interval. All but the first two are None where they are not known.
      durations: of the calls, as counts by step.
    """

    time_s: float
    calls: int
    busy_ms: float | None = None
    memory_bytes: int | None = None
    engine_bytes: int | None = None
    cache_bytes: int | None = None
    joules: float | None = None
    durations: Counts = ()

    def row(self) -> list[Any]:
        """The values in the order of FIELDS."""
        return [getattr(self, name) for name in FIELDS]


@dataclasses.dataclass(frozen=True, slots=True)
class Message:
    """Some records of one run of a process.

    Attributes:
      run: names the run: 32 hexadecimal digits.
      name: what the process is called; runs of one name are compared.
      pid: the process.
      about: what is the same all the time: "cpu", "threads", "version", "energy" (why it is not known), "profile"
        (where its profile page is).
      records: the intervals.
    """

    run: str
    name: str
    pid: int
    about: dict[str, str]
    records: tuple[Record, ...]

    def to_dict(self) -> dict[str, Any]:
        """What JSON can hold, as `parse` takes it."""
        return {
            **self.head(),
            "records": [[*record.row(), list(map(list, record.durations))] for record in self.records],
        }

    def head(self) -> dict[str, Any]:
        """What JSON can hold, without the records."""
        return {"run": self.run, "name": self.name, "pid": self.pid, "about": self.about}


def parse(data: Mapping[str, Any]) -> Message:
    """A message that came from anybody.

    Raises:
      MessageError: it is none.
    """
    run, name, pid = data.get("run"), data.get("name"), data.get("pid")
    if not isinstance(run, str) or not _ID.fullmatch(run):
        raise MessageError(f"run: expected 32 hexadecimal digits, got {str(run)[:80]!r}")
    if not isinstance(name, str) or not 0 < len(name) <= _MOST_TEXT:
        raise MessageError(f"name: expected a text of 1 to {_MOST_TEXT} letters, got {str(name)[:80]!r}")
    if type(pid) is not int or not 0 < pid < 1 << 32:
        raise MessageError(f"pid: expected the number of a process, got {str(pid)[:80]!r}")
    about, records = data.get("about", {}), data.get("records")
    plain = isinstance(about, Mapping) and len(about) <= 20
    if not plain or not all(isinstance(x, str) and len(x) <= _MOST_TEXT * 5 for pair in about.items() for x in pair):
        raise MessageError("about: expected at most 20 texts by name, got something else")
    if not isinstance(records, Sequence) or isinstance(records, str) or len(records) > MOST_RECORDS:
        raise MessageError(f"records: expected a list of at most {MOST_RECORDS}, got something else")
    return Message(run, name, pid, dict(about), tuple(map(_record, records)))


def _record(row: Any) -> Record:
    if not isinstance(row, Sequence) or isinstance(row, str) or len(row) != len(FIELDS) + 1:
        names = ", ".join((*FIELDS, DURATIONS))
        raise MessageError(f"records: expected lists of {len(FIELDS) + 1}: {names}, got {str(row)[:80]}")
    *row, durations = row
    for name, value in zip(FIELDS, row, strict=True):
        known = type(value) in (int, float) and math.isfinite(value) and 0 <= value < 1 << 60
        if not known and (value is not None or name in FIELDS[:2]):
            raise MessageError(f"records: expected {name} to be a number of at least 0, got {str(value)[:80]!r}")
    time_s, calls, busy_ms, memory, engine, cache, joules = row
    memory, engine, cache = (None if value is None else int(value) for value in (memory, engine, cache))
    return Record(float(time_s), int(calls), busy_ms, memory, engine, cache, joules, _durations(durations))


def _durations(data: Any) -> Counts:
    if not isinstance(data, list):
        raise MessageError(f"records: expected {DURATIONS} to be a list, got {str(data)[:80]}")
    last = -1
    for pair in data:
        fits = isinstance(pair, list) and len(pair) == 2 and type(pair[0]) is int and type(pair[1]) is int
        if not fits or not last < pair[0] <= LAST_STEP or not 0 < pair[1] < 1 << 60:
            raise MessageError(
                f"records: expected {DURATIONS} to be pairs of a step from 0 to {LAST_STEP}, each once and in order, "
                f"and how many took so long, got {str(pair)[:80]}"
            )
        last = pair[0]
    return tuple(map(tuple, data))

"""Traces in Perfetto's own format, which ui.perfetto.dev opens faster and smaller than JSON.

The numbers of the fields are those of perfetto/trace/trace_packet.proto and the files beside it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from thresher.profiler.export.files import open_output
from thresher.profiler.export.layout import Entry, Layout, Track
from thresher.profiler.export.wire import double, fixed64, message, number, text
from thresher.profiler.trace import Category

if TYPE_CHECKING:
    from thresher.profiler.trace import Trace

_PACKET = 1
_TIMESTAMP, _SEQUENCE, _TRACK_EVENT, _INTERNED, _FLAGS = 8, 10, 11, 12, 13  # fields of TracePacket
_CLOCKS, _TRACK_DESCRIPTOR = 6, 60
_STATE_CLEARED, _NEEDS_STATE = 1, 2
_BOOT_TIME, _REAL_TIME = 6, 1
_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4
_SIZE_BYTES = 3
_ONLY_SEQUENCE = number(_SEQUENCE, 1)
_WITH_STATE = number(_FLAGS, _NEEDS_STATE)
_FLUSH_BYTES = 1 << 20
_COUNTER_TRACK = 2
_FIRST_TRACK = 1 << 32  # above the numbers of processes, which are tracks of their own


def write_perfetto(trace: Trace, path: Path, *, force: bool = False) -> None:
    """Writes a trace in Perfetto's format; a name that ends in .gz is compressed.

    Args:
        trace: The trace; of one too large for memory, all events are written, too.
        path: The file, by custom with the suffix .pftrace.
        force: Whether a file that exists is replaced.

    Raises:
        OutputError: The file cannot be written.
    """
    with open_output(path, force=force) as file:
        dump_perfetto(trace, file)


def dump_perfetto(trace: Trace, file: IO[bytes]) -> None:
    """Writes a trace in Perfetto's format into an open file."""
    pending = bytearray()
    for packet in _Writer(trace).packets():
        pending += packet
        if len(pending) >= _FLUSH_BYTES:
            file.write(pending)
            pending.clear()
    file.write(pending)


class _Interned:
    """Texts that are written once and then named by a number."""

    def __init__(self, field: int) -> None:
        self._field = field
        self._numbers: dict[str, int] = {}
        self.news: list[bytes] = []

    def of(self, value: str) -> int:
        found = self._numbers.get(value)
        if found is None:
            found = self._numbers[value] = len(self._numbers) + 1
            self.news.append(message(self._field, number(1, found), text(2, value)))
        return found

    def take_news(self) -> bytes:
        found = b"".join(self.news)
        self.news.clear()
        return found


class _Writer:
    def __init__(self, trace: Trace) -> None:
        self._layout = Layout(trace)
        self._categories, self._names, self._keys, self._values = (_Interned(field) for field in (1, 2, 3, 29))
        self._tables = (self._categories, self._names, self._keys, self._values)
        self._described = 0
        self._processes: set[tuple[int, bool]] = set()
        self._has_counter = False
        self._sites: dict[tuple[int, bool], bytes] = {}
        # What is the same in all events of a kind.
        self._starts: dict[tuple[int, str, int], bytes] = {}
        self._ends: dict[int, bytes] = {}
        # Ends of the slices that are open, per track, the innermost last.
        self._open: dict[int, list[int]] = {}

    def packets(self) -> Iterator[bytes]:
        layout = self._layout
        yield _packet(
            message(
                _CLOCKS,
                message(1, number(1, _BOOT_TIME), number(2, 0)),
                message(1, number(1, _REAL_TIME), number(2, layout.base_ns)),
                number(2, _BOOT_TIME),
            ),
            number(_TIMESTAMP, 0),
            _ONLY_SEQUENCE,
            number(_FLAGS, _STATE_CLEARED),
        )
        for entry in layout.entries():
            for track in layout.tracks[self._described :]:
                yield from self._describe(track)
            at = entry.start_ns - layout.base_ns
            if entry.category == Category.MEMORY:
                yield from self._memory(entry, at)
            else:
                yield from self._close(entry.track, at)
                yield self._begin(entry, at)
                self._open.setdefault(entry.track, []).append(at + entry.dur_ns)
        for track_index in list(self._open):
            yield from self._close(track_index, None)

    def _begin(self, entry: Entry, at: int) -> bytes:
        kind = (entry.track, entry.label, entry.name)
        start = self._starts.get(kind)
        if start is None:
            start = self._starts[kind] = (
                number(9, _BEGIN)
                + number(11, _uuid(entry.track))
                + number(3, self._categories.of(entry.label))
                + number(10, self._names.of(self._layout.names[entry.name]))
            )
        fields = [start]
        if entry.is_launch:
            fields.append(fixed64(47, entry.correlation))
        if entry.is_launched:
            fields.append(fixed64(48, entry.correlation))
        fields += [self._annotation(key, value) for key, value in self._layout.arguments(entry).items()]
        if entry.site >= 0 and not entry.is_launch:  # what is launched says it
            fields.append(self._site(entry.site, entry.category == Category.HOST))
        return self._event(at, fields)

    def _close(self, track: int, until: int | None) -> Iterator[bytes]:
        """Ends the slices of a track that are over by a time, or all."""
        ends = self._open.get(track)
        while ends and (until is None or ends[-1] <= until):
            rest = self._ends.get(track)
            if rest is None:
                event = message(_TRACK_EVENT, number(9, _END), number(11, _uuid(track)))
                rest = self._ends[track] = _ONLY_SEQUENCE + _WITH_STATE + event
            yield _packet(number(_TIMESTAMP, ends.pop()), rest)

    def _memory(self, entry: Entry, at: int) -> Iterator[bytes]:
        if not self._has_counter:
            self._has_counter = True
            unit = message(8, number(3, _SIZE_BYTES))
            yield _descriptor(number(1, _COUNTER_TRACK), text(2, "memory allocated"), unit)
        counter = [number(9, _COUNTER), number(11, _COUNTER_TRACK), number(30, entry.correlation)]
        yield self._event(at, counter)
        fields = [
            number(9, _INSTANT),
            number(11, _uuid(entry.track)),
            number(3, self._categories.of(entry.label)),
            number(10, self._names.of("[memory]")),
        ]
        fields += [self._annotation(key, value) for key, value in self._layout.arguments(entry).items()]
        yield self._event(at, fields)

    def _event(self, at: int, fields: list[bytes]) -> bytes:
        news = b"".join(table.take_news() for table in self._tables if table.news)
        interned = message(_INTERNED, news) if news else b""
        return _packet(number(_TIMESTAMP, at), _ONLY_SEQUENCE, _WITH_STATE, interned, message(_TRACK_EVENT, *fields))

    def _site(self, index: int, is_operator: bool) -> bytes:
        key = (index, is_operator)
        if key not in self._sites:
            site = self._layout.trace.sites.get(index)
            arguments = {} if site is None else self._layout.site_arguments(site, is_operator=is_operator)
            self._sites[key] = b"".join(self._annotation(name, value) for name, value in arguments.items())
        return self._sites[key]

    def _annotation(self, key: str, value: Any) -> bytes:
        if isinstance(value, bool) or not isinstance(value, int | float):
            shown = value if isinstance(value, str) else json.dumps(value)
            content = number(17, self._values.of(shown))
        elif isinstance(value, float):
            content = double(5, value)
        elif value >= 1 << 63:
            content = number(3, value)
        else:
            content = number(4, value)
        return message(4, number(1, self._keys.of(key)), content)

    def _describe(self, track: Track) -> Iterator[bytes]:
        index = self._described
        self._described += 1
        if track.is_device:
            # A device is no process: its track is a group of its own.
            parent = _FIRST_TRACK - 1 - track.pid
            if (track.pid, True) not in self._processes:
                self._processes.add((track.pid, True))
                yield _descriptor(number(1, parent), text(2, track.process))
            yield _descriptor(number(1, _uuid(index)), text(2, track.name), number(5, parent))
            return
        parent = _FIRST_TRACK // 2 + track.pid
        if (track.pid, False) not in self._processes:
            self._processes.add((track.pid, False))
            process = message(3, number(1, track.pid), text(6, track.process))
            yield _descriptor(number(1, parent), process)
        if track.row:
            # Beside the thread that it belongs to.
            yield _descriptor(number(1, _uuid(index)), text(2, track.name), number(5, parent))
            return
        thread = message(4, number(1, track.pid), number(2, track.tid), text(5, track.name))
        yield _descriptor(number(1, _uuid(index)), number(5, parent), thread)


def _uuid(track: int) -> int:
    return _FIRST_TRACK + track


def _descriptor(*fields: bytes) -> bytes:
    return _packet(_ONLY_SEQUENCE, message(_TRACK_DESCRIPTOR, *fields))


def _packet(*fields: bytes) -> bytes:
    return message(_PACKET, *fields)

"""Reads the engine's own trace files, *.thrtrace."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import numpy as np

from thresher import json_text
from thresher.profiler.trace import event_names
from thresher.profiler.trace.events import EVENT, Array, Category, sort_events
from thresher.profiler.trace.model import Lane, Site, Trace, TraceError
from thresher.profiler.trace.native_file import (
    CALL,
    DEVICE,
    EXECUTION,
    MEMORY,
    OP,
    RANGE,
    RECORD,
    RUNTIME,
    STEP,
    NativeFile,
    NativeWriter,
)
from thresher.profiler.trace.sampling import visible
from thresher.profiler.trace.store import CHUNK_EVENTS, Store
from thresher.profiler.trace.totals import TotalsSum

__all__ = ["RECORD", "NativeWriter", "read_native"]

_CATEGORY_OF_KIND = np.full(256, int(Category.OTHER), np.uint8)
_CATEGORY_OF_KIND[[OP, EXECUTION, CALL, RUNTIME, MEMORY, RANGE, STEP, DEVICE]] = [
    Category.RUNTIME,
    Category.EXECUTION,
    Category.CALL,
    Category.RUNTIME,
    Category.MEMORY,
    Category.ANNOTATION,
    Category.STEP,
    Category.KERNEL,
]
# A record further than this from the time of the recording has a broken time, not a late one.
_BELIEVABLE_NS = 86_400_000_000_000
_MAX_LANES = 0xFFFF
_MAX_SITE = 1 << 22
_NO_SITE = -1
_MAX_AMOUNT = 1e300  # of operations or bytes


def read_native(path: Path, *, limit: int) -> Trace:
    """Reads a trace that the engine has written.

    Args:
        path: The file.
        limit: How many events to keep in memory; of more, the visible ones are kept.

    Raises:
        TraceError: It is not such a file.
        OSError: It cannot be read.
    """
    file = NativeFile(path)
    return _Reader(file, limit).read()


class _Reader:
    def __init__(self, file: NativeFile, limit: int) -> None:
        self._file = file
        self._limit = limit
        self._meta: dict[str, Any] = {}
        self._tail: dict[str, Any] | None = None
        self._decoder = _Decoder()
        # Offsets and counts of the blocks of records, and the first block of each chunk.
        self._offsets, self._counts = array("q"), array("q")
        self._chunks: list[tuple[int, int]] = []
        self._expected = max(file.size // RECORD.itemsize, 1)
        # An operator's record makes two events.
        self._in_memory = 2 * self._expected <= limit
        self._store = Store(None if self._in_memory else self._chunk, has_twins=True)
        self._totals = TotalsSum(exact=False)
        self._visible: list[Array] = []
        self._total_events = 0
        self._open_first, self._open_records = 0, 0

    def read(self) -> Trace:
        chunk_records = CHUNK_EVENTS
        saw_head = False
        for block in self._file.blocks():
            if block.payload is None:
                # A block larger than a chunk is cut; so is memory bounded whatever wrote the file.
                count, offset = block.length // RECORD.itemsize, block.offset
                while count:
                    part = min(count, chunk_records - self._open_records)
                    self._offsets.append(offset)
                    self._counts.append(part)
                    self._open_records += part
                    offset += part * RECORD.itemsize
                    count -= part
                    if self._open_records == chunk_records:
                        self._finish_chunk()
                continue
            data = self._parse(block.tag, block.payload)
            if block.tag == "HEAD":
                saw_head = True
                self._meta.update(data)
                self._decoder.begin(data)
            elif block.tag == "DATA":
                self._meta.update(data)
            elif block.tag == "SITE":
                self._decoder.add_sites(data)
            elif block.tag == "TAIL":
                self._tail = data
        self._finish_chunk()
        if not saw_head and not self._total_events:
            raise TraceError(
                f"trace {self._file.path}: expected a description of the run, got none (the file ends after "
                f"{self._file.size} bytes); the process was killed before it had recorded anything: record it again"
            )
        return self._finish()

    def _parse(self, tag: str, payload: bytes) -> Any:
        wanted = list if tag == "SITE" else dict
        if tag not in ("HEAD", "DATA", "SITE", "TAIL"):
            return {}
        try:
            data = json_text.parse(payload)
        except ValueError as error:
            raise TraceError(
                f"trace {self._file.path}: expected JSON in the block {tag}, got something else: {error}; "
                "the file is damaged: record it again"
            ) from error
        if not isinstance(data, wanted):
            raise TraceError(
                f"trace {self._file.path}: expected {'a list' if wanted is list else 'an object'} in the block {tag}, "
                f"got {type(data).__name__}; the file is damaged: record it again"
            )
        return data

    def _finish_chunk(self) -> None:
        if not self._open_records:
            return
        self._chunks.append((self._open_first, len(self._offsets)))
        self._open_first, self._open_records = len(self._offsets), 0
        events = self._chunk(len(self._chunks) - 1, first_time=True)
        self._total_events += len(events)
        self._store.add(events)
        if not self._in_memory:
            self._totals.add(events)
            # The share of a chunk in the limit is its share in the file.
            share = -(-self._limit * len(events) // (2 * self._expected))
            self._visible.append(events[visible(events, share)])

    def _chunk(self, number: int, *, first_time: bool = False) -> Array:
        first, last = self._chunks[number]
        spans = list(zip(self._offsets[first:last], self._counts[first:last], strict=True))
        return self._decoder.events(self._file.records(spans), count_errors=first_time)

    def _finish(self) -> Trace:
        decoder = self._decoder
        if self._in_memory:
            parts = list(self._store.chunks())
            events = sort_events(np.concatenate(parts)) if parts else np.empty(0, EVENT)
            totals = TotalsSum(exact=True)
            totals.add(events)
            self._file.close()
        else:
            events = sort_events(np.concatenate(self._visible)) if self._visible else np.empty(0, EVENT)
            totals = self._totals
        tail = self._tail or {}
        meta = {
            **self._meta,
            "format": "native",
            "file": self._file.path.name,
            "complete": self._tail is not None and not self._file.truncated,
            "truncated": self._file.truncated,
            "dropped": _count(tail.get("dropped")),
            "stop_ns": tail.get("stop_ns"),
            # Of plans that ran, else of the pool.
            "num_threads": tail.get("num_threads", self._meta.get("num_threads")),
            "bad_times": decoder.bad_times,
            "unknown_events": decoder.unknown_events,
        }
        return Trace(
            meta=meta,
            names=decoder.names,
            lanes=decoder.lanes,
            sites=decoder.sites,
            events=events,
            total_events=self._total_events,
            totals=totals.result(),
            store=self._store,
        )


class _Decoder:
    """Makes events of records."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.lanes: list[Lane] = []
        self.sites: dict[int, Site] = {}
        self.bad_times = 0
        self.unknown_events = 0
        self._name_index: dict[str, int] = {}
        self._lane_index: dict[tuple[int, int], int] = {}
        self._event_name = np.full(1 << 16, -1, np.int64)
        self._site_name = np.full(16, -1, np.int64)
        self._site_label = np.full(16, -1, np.int64)
        self._site_hardware = np.zeros(16, np.uint16)
        self._pid = 0
        self._start_ns: int | None = None

    def begin(self, head: dict[str, Any]) -> None:
        pid, start = head.get("pid"), head.get("start_ns")
        self._pid = pid if isinstance(pid, int) else 0
        self._start_ns = start if isinstance(start, int) and start > 0 else None

    def add_sites(self, sites: list[Any]) -> None:
        for data in sites:
            if not isinstance(data, dict) or not isinstance(data.get("id"), int) or not 0 <= data["id"] < _MAX_SITE:
                continue
            site = _site(data)
            while site.id >= len(self._site_name):
                grow = len(self._site_name)
                self._site_name = np.r_[self._site_name, np.full(grow, -1, np.int64)]
                self._site_label = np.r_[self._site_label, np.full(grow, -1, np.int64)]
                self._site_hardware = np.r_[self._site_hardware, np.zeros(grow, np.uint16)]
            self.sites[site.id] = site
            self._site_name[site.id] = self._name(site.name)
            self._site_label[site.id] = self._name(site.kernel or site.name)
            hardware = data.get("hardware")
            self._site_hardware[site.id] = hardware if isinstance(hardware, int) and 0 <= hardware < 1 << 16 else 0

    def events(self, records: Array, *, count_errors: bool) -> Array:
        start, end = records["start_ns"], records["end_ns"]
        good = (end >= start) & (start > 0) & (end < 1 << 62)
        if self._start_ns is not None:
            good &= start >= self._start_ns - _BELIEVABLE_NS
        if not good.all():
            records = records[good]
        if count_errors:
            self.bad_times += int(len(good) - good.sum())
        kind, event = records["kind"], records["event"]
        raw_site = records["site"].astype(np.int64)
        # Only operators have a site for certain: 0 of anything else means none.
        raw_site[(kind != OP) & (raw_site == 0)] = _MAX_SITE
        site = np.where(raw_site < len(self._site_name), raw_site, 0)
        site = np.where((self._site_name[site] >= 0) & (raw_site < len(self._site_name)), site, _NO_SITE)
        host = np.empty(len(records), EVENT)
        host["start_ns"] = records["start_ns"]
        host["dur_ns"] = records["end_ns"] - records["start_ns"]
        host["category"] = _CATEGORY_OF_KIND[kind]
        host["category"][(kind == RUNTIME) & (event == event_names.FALLBACK)] = Category.HOST
        barrier = (kind == RUNTIME) & (event >= event_names.BARRIER_1) & (event <= event_names.UPDATE_REMOTE)
        host["category"][barrier] = Category.COMMUNICATION
        host["phase"] = np.minimum(records["phase"], 2)
        host["event"] = event
        for name in ("correlation", "external", "user", "value", "execution"):
            host[name] = records[name]
        host["site"] = site
        host["name"] = self._names_of(kind, event, site, records["value"], count_errors)
        host["lane"] = self._lanes_of(0, records["thread"], on_host=True)
        is_op = kind == OP
        on_device = is_op | (kind == DEVICE)
        if not on_device.any():
            return host
        device = host[on_device]
        device_site = device["site"]
        known = device_site >= 0
        hardware = np.where(known, self._site_hardware[device_site], 0)
        is_copy = (hardware == event_names.MEMCPY) | (hardware == event_names.MEMSET)
        device["category"] = np.where(is_copy, int(Category.COPY), int(Category.KERNEL))
        device["category"][hardware == event_names.UPDATE_REMOTE] = Category.COMMUNICATION
        device["event"] = np.where(hardware > 0, hardware, event_names.KERNEL)
        label = self._site_label[device_site]
        if not known.all():
            label = np.where(known, label, self._name("unknown operator"))
        device["name"] = label
        number, stream = records["device"][on_device], records["lane"][on_device]
        for one in np.unique(number).tolist():
            mine = number == one
            device["lane"][mine] = self._lanes_of(one, stream[mine], on_host=False)
        # What a device of its own does has a launch of its own on the host; an operator's record is both.
        return np.concatenate([host[kind != DEVICE], device])

    def _names_of(self, kind: Array, event: Array, site: Array, value: Array, count_errors: bool) -> Array:
        present = np.flatnonzero(np.bincount(event))
        for number in present[self._event_name[present] < 0].tolist():
            self._event_name[number] = self._name(event_names.event_name(number))
        names = self._event_name[event]
        if count_errors:
            self.unknown_events += int(np.count_nonzero(event >= len(event_names.EVENT_NAMES)))
        named = ((kind == RANGE) | (kind == STEP)) & (site >= 0)
        names[named] = self._site_name[site[named]]
        for index in np.flatnonzero((kind == STEP) & (site < 0)).tolist():
            names[index] = self._name(f"Step#{value[index]}")
        unnamed = (kind == RANGE) & (site < 0)
        if unnamed.any():
            names[unnamed] = self._name("range")
        return names

    def _lanes_of(self, device: int, numbers: Array, *, on_host: bool) -> Array:
        distinct, inverse = np.unique(numbers, return_inverse=True)
        lanes = [self._lane(-1 if on_host else device, number) for number in distinct.tolist()]
        return np.array(lanes, np.uint16)[inverse.reshape(-1)]

    def _lane(self, device: int, number: int) -> int:
        """The lane of a stream of a device, or for device -1 of a host thread."""
        found = self._lane_index.get((device, number))
        if found is not None:
            return found
        if len(self.lanes) >= _MAX_LANES:
            return len(self.lanes) - 1
        index = len(self.lanes)
        if device < 0:
            lane = Lane(index, "host", self._pid, number, f"thread {number}")
        else:
            name = "thresher:0" if device == 0 else f"cuda:{device - 1}"
            lane = Lane(index, "device", device, number, f"{name} stream {number}")
        self.lanes.append(lane)
        self._lane_index[(device, number)] = index
        return index

    def _name(self, name: str) -> int:
        index = self._name_index.get(name)
        if index is None:
            index = self._name_index[name] = len(self.names)
            self.names.append(name)
        return index


def _site(data: dict[str, Any]) -> Site:
    def text(key: str) -> str:
        value = data.get(key)
        return value if isinstance(value, str) else ""

    def amount(key: str) -> float | None:
        value = data.get(key)
        return float(value) if isinstance(value, (int, float)) and 0 <= value <= _MAX_AMOUNT else None

    step = data.get("step")
    return Site(
        id=data["id"],
        name=text("name") or "unknown operator",
        kernel=text("kernel"),
        section=text("section"),
        shapes=text("shapes"),
        dtypes=text("dtypes"),
        outputs=text("outputs"),
        precision=text("precision"),
        module=text("module"),
        source=text("source"),
        flops=amount("flops"),
        bytes=amount("bytes"),
        graph=text("graph"),
        step=step if isinstance(step, int) and 0 <= step < 1 << 31 else -1,
    )


def _count(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0

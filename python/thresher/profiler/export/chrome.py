"""Traces as Chrome JSON with the conventions of torch.profiler.

chrome://tracing, Perfetto, TensorBoard's profiler plug-in and HolisticTraceAnalysis read it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from thresher.profiler.export.files import open_output
from thresher.profiler.export.layout import Layout, Track
from thresher.profiler.trace import Category

if TYPE_CHECKING:
    from thresher.profiler.trace import Trace

_SCHEMA_VERSION = 1
_LINES = 4096
_MEGABYTE = 1 << 20


def write_chrome(trace: Trace, path: Path, *, force: bool = False) -> None:
    """Writes a trace as Chrome JSON; a name that ends in .gz is compressed.

    Args:
        trace: The trace; of one too large for memory, all events are written, too.
        path: The file.
        force: Whether a file that exists is replaced.

    Raises:
        OutputError: The file cannot be written.
    """
    with open_output(path, force=force) as file:
        dump_chrome(trace, file, name=path.name)


def dump_chrome(trace: Trace, file: IO[bytes], *, name: str = "") -> None:
    """Writes a trace as Chrome JSON into an open file.

    Args:
        trace: The trace.
        file: Where to write.
        name: What the trace is called in the file.
    """
    layout = Layout(trace)
    head = json.dumps(_head(layout), indent=1, default=str)
    file.write(head[: head.rindex("}")].rstrip().encode() + b',\n "traceEvents": [\n')
    lines: list[str] = []
    separator = ""
    for line in _lines(layout):
        lines.append(line)
        if len(lines) == _LINES:
            file.write((separator + ",\n".join(lines)).encode())
            separator, lines = ",\n", []
    if lines:
        file.write((separator + ",\n".join(lines)).encode())
    file.write(f'\n ],\n "traceName": {json.dumps(name)}\n}}\n'.encode())


def _head(layout: Layout) -> dict[str, Any]:
    meta = layout.trace.meta
    found: dict[str, Any] = {"schemaVersion": _SCHEMA_VERSION}
    about = {"isa": meta.get("isa"), "numThreads": meta.get("num_threads")}
    found["deviceProperties"] = [
        {"id": pid, "name": meta.get("cpu") or name, "device": name, **{k: v for k, v in about.items() if v}}
        for name, pid in layout.device_pids.items()
    ]
    if meta.get("rank") is not None:
        found["distributedInfo"] = {"backend": "", "rank": meta["rank"], "world_size": meta.get("world_size", 1)}
    # What a reader of PyTorch's traces has no place for; ours finds peaks, versions and energy here.
    found["thresher"] = meta
    found["displayTimeUnit"] = "ms"
    found["baseTimeNanoseconds"] = layout.base_ns
    return found


def _lines(layout: Layout) -> Iterator[str]:
    names = [json.dumps(name) for name in layout.names]
    sites: dict[tuple[int, bool], str] = {}
    places: list[str] = []
    processes: set[int] = set()
    base = layout.base_ns
    for entry in layout.entries():
        for track in layout.tracks[len(places) :]:
            places.append(f'"pid": {track.pid}, "tid": {track.tid}')
            yield from _track_lines(track, is_first=track.pid not in processes)
            processes.add(track.pid)
        place, at = places[entry.track], _microseconds(entry.start_ns - base)
        arguments = json.dumps(layout.arguments(entry))[1:-1]
        if entry.category == Category.MEMORY:
            yield (
                f'{{"ph": "i", "cat": "{entry.label}", "s": "t", "name": "[memory]", {place}, "ts": {at}, '
                f'"args": {{{arguments}}}}}'
            )
            continue
        if entry.site >= 0 and not entry.is_launch:  # what is launched says it
            key = (entry.site, entry.category == Category.HOST)
            if key not in sites:
                sites[key] = _site(layout, *key)
            if sites[key]:
                arguments = f"{arguments}, {sites[key]}" if arguments else sites[key]
        yield (
            f'{{"ph": "X", "cat": "{entry.label}", "name": {names[entry.name]}, {place}, "ts": {at}, '
            f'"dur": {_microseconds(entry.dur_ns)}, "args": {{{arguments}}}}}'
        )
        if entry.is_launch:
            yield f'{{"ph": "s", "id": {entry.correlation}, {place}, "ts": {at}, "cat": "ac2g", "name": "ac2g"}}'
        if entry.is_launched:
            yield (
                f'{{"ph": "f", "id": {entry.correlation}, {place}, "ts": {at}, "cat": "ac2g", "name": "ac2g", '
                f'"bp": "e"}}'
            )


def _site(layout: Layout, number: int, is_operator: bool) -> str:
    site = layout.trace.sites.get(number)
    return "" if site is None else json.dumps(layout.site_arguments(site, is_operator=is_operator))[1:-1]


def _track_lines(track: Track, *, is_first: bool) -> Iterator[str]:
    def line(kind: str, tid: int, **arguments: Any) -> str:
        return json.dumps({"ph": "M", "name": kind, "ts": 0, "pid": track.pid, "tid": tid, "args": arguments})

    if is_first:
        # Hardware below the threads, as PyTorch's own traces have it.
        order = track.pid + 5 * _MEGABYTE if track.is_device else track.pid
        yield line("process_name", 0, name=track.process)
        yield line("process_labels", 0, labels=track.process if track.is_device else "CPU")
        yield line("process_sort_index", 0, sort_index=order)
    yield line("thread_name", track.tid, name=track.name)
    yield line("thread_sort_index", track.tid, sort_index=track.tid)


def _microseconds(ns: int) -> str:
    sign = "-" if ns < 0 else ""
    whole, rest = divmod(abs(ns), 1000)
    return f"{sign}{whole}.{rest:03d}"

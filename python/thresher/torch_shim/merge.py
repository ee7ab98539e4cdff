"""Adds the engine's events to the traces that PyTorch's profiler exports, where the two cannot be connected."""

from __future__ import annotations

import functools
import gzip
import importlib
import io
import json
import tempfile
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.profiler.profiler import _KinetoProfile

from thresher import _engine
from thresher.whole_file import writing

# Of records, while one session runs; what comes after is counted as dropped.
MEMORY_BYTES = 256 << 20

_installed: list[bool] = []


def install() -> None:
    """Makes every profile of PyTorch record the engine too, and write its events into the file of a trace."""
    if _installed:
        return
    _installed.append(True)
    _wrap("start_trace", _start)
    _wrap("stop_trace", _stop)
    _wrap("export_chrome_trace", _export)


def _wrap(name: str, around: Callable[..., None]) -> None:
    original = getattr(_KinetoProfile, name)

    @functools.wraps(original)
    def wrapper(self: Any, *arguments: Any, **named: Any) -> None:
        around(functools.partial(original, self, *arguments, **named), self, *arguments)

    setattr(_KinetoProfile, name, wrapper)


def _start(original: Callable[[], None], profile: Any) -> None:
    original()
    # A trace of the user's goes on as it is: its events of the session are taken out of it.
    profile._thresher_owns = not _engine.trace_status()["running"]
    profile._thresher_start_ns = _engine.profile_now_ns()
    if profile._thresher_owns:
        _engine.trace_start("", MEMORY_BYTES)


def _stop(original: Callable[[], None], profile: Any) -> None:
    started = getattr(profile, "_thresher_start_ns", None)
    if started is None:
        original()
        return
    profile._thresher_start_ns = None
    window = (started, _engine.profile_now_ns())
    folder = tempfile.TemporaryDirectory(prefix="thresher-")
    file = Path(folder.name) / "session.thrtrace"
    dropped = 0
    try:
        if profile._thresher_owns:
            dropped = _engine.trace_stop()["dropped"]
        _engine.trace_save(str(file))
    finally:
        original()
    weakref.finalize(profile, folder.cleanup)
    profile._thresher_recorded = (file, window, dropped)


def _export(original: Callable[[], None], profile: Any, path: str, *_: Any) -> None:
    original()
    recorded = getattr(profile, "_thresher_recorded", None)
    if recorded is None:
        return
    try:
        add_events(Path(path), *recorded)
    except (OSError, ValueError) as error:
        warnings.warn(f"the engine's events are missing in {path}: {error}", RuntimeWarning, stacklevel=3)


def add_events(path: Path, recorded: Path, window: tuple[int, int], dropped: int) -> None:
    """Adds what a trace of the engine holds of a window to a file of PyTorch's, all or nothing.

    Args:
        path: what `export_chrome_trace` wrote; compressed if its name ends in .gz.
        recorded: the engine's trace.
        window: its begin and end, nanoseconds since the Unix epoch.
        dropped: records that the trace lacks.

    Raises:
        OSError: a file cannot be read or written.
        ValueError: one of the two is no trace.
    """
    opener: Callable[..., Any] = gzip.open if path.name.endswith(".gz") else open
    with opener(path, "rt", encoding="utf-8") as file:
        content = json.load(file)
    base_ns = int(content.get("baseTimeNanoseconds", 0))
    content["traceEvents"] += _events(recorded, window, base_ns)
    content["thresher_dropped"] = dropped
    text = json.dumps(content).encode()
    with writing(path) as partial:
        partial.write(gzip.compress(text) if path.name.endswith(".gz") else text)


def _events(recorded: Path, window: tuple[int, int], base_ns: int) -> list[dict[str, Any]]:
    # Loaded when used: they are large, and few profiles need them.
    chrome = importlib.import_module("thresher.profiler.export.chrome")
    traces = importlib.import_module("thresher.profiler.trace")
    written = io.BytesIO()
    chrome.dump_chrome(traces.read_trace(recorded), written)
    ours = json.loads(written.getvalue())
    shift = (ours["baseTimeNanoseconds"] - base_ns) / 1e3
    begin, end = ((at - base_ns) / 1e3 for at in window)
    events = []
    for event in ours["traceEvents"]:
        if event["ph"] != "M":
            event["ts"] = round(event["ts"] + shift, 3)
            if not begin <= event["ts"] <= end:
                continue
        events.append(event)
    return events

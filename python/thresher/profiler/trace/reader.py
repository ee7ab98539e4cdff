"""Opens a trace of any kind."""

from __future__ import annotations

import os
from pathlib import Path

from thresher.profiler.trace.chrome import read_chrome
from thresher.profiler.trace.model import Trace, TraceError
from thresher.profiler.trace.native import read_native
from thresher.profiler.trace.native_file import MAGIC

# Of more events, those that can be seen are kept; everything is summed up in any case.
DEFAULT_LIMIT = 2_000_000


def read_trace(path: str | os.PathLike[str], *, limit: int = DEFAULT_LIMIT) -> Trace:
    """Reads a trace: the engine's own, or Chrome JSON by PyTorch's profiler or by Thresher, compressed or not.

    What the file is follows from its content, not from its name.

    Args:
        path: The file.
        limit: How many events to keep in memory. If there are more, `Trace.events` holds those that a time line can
            show; `Trace.totals` covers all of them in any case.

    Raises:
        TraceError: The file is not a trace, or one of a newer version.
        OSError: It cannot be read.
    """
    file = Path(path)
    if limit < 1:
        raise ValueError(f"read_trace: expected a limit of at least 1 event, got {limit}")
    if file.is_dir():
        raise TraceError(f"trace {file}: expected a file, got a folder; name one of the files in it")
    with file.open("rb") as opened:
        begin = opened.read(len(MAGIC))
    if not begin:
        raise TraceError(f"trace {file}: expected a trace, got an empty file; was the recording stopped?")
    if begin == MAGIC or (len(begin) >= 4 and MAGIC.startswith(begin)):
        return read_native(file, limit=limit)
    return read_chrome(file, limit=limit)

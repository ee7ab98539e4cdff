"""Traces and reports in the forms that other tools read.

from thresher.profiler.trace import read_trace
from thresher.profiler.export import write_trace

write_trace(read_trace("run.thrtrace"), "run.json.gz")
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from thresher.profiler.export.chrome import write_chrome
from thresher.profiler.export.files import OutputError, check_output, open_output, write_text
from thresher.profiler.export.perfetto import write_perfetto

if TYPE_CHECKING:
    import os

    from thresher.profiler.trace import Trace

CHROME_SUFFIXES = (".json", ".json.gz")
PERFETTO_SUFFIXES = (".pftrace", ".perfetto-trace")


def write_trace(trace: Trace, path: str | os.PathLike[str], *, force: bool = False) -> None:
    """Writes a trace in the format that the file's name asks for.

    Args:
        trace: The trace.
        path: The file: .json or .json.gz for Chrome JSON, .pftrace or .perfetto-trace for Perfetto's format.
        force: Whether a file that exists is replaced.

    Raises:
        ValueError: The name has another suffix.
        OutputError: The file cannot be written.
    """
    file = Path(path)
    if file.name.endswith(CHROME_SUFFIXES):
        write_chrome(trace, file, force=force)
    elif file.name.endswith(PERFETTO_SUFFIXES):
        write_perfetto(trace, file, force=force)
    else:
        wanted = ", ".join((*CHROME_SUFFIXES, *PERFETTO_SUFFIXES))
        raise ValueError(f"{file}: expected a name that ends in one of {wanted}, got {file.name!r}; choose one of them")


__all__ = [
    "CHROME_SUFFIXES",
    "PERFETTO_SUFFIXES",
    "OutputError",
    "check_output",
    "open_output",
    "write_chrome",
    "write_perfetto",
    "write_text",
    "write_trace",
]

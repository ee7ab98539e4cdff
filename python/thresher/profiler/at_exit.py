"""What the environment asks of the profiler when the process starts and ends: a report, a trace."""

from __future__ import annotations

import atexit
import os
import sys
import warnings
from pathlib import Path

VARIABLE = "THRESHER_PROFILE_OUTPUT"
TRACE_VARIABLE = "THRESHER_PROFILE_TRACE"
PORT_VARIABLE = "THRESHER_PROFILE_PORT"
_owner: list[int] = []  # the process that was asked


def install() -> None:
    """Starts the trace and arranges for what is written at exit; nothing without the variables, or the second time."""
    if _owner:
        return
    _owner.append(os.getpid())
    if os.environ.get(VARIABLE):
        atexit.register(_write_at_exit)
    if port := os.environ.get(PORT_VARIABLE):
        _serve(port)
    if target := os.environ.get(TRACE_VARIABLE):
        from thresher.profiler import control

        try:
            control.start(trace=_path(target))
        except (OSError, ValueError) as error:
            warnings.warn(f"{TRACE_VARIABLE}={target}: no trace is kept: {error}", stacklevel=2)
            return
        atexit.register(control.stop)


def _serve(port: str) -> None:
    from thresher.profiler.server import serve

    try:
        serve(int(port))
    except (OSError, ValueError) as error:
        warnings.warn(f"{PORT_VARIABLE}={port}: the profiler cannot be reached over HTTP: {error}", stacklevel=3)


def _path(target: str) -> Path:
    # Processes that share one environment need one file each.
    return Path(target.replace("{pid}", str(os.getpid()))).expanduser()


def _write_at_exit() -> None:
    target = os.environ.get(VARIABLE)
    # A forked child that ends as its parent does must not write over the parent's report.
    if not target or (os.getpid() not in _owner and "{pid}" not in target):
        return
    from thresher.profiler import control
    from thresher.profiler.export import write_text

    path = _path(target)
    try:
        report = control.collect()
        if report.records == 0 and not report.enabled:
            return
        write_text(path, control.render(report, "json"), force=True)
    except Exception as error:  # the script has ended well; its exit code must stay
        print(f"thresher: {VARIABLE}={target}: the operator report was not written: {error}", file=sys.stderr)

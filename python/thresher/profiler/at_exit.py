"""Writes the operator report when the process ends, if THRESHER_PROFILE_OUTPUT asks for it."""

from __future__ import annotations

import atexit
import os
import sys
from pathlib import Path

VARIABLE = "THRESHER_PROFILE_OUTPUT"
_state = {"installed": False}


def install() -> None:
    """Arranges for the report to be written at exit; does nothing without the variable, or the second time."""
    if os.environ.get(VARIABLE) and not _state["installed"]:
        _state["installed"] = True
        atexit.register(_write_at_exit)


def write_report(path: Path, text: str) -> None:
    """Writes a file so that readers see the old content or the new, never a part.

    Args:
        path: The file; missing folders are made.
        text: Its new content.

    Raises:
        OSError: The file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _write_at_exit() -> None:
    target = os.environ.get(VARIABLE)
    if not target:
        return
    from thresher.profiler import control

    # Processes that share one environment need one file each.
    path = Path(target.replace("{pid}", str(os.getpid()))).expanduser()
    try:
        report = control.collect()
        if report.records == 0 and not report.enabled:
            return
        write_report(path, control.render(report, "json"))
    except Exception as error:  # the script has ended well; its exit code must stay
        print(f"thresher: {VARIABLE}={target}: the operator report was not written: {error}", file=sys.stderr)

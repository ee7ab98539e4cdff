"""Resident memory of this process, as Linux counts it."""

from __future__ import annotations

import gc
import re
from pathlib import Path

from thresher import _engine

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


def resident_bytes(*, peak: bool = False) -> int | None:
    """Memory of this process that is in RAM, or the most that was since `forget_peak`; None where nobody counts it."""
    try:
        found = re.search(rf"^Vm{'HWM' if peak else 'RSS'}:\s+(\d+) kB", _STATUS.read_text(), flags=re.MULTILINE)
    except OSError:
        return None
    return None if found is None else int(found[1]) * 1024


def forget_peak() -> str | None:
    """Gives unused memory back to the system and lets the peak start from what is resident now.

    Returns:
      Why that is impossible, None where it was done.
    """
    gc.collect()
    _engine.release_free_memory()
    try:
        _CLEAR.write_text("5")
    except OSError as error:
        return (
            f"expected to write {_CLEAR}, got: {error.strerror or error}; the peak of the whole process says nothing "
            "about a part of it"
        )
    return None

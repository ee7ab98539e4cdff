"""What a trace tells about the process and machine it comes from."""

from __future__ import annotations

import platform
import sys
from pathlib import Path
from typing import Any

from thresher.machine.roofs import known_peaks
from thresher.profiler.energy import EnergyMeter


def versions() -> dict[str, str]:
    """Versions of Python and, if it is imported, of PyTorch."""
    torch = sys.modules.get("torch")
    return {"python": platform.python_version(), **({} if torch is None else {"torch": str(torch.__version__)})}


def context() -> dict[str, Any]:
    """Entries known when a trace starts: versions, the script's name, and the machine's peaks if they were measured."""
    entries: dict[str, Any] = {**versions(), "system": platform.system()}
    if sys.argv and sys.argv[0] not in ("", "-c", "-m"):
        entries["script"] = Path(sys.argv[0]).name
    if (peaks := known_peaks()) is not None:
        entries["peaks"] = peaks.to_dict()
    return entries


_energy = EnergyMeter()


def begin() -> None:
    """Starts what is measured while a trace runs."""
    _energy.start()


def end() -> dict[str, Any]:
    """Entries known when a trace ends: the energy used meanwhile, or why it is not known."""
    return {"energy": _energy.stop()}

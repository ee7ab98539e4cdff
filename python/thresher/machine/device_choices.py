"""Which kernels a device was seen to be fastest with, kept between processes."""

from __future__ import annotations

import atexit
import os
from typing import Any

KIND = "device_choices"


def begin(device: Any) -> None:
    """Gives a device what earlier processes measured, and keeps at the end of this one what is new."""
    known = _load(device)
    if known:
        device.learn(known)
    atexit.register(_keep, device, os.getpid())


def _key(device: Any) -> dict[str, Any]:
    names = ("kind", "name", "compute_capability", "multiprocessors", "driver_version")
    return {name: device.info[name] for name in names}


def _load(device: Any) -> str:
    from thresher import cache

    stored = cache.load(KIND, _key(device))
    lines = stored.get("choices") if stored is not None else None
    return lines if isinstance(lines, str) else ""


def _keep(device: Any, process: int) -> None:
    if os.getpid() != process:
        return  # a child asks nothing of its parent's device
    found, kept = device.choices(), _load(device)
    # Other processes may have added theirs meanwhile.
    merged = {line.split("\t", 1)[0]: line for text in (kept, found) for line in text.splitlines()}
    text = "".join(f"{line}\n" for _, line in sorted(merged.items()))
    if text != kept:
        from thresher import cache

        cache.store(KIND, _key(device), {"choices": text})

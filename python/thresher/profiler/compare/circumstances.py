"""What must be equal for times to be compared: the machine and the versions."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

# Name on the command line: where it stands in a report, and what a person calls it.
CIRCUMSTANCES = {
    "cpu": ("machine", "cpu", "processor"),
    "isa": ("machine", "isa", "instruction set"),
    "threads": ("machine", "num_threads", "number of threads"),
    "thresher": ("versions", "thresher", "version of Thresher"),
    "torch": ("versions", "torch", "version of PyTorch"),
    "python": ("versions", "python", "version of Python"),
}


def differences(a: dict[str, Any], b: dict[str, Any], *, accept: Collection[str] = ()) -> list[str]:
    """What differs between the circumstances of two runs, a sentence each; nothing if they can be compared.

    What only one of them knows counts as different, unless the other is an operator report, which knows no versions
    but Thresher's.

    Args:
        a: Report of one run.
        b: Report of the other.
        accept: Names of `CIRCUMSTANCES` that may differ.
    """
    found = []
    op_reports = "op report" in (a["source"].get("kind"), b["source"].get("kind"))
    for name, (part, key, label) in CIRCUMSTANCES.items():
        first, second = a.get(part, {}).get(key), b.get(part, {}).get(key)
        if first == second or name in accept or (op_reports and name in ("torch", "python")):
            continue
        found.append(f"{label}: {_shown(first)} and {_shown(second)}")
    return found


def _shown(value: object) -> str:
    return "unknown" if value is None else str(value)

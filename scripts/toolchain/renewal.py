"""Writes all pins anew and prints what changes, old -> new: Conan's lock, the Python locks, the pins of the images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from containers import image_pins

from . import lock, python_resolution
from .lock import Change
from .process import ToolchainError, note, write_json

# What is renewed, and where it stands.
PARTS = {
    "conan": "conan/conan.lock",
    "python": "requirements/locks",
    "images": "docker/pins.toml",
}


def run_update(parts: Sequence[str], json_file: Path | None, *, keep: bool = False) -> None:
    """Renews some of the parts, or all; one that cannot be renewed does not keep the others from it.

    Args:
        parts: names of PARTS; empty: all.
        json_file: where to write the changes as JSON too.
        keep: leave Python packages in their locked versions as far as they fit the requirement files.

    Raises:
        ToolchainError: names what stays as it was, and why.
    """
    steps: dict[str, Callable[[], list[Change]]] = {
        "conan": lock.update,
        "python": lambda: python_resolution.update(keep=keep),
        "images": image_pins.update,
    }
    results: dict[str, dict[str, object]] = {}
    failures: dict[str, list[str]] = {}
    for part in parts or PARTS:
        changes, reasons = [], []
        try:
            changes = steps[part]()
        except ToolchainError as error:
            reasons = [str(error)]
        results[part] = {
            "file": PARTS[part],
            "changes": [{**asdict(change), "kind": change.kind} for change in changes],
            "not_renewed": reasons,
        }
        if reasons:
            failures[part] = reasons
        if changes:
            print(f"{PARTS[part]} (old -> new):\n{lock.table(changes)}", flush=True)
        elif not reasons:
            print(f"{PARTS[part]}: nothing changed", flush=True)
    write_json(json_file, results)
    if failures:
        reasons = [f"  {PARTS[part]}: {reason}" for part, lines in failures.items() for reason in lines]
        others = " ".join(part for part in PARTS if part not in failures)
        cure = f"`--update {others}` leaves it out." if others else "Nothing was renewed."
        raise ToolchainError("\n".join(["Not renewed:", *reasons, cure]))
    note("`nox -s deps -- --verify` checks the rest; `git diff` shows the files")

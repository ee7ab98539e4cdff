"""Why a result was found in the cache, or was not."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thresher.cache import location
from thresher.cache.entry import ASIDE_SUFFIX, Entry, State, full_key, name_of
from thresher.cache.files import entries

# More differences than these are counted, not told.
_MOST_DIFFERENCES = 3


@dataclass(frozen=True)
class Explanation:
    """Whether a result is in the cache, and why not.

    Attributes:
        hit: Whether it is.
        path: The file that holds it, or would; None without a folder.
        reason: One sentence.
    """

    hit: bool
    path: Path | None
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"hit": self.hit, "path": None if self.path is None else str(self.path), "reason": self.reason}


def explain(kind: str, key: Any, *, about: Collection[str] = ()) -> Explanation:
    """Says why `load` finds a result, or does not. Changes nothing.

    Args:
        kind: What sort of result.
        key: What else the result depends on; anything JSON can hold.
        about: Parts of a key that say what it is about: results that differ in these explain nothing.
    """
    base = location.folder()
    full = full_key(kind, key)
    if base is None:
        return Explanation(False, None, "there is no folder for it: no home folder is known; set THRESHER_CACHE_DIR")
    path = base / kind / name_of(full)
    if not location.enabled():
        return Explanation(False, path, "the cache is off: THRESHER_CACHE=0, or inside cache.disabled()")
    found = {entry.path: entry for entry in entries(kind)}
    if path in found:
        entry = found[path]
        if entry.state is State.GOOD:
            return Explanation(True, path, f"it was stored at {entry.stored_at}")
        return Explanation(False, path, f"its file is damaged: {entry.problem}")
    aside = path.with_name(path.name + ASIDE_SUFFIX)
    if aside in found:
        return Explanation(False, path, f"its file was damaged and put aside as {aside.name}: {found[aside].problem}")
    return Explanation(False, path, _nearest(full, list(found.values()), about))


def _nearest(full: dict[str, Any], others: list[Entry], about: Collection[str]) -> str:
    """What the entry that is most like the wanted one has otherwise."""
    wanted = {"key": full["key"], **full["machine"], "engine_version": full["engine_version"]}
    least: list[str] = []
    for entry in others:
        if entry.key is None:
            continue
        own = {"key": entry.key["key"], **entry.key["machine"], "engine_version": entry.engine_version}
        differences = list(_differences("", wanted, own))
        if not any(name.removeprefix("key.") in about for name, _, _ in differences):
            told = [f"{name.removeprefix('key.')} was {there!r} and is {here!r}" for name, here, there in differences]
            least = min(least or told, told, key=len)
    if least and len(least) <= _MOST_DIFFERENCES:
        return f"it is kept for something else: {', '.join(least)}"
    if least:
        return f"it is kept for something else, with {len(least)} differences"
    return f"it was never stored here, or removed; {len(others)} of its kind are kept"


def _differences(name: str, wanted: Any, found: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(wanted, dict) and isinstance(found, dict):
        for part in sorted({*wanted, *found}):
            yield from _differences(f"{name}.{part}" if name else part, wanted.get(part), found.get(part))
    elif wanted != found:
        yield name, wanted, found

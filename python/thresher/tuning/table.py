"""The tuned choices that the plans of this process use."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from thresher import json_text
from thresher.fork_lock import ForkLock
from thresher.tuning.product import Choice, TunedProduct

KIND = "tuning"
FORMAT = "thresher-tuning-1"
SPEC = "THRESHER_TUNING_SPEC"


@dataclass
class _Table:
    """What the engine was given.

    Attributes:
        source: Where `loaded` comes from: a file, or a folder of the cache.
        asked: Instruction sets and numbers of threads whose entries were looked for there.
        loaded: What was found there, as the engine takes it.
        measured: What this process measured itself.
    """

    source: object = None
    asked: set[tuple[str, int]] = field(default_factory=set)
    loaded: list[dict[str, Any]] = field(default_factory=list)
    measured: list[dict[str, Any]] = field(default_factory=list)

    def install(self) -> None:
        from thresher import _engine

        _engine.set_tuned([*self.loaded, *self.measured])


_lock = ForkLock()
_table = _Table()


def apply(num_threads: int | None = None) -> None:
    """Makes the kept choices known to the engine. Plans do this before they are built; more calls cost microseconds.

    Args:
        num_threads: Those of the plan; None for those of the engine's pool.

    Raises:
        ValueError: THRESHER_TUNING_SPEC names a file that cannot be used.
    """
    from thresher import _engine, cache

    spec = os.environ.get(SPEC)
    source: object = ("spec", spec) if spec is not None else ("cache", cache.enabled() and cache.folder())
    wanted = (_engine.isa(), num_threads or _engine.num_threads())
    with _lock:
        if _table.source == source and wanted in _table.asked:
            return
        found = [] if not spec and spec is not None else _read_spec(spec) if spec else _kept(wanted[1])
        kept = [] if _table.source != source or spec else list(_table.loaded)
        _table.loaded = [*kept, *found]
        try:
            _table.install()
        except ValueError as error:
            _table.loaded = kept
            if spec:
                raise _wrong_spec(spec, str(error)) from error
            _table.install()  # entries of the cache that another build of this version wrote
        if _table.source != source:
            _table.asked.clear()
        _table.source = source
        _table.asked.add(wanted)


def use(products: Iterable[TunedProduct]) -> None:
    """Adds what was measured in this process: the plans that are built from now on use it."""
    with _lock:
        _table.measured += [_entry(product) for product in products]
        _table.install()


def forget() -> None:
    """Drops every choice from this process; the next plan looks for kept ones again. Files stay as they are."""
    global _table
    with _lock:
        _table = _Table()
        _table.install()


def load(num_threads: int) -> dict[object, TunedProduct]:
    """What is kept for this machine, instruction set and number of threads, by product."""
    from thresher import cache

    stored = cache.load(KIND, {"num_threads": num_threads})
    try:
        products = [TunedProduct.from_dict(entry) for entry in stored["products"]] if stored is not None else []
    except (ValueError, KeyError, TypeError):
        return {}  # from a build of the same version that measured other things
    return {entry.product: entry for entry in products}


def store(products: Iterable[TunedProduct]) -> bool:
    """Keeps verdicts beside those kept before. Returns whether that was possible."""
    from thresher import cache

    new = list(products)
    done = [
        cache.store(KIND, {"num_threads": count}, {"products": _merged(count, new)})
        for count in sorted({entry.product.num_threads for entry in new})
    ]
    return bool(done) and all(done)


def _merged(num_threads: int, new: list[TunedProduct]) -> list[dict[str, Any]]:
    merged = load(num_threads)
    merged.update({entry.product: entry for entry in new if entry.product.num_threads == num_threads})
    return [entry.to_dict() for entry in merged.values()]


def _kept(num_threads: int) -> list[dict[str, Any]]:
    return [_entry(product) for product in load(num_threads).values()]


def _entry(tuned: TunedProduct) -> dict[str, Any]:
    return {**vars(tuned.product), "isa": tuned.isa, "choice": vars(tuned.choice)}


def _read_spec(path: str) -> list[dict[str, Any]]:
    try:
        data = json_text.parse(Path(path).expanduser().read_text(encoding="utf-8"))
    except OSError as error:
        raise _wrong_spec(path, error.strerror or str(error)) from error
    except ValueError as error:
        raise _wrong_spec(path, f"no JSON ({error})") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT or not isinstance(data.get("products"), list):
        raise _wrong_spec(path, f'no "format": "{FORMAT}" with a list of "products"')
    entries = []
    for entry in data["products"]:
        if not isinstance(entry, dict) or not isinstance(entry.get("choice"), dict):
            raise _wrong_spec(path, f"a product without a choice: {entry!r:.80}")
        entries.append({**entry, "choice": {**vars(Choice()), **entry["choice"]}})
    return entries


def _wrong_spec(path: str, found: str) -> ValueError:
    return ValueError(
        f"{SPEC}={path}: expected a file that `thresher tune -o FILE` wrote, got {found}. "
        "Name another file, set the variable to nothing to use no tuned choices, or unset it for the kept ones."
    )

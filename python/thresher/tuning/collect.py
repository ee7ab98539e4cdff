"""Collects the products of the plans that are built."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from thresher.tuning.product import Product

if TYPE_CHECKING:
    from thresher import _engine

_active: list[Counter[Product]] = []


@contextmanager
def collected() -> Iterator[Counter[Product]]:
    """Gives the products of all plans built within this block, in any thread, and how often each occurs in a plan."""
    found: Counter[Product] = Counter()
    _active.append(found)
    try:
        yield found
    finally:
        _active[:] = [entry for entry in _active if entry is not found]


def active() -> bool:
    """Whether any block collects."""
    return bool(_active)


def note(plan: _engine.Plan) -> None:
    """Called with every plan that is built."""
    if not _active:
        return
    names = ("precision", "m", "n", "k", "num_threads")
    products = Counter(Product(*(entry[name] for name in names)) for entry in plan.products())
    for found in _active:
        found |= products

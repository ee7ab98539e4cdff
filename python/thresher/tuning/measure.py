"""Measures products of matrices."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timezone
from typing import TypeAlias

from thresher.tuning import table
from thresher.tuning.product import Product, TunedProduct
from thresher.tuning.report import TuningReport

Progress: TypeAlias = Callable[[float, int], object]


def tune_products(
    products: Iterable[Product], *, refresh: bool = False, progress: Progress | None = None
) -> TuningReport:
    """Measures products of matrices as `thresher.tune` does those of a model.

    Args:
        products: What to measure.
        refresh: Measures again what was measured before.
        progress: Called with how many products are done, in fractions, and how many there are.

    Raises:
        ValueError: A size or a precision that cannot be measured.
        MemoryError: There is no memory for the measurement.
    """
    from thresher import _engine, startup

    startup.initialize()
    begin = time.monotonic()
    wanted = list(dict.fromkeys(products))
    known = {}
    if not refresh:
        for count in sorted({product.num_threads for product in wanted}):
            known.update(table.load(count))
    isa = _engine.isa()
    verdicts: list[TunedProduct] = []
    stored = False
    try:
        for index, product in enumerate(wanted):

            def show(done: float, index: int = index) -> None:
                if progress is not None:
                    progress(index + done, len(wanted))

            if product in known:
                verdicts.append(replace(known[product], from_cache=True))
            else:
                verdicts.append(_measure(product, isa, show))
            show(1)
    finally:
        # Whoever ends this early keeps what is done.
        new = [verdict for verdict in verdicts if not verdict.from_cache]
        if new:
            stored = table.store(new)
        table.use(verdicts)
    return TuningReport(
        products=tuple(verdicts),
        cpu_model=_engine.cpu_model(),
        engine_version=_engine.version(),
        seconds=round(time.monotonic() - begin, 3),
        stored=stored,
    )


def _measure(product: Product, isa: str, progress: Callable[[float], object]) -> TunedProduct:
    from thresher import _engine

    measured_at = datetime.now(timezone.utc).isoformat(timespec="seconds")
    raw = _engine.tune_product(
        product.precision, product.m, product.n, product.k, num_threads=product.num_threads, progress=progress
    )
    return TunedProduct.from_dict({**raw, **vars(product), "isa": isa, "measured_at": measured_at, "from_cache": False})

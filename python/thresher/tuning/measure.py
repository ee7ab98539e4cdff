"""Measures the products of a model."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, TypeAlias

from thresher.tuning import table
from thresher.tuning.collect import collected
from thresher.tuning.product import Product, TunedProduct
from thresher.tuning.report import TuningReport

if TYPE_CHECKING:
    import torch

    from thresher.compiler import CompilerConfig
    from thresher.compiler.precision import Precision

Progress: TypeAlias = Callable[[float, int], object]


def tune(
    model: torch.nn.Module,
    *inputs: Any,
    kwargs: Mapping[str, Any] | None = None,
    precision: Precision | None = None,
    config: CompilerConfig | None = None,
    num_threads: int | None = None,
    refresh: bool = False,
    progress: Progress | None = None,
) -> TuningReport:
    """Measures which blocking of the model's matrix products is fastest on this machine, and keeps the result.

    The model is compiled and run once with these inputs, then each of its products is measured for about a second, best
    while nothing else runs. Plans that are built afterwards, in this process and in others, use what was found: for the
    same number of rows, or up to twice as many or half as many. Results differ by rounding only. Plans that exist stay
    as they are; `thresher.clear_cache()` has them built again.

    Args:
        model: The model; one that was compiled before is tuned as it was before that.
        inputs: What to call it with. Their shapes are what is tuned.
        kwargs: The same, by name.
        precision: How layers with weights compute; None takes that of `config`, whose default is "model".
        config: Further settings of the compilation.
        num_threads: How many threads share a product; None for as many as plans use now.
        refresh: Measures again what was measured before.
        progress: Called with how many products are done, in fractions, and how many there are.

    Raises:
        ThresherError: The model has no product that the engine runs, or a setting cannot work.
        MemoryError: There is no memory for the measurement.
    """
    import torch

    from thresher.compiler import CompilerConfig, ThresherError
    from thresher.compiler import compile as compile_model

    settings = (config or CompilerConfig()).replace(use_tuning=False)
    original = getattr(model, "_orig_mod", model)  # where torch.compile keeps it
    with collected() as found, torch.no_grad():
        compile_model(original, config=settings, precision=precision)(*inputs, **(kwargs or {}))
    if not found:
        raise ThresherError(
            "tune: wanted a model with linear layers that the engine runs, found no such product; "
            "see thresher.compilation_stats().unsupported for what runs in PyTorch"
        )
    wanted = found if num_threads is None else [replace(product, num_threads=num_threads) for product in found]
    return tune_products(wanted, refresh=refresh, progress=progress)


def tune_products(
    products: Iterable[Product], *, refresh: bool = False, progress: Progress | None = None
) -> TuningReport:
    """Measures products of matrices as `tune` does those of a model.

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

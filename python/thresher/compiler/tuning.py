"""thresher.tune."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from thresher.compiler.api import compile
from thresher.compiler.config import CompilerConfig
from thresher.compiler.errors import ThresherError
from thresher.compiler.precision import Precision
from thresher.tuning import Progress, TuningReport, tune_products
from thresher.tuning.collect import collected


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
    settings = (config or CompilerConfig()).replace(use_tuning=False)
    original = getattr(model, "_orig_mod", model)  # where torch.compile keeps it
    with collected() as found, torch.no_grad():
        compile(original, config=settings, precision=precision)(*inputs, **(kwargs or {}))
    if not found:
        raise ThresherError(
            "tune: expected a model with linear layers that the engine runs, got no such product; "
            "see thresher.compilation_stats().unsupported for what runs in PyTorch"
        )
    wanted = found if num_threads is None else [replace(product, num_threads=num_threads) for product in found]
    return tune_products(wanted, refresh=refresh, progress=progress)

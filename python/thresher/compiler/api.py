"""thresher.compile."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, overload

import torch

from thresher.compiler.backend import MODEL_CHECKED, thresher_backend
from thresher.compiler.compiled import CompiledModule
from thresher.compiler.config import CompilerConfig, with_mode
from thresher.compiler.errors import ConfigError
from thresher.compiler.precision import Precision, warn_unmatched

_P = ParamSpec("_P")
_R = TypeVar("_R")

if TYPE_CHECKING:
    from typing_extensions import TypedDict, Unpack

    class _Options(TypedDict, total=False):
        """What `compile` takes besides the model, for its overloads."""

        target: Literal["cpu", "cuda"] | None
        optimization_level: Literal["O0", "O1", "O2", "O3"] | None
        precision: Precision | None
        precision_exclude: tuple[str, ...] | None
        max_weight_error: float | None
        threads: int | None
        config: CompilerConfig | None
        dynamic: bool | None
        fullgraph: bool
        mode: str | None


@overload
def compile(model: torch.nn.Module, **options: Unpack[_Options]) -> CompiledModule: ...


@overload
def compile(model: Callable[_P, _R], **options: Unpack[_Options]) -> Callable[_P, _R]: ...


@overload
def compile(model: None = None, **options: Unpack[_Options]) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]: ...


def compile(
    model: Any = None,
    *,
    target: Literal["cpu", "cuda"] | None = None,
    optimization_level: Literal["O0", "O1", "O2", "O3"] | None = None,
    precision: Precision | None = None,
    precision_exclude: tuple[str, ...] | None = None,
    max_weight_error: float | None = None,
    threads: int | None = None,
    config: CompilerConfig | None = None,
    dynamic: bool | None = None,
    fullgraph: bool = False,
    mode: str | None = None,
) -> Any:
    """Compiles a model for the Thresher engine.

    Args:
      model: the model; its parameters are shared with the result, not copied. Or a function of tensors, or a method
        of a model such as ``model.encode``, whose calls TorchDynamo's guards watch. None: the result is a decorator.
      target: where to run: "cpu"; "cuda", an NVIDIA GPU, with the package thresher-cuda; None takes that of `config`,
        whose default is the device where the model's tensors are. With "cuda" a model whose tensors are the host's
        runs on the first GPU, to which its inputs and from which its results are copied.
      optimization_level: "O0" to "O3"; None takes that of `config`, whose default is "O2".
      precision: how weights are stored and multiplied; None takes that of `config`, whose default is "model": as the
        model stores them, a model in bfloat16 or float16 in 16 bits. Sums and what lies between operators are fp32
        in any case. What an application notices depends on the model, so measure it; orders of magnitude:
        "fp32" agrees with PyTorch to about 1e-5;
        "bf16" rounds weights and inputs of layers to 8 bits of precision, each by at most 0.4 %;
        "fp16" to 11 bits, each by at most 0.05 %, in a smaller range;
        "int8" rounds weights to 255 steps for each output and inputs to 255 steps for each row (of convolutions, for
        each picture of the batch): errors of up to half a step, 0.4 % of the largest element of that output or row;
        "int8_weight" rounds only the weights so, "int4_weight" to 15 steps for each group of weights.
        ``compilation_stats().precision_decisions`` has the measured error of every layer's weights.
      precision_exclude: patterns on module paths, as named_modules() has them; what they match stays as the
        model has it, with all below it: ("encoder.layer.0", "*.pooler"). A pattern that matches no module is a warning.
      max_weight_error: a layer whose weights would change by more than this (relative, Frobenius norm) stays as
        the model has it; None for 0.04, and 0.12 with "int4_weight"; 0 for no limit.
      threads: how many threads share one operator's work, 1 to 1024; None takes that of `config`, whose default is
        ``thresher.get_num_threads()`` at each call.
      config: further settings; the arguments above go before it.
      dynamic: None makes all sizes dynamic once one changes, True from the start, False none.
      fullgraph: raises an error where the model cannot be captured as one graph, as ``torch.compile`` does; by default
        it is captured in parts, with Python between them.
      mode: None, "default" or "reduce-overhead", which are one here: a plan runs without Python and without allocation
        between two operators. "max-autotune" and "max-autotune-no-cudagraphs" are taken for "default" with a warning:
        ``thresher.tune`` is what measures.

    Returns:
      A module called like `model`; of a function a function. Compilation happens at its first call, and again where
      what that call read of the model's objects has changed. ``recapture()`` of a module says that something else did,
      such as a global variable.

    Raises:
      ConfigError: an unknown name, or a setting that cannot work.
      UnavailableError: a target or precision that this build lacks.
    """
    if config is None:
        config = CompilerConfig()
    elif not isinstance(config, CompilerConfig):
        raise ConfigError(f"config: expected a thresher.CompilerConfig or None, got {type(config).__name__}")
    if not isinstance(fullgraph, bool):
        raise ConfigError(f"fullgraph: expected True or False, got {fullgraph!r}; pass a bool")
    given = {
        "target": target,
        "optimization_level": optimization_level,
        "precision": precision,
        "precision_exclude": precision_exclude,
        "max_weight_error": max_weight_error,
        "threads": threads,
    }
    config = with_mode(config, mode)
    config = config.replace(**{name: value for name, value in given.items() if value is not None})
    if model is None:
        return functools.partial(compile, config=config, dynamic=dynamic, fullgraph=fullgraph)
    if isinstance(model, torch.nn.Module):
        warn_unmatched(config.precision_exclude, (path for path, _ in model.named_modules()))
        options: dict[str, Any] = {"config": config, MODEL_CHECKED: True}
        road = torch.compile(model, backend=thresher_backend, options=options, dynamic=dynamic, fullgraph=fullgraph)
        assert isinstance(road, torch.nn.Module)
        return CompiledModule(model, road.dynamo_ctx, config, dynamic)
    if not callable(model) or isinstance(model, type):
        found = f"the class {model.__name__}" if isinstance(model, type) else f"a {type(model).__name__}"
        raise ConfigError(f"model: expected a torch.nn.Module or a function, got {found}; pass an object to call")
    settings: dict[str, Any] = {"config": config}
    return torch.compile(model, backend=thresher_backend, options=settings, dynamic=dynamic, fullgraph=fullgraph)

"""thresher.compile."""

from __future__ import annotations

from typing import Any, Literal

import torch

from thresher.compiler.backend import thresher_backend
from thresher.compiler.config import CompilerConfig
from thresher.compiler.errors import ConfigError, UnavailableError

TARGETS = ("cpu", "cuda")
PRECISIONS = ("fp32", "bf16", "fp16", "int8")
AVAILABLE_TARGETS = ("cpu",)
AVAILABLE_PRECISIONS = ("fp32",)


def compile(
    model: torch.nn.Module,
    *,
    target: Literal["cpu", "cuda"] = "cpu",
    optimization_level: Literal["O0", "O1", "O2", "O3"] | None = None,
    precision: Literal["fp32", "bf16", "fp16", "int8"] = "fp32",
    config: CompilerConfig | None = None,
    dynamic: bool | None = None,
) -> torch.nn.Module:
    """Compiles a model for the Thresher engine.

    Args:
      model: the model; its parameters are shared with the result, not copied.
      target: where to run; this build has "cpu".
      optimization_level: "O0" to "O3"; None takes that of `config`, whose default is "O2".
      precision: how to compute; this build has "fp32", which agrees with PyTorch to about 1e-5.
      config: further settings.
      dynamic: as in torch.compile: None makes a size dynamic when it first changes, True from the start.

    Returns:
      A module called like `model`. Compilation happens at its first call.

    Raises:
      ConfigError: an unknown name, or a setting that cannot work.
      UnavailableError: a target or precision that this build lacks.
    """
    if not isinstance(model, torch.nn.Module):
        raise ConfigError(f"model: wanted a torch.nn.Module, found {type(model).__name__}; wrap functions in a module")
    _check("target", target, TARGETS, AVAILABLE_TARGETS)
    _check("precision", precision, PRECISIONS, AVAILABLE_PRECISIONS)
    if config is None:
        config = CompilerConfig()
    elif not isinstance(config, CompilerConfig):
        raise ConfigError(f"config: wanted a thresher.CompilerConfig or None, found {type(config).__name__}")
    if optimization_level is not None:
        config = config.replace(optimization_level=optimization_level)
    options: dict[str, Any] = {"config": config}
    compiled = torch.compile(model, backend=thresher_backend, options=options, dynamic=dynamic)
    assert isinstance(compiled, torch.nn.Module)
    return compiled


def _check(name: str, value: object, known: tuple[str, ...], available: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(f"{name}: wanted one of {', '.join(known)}, found {value!r}")
    if value not in available:
        raise UnavailableError(f"{name}={value!r} is not available in this build; available: {', '.join(available)}")

"""fuse_ops: a function of tensors as one plan."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast, overload

import torch

from thresher.compiler.api import compile as thresher_compile
from thresher.compiler.config import CompilerConfig
from thresher.compiler.errors import ConfigError, ThresherError

_P = ParamSpec("_P")
_R = TypeVar("_R")


@overload
def fuse_ops(function: Callable[_P, _R], *, config: CompilerConfig | None = None) -> Callable[_P, _R]: ...


@overload
def fuse_ops(
    function: None = None, *, config: CompilerConfig | None = None
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]: ...


def fuse_ops(function: Any = None, *, config: CompilerConfig | None = None) -> Any:
    """Makes one plan of a function of tensors: no Python and no memory of its own between two operators.

    >>> import torch, thresher
    >>> @thresher.fuse_ops
    ... def gated(x, weight, gate):
    ...     return thresher.ops.linear(x, weight) * thresher.ops.silu(thresher.ops.linear(x, gate))
    >>> x, weight, gate = torch.randn(2, 8), torch.randn(4, 8), torch.randn(4, 8)
    >>> expected = (x @ weight.T) * torch.nn.functional.silu(x @ gate.T)
    >>> torch.allclose(gated(x, weight, gate), expected, atol=1e-5)
    True

    What ``thresher.compile`` would leave to PyTorch is an error here, which lists it. Operators of PyTorch may stand
    in the function as well as those of ``thresher.ops``. Inside of a model that is compiled it is part of that model's
    plan. Gradients go through it; those that the engine lacks are an error, too: ``thresher.ops`` has all of them.

    Args:
      function: a function of tensors, or a module; None makes a decorator with a configuration.
      config: how it is compiled; `fallback` is always "error".

    Returns:
      A function that is called alike. It is compiled at its first call.

    Raises:
      ConfigError: it cannot be called, or the configuration is none.
      UnsupportedOperatorError: at a call, where the engine lacks an operator.
      ThresherError: at a call, where the function cannot be captured whole.
    """
    if config is not None and not isinstance(config, CompilerConfig):
        raise ConfigError(f"config: expected a thresher.CompilerConfig or None, got {type(config).__name__}")
    if function is None:
        return functools.partial(fuse_ops, config=config)
    if not callable(function) or isinstance(function, type):
        raise ConfigError(f"fuse_ops: expected a function of tensors, got {function!r}; decorate a function")
    whole = (config or CompilerConfig()).replace(fallback="error")
    compiled = thresher_compile(cast("Callable[..., Any]", function), config=whole, fullgraph=True)
    name = getattr(function, "__name__", type(function).__name__)

    @functools.wraps(function)
    def fused(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # then it belongs to what is being compiled
            return function(*args, **kwargs)
        try:
            return compiled(*args, **kwargs)
        except torch._dynamo.exc.Unsupported as error:
            reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
            raise ThresherError(
                f"fuse_ops: expected {name} to be captured as one graph, got: {reason}; keep printing, conversions to "
                "numbers and conditions on values out of it, or use thresher.compile"
            ) from error

    return fused

"""What packages of operators need beside their library: rules, and operators that run by themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from thresher import packages
from thresher.compiler import builder
from thresher.ops import library


def rule(*targets: Any) -> Callable[[builder.Rule], builder.Rule]:
    """Says how operators of PyTorch become operators of the engine.

    >>> import torch, thresher
    >>> @thresher.ops.rule(torch.ops.aten.deg2rad.default)
    ... def _(b, a):
    ...     return b.binary("mul", a.self, torch.pi / 180)
    >>> turn = thresher.compile(torch.deg2rad, config=thresher.CompilerConfig(fallback="error"))
    >>> turn(torch.tensor([0.0, 180.0]))
    tensor([0.0000, 3.1416])

    The function gets a ``Builder``, and the operator's arguments by the names of its schema with defaults filled in:
    tensors as ``Value``, all else as it is. It returns a ``Value``, or a tuple of them for an operator with several
    results. What it raises as ``UnsupportedNode`` is the reason why PyTorch runs that call.

    Args:
      *targets: overloads of operators, such as ``torch.ops.aten.sinc.default``.

    Raises:
      ValueError: an operator has a rule already.
    """
    packages.installed()
    return builder.rule(*targets)


def run(operator: Any, *args: Any) -> Any:
    """Runs one operator of torch.library in the engine: what such an operator of a package does in eager PyTorch.

    >>> import torch, thresher
    >>> thresher.ops.run(torch.ops.aten.relu.default, torch.tensor([-1.0, 2.0]))
    tensor([0., 2.])

    The plan is kept for the next call with these shapes. ``torch.library.register_autograd`` adds a gradient.

    Args:
      operator: an overload with a rule, such as ``torch.ops.my_package.my_operator.default``.
      *args: all its arguments, in the order of its schema.

    Returns:
      Its result, or a tuple of them.

    Raises:
      ValueError: the engine cannot hold a tensor: it takes float32, bfloat16, float16, int64, int32 and bool on the
        host, with elements and at most 8 dimensions.
      UnsupportedOperatorError: there is no rule for the operator, or not for these arguments.
    """
    for i, arg in enumerate(args):
        if isinstance(arg, torch.Tensor) and not library.held(arg):
            raise ValueError(
                f"{operator}: expected tensors that the engine holds, got {str(arg.dtype).removeprefix('torch.')}"
                f"{list(arg.shape)} on {arg.device} as argument {i}; compute with PyTorch's own operators there"
            )
    results = library.run_alone(operator, args)
    return results[0] if len(results) == 1 else tuple(results)

"""The engine's operators as functions of tensors.

Each is an operator of ``torch.ops.thresher``, with a gradient: it runs in the engine when it is called, and models that
use it are captured whole by ``torch.compile``, where it becomes a node of the model's graph. Tensors of float32,
bfloat16 and float16 on the host run in the engine; PyTorch computes what it does not hold, such as float64.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

import thresher.ops.rules  # noqa: F401  # how models that use the operators are imported
from thresher.compiler.builder import Builder, Value
from thresher.compiler.errors import UnsupportedNode
from thresher.ops import library
from thresher.ops.extend import rule, run
from thresher.ops.fuse import fuse_ops
from thresher.ops.layout import optimize_layout
from thresher.signatures.operator import conv

__all__ = [
    "Builder",
    "UnsupportedNode",
    "Value",
    "attention",
    "conv",
    "fuse_ops",
    "gelu",
    "layer_norm",
    "linear",
    "matmul",
    "optimize_layout",
    "rms_norm",
    "rotary",
    "rule",
    "run",
    "silu",
    "softmax",
]


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The product of two matrices, or of batches of them.

    >>> import torch, thresher
    >>> a, b = torch.randn(2, 3, 4), torch.randn(4, 5)
    >>> torch.allclose(thresher.ops.matmul(a, b), a @ b, atol=1e-5)
    True

    Args:
      a: floats [..., m, k].
      b: floats [..., k, n]; what stands before the last two dimensions is broadcast.

    Returns:
      [..., m, n].

    Raises:
      ValueError: shapes, dtypes or devices that do not fit.
    """
    result: torch.Tensor = library.MATMUL(a, b)
    return result


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x @ weight.T + bias, as ``torch.nn.functional.linear``.

    >>> import torch, thresher
    >>> x, weight, bias = torch.randn(2, 4), torch.randn(3, 4), torch.randn(3)
    >>> torch.allclose(thresher.ops.linear(x, weight, bias), x @ weight.T + bias, atol=1e-5)
    True

    Called by itself it packs the weight at each call; inside of a compiled model parameters are packed once.

    Args:
      x: floats [..., k].
      weight: floats [n, k].
      bias: floats [n], or None.

    Returns:
      [..., n].

    Raises:
      ValueError: shapes, dtypes or devices that do not fit.
    """
    result: torch.Tensor = library.LINEAR(x, weight, bias)
    return result


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
) -> torch.Tensor:
    """softmax(scale * query @ key.T + mask) @ value, without storing the scores.

    >>> import torch, thresher
    >>> q, k, v = (torch.randn(1, 2, 5, 8) for _ in range(3))
    >>> expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    >>> torch.allclose(thresher.ops.attention(q, k, v, causal=True), expected, atol=1e-5)
    True

    Args:
      query: floats [b, h, q, d].
      key: floats [b, g, k, d]; h is a multiple of g, and heads of the query share those of the key in turn.
      value: floats [b, g, k, e].
      mask: what broadcasts to [b, h, q, k]: bool, True where a position is seen, or floats to add to the scores. A row
        that sees nothing gives 0.
      causal: query i sees the keys up to i alone.
      scale: of the scores; None for 1 / sqrt(d).

    Returns:
      [b, h, q, e].

    Raises:
      ValueError: shapes, dtypes or devices that do not fit, or a mask together with causal.
    """
    result: torch.Tensor = library.ATTENTION(query, key, value, mask, causal, scale)
    return result


def layer_norm(
    x: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> torch.Tensor:
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last dimensions.

    >>> import torch, thresher
    >>> x = torch.randn(2, 8)
    >>> torch.allclose(thresher.ops.layer_norm(x, (8,)), torch.nn.functional.layer_norm(x, (8,)), atol=1e-5)
    True

    Args:
      x: floats.
      normalized_shape: the sizes of the last dimensions of x, over which mean and variance go.
      weight: floats of that shape, or None.
      bias: the same.
      eps: added to the variance.

    Returns:
      The shape of x.

    Raises:
      ValueError: shapes, dtypes or devices that do not fit.
    """
    result: torch.Tensor = library.LAYER_NORM(x, normalized_shape, weight, bias, eps)
    return result


def rms_norm(
    x: torch.Tensor, normalized_shape: Sequence[int], weight: torch.Tensor | None = None, eps: float = 1e-6
) -> torch.Tensor:
    """x / sqrt(mean(x ** 2) + eps) * weight over the last dimensions.

    >>> import torch, thresher
    >>> x = torch.tensor([[3.0, 4.0]])
    >>> thresher.ops.rms_norm(x, (2,))
    tensor([[0.8485, 1.1314]])

    Args:
      x: floats.
      normalized_shape: the sizes of the last dimensions of x, over which the mean goes.
      weight: floats of that shape, or None.
      eps: added to the mean of the squares.

    Returns:
      The shape of x.

    Raises:
      ValueError: shapes, dtypes or devices that do not fit.
    """
    result: torch.Tensor = library.RMS_NORM(x, normalized_shape, weight, eps)
    return result


def softmax(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """exp(x) / sum(exp(x)) along a dimension.

    >>> import torch, thresher
    >>> thresher.ops.softmax(torch.tensor([0.0, 0.0]))
    tensor([0.5000, 0.5000])

    Args:
      x: floats.
      dim: the dimension.

    Returns:
      The shape of x.

    Raises:
      ValueError: there is no such dimension, or x is not of floats.
    """
    result: torch.Tensor = library.SOFTMAX(x, dim)
    return result


def gelu(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """x times the normal distribution function of x.

    >>> import torch, thresher
    >>> thresher.ops.gelu(torch.tensor([-1.0, 0.0, 1.0]))
    tensor([-0.1587,  0.0000,  0.8413])

    Args:
      x: floats.
      approximate: "none", through erf, or "tanh".

    Returns:
      The shape of x.

    Raises:
      ValueError: another approximation, or x is not of floats.
    """
    result: torch.Tensor = library.GELU(x, approximate)
    return result


def silu(x: torch.Tensor) -> torch.Tensor:
    """x * sigmoid(x).

    >>> import torch, thresher
    >>> thresher.ops.silu(torch.tensor([-1.0, 0.0, 1.0]))
    tensor([-0.2689,  0.0000,  0.7311])

    Args:
      x: floats.

    Returns:
      The shape of x.

    Raises:
      ValueError: x is not of floats.
    """
    result: torch.Tensor = library.SILU(x)
    return result


def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool = False) -> torch.Tensor:
    """Rotary positions: pairs (a, b) of each head's elements become (a cos - b sin, b cos + a sin).

    >>> import math, torch, thresher
    >>> x = torch.tensor([[[1.0, 0.0]], [[1.0, 0.0]]])  # two tokens, one head, one pair
    >>> angle = torch.tensor([[0.0], [math.pi / 2]])
    >>> thresher.ops.rotary(x, angle.cos(), angle.sin()).round().tolist()
    [[[1.0, 0.0]], [[-0.0, 1.0]]]

    Args:
      x: floats [tokens, heads, d] or [batch, tokens, heads, d].
      cos: floats [tokens, pairs], of the angles; at most d / 2 pairs. Elements behind the pairs stay.
      sin: the same.
      interleaved: a pair is elements 2i and 2i + 1; by default i and i + pairs.

    Returns:
      The shape of x.

    Raises:
      ValueError: shapes, dtypes or devices that do not fit.
    """
    result: torch.Tensor = library.ROTARY(x, cos, sin, interleaved)
    return result

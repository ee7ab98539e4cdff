"""The operators in PyTorch's own, for tensors that the engine does not hold: float64, other devices, no elements."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a @ b."""
    return torch.matmul(a, b)


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """x @ weight.T + bias."""
    return functional.linear(x, weight, bias)


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    causal: bool,
    scale: float | None,
) -> torch.Tensor:
    """softmax(scale * query @ key.T + mask) @ value."""
    shared = query.shape[1] != key.shape[1]
    return functional.scaled_dot_product_attention(
        query, key, value, mask, is_causal=causal, scale=scale, enable_gqa=shared
    )


def layer_norm(
    x: torch.Tensor, shape: Sequence[int], weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> torch.Tensor:
    """(x - mean) / sqrt(variance + eps) * weight + bias."""
    return functional.layer_norm(x, list(shape), weight, bias, eps)


def rms_norm(x: torch.Tensor, shape: Sequence[int], weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x ** 2) + eps) * weight."""
    return functional.rms_norm(x, list(shape), weight, eps)


def softmax(x: torch.Tensor, dim: int) -> torch.Tensor:
    """exp(x) / sum(exp(x))."""
    return torch.softmax(x, dim)


def gelu(x: torch.Tensor, approximate: str) -> torch.Tensor:
    """x times the normal distribution function of x."""
    return functional.gelu(x, approximate=approximate)


def silu(x: torch.Tensor) -> torch.Tensor:
    """x * sigmoid(x)."""
    return functional.silu(x)


def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """Pairs (a, b) become (a cos - b sin, b cos + a sin); elements behind the pairs stay."""
    pairs = cos.shape[1]
    cos, sin = cos[:, None], sin[:, None]
    turned, rest = x[..., : 2 * pairs], x[..., 2 * pairs :]
    a, b = (turned[..., 0::2], turned[..., 1::2]) if interleaved else (turned[..., :pairs], turned[..., pairs:])
    left, right = a * cos - b * sin, b * cos + a * sin
    both = torch.stack((left, right), -1).flatten(-2) if interleaved else torch.cat((left, right), -1)
    return torch.cat((both, rest), -1)

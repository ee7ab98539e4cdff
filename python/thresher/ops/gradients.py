"""What the operators' gradients are made of: operators of PyTorch that have gradients themselves."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

Grads = tuple[torch.Tensor | None, ...]


def needs(ctx: Any, index: int) -> bool:
    """Whether an argument's gradient is wanted; PyTorch leaves out arguments at the end that equal the default."""
    return index < len(ctx.needs_input_grad) and bool(ctx.needs_input_grad[index])


def wide(*tensors: torch.Tensor | None) -> list[Any]:
    """The tensors in float32 where they have 16 bits."""
    return [t.float() if t is not None and t.dtype in (torch.bfloat16, torch.float16) else t for t in tensors]


def matmul(ctx: Any, grad: torch.Tensor) -> Grads:
    """Of a @ b."""
    a, b = ctx.saved_tensors
    da = (grad @ b.mT).sum_to_size(a.shape) if needs(ctx, 0) else None
    db = (a.mT @ grad).sum_to_size(b.shape) if needs(ctx, 1) else None
    return da, db


def linear(ctx: Any, grad: torch.Tensor) -> Grads:
    """Of x @ weight.T + bias."""
    x, weight = ctx.saved_tensors
    rows, given = grad.reshape(-1, grad.shape[-1]), x.reshape(-1, x.shape[-1])
    dx = grad @ weight if needs(ctx, 0) else None
    dw = rows.mT @ given if needs(ctx, 1) else None
    db = rows.sum(0) if needs(ctx, 2) else None
    return dx, dw, db


def attention(ctx: Any, grad: torch.Tensor) -> Grads:
    """Of softmax(scale * q @ k.T + mask) @ v."""
    query, key, value, mask = ctx.saved_tensors
    dtype = query.dtype
    g, q, k, v = wide(grad, query, key, value)
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scale = 1 / math.sqrt(q.shape[-1]) if ctx.scale is None else ctx.scale
    scores = scale * (q @ k.mT)
    if ctx.causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask.to(scores.dtype)
    # A row that is masked whole gives 0, and so do its gradients.
    empty = scores.amax(-1, keepdim=True) == -math.inf
    p = torch.softmax(scores.masked_fill(empty, 0.0), -1).masked_fill(empty, 0.0)
    dp = g @ v.mT
    ds = p * (dp - (dp * p).sum(-1, keepdim=True))
    dq, dk, dv = scale * (ds @ k), scale * (ds.mT @ q), p.mT @ g
    if groups > 1:
        dk, dv = (t.unflatten(1, (-1, groups)).sum(2) for t in (dk, dv))
    dmask = None
    if needs(ctx, 3):
        assert mask is not None
        dmask = ds.sum_to_size(mask.shape).to(mask.dtype)
    return dq.to(dtype), dk.to(dtype), dv.to(dtype), dmask, None, None


def layer_norm(ctx: Any, grad: torch.Tensor) -> Grads:
    """Of (x - mean) / sqrt(variance + eps) * weight + bias."""
    x, weight = ctx.saved_tensors
    dtype, axes = x.dtype, tuple(range(-len(ctx.shape), 0))
    g, x, w = wide(grad, x, weight)
    centred = x - x.mean(axes, keepdim=True)
    scale = torch.rsqrt((centred * centred).mean(axes, keepdim=True) + ctx.eps)
    normal = centred * scale
    inner = g if w is None else g * w
    dx = scale * (inner - inner.mean(axes, keepdim=True) - normal * (inner * normal).mean(axes, keepdim=True))
    dw = _over_rows(g * normal, ctx.shape, dtype) if needs(ctx, 2) else None
    db = _over_rows(g, ctx.shape, dtype) if needs(ctx, 3) else None
    return dx.to(dtype), None, dw, db, None


def rms_norm(ctx: Any, grad: torch.Tensor) -> Grads:
    """Of x / sqrt(mean(x ** 2) + eps) * weight."""
    x, weight = ctx.saved_tensors
    dtype, axes = x.dtype, tuple(range(-len(ctx.shape), 0))
    g, x, w = wide(grad, x, weight)
    scale = torch.rsqrt((x * x).mean(axes, keepdim=True) + ctx.eps)
    normal = x * scale
    inner = g if w is None else g * w
    dx = scale * (inner - normal * (inner * normal).mean(axes, keepdim=True))
    dw = _over_rows(g * normal, ctx.shape, dtype) if needs(ctx, 2) else None
    return dx.to(dtype), None, dw, None


def softmax(ctx: Any, grad: torch.Tensor) -> Grads:
    """Of exp(x) / sum(exp(x)), from the result."""
    (y,) = ctx.saved_tensors
    g, wider = wide(grad, y)
    return (wider * (g - (g * wider).sum(ctx.dim, keepdim=True))).to(y.dtype), None


def gelu(ctx: Any, grad: torch.Tensor) -> Grads:
    """Of x times the normal distribution function of x."""
    (x,) = ctx.saved_tensors
    return torch.ops.aten.gelu_backward(grad, x, approximate=ctx.approximate), None


def silu(ctx: Any, grad: torch.Tensor) -> Grads:
    """Of x * sigmoid(x)."""
    (x,) = ctx.saved_tensors
    g, wider = wide(grad, x)
    s = torch.sigmoid(wider)
    return ((g * s * (1 + wider * (1 - s))).to(x.dtype),)


def rotary(turn: Callable[..., torch.Tensor]) -> Callable[[Any, torch.Tensor], Grads]:
    """Of turned pairs, where `turn` turns them: turned back, x has its gradient."""

    def backward(ctx: Any, grad: torch.Tensor) -> Grads:
        x, cos, sin = ctx.saved_tensors
        dx = turn(grad, cos, -sin, ctx.interleaved) if needs(ctx, 0) else None
        dcos = dsin = None
        if needs(ctx, 1) or needs(ctx, 2):
            (xa, xb), (ga, gb) = (_pairs(t, cos.shape[1], ctx.interleaved) for t in wide(x, grad))
            dcos = _over_heads(ga * xa + gb * xb, cos)
            dsin = _over_heads(gb * xa - ga * xb, sin)
        return dx, dcos, dsin, None

    return backward


def _pairs(x: torch.Tensor, pairs: int, interleaved: bool) -> tuple[torch.Tensor, torch.Tensor]:
    turned = x[..., : 2 * pairs]
    return (turned[..., 0::2], turned[..., 1::2]) if interleaved else (turned[..., :pairs], turned[..., pairs:])


def _over_rows(grad: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return grad.sum_to_size(shape).to(dtype)


def _over_heads(grad: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """[..., tokens, heads, pairs] to [tokens, pairs]."""
    summed = grad.sum(-2)
    return (summed.sum(0) if summed.dim() == 3 else summed).to(angles.dtype)

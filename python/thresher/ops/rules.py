"""Importer rules of the operators: in a compiled model they are nodes of its graph like all others."""

from __future__ import annotations

import math
from types import SimpleNamespace

from thresher.compiler.builder import Builder, Value, dim, rule
from thresher.ops import library


@rule(library.MATMUL)
def _(b: Builder, a: SimpleNamespace) -> Value:
    if a.b.rank == 2 and a.b.transposed is None:
        return b.emit("linear", [a.a, a.b], layout="kn")
    if a.b.rank == 2:
        return b.emit("linear", [a.a, a.b.transposed], layout="nk")
    return b.emit("matmul", [a.a, a.b])


@rule(library.LINEAR)
def _(b: Builder, a: SimpleNamespace) -> Value:
    rows = b.reshape(a.x, (1, -1)) if a.x.rank == 1 else a.x
    made = b.emit("linear", [rows, a.weight, a.bias], layout="nk")
    return b.reshape(made, made.shape[1:]) if a.x.rank == 1 else made


@rule(library.ATTENTION)
def _(b: Builder, a: SimpleNamespace) -> Value:
    scale = 1.0 / math.sqrt(a.query.shape[-1]) if a.scale is None else a.scale
    return b.emit("sdpa", [a.query, a.key, a.value, a.mask], scale=float(scale), causal=bool(a.causal))


@rule(library.LAYER_NORM)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return b.emit("layer_norm", [a.x, a.weight, a.bias], eps=float(a.eps), dims=len(a.normalized_shape))


@rule(library.RMS_NORM)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return b.emit("rms_norm", [a.x, a.weight], eps=float(a.eps), dims=len(a.normalized_shape))


@rule(library.SOFTMAX)
def _(b: Builder, a: SimpleNamespace) -> Value:
    if a.x.rank == 0:
        return b.reshape(b.emit("softmax", [b.reshape(a.x, (1,))], dim=0), ())
    return b.emit("softmax", [a.x], dim=dim(a.dim, a.x.rank))


@rule(library.GELU)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return b.unary("gelu" if a.approximate == "none" else "gelu_tanh", a.x)


@rule(library.SILU)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return b.unary("silu", a.x)


@rule(library.ROTARY)
def _(b: Builder, a: SimpleNamespace) -> Value:
    x, cos, sin = a.x, a.cos, a.sin
    if x.rank == 3:
        return b.emit("rotary", [x, cos, sin], interleaved=bool(a.interleaved))
    batch, tokens, heads, size = x.shape
    pairs = cos.shape[1]
    cos, sin = (b.reshape(b.expand(t, (batch, tokens, pairs)), (batch * tokens, pairs)) for t in (cos, sin))
    rows = b.reshape(x, (batch * tokens, heads, size))
    return b.reshape(b.emit("rotary", [rows, cos, sin], interleaved=bool(a.interleaved)), x.shape)

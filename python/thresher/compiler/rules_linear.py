"""Importer rules: matrix products, attention, normalisation and softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch

from thresher.compiler.attention import ATTENTION
from thresher.compiler.builder import Builder, Value, dim, rule
from thresher.compiler.errors import UnsupportedNode

aten: Any = torch.ops.aten


def _matmul(b: Builder, x: Value, y: Value) -> Value:
    """x @ y for x of rank 2 or more; a matrix y takes the linear operator, whose weights are packed ahead."""
    for value in (x, y):
        if not value.dtype.is_floating_point:
            raise UnsupportedNode(
                f"matrix product of {str(value.dtype).removeprefix('torch.')}, only floats are supported"
            )
    if y.rank == 2:
        if y.transposed is not None:
            return b.emit("linear", [x, y.transposed], layout="nk")
        return b.emit("linear", [x, y], layout="kn")
    return b.emit("matmul", [x, y])


def _scaled(b: Builder, x: Value, factor: float) -> Value:
    return x if factor == 1 else b.binary("mul", x, factor)


@rule(aten.mm.default, aten.bmm.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return _matmul(b, a.self, a.mat2)


@rule(aten.mv.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return b.reshape(_matmul(b, a.self, b.reshape(a.vec, (-1, 1))), (-1,))


@rule(aten.dot.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return b.reduce("sum", b.binary("mul", a.self, a.tensor), None, False)


@rule(aten.addmm.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    x, y, bias = a.mat1, a.mat2, a.self
    if a.alpha == 1 and a.beta == 1 and bias.dtype == x.dtype and bias.shape == (y.shape[1],):
        if y.transposed is not None:
            return b.emit("linear", [x, y.transposed, bias], layout="nk")
        return b.emit("linear", [x, y, bias], layout="kn")
    out = _scaled(b, _matmul(b, x, y), a.alpha)
    # PyTorch ignores the addend altogether when beta is 0, NaN included.
    return out if a.beta == 0 else b.binary("add", out, _scaled(b, bias, a.beta))


@rule(aten.baddbmm.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    out = _scaled(b, _matmul(b, a.batch1, a.batch2), a.alpha)
    return out if a.beta == 0 else b.binary("add", out, _scaled(b, a.self, a.beta))


@rule(aten._scaled_dot_product_flash_attention_for_cpu.default)
def _(b: Builder, a: SimpleNamespace) -> tuple[Value, None]:
    if b.out_used(1):
        raise UnsupportedNode("the log-sum-exp output, which only training needs, is not offered")
    if a.dropout_p:
        raise UnsupportedNode(f"dropout with probability {a.dropout_p}")
    return _attend(b, a), None


# What PyTorch chooses for CUDA tensors where AOTAutograd traces a model; results behind the first are training's.
@rule(
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
)
def _(b: Builder, a: SimpleNamespace) -> tuple[Value | None, ...]:
    if any(b.out_used(i) for i in range(1, 9)):
        raise UnsupportedNode("results of attention that only training needs are not offered")
    if a.dropout_p:
        raise UnsupportedNode(f"dropout with probability {a.dropout_p}")
    a.attn_mask = getattr(a, "attn_bias", None)
    return (_attend(b, a), *(None,) * 8)


def _attend(b: Builder, a: SimpleNamespace) -> Value:
    query, key, value, mask = a.query, a.key, a.value, a.attn_mask
    if a.is_causal and mask is not None:
        raise UnsupportedNode("a mask together with is_causal")
    if not query.rank == key.rank == value.rank == 4:
        raise UnsupportedNode(f"query, key and value of ranks {query.rank}, {key.rank} and {value.rank}")
    if mask is not None and mask.dtype != torch.bool and not mask.dtype.is_floating_point:
        raise UnsupportedNode(f"a mask of {str(mask.dtype).removeprefix('torch.')}, expected a float or bool")
    scale = 1.0 / math.sqrt(query.shape[-1]) if a.scale is None else a.scale
    return b.emit("sdpa", [query, key, value, mask], scale=float(scale), causal=bool(a.is_causal))


@rule(ATTENTION)
def _(b: Builder, a: SimpleNamespace) -> Value:
    if a.dropout_p:
        raise UnsupportedNode(f"dropout with probability {a.dropout_p}")
    return _attend(b, a)


@rule(aten.native_layer_norm.default)
def _(b: Builder, a: SimpleNamespace) -> tuple[Value, Value | None, Value | None]:
    out = b.emit("layer_norm", [a.input, a.weight, a.bias], eps=float(a.eps), dims=len(a.normalized_shape))
    if not (b.out_used(1) or b.out_used(2)):
        return out, None, None
    axes = range(a.input.rank - len(a.normalized_shape), a.input.rank)
    mean = b.reduce("mean", a.input, axes, True)
    centred = b.binary("sub", a.input, mean)
    variance = b.reduce("mean", b.binary("mul", centred, centred), axes, True)
    return out, mean, b.unary("rsqrt", b.binary("add", variance, a.eps))


@rule(aten._fused_rms_norm.default)
def _(b: Builder, a: SimpleNamespace) -> tuple[Value, Value | None]:
    """What CUDA tensors have; those of the host become its parts while PyTorch traces."""
    if a.eps is None and a.input.dtype != torch.float32:
        raise UnsupportedNode("no eps, in place of which PyTorch takes one of the type's")
    eps = torch.finfo(torch.float32).eps if a.eps is None else float(a.eps)
    rank = len(a.normalized_shape)
    out = b.emit("rms_norm", [a.input, a.weight], eps=eps, dims=rank)
    if not b.out_used(1):
        return out, None
    square = b.binary("mul", a.input, a.input)
    mean = b.reduce("mean", square, range(a.input.rank - rank, a.input.rank), True)
    return out, b.unary("rsqrt", b.binary("add", mean, eps))


@rule(aten._native_batch_norm_legit_no_training.default)
def _(b: Builder, a: SimpleNamespace) -> tuple[Value, None, None]:
    return _batch_norm(b, a)


@rule(aten.native_batch_norm.default)
def _(b: Builder, a: SimpleNamespace) -> tuple[Value, Value | None, Value | None]:
    if not a.training:
        return _batch_norm(b, a)
    if a.running_mean is not None or a.running_var is not None:
        raise UnsupportedNode("statistics of the batch that change running ones, as in training, are not offered")
    return _norm_of_the_batch(b, a)


@rule(aten._native_batch_norm_legit.no_stats)
def _(b: Builder, a: SimpleNamespace) -> tuple[Value, Value | None, Value | None]:
    return _norm_of_the_batch(b, a)


def _norm_of_the_batch(b: Builder, a: SimpleNamespace) -> tuple[Value, Value | None, Value | None]:
    """Statistics of the batch itself: instance norms, whose pictures and channels are one dimension, and weights."""
    x: Value = a.input
    order = [1, 0, *range(2, x.rank)]
    turned = x if x.shape[0] == 1 else b.permute(x, order)
    rows = b.reshape(turned, (x.shape[1], x.numel // max(x.shape[1], 1)))
    normal = b.reshape(b.emit("layer_norm", [rows, None, None], eps=float(a.eps), dims=1), turned.shape)
    normal = normal if turned is x else b.permute(normal, order)
    return _per_channel(b, normal, a.weight, a.bias), *_statistics(b, rows, a.eps, (x.shape[1],))


def _batch_norm(b: Builder, a: SimpleNamespace) -> tuple[Value, None, None]:
    """One product and one sum a channel; their factors are constants where the statistics are."""
    x = a.input
    factor = b.unary("rsqrt", b.binary("add", a.running_var, float(a.eps)))
    if a.weight is not None:
        factor = b.binary("mul", factor, a.weight)
    offset = b.unary("neg", b.binary("mul", a.running_mean, factor))
    if a.bias is not None:
        offset = b.binary("add", offset, a.bias)
    return b.cast(_per_channel(b, x, factor, offset), b.out_dtype()), None, None


def _per_channel(b: Builder, x: Value, factor: Value | None, offset: Value | None) -> Value:
    """x * factor + offset along dimension 1."""
    shape = (x.shape[1], *(1 for _ in x.shape[2:]))
    if factor is not None:
        x = b.binary("mul", x, b.reshape(factor, shape))
    return x if offset is None else b.binary("add", x, b.reshape(offset, shape))


@rule(aten.native_group_norm.default)
def _(b: Builder, a: SimpleNamespace) -> tuple[Value, Value | None, Value | None]:
    # A group is a row of a layer_norm; weight and bias belong to channels, of which a row has several.
    x = a.input
    rows = b.reshape(x, (a.N, a.group, a.C // a.group * a.HxW))
    normal = b.reshape(b.emit("layer_norm", [rows, None, None], eps=float(a.eps), dims=1), x.shape)
    return _per_channel(b, normal, a.weight, a.bias), *_statistics(b, rows, a.eps, (a.N, a.group))


def _statistics(b: Builder, rows: Value, eps: float, shape: Sequence[int]) -> tuple[Value | None, Value | None]:
    """Mean and reciprocal deviation of each row, where the node's second or third result is used."""
    if not (b.out_used(1) or b.out_used(2)):
        return None, None
    mean = b.reduce("mean", rows, [rows.rank - 1], True)
    centred = b.binary("sub", rows, mean)
    variance = b.reduce("mean", b.binary("mul", centred, centred), [rows.rank - 1], False)
    return b.reshape(mean, shape), b.reshape(b.unary("rsqrt", b.binary("add", variance, float(eps))), shape)


@rule(aten._weight_norm_interface.default)
def _(b: Builder, a: SimpleNamespace) -> tuple[Value, Value]:
    axes = [axis for axis in range(a.v.rank) if axis != dim(a.dim, a.v.rank)]
    norm = b.unary("sqrt", b.reduce("sum", b.binary("mul", a.v, a.v), axes, True))
    return b.binary("mul", a.v, b.binary("div", a.g, norm)), norm


@rule(aten._grouped_mm.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    if a.offs is None or a.self.rank != 2 or a.mat2.rank != 3:
        raise UnsupportedNode(
            f"ranks {a.self.rank} and {a.mat2.rank}, expected rows with ends, and a batch of matrices"
        )
    if a.bias is not None:
        raise UnsupportedNode("a bias")
    return _grouped(b, a.self, a.mat2, a.offs)


@rule("transformers.grouped_mm_fallback.default")
def _(b: Builder, a: SimpleNamespace) -> Value:
    return _grouped(b, a.input, a.weight, a.offs)


def _grouped(b: Builder, x: Value, weights: Value, ends: Value) -> Value:
    """Runs of rows up to each end times the matrices; each matrix is a weight of its own, packed ahead."""
    stored, layout = (weights, "kn") if weights.transposed is None else (weights.transposed, "nk")
    matrices = [b.emit("select", [stored], dim=0, index=i) for i in range(stored.shape[0])]
    return b.emit("grouped_linear", [x, ends, *matrices], layout=layout)


@rule(aten._softmax.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return _softmax(b, "softmax", a.self, a.dim)


@rule(aten._log_softmax.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return _softmax(b, "log_softmax", a.self, a.dim)


@rule(aten._safe_softmax.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    # Rows of nothing but -inf give 0 here, where plain softmax gives NaN.
    top = b.reduce("amax", a.self, [a.dim], True)
    empty = b.binary("eq", top, -math.inf)
    return b.where(empty, 0.0, _softmax(b, "softmax", a.self, a.dim))


def _softmax(b: Builder, op: str, x: Value, axis: int) -> Value:
    x = b.cast(x, b.out_dtype())
    if x.rank == 0:
        return b.reshape(b.emit(op, [b.reshape(x, (1,))], dim=0), ())
    return b.emit(op, [x], dim=dim(axis, x.rank))

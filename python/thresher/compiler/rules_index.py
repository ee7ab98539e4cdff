"""Importer rules: look-ups, reductions and tensors made from nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from thresher.compiler.builder import Builder, Scalar, Value, dim, engine_dtype, rule, stored
from thresher.compiler.errors import UnsupportedNode

aten: Any = torch.ops.aten

# ---- look-ups ----


@rule(aten.embedding.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return b.emit("embedding", [a.weight, a.indices])


@rule(aten.gather.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return b.emit("gather", [a.self, a.index], dim=dim(a.dim, a.self.rank))


@rule(aten.index_select.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    x, axis = a.self, dim(a.dim, a.self.rank)
    if not x.dtype.is_floating_point or x.rank == 0 or a.index.rank != 1:
        raise UnsupportedNode("only tensors of a float type with a 1-D index are supported")
    return b.index_rows(x, axis, a.index)


@rule(aten.index.Tensor, aten._unsafe_index.Tensor)
def _(b: Builder, a: SimpleNamespace) -> Value:
    x: Value = a.self
    given = [(axis, index) for axis, index in enumerate(a.indices) if index is not None]
    for _, index in given:
        if index.dtype not in (torch.int64, torch.int32):
            raise UnsupportedNode(f"an index of {str(index.dtype).removeprefix('torch.')}, expected int64 or int32")
    axes = [axis for axis, _ in given]
    if not axes:
        return x
    rest = [axis for axis in range(x.rank) if axis not in axes]
    found = b.emit("index", [b.permute(x, axes + rest), *(b.cast(index, torch.int64) for _, index in given)])
    # Indices that stand side by side put the looked-up dimensions in their place, else in front.
    before = axes[0]
    if axes != list(range(before, before + len(axes))) or before == 0:
        return found
    looked_up = found.rank - len(rest)
    order = [*range(looked_up, looked_up + before), *range(looked_up), *range(looked_up + before, found.rank)]
    return b.permute(found, order)


@rule(aten.index_put.default, aten._unsafe_index_put.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    x: Value = a.self
    given = [(axis, index) for axis, index in enumerate(a.indices) if index is not None]
    if len(given) == 1 and given[0][1].dtype == torch.bool and not a.accumulate and a.values.numel == 1:
        return _fill_where(b, x, *given[0], b.reshape(a.values, ()))
    for _, index in given:
        if index.dtype not in (torch.int64, torch.int32):
            raise UnsupportedNode(f"an index of {str(index.dtype).removeprefix('torch.')}, expected int64 or int32")
    axes = [axis for axis, _ in given]
    if axes != list(range(len(axes))) or not axes:
        raise UnsupportedNode("indices of other than the first dimensions")
    indices = [b.cast(index, torch.int64) for _, index in given]
    return b.emit("index_put", [x, b.cast(a.values, x.dtype), *indices], accumulate=bool(a.accumulate))


def _fill_where(b: Builder, x: Value, axis: int, mask: Value, number: Value) -> Value:
    """x with one number where a mask over some of its dimensions, the first of them being `axis`, holds."""
    shape = (*mask.shape, *(1 for _ in x.shape[axis + mask.rank :]))
    return b.where(b.reshape(mask, shape), number, x, x.dtype)


# ---- order ----


@rule(aten.sort.default, aten.sort.stable)
def _(b: Builder, a: SimpleNamespace) -> tuple[Value, ...]:
    return b.emit_all("sort", [a.self], dim=dim(a.dim, a.self.rank), descending=bool(a.descending))


@rule(aten.topk.default)
def _(b: Builder, a: SimpleNamespace) -> tuple[Value, ...]:
    axis = dim(a.dim, a.self.rank)
    return b.emit_all("sort", [a.self], dim=axis, descending=bool(a.largest), k=int(a.k))


@rule(aten.argmax.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return _arg_extreme(b, "argmax", a.self, a.dim, a.keepdim)


@rule(aten.argmin.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return _arg_extreme(b, "argmin", a.self, a.dim, a.keepdim)


def _arg_extreme(b: Builder, op: str, x: Value, axis: int | None, keepdim: bool) -> Value:
    if axis is None:
        found = b.emit(op, [b.reshape(x, (-1,))], dim=0)
        return b.reshape(found, [1] * x.rank) if keepdim else found
    axis = dim(axis, x.rank)
    found = b.emit(op, [x], dim=axis)
    return b.reshape(found, (*x.shape[:axis], 1, *x.shape[axis + 1 :])) if keepdim and x.rank else found


# Comparisons of a histogram: elements times bins.
_MOST_COMPARED = 1 << 20


@rule(aten.histc.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    x, bins = a.self, int(a.bins)
    if x.dtype != torch.float32 or not a.min < a.max or not math.isfinite(a.max - a.min):
        raise UnsupportedNode("a histogram of other than float32 between two given numbers")
    if x.numel * bins > _MOST_COMPARED:
        raise UnsupportedNode(f"a histogram of {x.numel} elements in {bins} bins")
    with unset_fake_temporarily():
        edges = torch.linspace(float(a.min), float(a.max), bins + 1)
        ends = edges[1:].clone()
        ends[-1] = torch.nextafter(ends[-1], torch.tensor(math.inf))  # the last bin has its upper end, too
        begin, end = b.constant("begin", edges[:-1], weight=False), b.constant("end", ends, weight=False)
    column = b.reshape(x, (-1, 1))
    inside = b.binary("logical_and", b.binary("ge", column, begin), b.binary("lt", column, end))
    return b.reduce("sum", b.cast(inside, torch.float32), [0], False)


# ---- reductions ----


@rule(aten.mean.default, aten.mean.dim)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return b.reduce("mean", b.cast(a.self, b.out_dtype()), getattr(a, "dim", None), getattr(a, "keepdim", False))


@rule(aten.sum.default, aten.sum.dim_IntList)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return b.reduce("sum", b.cast(a.self, b.out_dtype()), getattr(a, "dim", None), getattr(a, "keepdim", False))


@rule(aten.cumsum.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    x = b.cast(a.self, b.out_dtype())
    return b.emit("cumsum", [x], dim=dim(a.dim, x.rank)) if x.rank else x


@rule(aten.amax.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return b.reduce("amax", a.self, a.dim, a.keepdim)


@rule(aten.amin.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return b.reduce("amin", a.self, a.dim, a.keepdim)


@rule(aten.max.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return b.reduce("amax", a.self, None, False)


@rule(aten.min.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return b.reduce("amin", a.self, None, False)


def _extreme(op: str) -> Callable[[Builder, SimpleNamespace], tuple[Value, Value | None]]:
    def reduce(b: Builder, a: SimpleNamespace) -> tuple[Value, Value | None]:
        places = _arg_extreme(b, f"arg{op[1:]}", a.self, a.dim, a.keepdim) if b.out_used(1) else None
        return b.reduce(op, a.self, [a.dim], a.keepdim), places

    return reduce


rule(aten.max.dim)(_extreme("amax"))
rule(aten.min.dim)(_extreme("amin"))


@rule(aten.any.default, aten.any.dim, aten.any.dims)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return _any(b, b.cast(a.self, torch.bool), a)


@rule(aten.all.default, aten.all.dim, aten.all.dims)
def _(b: Builder, a: SimpleNamespace) -> Value:
    missing = b.unary("logical_not", b.cast(a.self, torch.bool))
    return b.unary("logical_not", _any(b, missing, a))


def _any(b: Builder, x: Value, a: SimpleNamespace) -> Value:
    axes = getattr(a, "dim", None)
    hits = b.cast(x, torch.int64)
    return b.cast(
        b.reduce("amax", hits, [axes] if isinstance(axes, int) else axes, getattr(a, "keepdim", False)), torch.bool
    )


@rule(aten.var.correction)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return _variance(b, a)[0]


@rule(aten.std.correction)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return b.unary("sqrt", _variance(b, a)[0])


@rule(aten.var_mean.correction)
def _(b: Builder, a: SimpleNamespace) -> tuple[Value, Value]:
    return _variance(b, a)


def _variance(b: Builder, a: SimpleNamespace) -> tuple[Value, Value]:
    x = a.self
    if not x.dtype.is_floating_point:
        raise UnsupportedNode(f"variance of {str(x.dtype).removeprefix('torch.')}")
    axes = sorted({dim(d, x.rank) for d in a.dim or ()}) or list(range(x.rank))
    count = math.prod(x.shape[axis] for axis in axes)
    divisor = count - (1 if a.correction is None else a.correction)
    mean = b.reduce("mean", x, axes, True)
    centred = b.binary("sub", x, mean)
    total = b.reduce("sum", b.emit("mul", [centred, centred]), axes, a.keepdim)
    # PyTorch gives NaN (0 / 0) or inf where the divisor is not positive.
    variance = b.binary("div", total, float(max(divisor, 0)))
    return variance, b.reduce("mean", x, axes, a.keepdim)


@rule(aten.linalg_vector_norm.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return _norm(b, b.cast(a.self, b.out_dtype()), a.ord, a.dim, a.keepdim)


@rule(aten.norm.ScalarOpt_dim, aten.norm.Scalar)
def _(b: Builder, a: SimpleNamespace) -> Value:
    order = 2 if a.p is None else a.p
    return _norm(b, b.cast(a.self, b.out_dtype()), order, getattr(a, "dim", None), getattr(a, "keepdim", False))


def _norm(b: Builder, x: Value, order: float, axes: Sequence[int] | int | None, keepdim: bool) -> Value:
    dims = [axes] if isinstance(axes, int) else axes
    if order == 2:
        return b.unary("sqrt", b.reduce("sum", b.emit("mul", [x, x]), dims, keepdim))
    if order == 1:
        return b.reduce("sum", b.unary("abs", x), dims, keepdim)
    if order == math.inf:
        return b.reduce("amax", b.unary("abs", x), dims, keepdim)
    raise UnsupportedNode(f"a norm of order {order}, expected 1, 2 or inf")


# ---- tensors made from nothing ----


def _full(b: Builder, shape: Sequence[int], value: Scalar) -> Value:
    dtype = b.out_dtype()
    return b.full([int(size) for size in shape], stored(value, dtype), dtype)


@rule(aten.full.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return _full(b, a.size, a.fill_value)


@rule(aten.full_like.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return _full(b, a.self.shape, a.fill_value)


@rule(aten.new_full.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return _full(b, a.size, a.fill_value)


@rule(aten.fill.Scalar)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return _full(b, a.self.shape, a.value)


@rule(aten.fill.Tensor)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return b.expand(b.cast(a.value, a.self.dtype), a.self.shape)


@rule(aten.ones.default, aten.new_ones.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return _full(b, a.size, 1)


@rule(aten.zeros.default, aten.new_zeros.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return _full(b, a.size, 0)


@rule(aten.ones_like.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return _full(b, a.self.shape, 1)


@rule(aten.empty.memory_format, aten.new_empty.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return _full(b, a.size, 0)  # any numbers would do


@rule(aten.zeros_like.default, aten.empty_like.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return _full(b, a.self.shape, 0)


@rule(aten.scalar_tensor.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return _full(b, (), a.s)


@rule(aten.arange.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return _arange(b, 0, a.end, 1)


@rule(aten.arange.start)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return _arange(b, a.start, a.end, 1)


@rule(aten.arange.start_step)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return _arange(b, a.start, a.end, a.step)


def _arange(b: Builder, start: float, end: float, step: float) -> Value:
    dtype = b.out_dtype()
    return b.emit("arange", [], start=float(start), end=float(end), step=float(step), dtype=engine_dtype(dtype))


@rule(aten.eye.default, aten.eye.m)
def _(b: Builder, a: SimpleNamespace) -> Value:
    columns = getattr(a, "m", a.n)
    return b.cast(b.binary("eq", _rows(b, a.n), _columns(b, columns)), b.out_dtype())


@rule(aten.tril.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return _triangle(b, a.self, "ge", a.diagonal)


@rule(aten.triu.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return _triangle(b, a.self, "le", a.diagonal)


def _triangle(b: Builder, x: Value, keep: str, diagonal: int) -> Value:
    """Keeps where row + diagonal >= column (lower) or <= column (upper)."""
    rows = b.binary("add", _rows(b, x.shape[-2]), diagonal)
    return b.where(b.binary(keep, rows, _columns(b, x.shape[-1])), x, 0, x.dtype)


def _columns(b: Builder, size: int) -> Value:
    return b.emit("arange", [], start=0.0, end=float(size), step=1.0, dtype="i64")


def _rows(b: Builder, size: int) -> Value:
    return b.reshape(_columns(b, size), (size, 1))

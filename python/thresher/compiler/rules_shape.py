"""Importer rules: operators that only rearrange, cut or join tensors."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from thresher.compiler.builder import Builder, Value, dim, rule
from thresher.compiler.errors import UnsupportedNode

aten: Any = torch.ops.aten


@rule(
    aten.view.default,
    aten._unsafe_view.default,
    aten.view_copy.default,
)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return b.reshape(a.self, a.size)


@rule(aten.unsqueeze.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    axis = dim(a.dim, a.self.rank + 1)
    return b.reshape(a.self, (*a.self.shape[:axis], 1, *a.self.shape[axis:]))


@rule(aten.squeeze.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return b.reshape(a.self, [size for size in a.self.shape if size != 1])


@rule(aten.squeeze.dim, aten.squeeze.dims)
def _(b: Builder, a: SimpleNamespace) -> Value:
    x = a.self
    axes = {dim(d, x.rank) for d in (a.dim if isinstance(a.dim, (list, tuple)) else [a.dim])}
    return b.reshape(x, [size for i, size in enumerate(x.shape) if size != 1 or i not in axes])


@rule(aten.permute.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return b.permute(a.self, a.dims)


@rule(aten.transpose.int)
def _(b: Builder, a: SimpleNamespace) -> Value:
    x = a.self
    if x.rank == 0:
        return b.permute(x, [])
    order = list(range(x.rank))
    i, j = dim(a.dim0, x.rank), dim(a.dim1, x.rank)
    order[i], order[j] = order[j], order[i]
    return b.permute(x, order)


@rule(aten.t.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return b.permute(a.self, list(reversed(range(a.self.rank))))


@rule(aten.expand.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return b.expand(a.self, a.size)


@rule(aten.repeat.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    # [2, 3] repeated (4, 5): [1, 2, 1, 3] expanded to [4, 2, 5, 3], then joined to [8, 15].
    x, times = a.self, [int(t) for t in a.repeats]
    shape = (1,) * (len(times) - x.rank) + x.shape
    spread = [size for pair in zip([1] * len(times), shape, strict=True) for size in pair]
    wanted = [size for pair in zip(times, shape, strict=True) for size in pair]
    if len(wanted) > 8:
        raise UnsupportedNode(f"repeat over {len(times)} dimensions, at most 4 are supported")
    out = b.expand(b.reshape(x, spread), wanted)
    return b.reshape(out, [t * size for t, size in zip(times, shape, strict=True)])


@rule(aten.slice.Tensor)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return b.slice(a.self, a.dim, a.start, a.end, a.step)


@rule(aten.select.int)
def _(b: Builder, a: SimpleNamespace) -> Value:
    axis = dim(a.dim, a.self.rank)
    index = a.index + a.self.shape[axis] if a.index < 0 else a.index
    return b.emit("select", [a.self], dim=axis, index=index)


@rule(aten.split.Tensor)
def _(b: Builder, a: SimpleNamespace) -> tuple[Value, ...]:
    x, axis = a.self, dim(a.dim, a.self.rank)
    return tuple(b.slice(x, axis, start, start + a.split_size) for start in range(0, x.shape[axis], a.split_size))


@rule(aten.split_with_sizes.default)
def _(b: Builder, a: SimpleNamespace) -> tuple[Value, ...]:
    axis, start, parts = dim(a.dim, a.self.rank), 0, []
    for size in a.split_sizes:
        parts.append(b.slice(a.self, axis, start, start + size))
        start += size
    return tuple(parts)


@rule(aten.unbind.int)
def _(b: Builder, a: SimpleNamespace) -> tuple[Value, ...]:
    axis = dim(a.dim, a.self.rank)
    return tuple(b.emit("select", [a.self], dim=axis, index=i) for i in range(a.self.shape[axis]))


@rule(aten.cat.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    # Tensors without elements add nothing, and an empty 1-D one may be joined to anything.
    tensors = [t for t in a.tensors if t.numel] or [t for t in a.tensors if t.shape != (0,)] or a.tensors[:1]
    parts = [b.cast(t, b.out_dtype()) for t in tensors]
    return parts[0] if len(parts) == 1 else b.emit("cat", parts, dim=dim(a.dim, parts[0].rank))


@rule(aten.stack.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    axis = dim(a.dim, a.tensors[0].rank + 1)
    parts = [b.cast(t, b.out_dtype()) for t in a.tensors]
    parts = [b.reshape(t, (*t.shape[:axis], 1, *t.shape[axis:])) for t in parts]
    return parts[0] if len(parts) == 1 else b.emit("cat", parts, dim=axis)


def _cut(b: Builder, x: Value, padding: Sequence[int]) -> tuple[Value, list[tuple[int, int, int]]]:
    """x without what padding takes away, and of each dimension what it adds in front and behind, from the last one on.

    A negative number takes away.
    """
    pairs = [(x.rank - 1 - i // 2, int(padding[i]), int(padding[i + 1])) for i in range(0, len(padding), 2)]
    for axis, before, after in pairs:
        x = b.slice(x, axis, max(-before, 0), x.shape[axis] - max(-after, 0))
    return x, pairs


@rule(aten.constant_pad_nd.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    x, pairs = _cut(b, a.self, a.pad)
    for axis, before, after in pairs:
        front = [_full_like(b, x, axis, before, a.value)] if before > 0 else []
        back = [_full_like(b, x, axis, after, a.value)] if after > 0 else []
        if front or back:
            x = b.emit("cat", [*front, x, *back], dim=axis)
    if a.value != 0 or any(min(before, after) < 0 for _, before, after in pairs):
        return x
    around = {axis: (before, after) for axis, before, after in pairs}
    return dataclasses.replace(x, padded=(a.self, tuple(around.get(axis, (0, 0)) for axis in range(x.rank))))


def _full_like(b: Builder, x: Value, axis: int, size: int, value: float) -> Value:
    """A tensor of equal elements, of x's shape but for one dimension."""
    return b.full((*x.shape[:axis], size, *x.shape[axis + 1 :]), value, x.dtype)


@rule(aten.roll.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    x: Value = a.self
    if not a.dims:
        return b.reshape(_roll(b, b.reshape(x, (-1,)), 0, a.shifts[0]), x.shape)
    for axis, shift in zip(a.dims, a.shifts, strict=True):
        x = _roll(b, x, dim(axis, x.rank), shift)
    return x


def _roll(b: Builder, x: Value, axis: int, shift: int) -> Value:
    if x.rank == 0 or x.shape[axis] == 0 or shift % x.shape[axis] == 0:
        return x
    cut = x.shape[axis] - shift % x.shape[axis]
    return b.emit("cat", [b.slice(x, axis, cut, None), b.slice(x, axis, 0, cut)], dim=axis)


# Windows of up to so many elements are joined of slices.
_MOST_SLICES = 64
# Up to so many elements are turned round by slices; more are looked up, row by row.
_FEW = 8
# Short rows are looked up slowly, so that PyTorch turns as many of them faster.
_LEAST_ROW, _MOST_ROWS = 16, 1 << 16


def _reversed(b: Builder, x: Value, axis: int, last: int, count: int) -> Value:
    """Elements last, last - 1, ..., `count` of them, of one dimension."""
    if count <= _FEW:
        parts = [b.slice(x, axis, i, i + 1) for i in range(last, last - count, -1)]
        return parts[0] if len(parts) == 1 else b.emit("cat", parts, dim=axis)
    row = max(math.prod(x.shape[axis + 1 :]), 1)
    if not x.dtype.is_floating_point or (row < _LEAST_ROW and count * x.numel // x.shape[axis] // row > _MOST_ROWS):
        raise UnsupportedNode(f"{count} of {x.shape} {x.dtype} turned round along dimension {axis}")
    ends = {"start": float(last), "end": float(last - count), "step": -1.0}
    return b.index_rows(x, axis, b.emit("arange", [], **ends, dtype="i64"))


@rule(aten.flip.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    x: Value = a.self
    for axis in sorted({dim(d, x.rank) for d in a.dims}):
        if x.rank and x.shape[axis] > 1:
            x = _reversed(b, x, axis, x.shape[axis] - 1, x.shape[axis])
    return x


def _repeated(b: Builder, x: Value, axis: int, at: int, count: int) -> Value:
    """One element of one dimension, `count` times."""
    return b.expand(b.slice(x, axis, at, at + 1), (*x.shape[:axis], count, *x.shape[axis + 1 :]))


def _edges(b: Builder, a: SimpleNamespace, reflect: bool) -> Value:
    """Pads the last dimensions by what lies at, or, reflected, inside their ends."""
    x, pairs = _cut(b, a.self, a.padding)
    for axis, before, after in pairs:
        size = x.shape[axis]
        if reflect:
            front = [_reversed(b, x, axis, before, before)] if before > 0 else []
            back = [_reversed(b, x, axis, size - 2, after)] if after > 0 else []
        else:
            front = [_repeated(b, x, axis, 0, before)] if before > 0 else []
            back = [_repeated(b, x, axis, size - 1, after)] if after > 0 else []
        if front or back:
            x = b.emit("cat", [*front, x, *back], dim=axis)
    return x


for _reflection, _replication in (
    (aten.reflection_pad1d, aten.replication_pad1d),
    (aten.reflection_pad2d, aten.replication_pad2d),
    (aten.reflection_pad3d, aten.replication_pad3d),
):
    rule(_reflection.default)(functools.partial(_edges, reflect=True))
    rule(_replication.default)(functools.partial(_edges, reflect=False))


@rule(aten.unfold.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    x: Value = a.self
    axis, size, step = dim(a.dimension, x.rank), int(a.size), int(a.step)
    block = math.gcd(size, step)  # of which windows consist, and which they begin at
    if x.rank == 0 or size == 0 or size // block > _MOST_SLICES:
        raise UnsupportedNode(f"windows of {size} elements, {step} apart")
    order = [*(i for i in range(x.rank) if i != axis), axis]
    windows = (x.shape[axis] - size) // step + 1
    needed = b.slice(b.permute(x, order), x.rank - 1, 0, (windows - 1) * step + size)
    blocks = b.reshape(needed, (*needed.shape[:-1], needed.shape[-1] // block, block))
    ends = (windows - 1) * (step // block) + 1
    parts = [b.slice(blocks, x.rank - 1, i, i + ends, step // block) for i in range(size // block)]
    joined = parts[0] if len(parts) == 1 else b.emit("cat", parts, dim=x.rank)
    return b.permute(joined, [*(order.index(i) for i in range(x.rank)), x.rank])


@rule(aten.im2col.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    x: Value = a.self
    kernel, dilation, padding, stride = (list(map(int, n)) for n in (a.kernel_size, a.dilation, a.padding, a.stride))
    if math.prod(kernel) > _MOST_SLICES:
        raise UnsupportedNode(f"windows of {kernel}, expected at most {_MOST_SLICES} elements")
    batch = x if x.rank == 4 else b.reshape(x, (1, *x.shape))
    for axis in (2, 3):
        if padding[axis - 2]:
            zeros = [_full_like(b, batch, axis, padding[axis - 2], 0.0)]
            batch = b.emit("cat", [*zeros, batch, *zeros], dim=axis)
    counts = [(batch.shape[i + 2] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1 for i in range(2)]
    parts = []
    for at in itertools.product(*map(range, kernel)):
        part = batch
        for i in range(2):
            start = at[i] * dilation[i]
            part = b.slice(part, i + 2, start, start + (counts[i] - 1) * stride[i] + 1, stride[i])
        parts.append(b.reshape(part, (*part.shape[:2], 1, math.prod(counts))))
    joined = parts[0] if len(parts) == 1 else b.emit("cat", parts, dim=2)
    rows = (batch.shape[1] * math.prod(kernel), math.prod(counts))
    return b.reshape(joined, rows if x.rank == 3 else (batch.shape[0], *rows))


@rule(aten.channel_shuffle.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    x: Value = a.self
    grouped = b.reshape(x, (x.shape[0], a.groups, x.shape[1] // a.groups, *x.shape[2:]))
    return b.reshape(b.permute(grouped, (0, 2, 1, *range(3, grouped.rank))), x.shape)


def _row_major(size: list[int]) -> list[int]:
    """The strides of a row-major tensor."""
    return [math.prod(size[i + 1 :]) for i in range(len(size))]


# Elements of an as_strided that are looked up one by one.
_MOST_STRIDED = 1 << 16


@rule(aten.as_strided.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    # Strides speak of PyTorch's memory, which the traced tensor describes.
    x: Value = a.self
    size = [int(s) for s in a.size]
    assert b.node is not None
    source = b.node.args[0]
    val = source.meta.get("val") if isinstance(source, torch.fx.Node) else None
    if val is None:
        raise UnsupportedNode("strides of a tensor that was not traced")
    if any(not isinstance(number, int) for number in (*val.shape, *val.stride())):
        # A row-major tensor as itself, whatever is said of dimensions of size 1.
        told = all(s == t for n, s, t in zip(size, a.stride, _row_major(size), strict=True) if n != 1)
        if told and tuple(size) == x.shape and not a.storage_offset and val.is_contiguous():
            return x
        raise UnsupportedNode("strides of a tensor whose sizes are symbols")
    offset = val.storage_offset() if a.storage_offset is None else a.storage_offset
    strides = [int(stride) for stride in a.stride]
    same = all(s == t for n, s, t in zip(size, strides, val.stride(), strict=False) if n != 1)
    if tuple(size) == x.shape and same and offset == val.storage_offset():
        return x
    order = sorted(range(x.rank), key=lambda axis: -val.stride()[axis])
    dense = math.prod(x.shape) == 1 + sum((n - 1) * s for n, s in zip(x.shape, val.stride(), strict=True))
    first = offset - val.storage_offset()
    last = first + sum((n - 1) * stride for n, stride in zip(size, strides, strict=True))
    if not dense or math.prod(size) > _MOST_STRIDED or first < 0 or last >= x.numel:
        raise UnsupportedNode("strides that reach beyond the tensor, or over very many elements")
    with unset_fake_temporarily():
        places = torch.arange(x.numel).as_strided(size, strides, first).contiguous()
        index = b.constant("places", places, weight=False)
    return b.emit("index", [b.reshape(b.permute(x, order), (-1,)), index])


@rule(aten.slice_scatter.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    if a.step != 1:
        raise UnsupportedNode(f"step {a.step}, only 1 is supported")
    axis = dim(a.dim, a.self.rank)
    size = a.self.shape[axis]
    start, end, _ = slice(a.start, a.end).indices(size)
    return _replace(b, a.self, a.src, axis, start, max(start, end))


@rule(aten.select_scatter.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    axis = dim(a.dim, a.self.rank)
    index = a.index + a.self.shape[axis] if a.index < 0 else a.index
    shape = (*a.self.shape[:axis], 1, *a.self.shape[axis + 1 :])
    return _replace(b, a.self, b.reshape(a.src, shape), axis, index, index + 1)


def _replace(b: Builder, x: Value, part: Value, axis: int, start: int, end: int) -> Value:
    """x with elements start to end - 1 of one dimension taken from `part`."""
    if start == end:
        return x
    wanted = (*x.shape[:axis], end - start, *x.shape[axis + 1 :])
    pieces = [b.expand(b.cast(part, x.dtype), wanted)]
    if start > 0:
        pieces.insert(0, b.slice(x, axis, 0, start))
    if end < x.shape[axis]:
        pieces.append(b.slice(x, axis, end, None))
    return pieces[0] if len(pieces) == 1 else b.emit("cat", pieces, dim=axis)

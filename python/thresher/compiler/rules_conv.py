"""Importer rules: convolutions, their gradients, pooling and resizing.

The engine has channels last; permutes stand around what PyTorch has second.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch

from thresher.compiler.builder import Builder, Value, rule
from thresher.compiler.errors import UnsupportedNode

aten: Any = torch.ops.aten


def channels_last(b: Builder, x: Value) -> Value:
    """[N, C, spatial...] as [N, spatial..., C]."""
    return b.permute(x, (0, *range(2, x.rank), 1))


def channels_second(b: Builder, x: Value) -> Value:
    """[N, spatial..., C] as [N, C, spatial...]."""
    return b.permute(x, (0, x.rank - 1, *range(1, x.rank - 1)))


def per_dimension(values: Sequence[int], rank: int) -> list[int]:
    """One number for each spatial dimension; a single one stands for all."""
    return [int(v) for v in values] * (rank if len(values) == 1 else 1)


@rule(aten.convolution.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    x, weight = a.input, a.weight
    rank = weight.rank - 2
    if x.rank != weight.rank or not 1 <= rank <= 3:
        raise UnsupportedNode(f"ranks {x.rank} and {weight.rank}, expected one to three spatial dimensions")
    attrs = _settings(a)
    # Zeros around the spatial dimensions are the convolution's own.
    if x.padded and not a.transposed and x.padded[1][:2] == ((0, 0), (0, 0)):
        own = attrs["padding"]
        x, around = x.padded
        sides = zip(own * 2, [*(pair[0] for pair in around[2:]), *(pair[1] for pair in around[2:])], strict=True)
        attrs["padding"] = [zeros + more for zeros, more in sides]
    if a.transposed:
        attrs |= {"transposed": True, "output_padding": per_dimension(a.output_padding, rank)}
    return channels_second(b, b.emit("convolution", [channels_last(b, x), weight, a.bias], **attrs))


@rule(aten.convolution_backward.default)
def _(b: Builder, a: SimpleNamespace) -> tuple[Value | None, Value | None, Value | None]:
    gradient = channels_last(b, a.grad_output)
    of_input, of_weight, of_bias = a.output_mask
    return (
        _input_gradient(b, a, gradient) if of_input else None,
        _weight_gradient(b, a, gradient) if of_weight else None,
        b.reduce("sum", gradient, range(gradient.rank - 1), keepdim=False) if of_bias else None,
    )


def _settings(a: SimpleNamespace) -> dict[str, Any]:
    rank = a.weight.rank - 2
    each = {name: per_dimension(getattr(a, name), rank) for name in ("stride", "padding", "dilation")}
    return {**each, "groups": int(a.groups)}


def _input_gradient(b: Builder, a: SimpleNamespace, gradient: Value) -> Value:
    """A transposed convolution, that of a transposed one a convolution."""
    attrs = _settings(a)
    wanted = a.input.shape[2:]
    if not a.transposed:
        sides = zip(wanted, gradient.shape[1:-1], a.weight.shape[2:], strict=True)
        numbers = zip(attrs["stride"], attrs["padding"], attrs["dilation"], strict=True)
        # What strides left over at the end of the input has no window: the gradient is zero there.
        attrs["output_padding"] = [
            size - ((steps - 1) * s - 2 * p + d * (window - 1) + 1)
            for (size, steps, window), (s, p, d) in zip(sides, numbers, strict=True)
        ]
        attrs["transposed"] = True
    made = b.emit("convolution", [gradient, a.weight, None], **attrs)
    for axis, size in enumerate(wanted, start=1):
        made = b.slice(made, axis, 0, size)
    return channels_second(b, made)


def _weight_gradient(b: Builder, a: SimpleNamespace, gradient: Value) -> Value:
    """Weights of a transposed convolution meet input and gradient with exchanged roles."""
    x = channels_last(b, a.input)
    operands = [x, gradient] if a.transposed else [gradient, x]
    kernel = list(a.weight.shape[2:])
    return channels_second(b, b.emit("convolution_weight_gradient", operands, kernel=kernel, **_settings(a)))


# ---- pooling ----

# Windows of several sizes in one dimension, each of which is a reduction.
MOST_WINDOWS = 64


def _pooled(b: Builder, op: str, x: Value, rank: int, **attrs: Any) -> Value:
    """A pooling operator on x [N, C, spatial...] or, as PyTorch allows, [C, spatial...]."""
    if x.rank not in (rank + 1, rank + 2):
        raise UnsupportedNode(f"x of rank {x.rank}, expected {rank + 2}")
    batch = x if x.rank == rank + 2 else b.reshape(x, (1, *x.shape))
    out = channels_second(b, b.emit(op, [channels_last(b, batch)], **attrs))
    return out if x.rank == rank + 2 else b.reshape(out, out.shape[1:])


def _windows(a: SimpleNamespace, rank: int) -> dict[str, Any]:
    kernel = per_dimension(a.kernel_size, rank)
    return {
        "kernel": kernel,
        "stride": per_dimension(a.stride, rank) if a.stride else kernel,
        "padding": per_dimension(a.padding, rank),
        "ceil_mode": bool(a.ceil_mode),
    }


def _refuse_indices(b: Builder) -> None:
    if b.out_used(1):
        raise UnsupportedNode("the indices of the greatest, which only training needs, are not offered")


def _max_pool(b: Builder, a: SimpleNamespace, rank: int) -> tuple[Value, None]:
    _refuse_indices(b)
    attrs = _windows(a, rank) | {"dilation": per_dimension(a.dilation, rank)}
    return _pooled(b, "max_pool", a.self, rank, **attrs), None


@rule(aten.max_pool2d_with_indices.default)
def _(b: Builder, a: SimpleNamespace) -> tuple[Value, None]:
    return _max_pool(b, a, 2)


@rule(aten.max_pool3d_with_indices.default)
def _(b: Builder, a: SimpleNamespace) -> tuple[Value, None]:
    return _max_pool(b, a, 3)


def _avg_pool(b: Builder, a: SimpleNamespace, rank: int) -> Value:
    attrs = _windows(a, rank) | {"count_include_pad": bool(a.count_include_pad)}
    if getattr(a, "divisor_override", None):
        attrs["divisor"] = int(a.divisor_override)
    return _pooled(b, "avg_pool", a.self, rank, **attrs)


@rule(aten.avg_pool2d.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return _avg_pool(b, a, 2)


@rule(aten.avg_pool3d.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return _avg_pool(b, a, 3)


@rule(aten._adaptive_avg_pool2d.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return _pooled(b, "adaptive_avg_pool", a.self, 2, size=[int(size) for size in a.output_size])


@rule(aten._adaptive_avg_pool3d.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return _pooled(b, "adaptive_avg_pool", a.self, 3, size=[int(size) for size in a.output_size])


def _adaptive_max_pool(b: Builder, a: SimpleNamespace, rank: int) -> tuple[Value, None]:
    _refuse_indices(b)
    x, size = a.self, [int(size) for size in a.output_size]
    pairs = list(zip(x.shape[-rank:], size, strict=True))
    if not any(n == 0 or m % n for m, n in pairs):
        kernel = [m // n for m, n in pairs]
        return _pooled(b, "max_pool", x, rank, kernel=kernel, stride=kernel, padding=[0] * rank), None
    if 0 in size or max(size) > MOST_WINDOWS:
        raise UnsupportedNode(f"{size} windows that are not of one size, expected 1 to {MOST_WINDOWS}")
    for axis, (before, after) in enumerate(pairs, x.rank - rank):
        ends = [(i * before // after, -(-(i + 1) * before // after)) for i in range(after)]
        parts = [b.reduce("amax", b.slice(x, axis, *end), [axis], True) for end in ends]
        x = parts[0] if after == 1 else b.emit("cat", parts, dim=axis)
    return x, None


@rule(aten.adaptive_max_pool2d.default)
def _(b: Builder, a: SimpleNamespace) -> tuple[Value, None]:
    return _adaptive_max_pool(b, a, 2)


@rule(aten.adaptive_max_pool3d.default)
def _(b: Builder, a: SimpleNamespace) -> tuple[Value, None]:
    return _adaptive_max_pool(b, a, 3)


# ---- resizing ----


def _resized(b: Builder, a: SimpleNamespace, mode: str) -> Value:
    x: Value = a.self
    size = [int(s) for s in a.output_size]
    # PyTorch looks where a given scale says, which need not be where the sizes do.
    names = ("scales",) if len(size) == 1 else ("scales_d", "scales_h", "scales_w")[-len(size) :]
    corners = bool(getattr(a, "align_corners", False))
    for name, before, after in zip(names, x.shape[2:], size, strict=True):
        scale = getattr(a, name)
        if scale is not None and not corners and scale * before != after:
            raise UnsupportedNode(f"a scale of {scale} from size {before} to {after}, expected the ratio of the sizes")
    resized = b.emit("resize", [channels_last(b, x)], size=size, mode=mode, align_corners=corners)
    return channels_second(b, resized)


@rule(aten.upsample_nearest1d.default, aten.upsample_nearest2d.default, aten.upsample_nearest3d.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return _resized(b, a, "nearest")


@rule(
    aten._upsample_nearest_exact1d.default,
    aten._upsample_nearest_exact2d.default,
    aten._upsample_nearest_exact3d.default,
)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return _resized(b, a, "nearest_exact")


@rule(aten.upsample_linear1d.default, aten.upsample_bilinear2d.default, aten.upsample_trilinear3d.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return _resized(b, a, "linear")


@rule(aten.upsample_bicubic2d.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return _resized(b, a, "cubic")


@rule(aten.pixel_shuffle.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    x, r = a.self, int(a.upscale_factor)
    *batch, channels, height, width = x.shape
    n = len(batch)
    parts = b.reshape(x, (*batch, channels // (r * r), r, r, height, width))
    turned = b.permute(parts, (*range(n), n, n + 3, n + 1, n + 4, n + 2))
    return b.reshape(turned, (*batch, channels // (r * r), height * r, width * r))


@rule(aten.pixel_unshuffle.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    x, r = a.self, int(a.downscale_factor)
    *batch, channels, height, width = x.shape
    n = len(batch)
    parts = b.reshape(x, (*batch, channels, height // r, r, width // r, r))
    turned = b.permute(parts, (*range(n), n, n + 2, n + 4, n + 1, n + 3))
    return b.reshape(turned, (*batch, channels * r * r, height // r, width // r))

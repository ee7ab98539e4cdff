"""Every importer rule against PyTorch, through torch.compile."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from thresher.compiler import rules_pointwise  # noqa: E402
from thresher.compiler.backend import compile_aten  # noqa: E402

aten: Any = torch.ops.aten
INF, NAN = math.inf, math.nan


def ties(*shape: int) -> Any:
    """Few different numbers, NaN and both zeros among them."""
    return torch.tensor([0.0, -0.0, 1.0, -2.0, NAN, INF])[torch.randint(0, 6, shape)]


def divisor(*shape: int) -> Any:
    """Whole and broken divisors of both signs, zeros and infinities."""
    return torch.tensor([0.0, -0.0, 3.0, -3.0, 0.3, -0.7, INF, -INF, NAN])[torch.randint(0, 9, shape)]


def f32(*shape: int) -> Any:
    return torch.randn(shape)


def special(*shape: int) -> Any:
    """Random numbers with zeros of both signs, infinities and NaN among them."""
    x = torch.randn(shape).flatten()
    for i, value in enumerate((0.0, -0.0, INF, -INF, NAN, 1e-7, -1e-7, 30.0, -30.0, 90.0, -90.0)):
        x[i] = value
    return x.reshape(shape)


def positive(*shape: int) -> Any:
    return torch.rand(shape) + 0.1


def i64(*shape: int, high: int = 9) -> Any:
    return torch.randint(-high, high, shape)


def index(*shape: int, high: int = 3) -> Any:
    return torch.randint(0, high, shape)


def i32(*shape: int) -> Any:
    return torch.randint(-9, 9, shape, dtype=torch.int32)


def mask(*shape: int) -> Any:
    return torch.rand(shape) > 0.4


# name: (function, arguments)
CASES: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    # one operand
    **{
        name: (getattr(torch, name), lambda: (special(4, 7),))
        for name in (
            "neg",
            "abs",
            "exp",
            "erf",
            "tanh",
            "sigmoid",
            "relu",
            "isnan",
            "isinf",
            "square",
            "log",
            "sqrt",
            "rsqrt",
            "reciprocal",
        )
    },
    **{
        name: (getattr(torch, name), lambda: (special(4, 7) * 3,))
        for name in ("sign", "floor", "ceil", "round", "trunc")
    },
    "sign_int": (torch.sign, lambda: (i64(4, 7),)),
    "floor_int": (torch.floor, lambda: (i32(4, 7),)),
    "round_halves": (torch.round, lambda: (torch.arange(-5, 6) / 2,)),
    "sgn": (torch.sgn, lambda: (special(4, 7),)),
    # divisions that round
    "floor_divide": (torch.floor_divide, lambda: (special(16, 7) * 5, divisor(16, 7))),
    "floor_divide_number": (lambda x: x // -0.3, lambda: (special(4, 7) * 5,)),
    "floor_divide_int": (lambda x: x // 4, lambda: (i64(4, 7),)),
    "floor_divide_negative": (lambda x: x // -4, lambda: (i32(4, 7),)),
    "floor_divide_minus_one": (lambda x: x // -1, lambda: (torch.tensor([-(2**63), 2**63 - 1, 5]),)),
    "div_floor": (lambda x, y: torch.div(x, y, rounding_mode="floor"), lambda: (special(16, 7) * 5, divisor(16, 7))),
    "div_trunc": (lambda x, y: torch.div(x, y, rounding_mode="trunc"), lambda: (special(16, 7) * 5, divisor(16, 7))),
    "div_trunc_int": (lambda x: torch.div(x, 4, rounding_mode="trunc"), lambda: (i64(4, 7),)),
    "div_no_mode": (lambda x: torch.div(x, 4, rounding_mode=None), lambda: (i64(4, 7),)),
    "remainder": (torch.remainder, lambda: (special(16, 7) * 5, divisor(16, 7))),
    "remainder_int": (lambda x: x % -4, lambda: (i64(4, 7),)),
    "remainder_of_number": (lambda x: torch.remainder(7.5, x), lambda: (divisor(16, 7),)),
    "fmod": (torch.fmod, lambda: (special(16, 7) * 5, divisor(16, 7))),
    "fmod_int": (lambda x: torch.fmod(x, 4), lambda: (i32(4, 7),)),
    # padding, rolling, windows
    "pad": (lambda x: F.pad(x, (1, 2, 0, 3), value=-1.5), lambda: (f32(2, 3, 4),)),
    "pad_reflect": (lambda x: F.pad(x, (1, 2, 3, 0), mode="reflect"), lambda: (special(2, 3, 5, 6),)),
    "pad_reflect_1d": (lambda x: F.pad(x, (20, 11), mode="reflect"), lambda: (f32(2, 40),)),
    "pad_reflect_3d": (lambda x: F.pad(x, (1, 0, 2, 1, 0, 3), mode="reflect"), lambda: (f32(2, 4, 5, 6),)),
    "pad_replicate": (lambda x: F.pad(x, (1, 2, 3, 0), mode="replicate"), lambda: (special(2, 3, 5, 6),)),
    "pad_replicate_away": (lambda x: F.pad(x, (-1, 2, 3, -2), mode="replicate"), lambda: (f32(2, 3, 5, 6),)),
    "pad_replicate_1d": (lambda x: F.pad(x, (9, 0), mode="replicate"), lambda: (f32(3, 4),)),
    "pad_replicate_3d": (lambda x: F.pad(x, (1, 1, 0, 2, 3, 0), mode="replicate"), lambda: (f32(1, 2, 3, 4, 5),)),
    "flip": (lambda x: x.flip(-1, 0), lambda: (special(4, 3, 7),)),
    "flip_long": (lambda x: x.flip(1), lambda: (f32(2, 50, 20),)),
    "flip_int": (lambda x: x.flip(1), lambda: (i64(3, 8),)),
    "flip_of_nothing": (lambda x: x.flip(1) + 1, lambda: (f32(3, 20, 0),)),
    "pad_reflect_of_nothing": (lambda x: F.pad(x, (9, 9), mode="reflect"), lambda: (f32(0, 3, 20),)),
    "unfold_of_nothing": (lambda x: x.unfold(1, 4, 2) + 1, lambda: (f32(0, 9),)),
    "flip_nothing": (lambda x: x.flip([]) + 1, lambda: (f32(3, 8),)),
    "unfold": (lambda x: x.unfold(1, 6, 4), lambda: (f32(3, 17, 2),)),
    "unfold_last": (lambda x: x.unfold(-1, 300, 120), lambda: (f32(2, 1000),)),
    "unfold_one": (lambda x: x.unfold(0, 1, 3), lambda: (i64(8, 2),)),
    "im2col": (
        lambda x: F.unfold(x, (3, 2), dilation=(1, 2), padding=(2, 1), stride=(2, 1)),
        lambda: (f32(2, 3, 7, 8),),
    ),
    "im2col_of_an_image": (lambda x: F.unfold(x, 4, stride=4), lambda: (f32(3, 8, 12),)),
    "channel_shuffle": (lambda x: torch.channel_shuffle(x, 3), lambda: (f32(2, 12, 4, 5),)),
    "pad_negative": (lambda x: F.pad(x, (-1, 2, 3, -2)), lambda: (f32(2, 3, 4),)),
    "pad_nothing": (lambda x: F.pad(x, (0, 0, 0, 0)) + 1, lambda: (f32(2, 3, 4),)),
    "pad_int": (lambda x: F.pad(x, (1, 1), value=7), lambda: (i64(2, 3),)),
    "pad_bool": (lambda x: F.pad(x, (1, 0), value=True), lambda: (mask(2, 3),)),
    "roll": (lambda x: torch.roll(x, (1, -2), (0, 2)), lambda: (f32(3, 2, 5),)),
    "roll_far": (lambda x: torch.roll(x, 13, -1), lambda: (i64(3, 5),)),
    "roll_flat": (lambda x: torch.roll(x, 3), lambda: (f32(3, 5),)),
    "as_strided_same": (lambda x: x.mean(2, True).as_strided((2, 3, 1), (3, 1, 9)) * 2, lambda: (f32(2, 3, 4),)),
    "as_strided_windows": (lambda x: (x * 2).as_strided((4, 3), (2, 1), 1), lambda: (f32(3, 4),)),
    "as_strided_of_transposed": (lambda x: (x * 2).t().as_strided((5, 2), (1, 4)), lambda: (f32(3, 4),)),
    # order
    "sort": (lambda x: torch.sort(x, dim=1, stable=True), lambda: (ties(4, 9, 3),)),
    "sort_descending": (lambda x: torch.sort(x, dim=-1, descending=True, stable=True), lambda: (ties(4, 9),)),
    "sort_plain": (lambda x: torch.sort(x), lambda: (special(4, 7),)),
    "sort_int": (lambda x: torch.sort(x, dim=0, stable=True), lambda: (i64(40, 3),)),
    "sort_bool": (lambda x: torch.sort(x, stable=True), lambda: (mask(3, 40),)),
    "sort_scalar": (lambda x: torch.sort(x), lambda: (f32(),)),
    "argsort": (lambda x: torch.argsort(x, dim=1, descending=True, stable=True), lambda: (ties(4, 9),)),
    "topk": (lambda x: torch.topk(x, 3), lambda: (f32(4, 9),)),
    "topk_least": (lambda x: torch.topk(x, 3, dim=0, largest=False), lambda: (special(11, 4),)),
    "topk_values": (lambda x: torch.topk(x, 6, dim=1)[0], lambda: (ties(4, 9),)),
    "argmax": (lambda x: torch.argmax(x, 1), lambda: (ties(4, 9, 3),)),
    "argmax_keepdim": (lambda x: torch.argmax(x, -2, keepdim=True), lambda: (f32(4, 9, 3),)),
    "argmax_all": (torch.argmax, lambda: (f32(4, 9),)),
    "argmin": (lambda x: torch.argmin(x, 0), lambda: (ties(9, 4),)),
    "argmin_int": (lambda x: torch.argmin(x, -1), lambda: (i64(4, 9),)),
    "max_with_indices": (lambda x: torch.max(x, 1), lambda: (ties(4, 9),)),
    "min_with_indices": (lambda x: torch.min(x, 0, keepdim=True), lambda: (f32(4, 9),)),
    "histc": (lambda x: torch.histc(x, 8, 0, 7), lambda: (torch.randint(0, 9, (200,)).float(),)),
    "histc_reals": (lambda x: torch.histc(x, 7, -1.3, 2.1), lambda: (special(40, 50),)),
    # writing by index
    "index_put": (lambda x, i, v: x.index_put((i,), v), lambda: (f32(5, 4), torch.tensor([3, -1, 0]), f32(3, 4))),
    "index_put_all": (lambda x, i, v: x.index_put((i, i), v), lambda: (f32(5, 4), torch.tensor([3, -1, 0]), f32())),
    "index_put_add": (
        lambda x, i, v: x.index_put((i,), v, accumulate=True),
        lambda: (f32(5, 4), torch.tensor([[3, 3], [0, 3]]), f32(2, 2, 4)),
    ),
    "index_put_int": (lambda x, i: x.index_put((i,), i), lambda: (i64(9), torch.randperm(9))),
    "index_put_mask": (lambda x, m: x.index_put((m,), torch.tensor(2.5)), lambda: (f32(5, 4, 3), mask(5, 4))),
    "index_put_mask_behind": (
        lambda x, m: aten.index_put(x, [None, m], torch.tensor(2.5)),
        lambda: (f32(5, 4, 3), mask(4, 3)),
    ),
    # norms
    "batch_norm": (
        lambda x, m, v, w, c: F.batch_norm(x, m, v, w, c),
        lambda: (f32(4, 7, 3, 2), f32(7), positive(7), f32(7), f32(7)),
    ),
    "batch_norm_plain": (lambda x, m, v: F.batch_norm(x, m, v, eps=0.1), lambda: (f32(4, 7), f32(7), positive(7))),
    "group_norm": (lambda x, w, c: F.group_norm(x, 2, w, c), lambda: (f32(3, 6, 5, 4), f32(6), f32(6))),
    "group_norm_plain": (lambda x: F.group_norm(x, 3), lambda: (f32(3, 6),)),
    "group_norm_statistics": (
        lambda x, w: aten.native_group_norm(x, w, None, 3, 6, 5, 2, 1e-5),
        lambda: (f32(3, 6, 5), f32(6)),
    ),
    # convolutions; what they compute is in test_convolutions.py
    "conv1d": (lambda x, w, c: F.conv1d(x, w, c, 2, 1, 2), lambda: (f32(2, 3, 11), f32(5, 3, 3), f32(5))),
    "conv2d": (lambda x, w: F.conv2d(x, w, None, (1, 2), (2, 1), groups=2), lambda: (f32(2, 4, 6, 7), f32(6, 2, 3, 2))),
    "conv3d": (lambda x, w: F.conv3d(x, w, padding="same"), lambda: (f32(1, 2, 4, 5, 3), f32(3, 2, 3, 1, 3))),
    "conv_transpose2d": (
        lambda x, w, c: F.conv_transpose2d(x, w, c, 2, 1, 1),
        lambda: (f32(2, 4, 3, 5), f32(4, 6, 3, 3), f32(6)),
    ),
    "max_pool2d": (lambda x: F.max_pool2d(x, 3, 2, 1), lambda: (special(2, 3, 9, 8),)),
    "max_pool2d_ceil": (lambda x: F.max_pool2d(x, (3, 2), 2, 1, (2, 1), ceil_mode=True), lambda: (f32(2, 33, 9, 8),)),
    "max_pool3d": (lambda x: F.max_pool3d(x, 2), lambda: (f32(2, 3, 4, 5, 6),)),
    "avg_pool1d": (lambda x: F.avg_pool1d(x, 3, 2, 1), lambda: (f32(2, 3, 9),)),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 3, 2, 1, True, False), lambda: (f32(2, 70, 8, 7),)),
    "avg_pool2d_beyond": (lambda x: F.avg_pool2d(x, 9, ceil_mode=True), lambda: (f32(2, 7, 4, 5),)),
    "avg_pool2d_padded": (lambda x: F.avg_pool2d(x, 3, 2, 1, True), lambda: (f32(2, 7, 8, 7),)),
    "avg_pool2d_divisor": (lambda x: F.avg_pool2d(x, 3, 2, divisor_override=5), lambda: (f32(3, 8, 7),)),
    "avg_pool3d": (lambda x: F.avg_pool3d(x, 2, 1), lambda: (f32(2, 3, 4, 5, 6),)),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, (3, 5)), lambda: (f32(2, 7, 8, 7),)),
    "adaptive_avg_pool3d": (lambda x: F.adaptive_avg_pool3d(x, (2, 1, 3)), lambda: (f32(2, 7, 4, 3, 7),)),
    **{
        f"interpolate_{mode}": (
            lambda x, mode=mode: F.interpolate(x, scale_factor=(2, 3), mode=mode),
            lambda: (f32(2, 5, 4, 6),),
        )
        for mode in ("nearest", "nearest-exact", "bilinear", "bicubic")
    },
    "interpolate_down": (lambda x: F.interpolate(x, (3, 4), mode="bilinear"), lambda: (f32(2, 5, 7, 9),)),
    "interpolate_nearest_size": (lambda x: F.interpolate(x, (5, 11)), lambda: (f32(2, 5, 7, 9),)),
    "interpolate_corners": (
        lambda x: F.interpolate(x, (9, 5), mode="bilinear", align_corners=True),
        lambda: (f32(2, 5, 4, 6),),
    ),
    "interpolate_linear": (lambda x: F.interpolate(x, 9, mode="linear"), lambda: (f32(2, 5, 4),)),
    "interpolate_trilinear": (lambda x: F.interpolate(x, (4, 6, 3), mode="trilinear"), lambda: (f32(1, 2, 3, 4, 5),)),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), lambda: (f32(2, 12, 3, 4),)),
    "pixel_unshuffle": (lambda x: F.pixel_unshuffle(x, 2), lambda: (f32(2, 3, 4, 6),)),
    "weight_norm": (lambda v, g: torch._weight_norm(v, g, 2), lambda: (f32(4, 3, 5), f32(1, 1, 5))),
    "empty_like": (lambda x: torch.empty_like(x).fill_(2.5) + x, lambda: (f32(3, 4),)),
    "sin": (torch.sin, lambda: (f32(4, 7),)),
    "cos": (torch.cos, lambda: (f32(4, 7),)),
    **{
        f"{name}{size}": (getattr(torch, name), lambda scale=scale: (special(4, 7) * scale,))
        for name in ("expm1", "log1p")
        for size, scale in (("", 1.0), ("_large", 30.0))
    },
    "expm1_near_one": (torch.expm1, lambda: (torch.linspace(-2, 2, 97),)),
    "log1p_near_one": (torch.log1p, lambda: (torch.linspace(-1, 2, 97),)),
    "expm1_int": (torch.expm1, lambda: (i64(4, 7),)),
    "log1p_bool": (torch.log1p, lambda: (mask(4, 7),)),
    "exp_int": (torch.exp, lambda: (i64(4, 7),)),
    "sqrt_bool": (torch.sqrt, lambda: (mask(4, 7),)),
    "relu_int": (torch.relu, lambda: (i64(4, 7),)),
    "neg_int": (torch.neg, lambda: (i64(4, 7),)),
    "abs_int": (torch.abs, lambda: (i32(4, 7),)),
    "logical_not": (torch.logical_not, lambda: (i64(4, 7, high=2),)),
    "logical_not_float": (torch.logical_not, lambda: (special(4, 7),)),
    "bitwise_not_bool": (torch.bitwise_not, lambda: (mask(4, 7),)),
    "bitwise_not_int": (torch.bitwise_not, lambda: (i64(4, 7),)),
    "isinf_int": (torch.isinf, lambda: (i64(4, 7),)),
    **{
        name: (getattr(F, name), lambda: (special(4, 7),))
        for name in ("gelu", "silu", "hardtanh", "relu6", "leaky_relu", "elu", "celu", "selu", "softplus", "logsigmoid")
    },
    "hardswish": (F.hardswish, lambda: (f32(4, 7),)),
    "hardsigmoid": (F.hardsigmoid, lambda: (f32(4, 7),)),
    "mish": (F.mish, lambda: (f32(4, 7) * 10,)),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), lambda: (special(4, 7),)),
    "elu_alpha": (lambda x: F.elu(x, 0.3), lambda: (f32(4, 7),)),
    "softplus_beta": (lambda x: F.softplus(x, 2.0, 5.0), lambda: (f32(4, 7) * 5,)),
    "prelu": (F.prelu, lambda: (f32(4, 7), torch.tensor([0.2]))),
    "glu": (lambda x: F.glu(x, 1), lambda: (f32(4, 8),)),
    # two operands and promotion
    "add": (torch.add, lambda: (special(4, 7), f32(7))),
    "add_scalar": (lambda x: x + 2, lambda: (f32(4, 7),)),
    "add_alpha": (lambda x, y: torch.add(x, y, alpha=3), lambda: (f32(4, 7), f32(4, 1))),
    "add_int_float": (lambda x, y: x + y, lambda: (i64(4, 7), f32(4, 7))),
    "add_int_scalar": (lambda x: x + 2, lambda: (i64(4, 7),)),
    "add_int_float_scalar": (lambda x: x + 0.5, lambda: (i64(4, 7),)),
    "add_bool_int": (lambda x: x + 1, lambda: (mask(4, 7),)),
    "add_bool": (lambda x, y: x + y, lambda: (mask(4, 7), mask(4, 7))),
    "add_i32_i64": (lambda x, y: x + y, lambda: (i32(4, 7), i64(4, 7))),
    "add_zero_dim": (lambda x, y: x + y, lambda: (f32(4, 7), torch.tensor(3))),
    "add_zero_dim_int": (lambda x, y: x + y, lambda: (i32(4, 7), torch.tensor(3))),
    "add_negative_zero": (lambda x: x + 0.0, lambda: (torch.tensor([-0.0, 1.0]),)),
    "big_int": (lambda x: x + (2**60 + 1), lambda: (i64(4, 7),)),
    "sub": (torch.sub, lambda: (f32(4, 7), f32(4, 7))),
    "sub_alpha": (lambda x, y: torch.sub(x, y, alpha=0.5), lambda: (f32(4, 7), f32(4, 7))),
    "rsub": (lambda x: 1 - x, lambda: (f32(4, 7),)),
    "rsub_int": (lambda x: 1 - x, lambda: (i64(4, 7),)),
    "rsub_alpha": (lambda x, y: torch.rsub(x, y, alpha=2), lambda: (f32(4, 7), f32(4, 7))),
    "mul": (torch.mul, lambda: (special(4, 7), f32(4, 1))),
    "mul_bool": (lambda x, y: x * y, lambda: (mask(4, 7), mask(4, 7))),
    "mul_mask": (lambda x, y: x * y, lambda: (f32(4, 7), mask(4, 7))),
    "div": (torch.div, lambda: (f32(4, 7), positive(4, 7))),
    "div_int": (torch.div, lambda: (i64(4, 7), index(4, 7) + 1)),
    "div_zero": (torch.div, lambda: (special(4, 7), torch.zeros(7))),
    "maximum": (torch.maximum, lambda: (special(4, 7), f32(4, 7))),
    "minimum": (torch.minimum, lambda: (special(4, 7), f32(4, 7))),
    "maximum_int": (torch.maximum, lambda: (i64(4, 7), i64(4, 7))),
    **{
        name: (getattr(torch, name), lambda: (special(4, 7), f32(4, 7)))
        for name in ("eq", "ne", "lt", "le", "gt", "ge")
    },
    "eq_int_scalar": (lambda x: x == 3, lambda: (i64(4, 7),)),
    "ge_int_float_scalar": (lambda x: x >= 0.5, lambda: (i64(4, 7),)),
    "and": (lambda x, y: x & y, lambda: (mask(4, 7), mask(4, 7))),
    "or": (lambda x, y: x | y, lambda: (mask(4, 7), mask(4, 7))),
    "xor": (lambda x, y: x ^ y, lambda: (mask(4, 7), mask(4, 7))),
    "and_int": (lambda x, y: x & y, lambda: (i64(4, 7), i64(4, 7))),
    "logical_and": (torch.logical_and, lambda: (i64(4, 7), mask(4, 7))),
    "logical_or": (torch.logical_or, lambda: (special(4, 7), mask(4, 7))),
    "logical_xor": (torch.logical_xor, lambda: (i64(4, 7), mask(4, 7))),
    "pow_2": (lambda x: x**2, lambda: (special(4, 7),)),
    "pow_1": (lambda x: x**1, lambda: (special(4, 7),)),
    "pow_3": (lambda x: x**3, lambda: (i64(4, 7),)),
    "pow_half": (lambda x: x**0.5, lambda: (positive(4, 7),)),
    "pow_minus_1": (lambda x: x**-1, lambda: (f32(4, 7),)),
    "pow_float": (lambda x: x**1.7, lambda: (positive(4, 7),)),
    "pow_tensor": (torch.pow, lambda: (positive(4, 7), f32(4, 7))),
    "pow_scalar_base": (lambda x: 2.0**x, lambda: (f32(4, 7),)),
    # three operands
    "where": (torch.where, lambda: (mask(4, 7), special(4, 7), f32(4, 1))),
    "where_scalars": (lambda c: torch.where(c, 0.0, -INF), lambda: (mask(4, 7),)),
    "where_promote": (torch.where, lambda: (mask(4, 7), i64(4, 7), f32(4, 7))),
    "masked_fill": (lambda x, m: x.masked_fill(m, -INF), lambda: (f32(4, 7), mask(4, 7))),
    "masked_fill_int": (lambda x, m: x.masked_fill(m, 5), lambda: (i64(4, 7), mask(7))),
    "clamp": (lambda x: x.clamp(-0.5, 0.5), lambda: (special(4, 7),)),
    "clamp_min": (lambda x: x.clamp(min=0.2), lambda: (special(4, 7),)),
    "clamp_max_int": (lambda x: x.clamp(max=2), lambda: (i64(4, 7),)),
    "clamp_tensor": (lambda x, y: torch.clamp(x, min=y), lambda: (f32(4, 7), f32(7))),
    "clamp_max_tensor": (lambda x, y: torch.clamp(x, max=y), lambda: (special(4, 7), f32(7))),
    "addcmul": (lambda x, y, z: torch.addcmul(x, y, z, value=0.5), lambda: (f32(4, 7), f32(4, 7), f32(7))),
    "addcdiv": (lambda x, y, z: torch.addcdiv(x, y, z, value=0.5), lambda: (f32(4, 7), f32(4, 7), positive(7))),
    # conversions
    "to_int": (lambda x: (x * 5).to(torch.int64), lambda: (f32(4, 7),)),
    "to_bool": (lambda x: x.to(torch.bool), lambda: (special(4, 7),)),
    "to_float": (lambda x: x.float() * 2, lambda: (mask(4, 7),)),
    "to_int32": (lambda x: x.to(torch.int32) + 1, lambda: (i64(4, 7),)),
    "clone": (lambda x: x.clone() + 1, lambda: (f32(4, 7),)),
    "copy": (lambda x, y: (x + 1).copy_(y) * 2, lambda: (f32(4, 7), i64(7))),
    # products
    "linear": (F.linear, lambda: (f32(2, 3, 5), f32(7, 5), f32(7))),
    "linear_no_bias": (F.linear, lambda: (f32(3, 5), f32(7, 5))),
    "mm": (torch.mm, lambda: (f32(3, 5), f32(5, 7))),
    "mm_transposed": (lambda a, b: torch.mm(a.t(), b.t()), lambda: (f32(5, 3), f32(7, 5))),
    "bmm": (torch.bmm, lambda: (f32(2, 3, 5), f32(2, 5, 7))),
    "matmul_4d": (torch.matmul, lambda: (f32(2, 3, 4, 5), f32(2, 3, 5, 6))),
    "matmul_broadcast": (torch.matmul, lambda: (f32(2, 1, 4, 5), f32(3, 5, 6))),
    "matmul_vector": (torch.matmul, lambda: (f32(4, 5), f32(5))),
    "matmul_vectors": (torch.matmul, lambda: (f32(5), f32(5))),
    "addmm": (torch.addmm, lambda: (f32(7), f32(3, 5), f32(5, 7))),
    "addmm_full_bias": (torch.addmm, lambda: (f32(3, 7), f32(3, 5), f32(5, 7))),
    "addmm_factors": (lambda c, a, b: torch.addmm(c, a, b, beta=2, alpha=0.5), lambda: (f32(7), f32(3, 5), f32(5, 7))),
    "addmm_beta_0": (
        lambda c, a, b: torch.addmm(c, a, b, beta=0),
        lambda: (torch.full((7,), NAN), f32(3, 5), f32(5, 7)),
    ),
    "baddbmm": (lambda c, a, b: torch.baddbmm(c, a, b, alpha=0.3), lambda: (f32(2, 3, 7), f32(2, 3, 5), f32(2, 5, 7))),
    # attention, normalisation, softmax
    "sdpa": (F.scaled_dot_product_attention, lambda: (f32(2, 3, 5, 8), f32(2, 3, 6, 8), f32(2, 3, 6, 8))),
    "sdpa_causal": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3),
        lambda: (f32(2, 3, 5, 8), f32(2, 3, 5, 8), f32(2, 3, 5, 8)),
    ),
    "sdpa_bool_mask": (
        F.scaled_dot_product_attention,
        lambda: (
            f32(2, 3, 5, 8),
            f32(2, 3, 6, 8),
            f32(2, 3, 6, 8),
            torch.tensor([1, 1, 0, 1, 0, 1]).bool().expand(2, 1, 5, 6),
        ),
    ),
    "sdpa_float_mask": (
        F.scaled_dot_product_attention,
        lambda: (f32(2, 3, 5, 8), f32(2, 3, 6, 8), f32(2, 3, 6, 8), f32(5, 6)),
    ),
    "sdpa_3d": (F.scaled_dot_product_attention, lambda: (f32(3, 5, 8), f32(3, 6, 8), f32(3, 6, 8), mask(3, 5, 6))),
    "sdpa_2d": (F.scaled_dot_product_attention, lambda: (f32(5, 8), f32(6, 8), f32(6, 8))),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (7,), w, b, 1e-6), lambda: (f32(4, 7), f32(7), f32(7))),
    "layer_norm_plain": (lambda x: F.layer_norm(x, (3, 7)), lambda: (f32(4, 3, 7),)),
    "layer_norm_nan": (lambda x: F.layer_norm(x, (7,)), lambda: (special(4, 7),)),
    "softmax": (lambda x: x.softmax(-1), lambda: (f32(4, 7),)),
    "softmax_dim": (lambda x: x.softmax(1), lambda: (f32(2, 4, 7),)),
    "softmax_special": (lambda x: x.softmax(-1), lambda: (special(4, 7),)),
    "softmax_int": (lambda x: x.softmax(-1, dtype=torch.float32), lambda: (i64(4, 7),)),
    "softmax_scalar": (lambda x: x.sum().softmax(0), lambda: (f32(4, 7),)),
    "safe_softmax": (lambda x: aten._safe_softmax(x, -1), lambda: (torch.tensor([[-INF] * 3, [-INF, 0, 1]]),)),
    "layer_norm_statistics": (
        lambda x, w: aten.native_layer_norm(x, [7], w, None, 1e-5),
        lambda: (f32(4, 7), f32(7)),
    ),
    "log_softmax": (lambda x: x.log_softmax(-1), lambda: (f32(4, 7),)),
    "normalize": (F.normalize, lambda: (f32(4, 7),)),
    # shapes
    "views": (lambda x: x.view(6, 4).t().unsqueeze(0).permute(2, 0, 1) * 2, lambda: (f32(2, 3, 4),)),
    "flatten": (lambda x: x.flatten(1) + 1, lambda: (f32(2, 3, 4),)),
    "unflatten": (lambda x: (x + 1).unflatten(1, (2, -1)), lambda: (f32(3, 8),)),
    "squeeze": (lambda x: (x + 1).squeeze(), lambda: (f32(2, 1, 3, 1),)),
    "squeeze_dim": (lambda x: (x + 1).squeeze(1).squeeze(0), lambda: (f32(2, 1, 3, 1),)),
    "expand": (lambda x: x.expand(4, 3, -1) + 1, lambda: (f32(3, 1),)),
    "repeat": (lambda x: x.repeat(2, 3, 2) + 1, lambda: (f32(3, 2),)),
    "transpose_scalar": (lambda x: x.sum().transpose(0, 0) + 1, lambda: (f32(3, 2),)),
    "slice": (lambda x: x[:, 1:-1:2] + 1, lambda: (f32(3, 8),)),
    "slice_empty_middle": (lambda x: torch.cat([x[:, :0], x[:, 3:]], 1) + 1, lambda: (f32(3, 8),)),
    "select": (lambda x: x[:, -1] + x[:, 0], lambda: (f32(3, 8),)),
    "split": (lambda x: [p + 1 for p in x.split(3, 1)], lambda: (f32(2, 8),)),
    "split_sizes": (lambda x: [p + 1 for p in x.split([1, 5, 2], -1)], lambda: (f32(2, 8),)),
    "chunk": (lambda x: [p + 1 for p in x.chunk(3, 1)], lambda: (f32(2, 8),)),
    "unbind": (lambda x: [p + 1 for p in x.unbind(1)], lambda: (f32(2, 3),)),
    "cat": (lambda x, y: torch.cat([x, y], 1) + 1, lambda: (f32(2, 3), f32(2, 5))),
    "cat_promote": (lambda x, y: torch.cat([x, y], 0), lambda: (f32(2, 3), i64(2, 3))),
    **{
        f"cat_with_nothing_by_{copied.name()}": (
            lambda x, copied=copied: torch.cat([copied(x[:, :0]), x], 1) + 1,
            lambda: (f32(2, 3),),
        )
        for copied in rules_pointwise.COPIES
        if copied is not aten.lift_fresh.default  # which the tracing of this test refuses
    },
    "cat_of_nothing": (lambda x, y: torch.cat([x, y]) + 1, lambda: (f32(0), f32(0))),
    "stack": (lambda x, y: torch.stack([x, y], -1) + 1, lambda: (f32(2, 3), f32(2, 3))),
    "slice_scatter": (lambda x, y: torch.slice_scatter(x + 1, y, 1, 2, 5), lambda: (f32(2, 8), f32(2, 3))),
    "select_scatter": (lambda x, y: torch.select_scatter(x + 1, y, 1, -2), lambda: (f32(2, 8), f32(2))),
    "slice_scatter_of_nothing": (lambda x, y: torch.slice_scatter(x + 1, y, 1, 3, 3), lambda: (f32(2, 8), f32(2, 0))),
    # look-ups
    "embedding": (F.embedding, lambda: (index(2, 5), f32(3, 7))),
    "embedding_padding": (lambda i, w: F.embedding(i, w, padding_idx=0), lambda: (index(2, 5), f32(3, 7))),
    "gather": (lambda x, i: torch.gather(x, 1, i), lambda: (f32(2, 3), index(2, 5))),
    "index_select": (lambda x, i: torch.index_select(x, 1, i), lambda: (f32(2, 3, 4), index(5))),
    "index_pair": (lambda x, i, j: x[i, j], lambda: (f32(3, 3, 2), index(4, 1), index(5))),
    "index_negative": (lambda x, i: x[i - 3], lambda: (f32(3, 4), index(5))),
    "index_after_slice": (lambda x, i: x[:, i], lambda: (f32(2, 3, 4), index(5))),
    "index_middle": (lambda x, i, j: x[:, i, j], lambda: (f32(2, 3, 3, 4), index(5), index(5))),
    "index_apart": (lambda x, i, j: x[i, :, j], lambda: (f32(3, 2, 3, 4), index(5), index(5))),
    "index_bool_tensor": (lambda x, i: x[i], lambda: (mask(3, 4), index(5))),
    # reductions
    "mean": (torch.mean, lambda: (f32(4, 7),)),
    "mean_dim": (lambda x: x.mean((0, -1), keepdim=True), lambda: (f32(2, 4, 7),)),
    "sum": (torch.sum, lambda: (special(4, 7),)),
    "sum_int": (lambda x: x.sum(1), lambda: (i64(4, 7),)),
    "sum_i32": (lambda x: x.sum(1), lambda: (i32(4, 7),)),
    "sum_bool": (torch.sum, lambda: (mask(4, 7),)),
    "cumsum": (lambda x: x.cumsum(1), lambda: (special(4, 7),)),
    "cumsum_turned": (lambda x: x.t().cumsum(-1), lambda: (f32(4, 7),)),
    "cumsum_int": (lambda x: x.cumsum(0), lambda: (i64(4, 7),)),
    "cumsum_i32": (lambda x: x.cumsum(0), lambda: (i32(4, 7),)),
    "cumsum_bool": (lambda x: x.cumsum(0), lambda: (mask(4, 7),)),
    "cumsum_dtype": (lambda x: x.cumsum(0, dtype=torch.float32), lambda: (i64(4, 7),)),
    "cumsum_scalar": (lambda x: x.sum().cumsum(0), lambda: (f32(4, 7),)),
    "amax": (lambda x: x.amax(1), lambda: (special(4, 7),)),
    "amin": (lambda x: x.amin((0, 1)), lambda: (f32(4, 7),)),
    "max": (torch.max, lambda: (f32(4, 7),)),
    "min": (torch.min, lambda: (special(4, 7),)),
    "max_values": (lambda x: x.max(1).values, lambda: (f32(4, 7),)),
    "min_values": (lambda x: x.min(1).values, lambda: (f32(4, 7),)),
    "any": (lambda x: x.any(1), lambda: (mask(4, 7),)),
    "all": (lambda x: x.all(), lambda: (mask(4, 7),)),
    "all_float": (lambda x: x.all(1), lambda: (f32(4, 7),)),
    "var": (lambda x: x.var(1), lambda: (f32(4, 7),)),
    "std_biased": (lambda x: x.std(1, correction=0, keepdim=True), lambda: (f32(4, 7),)),
    "var_mean": (lambda x: torch.var_mean(x, 1), lambda: (f32(4, 7),)),
    "norm": (lambda x: torch.linalg.vector_norm(x, dim=1), lambda: (f32(4, 7),)),
    "norm_1": (lambda x: torch.linalg.vector_norm(x, 1, dim=1), lambda: (f32(4, 7),)),
    "norm_inf": (lambda x: torch.linalg.vector_norm(x, INF, dim=1), lambda: (special(4, 7),)),
    "norm_old": (lambda x: aten.norm.ScalarOpt_dim(x, 2, [1], True), lambda: (f32(4, 7),)),
    "norm_old_all": (lambda x: aten.norm.Scalar(x, 1), lambda: (f32(4, 7),)),
    # made from nothing
    "arange": (lambda x: x + torch.arange(7), lambda: (f32(4, 7),)),
    "arange_step": (lambda x: x + torch.arange(1, 8, 1.0), lambda: (f32(4, 7),)),
    "full": (lambda x: x + torch.full((4, 1), 0.1), lambda: (f32(4, 7),)),
    "full_like": (lambda x: torch.full_like(x, -INF) + x, lambda: (f32(4, 7),)),
    "new_full": (lambda x: x.new_full((4, 1), 3) + x, lambda: (f32(4, 7),)),
    "fill_tensor": (lambda x: x.clone().fill_(x.sum()) + 1, lambda: (f32(4, 7),)),
    "new": (lambda x: x.new_ones(7) * x + x.new_zeros(7), lambda: (f32(4, 7),)),
    "ones_bool": (lambda x: x & torch.ones(7, dtype=torch.bool), lambda: (mask(4, 7),)),
    "eye": (lambda x: x + torch.eye(4, 7), lambda: (f32(4, 7),)),
    "tril": (lambda x: torch.tril(x, -1), lambda: (special(4, 7),)),
    "triu": (lambda x: torch.triu(x, 1), lambda: (i64(4, 7),)),
    "nan_to_num": (torch.nan_to_num, lambda: (special(4, 7),)),
    "nan_to_num_given": (lambda x: torch.nan_to_num(x, 1.5, 2.5, -3.5), lambda: (special(4, 7),)),
    "nan_to_num_int": (torch.nan_to_num, lambda: (i64(4, 7),)),
    "lerp": (lambda x, y: torch.lerp(x, y, 0.3), lambda: (special(4, 7), special(4, 7).flip(1))),
    "lerp_far": (lambda x, y: torch.lerp(x, y, 0.75), lambda: (f32(4, 7), f32(7))),
    "lerp_beyond": (lambda x, y: torch.lerp(x, y, -1.5), lambda: (f32(4, 7), f32(4, 7))),
    "batch_norm_of_the_batch": (
        lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
        lambda: (f32(4, 3, 5, 6), f32(3), f32(3)),
    ),
    "batch_norm_of_the_batch_statistics": (
        lambda x: aten._native_batch_norm_legit.no_stats(x, None, None, True, 0.1, 1e-5),
        lambda: (f32(4, 3, 5),),
    ),
    "instance_norm": (lambda x, w, b: F.instance_norm(x, None, None, w, b), lambda: (f32(2, 3, 5, 6), f32(3), f32(3))),
    "instance_norm_1d": (F.instance_norm, lambda: (f32(2, 3, 9),)),
    "adaptive_max_pool": (lambda x: F.adaptive_max_pool2d(x, (3, 2)), lambda: (special(2, 3, 6, 8),)),
    "adaptive_max_pool_to_one": (lambda x: F.adaptive_max_pool2d(x, 1), lambda: (f32(3, 5, 7),)),
    "adaptive_max_pool_uneven": (lambda x: F.adaptive_max_pool2d(x, (3, 5)), lambda: (special(2, 3, 7, 8),)),
    "adaptive_max_pool_3d": (lambda x: F.adaptive_max_pool3d(x, (2, 3, 2)), lambda: (f32(2, 3, 4, 5, 6),)),
    "tensor_constant": (lambda x: x * torch.tensor([1.0, 2.0, 3.0]), lambda: (f32(4, 3),)),
    # what training needs
    **{
        f"gelu_backward_{kind}": (
            lambda g, x, kind=kind: aten.gelu_backward(g, x, approximate=kind),
            lambda: (f32(4, 7), f32(4, 7)),
        )
        for kind in ("none", "tanh")
    },
    "softmax_backward": (
        lambda g, y: aten._softmax_backward_data(g, y, -1, torch.float32),
        lambda: (f32(4, 7), f32(4, 7).softmax(-1)),
    ),
    "dropout_in_evaluation": (lambda x: aten.native_dropout(x, 0.5, False), lambda: (f32(4, 7),)),
}

# name: (function, arguments, what the reason says)
REFUSED: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]], str]] = {
    "mm_int": (torch.mm, lambda: (i64(3, 5), i64(5, 7)), "matrix product of int64, only floats are supported"),
    "log_sum_exp": (
        lambda q: aten._scaled_dot_product_flash_attention_for_cpu(q, q, q)[1],
        lambda: (f32(1, 2, 5, 8),),
        "the log-sum-exp output",
    ),
    "sdpa_dropout": (
        lambda q: aten._scaled_dot_product_flash_attention_for_cpu(q, q, q, 0.1)[0],
        lambda: (f32(1, 2, 5, 8),),
        "dropout with probability 0.1",
    ),
    "sdpa_causal_and_mask": (
        lambda q, m: aten._scaled_dot_product_flash_attention_for_cpu(q, q, q, 0.0, True, attn_mask=m)[0],
        lambda: (f32(1, 2, 5, 8), f32(5, 5)),
        "a mask together with is_causal",
    ),
    "dropout_in_training": (
        lambda x: aten.native_dropout(x, 0.5, True),
        lambda: (f32(4, 7),),
        "dropout with probability 0.5 in training",
    ),
    "add_bool_alpha": (
        lambda x, y: torch.add(x, y, alpha=False),
        lambda: (mask(4, 7), mask(4, 7)),
        "alpha with bool operands",
    ),
    "log_sigmoid_buffer": (
        lambda x: aten.log_sigmoid_forward(x)[1],
        lambda: (f32(4, 7),),
        "the buffer output, which only training needs",
    ),
    "index_select_int": (
        lambda x, i: x.index_select(0, i),
        lambda: (i64(3, 4), index(5)),
        "only tensors of a float type",
    ),
    "floor_divide_unknown": (lambda x, y: x // y, lambda: (i64(4, 7), i64(4, 7)), "an integer divisor that may be 0"),
    "index_put_middle": (
        lambda x, i, v: aten.index_put(x, [None, i], v),
        lambda: (f32(2, 5), index(3), f32(2, 3)),
        "indices of other than the first dimensions",
    ),
    "as_strided_beyond": (
        lambda x: x[:1].as_strided((2, 3), (3, 1)),
        lambda: (f32(2, 3),),
        "strides that reach beyond",
    ),
    "histc_of_the_data": (lambda x: torch.histc(x, 4), lambda: (f32(9),), "between two given numbers"),
    "batch_norm_training": (
        lambda x, m, v: aten.native_batch_norm(x, None, None, m, v, True, 0.1, 1e-5)[0],
        lambda: (f32(4, 7), f32(7), positive(7)),
        "statistics of the batch",
    ),
    "max_pool_indices": (
        lambda x: aten.max_pool2d_with_indices(x, [2, 2])[1],
        lambda: (f32(1, 2, 4, 4),),
        "the indices of the greatest",
    ),
    "adaptive_max_pool_indices": (
        lambda x: aten.adaptive_max_pool2d(x, [2, 2])[1],
        lambda: (f32(1, 2, 4, 4),),
        "the indices of the greatest",
    ),
    "adaptive_max_pool_many": (
        lambda x: F.adaptive_max_pool2d(x, 65),
        lambda: (f32(1, 1, 66, 66),),
        "windows that are not of one size",
    ),
    "flip_short_rows": (lambda x: x.flip(1), lambda: (f32(1000, 100),), "turned round along dimension 1"),
    "unfold_many": (lambda x: x.unfold(0, 65, 2), lambda: (f32(100),), "windows of 65 elements, 2 apart"),
    "im2col_many": (lambda x: F.unfold(x, 9), lambda: (f32(1, 1, 9, 9),), "at most 64 elements"),
    "interpolate_scale": (
        lambda x: F.interpolate(x, scale_factor=1.3, mode="bilinear"),
        lambda: (f32(1, 2, 5, 5),),
        "a scale of 1.3 from size 5 to 6, expected the ratio of the sizes",
    ),
    "var_double": (lambda x: x.var(1), lambda: (f32(4, 7).double(),), "float64"),
    "norm_3": (lambda x: torch.linalg.vector_norm(x, 3, dim=1), lambda: (f32(4, 7),), "a norm of order 3"),
    "repeat_5d": (lambda x: x.repeat(1, 2, 1, 2, 1), lambda: (f32(4, 7),), "repeat over 5 dimensions, at most 4"),
    "slice_scatter_step": (
        lambda x, y: torch.slice_scatter(x, y, 1, 0, 6, 2),
        lambda: (f32(2, 8), f32(2, 3)),
        "step 2, only 1 is supported",
    ),
}


def as_tuple(graph: Any) -> Any:
    """A graph whose single output stands in a tuple, as AOTAutograd gives it."""
    graph.graph.eliminate_dead_code()
    output = next(iter(reversed(graph.graph.nodes)))
    if isinstance(output.args[0], torch.fx.Node):
        output.args = ((output.args[0],),)
    return graph


def check(got: Any, want: Any) -> None:
    """Equal in structure, dtype, shape and strides, and close in value, with NaN and infinities in the same places."""
    if isinstance(want, (tuple, list)):
        assert len(got) == len(want)
        for g, w in zip(got, want, strict=True):
            check(g, w)
        return
    assert got.dtype == want.dtype and got.shape == want.shape
    if want.is_floating_point():
        torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-6, equal_nan=True)
    else:
        assert torch.equal(got, want)


# With AVX-512, PyTorch's own gelu in float32 turns infinity into NaN.
REFERENCES: dict[str, Callable[..., Any]] = {"gelu": lambda x: F.gelu(x.double()).float()}


@pytest.mark.parametrize("name", CASES)
def test_rule(compiler: Any, name: str) -> None:
    function, arguments = CASES[name]
    args = arguments()
    with torch.no_grad():
        want = REFERENCES.get(name, function)(*args)
        # Without TorchDynamo in between, which would take most of the time.
        traced = make_fx(lambda *xs: torch.func.functionalize(lambda *ys: function(*ys))(*xs), tracing_mode="fake")
        graph = traced(*args)
        compiled = compile_aten(as_tuple(graph), frozenset(), compiler.CompilerConfig(fallback="error"))
        got = compiled(list(args))
        check(list(got) if isinstance(want, (tuple, list)) else got[0], want)
    stats = compiler.compilation_stats()
    assert stats.partitions == 1 and stats.nodes_unsupported == 0
    assert all("a tensor of the graph has no elements" in reason for reason in stats.eager_shapes)
    assert bool(stats.eager_shapes) == name.endswith("_of_nothing")


@pytest.mark.parametrize("name", ["expm1", "log1p"])
def test_small_numbers_keep_their_digits(compiler: Any, name: str) -> None:
    function = getattr(torch, name)
    x = torch.cat([sign * torch.logspace(-30, -0.05, 200) for sign in (1, -1)] + [torch.logspace(-0.05, 1.9, 100)])
    compiled = torch.compile(function, backend=compiler.thresher_backend, options={"fallback": "error"})
    with torch.no_grad():
        torch.testing.assert_close(compiled(x).double(), function(x.double()), rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_rule_refuses_says_why(compiler: Any, name: str) -> None:
    function, arguments, reason = REFUSED[name]
    args = arguments()
    with torch.no_grad():
        graph = as_tuple(make_fx(lambda *xs: function(*xs), tracing_mode="fake")(*args))
        with pytest.raises(compiler.UnsupportedOperatorError, match=reason):
            compile_aten(graph, frozenset(), compiler.CompilerConfig(fallback="error"))(list(args))


@pytest.mark.parametrize("name", ["views", "softmax_dim", "bmm", "layer_norm", "slice", "index_middle", "mean_dim"])
def test_rule_with_dynamic_shapes_and_strided_inputs(compiler: Any, name: str) -> None:
    function, arguments = CASES[name]
    args = [torch.cat([a, a], -1)[..., : a.shape[-1]] for a in arguments()]
    compiled = torch.compile(function, backend=compiler.thresher_backend, options={"fallback": "error"}, dynamic=True)
    with torch.no_grad():
        check(compiled(*args), function(*args))


def test_linear_of_a_vector(compiler: Any) -> None:
    args = (f32(5), f32(7, 5), f32(7))
    compiled = torch.compile(F.linear, backend=compiler.thresher_backend, options={"fallback": "error"})
    with torch.no_grad():
        check(compiled(*args), F.linear(*args))


def test_output_strides_are_those_of_pytorch(compiler: Any) -> None:
    def function(x: Any) -> Any:
        return (x * 2).permute(2, 0, 1), (x + 1).transpose(0, 1)

    x = f32(2, 3, 4)
    compiled = torch.compile(function, backend=compiler.thresher_backend)
    with torch.no_grad():
        for got, want in zip(compiled(x), function(x), strict=True):
            assert got.stride() == want.stride()
            check(got, want)


def test_no_rule_is_registered_for_an_operator_pytorch_lacks() -> None:
    from thresher.compiler import importer
    from thresher.compiler.builder import RULES

    assert len(importer.FAMILIES) == 6
    assert all(isinstance(target, (torch._ops.OpOverload, str)) for target in RULES)


def test_no_rule_is_registered_for_an_operator_that_pytorch_takes_apart() -> None:
    from thresher.compiler.builder import RULES

    composite = "CompositeImplicitAutograd"
    apart = [
        t
        for t in RULES
        if not isinstance(t, str) and torch._C._dispatch_has_kernel_for_dispatch_key(t.name(), composite)
    ]
    kept = {aten.sym_numel.default, aten.sym_size.int, aten._fused_rms_norm.default}
    assert set(apart) == kept, "PyTorch keeps these: of symbolic sizes, and of CUDA tensors"

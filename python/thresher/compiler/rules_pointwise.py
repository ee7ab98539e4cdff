"""Importer rules: operators that work element by element."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from thresher.compiler.builder import Builder, Scalar, Value, rule
from thresher.compiler.errors import UnsupportedNode

aten: Any = torch.ops.aten

# What gives its operand as it is: tensors of the engine's graph are values, which nothing changes in place.
COPIES = (
    aten.clone.default,
    aten.detach.default,
    aten.alias.default,
    aten.lift_fresh_copy.default,
    aten.lift_fresh.default,
)


def _float(x: Value) -> torch.dtype:
    """What a floating-point function computes in: integers become the default float."""
    return x.dtype if x.dtype.is_floating_point else torch.float32


# ---- one operand ----


def _float_unary(op: str) -> Callable[[Builder, SimpleNamespace], Value]:
    return lambda b, a: b.unary(op, a.self, _float(a.self))


for _name in ("exp", "log", "sqrt", "rsqrt", "reciprocal", "erf", "tanh", "sigmoid", "sin", "cos", "silu"):
    rule(getattr(aten, _name).default)(_float_unary(_name))


def _unary(op: str) -> Callable[[Builder, SimpleNamespace], Value]:
    return lambda b, a: b.unary(op, a.self)


for _name in ("neg", "abs", "sign", "floor", "ceil", "round", "trunc"):
    rule(getattr(aten, _name).default)(_unary(_name))
rule(aten.sgn.default)(_unary("sign"))


@rule(aten.relu.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return b.unary("relu", a.self) if a.self.dtype.is_floating_point else b.binary("maximum", a.self, 0, a.self.dtype)


@rule(aten.gelu.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    if a.approximate not in ("none", "tanh"):
        raise UnsupportedNode(f"approximate={a.approximate!r}")
    return b.unary("gelu" if a.approximate == "none" else "gelu_tanh", a.self)


@rule(aten.bitwise_not.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return b.unary("logical_not" if a.self.dtype == torch.bool else "bitwise_not", a.self)


@rule(aten.logical_not.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return b.unary("logical_not", a.self, torch.bool)


@rule(aten.isnan.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return b.emit("ne", [a.self, a.self])


@rule(aten.isinf.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    if not a.self.dtype.is_floating_point:
        return b.full(a.self.shape, False, torch.bool)
    return b.binary("eq", b.unary("abs", a.self), math.inf)


@rule(aten.hardtanh.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return _clamp(b, a.self, a.min_val, a.max_val)


@rule(aten.hardsigmoid.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return _hardsigmoid(b, a.self)


@rule(aten.hardswish.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    # PyTorch divides after the product; the order decides the last bit.
    gate = _clamp(b, b.binary("add", a.self, 3.0), 0.0, 6.0)
    return b.binary("div", b.binary("mul", a.self, gate), 6.0)


def _hardsigmoid(b: Builder, x: Value) -> Value:
    return b.binary("div", _clamp(b, b.binary("add", x, 3.0), 0.0, 6.0), 6.0)


@rule(aten.leaky_relu.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return b.where(b.binary("gt", a.self, 0), a.self, b.binary("mul", a.self, a.negative_slope))


@rule(aten._prelu_kernel.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return b.where(b.binary("gt", a.self, 0), a.self, b.binary("mul", a.self, a.weight))


@rule(aten.elu.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    x = a.self
    below = b.binary("mul", _expm1_below(b, b.binary("mul", x, a.input_scale), 0.0), a.alpha * a.scale)
    above = x if a.scale == 1 else b.binary("mul", x, a.scale)
    return b.where(b.binary("gt", x, 0), above, below)


@rule(aten.celu.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    below = b.binary("mul", _expm1_below(b, b.binary("div", a.self, a.alpha), 0.0), a.alpha)
    return b.where(b.binary("gt", a.self, 0), a.self, below)


@rule(aten.softplus.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    scaled = b.binary("mul", a.self, a.beta)
    smooth = b.binary("div", _softplus(b, scaled), a.beta)
    return b.where(b.binary("gt", scaled, a.threshold), a.self, smooth)


@rule(aten.mish.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return b.binary("mul", a.self, b.unary("tanh", _softplus(b, a.self)))


@rule(aten.log_sigmoid_forward.default)
def _(b: Builder, a: SimpleNamespace) -> tuple[Value, None]:
    if b.out_used(1):
        raise UnsupportedNode("the buffer output, which only training needs, is not offered")
    return b.unary("neg", _softplus(b, b.unary("neg", a.self))), None


@rule(aten.expm1.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    x = b.cast(a.self, _float(a.self))
    # From 1 on nothing cancels.
    return b.where(b.binary("gt", x, 1.0), b.binary("sub", b.unary("exp", x), 1.0), _expm1_below(b, x, 1.0))


@rule(aten.log1p.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    x = b.cast(a.self, _float(a.self))
    return b.where(b.binary("eq", x, math.inf), x, _log1p(b, x))


def _expm1_below(b: Builder, x: Value, most: float) -> Value:
    """exp(min(x, most)) - 1 without cancellation, most up to 1.

    2 t / (1 - t) with t = tanh(x / 2), and 1 - t is in [0.5, 2].
    """
    t = b.unary("tanh", b.binary("mul", b.binary("minimum", x, most), 0.5))
    return b.binary("div", b.binary("mul", t, 2.0), b.binary("sub", 1.0, t))


def _log1p(b: Builder, u: Value) -> Value:
    """log(1 + u) of a finite u: u * log(w) / (w - 1) with w = 1 + u, where the rounding of w cancels."""
    w = b.binary("add", u, 1.0)
    below = b.binary("sub", w, 1.0)
    return b.where(b.binary("eq", below, 0.0), u, b.binary("mul", u, b.binary("div", b.unary("log", w), below)))


def _softplus(b: Builder, x: Value) -> Value:
    """log(1 + exp(x)) = max(x, 0) + log1p(exp(-|x|))."""
    return b.binary("add", b.binary("maximum", x, 0.0), _log1p(b, b.unary("exp", b.unary("neg", b.unary("abs", x)))))


# ---- two operands ----


@rule(aten.add.Tensor, aten.add.Scalar)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return _sum(b, "add", a.self, a.other, a.alpha)


@rule(aten.sub.Tensor, aten.sub.Scalar)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return _sum(b, "sub", a.self, a.other, a.alpha)


@rule(aten.rsub.Tensor, aten.rsub.Scalar)
def _(b: Builder, a: SimpleNamespace) -> Value:
    dtype = b.out_dtype()
    other = b.operand(a.other, dtype)
    x = a.self if a.alpha == 1 else b.binary("mul", a.self, a.alpha, dtype)
    return b.binary("sub", other, x, dtype)


def _sum(b: Builder, op: str, x: Value | Scalar, y: Value | Scalar, alpha: float) -> Value:
    dtype = b.out_dtype()
    if dtype == torch.bool and alpha != 1:
        raise UnsupportedNode("alpha with bool operands")
    if alpha != 1:
        y = b.binary("mul", b.operand(y, dtype), alpha, dtype)
    left, right = b.operand(x, dtype), b.operand(y, dtype)
    if right.scalar == 0 and isinstance(right.scalar, int) and right.rank <= left.rank and right.numel == 1:
        return left  # an integer + 0, as in position offsets
    return b.binary(op, left, right, dtype)


@rule(aten.mul.Tensor, aten.mul.Scalar)
def _(b: Builder, a: SimpleNamespace) -> Value:
    dtype = b.out_dtype()
    return b.binary("logical_and" if dtype == torch.bool else "mul", a.self, a.other, dtype)


@rule(aten.div.Tensor, aten.div.Scalar)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return b.binary("div", a.self, a.other, b.out_dtype())


@rule(aten.div.Tensor_mode, aten.div.Scalar_mode)
def _(b: Builder, a: SimpleNamespace) -> Value:
    dtype = b.out_dtype()
    if a.rounding_mode is None:
        return b.binary("div", a.self, a.other, dtype)
    if a.rounding_mode == "floor":
        return _floor_divide(b, a.self, a.other, dtype)
    if dtype.is_floating_point:
        return b.unary("trunc", b.binary("div", a.self, a.other, dtype))
    whole = b.binary("sub", a.self, b.binary("fmod", a.self, a.other, dtype), dtype)
    return _floor_divide(b, whole, a.other, dtype)


@rule(aten.floor_divide.default, aten.floor_divide.Scalar)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return _floor_divide(b, a.self, a.other, b.out_dtype())


def _floor_divide(b: Builder, x: Value | Scalar, y: Value | Scalar, dtype: torch.dtype) -> Value:
    _want_divisor(y, dtype)
    return b.binary("floor_divide", x, y, dtype)


def _want_divisor(y: Value | Scalar, dtype: torch.dtype) -> None:
    """Refuses integer divisors that may be 0: PyTorch raises an error that depends on the data."""
    known = y.scalar if isinstance(y, Value) else y
    if not dtype.is_floating_point and not known:
        raise UnsupportedNode("an integer divisor that may be 0, expected one that is known")


def _rest(op: str) -> Callable[[Builder, SimpleNamespace], Value]:
    def divide(b: Builder, a: SimpleNamespace) -> Value:
        dtype = b.out_dtype()
        _want_divisor(a.other, dtype)
        return b.binary(op, a.self, a.other, dtype)

    return divide


rule(aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor)(_rest("remainder"))
rule(aten.fmod.Tensor, aten.fmod.Scalar)(_rest("fmod"))


@rule(aten.maximum.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return b.binary("maximum", a.self, a.other)


@rule(aten.minimum.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return b.binary("minimum", a.self, a.other)


def _comparison(op: str) -> Callable[[Builder, SimpleNamespace], Value]:
    def compare(b: Builder, a: SimpleNamespace) -> Value:
        return b.binary(op, a.self, a.other)

    return compare


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    rule(getattr(aten, _name).Tensor, getattr(aten, _name).Scalar)(_comparison(_name))


def _bitwise(op: str) -> Callable[[Builder, SimpleNamespace], Value]:
    def combine(b: Builder, a: SimpleNamespace) -> Value:
        dtype = b.promote(a.self, a.other)
        return b.binary(
            op.replace("bitwise", "logical") if dtype == torch.bool and "xor" not in op else op, a.self, a.other, dtype
        )

    return combine


for _name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
    rule(getattr(aten, _name).Tensor, getattr(aten, _name).Scalar)(_bitwise(_name))


@rule(aten.logical_and.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return b.binary("logical_and", a.self, a.other, torch.bool)


@rule(aten.logical_or.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return b.binary("logical_or", a.self, a.other, torch.bool)


@rule(aten.logical_xor.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return b.binary("ne", a.self, a.other, torch.bool)


@rule(aten.pow.Tensor_Scalar)
def _(b: Builder, a: SimpleNamespace) -> Value:
    dtype = b.out_dtype()
    x = b.cast(a.self, dtype)
    exponent = a.exponent
    if exponent == 1:
        return x
    if exponent == 2:
        return b.emit("mul", [x, x])
    if exponent == 3:
        return b.emit("mul", [b.emit("mul", [x, x]), x])
    if dtype.is_floating_point:
        special = {0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}.get(exponent)
        if special is not None:
            return b.unary(special, x)
    return b.binary("pow", x, exponent, dtype)


@rule(aten.pow.Tensor_Tensor, aten.pow.Scalar)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return b.binary("pow", a.self, a.exponent, b.out_dtype())


# ---- three operands ----


@rule(aten.where.self)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return b.where(a.condition, a.self, a.other, b.out_dtype())


@rule(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return b.where(a.mask, a.value, a.self, b.out_dtype())


def _clamp(b: Builder, x: Value, low: Value | Scalar | None, high: Value | Scalar | None) -> Value:
    dtype = b.out_dtype()
    if low is not None:
        x = b.binary("maximum", x, low, dtype)
    if high is not None:
        x = b.binary("minimum", x, high, dtype)
    return b.cast(x, dtype)


@rule(aten.clamp.default, aten.clamp.Tensor)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return _clamp(b, a.self, a.min, a.max)


@rule(aten.clamp_min.default, aten.clamp_min.Tensor)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return _clamp(b, a.self, a.min, None)


@rule(aten.clamp_max.default, aten.clamp_max.Tensor)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return _clamp(b, a.self, None, a.max)


@rule(aten.lerp.Scalar)
def _(b: Builder, a: SimpleNamespace) -> Value:
    # As PyTorch does: from the nearer end, so that a weight of 1 gives the end itself.
    way = b.binary("sub", a.end, a.self)
    if abs(a.weight) < 0.5:
        return b.binary("add", a.self, b.binary("mul", way, float(a.weight)))
    return b.binary("sub", a.end, b.binary("mul", way, 1.0 - float(a.weight)))


@rule(aten.nan_to_num.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    x: Value = a.self
    if not x.dtype.is_floating_point:
        return x
    limits = torch.finfo(x.dtype)
    highest = limits.max if a.posinf is None else float(a.posinf)
    lowest = limits.min if a.neginf is None else float(a.neginf)
    known = b.where(b.emit("ne", [x, x]), 0.0 if a.nan is None else float(a.nan), x, x.dtype)
    known = b.where(b.binary("eq", x, math.inf), highest, known, x.dtype)
    return b.where(b.binary("eq", x, -math.inf), lowest, known, x.dtype)


@rule(aten.addcmul.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    product = b.binary("mul", a.tensor1, a.tensor2)
    return b.binary("add", a.self, product if a.value == 1 else b.binary("mul", product, a.value))


@rule(aten.addcdiv.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    numerator = a.tensor1 if a.value == 1 else b.binary("mul", a.tensor1, a.value)
    return b.binary("add", a.self, b.binary("div", numerator, a.tensor2))


@rule(aten.glu.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    axis = a.dim % a.self.rank
    half = a.self.shape[axis] // 2
    gate = b.unary("sigmoid", b.slice(a.self, axis, half, None))
    return b.emit("mul", [b.slice(a.self, axis, 0, half), gate])


# ---- conversions and copies ----


@rule(torch.ops.prims.convert_element_type.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return b.cast(a.a, b.out_dtype())


@rule(aten._to_copy.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return b.cast(a.self, b.out_dtype())


@rule(*COPIES)
def _(b: Builder, a: SimpleNamespace) -> Value:
    value: Value = a.self
    return value


@rule(aten.native_dropout.default)
def _(b: Builder, a: SimpleNamespace) -> tuple[Value, Value]:
    if a.train is not False and a.p:
        raise UnsupportedNode(f"dropout with probability {a.p} in training")
    return a.input, b.full(a.input.shape, True, torch.bool)


@rule(aten.copy.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return b.expand(b.cast(a.src, a.self.dtype), a.self.shape)


@rule(aten.gelu_backward.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    grad, x = a.grad_output, a.self
    if a.approximate == "none":
        cdf = b.binary("mul", b.binary("add", b.unary("erf", b.binary("mul", x, math.sqrt(0.5))), 1.0), 0.5)
        pdf = b.unary("exp", b.binary("mul", b.binary("mul", x, x), -0.5))
        slope = b.binary("add", cdf, b.binary("mul", x, b.binary("mul", pdf, 1.0 / math.sqrt(2.0 * math.pi))))
        return b.binary("mul", grad, slope)
    beta, cubic = math.sqrt(2.0 / math.pi), 0.044715
    square = b.binary("mul", x, x)
    inner = b.binary("mul", b.binary("mul", x, b.binary("add", b.binary("mul", square, cubic), 1.0)), beta)
    t = b.unary("tanh", inner)
    left = b.binary("mul", b.binary("add", t, 1.0), 0.5)
    slope = b.binary("mul", b.binary("add", b.binary("mul", square, 3.0 * cubic), 1.0), beta)
    right = b.binary(
        "mul", b.binary("mul", b.binary("mul", x, 0.5), b.binary("sub", 1.0, b.binary("mul", t, t))), slope
    )
    return b.binary("mul", grad, b.binary("add", left, right))


@rule(aten.tanh_backward.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    return b.binary("mul", a.grad_output, b.binary("sub", 1.0, b.binary("mul", a.output, a.output)))


@rule(aten.sigmoid_backward.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    slope = b.binary("mul", b.binary("sub", 1.0, a.output), a.output)
    return b.binary("mul", a.grad_output, slope)


@rule(aten.threshold_backward.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    # x <= threshold, not its opposite, so that NaN passes the gradient on.
    return b.where(b.binary("le", a.self, a.threshold), 0.0, a.grad_output, b.out_dtype())


@rule(aten._softmax_backward_data.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    product = b.binary("mul", a.grad_output, a.output)
    total = b.reduce("sum", product, [a.dim], True)
    return b.binary("sub", product, b.binary("mul", a.output, total))

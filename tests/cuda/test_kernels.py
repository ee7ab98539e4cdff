"""Kernels of devices against numpy in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

_ERF = np.vectorize(math.erf, otypes=[np.float64])
_SPECIAL = np.array(
    [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -2.5, 88.8, -90.0, 1e-30, 3e38, 1e-42], np.float32
)


def _random(shape: Any, seed: int = 0, scale: float = 2.0) -> Any:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def _with_special_values(shape: Any, seed: int = 0) -> Any:
    x = _random(shape, seed)
    flat = x.reshape(-1)
    places = np.random.default_rng(seed + 1).integers(0, flat.size, flat.size // 4)
    flat[places] = _SPECIAL[np.arange(len(places)) % len(_SPECIAL)]
    return x


def _assert_close(actual: Any, expected: Any, *, relative: float, absolute: float) -> None:
    assert actual.shape == expected.shape
    # What float32 cannot hold is an infinity there; below the smallest normal number devices may lose digits.
    with np.errstate(over="ignore"):
        wanted = expected.astype(np.float32).astype(np.float64)
    assert np.array_equal(np.isnan(actual), np.isnan(wanted))
    infinite = np.isinf(wanted) | np.isinf(actual)
    assert np.array_equal(actual[infinite], wanted[infinite])
    finite = np.isfinite(wanted)
    error = np.abs(actual[finite] - wanted[finite]) - relative * np.abs(wanted[finite])
    assert error.size == 0 or error.max() <= absolute, f"off by {error.max()} beyond {relative} relative"


# ---- Chains of element-wise operators ----

_UNARY = {
    "neg": lambda x: -x,
    "abs": np.abs,
    "sign": lambda x: np.where(np.isnan(x), 0, np.sign(x)),
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "trunc": np.trunc,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / x,
    "erf": _ERF,
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "relu": lambda x: np.where(x < 0, 0, x),
    "gelu": lambda x: 0.5 * x * (1 + _ERF(x * math.sqrt(0.5))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "sin": np.sin,
    "cos": np.cos,
}
_BINARY = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "pow": np.power,
}
_COMPARISONS = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


def _pointwise(lab: Any, program: str, operands: list[Any]) -> Any:
    """Operands are arrays, or pairs of one and the operators that make a window of it: [(name, attributes), ...]."""
    pairs = [operand if isinstance(operand, tuple) else (operand, []) for operand in operands]

    def build(graph: Any) -> Any:
        values = []
        for array, views in pairs:
            value = graph.input("x", "f32", array.shape)
            for op, attrs in views:
                (value,) = graph.add(op, [value], attrs)
            values.append(value)
        return graph.add("pointwise", values, {"program": program})

    (out,) = lab.run(lab.plan(build), *(array for array, _ in pairs))
    return out


@pytest.mark.parametrize("op", _UNARY)
def test_unary(lab: Any, op: str) -> None:
    x = _with_special_values(3001)
    if op in ("sin", "cos"):
        x = np.clip(x, -1e4, 1e4)
    with np.errstate(all="ignore"):
        expected = _UNARY[op](x.astype(np.float64))
    if op == "trunc":
        expected = np.where(np.isinf(x), x, expected)
    actual = _pointwise(lab, f"s0={op}(in0)", [x])
    # gelu loses digits where 1 + erf cancels; the others are good to the last bits.
    tolerance = {"relative": 1e-6, "absolute": 5e-7} if "gelu" in op else {"relative": 1e-6, "absolute": 4e-7}
    _assert_close(actual, expected, **tolerance)


@pytest.mark.parametrize("op", _BINARY)
def test_binary(lab: Any, op: str) -> None:
    a, b = _with_special_values(2003, 1), _with_special_values(2003, 3)
    with np.errstate(all="ignore"):
        expected = _BINARY[op](a.astype(np.float64), b.astype(np.float64))
    _assert_close(_pointwise(lab, f"s0={op}(in0,in1)", [a, b]), expected, relative=2e-6, absolute=1e-37)


@pytest.mark.parametrize("op", _COMPARISONS)
def test_comparisons_and_where(lab: Any, op: str) -> None:
    a, b = _with_special_values(1500, 1), _with_special_values(1500, 1)
    b[::3] = _random(500, 9)
    program = f"s0={op}(in0,in1); s1=isnan(in0); s2=logical_or(s0,s1); s3=where(s2,in1,-2.5)"
    expected = np.where(_COMPARISONS[op](a, b) | np.isnan(a), b, np.float32(-2.5))
    _assert_close(_pointwise(lab, program, [a, b]), expected.astype(np.float64), relative=0, absolute=0)


_CHAIN = "s0=mul(in0,in1); s1=add(s0,in2); s2=gelu(s1); s3=sub(s2,s0); s4=maximum(s3,-0.25); s5=add(s4,s1)"


def _chain(a: Any, b: Any, c: Any) -> Any:
    a, b, c = (x.astype(np.float64) for x in (a, b, c))
    s1 = a * b + c
    return np.maximum(_UNARY["gelu"](s1) - a * b, -0.25) + s1


@pytest.mark.parametrize(
    "shape", [(1,), (31,), (1023,), (1024,), (1025,), (4097,), (3, 1), (7, 130), (3, 5, 67), (2, 3, 4, 5, 6)]
)
def test_chain_of_several_steps(lab: Any, shape: tuple[int, ...]) -> None:
    a, b, c = (_random(shape, seed) for seed in range(3))
    _assert_close(_pointwise(lab, _CHAIN, [a, b, c]), _chain(a, b, c), relative=2e-6, absolute=2e-6)


def test_chain_with_broadcasts(lab: Any) -> None:
    shape = (6, 35, 50)
    a, row, column = _random(shape, 0), _random((50,), 1), _random((6, 35, 1), 2)
    expected = _chain(a, np.broadcast_to(row, shape), np.broadcast_to(column, shape))
    _assert_close(_pointwise(lab, _CHAIN, [a, row, column]), expected, relative=2e-6, absolute=2e-6)


def test_chain_with_strides(lab: Any) -> None:
    shape = (30, 40)
    turned, stepped, shifted = _random((40, 30), 0), _random((30, 80), 1), _random((31, 40), 2)
    operands = [
        (turned, [("permute", {"dims": [1, 0]})]),
        (stepped, [("slice", {"dim": 1, "start": 1, "step": 2})]),
        (shifted, [("slice", {"start": 1})]),
    ]
    expected = _chain(turned.T, stepped[:, 1::2], shifted[1:])
    found = _pointwise(lab, _CHAIN, operands)
    assert found.shape == shape
    _assert_close(found, expected, relative=2e-6, absolute=2e-6)


def test_chain_with_every_slot_in_use(lab: Any) -> None:
    """Eight results are alive at the same time."""
    x = _random(2000)
    steps = [f"s{i}=add(in0,{float(i)})" for i in range(8)]
    steps += ["s8=mul(s0,s1)"] + [f"s{i + 7}=add(s{i + 6},s{i})" for i in range(2, 8)]
    wide = x.astype(np.float64)
    expected = wide * (wide + 1) + sum(wide + i for i in range(2, 8))
    _assert_close(_pointwise(lab, "; ".join(steps), [x]), expected, relative=2e-6, absolute=1e-5)


@pytest.mark.parametrize("exponent", [2.0, 3.0, -1.0, 0.5, -0.5, 1.7])
def test_powers_with_one_exponent(lab: Any, exponent: float) -> None:
    x = np.abs(_random(1000)) + 0.1
    expected = x.astype(np.float64) ** exponent
    _assert_close(_pointwise(lab, f"s0=pow(in0,{exponent})", [x]), expected, relative=2e-6, absolute=0)
    single = np.array([exponent], np.float32)
    _assert_close(_pointwise(lab, "s0=pow(in0,in1)", [x, single]), expected, relative=2e-6, absolute=0)


def test_chain_of_nothing(lab: Any) -> None:
    assert _pointwise(lab, "s0=neg(in0)", [np.zeros((3, 0), np.float32)]).shape == (3, 0)


def test_wrong_programs_are_refused(lab: Any) -> None:
    for program, message in (
        ("s0=frobnicate(in0)", "frobnicate"),
        ("s0=neg(in1)", "expected an argument below in1, got in1"),
        ("s0=gt(in0,1.0)", "expected the result as f32"),
    ):
        with pytest.raises((ValueError, NotImplementedError), match=message):
            _pointwise(lab, program, [_random(16)])


def test_buffers_that_do_not_fit_are_named(lab: Any) -> None:
    plan = lab.plan(lambda graph: graph.add("softmax", [graph.input("x", "f32", (4, 5))]))
    large, small = lab.device.empty(80), lab.device.empty(79)
    with pytest.raises(ValueError, match="input 0: expected 80 bytes from 0, got a buffer of 79"):
        plan.launch(lab.stream, [small], [large])
    with pytest.raises(ValueError, match="output 0: expected 80 bytes from 0, got a buffer of 79"):
        plan.launch(lab.stream, [large], [small])
    with pytest.raises(ValueError, match="expected 1 inputs and 1 outputs, got 2 and 0"):
        plan.launch(lab.stream, [large, large], [])
    plan.launch(lab.stream, [large], [large])


@pytest.mark.gpu
def test_operators_without_a_kernel_are_named(gpu: Any) -> None:
    with pytest.raises(NotImplementedError, match="all_reduce: expected a kernel all_reduce on this device, got copy"):
        gpu.node("all_reduce", _random((4, 8)))


@pytest.mark.parametrize("layout", ["nk", "kn"])
@pytest.mark.parametrize("rows", [5, 90])
def test_runs_of_rows_times_a_weight_each(lab: Any, layout: str, rows: int) -> None:
    """The experts of a mixture; the last row belongs to none."""
    x, ends = _random((rows, 40)), np.array([rows // 3, rows // 3, rows - 1])
    weights = [_random((40, 24) if layout == "kn" else (24, 40), seed) for seed in range(1, 4)]
    (out,) = lab.node("grouped_linear", x, ends, *weights, layout=layout)
    expected, begin = np.zeros((rows, 24)), 0
    for end, weight in zip(ends, weights, strict=True):
        wide = weight.astype(np.float64)
        expected[begin:end] = x[begin:end].astype(np.float64) @ (wide if layout == "kn" else wide.T)
        begin = end
    _assert_close(out, expected, relative=1e-5, absolute=1e-4)


def test_results_come_back_to_the_host(lab: Any) -> None:
    """run() copies in and out by itself, whatever the strides of the arrays."""
    plan = lab.plan(lambda graph: graph.add("softmax", [graph.input("x", "f32", (30, 40))]))
    x, out = _random((80, 30)), np.zeros((30, 40), np.float32)
    plan.run([x[::2].T], [out])
    _assert_close(out, _softmax(np.ascontiguousarray(x[::2].T)[..., None], False)[..., 0], relative=5e-6, absolute=1e-7)


@pytest.mark.gpu
def test_more_elements_than_32_bits_count(real_gpu: Any) -> None:
    """Broadcast from a few numbers, so that only the output is large."""
    gpu = real_gpu
    rows, cols = 3, (1 << 30) + 11
    if gpu.device.info["memory_bytes"] < 20 << 30:
        pytest.skip("wants a GPU with 20 GiB")

    def build(graph: Any) -> Any:
        row, column = graph.input("row", "f32", (64,)), graph.input("column", "f32", (rows, 1))
        (element,) = graph.add("slice", [row], {"start": 5, "end": 6})
        (wide,) = graph.add("expand", [column], {"shape": [rows, cols]})
        return graph.add("pointwise", [element, wide], {"program": "s0=mul(in0,in1)"})

    plan = gpu.plan(build)
    row, column = gpu.put(_random(64, 1)), gpu.put(np.array([1, 2, 3], np.float32))
    out = gpu.device.empty(rows * cols * 4)
    gpu.stream.fill(out, 0xFF, rows * cols * 4)
    plan.launch(gpu.stream, [row, column], [out])
    part = gpu.device.empty(1 << 20)
    expected = _random(64, 1)[5]
    for index in (0, cols - 1, cols, 2 * cols - 1, 2 * cols, rows * cols - (1 << 18)):
        count = min(1 << 18, rows * cols - index)
        gpu.stream.copy(part, out, nbytes=count * 4, source_offset=index * 4)
        found = gpu.get(part, np.zeros(1 << 18, np.float32))[:count]
        wanted = expected * (1 + (index + np.arange(count)) // cols).astype(np.float32)
        assert np.array_equal(found, wanted), index


# ---- Norms ----


def _norm(
    kind: str, x: Any, residual: Any = None, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> tuple[Any, Any]:
    # The sum is rounded to float32 before it is normalised.
    total = (x if residual is None else x + residual).astype(np.float64)
    centred = total - total.mean(1, keepdims=True) if kind == "layer_norm" else total
    out = centred / np.sqrt((centred**2).mean(1, keepdims=True) + eps)
    if weight is not None:
        out = out * weight
    return (out if bias is None else out + bias), total


_LENGTHS = (1, 2, 31, 32, 33, 64, 100, 384, 511, 512, 513, 768, 1000, 1024, 2047, 4096, 4097, 8192, 16384, 16385, 50257)


def _run_norm(lab: Any, kind: str, x: Any, weight: Any = None, bias: Any = None) -> Any:
    (out,) = lab.node(kind, x, weight, *([bias] if kind == "layer_norm" else []))
    return out


@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm"])
def test_norm_of_rows_of_every_length(lab: Any, kind: str) -> None:
    for cols in _LENGTHS:
        for rows in (1, 7):
            x, weight, bias = _random((rows, cols), cols), _random(cols, 1), _random(cols, 2)
            expected, _ = _norm(kind, x, weight=weight, bias=bias if kind == "layer_norm" else None)
            found = _run_norm(lab, kind, x, weight, bias)
            _assert_close(found, expected, relative=2e-5, absolute=2e-5 if cols > 2 else 2e-2)


@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("cols", [48, 768, 2000])
def test_norm_with_residual_sum_and_distant_rows(lab: Any, kind: str, cols: int) -> None:
    rows, stride = 5, cols + 3
    x, residual = _random((rows, stride), 1), _random((rows, stride), 2)
    for with_sum in (False, True):

        def build(graph: Any, with_sum: bool = with_sum) -> Any:
            windows = [
                graph.add("slice", [graph.input(name, "f32", (rows, stride))], {"dim": 1, "end": cols})[0]
                for name in ("x", "residual")
            ]
            absent = [None] * (2 if kind == "layer_norm" else 1)
            return graph.add(kind, [windows[0], *absent, windows[1]], {"eps": 1e-3, "sum": with_sum})

        found = lab.run(lab.plan(build), x, residual)
        expected, expected_sum = _norm(kind, x[:, :cols], residual[:, :cols], eps=1e-3)
        _assert_close(found[0], expected, relative=1e-5, absolute=1e-5)
        if with_sum:
            _assert_close(found[1], expected_sum, relative=0, absolute=0)


@pytest.mark.parametrize("cols", [64, 4096, 20000])
def test_norm_of_numbers_with_a_large_common_offset(lab: Any, cols: int) -> None:
    x = _random((3, cols), 5, 1.0) + np.float32(1e4)
    _assert_close(_run_norm(lab, "layer_norm", x), _norm("layer_norm", x)[0], relative=0, absolute=2e-5)


def test_norm_keeps_nan_in_its_row(lab: Any) -> None:
    for cols in (50, 700):
        x = _random((4, cols), 1)
        x[1, 3], x[3, cols - 1] = np.nan, np.inf
        found = _run_norm(lab, "layer_norm", x)
        assert np.isnan(found).all(1).tolist() == [False, True, False, True]
        assert not np.isnan(found[[0, 2]]).any()


# ---- Softmax ----


def _assert_softmax(lab: Any, x: Any, log: bool) -> None:
    # The CPU adds up long rows in few chains, which costs digits.
    relative = 5e-6 + (1e-9 * x.shape[1] if lab.is_cpu else 0)
    _assert_close(_run_softmax(lab, x, log), _softmax(x, log), relative=relative, absolute=5e-6 if log else 1e-7)


def _softmax(x: Any, log: bool) -> Any:
    wide = x.astype(np.float64)
    with np.errstate(invalid="ignore"):
        shifted = wide - wide.max(1, keepdims=True)
        total = np.exp(shifted).sum(1, keepdims=True)
        return shifted - np.log(total) if log else np.exp(shifted) / total


def _run_softmax(lab: Any, x: Any, log: bool) -> Any:
    (out,) = lab.node("log_softmax" if log else "softmax", x, dim=1)
    return out


@pytest.mark.parametrize("log", [False, True])
def test_softmax_of_rows_of_every_length(lab: Any, log: bool) -> None:
    for dim in _LENGTHS:
        for outer in (1, 9):
            x = _random((outer, dim, 1), dim, 5.0)
            _assert_softmax(lab, x, log)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("shape", [(1, 5, 2), (3, 1, 40), (2, 9, 33), (2, 100, 31), (4, 257, 3), (1, 12, 200)])
def test_softmax_over_a_middle_dimension(lab: Any, shape: tuple[int, int, int], log: bool) -> None:
    x = _random(shape, 1, 5.0)
    _assert_softmax(lab, x, log)


@pytest.mark.parametrize("dim", [5, 40, 700])
def test_softmax_of_special_values(lab: Any, dim: int) -> None:
    x = _random((7, dim, 1), 2)
    x[0, 1] = -np.inf
    x[1, 2] = np.nan
    x[2, 0] = np.inf
    x[3] = -np.inf
    x[4] = 1e30
    x[5] = 8.0
    found = _run_softmax(lab, x, False)
    assert np.isnan(found).all((1, 2)).tolist() == [False, True, True, True, False, False, False]
    assert found[0, 1, 0] == 0
    assert np.allclose(found[4], 1 / dim, rtol=1e-6) and np.allclose(found[5], 1 / dim, rtol=1e-6)
    turned = np.ascontiguousarray(x.reshape(7, dim).T).reshape(1, dim, 7)
    assert np.array_equal(
        np.isnan(_run_softmax(lab, turned, False)).all((0, 1)), np.isnan(found).all((1, 2)), equal_nan=True
    )


@pytest.mark.parametrize("shape", [(3, 37, 1), (3, 600, 1), (2, 20000, 1), (2, 9, 5)])
def test_softmax_of_very_negative_numbers(lab: Any, shape: tuple[int, int, int]) -> None:
    """Nothing but the elements themselves may decide about the maximum."""
    _assert_softmax(lab, _random(shape, 1) - np.float32(1000), False)


def test_rows_come_out_the_same_each_time(lab: Any) -> None:
    """Reductions add in a fixed order."""
    x = _random((64 if lab.is_real else 4, 3000, 1), 3, 4.0)
    first = _run_softmax(lab, x, False)
    for _ in range(5):
        assert np.array_equal(_run_softmax(lab, x, False), first)

"""Matrix products of devices against numpy in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

_EPSILON = float(np.finfo(np.float32).eps)


def _in_bf16(x: Any) -> Any:
    """The nearest bfloat16 numbers, as float32."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return (rounded << 16).astype(np.uint32).view(np.float32)


def _matrix(rows: int, cols: int, seed: int) -> Any:
    return np.random.default_rng(seed).standard_normal((rows, cols)).astype(np.float32)


class _Product:
    """Factors whose rows are `extra` elements longer than they need be; a weight that is a constant has none."""

    def __init__(self, m: int, n: int, k: int, kind: str, transpose_b: bool, extra: int = 0) -> None:
        self.sizes = (m, n, k)
        self.kind, self.transpose_b = kind, transpose_b
        self.a = _matrix(m, k + extra, 1)
        # What is multiplied in bf16 is a constant, rounded when the plan is made.
        extra_b = 0 if kind == "bf16" else extra
        self.b = _matrix(n if transpose_b else k, (k if transpose_b else n) + extra_b, 2)
        self.bias = _matrix(1, n, 3)[0]
        if kind == "bf16":
            self.a = _in_bf16(self.a)  # so that it is the same wherever rows are not rounded

    def run(self, lab: Any, *, bias: bool, allow_tf32: bool = False) -> Any:
        _, n, k = self.sizes
        constant = self.kind == "bf16"

        def build(graph: Any) -> Any:
            a = graph.input("a", "f32", self.a.shape)
            b = graph.constant("b", self.b) if constant else graph.input("b", "f32", self.b.shape)
            if self.a.shape[1] > k:
                (a,) = graph.add("slice", [a], {"dim": 1, "end": k})
            if self.b.shape[1] > (k if self.transpose_b else n):
                (b,) = graph.add("slice", [b], {"dim": 1, "end": k if self.transpose_b else n})
            inputs = [a, b, graph.input("bias", "f32", (n,)) if bias else None]
            precision = "bf16" if constant else "fp32"
            return graph.add("linear", inputs, {"layout": "nk" if self.transpose_b else "kn", "precision": precision})

        arrays = [self.a, *([] if constant else [self.b]), *([self.bias] if bias else [])]
        try:
            (found,) = lab.run(lab.plan(build, allow_tf32=allow_tf32), *arrays)
        except NotImplementedError as error:
            if "pip install nvidia-cublas" in str(error):
                pytest.skip(str(error))
            raise
        return found

    def expected(self, *, bias: bool) -> tuple[Any, Any]:
        """The product, and how far sums in float32 may be from it."""
        _, n, k = self.sizes
        a = self.a[:, :k].astype(np.float64)
        b = self.b[:, :k].T if self.transpose_b else self.b[:, :n]
        b = _in_bf16(b) if self.kind == "bf16" else b
        b = b.astype(np.float64)
        exact = a @ b + (self.bias if bias else 0)
        return exact, _EPSILON * (np.sqrt(k) + 4) * (np.abs(a) @ np.abs(b) + (np.abs(self.bias) if bias else 0))


def _check(product: _Product, lab: Any, *, bias: bool) -> None:
    exact, allowed = product.expected(bias=bias)
    error = np.abs(product.run(lab, bias=bias) - exact)
    assert (error <= allowed).all(), f"{(error / allowed).max()} times what sums in float32 allow"


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("kind", ["f32", "bf16"])
@pytest.mark.parametrize(
    "sizes", [(1, 1, 1), (1, 64, 32), (3, 5, 7), (16, 16, 16), (17, 33, 65), (64, 48, 128), (100, 96, 72)]
)
def test_product(lab: Any, sizes: tuple[int, int, int], kind: str, transpose_b: bool, bias: bool) -> None:
    _check(_Product(*sizes, kind, transpose_b), lab, bias=bias)


@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("kind", ["f32", "bf16"])
def test_distant_rows(lab: Any, kind: str, transpose_b: bool) -> None:
    for extra in (1, 3, 8):
        _check(_Product(24, 40, 56, kind, transpose_b, extra), lab, bias=True)


@pytest.mark.parametrize("kind", ["f32", "bf16"])
@pytest.mark.parametrize("sizes", [(128, 1536, 384), (1000, 1000, 1000), (4096, 4096, 512)])
def test_large_product(lab: Any, sizes: tuple[int, int, int], kind: str) -> None:
    if not lab.is_real and (sizes[0] > 2000 or not lab.is_cpu):
        pytest.skip("takes long without a GPU")
    _check(_Product(*sizes, kind, True), lab, bias=True)


@pytest.mark.gpu
def test_tf32_is_used_only_when_asked_for(real_gpu: Any) -> None:
    """Every product of ones and 1 + 2^-12 is exact in fp32, and 1 in TF32."""
    product = _Product(128, 128, 256, "f32", False)
    product.a[:] = 1 + 2.0**-12
    product.b[:] = 1
    assert np.array_equal(product.run(real_gpu, bias=False), np.full((128, 128), 256 * (1 + 2.0**-12), np.float32))
    rounded = product.run(real_gpu, bias=False, allow_tf32=True)
    assert np.all((rounded == 256) | (rounded == np.float32(256 * (1 + 2.0**-12))))


def test_the_same_product_twice_gives_the_same_bits(lab: Any) -> None:
    product = _Product(40, 50, 60, "f32", True)
    assert np.array_equal(product.run(lab, bias=True), product.run(lab, bias=True))


_HALF = {"bf16": 2.0**-8, "f16": 2.0**-11}


def _stored(x: Any, dtype: str) -> tuple[Any, Any]:
    """The nearest numbers of the type as float32, and their bits."""
    if dtype == "f32":
        return x, x
    rounded = x.astype(np.float16).astype(np.float32) if dtype == "f16" else _in_bf16(x)
    bits = rounded.astype(np.float16).view(np.uint16) if dtype == "f16" else (rounded.view(np.uint32) >> 16)
    return rounded, bits.astype(np.uint16)


def _activated(x: Any, activation: str) -> Any:
    if activation == "relu":
        return np.maximum(x, 0)
    if activation == "gelu":
        return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    if activation == "gelu_tanh":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return x / (1 + np.exp(-x)) if activation == "silu" else x


@pytest.mark.parametrize("activation", ["none", "relu", "gelu", "gelu_tanh", "silu"])
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("sizes", [(1, 64, 128), (3, 40, 264), (8, 24, 64), (17, 40, 24), (128, 96, 64)])
def test_values_of_16_bits_stay_so(lab: Any, sizes: tuple[int, int, int], dtype: str, activation: str) -> None:
    """Rows, weight, residual and result in 16 bits; on a device one step, and conversions alone beside it."""
    m, n, k = sizes
    x, _ = _stored(_matrix(m, k, 1), dtype)
    w, bits = _stored(_matrix(n, k, 2) / math.sqrt(k), dtype)
    residual, _ = _stored(_matrix(m, n, 4), dtype)
    bias, bias_bits = _stored(_matrix(1, n, 3)[0], dtype)

    def build(graph: Any) -> Any:
        (a,) = graph.add("cast", [graph.input("x", "f32", (m, k))], {"dtype": dtype})
        (r,) = graph.add("cast", [graph.input("r", "f32", (m, n))], {"dtype": dtype})
        weights = [
            graph.weight("w", dtype, (n, k), bits.reshape(-1).view(np.uint8)),
            graph.weight("b", dtype, (n,), bias_bits.view(np.uint8)),
        ]
        (y,) = graph.add("linear", [a, *weights, r], {"activation": activation})
        return graph.add("cast", [y], {"dtype": "f32"})

    plan = lab.plan(build)
    if not lab.is_cpu:
        steps = [step["name"] for step in plan.steps()]
        assert steps.count("linear") == 1
        assert set(steps) <= {"linear", "cast", f"to_{dtype}"}
    (found,) = lab.run(plan, x, residual)
    wide = x.astype(np.float64) @ w.astype(np.float64).T + bias
    expected = _activated(wide, activation) + residual
    absolute = np.abs(x).astype(np.float64) @ np.abs(w).T.astype(np.float64) + np.abs(bias)
    # A product, and what comes behind it, may be rounded each.
    allowed = _EPSILON * math.sqrt(k) * absolute + _HALF[dtype] * (np.abs(expected) + 1.2 * np.abs(wide) + 0.01)
    error = np.abs(found - expected)
    assert (error <= allowed).all(), f"{(error / allowed).max()} times what is allowed"


@pytest.mark.parametrize("layout", ["nk", "kn"])
def test_several_weights_are_one_product(lab: Any, layout: str) -> None:
    x = _matrix(20, 48, 1)
    weights = [_matrix(n, 48, n) for n in (24, 8, 40)]
    biases = [_matrix(1, n, 50 + n)[0] for n in (24, 8, 40)]

    def build(graph: Any) -> Any:
        stored = [graph.constant("w", w if layout == "nk" else np.ascontiguousarray(w.T)) for w in weights]
        inputs = [graph.input("x", "f32", x.shape), *stored, *(graph.constant("b", b) for b in biases)]
        return graph.add("linears", inputs, {"weights": 3, "layout": layout})

    plan = lab.plan(build)
    assert [step["name"] for step in plan.steps()].count("linears") == 1
    for found, w, b in zip(lab.run(plan, x), weights, biases, strict=True):
        assert np.abs(found - (x.astype(np.float64) @ w.T + b)).max() < 2e-5


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3, 17, 24), (3, 24, 9)),
        ((2, 3, 5, 16), (2, 3, 16, 32)),
        ((2, 3, 5, 16), (16, 8)),
        ((4, 1, 5, 16), (3, 16, 8)),
        ((1, 7), (2, 7, 1)),
    ],
)
def test_batched_products(lab: Any, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    rng = np.random.default_rng(3)
    x, y = (rng.standard_normal(shape).astype(np.float32) for shape in (a, b))
    (found,) = lab.node("matmul", x, y)
    assert np.abs(found - x.astype(np.float64) @ y.astype(np.float64)).max() < 1e-5


def test_batched_products_of_turned_matrices(lab: Any) -> None:
    """Queries times turned keys, both as one product of all heads left them."""
    x = np.random.default_rng(4).standard_normal((2, 6, 3 * 2 * 8)).astype(np.float32)

    def build(graph: Any) -> Any:
        value = graph.input("x", "f32", x.shape)
        heads = []
        for i in range(2):
            (part,) = graph.add("slice", [value], {"dim": 2, "start": 16 * i, "end": 16 * (i + 1)})
            (split,) = graph.add("reshape", [part], {"shape": [2, 6, 2, 8]})
            heads.append(graph.add("permute", [split], {"dims": [0, 2, 1, 3] if i == 0 else [0, 2, 3, 1]})[0])
        return graph.add("matmul", heads, {})

    (found,) = lab.run(lab.plan(build), x)
    q, k = (x[:, :, 16 * i : 16 * (i + 1)].reshape(2, 6, 2, 8).transpose(0, 2, 1, 3).astype(np.float64) for i in (0, 1))
    assert np.abs(found - q @ k.transpose(0, 1, 3, 2)).max() < 1e-5


def test_activation_and_residual(lab: Any) -> None:
    """One step does all of it."""
    x, w, bias, residual = _matrix(17, 40, 1), _matrix(24, 40, 2), _matrix(1, 24, 3)[0], _matrix(17, 24, 4)
    (found,) = lab.node("linear", x, w, bias, residual, activation="relu")
    expected = np.maximum(x.astype(np.float64) @ w.T.astype(np.float64) + bias, 0) + residual
    assert np.abs(found - expected).max() < 1e-5

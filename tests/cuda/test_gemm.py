"""Matrix products of devices against numpy in float64."""

from __future__ import annotations

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


def test_activation_and_residual(lab: Any) -> None:
    """What the device's product does not do itself comes behind it."""
    x, w, bias, residual = _matrix(17, 40, 1), _matrix(24, 40, 2), _matrix(1, 24, 3)[0], _matrix(17, 24, 4)
    (found,) = lab.node("linear", x, w, bias, residual, activation="relu")
    expected = np.maximum(x.astype(np.float64) @ w.T.astype(np.float64) + bias, 0) + residual
    assert np.abs(found - expected).max() < 1e-5

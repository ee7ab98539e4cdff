"""Matrix products of devices against numpy in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

_EPSILON = float(np.finfo(np.float32).eps)


def _to_bf16(x: Any) -> tuple[Any, Any]:
    """The nearest bfloat16 numbers: their bits, and as float32."""
    bits = x.view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return rounded, (rounded.astype(np.uint32) << 16).view(np.float32)


def _matrix(rows: int, cols: int, seed: int) -> Any:
    return np.random.default_rng(seed).standard_normal((rows, cols)).astype(np.float32)


class _Product:
    """Operands with rows `extra` elements longer than they need be."""

    def __init__(self, m: int, n: int, k: int, kind: str, transpose_b: bool, extra: int = 0) -> None:
        self.sizes = (m, n, k)
        self.kind, self.transpose_b = kind, transpose_b
        self.a = _matrix(m, k + extra, 1)
        self.b = _matrix(n if transpose_b else k, (k if transpose_b else n) + extra, 2)
        self.bias = _matrix(1, n, 3)[0]
        self.stored = (self.a, self.b)
        if kind == "bf16":
            (bits_a, self.a), (bits_b, self.b) = _to_bf16(self.a), _to_bf16(self.b)
            self.stored = (bits_a, bits_b)
        self.ldc = n + extra

    def run(self, lab: Any, *, bias: bool, allow_tf32: bool = False) -> Any:
        m, n, k = self.sizes
        a, b = (lab.put(x) for x in self.stored)
        guarded = np.full((m, self.ldc), 777, np.float32)
        c = lab.put(guarded)
        try:
            lab.stream.gemm(
                *(a, b, c, m, n, k),
                bias=lab.put(self.bias) if bias else None,
                type=self.kind,
                transpose_b=self.transpose_b,
                allow_tf32=allow_tf32,
                lda=self.a.shape[1],
                ldb=self.b.shape[1],
                ldc=self.ldc,
            )
        except NotImplementedError as error:
            if "pip install nvidia-cublas" in str(error):
                pytest.skip(str(error))
            raise
        found = lab.get(c, guarded)
        assert (found[:, n:] == 777).all(), "wrote between the rows"
        return found[:, :n]

    def expected(self, *, bias: bool) -> tuple[Any, Any]:
        """The product, and how far sums in float32 may be from it."""
        _, n, k = self.sizes
        a = self.a[:, :k].astype(np.float64)
        b = self.b[:, :k].T if self.transpose_b else self.b[:, :n]
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


def test_what_does_not_fit_is_named(lab: Any) -> None:
    x = lab.device.empty(400)
    with pytest.raises(ValueError, match="wanted k of at least 1, found 0"):
        lab.stream.gemm(x, x, x, 2, 2, 0)
    with pytest.raises(ValueError, match="b: wanted 440 bytes"):
        lab.stream.gemm(x, x, x, 2, 11, 10)
    with pytest.raises(ValueError, match="a: wanted rows at least 10 apart"):
        lab.stream.gemm(x, x, x, 2, 2, 10, lda=9)
    with pytest.raises(ValueError, match="wanted f32 or bf16, found f16"):
        lab.stream.gemm(x, x, x, 2, 2, 2, type="f16")

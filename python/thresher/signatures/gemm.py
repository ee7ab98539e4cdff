"""Products of matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from thresher.signatures.signature import DTYPE_NAMES, Argument, Signature, float_type, joined, sizes


@dataclass(frozen=True, init=False)
class GemmSignature(Signature):
    """A product of two matrices, or of two batches of matrices.

        >>> GemmSignature((128, 384), (1536, 384), transpose_b=True).output_shape
        (128, 1536)

    Attributes:
        a_shape: Sizes of the left factor: [m, k], with `transpose_a` [k, m]; batches have one size more in front.
        b_shape: Sizes of the right factor: [k, n], with `transpose_b` [n, k].
        transpose_a: Whether the left factor is stored transposed.
        transpose_b: Whether the right one is; weights of a linear layer are.
        bias: Whether a row of n numbers is added; not for batches.
        dtype: torch.float32, torch.bfloat16 or torch.float16, of all tensors.
    """

    a_shape: tuple[int, ...]
    b_shape: tuple[int, ...]
    transpose_a: bool
    transpose_b: bool
    bias: bool
    dtype: torch.dtype

    def __init__(
        self,
        a_shape: Sequence[int],
        b_shape: Sequence[int],
        *,
        transpose_a: bool = False,
        transpose_b: bool = False,
        bias: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Checks everything.

        Raises:
            ValueError: The shapes do not fit each other, or an argument cannot be; names both shapes.
        """
        a, b = sizes("a_shape", a_shape), sizes("b_shape", b_shape)
        if len(a) not in (2, 3) or len(a) != len(b):
            raise ValueError(f"gemm: expected two matrices or two batches of them, got {list(a)} and {list(b)}")
        if bias and len(a) == 3:
            raise ValueError(f"gemm: expected no bias for batches, got one for {list(a)} and {list(b)}")
        fields = {
            "a_shape": a,
            "b_shape": b,
            "transpose_a": bool(transpose_a),
            "transpose_b": bool(transpose_b),
            "bias": bool(bias),
            "dtype": float_type("gemm", dtype),
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)
        if self._inner() != (b[-1] if transpose_b else b[-2]) or a[:-2] != b[:-2]:
            turned = "".join(
                f", {name} transposed" for name, is_so in (("a", transpose_a), ("b", transpose_b)) if is_so
            )
            raise ValueError(f"gemm: expected factors that fit each other, got {list(a)} and {list(b)}{turned}")

    @property
    def func_name(self) -> str:
        """Readable and unique."""
        parts = ["gemm", DTYPE_NAMES[self.dtype], joined(self.a_shape), joined(self.b_shape)]
        flags = (("ta", self.transpose_a), ("tb", self.transpose_b), ("bias", self.bias))
        return "_".join([*parts, *(name for name, is_so in flags if is_so)])

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """The factors and, with `bias`, the row."""
        factors = (Argument("a", self.a_shape, self.dtype), Argument("b", self.b_shape, self.dtype))
        return (*factors, Argument("bias", self.output_shape[-1:], self.dtype)) if self.bias else factors

    @property
    def output_shape(self) -> tuple[int, ...]:
        """[m, n], behind the batch's size."""
        rows = self.a_shape[-1] if self.transpose_a else self.a_shape[-2]
        columns = self.b_shape[-2] if self.transpose_b else self.b_shape[-1]
        return (*self.a_shape[:-2], rows, columns)

    @property
    def depth(self) -> int:
        """k."""
        return self._inner()

    @property
    def is_linear(self) -> bool:
        """It is."""
        return True

    def call(self, *args: torch.Tensor) -> torch.Tensor:
        """The product in PyTorch's operators."""
        a = args[0].transpose(-1, -2) if self.transpose_a else args[0]
        b = args[1].transpose(-1, -2) if self.transpose_b else args[1]
        if self.bias:
            return torch.addmm(args[2], a, b)
        return torch.bmm(a, b) if len(self.a_shape) == 3 else torch.mm(a, b)

    def _inner(self) -> int:
        return self.a_shape[-2] if self.transpose_a else self.a_shape[-1]

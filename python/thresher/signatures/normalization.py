"""Layer norm, and batch norm with known statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from thresher.signatures.signature import DTYPE_NAMES, Argument, Signature, elements, float_type, joined, sizes


@dataclass(frozen=True, init=False)
class LayerNormSignature(Signature):
    """Layer norm over the last dimensions.

        >>> LayerNormSignature((8, 128, 384)).func_name
        'layer_norm_f32_8x128x384_over1_affine_eps1e-05'

    Attributes:
        input_shape: Sizes of the input.
        dims: How many trailing dimensions are normalised together.
        affine: Whether there are weight and bias.
        eps: What is added to the variance.
        dtype: torch.float32, torch.bfloat16 or torch.float16, of all tensors.
    """

    input_shape: tuple[int, ...]
    dims: int
    affine: bool
    eps: float
    dtype: torch.dtype

    def __init__(
        self,
        input_shape: Sequence[int],
        *,
        dims: int = 1,
        affine: bool = True,
        eps: float = 1e-5,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Checks everything.

        Raises:
            ValueError: An argument cannot be.
        """
        shape = sizes("input_shape", input_shape)
        if not isinstance(dims, int) or not 1 <= dims <= len(shape):
            raise ValueError(f"layer_norm: expected 1 to {len(shape)} dims for the input {list(shape)}, got {dims}")
        fields = {
            "input_shape": shape,
            "dims": dims,
            "affine": bool(affine),
            "eps": _eps("layer_norm", eps),
            "dtype": float_type("layer_norm", dtype),
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    @property
    def func_name(self) -> str:
        """Readable and unique."""
        parts = ["layer_norm", DTYPE_NAMES[self.dtype], joined(self.input_shape), f"over{self.dims}"]
        return "_".join([*parts, *(["affine"] if self.affine else []), f"eps{self.eps}"])

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """The input and, with `affine`, weight and bias."""
        row = self.input_shape[-self.dims :]
        more = (Argument("weight", row, self.dtype), Argument("bias", row, self.dtype)) if self.affine else ()
        return (Argument("input", self.input_shape, self.dtype), *more)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The input's."""
        return self.input_shape

    @property
    def depth(self) -> int:
        """Elements of a row."""
        return elements(self.input_shape[-self.dims :])

    def call(self, *args: torch.Tensor) -> torch.Tensor:
        """Layer norm in PyTorch."""
        weight, bias = args[1:] if self.affine else (None, None)
        return functional.layer_norm(args[0], self.input_shape[-self.dims :], weight, bias, self.eps)


@dataclass(frozen=True, init=False)
class BatchNormSignature(Signature):
    """Batch norm with the statistics of training, as inference has it.

        >>> BatchNormSignature((32, 64, 56, 56)).output_shape
        (32, 64, 56, 56)

    Attributes:
        input_shape: Sizes of the input: [n, channels, ...].
        eps: What is added to the variance.
        dtype: torch.float32, torch.bfloat16 or torch.float16, of all tensors.
    """

    input_shape: tuple[int, ...]
    eps: float
    dtype: torch.dtype

    def __init__(self, input_shape: Sequence[int], *, eps: float = 1e-5, dtype: torch.dtype = torch.float32) -> None:
        """Checks everything.

        Raises:
            ValueError: An argument cannot be.
        """
        shape = sizes("input_shape", input_shape)
        if len(shape) < 2:
            raise ValueError(f"batch_norm: expected an input of at least two dimensions, got {list(shape)}")
        fields = {"input_shape": shape, "eps": _eps("batch_norm", eps), "dtype": float_type("batch_norm", dtype)}
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    @property
    def func_name(self) -> str:
        """Readable and unique."""
        return f"batch_norm_{DTYPE_NAMES[self.dtype]}_{joined(self.input_shape)}_eps{self.eps}"

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """Input, mean, variance, weight and bias."""
        channels = self.input_shape[1:2]
        return (
            Argument("input", self.input_shape, self.dtype),
            Argument("running_mean", channels, self.dtype),
            Argument("running_var", channels, self.dtype, positive=True),
            Argument("weight", channels, self.dtype),
            Argument("bias", channels, self.dtype),
        )

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The input's."""
        return self.input_shape

    def call(self, *args: torch.Tensor) -> torch.Tensor:
        """Batch norm in PyTorch."""
        x, mean, variance, weight, bias = args
        return functional.batch_norm(x, mean, variance, weight, bias, eps=self.eps)


def _eps(what: str, eps: float) -> float:
    if not isinstance(eps, (int, float)) or not 0 <= eps < float("inf"):
        raise ValueError(f"{what}: expected an eps of at least 0, got {eps!r}")
    return float(eps)

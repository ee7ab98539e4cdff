"""What one kernel computes, apart from its data."""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

DTYPE_NAMES: dict[torch.dtype, str] = {
    torch.float32: "f32",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.bool: "bool",
}
# Indices of sample arguments stay below this: the size of whatever they index is not known.
_SAMPLE_INDICES = 2


@dataclass(frozen=True)
class Argument:
    """A tensor that a kernel takes.

    Attributes:
        name: What it is.
        shape: Its sizes, in the order of its layout.
        dtype: The type of its elements.
        positive: Whether it holds variances, which are above 0.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    positive: bool = False

    def __str__(self) -> str:
        return f"{self.name} {str(self.dtype).removeprefix('torch.')}{list(self.shape)}"


class Signature(abc.ABC):
    """What one kernel computes: an operator, its attributes, and the shapes, layouts and types of its tensors.

    Attributes:
        dtype: The type of the result's elements.
    """

    dtype: torch.dtype

    @property
    @abc.abstractmethod
    def func_name(self) -> str:
        """A name that tells it from every other signature: readable, and the key of caches."""

    @property
    @abc.abstractmethod
    def arguments(self) -> tuple[Argument, ...]:
        """The tensors that it takes, in order."""

    @property
    @abc.abstractmethod
    def output_shape(self) -> tuple[int, ...]:
        """The sizes of its result, in the order of the result's layout."""

    @abc.abstractmethod
    def call(self, *args: torch.Tensor) -> torch.Tensor:
        """Computes it in PyTorch's operators: what is imported into the engine, and compared with."""

    @property
    def depth(self) -> int:
        """How many products are summed for an element of the result: 1 where it is no sum of products."""
        return 1

    @property
    def is_linear(self) -> bool:
        """Whether it is sums of products of its arguments alone, so that whole numbers give whole numbers."""
        return False

    @property
    def unpadded(self) -> int:
        """The position of an argument that meets no padding, so that everybody agrees where a NaN in it goes."""
        return 0

    def sample_args(
        self, device: str | torch.device = "cpu", seed: int | None = 0, splat_value: float | None = None
    ) -> tuple[torch.Tensor, ...]:
        """Arguments to try it with.

        Args:
            device: Where they lie.
            seed: Of the random numbers, normal ones that are the same on every machine; None: others each time.
            splat_value: What every element is instead of a random number.
        """
        generator = torch.Generator()
        if seed is None:
            generator.seed()
        else:
            generator.manual_seed(seed)
        return tuple(_sample(argument, generator, splat_value).to(device) for argument in self.arguments)

    def check(self, args: Sequence[torch.Tensor]) -> None:
        """Compares arguments with what it takes.

        Raises:
            ValueError: Their number, shapes or types differ; says what was expected.
        """
        wanted = self.arguments
        if len(args) != len(wanted):
            raise ValueError(f"{self.func_name}: expected {_listed(wanted)}, got {len(args)} arguments")
        for tensor, argument in zip(args, wanted, strict=True):
            if not isinstance(tensor, torch.Tensor):
                raise ValueError(f"{self.func_name}: expected {argument}, got a {type(tensor).__name__}")
            if tuple(tensor.shape) != argument.shape or tensor.dtype != argument.dtype:
                found = Argument(argument.name, tuple(tensor.shape), tensor.dtype)
                raise ValueError(f"{self.func_name}: expected {argument}, got {found}; make a signature for these")

    def __str__(self) -> str:
        return self.func_name


def sizes(what: str, given: object, least: int = 1) -> tuple[int, ...]:
    """Sizes as a tuple.

    Raises:
        ValueError: They are no integers, or below `least`.
    """
    if not isinstance(given, (tuple, list, torch.Size)):
        raise ValueError(f"{what}: expected a list of sizes, got {given!r}")
    found = tuple(given)
    if not found or any(not isinstance(size, int) or isinstance(size, bool) or size < least for size in found):
        raise ValueError(f"{what}: expected integers of at least {least}, got {list(found)}")
    return found


def float_type(what: str, dtype: torch.dtype) -> torch.dtype:
    """The type itself.

    Raises:
        ValueError: It is none of the floats that the engine stores.
    """
    if dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(f"{what}: expected torch.float32, torch.bfloat16 or torch.float16, got {dtype}")
    return dtype


def joined(values: Sequence[int]) -> str:
    """Sizes for a name."""
    return "x".join(map(str, values))


def _listed(arguments: Sequence[Argument]) -> str:
    return ", ".join(map(str, arguments))


def _sample(argument: Argument, generator: torch.Generator, splat_value: float | None) -> torch.Tensor:
    if splat_value is not None:
        return torch.full(argument.shape, splat_value).to(argument.dtype)
    if not argument.dtype.is_floating_point:
        return torch.randint(_SAMPLE_INDICES, argument.shape, generator=generator).to(argument.dtype)
    made = torch.randn(argument.shape, generator=generator)
    if argument.positive:
        made = made.square() + 0.5
    return made.to(argument.dtype)


def elements(shape: Sequence[int]) -> int:
    """How many elements a tensor of this shape has."""
    return math.prod(shape)

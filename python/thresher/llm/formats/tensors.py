"""Tensors as they are stored in a file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from thresher import _engine
from thresher.llm.formats.mapped_file import MappedFile

# Numbers and bytes of a block of what the engine stores floats in.
BLOCKS: Mapping[str, tuple[int, int]] = MappingProxyType(
    {row["name"]: (row["numbers"], row["bytes"]) for row in _engine.encodings()}
)

# What numpy reads by itself.
DTYPES: Mapping[str, np.dtype[Any]] = MappingProxyType(
    {
        "f64": np.dtype("<f8"),
        "i64": np.dtype("<i8"),
        "i32": np.dtype("<i4"),
        "i16": np.dtype("<i2"),
        "i8": np.dtype("i1"),
        "u8": np.dtype("u1"),
        "bool": np.dtype("?"),
    }
)


# Of all dimensions but those of 0: NumPy counts an array's bytes so, of which an element has eight at most, in 63 bits.
MOST_ELEMENTS = (1 << 60) - 1


def is_possible(shape: Sequence[int]) -> bool:
    """Whether there can be an array of that shape, empty or not."""
    return min(shape, default=0) >= 0 and math.prod(max(size, 1) for size in shape) <= MOST_ELEMENTS


def stored_bytes(encoding: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor.

    Args:
        encoding: A name of `BLOCKS` or `DTYPES`.
        shape: Row-major.

    Raises:
        ValueError: The rows are no whole blocks.
    """
    count = math.prod(shape)
    if encoding in DTYPES:
        return count * DTYPES[encoding].itemsize
    numbers, size = BLOCKS[encoding]
    if numbers > 1 and (not shape or shape[-1] % numbers):
        raise ValueError(f"expected rows of a multiple of {numbers} numbers in {encoding}, got shape {list(shape)}")
    return count // numbers * size


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as it is stored.

    Attributes:
        encoding: f32, bf16, f16, f64, i8 to i64, u8, bool, or a format of blocks of `_engine.encodings()`.
        shape: Row-major: a weight of a product is [out, in].
        data: The bytes, uint8 of one dimension; most often a part of a mapped file, and then read only.
    """

    encoding: str
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8]

    def dequantized(self) -> npt.NDArray[np.float32]:
        """The numbers as float32, in memory of their own; integers and float64 are rounded to it."""
        if self.encoding in DTYPES:
            return self.data.view(DTYPES[self.encoding]).astype(np.float32).reshape(self.shape)
        return np.asarray(_engine.decode(self.encoding, self.data), np.float32).reshape(self.shape)

    def array(self) -> npt.NDArray[Any]:
        """The elements without a copy; bf16 as its bits (uint16).

        Raises:
            ValueError: They are stored in blocks.
        """
        types = {**DTYPES, "f32": np.dtype("<f4"), "f16": np.dtype("<f2"), "bf16": np.dtype("<u2")}
        if self.encoding not in types:
            raise ValueError(f"expected elements one by one, got {self.encoding}; ask for dequantized()")
        return self.data.view(types[self.encoding]).reshape(self.shape)

    def rows(self, ranges: Sequence[tuple[int, int]]) -> StoredTensor:
        """Some of the first dimension, a first and an end each; one range is not copied."""
        row = stored_bytes(self.encoding, (1, *self.shape[1:]))
        parts = [self.data[start * row : end * row] for start, end in ranges]
        count = sum(end - start for start, end in ranges)
        data = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return StoredTensor(self.encoding, (count, *self.shape[1:]), data)

    def columns(self, ranges: Sequence[tuple[int, int]]) -> StoredTensor:
        """Some of the last of two dimensions, whole blocks, copied."""
        rows, columns = self.shape
        block = 1 if self.encoding in DTYPES else BLOCKS[self.encoding][0]
        units = self.data.reshape(rows, columns // block, -1)
        parts = [units[:, start // block : end // block] for start, end in ranges]
        data = np.ascontiguousarray(parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1))
        count = sum(end - start for start, end in ranges)
        return StoredTensor(self.encoding, (rows, count), data.reshape(-1))


class Tensors(Mapping[str, StoredTensor]):
    """The tensors of a file or of several, by their names, in the order of the files.

    Attributes:
        metadata: What else the files say.
        files: These, which most tensors are parts of.
    """

    def __init__(
        self, tensors: Mapping[str, StoredTensor], metadata: Mapping[str, Any], files: Sequence[MappedFile] = ()
    ) -> None:
        self._tensors = dict(tensors)
        self.metadata = MappingProxyType(dict(metadata))
        self.files = tuple(files)

    def __getitem__(self, name: str) -> StoredTensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

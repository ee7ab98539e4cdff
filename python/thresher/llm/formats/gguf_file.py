"""Reads GGUF files, versions 2 and 3.

Nothing is believed before it is compared with the size of the file, so that a damaged or hostile file costs no more
memory than it has bytes. Every error names the file, and the tensor or key and the place where there is one.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from thresher import _engine
from thresher.llm.formats.mapped_file import map_file
from thresher.llm.formats.tensors import StoredTensor, Tensors, is_possible, stored_bytes

# What a tensor's type is called here, by its number.
ENCODINGS = {
    0: "f32", 1: "f16", 2: "q4_0", 3: "q4_1", 6: "q5_0", 7: "q5_1", 8: "q8_0", 12: "q4_k", 13: "q5_k", 14: "q6_k",
    20: "iq4_nl", 24: "i8", 25: "i16", 26: "i32", 27: "i64", 28: "f64", 30: "bf16", 39: "mxfp4",
}  # fmt: skip
# Formats there are, but not here.
UNREAD = {
    9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
    21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0",
}  # fmt: skip

# Numbers in metadata, by their types; 7 is bool, 8 a text, 9 an array.
SCALARS = {0: "B", 1: "b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 10: "<Q", 11: "<q", 12: "<d"}
BOOL, TEXT, ARRAY = 7, 8, 9

MOST_DIMENSIONS = 4
MOST_NESTING = 8
MOST_ALIGNMENT = 1 << 16
LEAST_PAIR = 8 + 4 + 1  # bytes: the length of a key, a type, a value
LEAST_TENSOR = 8 + 4 + 4 + 8  # the length of a name, how many dimensions, type, offset
DAMAGED = "; the file is damaged or incomplete: copy it again"


class _Cursor:
    """Reads one value after the other; what it raises names no file."""

    def __init__(self, data: npt.NDArray[np.uint8]) -> None:
        self.data = data.data
        self.at = 0

    def left(self) -> int:
        return len(self.data) - self.at

    def take(self, count: int, what: str) -> memoryview:
        if count > self.left():
            raise ValueError(f"expected {what}, {count} bytes at {self.at}, got {self.left()} to the end{DAMAGED}")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, form: str, what: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form), what))[0]

    def count(self, least: int, what: str) -> int:
        """A number of things that take at least `least` bytes each."""
        place = self.at
        count: int = self.number("<Q", f"the number of {what}")
        if count > self.left() // least:
            room = self.left() // least
            raise ValueError(f"expected at most {room} {what} in the bytes behind {place}, got {count}{DAMAGED}")
        return count

    def text(self, what: str) -> str:
        place = self.at
        raw = bytes(self.take(self.count(1, f"bytes of {what}"), what))
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            # Single tokens of a vocabulary may be parts of characters.
            if what != "a text":
                raise ValueError(f"expected {what} in UTF-8 at {place}, got {error.reason}{DAMAGED}") from None
            return raw.decode("utf-8", errors="surrogateescape")

    def texts(self, count: int) -> _engine.Texts:
        """So many texts: vocabularies have hundreds of thousands, for which text() would take seconds."""
        found, self.at = _engine.read_texts(self.data, self.at, count)
        if len(found) < count:
            self.text("a text")  # says what is wrong
        return found

    def value(self, kind: int, key: str, nesting: int = 0) -> Any:
        if kind in SCALARS:
            return self.number(SCALARS[kind], f"the value of '{key}'")
        if kind == BOOL:
            return self._flag(self.number("B", f"the value of '{key}'"), key)
        if kind == TEXT:
            return self.text("a text")
        if kind != ARRAY:
            raise ValueError(f"expected a type of 0 to 12 for '{key}' before {self.at}, got {kind}{DAMAGED}")
        return self._array(key, nesting)

    def _flag(self, number: int, key: str) -> bool:
        if number > 1:
            raise ValueError(f"expected 0 or 1 as the value of '{key}' before {self.at}, got {number}{DAMAGED}")
        return number == 1

    def _array(self, key: str, nesting: int) -> Any:
        if nesting == MOST_NESTING:
            raise ValueError(f"expected arrays nested at most {MOST_NESTING} deep in '{key}' at {self.at}{DAMAGED}")
        kind: int = self.number("<I", f"the type of the elements of '{key}'")
        if kind in SCALARS:
            dtype = np.dtype(SCALARS[kind])
            count = self.count(dtype.itemsize, f"elements of '{key}'")
            return np.frombuffer(self.take(count * dtype.itemsize, f"'{key}'"), dtype).copy()
        least = {BOOL: 1, TEXT: 8, ARRAY: 12}.get(kind)
        if least is None:
            raise ValueError(f"expected elements of a type of 0 to 12 in '{key}' at {self.at}, got {kind}{DAMAGED}")
        count = self.count(least, f"elements of '{key}'")
        if kind == TEXT:
            return self.texts(count)
        return [self.value(kind, key, nesting + 1) for _ in range(count)]


def read_gguf(path: str | os.PathLike[str]) -> Tensors:
    """Reads a GGUF file.

    Args:
        path: The file, of version 2 or 3, little-endian.

    Returns:
        Its tensors, shapes row-major (in the file they stand the other way round), on the mapped file: the file must
        stay as it is while they are used. Metadata as the file has it: numbers, bools, texts, lists of bools, arrays of
        numpy, and sequences of texts, which are made when they are asked for; bytes of a text that are no UTF-8 are
        surrogates.

    Raises:
        ValueError: It is no such file, damaged, cut short, or holds a tensor in a format that is not read.
        OSError: It cannot be read.
    """
    place = Path(path)
    file = map_file(place)
    try:
        return Tensors(*_read(file.data), [file])
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None


def _read(data: npt.NDArray[np.uint8]) -> tuple[dict[str, StoredTensor], dict[str, Any]]:
    cursor = _Cursor(data)
    magic = bytes(cursor.take(min(4, cursor.left()), "a GGUF file"))
    if magic != b"GGUF":
        raise ValueError(f"expected a GGUF file, which begins with b'GGUF', got {magic!r}")
    version: int = cursor.number("<I", "the version")
    if version not in (2, 3):
        big = version & 0xFFFF == 0 and version != 0
        raise ValueError(
            "expected a little-endian file, got a big-endian one; convert it"
            if big
            else f"expected version 2 or 3, got {version}; convert the model again"
        )
    num_tensors = cursor.count(LEAST_TENSOR, "tensors")
    num_pairs = cursor.count(LEAST_PAIR, "keys")
    metadata: dict[str, Any] = {}
    for _ in range(num_pairs):
        key = cursor.text("a key")
        if key in metadata:
            raise ValueError(f"expected each key once, got '{key}' again before {cursor.at}{DAMAGED}")
        metadata[key] = cursor.value(cursor.number("<I", f"the type of '{key}'"), key)
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 1 <= alignment <= MOST_ALIGNMENT or alignment & (alignment - 1):
        raise ValueError(f"expected a power of two of at most {MOST_ALIGNMENT} as general.alignment, got {alignment!r}")

    entries: dict[str, tuple[str, tuple[int, ...], int, int]] = {}
    for _ in range(num_tensors):
        name, entry = _entry(cursor, alignment)
        if name in entries:
            raise ValueError(f"expected each tensor once, got '{name}' again before {cursor.at}{DAMAGED}")
        entries[name] = entry
    begin = (cursor.at + alignment - 1) // alignment * alignment
    tensors = {}
    for name, (encoding, shape, offset, size) in entries.items():
        if begin + offset + size > len(data):
            raise ValueError(
                f"tensor '{name}': expected {size} bytes of {encoding} {list(shape)} at {begin + offset}, "
                f"got a file of {len(data)} bytes{DAMAGED}"
            )
        tensors[name] = StoredTensor(encoding, shape, data[begin + offset : begin + offset + size])
    return tensors, metadata


def _entry(cursor: _Cursor, alignment: int) -> tuple[str, tuple[str, tuple[int, ...], int, int]]:
    """Name, encoding, shape, offset from the beginning of the data, and bytes of the next tensor."""
    place = cursor.at
    name = cursor.text("a tensor's name")
    what = f"tensor '{name}', described at {place}"
    rank: int = cursor.number("<I", f"{what}: the number of dimensions")
    if rank > MOST_DIMENSIONS:
        raise ValueError(f"{what}: expected at most {MOST_DIMENSIONS} dimensions, got {rank}{DAMAGED}")
    shape = tuple(cursor.number("<Q", f"{what}: its shape") for _ in range(rank))[::-1]
    kind: int = cursor.number("<I", f"{what}: its type")
    offset: int = cursor.number("<Q", f"{what}: its offset")
    if kind not in ENCODINGS:
        found = f"{UNREAD[kind]}, which is not read" if kind in UNREAD else f"{kind}, which is none"
        known = ", ".join(name.upper() for name in ENCODINGS.values())
        raise ValueError(f"{what}: expected a type of {known}, got {found}; use another quantisation of the model")
    if not is_possible(shape):
        raise ValueError(f"{what}: expected a shape that a file can hold, got {list(shape)}{DAMAGED}")
    if offset % alignment:
        raise ValueError(f"{what}: expected an offset of a multiple of {alignment}, got {offset}{DAMAGED}")
    try:
        return name, (ENCODINGS[kind], shape, offset, stored_bytes(ENCODINGS[kind], shape))
    except ValueError as error:
        raise ValueError(f"{what}: {error}{DAMAGED}") from None

"""Reads safetensors: one file, or several that an index or a folder names."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from thresher import json_text
from thresher.llm.formats.mapped_file import MappedFile, map_file
from thresher.llm.formats.tensors import StoredTensor, Tensors, is_possible, stored_bytes

INDEX = "model.safetensors.index.json"

# What a type is called here.
ENCODINGS = {
    "F64": "f64", "F32": "f32", "F16": "f16", "BF16": "bf16", "I64": "i64", "I32": "i32", "I16": "i16", "I8": "i8",
    "U8": "u8", "BOOL": "bool",
}  # fmt: skip

MOST_HEADER = 100 << 20  # bytes, as the format's own library has it
DAMAGED = "; the file is damaged or incomplete: copy it again"


def read_safetensors(path: str | os.PathLike[str]) -> Tensors:
    """Reads tensors in the safetensors format.

    Args:
        path: A file; an index (model.safetensors.index.json); or a folder with either, or with files that are all
            read.

    Returns:
        The tensors, on the mapped files: these must stay as they are while tensors are used. Metadata: texts, of all
        files together.

    Raises:
        ValueError: A file is none of this format, damaged or cut short, holds a type that is not read, or a tensor that
            another one has; a folder or an index names no such file.
        OSError: A file cannot be read.
    """
    place = Path(path)
    tensors: dict[str, StoredTensor] = {}
    metadata: dict[str, Any] = {}
    files: list[MappedFile] = []
    for file in _files(place):
        mapped = map_file(file)
        try:
            found, texts = _read(mapped.data)
            if twice := sorted(tensors.keys() & found.keys()):
                raise ValueError(f"expected each tensor in one file, got '{twice[0]}' again; remove one of the files")
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from None
        tensors |= found
        files.append(mapped)
        metadata |= texts
    return Tensors(tensors, metadata, files)


def _files(place: Path) -> list[Path]:
    if place.is_dir():
        if (place / INDEX).exists():
            return _files(place / INDEX)
        if files := sorted(place.glob("*.safetensors")):
            return files
        raise ValueError(f"{place}: expected a folder with *.safetensors, got none; name the folder of a model")
    if place.suffix != ".json":
        return [place]
    try:
        index = json_text.parse(place.read_bytes())
        names = {json_text.text(name) for name in index["weight_map"].values()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{place}: expected an index with a weight_map of files, got {error!r}{DAMAGED}") from None
    for name in names:
        if not name or name != Path(name).name:
            raise ValueError(f"{place}: expected names of files beside it, got {name!r}")
    return [place.parent / name for name in sorted(names)]


def _read(data: npt.NDArray[np.uint8]) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    length = int.from_bytes(data[:8].tobytes(), "little")
    if len(data) < 8 or length > min(MOST_HEADER, len(data) - 8):
        raise ValueError(
            f"expected a safetensors file: 8 bytes that say how long the header is, and so many, got {length} "
            f"in a file of {len(data)} bytes{DAMAGED}"
        )
    try:
        header = json_text.parse(data[8 : 8 + length].tobytes())
    except ValueError as error:
        raise ValueError(f"expected a header in JSON, got {error}{DAMAGED}") from None
    if not isinstance(header, dict):
        raise ValueError(f"expected an object as the header, got {type(header).__name__}{DAMAGED}")
    texts = header.pop("__metadata__", None) or {}
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
        raise ValueError(f"expected texts as __metadata__, got something else{DAMAGED}")
    body = data[8 + length :]
    tensors: dict[str, StoredTensor] = {}
    ranges = []
    for name, entry in header.items():
        try:
            encoding, shape, begin, end = _entry(entry, len(body))
        except (TypeError, KeyError) as error:
            raise ValueError(
                f"tensor '{name}': expected dtype, shape and data_offsets, got {error!r}{DAMAGED}"
            ) from None
        except ValueError as error:
            raise ValueError(f"tensor '{name}': {error}") from None
        # What lies at no multiple of its size is copied: elements are read where they lie.
        found = body[begin:end]
        tensors[name] = StoredTensor(encoding, shape, found if (8 + length + begin) % 8 == 0 else found.copy())
        ranges.append((begin, end, name))
    ranges.sort()
    for (_, end, name), (begin, _, other) in pairwise(ranges):
        if begin < end:
            raise ValueError(f"tensor '{other}': expected bytes of its own, got some of '{name}' at {begin}{DAMAGED}")
    return tensors, texts


def _entry(entry: Any, room: int) -> tuple[str, tuple[int, ...], int, int]:
    dtype = json_text.text(entry["dtype"])
    shape = tuple(json_text.integer(size) for size in entry["shape"])
    begin, end = (json_text.integer(at) for at in _pair(entry["data_offsets"]))
    if dtype not in ENCODINGS:
        raise ValueError(f"expected a type of {', '.join(ENCODINGS)}, got {dtype}; convert the model to one of them")
    if not is_possible(shape):
        raise ValueError(f"expected a shape that a file can hold, got {list(shape)}{DAMAGED}")
    if not 0 <= begin <= end <= room:
        raise ValueError(f"expected bytes within the {room} behind the header, got {begin} to {end}{DAMAGED}")
    size = stored_bytes(ENCODINGS[dtype], shape)
    if end - begin != size:
        raise ValueError(f"expected {size} bytes of {dtype} {list(shape)} at {begin}, got {end - begin}{DAMAGED}")
    return ENCODINGS[dtype], shape, begin, end


def _pair(offsets: Any) -> tuple[Any, Any]:
    if not isinstance(offsets, list) or len(offsets) != 2:
        raise TypeError(f"data_offsets {offsets!r}"[:100])
    return offsets[0], offsets[1]

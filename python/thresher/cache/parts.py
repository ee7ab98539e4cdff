"""Results of many bytes: named parts behind an entry's text, in one file that is mapped."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from thresher.cache.entry import DamagedError, decode, encode

SUFFIX = ".parts"
_HEAD = struct.Struct("<16sQ")  # what it is; bytes of the text, which follows
_MAGIC = b"thresher-parts-1"
_PAGE = 4096  # the first part begins at a multiple of this,
_ALIGNMENT = 64  # the others of this
_CHUNK = 8 << 20


@dataclass(frozen=True)
class Parts:
    """A result with parts.

    Attributes:
        value: What was stored beside them.
        parts: By name their bytes, read only, at multiples of 64, on the mapped file: they stay as long as these.
        path: Of that file.
        places: By name where in it a part begins, and its digest.
    """

    value: Any
    parts: Mapping[str, memoryview]
    path: Path
    places: Mapping[str, tuple[int, str]]


def write(file: BinaryIO, full: dict[str, Any], value: Any, parts: Sequence[tuple[str, Any]], stored_at: str) -> None:
    """Writes an entry with parts.

    Args:
        file: Where to.
        full: What the result depends on.
        value: The result, beside the parts.
        parts: Names and bytes.
        stored_at: When.

    Raises:
        OSError: There is no room, or it cannot be written.
    """
    from thresher import _engine

    index: list[tuple[str, int, int, str]] = []
    end = 0
    for (name, data), digest in zip(parts, _engine.digests([data for _, data in parts]), strict=True):
        begin = _round_up(end, _ALIGNMENT)
        end = begin + len(data)
        index.append((name, begin, len(data), digest))
    text = encode(full, {"value": value, "parts": index}, stored_at)
    first = _round_up(_HEAD.size + len(text), _PAGE)
    # At once, so that a disk that is too small is told before it is full.
    os.posix_fallocate(file.fileno(), 0, first + end)
    chunks = _Chunks(file)
    chunks.write(_HEAD.pack(_MAGIC, len(text)) + text)
    for (_, begin, _, _), (_, data) in zip(index, parts, strict=True):
        chunks.write(bytes(first + begin - chunks.size))
        chunks.write(data)
    chunks.flush()


class _Chunks:
    """Writes a file in large pieces at multiples of their size: systems that can keep large pages of it then do."""

    def __init__(self, file: BinaryIO) -> None:
        self.size = 0
        self._file = file
        self._chunk = bytearray()

    def write(self, data: Any) -> None:
        view = memoryview(data).cast("B")
        self.size += len(view)
        while view:
            taken = view[: _CHUNK - len(self._chunk)]
            self._chunk += taken
            view = view[len(taken) :]
            if len(self._chunk) == _CHUNK:
                self.flush()

    def flush(self) -> None:
        self._file.write(self._chunk)
        self._chunk.clear()


def read(path: Path, name: str, *, check: bool = True) -> tuple[dict[str, Any], Parts]:
    """Maps an entry with parts.

    Args:
        path: The file.
        name: What it has to be called.
        check: Whether the bytes of the parts are compared with their digests; all else is always checked.

    Returns:
        What the entry's text says, without its value, and the result.

    Raises:
        DamagedError: It is not what was written, or not written by this package.
        OSError: It cannot be read.
    """
    from thresher import _engine

    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < _HEAD.size:
            raise DamagedError(f"it has {size} bytes")
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    magic, length = _HEAD.unpack_from(mapped)
    if magic != _MAGIC or length > size - _HEAD.size:
        raise DamagedError(f"it is not marked as {_MAGIC.decode()}")
    body = decode(mapped[_HEAD.size : _HEAD.size + length], name)
    first = _round_up(_HEAD.size + length, _PAGE)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # the system has none
            mapped.madvise(mmap.MADV_HUGEPAGE)
    data = memoryview(mapped)
    parts, places = {}, {}
    try:
        value = body["value"]["value"]
        for part, begin, count, digest in body["value"]["parts"]:
            if not (begin >= 0 <= count and first + begin + count <= size):
                raise DamagedError(f"it has {size} bytes, and part {part} {count} at {first + begin}")
            parts[part] = data[first + begin : first + begin + count]
            places[part] = (first + begin, digest)
    except DamagedError:
        raise
    except (TypeError, KeyError, ValueError) as error:
        raise DamagedError(f"its list of parts is wrong: {error}") from None
    if check:
        found = _engine.digests(list(parts.values()))
        wrong = [part for (part, (_, wanted)), own in zip(places.items(), found, strict=True) if wanted != own]
        if wrong:
            raise DamagedError(f"the digest of part {wrong[0]} does not fit its content")
    return body, Parts(value, parts, path, places)


def _round_up(size: int, step: int) -> int:
    return -(-size // step) * step

"""The container of the engine's trace files: a header, then blocks with checksums."""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np

from thresher.profiler.trace.events import Array
from thresher.profiler.trace.model import TraceError

MAGIC = b"THRTRACE"
FORMAT_VERSION = 1
RECORD = np.dtype(
    [
        ("start_ns", "<i8"),
        ("end_ns", "<i8"),
        ("correlation", "<u8"),
        ("execution", "<u8"),
        ("value", "<i8"),
        ("external", "<u4"),
        ("user", "<u4"),
        ("site", "<u4"),
        ("thread", "<u4"),
        ("lane", "<u2"),
        ("event", "<u2"),
        ("kind", "u1"),
        ("section", "u1"),
        ("phase", "u1"),
        ("device", "u1"),
    ]
)
"""A record as the engine writes it, 64 bytes."""

# What "kind" holds.
OP, EXECUTION, CALL, RUNTIME, MEMORY, RANGE, STEP, DEVICE = range(8)

_HEADER = struct.Struct("<8sII")
_BLOCK = struct.Struct("<4sIQ")
_PIECE = 1 << 24
_MAX_TEXT = 1 << 28


@dataclass(frozen=True)
class Block:
    """A complete block whose checksum is right.

    Attributes:
        tag: "HEAD", "DATA", "SITE", "RECS", "TAIL", or one of a later version.
        offset: Where its payload begins.
        length: Bytes of the payload.
        payload: The payload, None for records, which may be many.
    """

    tag: str
    offset: int
    length: int
    payload: bytes | None


class NativeFile:
    """Reads the blocks of a file.

    Args:
        path: The file.

    Raises:
        TraceError: It is not such a file, or one of another version.
        OSError: It cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.truncated = False
        self._file: BinaryIO = path.open("rb")
        try:
            self.size = os.fstat(self._file.fileno()).st_size
            self._check_header()
        except BaseException:
            self._file.close()
            raise

    def _check_header(self) -> None:
        head = self._file.read(_HEADER.size)
        if len(head) < _HEADER.size or head[:8] != MAGIC:
            raise TraceError(
                f"trace {self.path}: expected a file that begins with {MAGIC.decode()!r}, got {head[:8]!r}; "
                "give a file that thresher.profiler.start(trace=...) has written"
            )
        _, version, record_bytes = _HEADER.unpack(head)
        if version != FORMAT_VERSION:
            raise TraceError(
                f"trace {self.path}: expected format version {FORMAT_VERSION}, got {version}; "
                "read it with the version of Thresher that wrote it"
            )
        if record_bytes != RECORD.itemsize:
            raise TraceError(
                f"trace {self.path}: expected records of {RECORD.itemsize} bytes, got {record_bytes}; "
                "the file is damaged: record it again"
            )

    def blocks(self) -> Iterator[Block]:
        """The blocks up to the end, or to the first that is incomplete or damaged; then `truncated` is set."""
        offset = _HEADER.size
        while offset < self.size:
            header = os.pread(self._file.fileno(), _BLOCK.size, offset)
            if len(header) < _BLOCK.size:
                self.truncated = True
                return
            tag, checksum, length = _BLOCK.unpack(header)
            offset += _BLOCK.size
            if length > self.size - offset:
                self.truncated = True
                return
            is_text = tag != b"RECS"
            if is_text and length > _MAX_TEXT:
                self.truncated = True
                return
            parts: list[bytes] = []
            found = 0
            for begin in range(offset, offset + length, _PIECE):
                piece = os.pread(self._file.fileno(), min(_PIECE, offset + length - begin), begin)
                found = zlib.crc32(piece, found)
                if is_text:
                    parts.append(piece)
            if found != checksum or (not is_text and length % RECORD.itemsize):
                self.truncated = True
                return
            yield Block(tag.decode("latin-1"), offset, length, b"".join(parts) if is_text else None)
            offset += length + -length % 8

    def records(self, spans: Sequence[tuple[int, int]]) -> Array:
        """Records at places of the file.

        Args:
            spans: Offset in bytes and number of records of each place.
        """
        result = np.empty(sum(count for _, count in spans), RECORD)
        view: Any = memoryview(result.view(np.uint8).reshape(-1).data) if len(result) else memoryview(b"")
        position = 0
        for offset, count in spans:
            length = count * RECORD.itemsize
            read = os.preadv(self._file.fileno(), [view[position : position + length]], offset)
            if read != length:
                raise TraceError(
                    f"trace {self.path}: expected {length} bytes at {offset}, got {read}; the file has shrunk"
                )
            position += length
        return result

    def close(self) -> None:
        """Closes the file; the second time, nothing happens."""
        self._file.close()

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()


class NativeWriter:
    """Writes a trace file as the engine does: for tests, and for tools that make or cut traces.

        with NativeWriter("x.thrtrace", {"num_threads": 2}) as writer:
            writer.sites([{"id": 1, "name": "linear"}])
            writer.records(np.zeros(10, RECORD))

    Args:
        path: The file; what is there is replaced.
        head: What the block HEAD holds besides the engine's usual keys.
    """

    def __init__(self, path: str | os.PathLike[str], head: Mapping[str, Any] | None = None) -> None:
        self._file = Path(path).open("wb")  # noqa: SIM115 closed by close()
        self._file.write(_HEADER.pack(MAGIC, FORMAT_VERSION, RECORD.itemsize))
        self._records = 0
        self._closed = False
        defaults = {
            "engine_version": "",
            "isa": "",
            "cpu": "",
            "num_threads": 1,
            "pid": os.getpid(),
            "rank": 0,
            "start_ns": 0,
        }
        self.block(b"HEAD", _json({**defaults, **(head or {})}))

    def block(self, tag: bytes, payload: bytes | memoryview) -> None:
        """Writes a block of any kind."""
        self._file.write(_BLOCK.pack(tag, zlib.crc32(payload), len(payload)))
        self._file.write(payload)
        self._file.write(b"\0" * (-len(payload) % 8))

    def data(self, data: Mapping[str, Any]) -> None:
        """Adds to the metadata."""
        self.block(b"DATA", _json(data))

    def sites(self, sites: Sequence[Mapping[str, Any]]) -> None:
        """Describes sites; records may refer to them from now on."""
        self.block(b"SITE", _json(list(sites)))

    def records(self, records: Array) -> None:
        """Writes records of the type RECORD."""
        packed = np.ascontiguousarray(records, RECORD)
        self.block(b"RECS", packed.view(np.uint8).reshape(-1).data)
        self._records += len(packed)

    def close(self, stop_ns: int | None = None, dropped: int = 0) -> None:
        """Ends the file.

        Args:
            stop_ns: End of the recording; None leaves the block TAIL out, as a killed process does.
            dropped: Records that were lost.
        """
        if self._closed:
            return
        self._closed = True
        if stop_ns is not None:
            self.block(b"TAIL", _json({"stop_ns": stop_ns, "records": self._records, "dropped": dropped}))
        self._file.close()

    def __enter__(self) -> NativeWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _json(data: object) -> bytes:
    return json.dumps(data).encode()

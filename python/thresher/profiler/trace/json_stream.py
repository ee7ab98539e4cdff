"""Reads a large JSON object piece by piece: all of it never stands in memory."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from thresher.profiler.trace.model import TraceError

_PIECE = 1 << 20
# Characters of one value, and of all members beside the array together. Compressed data may hold a thousand times as
# many characters as it has bytes.
_MAX_VALUE = 1 << 24
_SPACE = " \t\r\n"


class JsonStream:
    """The members of an object, one of which is a long array.

    Numbers with a decimal point come as text, because times have more digits than a float.

    Args:
        path: The file, compressed by gzip or not.
        array: Name of the member whose elements are given one by one.

    Raises:
        TraceError: The file is not JSON, or neither an object nor an array.
        OSError: It cannot be read.
    """

    def __init__(self, path: Path, array: str) -> None:
        self.path = path
        self.members: dict[str, Any] = {}
        self.truncated = False
        self.found_array = False
        self._array = array
        raw = path.open("rb")
        self._compressed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        self._raw: BinaryIO = raw
        binary: Any = gzip.GzipFile(fileobj=raw) if self._compressed else raw
        self._text = io.TextIOWrapper(binary, encoding="utf-8", errors="replace")
        self._buffer = ""
        self._position = 0
        self._ended = False
        self._length = 0  # of the last value
        self._members_left = _MAX_VALUE
        self._decode = json.JSONDecoder(parse_float=str, strict=False).raw_decode

    def elements(self) -> Iterator[Any]:
        """The elements of the array; `members` and `truncated` are complete after the last one."""
        try:
            yield from self._elements()
        finally:
            self._text.close()
            self._raw.close()

    def _elements(self) -> Iterator[Any]:
        begin = self._peek()
        if begin == "[":  # the older form: the array alone
            self.found_array = True
            yield from self._array_elements()
            return
        if begin != "{":
            raise self._foreign(begin)
        self._position += 1
        while True:
            char = self._peek()
            if char == ",":
                self._position += 1
                continue
            if char == "}":
                return
            if char != '"':
                if not self.found_array and char:
                    raise self._foreign(char)
                self.truncated = True
                return
            done, key = self._value()
            if not done or self._peek() != ":":
                self.truncated = True
                return
            self._position += 1
            if key == self._array and self._peek() == "[":
                self.found_array = True
                yield from self._array_elements()
                if self.truncated:
                    return
                continue
            done, value = self._value()
            if not done:
                self.truncated = True
                return
            self._members_left -= len(key) + self._length
            if self._members_left < 0:
                raise TraceError(
                    f"trace {self.path}: expected at most {_MAX_VALUE} characters beside {self._array!r}, got more; "
                    "give the file that the profiler has written"
                )
            self.members[key] = value

    def _array_elements(self) -> Iterator[Any]:
        self._position += 1
        decode = self._decode
        while True:
            char = self._peek()
            if char == ",":
                self._position += 1
                continue
            if char == "]":
                self._position += 1
                return
            if not char:
                self.truncated = True
                return
            try:
                value, self._position = decode(self._buffer, self._position)
            except RecursionError:
                raise self._too_deep() from None
            except ValueError:
                done, value = self._value()
                if not done:
                    self.truncated = True
                    return
            yield value

    def _value(self) -> tuple[bool, Any]:
        """The next value, reading on until it is complete."""
        self._peek()
        wanted = _PIECE
        while True:
            try:
                value, end = self._decode(self._buffer, self._position)
            except RecursionError:
                raise self._too_deep() from None
            except ValueError:
                end = -1
            # A number at the very end of the buffer may go on behind it.
            if end >= 0 and (end < len(self._buffer) or self._ended):
                self._length = end - self._position
                self._position = end
                return True, value
            if self._ended or len(self._buffer) - self._position > _MAX_VALUE:
                return False, None
            self._more(wanted)
            wanted *= 2

    def _peek(self) -> str:
        """The next character that is not white space; empty at the end."""
        while True:
            buffer, position, end = self._buffer, self._position, len(self._buffer)
            while position < end and buffer[position] in _SPACE:
                position += 1
            self._position = position
            if position < end:
                return buffer[position]
            if self._ended:
                return ""
            self._more(_PIECE)

    def _more(self, count: int) -> None:
        try:
            piece = self._text.read(count)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            piece = ""  # the compressed file is cut or damaged: what came before is good
            self.truncated = True
        if not piece:
            self._ended = True
        self._buffer = self._buffer[self._position :] + piece
        self._position = 0

    def _too_deep(self) -> TraceError:
        return TraceError(
            f"trace {self.path}: expected a trace, got JSON that is nested too deeply; "
            "give the file that the profiler has written"
        )

    def _foreign(self, found: str) -> TraceError:
        what = f"{self._buffer[self._position : self._position + 24]!r}" if found else "nothing"
        inside = "compressed data that begins" if self._compressed else "a file that begins"
        return TraceError(
            f"trace {self.path}: expected a trace (*.thrtrace, or Chrome JSON as torch.profiler's export_chrome_trace "
            "writes "
            f"it, .json or .json.gz), got {inside} with {what}; give the file that the profiler has written"
        )

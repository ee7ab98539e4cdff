"""Protocol Buffers' wire format, as far as writing a trace needs it."""

from __future__ import annotations

import functools
import struct

_VARINT, _FIXED64, _BYTES = 0, 1, 2
_LOW_64 = (1 << 64) - 1
_ONE_BYTE = [bytes((value,)) for value in range(0x80)]


def varint(value: int) -> bytes:
    """A number in the form of small numbers; a negative one as its two's complement in 64 bits."""
    value &= _LOW_64
    if value < 0x80:
        return _ONE_BYTE[value]
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


@functools.cache
def _tag(field: int, kind: int) -> bytes:
    return varint(field << 3 | kind)


def number(field: int, value: int) -> bytes:
    """A field of type int32, int64, uint32, uint64, bool or enum."""
    return _tag(field, _VARINT) + varint(value)


def fixed64(field: int, value: int) -> bytes:
    """A field of type fixed64."""
    return _tag(field, _FIXED64) + struct.pack("<Q", value & _LOW_64)


def double(field: int, value: float) -> bytes:
    """A field of type double."""
    return _tag(field, _FIXED64) + struct.pack("<d", value)


def message(field: int, *parts: bytes) -> bytes:
    """A field that is a message, made of the fields in it."""
    content = b"".join(parts)
    return _tag(field, _BYTES) + varint(len(content)) + content


def text(field: int, value: str) -> bytes:
    """A field of type string."""
    # A lone surrogate, such as one from a file name, has no UTF-8.
    return message(field, value.encode("utf-8", "replace"))

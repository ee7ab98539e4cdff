"""Writes GGUF files for the tests, also such as nobody should."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

TYPES = {
    "f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "q4_k": 12, "q5_k": 13, "q6_k": 14,
    "iq4_nl": 20, "i32": 26, "bf16": 30, "mxfp4": 39,
}  # fmt: skip


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def value(item: Any) -> bytes:
    """Type and value, as metadata have them."""
    if isinstance(item, bool):
        return struct.pack("<IB", 7, item)
    if isinstance(item, int):
        return struct.pack("<II", 4, item)
    if isinstance(item, float):
        return struct.pack("<If", 6, item)
    if isinstance(item, (str, bytes)):
        return struct.pack("<I", 8) + text(item)
    elements = [value(element) for element in item]
    kind = elements[0][:4] if elements else struct.pack("<I", 4)
    return struct.pack("<I", 9) + kind + struct.pack("<Q", len(elements)) + b"".join(e[4:] for e in elements)


def gguf(
    tensors: Mapping[str, tuple[str | int, Sequence[int], bytes]],
    metadata: Mapping[str, Any] | None = None,
    version: int = 3,
    alignment: int = 32,
) -> bytes:
    """A file of tensors: type, row-major shape and bytes of each."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata or {}))
    for key, item in (metadata or {}).items():
        head += text(key) + value(item)
    body = b""
    for name, (kind, shape, data) in tensors.items():
        number = TYPES[kind] if isinstance(kind, str) else kind
        body += b"\0" * (-len(body) % alignment)
        head += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), number, len(body))
        body += data
    return head + b"\0" * (-len(head) % alignment) + body

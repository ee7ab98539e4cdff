"""For which GPUs a file with CUDA kernels holds code: reads the fat binaries that nvcc embeds."""

from __future__ import annotations

import struct
from collections.abc import Iterator

MAGIC = b"\x50\xed\x55\xba"
# Magic, version, bytes of this header, bytes that follow.
_CONTAINER = struct.Struct("<4sHHQ")
# Kind, version, bytes of this header, bytes of the code; 12 bytes further the architecture.
_ENTRY = struct.Struct("<HHIQ12xI")
_KINDS = {1: "compute", 2: "sm"}


def architectures(data: bytes) -> list[str]:
    """Lists what the code in a file is for, sorted: "sm_90" is machine code, "compute_90" is PTX."""
    return sorted(set(_entries(data)), key=lambda name: (int(name.partition("_")[2]), name))


def _entries(data: bytes) -> Iterator[str]:
    at = data.find(MAGIC)
    while at >= 0:
        after = at + len(MAGIC)
        if at + _CONTAINER.size <= len(data):
            _, version, header, size = _CONTAINER.unpack_from(data, at)
            # The number may also stand in the code that reads fat binaries.
            if version == 1 and header == _CONTAINER.size and at + header + size <= len(data):
                after = at + header + size
                entry = at + header
                while entry + _ENTRY.size <= after:
                    kind, _, entry_header, entry_size, architecture = _ENTRY.unpack_from(data, entry)
                    if kind in _KINDS:
                        yield f"{_KINDS[kind]}_{architecture}"
                    if entry_header + entry_size == 0:
                        break
                    entry += entry_header + entry_size
        at = data.find(MAGIC, after)

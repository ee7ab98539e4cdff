"""For which machine an ELF file was made."""

from __future__ import annotations

import struct

MAGIC = b"\x7fELF"
HEADER_SIZE = 20


def machine(header: bytes) -> int | None:
    """Reads e_machine from the first bytes of a file; None if they are not those of an ELF file."""
    if len(header) < HEADER_SIZE or header[:4] != MAGIC:
        return None
    order = ">" if header[5] == 2 else "<"
    return int(struct.unpack_from(f"{order}H", header, 18)[0])

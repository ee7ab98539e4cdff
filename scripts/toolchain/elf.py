"""What an ELF file says of itself: its machine, its sections."""

from __future__ import annotations

import struct

MAGIC = b"\x7fELF"
HEADER_SIZE = 20
# Sections of this type (.bss) take no room in the file.
NOBITS = 8


def _order(header: bytes) -> str:
    return ">" if header[5] == 2 else "<"


def machine(header: bytes) -> int | None:
    """Reads e_machine from the first bytes of a file; None if they are not those of an ELF file."""
    if len(header) < HEADER_SIZE or header[:4] != MAGIC:
        return None
    return int(struct.unpack_from(f"{_order(header)}H", header, 18)[0])


def sections(data: bytes) -> dict[str, bytes]:
    """Returns the content of each section of a 64-bit file by its name, in the file's order.

    Raises:
        ValueError: it is no whole 64-bit ELF file.
    """
    if machine(data) is None or data[4] != 2:
        raise ValueError("no 64-bit ELF file")
    order = _order(data)
    try:
        (table,) = struct.unpack_from(f"{order}Q", data, 40)
        size, count, names_index = struct.unpack_from(f"{order}3H", data, 58)
        # name, type, flags, address, offset, size
        heads = [struct.unpack_from(f"{order}2I4Q", data, table + i * size) for i in range(count)]
        names = data[heads[names_index][4] :] if heads else b""
    except (struct.error, IndexError) as error:
        raise ValueError(f"its section table cannot be read: {error}") from error
    found = {}
    for name, kind, _, _, offset, length in heads:
        if kind:
            found[names[name : names.index(b"\0", name)].decode()] = b"" if kind == NOBITS else data[offset:][:length]
    return found

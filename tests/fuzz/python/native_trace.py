"""The engine's traces: as they come, and with header and checksums made right, so that what these protect is read."""

from __future__ import annotations

import struct
import zlib

from fuzz_targets import as_file

from thresher.profiler.analysis import build_report
from thresher.profiler.trace import TraceError, read_trace
from thresher.profiler.trace.native_file import FORMAT_VERSION, MAGIC, RECORD

HEADER = struct.pack("<8sII", MAGIC, FORMAT_VERSION, RECORD.itemsize)
FEW = 8


def run(data: bytes) -> None:
    limit = FEW if len(data) % 2 else 100_000
    read(data, limit)
    read(signed(data), limit)


def read(data: bytes, limit: int) -> None:
    with as_file(data, "trace.thrtrace") as path:
        try:
            trace = read_trace(path, limit=limit)
        except TraceError:
            return
        build_report(trace)


def signed(data: bytes) -> bytes:
    """The same blocks behind a good header, cut off where the file ends, with the checksums that they should have."""
    found = bytearray(HEADER + data[len(HEADER) :])
    at = len(HEADER)
    while at + 16 <= len(found):
        (length,) = struct.unpack_from("<Q", found, at + 8)
        length = min(length, len(found) - at - 16)
        if found[at : at + 4] == b"RECS":
            length -= length % RECORD.itemsize
        struct.pack_into("<IQ", found, at + 4, zlib.crc32(found[at + 16 : at + 16 + length]), length)
        at += 16 + length + -length % 8
    return bytes(found)

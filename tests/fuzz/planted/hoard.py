"""Allocates what the input says behind a word: what the self-check of `nox -s fuzz` must find."""

from __future__ import annotations


def run(data: bytes) -> None:
    if data[:4] == b"bran" and len(data) > 4:
        bytearray(data[4] << 30)

"""Raises behind a word what nobody documents: what the self-check of `nox -s fuzz` must find."""

from __future__ import annotations


def run(data: bytes) -> None:
    if data[:4] == b"husk":
        raise LookupError("planted")

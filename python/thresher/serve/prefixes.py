"""Which beginnings of requests a process has seen: its cache may hold their keys and values."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

_BLOCK = 128  # characters, about a page of tokens
_MOST = 100_000  # blocks of a process that are remembered
_PARTS = ("tools", "system", "instructions", "messages", "input", "prompt", "query")  # in the order of prompts


def blocks_of(body: Mapping[str, Any]) -> list[bytes]:
    """What a request begins with: each number says all characters up to the end of a block.

    Two requests whose prompts begin alike have the same first blocks, whichever API they come by.
    """
    text = "".join(json.dumps(body[part]) for part in _PARTS if body.get(part))
    found = []
    digest = hashlib.blake2b(digest_size=8)
    for start in range(0, len(text) - _BLOCK + 1, _BLOCK):
        digest.update(text[start : start + _BLOCK].encode())
        found.append(digest.digest())
    return found


class Prefixes:
    """The beginnings that went to one process, those longest unused forgotten first."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._seen: OrderedDict[bytes, None] = OrderedDict()

    def match(self, blocks: Sequence[bytes]) -> int:
        """How many of the first blocks it has seen."""
        return next((number for number, block in enumerate(blocks) if block not in self._seen), len(blocks))

    def add(self, blocks: Sequence[bytes]) -> None:
        """They went there."""
        for block in reversed(blocks):  # the end of a text is forgotten before its beginning
            self._seen[block] = None
            self._seen.move_to_end(block)
        while len(self._seen) > self._most:
            self._seen.popitem(last=False)

"""Which beginnings of requests a process has seen: its cache may hold their keys and values."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

_BLOCK = 128  # characters, about a page of tokens
_MOST = 100_000  # blocks of a process that are remembered
_MUCH_MORE = 4  # requests that one may have beyond the least busy one, and still get those it knows the beginning of
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


def blocks_of_text(body: bytes) -> list[bytes]:
    """The same of a body as it came; of one that is no JSON object, none: whoever gets it says what is wrong."""
    try:
        found = json.loads(body) if body else None
        return blocks_of(found) if isinstance(found, dict) else []
    except (ValueError, RecursionError):
        return []


def preferred(opened: Sequence[int], matched: Sequence[int]) -> list[int]:
    """Numbers of processes, the best for a request first.

    Args:
      opened: of each process how many requests it has.
      matched: how many first blocks of the request it has seen.
    """
    least = min(opened, default=0)
    known = [match if count <= least + _MUCH_MORE else -1 for count, match in zip(opened, matched, strict=True)]
    return sorted(range(len(opened)), key=lambda number: (-known[number], opened[number]))


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

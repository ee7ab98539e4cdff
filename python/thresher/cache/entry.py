"""One kept result as a file: JSON that carries its own key and checksum."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from thresher import json_text

FORMAT = "thresher-cache-1"
_DIGITS = 40
_NAME = rf"[0-9a-f]{{{_DIGITS}}}\.(?:json|parts)"
ENTRY_NAME = re.compile(_NAME)
ASIDE_SUFFIX = ".damaged"
ASIDE_NAME = re.compile(rf"{_NAME}{re.escape(ASIDE_SUFFIX)}")
UNFINISHED_NAME = re.compile(rf"{_NAME}\..*\.partial")
KIND_NAME = re.compile(r"[a-z][a-z0-9_]*")


class DamagedError(ValueError):
    """A file that is no entry; the message says why."""


class State(str, Enum):
    """What a file of the cache is good for."""

    GOOD = "good"
    DAMAGED = "damaged"
    OTHER_VERSION = "other version"
    UNFINISHED = "unfinished"


@dataclass(frozen=True)
class Entry:
    """A file of the cache.

    Attributes:
        path: Where it lies.
        kind: What sort of result it holds.
        state: What it is good for.
        size_bytes: How large it is.
        stored_at: When it was written, as ISO 8601 in UTC; empty where it cannot be read.
        engine_version: The engine that wrote it; empty where it cannot be read.
        key: What the result belongs to, machine included.
        problem: Why it is damaged; else empty.
    """

    path: Path
    kind: str
    state: State
    size_bytes: int
    stored_at: str = ""
    engine_version: str = ""
    key: Any = None
    problem: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The entry as plain data for JSON."""
        return {**vars(self), "path": str(self.path), "state": self.state.value}


def full_key(kind: str, key: Any) -> dict[str, Any]:
    """Everything that a result depends on: what the caller says, the machine and the engine."""
    from thresher import _engine

    _engine.initialize()  # else the instruction set would not be the one that THRESHER_ISA names
    full = {"kind": kind, "key": key, "machine": _engine.machine(), "engine_version": _engine.version()}
    return dict(json.loads(_canonical(full)))


def name_of(full: dict[str, Any], suffix: str = ".json") -> str:
    """The name of the file that holds the result of a full key; one with parts has another suffix."""
    return f"{_digest(full)[:_DIGITS]}{suffix}"


def encode(full: dict[str, Any], value: Any, stored_at: str) -> bytes:
    """The text of an entry.

    Raises:
        TypeError: The value is not what JSON can hold.
        ValueError: The value holds a number that is not finite.
    """
    body = json.loads(_canonical({"format": FORMAT, **full, "stored_at": stored_at, "value": value}))
    text = json.dumps({**body, "checksum": _digest(body)}, indent=1, sort_keys=True, ensure_ascii=False)
    return f"{text}\n".encode()


def decode(text: bytes, name: str) -> dict[str, Any]:
    """The content of an entry, after all checks.

    Args:
        text: The content of the file.
        name: The name of the file.

    Raises:
        DamagedError: It is not what was written, or not written by this package.
    """
    try:
        body = json_text.parse(text)
    except ValueError as error:  # broken UTF-8 is one, too
        raise DamagedError(f"it is no JSON ({error})") from None
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise DamagedError(f"it is not marked as {FORMAT}")
    checksum = body.pop("checksum", None)
    try:
        found = _digest(body)
        full = {part: body[part] for part in ("kind", "key", "machine", "engine_version")}
        complete = "value" in body and isinstance(body["stored_at"], str)
    except RecursionError:  # writing takes a little more depth than reading
        raise DamagedError("it is nested too deeply") from None
    except (KeyError, ValueError) as error:
        raise DamagedError(f"a part of it is missing or wrong: {error}") from None
    if not complete or checksum != found:
        raise DamagedError("its checksum does not fit its content")
    if name_of(full, Path(name).suffix) != name:
        raise DamagedError("its name belongs to another key")
    return body


def _canonical(data: Any) -> str:
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _digest(data: Any) -> str:
    import hashlib  # 4 MB of OpenSSL, which a process that keeps nothing does without

    return hashlib.sha256(_canonical(data).encode("utf-8", "surrogatepass")).hexdigest()

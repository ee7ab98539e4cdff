"""The files of the cache: reading, writing, tidying up."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, BinaryIO

from thresher.cache import location, parts
from thresher.cache.entry import (
    ASIDE_NAME,
    ASIDE_SUFFIX,
    ENTRY_NAME,
    KIND_NAME,
    UNFINISHED_NAME,
    DamagedError,
    Entry,
    State,
    decode,
    encode,
    full_key,
    name_of,
)
from thresher.whole_file import is_abandoned, writing

_NAMES = (ENTRY_NAME, UNFINISHED_NAME, ASIDE_NAME)
_CURE = "results are not kept. Set THRESHER_CACHE_DIR to another folder, or THRESHER_CACHE=0 to do without"


def load(kind: str, key: Any) -> Any | None:
    """The result that was stored under this key, on this machine and by this version of the engine.

    Args:
        kind: What sort of result; a lower-case word.
        key: What else the result depends on; anything JSON can hold.

    Returns:
        The result, or None where there is none that can be used. A damaged file is put aside under another name, with
        a warning, once.
    """
    return _load(kind, key, ".json", lambda path, name: decode(path.read_bytes(), name)["value"])


def load_parts(kind: str, key: Any) -> parts.Parts | None:
    """The same of a result with parts. Their bytes are compared with their digests."""
    found: parts.Parts | None = _load(kind, key, parts.SUFFIX, lambda path, name: parts.read(path, name)[1])
    return found


def _load(kind: str, key: Any, suffix: str, read: Callable[[Path, str], Any]) -> Any | None:
    base = _usable_folder()
    if base is None:
        return None
    folder = base / _checked(kind)
    full = full_key(kind, key)
    try:
        if not folder.is_dir():
            return None
        path = folder / name_of(full, suffix)
        return read(path, path.name)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        _warn(base, f"expected files that can be read, got: {error.strerror or error} ({folder}); {_CURE}")
        return None
    except DamagedError as error:
        return _put_aside(path, error, read)


def store(kind: str, key: Any, value: Any) -> bool:
    """Keeps a result. Other processes see the whole of it or nothing, whatever happens in between.

    Args:
        kind: What sort of result; a lower-case word.
        key: What else the result depends on; anything JSON can hold.
        value: The result; anything JSON can hold.

    Returns:
        Whether it was kept. Where the folder cannot be written there is a warning, once.

    Raises:
        TypeError: Key or value are not what JSON can hold.
        ValueError: The same, of a number that is not finite.
    """
    full = full_key(_checked(kind), key)
    text = encode(full, value, _now())
    return _store(kind, name_of(full), lambda file: file.write(text))


def store_parts(kind: str, key: Any, value: Any, bytes_of: Sequence[tuple[str, Any]]) -> bool:
    """The same of a result with parts.

    Args:
        kind: What sort of result; a lower-case word.
        key: What else the result depends on; anything JSON can hold.
        value: The result beside its parts; anything JSON can hold.
        bytes_of: Names of parts, each once, and what they hold: arrays of uint8, or other bytes.

    Returns:
        Whether it was kept.
    """
    full = full_key(_checked(kind), key)
    return _store(kind, name_of(full, parts.SUFFIX), lambda file: parts.write(file, full, value, bytes_of, _now()))


def _store(kind: str, name: str, write: Callable[[BinaryIO], object]) -> bool:
    base = _usable_folder()
    if base is None:
        return False
    try:
        path = base / kind / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with writing(path, mode=0o600) as file:
            write(file)
    except OSError as error:
        _warn(
            base,
            f"expected a folder that can be written, got: {error.strerror or error}; {_CURE}",
        )
        return False
    return True


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def entries(kind: str | None = None, *, whole: bool = False) -> list[Entry]:
    """Every file of the cache, or those of one kind, with what it is good for.

    Args:
        kind: Of results.
        whole: Whether the bytes of parts, which may be gigabytes, are read and compared with their digests.
    """
    return [_inspect(path, whole) for path in _files(kind)]


def prune(older_than_days: float | None = None) -> list[Entry]:
    """Removes what this engine cannot use: damaged files, those of other versions, leftovers of ended processes.

    Args:
        older_than_days: Also removes good entries that were written longer ago. Those that the clock says are written
            in the future stay.

    Returns:
        What was removed.
    """
    now = time.time()
    removed = []
    for entry in entries():
        try:
            age = now - entry.path.stat().st_mtime
        except OSError:  # another process was faster
            continue
        useless = is_abandoned(entry.path) if entry.state is State.UNFINISHED else entry.state is not State.GOOD
        too_old = older_than_days is not None and age > older_than_days * 86400
        if (useless or (too_old and entry.state is not State.UNFINISHED)) and _remove(entry.path):
            removed.append(entry)
    return removed


def clear(kind: str | None = None) -> int:
    """Removes every file of the cache, or those of one kind, and nothing else. Returns how many."""
    removed = sum(_remove(path) for path in _files(kind))
    for below in _listed(location.folder()):
        if KIND_NAME.fullmatch(below.name):
            with suppress(OSError):  # not empty: there are files of others
                below.rmdir()
    return removed


def _checked(kind: str) -> str:
    if not KIND_NAME.fullmatch(kind):
        raise ValueError(f"cache: expected a kind like 'peaks', got {kind!r}")
    return kind


def _usable_folder() -> Path | None:
    if not location.enabled():
        return None
    base = location.folder()
    if base is None:
        location.warn_once(
            "folder",
            "cache: expected a home folder to keep results in, got none; results are not kept. "
            "Set THRESHER_CACHE_DIR, or THRESHER_CACHE=0 to do without",
        )
    return base


def _warn(path: Path, problem: str) -> None:
    location.warn_once(str(path), f"cache {path}: {problem}")


def _put_aside(path: Path, error: DamagedError, read: Callable[[Path, str], Any]) -> Any | None:
    """Makes room for a whole file, and keeps the damaged one to look at; the result if there is one after all."""
    aside = path.with_name(path.name + ASIDE_SUFFIX)
    try:
        path.replace(aside)
    except OSError:
        _warn(path, f"this file is not used, since {error}; it is replaced when the result is stored again")
        return None
    try:
        value = read(aside, path.name)
    except (OSError, DamagedError):
        _warn(
            path,
            f"this file is not used, since {error}; it is put aside as {aside.name}: thresher cache prune removes it",
        )
        return None
    # Another process had replaced it meanwhile: that one goes back, unless there is a newer one already.
    with suppress(OSError):
        os.link(aside, path)
    _remove(aside)
    return value


def _files(kind: str | None) -> list[Path]:
    found: list[Path] = []
    for below in _listed(location.folder()):
        if KIND_NAME.fullmatch(below.name) and kind in (None, below.name):
            found += [path for path in _listed(below) if any(name.fullmatch(path.name) for name in _NAMES)]
    return found


def _listed(folder: Path | None) -> list[Path]:
    """What a folder holds; nothing where there is none, or none any more."""
    try:
        return [] if folder is None else sorted(folder.iterdir())
    except OSError:
        return []


def _inspect(path: Path, whole: bool) -> Entry:
    from thresher import _engine

    kind = path.parent.name
    try:
        size = path.stat().st_size
        if UNFINISHED_NAME.fullmatch(path.name):
            return Entry(path, kind, State.UNFINISHED, size)
        name = path.name.removesuffix(ASIDE_SUFFIX)
        if name.endswith(parts.SUFFIX):
            body, _ = parts.read(path, name, check=whole)
        else:
            body = decode(path.read_bytes(), name)
    except OSError as error:
        return Entry(path, kind, State.DAMAGED, 0, problem=f"it cannot be read: {error.strerror or error}")
    except DamagedError as error:
        return Entry(path, kind, State.DAMAGED, size, problem=str(error))
    key = {"key": body["key"], "machine": body["machine"]}
    version = body["engine_version"]
    if ASIDE_NAME.fullmatch(path.name):
        problem = "it was put aside, and is whole now: something changed it"
        return Entry(path, kind, State.DAMAGED, size, body["stored_at"], version, key, problem)
    state = State.GOOD if version == _engine.version() else State.OTHER_VERSION
    return Entry(path, kind, state, size, body["stored_at"], version, key)


def _remove(path: Path) -> bool:
    try:
        path.unlink()
    except OSError:
        return False
    return True

"""Files of the cache: as they come, and with name and checksum made right, so that what these protect is read."""

from __future__ import annotations

import json
import tempfile
import warnings

from thresher import _engine, cache
from thresher.cache import entry, parts
from thresher.machine import roofs
from thresher.tuning import table

_folder = tempfile.TemporaryDirectory(prefix="thresher-fuzz-")


def run(data: bytes) -> None:
    cache.set_dir(_folder.name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cache.CacheWarning)
        try:
            keep(data)
        finally:
            cache.clear()
            cache.set_dir(None)


def keep(data: bytes) -> None:
    write("peaks", "0" * 40 + ".json", data)
    write("peaks", "0" * 40 + parts.SUFFIX, data)
    list_all()
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        return
    if not isinstance(body, dict):
        return
    _, key, _ = roofs._identity(1)
    for full in (
        entry.full_key("peaks", key),
        entry.full_key("tuning", {"num_threads": _engine.num_threads()}),
        {part: body.get(part) for part in ("kind", "key", "machine", "engine_version")},
    ):
        kept = {"format": entry.FORMAT, "stored_at": body.get("stored_at"), "value": body.get("value"), **full}
        try:
            kept["checksum"] = entry._digest(kept)
            name = entry.name_of(full)
        except (ValueError, RecursionError):  # no writer makes these
            continue
        text = json.dumps(kept).encode()
        write(str(full["kind"]), name, text)
        write(str(full["kind"]), entry.name_of(full, parts.SUFFIX), parts._HEAD.pack(parts._MAGIC, len(text)) + text)
    list_all()
    cache.load_parts("peaks", key)
    peaks = roofs.known_peaks(1)
    if peaks is not None:
        peaks.to_dict()
        assert peaks.disturbed in (True, False)
    for product in table.load(_engine.num_threads()).values():
        product.to_dict()
    table.forget()
    table.apply()


def write(kind: str, name: str, data: bytes) -> None:
    folder = cache.folder()
    assert folder is not None
    if not entry.KIND_NAME.fullmatch(kind) or len(kind) > 100:
        return
    (folder / kind).mkdir(parents=True, exist_ok=True)
    (folder / kind / name).write_bytes(data)


def list_all() -> None:
    for found in cache.entries():
        json.dumps(found.to_dict())

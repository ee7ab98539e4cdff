"""Results with parts: one file, mapped, in good and bad weather."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import limit_file_size, lines_of, run_python

pytest.importorskip("thresher._engine")

from typer.testing import CliRunner

from thresher import cache
from thresher.cache import CacheWarning, State, location
from thresher.cli.app import app

KEY = {"model": 1}
PARTS = [("a", b"x" * 100), ("none", b""), ("large", bytes(range(256)) * 40_000)]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache folder of the test's own; nothing has been warned of yet."""
    monkeypatch.setattr(location, "_warned", set())
    cache.set_dir(tmp_path / "cache")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield tmp_path / "cache"
    cache.set_dir(None)


def stored(folder: Path) -> Path:
    assert cache.store_parts("weights", KEY, {"name": "m"}, [(name, memoryview(data)) for name, data in PARTS])
    (path,) = (folder / "weights").iterdir()
    return path


def test_what_is_stored_comes_back_mapped(folder: Path) -> None:
    assert cache.load_parts("weights", KEY) is None
    path = stored(folder)
    found = cache.load_parts("weights", KEY)
    assert found is not None
    assert found.value == {"name": "m"}
    assert [(name, bytes(data)) for name, data in found.parts.items()] == PARTS
    assert all(data.readonly for data in found.parts.values())
    path.unlink()  # as prune in another process: what is mapped stays
    assert bytes(found.parts["large"]) == PARTS[2][1]
    assert cache.load_parts("weights", KEY) is None
    assert cache.load("weights", KEY) is None


@pytest.mark.parametrize("place", [0, 20, 300, 5000, -1])
def test_a_damaged_byte_anywhere_is_found(folder: Path, place: int) -> None:
    path = stored(folder)
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    if place == 5000:  # padding between two parts means nothing
        content[place] ^= 1
        content[4096] ^= 1
        path.write_bytes(content)
    if place in (5000, -1):
        assert [entry.state for entry in cache.entries()] == [State.GOOD], "without reading all of it"
    (entry,) = cache.entries(whole=True)
    assert entry.state is State.DAMAGED
    assert CliRunner().invoke(app, ["cache", "verify"]).exit_code == 1
    with pytest.warns(CacheWarning, match=f"put aside as {path.name}.damaged"):
        assert cache.load_parts("weights", KEY) is None
    assert [entry.path.name for entry in cache.prune()] == [f"{path.name}.damaged"]
    stored(folder)
    assert cache.load_parts("weights", KEY) is not None


@pytest.mark.parametrize("size", [0, 10, 24, 200, -1])
def test_a_file_cut_short_is_found(folder: Path, size: int) -> None:
    path = stored(folder)
    os.truncate(path, size if size >= 0 else path.stat().st_size - 1)
    with pytest.warns(CacheWarning, match="not used"):
        assert cache.load_parts("weights", KEY) is None


def test_a_disk_that_is_too_small_is_told_before_it_is_full(folder: Path) -> None:
    code = f"""
import warnings
from thresher import cache
cache.set_dir({str(folder)!r})
{limit_file_size(1_000_000)}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    print(cache.store_parts("weights", 1, None, [("a", b"y" * 2_000_000)]), [w.category.__name__ for w in caught])
    print(cache.store_parts("weights", 1, None, [("a", b"y" * 900_000)]))
"""
    assert lines_of(run_python(code)) == ["False ['CacheWarning']", "True"]
    assert len(list((folder / "weights").iterdir())) == 1


def test_old_versions_are_pruned(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from thresher import _engine

    path = stored(folder)
    monkeypatch.setattr(_engine, "version", lambda: "0.0.0")
    assert cache.load_parts("weights", KEY) is None
    assert [entry.path for entry in cache.prune()] == [path]

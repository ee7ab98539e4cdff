"""What fuzz targets of the Python parsers start with, and what they found earlier, replayed without a fuzzer."""

from __future__ import annotations

import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import pytest

from thresher import _engine

FOLDER = Path(__file__).resolve().parents[1] / "fuzz"
sys.path.insert(0, str(FOLDER))
import fuzz_targets  # noqa: E402 found after its folder is on the path

NAMES = fuzz_targets.names()
# What any input may take: tables that are made on first use, and so many bytes for each byte of input. Compressed data
# may hold a thousand times as many.
BASE_BYTES = 48 << 20
BYTES_PER_BYTE = 2000
SLOWEST_S = 20.0


def cases() -> list[tuple[str, Path]]:
    return [(name, path) for name in NAMES for path in fuzz_targets.inputs(name)]


def target(name: str) -> fuzz_targets.Target:
    """The function of a target; the test is skipped where packages are missing that it needs beside the engine."""
    try:
        return fuzz_targets.load(name)
    except ModuleNotFoundError as error:
        pytest.skip(f"{error.name} is not installed")


@pytest.mark.parametrize(("name", "path"), cases(), ids=lambda value: value.name if isinstance(value, Path) else value)
def test_replay(name: str, path: Path) -> None:
    run = target(name)
    data = fuzz_targets.contents(path)
    tracemalloc.start()  # from here on: what is garbage already does not count
    try:
        begin = time.monotonic()
        run(data)
        seconds = time.monotonic() - begin
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert seconds < SLOWEST_S
    assert peak < BASE_BYTES + BYTES_PER_BYTE * len(data)


@pytest.mark.parametrize("name", NAMES)
def test_beginnings_of_seeds(name: str) -> None:
    run = target(name)
    for path in fuzz_targets.inputs(name):
        if path.parent.parent.name != "corpus":
            continue
        data = fuzz_targets.contents(path)
        for end in range(0, len(data), max(1, len(data) // 25)):
            run(data[:end])


def test_every_target_has_seeds() -> None:
    assert NAMES
    for name in NAMES:
        assert list((FOLDER / "corpus" / name).glob("*")), name
    known = {*NAMES, *(path.stem for path in FOLDER.glob("*.cc"))}
    for kind in ("corpus", "regressions"):
        assert {path.name for path in (FOLDER / kind).iterdir()} <= known


def test_the_seeds_are_those_that_the_script_makes() -> None:
    done = subprocess.run(
        [sys.executable, FOLDER / "make_corpus.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    files = [path for kind in ("corpus", "regressions") for path in (FOLDER / kind).rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 200 << 10


def test_a_planted_fault_is_a_finding() -> None:
    run = fuzz_targets.load("planted_exception")
    run(b"hus")
    with pytest.raises(LookupError, match="planted"):
        run(b"husk and more")


def test_the_dictionaries_know_every_operator_and_variable() -> None:
    words = {path.stem: path.read_text() for path in (FOLDER / "dictionaries").glob("*.dict")}
    for row in _engine.ops():
        assert f'"= {row["name"]}(%"' in words["graph_text"]
    for variable in _engine.env_vars():
        assert f'"{variable["name"]}="' in words["environment"]

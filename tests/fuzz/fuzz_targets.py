"""The fuzz targets of the Python parsers, and the inputs that are kept for all targets.

A target is a file of tests/fuzz/python with a function `run(data: bytes) -> None`. It returns whatever the bytes are:
errors that the parser documents are expected, any other exception is a finding.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
CORPUS = FOLDER / "corpus"
REGRESSIONS = FOLDER / "regressions"
PLANTED = FOLDER / "planted"

Target = Callable[[bytes], None]


def names() -> list[str]:
    return sorted(path.stem for path in (FOLDER / "python").glob("*.py"))


def load(name: str) -> Target:
    """The function of a target; those that are planted for the self-check have names that begin so."""
    path = FOLDER / "python" / f"{name}.py"
    if name.startswith("planted_"):
        path = PLANTED / f"{name.removeprefix('planted_')}.py"
    spec = importlib.util.spec_from_file_location(f"fuzz_target_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Target = module.run
    return found


def contents(path: Path) -> bytes:
    """The bytes of a kept input. One that ends in .hex holds them as digits; white space means nothing."""
    data = path.read_bytes()
    return bytes.fromhex(data.decode()) if path.suffix == ".hex" else data


def inputs(name: str) -> list[Path]:
    """What is kept for a target: seeds, and findings of earlier runs."""
    return sorted(path for folder in (REGRESSIONS, CORPUS) for path in (folder / name).glob("*"))


@contextmanager
def as_file(data: bytes, name: str) -> Iterator[Path]:
    """A file with these bytes, in memory where there is such a place."""
    shared = "/dev/shm"
    place = shared if os.access(shared, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="thresher-fuzz-", dir=place) as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        yield path

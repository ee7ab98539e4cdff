"""A tool that takes NVTX ranges, made by the C compiler, and what it has written down."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest


class Range(NamedTuple):
    """One that has ended."""

    thread: str
    path: tuple[str, ...]  # those that it lies in, outermost first, and itself


def ranges_of(path: Path) -> list[Range]:
    """In the order in which they began; all of them have ended, in their order."""
    found = []
    open_ranges: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        thread, depth, *name = line.split(" ", 2)
        stack = open_ranges.setdefault(thread, [])
        if name:
            assert len(stack) == int(depth)
            stack.append(name[0])
            found.append(Range(thread, tuple(stack)))
        else:
            stack.pop()
            assert len(stack) == int(depth)
    assert not any(open_ranges.values()), "ranges that never end"
    return found


def build_listener(folder: Path) -> str:
    """The path of the tool's library; skips the test where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("needs a C compiler, to make a tool that listens")
    library = folder / "nvtx_listener.so"
    source = Path(__file__).with_name("nvtx_listener.c")
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-lpthread"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return str(library)

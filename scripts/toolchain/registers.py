"""Registers and stack of the CUDA kernels in a library, and the file that pins them.

A kernel that takes more registers than before has fewer threads on a multiprocessor; one that keeps what it computes
with on its stack (spilled registers, arrays that are indexed) waits for memory. Neither shows in a test.
"""

from __future__ import annotations

import re
from pathlib import Path

from .process import ToolchainError, captured

HEADER = """\
# The most registers that a kernel of each struct in src/thresher/cuda takes, and after a + the bytes of its stack, as
# the compiler of requirements/cuda.txt makes them. `nox -s build -- --platform cuda` compares, and with
# --pin-registers writes this file.
"""
_KERNEL = re.compile(r"Function _ZN8thresher4cuda3RunINS0_(\d+)(\w+)")
_USED = re.compile(r"REG:(\d+) STACK:(\d+)")

# By kernel, by architecture: registers, bytes of stack.
Used = dict[str, dict[str, tuple[int, int]]]


def used_by(library: Path, cuobjdump: Path) -> Used:
    """Returns what the kernels of a library, or of an object file, take.

    Raises:
        ToolchainError: cuobjdump failed, or knows no kernels in it.
    """
    found = read_usage(captured([cuobjdump, "-res-usage", library]))
    if not found:
        raise ToolchainError(f"Expected kernels in {library}, got none that {cuobjdump} knows.")
    return found


def read_usage(text: str) -> Used:
    """Returns what `cuobjdump -res-usage` says: of each struct the most that any of its kernels takes."""
    found: Used = {}
    architecture = kernel = ""
    for line in text.splitlines():
        if line.startswith("arch = "):
            architecture = line.split()[-1]
        elif name := _KERNEL.search(line):
            kernel = name[2][: int(name[1])]
        elif (numbers := _USED.search(line)) and kernel:
            registers, stack = int(numbers[1]), int(numbers[2])
            before = found.setdefault(kernel, {}).get(architecture, (0, 0))
            found[kernel][architecture] = (max(before[0], registers), max(before[1], stack))
            kernel = ""
    return found


def read_pins(path: Path) -> Used:
    """Returns what a file pins.

    Raises:
        ToolchainError: a line is not of the form that `write_pins` makes.
    """
    lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines() if line and line[0] != "#"]
    head, *rows = lines or [[]]
    pins: Used = {}
    for row in rows:
        numbers = [re.fullmatch(r"(\d+)(?:\+(\d+))?", cell) for cell in row[1:]]
        if len(row) != len(head) or not all(numbers):
            raise ToolchainError(f"{path}: expected a kernel and {len(head) - 1} numbers, got {' '.join(row)!r}.")
        pins[row[0]] = {
            name: (int(number[1]), int(number[2] or 0))
            for name, number in zip(head[1:], numbers, strict=True)
            if number
        }
    return pins


def write_pins(path: Path, used: Used) -> None:
    """Writes the file, one line a kernel, one column an architecture."""
    architectures = sorted({name for row in used.values() for name in row}, key=lambda name: int(name[3:]))
    rows = [["kernel", *architectures]]
    for kernel, numbers in sorted(used.items()):
        cells = [numbers[name] for name in architectures]
        rows.append([kernel, *(f"{registers}+{stack}" if stack else str(registers) for registers, stack in cells)])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    path.write_text(HEADER + "\n".join(lines) + "\n", encoding="utf-8")


def faults(used: Used, pins: Used) -> list[str]:
    """Returns where kernels take more than is pinned."""
    found = []
    for kernel, numbers in sorted(used.items()):
        for architecture, (registers, stack) in sorted(numbers.items()):
            most = pins.get(kernel, {}).get(architecture, (registers, stack))
            if registers > most[0]:
                found.append(f"{kernel} on {architecture}: expected at most {most[0]} registers, got {registers}")
            if stack > most[1]:
                found.append(f"{kernel} on {architecture}: expected at most {most[1]} bytes of stack, got {stack}")
    return found


def unpinned(used: Used, pins: Used) -> list[str]:
    """Returns the kernels of which nothing is pinned."""
    return sorted(set(used) - set(pins))

"""The proof that a sanitizer bites: faults are planted, and each has to be found."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from toolchain.process import ToolchainError, note

from .reports import findings
from .sanitizer import Sanitizer, launcher

PROGRAM = "planted_faults"
LIBRARY = "libplanted_faults.so"
CONTROL = "none"
# Seconds for one fault; PyTorch is not imported.
LIMIT_S = 120
COMMIT = "import ctypes, sys; ctypes.CDLL(sys.argv[1]).thresher_commit_fault(sys.argv[2].encode())"


def _said(command: list[str], environment: dict[str, str]) -> str:
    """Runs a command and returns what it printed; what it ends with is not asked."""
    try:
        done = subprocess.run(
            command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ToolchainError(f"`{' '.join(command)}` did not end within {LIMIT_S} s.") from error
    return done.stdout + done.stderr


def judge(sanitizer: Sanitizer, fault: str, said: str) -> str | None:
    """Returns what is wrong with the report of a fault; None where it is as it should be.

    The report is read as those of the tests are, so that the reader is proven along with the sanitizer.
    """
    found = "\n".join(findings(said))
    if fault == CONTROL:
        return f"something was found where nothing is planted:\n{found}" if found else None
    if re.search(sanitizer.planted[fault], found):
        return None
    return f"expected a report that says {sanitizer.planted[fault]!r}; got:\n{said.strip() or '(nothing)'}"


def run(sanitizer: Sanitizer, objects: Path, python: Path) -> list[str]:
    """Plants every fault of a sanitizer's kind in a program and in a library that Python loads.

    Args:
        sanitizer: what has to find them.
        objects: the build folder that holds both.
        python: an interpreter that was built without the sanitizer.

    Returns:
        What was found, a line for each fault and place.

    Raises:
        ToolchainError: names every fault that was not found, and where.
    """
    ways = {
        "a program": ([str(objects / PROGRAM)], sanitizer.environment()),
        "Python": (
            [str(python), "-c", COMMIT, str(objects / LIBRARY)],
            {**sanitizer.environment(), **sanitizer.preload()},
        ),
    }
    missed, lines = [], []
    for place, (command, environment) in ways.items():
        for fault in (CONTROL, *sanitizer.planted):
            said = _said([*launcher(), *command, fault], environment)
            wrong = judge(sanitizer, fault, said)
            if wrong:
                missed.append(f"{fault} in {place}: {wrong}")
            elif fault != CONTROL:
                first = re.search(sanitizer.planted[fault], said)
                lines.append(f"{fault} in {place}: found ({first[0] if first else ''})")
    if missed:
        raise ToolchainError(
            f"The {sanitizer.name} sanitizer is silent or wrong, so that its other results mean nothing:\n"
            + "\n".join(missed)
        )
    for line in lines:
        note(line)
    return lines

"""Running Python in a process of its own, without THRESHER_* variables but those asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from warm_python import COMMAND_LINE, run_warm


def without_settings() -> dict[str, str]:
    """The environment of this process without THRESHER_* variables."""
    return {name: value for name, value in os.environ.items() if not name.startswith("THRESHER_")}


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs code; standard output and error are kept."""
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**without_settings(), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def run_with_torch(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Like `run_python`, for code that imports PyTorch: the process starts with that done (warm_python.py)."""
    return run_warm(code, *arguments, environment={**without_settings(), **environment}, timeout=120)


COMMAND = "import runpy; runpy.run_module('thresher', run_name='__main__', alter_sys=True)"


def run_command_with_torch(
    *arguments: object, folder: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs the command `thresher` in a process that has PyTorch imported already, for what compiles or compares."""
    variables = {**without_settings(), "NO_COLOR": "1", **environment}
    return run_warm(COMMAND, *map(str, arguments), environment=variables, timeout=240, folder=folder)


def run_command(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the command `thresher` in a process that has imported what it stands on, for what needs no PyTorch."""
    kept = {name: value for name, value in without_settings().items() if name != "COLUMNS"}
    variables = {**kept, "NO_COLOR": "1", **environment}
    return run_warm(COMMAND, *map(str, arguments), environment=variables, timeout=120, modules=COMMAND_LINE)


def limit_file_size(size: int) -> str:
    """Returns code after which a file takes `size` bytes at most, as on a full disk, until Python ends.

    The limit is lifted then: the counters of a build for coverage are written still later.
    """
    return f"""
import atexit, resource
limits = resource.getrlimit(resource.RLIMIT_FSIZE)
atexit.register(resource.setrlimit, resource.RLIMIT_FSIZE, limits)
resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, limits[1]))
"""


def lines_of(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What a process printed; fails with what it said if it did not end well."""
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()

"""Running Python in a process of its own, without THRESHER_* variables but those asked for."""

from __future__ import annotations

import os
import subprocess
import sys


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

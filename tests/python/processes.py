"""Running Python in a process of its own, without THRESHER_* variables but those asked for."""

from __future__ import annotations

import os
import subprocess
import sys


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs code; standard output and error are kept."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("THRESHER_")}
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**clean, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

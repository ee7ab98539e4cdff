"""The command line: ``thresher COMMAND``."""

from __future__ import annotations

import importlib.util
import sys

_NEEDED = ("typer", "rich")


def main() -> None:
    """Runs the command line and ends the process with its exit code."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"thresher: the command line wants {' and '.join(_NEEDED)}, got no {' and no '.join(missing)}; "
            f"run: {sys.executable} -m pip install {' '.join(missing)}",
            file=sys.stderr,
        )
        sys.exit(1)
    from thresher.cli.app import app

    app(prog_name="thresher")

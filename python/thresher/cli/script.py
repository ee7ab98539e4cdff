"""Running a user's script inside a command."""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from thresher.cli.common import fail


def check_script(command: str, script: Path) -> None:
    """Ends the command with a message where there is no such script."""
    if not script.is_file():
        fail(f"{command}: expected a Python script, got {'a folder' if script.is_dir() else 'nothing'} at {script}")


def run_script(script: Path, arguments: list[str]) -> int:
    """Runs a script as Python itself would and returns the exit code it would have had."""
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    return _run(lambda: runpy.run_path(str(script), run_name="__main__"), str(script))


def run_module(module: str, arguments: list[str]) -> int:
    """Runs a module as `python -m` would and returns the exit code it would have had."""
    sys.argv = ["-m", *arguments]  # runpy puts the file's name in place of the first
    sys.path.insert(0, os.getcwd())
    try:
        found = importlib.util.find_spec(module)
        if found is not None and found.submodule_search_locations is not None:
            found = importlib.util.find_spec(f"{module}.__main__")
    except (ImportError, ValueError) as error:
        fail(f"-m {module}: expected a module that Python finds, got: {error}; check the name and the current folder")
    if found is None or found.origin is None or not found.has_location:
        fail(f"-m {module}: expected a module that Python finds, got none; check the name and the current folder")
    return _run(lambda: runpy.run_module(module, run_name="__main__", alter_sys=True), found.origin)


def _run(body: Callable[[], object], file: str) -> int:
    try:
        body()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BaseException as error:  # what came of the part that ran is still wanted
        _print_traceback(error, file)
        return 1
    return 0


def _print_traceback(error: BaseException, script: str) -> None:
    # From the script's own first line on: how it was started is no concern of its author.
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != script:
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace or error.__traceback__)

"""Running a user's script inside a command."""

from __future__ import annotations

import runpy
import sys
import traceback
from pathlib import Path


def run_script(script: Path, arguments: list[str]) -> int:
    """Runs a script as Python itself would and returns the exit code it would have had."""
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BaseException as error:  # what came of the part that ran is still wanted
        _print_traceback(error, str(script))
        return 1
    return 0


def _print_traceback(error: BaseException, script: str) -> None:
    # From the script's own first line on: how it was started is no concern of its author.
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != script:
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace or error.__traceback__)

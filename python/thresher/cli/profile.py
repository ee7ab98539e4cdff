"""``thresher profile script.py``: profile a script that knows nothing of it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

_EPILOG = """
Examples:

- `thresher profile script.py --batch 8` runs the script with its arguments and prints the operator report at the end
- `thresher profile -o run.json script.py` also writes the report as JSON, for `thresher report run.json`
- `thresher profile --json script.py` prints the report as JSON, after what the script prints
"""


def add_to(app: typer.Typer) -> None:
    """Registers the command."""
    # The script's own options are not ours to read.
    settings = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
    app.command(name="profile", epilog=_EPILOG, context_settings=settings)(_profile)


def _profile(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", help="Python script; what follows are its arguments.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Also write the report as JSON here.")
    ] = None,
) -> None:
    """Run an unmodified script with the profiler on; print the operator report; keep the script's exit code."""
    from thresher import profiler
    from thresher.cli.common import engine, fail, write
    from thresher.cli.script import run_script

    if not script.is_file():
        fail(f"profile: wanted a Python script, found {'a folder' if script.is_dir() else 'nothing'} at {script}")
    engine()
    profiler.start()
    code = run_script(script, context.args)
    profiler.stop()
    report = profiler.collect()
    sys.stdout.flush()
    typer.echo(profiler.render(report, "json" if as_json else "text"), nl=False)
    if output is not None:
        write(output, profiler.render(report, "json"))
    raise typer.Exit(code)

"""``thresher profile script.py``: profile a script that knows nothing of it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from thresher.cli.common import STDOUT, Command, JsonFile, colored, write_json

if TYPE_CHECKING:
    from thresher.cli.recording import Recording

_EPILOG = """
Examples:

- `thresher profile script.py --batch 8` runs the script with its arguments and prints the operator report at the end
- `thresher profile -m package.module --batch 8` does the same for a module, as `python -m` runs it
- `thresher profile -o run.json script.py` also writes the report as JSON, for `thresher report run.json`
- `thresher profile --trace run.thrtrace script.py` keeps every event, for `thresher report run.thrtrace`
- `thresher profile --trace run.json.gz --html run.html script.py` writes a trace for Perfetto and a page
- `thresher profile --torch --trace run.json script.py` records PyTorch's own operators, too
- `thresher profile --json script.py` prints the report as JSON, after what the script prints
"""


def add_to(app: typer.Typer) -> None:
    """Registers the command."""
    # The script's own options are not ours to read.
    settings = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
    app.command(name="profile", cls=Command, epilog=_EPILOG, context_settings=settings)(colored(_profile))


def _profile(
    context: typer.Context,
    script: Annotated[
        str | None, typer.Argument(metavar="[SCRIPT]", help="Python script; what follows are its arguments.")
    ] = None,
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is the name of a module, as in `python -m`.")] = False,
    json_file: JsonFile = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Also write the report as JSON here.")
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            metavar="FILE",
            help="Keep every event: .thrtrace (native), .json or .json.gz (Chrome), .pftrace (Perfetto).",
        ),
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a report of every event as one page.")
    ] = None,
    with_torch: Annotated[
        bool, typer.Option("--torch", help="Record PyTorch's own operators, too, with PyTorch's profiler.")
    ] = False,
    no_peaks: Annotated[
        bool, typer.Option("--no-peaks", help="Do not measure this machine's peaks if a trace or page lacks them.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Write over a trace or page that exists.")] = False,
) -> None:
    """Run an unmodified script with the profiler on; print the operator report; keep the script's exit code."""
    from thresher.cli.common import engine, fail
    from thresher.cli.recording import Recording, RecordingOptions, finishing_first
    from thresher.cli.script import check_script, run_module, run_script

    if script is None:
        fail("profile: expected a Python script or -m MODULE, got neither; name one")
    if not module:
        check_script("profile", Path(script))
    wishes = RecordingOptions(trace, html, with_torch, not no_peaks, force)
    try:
        wishes.check()
    except (OSError, ValueError) as error:
        fail(str(error))
    if html is not None:
        from thresher.cli.report import page_renderer

        page_renderer()
    engine()
    # The script may go elsewhere.
    wishes = RecordingOptions(_absolute(trace), _absolute(html), with_torch, not no_peaks, force)
    output = _absolute(output)
    json_file = json_file if json_file in (None, STDOUT) else str(_absolute(Path(str(json_file))))
    recording = Recording(wishes, script if module else Path(script).name, context.args)
    try:
        recording.start()
    except ImportError as error:
        fail(f"--torch: expected PyTorch's profiler with Thresher in it, got: {error}; install thresher[torch]")
    except (OSError, ValueError) as error:
        fail(str(error))

    def finish(code: int) -> int:
        return _finish(recording, code, json_file=json_file, output=output)

    with finishing_first(finish):
        code = run_module(script, context.args) if module else run_script(Path(script), context.args)
    raise typer.Exit(finish(code))


def _finish(recording: Recording, code: int, *, json_file: str | None, output: Path | None) -> int:
    """Ends the recording, prints and writes what came of it; returns the exit code of the command."""
    from thresher import profiler
    from thresher.cli.common import plain_warnings
    from thresher.profiler.export import write_text

    with plain_warnings():
        report = recording.finish(code)
        sys.stdout.flush()
        if not write_json(json_file, report.to_dict()):
            typer.echo(profiler.render(report, "text"), nl=False)
            typer.echo(recording.torch_table(), nl=False)
        try:
            if output is not None:
                write_text(output, profiler.render(report, "json"), force=True)
            for path in recording.write():
                typer.echo(f"thresher: wrote {path}", err=True)
        except (OSError, ValueError) as error:
            kept = recording.kept()
            typer.echo(f"thresher: {error}{f'; what was recorded is in {kept}' if kept else ''}", err=True)
            return code or 1
    return code


def _absolute(path: Path | None) -> Path | None:
    return None if path is None else path.expanduser().absolute()

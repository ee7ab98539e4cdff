"""``thresher report FILE``: print what a profiled run has left: a trace or an operator report."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thresher.cli.common import STDOUT, Command, JsonFile, colored, console, write_json

if TYPE_CHECKING:
    from rich.console import RenderableType

_EPILOG = """
Examples:

- `thresher report run.thrtrace` prints where the time of a run went; `--html run.html` makes a page of it
- `thresher report trace.json.gz --by-shape` reads a trace of PyTorch's profiler
- `thresher report run.thrtrace --chrome run.json.gz --perfetto run.pftrace` makes traces for other tools
- `THRESHER_PROFILE=ON THRESHER_PROFILE_OUTPUT=run.json python script.py` writes an operator report
- `thresher report run.json` prints it
- `thresher report run.json --csv > run.csv` turns it into a table for a spreadsheet
"""


def add_to(app: typer.Typer) -> None:
    """Registers the command."""
    app.command(name="report", cls=Command, epilog=_EPILOG)(colored(_report))


def _report(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="A trace (.thrtrace, or Chrome JSON), or JSON written by a profiled run."),
    ],
    json_file: JsonFile = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print comma-separated values instead of text.")] = False,
    rich: Annotated[bool, typer.Option("--rich", help="Print coloured tables instead of text.")] = False,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write the report as one page for a browser.")
    ] = None,
    chrome: Annotated[
        Path | None,
        typer.Option("--chrome", metavar="FILE", help="Write the trace as Chrome JSON, .json or .json.gz."),
    ] = None,
    perfetto: Annotated[
        Path | None, typer.Option("--perfetto", metavar="FILE", help="Write the trace in Perfetto's format, .pftrace.")
    ] = None,
    by_shape: Annotated[bool, typer.Option("--by-shape", help="One line for each shape of an operator.")] = False,
    by_module: Annotated[
        bool, typer.Option("--module", help="List every module; with --csv, modules instead of operators.")
    ] = False,
    top: Annotated[
        int, typer.Option("--top", metavar="N", min=0, help="How many lines of a table of a trace; 0 for all.")
    ] = 25,
    force: Annotated[bool, typer.Option("--force", help="Write over files that exist.")] = False,
) -> None:
    """Print what a profiled run has left: where the time of a trace went, or an operator report."""
    from thresher.cli.common import fail
    from thresher.profiler.compare.load import OP_REPORT_FORMAT, REPORT_FORMAT, format_of, load_report

    if (json_file == STDOUT) + as_csv + rich > 1:
        fail("report: expected one of --json, --csv and --rich, got several; choose one")
    outputs = {"--html": html, "--chrome": chrome, "--perfetto": perfetto}
    wanted = [name for name, path in outputs.items() if path is not None]
    try:
        format = format_of(file)
        if format == OP_REPORT_FORMAT:
            if wanted or by_shape or by_module:
                options = [*wanted, *(["--by-shape"] if by_shape else []), *(["--module"] if by_module else [])]
                fail(
                    f"{file}: expected a trace for {', '.join(options)}, got an operator report, which has only sums; "
                    "record one with `thresher profile --trace FILE script.py`"
                )
            _print_op_report(file, "rich" if rich else "csv" if as_csv else "text", json_file)
            return
        if format == REPORT_FORMAT and (chrome or perfetto):
            fail(f"{file}: expected a trace, got a report of one, which lacks events; give the trace itself")
        _check_outputs(outputs, force=force)
        if format is None:
            trace, report = _read(file)
            _write_traces(trace, chrome, perfetto, force=force)
        else:
            report = load_report(file)
        if html is not None:
            write_page(report, html, force=force)
    except OSError as error:
        fail(_message(file, error))
    except ValueError as error:
        fail(str(error) if str(file) in str(error) else f"{file}: {error}")
    if write_json(json_file, report, indent=None):
        return
    if wanted and not (as_csv or rich):
        for name in wanted:
            typer.echo(f"wrote {outputs[name]}")
        return
    if as_csv:
        from thresher.profiler.export.tables import to_csv

        typer.echo(to_csv(report, by_shape=by_shape, by_module=by_module), nl=False)
    else:
        from thresher.profiler.export.tables import to_tables

        tables = to_tables(report, by_shape=by_shape, by_module=by_module, top=top, framed=rich)
        show(tables)


def write_page(report: dict[str, Any], path: Path, *, diff: dict[str, Any] | None = None, force: bool = False) -> None:
    """Writes a report, or the difference of two, as one page for a browser.

    Raises:
        OSError: The file cannot be written.
    """
    from thresher.profiler.export import write_text

    write_text(path, page_renderer()(report, diff=diff), force=force)


def page_renderer() -> Any:
    """What makes pages, or the end of the command with a message if this installation has none."""
    from thresher.cli.common import fail

    try:
        from thresher.profiler.html import render
    except ImportError as error:
        fail(f"--html: expected the module that makes pages, got: {error}; install Thresher anew, or leave --html out")
    return render


def show(part: RenderableType) -> None:
    """Prints tables: at least 100 columns wide where the output is no terminal."""
    screen = console()
    if not screen.is_terminal and "COLUMNS" not in os.environ:
        screen.width = 100
    if screen.color_system is not None:
        screen.print(part)
        return
    # Cells are filled up with blanks that nobody sees, but that a file keeps.
    with screen.capture() as capture:
        screen.print(part)
    typer.echo("\n".join(line.rstrip() for line in capture.get().splitlines()))


def _read(file: Path) -> tuple[Any, dict[str, Any]]:
    from thresher.profiler.analysis import build_report
    from thresher.profiler.trace import read_trace

    trace = read_trace(file)
    if not trace.total_events and trace.meta.get("format") != "native":
        raise ValueError(
            "expected a trace, an operator report or a report, got traceEvents without any event; "
            "was the profiler on during the run?"
        )
    return trace, build_report(trace)


def _check_outputs(outputs: dict[str, Path | None], *, force: bool) -> None:
    from thresher.profiler.export import CHROME_SUFFIXES, PERFETTO_SUFFIXES, check_output

    suffixes = {"--chrome": CHROME_SUFFIXES, "--perfetto": PERFETTO_SUFFIXES}
    for name, path in outputs.items():
        if path is None:
            continue
        wanted = suffixes.get(name, ())
        if wanted and path.exists() <= path.is_file() and not path.name.endswith(wanted):
            raise ValueError(f"{name} {path}: expected a name that ends in {' or '.join(wanted)}; choose another name")
        check_output(path, force=force)
    if outputs["--html"] is not None:
        page_renderer()


def _write_traces(trace: Any, chrome: Path | None, perfetto: Path | None, *, force: bool) -> None:
    from thresher.profiler.export import write_chrome, write_perfetto

    if chrome is not None:
        write_chrome(trace, chrome, force=force)
    if perfetto is not None:
        write_perfetto(trace, perfetto, force=force)


def _print_op_report(file: Path, format: str, json_file: str | None) -> None:
    from thresher.profiler import OpReport, render

    report = OpReport.from_json(file.read_text(encoding="utf-8"))
    if write_json(json_file, report.to_dict()):
        return
    if format == "rich":
        console().print(render(report, "rich"))
        return
    typer.echo(render(report, format), nl=False)


def _message(file: Path, error: OSError) -> str:
    from thresher.profiler.export import OutputError

    if isinstance(error, OutputError):
        return str(error)
    return f"{file}: expected a file that can be read, got: {error.strerror or error}; check the path"

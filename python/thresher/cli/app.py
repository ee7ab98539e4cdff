"""The list of subcommands."""

from __future__ import annotations

from typing import Annotated

import typer

from thresher.cli import (
    bench_serve,
    cache,
    check,
    conv,
    dashboard,
    diff,
    doctor,
    draw,
    llm,
    ops,
    passes,
    peaks,
    preload,
    profile,
    report,
    run,
    serve,
    tune,
    verify,
    zoo,
)

app = typer.Typer(
    name="thresher",
    help="Thresher: an inference engine for PyTorch models.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)

bench_serve.add_to(app)
cache.add_to(app)
check.add_to(app)
conv.add_to(app)
dashboard.add_to(app)
diff.add_to(app)
doctor.add_to(app)
draw.add_to(app)
llm.add_to(app)
ops.add_to(app)
passes.add_to(app)
peaks.add_to(app)
preload.add_to(app)
profile.add_to(app)
report.add_to(app)
run.add_to(app)
serve.add_to(app)
tune.add_to(app)
verify.add_to(app)
zoo.add_to(app)


def _print_version(wanted: bool) -> None:
    if not wanted:
        return
    from thresher.cli.common import engine

    native = engine()
    typer.echo(f"thresher {native.version()} ({native.isa()})")
    raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and end."),
    ] = False,
) -> None:
    """Thresher: an inference engine for PyTorch models."""

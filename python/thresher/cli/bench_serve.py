"""``thresher bench-serve``: a load for a server of OpenAI's API."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from thresher.cli.common import Command, JsonFile, colored, console, fail, write, write_json

if TYPE_CHECKING:
    from thresher.serve.bench import ServeResult

_EPILOG = """
Examples:

- `thresher bench-serve http://127.0.0.1:8000/v1 --concurrency 16 --requests 200` keeps 16 requests open
- `thresher bench-serve http://127.0.0.1:8000/v1 --rate 5 --duration 60 --picture load.svg` sends 5 a second
"""


def add_to(app: typer.Typer) -> None:
    """Registers the command."""
    app.command(name="bench-serve", cls=Command, epilog=_EPILOG)(colored(_bench_serve))


def _bench_serve(
    url: Annotated[str, typer.Argument(metavar="URL", help="Of the API, with /v1.")] = "http://127.0.0.1:8000/v1",
    model: Annotated[str | None, typer.Option("--model", help="Default: the first of the server's list.")] = None,
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", metavar="N", min=1, help="Requests at a time. Default: 8.")
    ] = None,
    rate: Annotated[
        float | None, typer.Option("--rate", metavar="R", min=0.001, help="Requests a second instead, at random times.")
    ] = None,
    requests: Annotated[
        int | None, typer.Option("--requests", metavar="N", min=1, help="How many. Default: 100.")
    ] = None,
    duration: Annotated[
        float | None, typer.Option("--duration", metavar="S", min=0.1, help="Seconds in which requests are sent.")
    ] = None,
    prompt: Annotated[int, typer.Option("--prompt", metavar="N", min=1, help="Words of random prompts.")] = 64,
    output: Annotated[int, typer.Option("--output", metavar="N", min=1, help="Tokens of an answer, at most.")] = 64,
    prompts: Annotated[
        Path | None, typer.Option("--prompts", metavar="FILE", help="Prompts instead, one a line.")
    ] = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Answers have all their tokens; not every server takes it.")
    ] = False,
    api_key: Annotated[str | None, typer.Option("--api-key", metavar="KEY", help="Is sent along.")] = None,
    picture: Annotated[Path | None, typer.Option("--picture", metavar="FILE", help="An SVG of the times.")] = None,
    json_file: JsonFile = None,
) -> None:
    """Measure how fast a server answers under a load; exit code 1 if a request failed (429 is no failure)."""
    try:
        from thresher.serve import bench
        from thresher.serve.client import Target
        from thresher.serve.picture import picture as draw
    except ModuleNotFoundError as error:
        fail(f"expected the module {error.name}, got none; pip install 'thresher[serve]'")
    texts: list[str] = []
    if prompts is not None:
        try:
            texts = [line for line in prompts.read_text(encoding="utf-8").splitlines() if line.strip()]
        except (OSError, ValueError) as error:
            fail(f"expected a file of prompts, got {error}")
        if not texts:
            fail(f"expected a prompt a line in {prompts}, got none")
    try:
        load = bench.Load(
            concurrency=concurrency or (None if rate else 8),
            rate=rate,
            requests=requests or (None if duration else 100),
            duration_s=duration,
            prompts=texts,
            prompt_words=prompt,
            output_tokens=output,
            ignore_eos=ignore_eos,
        )
        target = Target(url, api_key)
        name = model or asyncio.run(bench.first_model(target))
        timings = asyncio.run(bench.bench_serve(target, name, load))
    except (OSError, ValueError) as error:
        fail(str(error))
    result = bench.summary(timings)
    if picture is not None:
        curves = [("time to first token", bench.first_ms(timings)), ("between tokens", bench.gaps_ms(timings))]
        write(picture, draw(f"{name}, {result.succeeded} answers", curves))
    if not write_json(json_file, {"url": url, "model": name, **result.to_dict()}):
        _print(name, result)
    if result.failed:
        fail(f"{result.failed} of {result.requests} requests failed: {next(iter(result.errors))}")


def _print(name: str, result: ServeResult) -> None:
    from rich.table import Table

    table = Table(title=f"{name}, {result.duration_s:.1f} s", title_justify="left")
    table.add_column("ms")
    for column in ("mean", "p50", "p90", "p95", "p99", "max"):
        table.add_column(column, justify="right")
    for about, values in (
        ("to the first token", result.ttft_ms),
        ("between tokens", result.inter_token_ms),
        ("to the end", result.latency_ms),
    ):
        keys = ("mean", "p50", "p90", "p95", "p99", "max")
        table.add_row(about, *(f"{values[key]:.1f}" if values else "" for key in keys))
    shown = console()
    shown.print(table)
    shown.print(
        f"{result.requests} requests: {result.succeeded} answered, {result.refused} refused (429), {result.failed} "
        f"failed; {result.requests_per_s:.2f} requests/s, {result.output_tokens_per_s:.1f} tokens/s; "
        f"{result.prompt_tokens} tokens of prompts, {result.output_tokens} of answers",
        highlight=False,
        soft_wrap=True,
    )

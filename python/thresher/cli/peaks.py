"""``thresher peaks``: how fast this machine is at best."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from thresher.cli.common import Command, JsonFile, colored, console, write_json

if TYPE_CHECKING:
    from thresher.machine import Peaks, Rate

_EPILOG = """
Examples:

- `thresher peaks` prints the roofs of this machine; the first time it measures for some seconds
- `thresher peaks --refresh` measures again, best while nothing else runs
- `thresher peaks --threads 4 --json` gives one and four threads, for programs
"""

_ROWS = (
    ("fp32 multiply-add", "fp32_gflops", "GFLOP/s"),
    ("bf16 dot product", "bf16_gflops", "GFLOP/s"),
    ("fp16 product of tiles", "fp16_gflops", "GFLOP/s"),
    ("int8 dot product", "int8_gops", "GOP/s"),
    ("read, L1 cache", "l1_read_gb_per_s", "GB/s"),
    ("read, L2 cache", "l2_read_gb_per_s", "GB/s"),
    ("read, L3 cache", "l3_read_gb_per_s", "GB/s"),
    ("read, memory", "dram_read_gb_per_s", "GB/s"),
    ("write, memory", "dram_write_gb_per_s", "GB/s"),
    ("copy, memory", "dram_copy_gb_per_s", "GB/s"),
)


def add_to(app: typer.Typer) -> None:
    """Registers the command."""
    app.command(name="peaks", cls=Command, epilog=_EPILOG)(colored(_peaks))


def _peaks(
    refresh: Annotated[bool, typer.Option("--refresh", help="Measure even if there is an earlier result.")] = False,
    json_file: JsonFile = None,
    threads: Annotated[
        int | None,
        typer.Option("--threads", metavar="N", min=1, max=1024, help="Measure 1 and N threads; by default all cores."),
    ] = None,
) -> None:
    """Measure how fast this machine computes and moves memory at best, or print the earlier result."""
    from thresher.cli.common import engine, fail, plain_warnings

    engine()
    with plain_warnings():
        try:
            found = _measured(refresh, threads)
        except (ValueError, MemoryError) as error:
            fail(str(error))
    if not write_json(json_file, {**found.to_dict(), "disturbed": found.disturbed}):
        _print(found)


def _measured(refresh: bool, threads: int | None) -> Peaks:
    """Measures, with a bar on standard error where that is a terminal."""
    from thresher.machine import peaks

    if not sys.stderr.isatty():
        return peaks(refresh, num_threads=threads)
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    columns = (TextColumn("measuring"), BarColumn(), TaskProgressColumn())
    # The bar is drawn between two measurements and by this thread: one that draws by itself would disturb them.
    with Progress(*columns, console=console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task("measuring", total=None, visible=False)

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, visible=True, refresh=done % 8 == 0 or done == total)

        return peaks(refresh, num_threads=threads, progress=show)


def _print(found: Peaks) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=f"{found.cpu_model}, {found.isa}, {found.usable_cores} usable cores", title_justify="left")
    table.add_column("peak", no_wrap=True)
    table.add_column("unit", no_wrap=True)
    for entry in found.by_threads:
        table.add_column(f"{entry.num_threads} thr.", justify="right", no_wrap=True)
        table.add_column("range", justify="right", style="dim", no_wrap=True)
    for label, name, unit in _ROWS:
        if name == "fp16_gflops" and found.one_thread.fp16_gflops is None:
            continue
        cells = [label, unit]
        for entry in found.by_threads:
            rate: Rate | None = getattr(entry, name)
            cells += ["none", ""] if rate is None else [f"{rate.median:.1f}", f"{rate.min:.1f}-{rate.max:.1f}"]
        table.add_row(*(Text(cell) for cell in cells))
    screen = console()
    screen.print(table)
    for node in found.by_node:
        rate = node.dram_read_gb_per_s
        screen.print(
            Text(
                f"Node {node.node}: {node.num_threads} threads read {rate.median:.1f} GB/s of its own memory "
                f"({rate.min:.1f}-{rate.max:.1f})."
            )
        )
    rounds = min(entry.rounds for entry in found.by_threads)
    origin = "from the cache; --refresh measures again" if found.from_cache else f"in {found.seconds:.1f} s"
    screen.print(
        Text(
            f"Medians of {rounds} rounds; int8 by {found.int8_by} ({found.simd_target}).\n"
            f"Measured {found.measured_at} by thresher {found.engine_version}, {origin}."
        )
    )
    if found.disturbed:
        screen.print(
            Text(
                "Other programs ran at the same time: some measurements lie far below the best, and the roofs above "
                "the medians. Measure again with --refresh while nothing else runs.",
                style="yellow",
            )
        )

"""``thresher draw``: a drawing of a graph."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from thresher.cli.common import Command, JsonFile, colored, write_json

if TYPE_CHECKING:
    from thresher.draw import GraphText

_EPILOG = """
Examples:

- `thresher draw 00_input.txt -o input.svg` draws a graph that `CompilerConfig(dump_dir=...)` wrote
- `thresher draw --before 05_x.txt 06_y.txt -o y.svg` also marks the nodes that the first graph has no equal of
- `thresher draw --json graph.txt` prints the graph as JSON
"""


def add_to(app: typer.Typer) -> None:
    """Registers the command."""
    app.command(name="draw", cls=Command, epilog=_EPILOG)(colored(_draw))


def _draw(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A graph in the text form.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="The SVG file; without it, standard output.")
    ] = None,
    before: Annotated[
        Path | None, typer.Option("--before", metavar="FILE", help="Mark what is new against this graph.")
    ] = None,
    max_nodes: Annotated[int, typer.Option("--max-nodes", min=1, help="Draw only the first so many nodes.")] = 2000,
    json_file: JsonFile = None,
) -> None:
    """Draw a graph as SVG: boxes by layers, coloured by section, light or dark as the viewer is."""
    import dataclasses

    from thresher.cli.common import write
    from thresher.draw import draw
    from thresher.draw.page import new_nodes

    graph = _read(file)
    if write_json(json_file, dataclasses.asdict(graph)):
        return
    new = new_nodes(_read(before), graph) if before is not None else []
    text = draw(graph, title=file.stem, sections=_sections(), new=new, max_nodes=max_nodes)
    if output is None:
        typer.echo(text, nl=False)
    else:
        write(output, text)


def _read(file: Path) -> GraphText:
    from thresher.cli.common import fail
    from thresher.draw import GraphTextError, parse

    try:
        return parse(file.read_text(encoding="utf-8"))
    except OSError as error:
        fail(f"{file}: expected a file that can be read, got: {error.strerror or error}; check the path")
    except (GraphTextError, UnicodeDecodeError) as error:
        fail(f"{file}: {error}")


def _sections() -> dict[str, str]:
    """The section of every operator; none where the engine does not load, since a drawing needs only its colours."""
    from thresher.doctor.checks import load_engine

    native, _ = load_engine()
    return {} if native is None else {row["name"]: row["section"] for row in native.ops()}

"""Writes what the passes do to a graph into a folder: text, drawing, and one page about all of them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from pathlib import Path

from thresher.draw.page import Stage, new_nodes, render_page
from thresher.draw.svg import draw
from thresher.draw.text import GraphTextError, parse


class Dump:
    """Call it with the name of each pass and the text of its graph, then close() it.

    Args:
      parent: where the folder is made.
      name: of the folder; where there is one already, a number is added, so that nothing is ever overwritten.
      sections: the section of every operator, for the colours.
    """

    def __init__(self, parent: str | os.PathLike[str], name: str, sections: Mapping[str, str]) -> None:
        self.folder = _make_folder(Path(parent), name)
        self._sections = sections
        self._stages: list[Stage] = []

    def __call__(self, name: str, text: str) -> None:
        """Writes the text and the drawing of one graph."""
        stem = f"{len(self._stages):02d}_{name}"
        self._write(f"{stem}.txt", text)
        try:
            graph = parse(text)
        except GraphTextError as error:  # a fault of this package, which must not pass for one of the model
            raise RuntimeError(f"{self.folder / stem}.txt cannot be drawn: {error}") from error
        before = self._stages[-1] if self._stages else None
        if before is not None and before.graph == graph:
            svg = before.svg
        else:
            new = new_nodes(before.graph, graph) if before is not None else []
            svg = draw(graph, title=stem, sections=self._sections, new=new)
        self._stages.append(Stage(name, graph, svg))
        self._write(f"{stem}.svg", svg)

    def close(self) -> None:
        """Writes the page."""
        self._write("index.html", render_page(self.folder.name, self._stages))

    def _write(self, name: str, text: str) -> None:
        from thresher.profiler.export import write_text

        write_text(self.folder / name, text)


def _make_folder(parent: Path, name: str) -> Path:
    parent.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        folder = parent / (name if number == 1 else f"{name}_{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder
    raise AssertionError("numbers do not end")

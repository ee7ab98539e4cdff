"""The text form of graphs, as `thresher draw` reads it."""

from __future__ import annotations

from thresher.draw import GraphTextError, draw, parse

MOST_NODES = 30


def run(data: bytes) -> None:
    try:
        graph = parse(data.decode("utf-8", "replace"))
    except GraphTextError:
        return
    draw(graph, title="fuzz", max_nodes=MOST_NODES)

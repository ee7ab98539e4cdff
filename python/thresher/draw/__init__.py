"""Drawings of graphs: layered, self-contained SVG made from the text form of a graph."""

from thresher.draw.page import Stage, render_page
from thresher.draw.svg import MAX_NODES, draw
from thresher.draw.text import GraphText, GraphTextError, NodeText, parse

__all__ = ["MAX_NODES", "GraphText", "GraphTextError", "NodeText", "Stage", "draw", "parse", "render_page"]

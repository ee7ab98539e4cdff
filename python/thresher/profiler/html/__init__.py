"""The report as one self-contained HTML file."""

from thresher.profiler.html.render import render

__all__ = ["render"]

"""Horizontal bars in groups as one SVG file, light or dark as the viewer is."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 760
LABEL = 210  # room for names
VALUE = 150  # room for the figures behind the bars
BAR = 18
GAP = 6
HEAD = 34
TOP = 46
FOOTER_LETTERS = 96

# A page shows the SVG as an image, which inherits no colours: the picture itself asks for the reader's scheme.
STYLE = """
text { font: 13px system-ui, 'Segoe UI', Helvetica, Arial, sans-serif; fill: #1f2328 }
.title { font-size: 15px; font-weight: 600 }
.group { font-weight: 600 }
.value { font-variant-numeric: tabular-nums }
.paper { fill: #ffffff }
.peer { fill: #8c959f }
.ours { fill: #bf5f00 }
.axis { stroke: #8c959f; stroke-width: 1 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .paper { fill: #14191f }
  .peer { fill: #6e7681 }
  .ours { fill: #f0883e }
  .axis { stroke: #6e7681 }
}
"""


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar.

    Attributes:
        label: What it stands for.
        value: Its length, at least 0.
        figures: What stands behind it.
        marked: Whether it has the colour of what the picture is about.
    """

    label: str
    value: float
    figures: str
    marked: bool = False


def footer_lines(notes: Sequence[str], y: int) -> list[str]:
    """Lines of text that begin at y, each GAP + BAR below the one before, as SVG."""
    lines = [line for note in notes for line in textwrap.wrap(note, FOOTER_LETTERS, break_on_hyphens=False)]
    return [f'<text x="12" y="{y + (GAP + BAR) * i}">{escape(line)}</text>' for i, line in enumerate(lines)]


def whole_svg(
    width: int, height: int, title: str, subtitle: str, below: Sequence[str], above: Sequence[str], style: str = STYLE
) -> str:
    """Puts a picture together.

    Args:
        width: In pixels.
        height: In pixels.
        title: The headline, at 24 pixels.
        subtitle: A sentence that says what the figures are, at 44 pixels.
        below: What lies below these lines, as SVG.
        above: All else.
        style: Of all of it, as CSS.

    Returns:
        A whole SVG document.
    """
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title, quote=True)}">'
    )
    titles = [
        f'<text class="title" x="12" y="24">{escape(title)}</text>',
        f'<text x="12" y="44">{escape(subtitle)}</text>',
    ]
    return "\n".join([head, f"<style>{style}</style>", *below, *titles, *above, "</svg>", ""])


def bars_svg(groups: Mapping[str, Sequence[Bar]], title: str, subtitle: str, notes: Sequence[str] = ()) -> str:
    """Draws bars.

    Args:
        groups: Bars by the headline of their group; each group has a scale of its own, which starts at zero.
        title: The headline.
        subtitle: A sentence that says what the figures are.
        notes: Lines below the bars.

    Returns:
        A whole SVG document without references to anything outside.
    """
    parts: list[str] = []
    y = TOP
    for name, members in groups.items():
        y += HEAD
        parts.append(f'<text class="group" x="12" y="{y - 10}">{escape(name)}</text>')
        scale = (WIDTH - LABEL - VALUE) / (max((bar.value for bar in members), default=0) or 1)
        start = y
        for bar in members:
            width = max(1.0, bar.value * scale)
            style = "ours" if bar.marked else "peer"
            middle = y + BAR - 5
            parts.append(f'<text x="{LABEL - 8}" y="{middle}" text-anchor="end">{escape(bar.label)}</text>')
            parts.append(f'<rect class="{style}" x="{LABEL}" y="{y}" width="{width:.1f}" height="{BAR}" rx="2"/>')
            parts.append(f'<text class="value" x="{LABEL + width + 6:.1f}" y="{middle}">{escape(bar.figures)}</text>')
            y += BAR + GAP
        parts.append(f'<line class="axis" x1="{LABEL}" y1="{start - 3}" x2="{LABEL}" y2="{y - GAP + 3}"/>')
    footer = footer_lines(notes, y + GAP + BAR)
    height = y + (GAP + BAR) * len(footer) + 12
    parts += footer
    return whole_svg(WIDTH, height, title, subtitle, ['<rect class="paper" width="100%" height="100%"/>'], parts)

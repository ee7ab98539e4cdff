"""The comparison as an SVG of horizontal bars, readable on light and on dark pages."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from html import escape

from report import Row

WIDTH = 760
LABEL = 170  # room for the engines' names
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
.case { font-weight: 600 }
.value { font-variant-numeric: tabular-nums }
.peer { fill: #8c959f }
.ours { fill: #bf5f00 }
.axis { stroke: #8c959f; stroke-width: 1 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .peer { fill: #6e7681 }
  .ours { fill: #f0883e }
  .axis { stroke: #6e7681 }
}
"""


def footer(unavailable: Sequence[str], y: int) -> list[str]:
    """Lines of text at y and below that name the engines that are not available; none where there are none."""
    text = f"Not available here: {', '.join(unavailable)}" if unavailable else ""
    found = textwrap.wrap(text, FOOTER_LETTERS, break_on_hyphens=False)
    return [f'<text x="12" y="{y + (GAP + BAR) * i}">{escape(line)}</text>' for i, line in enumerate(found)]


def svg(rows: list[Row], title: str, unavailable: Sequence[str] = ()) -> str:
    """Bars of the median times, one group a case, each group with its own scale that starts at zero.

    Args:
      rows: what `report.rows_of` gives; shorter bars are faster.
      title: headline; a sentence below it says what the figures are.
      unavailable: names for the line below the bars.

    Returns:
      A complete SVG document.
    """
    cases: dict[tuple[int, int, int], list[Row]] = {}
    for row in rows:
        cases.setdefault((row.threads, row.batch, row.sequence), []).append(row)
    parts: list[str] = []
    y = TOP
    for (threads, batch, sequence), members in cases.items():
        y += HEAD
        name = f"{threads} thread{'' if threads == 1 else 's'}, batch {batch}, sequence {sequence}"
        parts.append(f'<text class="case" x="12" y="{y - 10}">{name}</text>')
        scale = (WIDTH - LABEL - VALUE) / max(row.median for row in members)
        start = y
        for row in members:
            width = max(1.0, row.median * scale)
            style = "ours" if row.key.startswith("thresher") else "peer"
            middle = y + BAR - 5
            figures = f"{row.median:.1f} ms, {row.ratio:.2f} x"
            parts.append(f'<text x="{LABEL - 8}" y="{middle}" text-anchor="end">{escape(row.label)}</text>')
            parts.append(f'<rect class="{style}" x="{LABEL}" y="{y}" width="{width:.1f}" height="{BAR}" rx="2"/>')
            parts.append(f'<text class="value" x="{LABEL + width + 6:.1f}" y="{middle}">{figures}</text>')
            y += BAR + GAP
        parts.append(f'<line class="axis" x1="{LABEL}" y1="{start - 3}" x2="{LABEL}" y2="{y - GAP + 3}"/>')
    parts += footer(unavailable, y + GAP + BAR)
    y += (GAP + BAR) * len(footer(unavailable, 0))
    height = y + 12
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title, quote=True)}">'
    )
    titles = [
        f'<text class="title" x="12" y="24">{escape(title)}</text>',
        '<text x="12" y="44">Milliseconds a call, median; shorter is faster. x: times as fast as PyTorch eager.</text>',
    ]
    return "\n".join([head, f"<style>{STYLE}</style>", *titles, *parts, "</svg>", ""])

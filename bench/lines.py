"""Latency by sequence length or by threads as an SVG of lines, readable on light and on dark pages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Literal

from bars import notes_of
from report import Row

from thresher.draw.bars import BAR, GAP, STYLE, footer_lines, whole_svg

WIDTH = 884
LEFT = 64
RIGHT = 274  # room for the names at the ends of the lines
TOP = 64
PANEL = 440
HEAD = 34
FOOT = 58
LABEL_GAP = 16

# A hue an engine, a dash a precision: the two are read apart.
COLOURS = {
    "eager": ("#57606a", "#9da7b3"),
    "inductor": ("#a0457a", "#f778ba"),
    "onnxruntime": ("#0969da", "#58a6ff"),
    "openvino": ("#1a7f37", "#3fb950"),
    "ctranslate2": ("#8250df", "#bc8cff"),
    "zentorch": ("#0f7b8a", "#39c5cf"),
    "thresher": ("#bf5f00", "#f0883e"),
}
DASHES = {"fp32": "none", "bf16": "8 4", "fp16": "8 3 2 3", "int8": "2 3"}


def _style() -> str:
    def rules(shade: int) -> str:
        return "\n".join(
            f".{name} {{ stroke: {pair[shade]} }} .{name}-text {{ fill: {pair[shade]} }}"
            for name, pair in COLOURS.items()
        )

    return f"""{STYLE}
.line {{ fill: none; stroke-width: 1.8; stroke-linejoin: round }}
.ours {{ stroke-width: 3 }}
.leader {{ stroke-width: 1; opacity: .5 }}
.grid {{ stroke: #8c959f; stroke-width: 1; opacity: .3 }}
.end {{ font-variant-numeric: tabular-nums }}
{rules(0)}
@media (prefers-color-scheme: dark) {{
{rules(1)}
}}
"""


def ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten: the largest that is not above `low` up to the smallest not below `high`."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = [factor * 10.0**exponent for exponent in exponents for factor in (1, 2, 5)]
    first = max(step for step in steps if step <= low)
    last = min(step for step in steps if step >= high)
    return [step for step in steps if first <= step <= last]


def spread(wanted: Sequence[float], low: float, high: float, gap: float) -> list[float]:
    """Moves positions apart so that neighbours are at least `gap` apart, in their order and as little as possible.

    Args:
      wanted: positions, in any order.
      low, high: bounds; kept if all positions fit between them, else only `low` is.
      gap: smallest distance.

    Returns:
      The new positions, each at the place of its old one.
    """
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    # With the gaps taken out, positions may be equal but not change order: those that would are drawn to their mean.
    groups: list[tuple[float, int]] = []
    for rank, i in enumerate(order):
        total, count = wanted[i] - rank * gap, 1
        while groups and groups[-1][0] / groups[-1][1] > total / count:
            before = groups.pop()
            total, count = total + before[0], count + before[1]
        groups.append((total, count))
    last = max(low, high - gap * (len(wanted) - 1))
    levels = [min(max(total / count, low), last) for total, count in groups for _ in range(count)]
    places = [0.0] * len(wanted)
    for rank, (i, level) in enumerate(zip(order, levels, strict=True)):
        places[i] = level + rank * gap
    return places


Along = Literal["sequence", "threads"]


def svg(rows: list[Row], title: str, unavailable: Sequence[str] = (), along: Along = "sequence") -> str:
    """Median times over sequence lengths, both on logarithmic scales, one panel for every (threads, batch).

    Args:
      rows: what `report.rows_of` gives, with two sequence lengths or more.
      title: headline; a sentence below it says what the figures are.
      unavailable: names for the line below the panels.
      along: "threads" for times over numbers of threads, one panel for every batch.

    Returns:
      A complete SVG document.
    """
    panels: dict[str, list[Row]] = {}
    for row in rows:
        count = f"{row.threads} thread{'' if row.threads == 1 else 's'}, " if along == "sequence" else ""
        panels.setdefault(f"{count}batch {row.batch}", []).append(row)
    parts: list[str] = []
    y = TOP
    for name, members in panels.items():
        parts += _panel(members, y, name, along)
        y += HEAD + PANEL + FOOT
    footer = footer_lines(notes_of(unavailable), y)
    parts += footer
    height = y + 14 + (GAP + BAR) * max(0, len(footer) - 1)
    figures = (
        "Milliseconds a call, median, both scales logarithmic; lower is faster. "
        "Solid: fp32, dashed: bf16 or fp16, dotted: int8."
    )
    return whole_svg(WIDTH, height, title, figures, [], parts, _style())


def _panel(rows: list[Row], top: int, name: str, along: Along) -> list[str]:
    def place(row: Row) -> int:
        return row.sequence if along == "sequence" else row.threads

    lengths = sorted({place(row) for row in rows})
    levels = ticks(min(row.median for row in rows), max(row.median for row in rows))
    floor, right = top + HEAD + PANEL, WIDTH - RIGHT

    def scaled(value: float, low: float, high: float, start: float, end: float) -> float:
        share = math.log(value / low) / math.log(high / low) if high > low else 0.5
        return start + share * (end - start)

    def x_of(length: float) -> float:
        return scaled(length, lengths[0], lengths[-1], LEFT + 12, right)

    def y_of(time: float) -> float:
        return scaled(time, levels[0], levels[-1], floor, top + HEAD)

    parts = [f'<text class="group" x="12" y="{top + 16}">{escape(name)}</text>']
    for level in levels:
        y, unit = y_of(level), " ms" if level == levels[-1] else ""
        parts.append(f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{level:g}{unit}</text>')
    axis = "sequence length" if along == "sequence" else "threads"
    for length in lengths:
        x = x_of(length)
        parts.append(f'<line class="grid" x1="{x:.1f}" y1="{top + HEAD}" x2="{x:.1f}" y2="{floor}"/>')
        parts.append(f'<text x="{x:.1f}" y="{floor + 18}" text-anchor="middle">{length}</text>')
    parts.append(f'<text x="{(LEFT + right) / 2:.0f}" y="{floor + 36}" text-anchor="middle">{axis}</text>')

    series: dict[str, list[Row]] = {}
    for row in sorted(rows, key=place):
        series.setdefault(row.key, []).append(row)
    ends = [y_of(members[-1].median) for members in series.values()]
    places = spread(ends, top + HEAD, floor, LABEL_GAP)
    for members, end, label in zip(series.values(), ends, places, strict=True):
        last = members[-1]
        hue = last.key.partition("-")[0]
        ours = " ours" if hue == "thresher" else ""
        points = " ".join(f"{x_of(place(row)):.1f},{y_of(row.median):.1f}" for row in members)
        dash = f'stroke-dasharray="{DASHES[last.precision]}"'
        parts.append(f'<polyline class="line {hue}{ours}" {dash} points="{points}"/>')
        x = x_of(place(last))
        parts.append(f'<path class="line leader {hue}" d="M{x + 3:.1f} {end:.1f} L{right + 20} {label:.1f}"/>')
        time = f"{last.median:.0f}" if last.median >= 100 else f"{last.median:.3g}"
        text = f"{escape(last.label)}, {time} ms"
        parts.append(f'<text class="end {hue}-text" x="{right + 24}" y="{label + 4:.1f}">{text}</text>')
    return parts

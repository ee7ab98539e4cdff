"""A picture of how long answers took."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

_WIDTH, _HEIGHT, _LEFT, _TOP, _SPACE = 360, 220, 48, 36, 70
_POINTS = 100
_STYLE = (
    "svg{background:#fff;color:#1b2733;font:12px system-ui,sans-serif}text{fill:currentColor}.axis{stroke:#9aa7b3}"
    ".line{fill:none;stroke:#2563eb;stroke-width:2}"
    "@media (prefers-color-scheme:dark){svg{background:#14191f;color:#e6ebf0}.line{stroke:#7aa7ff}}"
)


def picture(title: str, curves: Sequence[tuple[str, Sequence[float]]]) -> str:
    """An SVG with one diagram for each of several measures: how large a share of all took at most how long.

    Args:
      title: above it.
      curves: a name and times in milliseconds of each.
    """
    width = _LEFT + len(curves) * (_WIDTH + _SPACE)
    height = _TOP + _HEIGHT + 50
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
        f'<style>{_STYLE}</style><text x="{_LEFT}" y="20" font-weight="600">{escape(title)}</text>',
    ]
    for number, (name, values) in enumerate(curves):
        parts.append(_diagram(_LEFT + number * (_WIDTH + _SPACE), name, values))
    return "\n".join([*parts, "</svg>", ""])


def _diagram(left: int, name: str, values: Sequence[float]) -> str:
    bottom = _TOP + _HEIGHT
    axes = f'<path class="axis" fill="none" d="M{left} {_TOP}V{bottom}H{left + _WIDTH}"/>'
    label = f'<text x="{left + _WIDTH / 2}" y="{bottom + 36}" text-anchor="middle">{escape(name)}, ms</text>'
    if not values:
        return f'{axes}{label}<text x="{left + 10}" y="{_TOP + 20}">nothing was answered</text>'
    shares = np.linspace(0, 100, _POINTS + 1)
    times = np.percentile(values, shares)
    most = float(times[-1]) or 1.0
    points = " ".join(
        f"{left + _WIDTH * time / most:.1f},{bottom - _HEIGHT * share / 100:.1f}"
        for time, share in zip(times, shares, strict=True)
    )
    ticks = "".join(
        f'<text x="{left - 6}" y="{bottom - _HEIGHT * share / 100 + 4:.0f}" text-anchor="end">{share}%</text>'
        for share in (0, 50, 99)
    )
    ticks += "".join(
        f'<text x="{left + _WIDTH * part:.0f}" y="{bottom + 18}" text-anchor="middle">{most * part:.3g}</text>'
        for part in (0, 0.5, 1)
    )
    return f'{axes}{ticks}{label}<polyline class="line" points="{points}"/>'

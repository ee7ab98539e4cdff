"""The comparison as an SVG of horizontal bars, readable on light and on dark pages."""

from __future__ import annotations

from collections.abc import Sequence

from report import Row

from thresher.draw.bars import Bar, bars_svg


def notes_of(unavailable: Sequence[str]) -> list[str]:
    """What stands below a picture of engines: those that are not available, if any."""
    return [f"Not available here: {', '.join(unavailable)}"] if unavailable else []


def svg(rows: list[Row], title: str, unavailable: Sequence[str] = ()) -> str:
    """Bars of the median times, one group a case, each group with its own scale that starts at zero.

    Args:
      rows: what `report.rows_of` gives; shorter bars are faster.
      title: headline; a sentence below it says what the figures are.
      unavailable: names for the line below the bars.

    Returns:
      A complete SVG document.
    """
    cases: dict[str, list[Bar]] = {}
    for row in rows:
        threads = f"{row.threads} thread{'' if row.threads == 1 else 's'}"
        case = cases.setdefault(f"{threads}, batch {row.batch}, sequence {row.sequence}", [])
        figures = f"{row.median:.1f} ms, {row.ratio:.2f} x"
        case.append(Bar(row.label, row.median, figures, row.key.startswith("thresher")))
    figures = "Milliseconds a call, median; shorter is faster. x: times as fast as PyTorch eager."
    return bars_svg(cases, title, figures, notes_of(unavailable))

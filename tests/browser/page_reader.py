"""Reading the page as a test does: its pages, its tables, the values that its texts say."""

from __future__ import annotations

import re
from collections.abc import Callable

from playwright.sync_api import Page

# The fixture open_page: open_page(report, diff, route, width=, dark=, file=).
Open = Callable[..., Page]

PAGES = ("overview", "operators", "kernels", "runtime", "timeline", "memory", "modules", "roofline", "difference")
DASH = "\u2013"
UNITS = {
    "ns": 1,
    "µs": 1e3,
    "ms": 1e6,
    "s": 1e9,
    "B": 1,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "%": 1,
    "\u00d7": 1,
    "": 1,
}


def go(page: Page, route: str) -> None:
    """Shows another page of the report."""
    page.evaluate("route => { location.hash = '#/' + route; }", route)
    page.wait_for_function("page => document.documentElement.dataset.page === page", arg=route.split("?")[0])


def pages_of(page: Page) -> list[str]:
    """The pages that the report has."""
    return page.evaluate("() => [...document.querySelectorAll('#pages a')].map((link) => link.dataset.page)")


def number_of(text: str) -> float | None:
    """The value that a cell such as "1.23 ms" or "−12.3 %" says; None for a dash."""
    text = text.strip().replace(",", "").replace("\u2212", "-").replace("+", "")
    if text == DASH:
        return None
    found = re.fullmatch(r"(-?[\d.]+(?:e-?\d+)?)\s*([^\d\s]*)", text)
    assert found, text
    return float(found[1]) * UNITS[found[2]]


def table_rows(page: Page, selector: str) -> list[dict[str, tuple[str, float | None]]]:
    """The rows of a table: column label -> (text, exact value or None).

    A table may be made only when it is opened, in an event that comes after the click.
    """
    page.wait_for_function("selector => document.querySelector(selector)?.tBodies[0]?.rows.length", arg=selector)
    rows = page.evaluate(
        """selector => {
          const table = document.querySelector(selector);
          const heads = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
          return [...table.tBodies[0].rows].filter((row) => row.cells.length === heads.length).map((row) =>
            Object.fromEntries([...row.cells].map((cell, i) => [heads[i],
              [cell.textContent, cell.dataset.value === undefined ? null : Number(cell.dataset.value)]])));
        }""",
        selector,
    )
    return [{key: (text, value) for key, (text, value) in row.items()} for row in rows]


def assert_close(shown: str, value: float | None, what: object = "") -> None:
    """A text of three digits says a value."""
    said = number_of(shown)
    if value is None:
        assert said is None, (what, shown)
        return
    assert said is not None, (what, shown, value)
    assert abs(said - value) <= max(0.006 * abs(value), 0.051), (what, shown, value)

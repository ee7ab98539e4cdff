"""A browser for the tests of the report's page, and the strict page that they open.

The browser is the system's Chromium; without one these tests are skipped. Every page that a test opens must stay free
of console errors and must ask for nothing but its own file.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from thresher.profiler.html import render

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PAGES = ("overview", "operators", "kernels", "runtime", "timeline", "memory", "modules", "roofline", "difference")
UNITS = {
    **{"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9},
    **{"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "%": 1, "×": 1, "": 1},
}


def chromium_path() -> str | None:
    """The system's Chromium, or None."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = chromium_path()
    if path is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    with sync_playwright() as playwright:
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        launched = playwright.chromium.launch(executable_path=path, args=options)
        yield launched
        launched.close()


Open = Callable[..., Page]


@pytest.fixture
def open_page(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    """open_page(report, diff, route, width=, dark=) -> Page, ready. Complains about errors when the test is over."""
    contexts, complaints = [], []

    def note_request(url: str) -> None:
        if not url.startswith(("file:", "data:", "blob:")):
            complaints.append(f"the page asked for {url}")

    def note_console(kind: str, text: str) -> None:
        # Chromium's advice about reading a canvas is meant for the tests, which do so.
        if kind in ("error", "warning") and "willReadFrequently" not in text:
            complaints.append(text)

    def open_it(
        report: Any,
        diff: Any = None,
        route: str = "overview",
        *,
        width: int = 1280,
        dark: bool = False,
        file: Path | None = None,
    ) -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light", accept_downloads=True
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("console", lambda said: note_console(said.type, said.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: note_request(request.url))
        if file is None:
            file = tmp_path / f"page{len(contexts)}.html"
            file.write_text(render(report, diff), encoding="utf-8")
        page.goto(f"{file.as_uri()}#/{route}")
        page.wait_for_selector("html[data-ready]")
        return page

    yield open_it
    for context in contexts:
        context.close()
    assert not complaints, complaints


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
    if text == "–":
        return None
    found = re.fullmatch(r"(-?[\d.]+(?:e-?\d+)?)\s*([^\d\s]*)", text)
    assert found, text
    return float(found[1]) * UNITS[found[2]]


def table_rows(page: Page, selector: str) -> list[dict[str, tuple[str, float | None]]]:
    """The rows of a table: column label -> (text, exact value or None)."""
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

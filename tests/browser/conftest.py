"""A browser for the tests of the report's page, and the strict page that they open.

The browser is the system's Chromium; without one these tests are skipped. Every page that a test opens must stay free
of console errors and must ask for nothing but its own file.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from page_reader import Open
from playwright.sync_api import Browser, Page, sync_playwright

from thresher.profiler.html import render

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def chromium_path() -> str | None:
    """The system's Chromium, or None."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


@pytest.fixture(scope="module")  # Playwright's event loop would forbid asyncio.run() to the tests of other files
def browser() -> Iterator[Browser]:
    path = chromium_path()
    if path is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    # Ubuntu's package is a program that asks for a snap.
    if subprocess.run([path, "--version"], capture_output=True, check=False).returncode != 0:
        pytest.skip(f"{path} --version fails: install Google Chrome, or Chromium where it comes as a package")
    with sync_playwright() as playwright:
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        launched = playwright.chromium.launch(executable_path=path, args=options)
        yield launched
        launched.close()


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
        page.set_default_timeout(30_000)
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

"""The dashboard's page in a real browser."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

pytest.importorskip("starlette")

from thresher.dashboard.app import create_app
from thresher.dashboard.durations import counted
from thresher.dashboard.records import Message, Record
from thresher.dashboard.store import Store
from thresher.web.running import Server, bind, url_of

ABOUT = {"cpu": "x", "threads": "2", "version": "0.1.0", "energy": "expected the counters, got none"}


def message(run: str, name: str, busy_ms: float, records: int = 40, end: float | None = None, **about: str) -> Message:
    end = time.time() if end is None else end
    made = tuple(
        Record(
            *(end - (records - 1 - i) / 4, 4, busy_ms * 4, 200 << 20, 50 << 20, 1 << 20),
            durations=counted([(busy_ms * 0.9e6, 3), (busy_ms * 1.3e6, 1)]),
        )
        for i in range(records)
    )
    return Message(run, name, 4711, {**ABOUT, **about}, made)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Store, str]]:
    store = Store(tmp_path / "h.sqlite")
    bound = bind("127.0.0.1", 0)
    server = Server(create_app(store), drain=lambda: None, abort=lambda: None, shutdown_s=0.5)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    yield store, url_of(bound)
    server.should_exit = True
    thread.join(10)
    store.close()


@pytest.fixture
def page(browser: Browser, served: tuple[Store, str]) -> Iterator[Page]:
    complaints: list[str] = []
    context = browser.new_context(viewport={"width": 1000, "height": 800})
    made = context.new_page()
    made.set_default_timeout(15_000)
    made.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
    made.on("pageerror", lambda error: complaints.append(str(error)))
    made.on("request", lambda asked: None if asked.url.startswith(served[1]) else complaints.append(asked.url))
    yield made
    context.close()
    assert not complaints, complaints


def open_it(page: Page, url: str) -> None:
    page.goto(url)
    page.wait_for_selector("html[data-ready]")


def past(store: Store) -> None:
    """Four runs that were equally fast, and one that is slower."""
    now = time.time()
    for i, busy in enumerate((10.0, 10.1, 9.9, 10.0, 14.0)):
        store.add(message(uuid.uuid4().hex, "encoder", busy, end=now - 4000 + 500 * i))
    assert store.flush()


def test_a_process_appears_and_its_numbers_are_right(page: Page, served: tuple[Store, str]) -> None:
    store, url = served
    open_it(page, url)
    assert page.locator("#nobody").is_visible() and page.locator("#state").inner_text() == "0 processes"
    run = uuid.uuid4().hex
    store.add(message(run, "chat <b>server</b>", 2.5, profile="http://127.0.0.1:9/page"))
    card = page.locator(f"[data-run='{run}'].card")
    card.wait_for()
    assert card.locator("h3").inner_text() == "chat <b>server</b>"
    values = dict(zip(card.locator("dt").all_inner_texts(), card.locator("dd").all_inner_texts(), strict=True))
    assert values == {
        "mean call": "2.50 ms",
        "50 % within": "2.24 ms",
        "95 % within": "3.23 ms",
        "99 % within": "3.23 ms",
        "calls a second": "16",
        "memory": "210 MB",
        "in the engine": "52.4 MB",
        "result cache": "1.0 MB",
        "power": "not known",
    }
    assert card.locator(".energy dd").get_attribute("title") == "expected the counters, got none"
    assert card.locator(".foot").inner_text().split("\n")[0] == "last minute, up to 2.50 ms"
    assert card.locator("a").get_attribute("href") == "http://127.0.0.1:9/page"
    assert "2.50 ms in the middle" in str(card.locator("svg").get_attribute("aria-label"))


def test_a_link_that_is_none_is_not_made(page: Page, served: tuple[Store, str]) -> None:
    store, url = served
    store.add(message(uuid.uuid4().hex, "x", 1.0, profile="javascript:alert(1)"))
    open_it(page, url)
    page.locator(".card").wait_for()
    assert page.locator(".card a").count() == 0


def test_a_regression_is_shown_and_runs_are_compared_by_keyboard(page: Page, served: tuple[Store, str]) -> None:
    store, url = served
    past(store)
    open_it(page, url)
    alarm = page.locator("#regressions li")
    alarm.wait_for()
    assert "a call takes 14.00 ms, 40.0 % longer than in the 4 runs before" in alarm.inner_text()
    assert page.locator("#runs tbody tr").count() == 5
    page.locator("#runs tbody input").first.wait_for()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    reached = 0
    for _ in range(10):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.type") == "checkbox":
            page.keyboard.press("Space")
            reached += 1
            if reached == 2:
                break
    assert reached == 2
    text = page.locator("#comparison").inner_text()
    assert "encoder" in text and "40.0 % slower" in text
    page.wait_for_timeout(2500)  # the tables are drawn anew: choice and focus stay
    assert page.evaluate("document.activeElement.type") == "checkbox"
    assert page.locator("#runs input:checked").count() == 2


def test_what_goes_wrong_is_said(page: Page, served: tuple[Store, str]) -> None:
    store, url = served
    open_it(page, url)
    store._connection.execute("PRAGMA max_page_count=1")
    for _ in range(3):
        store.add(message(uuid.uuid4().hex, "x", 1.0, records=900))
    page.locator("#state.bad").wait_for()
    assert "database or disk is full; records wait in memory" in page.locator("#state").inner_text()
    store._connection.execute("PRAGMA max_page_count=1000000")
    page.locator("#state:not(.bad)").wait_for()


@pytest.mark.parametrize(
    ("width", "dark"),
    [
        (320, False),
        (1000, True),
        pytest.param(320, True, marks=pytest.mark.thorough),
        pytest.param(1000, False, marks=pytest.mark.thorough),
    ],
)
def test_it_fits_and_can_be_read(
    browser: Browser, served: tuple[Store, str], width: int, dark: bool, request: Any
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    store, url = served
    past(store)
    store.add(message(uuid.uuid4().hex, "a service with a rather long name, " * 3, 2.5))
    context = browser.new_context(
        viewport={"width": width, "height": 800}, color_scheme="dark" if dark else "light", bypass_csp=True
    )
    page = context.new_page()
    open_it(page, url)
    page.locator(".card").wait_for()
    page.locator("#runs tbody tr").first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    found = axe.Axe().run(page).response["violations"]
    assert found == [], [(one["id"], one["nodes"][0]["html"]) for one in found]
    context.close()

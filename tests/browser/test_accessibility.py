"""Light and dark, keyboard, names and roles: axe-core's rules and what it cannot know."""

from __future__ import annotations

import re

import pytest
import synthetic_report as synthetic
from axe_playwright_python.sync_playwright import Axe
from page_reader import PAGES, Open, go, pages_of
from playwright.sync_api import Page


@pytest.fixture(scope="module")
def both() -> tuple[dict, dict]:
    return synthetic.pair(comparable=False)


def assert_accessible(page: Page, name: str) -> None:
    found = Axe().run(page).response["violations"]
    assert not found, (
        name,
        [(rule["id"], rule["help"], [node["html"][:200] for node in rule["nodes"][:3]]) for rule in found],
    )


@pytest.mark.parametrize(
    ("width", "dark"),
    [
        (1280, False),
        (420, True),
        pytest.param(1280, True, marks=pytest.mark.thorough),
        pytest.param(420, False, marks=pytest.mark.thorough),
    ],
)
def test_axe_finds_nothing_on_any_page(open_page: Open, both: tuple[dict, dict], dark: bool, width: int) -> None:
    report, diff = both
    report = dict(report, source=dict(report["source"], sampled=True), health=dict(report["health"], dropped=2))
    page = open_page(report, diff, dark=dark, width=width)
    for name in PAGES:
        go(page, name)
        page.wait_for_timeout(250)
        assert_accessible(page, name)


@pytest.mark.parametrize("dark", [False, pytest.param(True, marks=pytest.mark.thorough)], ids=["light", "dark"])
def test_axe_finds_nothing_in_what_opens(open_page: Open, both: tuple[dict, dict], dark: bool) -> None:
    page = open_page(both[0], both[1], "operators", dark=dark)
    page.locator("main tbody button").first.click()
    assert_accessible(page, "an opened row")
    go(page, "timeline?event=200")
    page.locator("summary").click()
    page.wait_for_timeout(250)
    assert_accessible(page, "a selected event")
    go(page, "modules?q=output")
    assert_accessible(page, "found modules")
    go(page, "overview")
    page.locator("summary").click()
    page.wait_for_selector("section[aria-label=Steps] table")
    assert_accessible(page, "the table of steps")


def test_an_empty_report_is_accessible(open_page: Open) -> None:
    page = open_page(synthetic.blank())
    for name in pages_of(page):
        go(page, name)
        page.wait_for_timeout(100)
        assert_accessible(page, name)


def background(page: Page) -> str:
    return page.evaluate("() => getComputedStyle(document.body).backgroundColor")


def test_colours_follow_the_system_and_the_choice(open_page: Open, both: tuple[dict, dict]) -> None:
    page = open_page(both[0], None, "timeline", dark=True)
    dark = background(page)
    assert page.locator("html").get_attribute("data-theme") == "dark"
    page.get_by_label("Colours").select_option("light")
    assert page.locator("html").get_attribute("data-theme") == "light"
    light = background(page)
    assert light != dark
    page.reload()
    page.wait_for_selector("html[data-ready]")
    assert background(page) == light, "the choice is kept"
    page.get_by_label("Colours").select_option("auto")
    assert background(page) == dark
    page.emulate_media(color_scheme="light")
    page.wait_for_function("() => document.documentElement.dataset.theme === 'light'")
    assert background(page) == light


def test_paper_is_always_light(open_page: Open, both: tuple[dict, dict]) -> None:
    page = open_page(both[0], None, "timeline", dark=True)
    page.evaluate("() => window.dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    assert page.locator("html").get_attribute("data-theme") == "light"
    assert not page.locator(".toolbar").is_visible()
    assert page.locator(".tracks canvas").is_visible()
    page.evaluate("() => window.dispatchEvent(new Event('afterprint'))")
    assert page.locator("html").get_attribute("data-theme") == "dark"


def test_the_skip_link_comes_first_and_works(open_page: Open, both: tuple[dict, dict]) -> None:
    page = open_page(both[0])
    page.keyboard.press("Tab")
    skip = page.locator(".skip")
    assert page.evaluate("() => document.activeElement.className") == "skip"
    assert skip.bounding_box()["x"] >= 0
    page.keyboard.press("Enter")
    assert page.evaluate("() => document.activeElement.id") == "main"


@pytest.mark.parametrize("route", PAGES)
def test_everything_can_be_reached_by_tab_and_shows_the_focus(
    open_page: Open, both: tuple[dict, dict], route: str
) -> None:
    page = open_page(both[0], both[1], route)
    page.wait_for_timeout(250)
    reachable = page.evaluate(
        """() => [...document.querySelectorAll('a[href], button, select, input, summary, [tabindex="0"]')]
          .filter((node) => node.tabIndex >= 0 && !node.disabled && node.checkVisibility()).length"""
    )
    assert reachable > 8
    seen = 0
    for _ in range(reachable + 5):
        page.keyboard.press("Tab")
        state = page.evaluate(
            """() => {
              const node = document.activeElement;
              if (node === document.body || node === document.documentElement) return null;
              const style = getComputedStyle(node);
              const marked = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0;
              const seen = node.dataset.seen === '1';
              node.dataset.seen = '1';
              return [node.outerHTML.slice(0, 120), marked || Boolean(node.closest('.point')), seen];
            }"""
        )
        if state is None or state[2]:
            break
        assert state[1], f"no visible focus: {state[0]}"
        seen += 1
    assert seen == reachable


def test_the_canvas_has_words_beside_it(open_page: Open, both: tuple[dict, dict]) -> None:
    page = open_page(both[0], None, "timeline")
    page.wait_for_timeout(250)
    frame = page.locator(".timeline")
    described = frame.get_attribute("aria-describedby").split()
    assert "In view:" in page.locator(f"#{described[0]}").inner_text()
    assert "next, previous event of the row" in page.locator(f"#{described[1]}").inner_text()
    assert page.locator("section[aria-label='Selected event']").get_attribute("aria-live") == "polite"
    assert page.locator("section[aria-label='Events in view'] tbody tr").count() == 25


def test_categories_differ_for_every_kind_of_colour_vision(open_page: Open, both: tuple[dict, dict]) -> None:
    """The fills of the breakdown stay apart when red-green or blue-yellow vision is simulated."""
    # Machado et al. 2009, severity 1.
    kinds = {
        "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
        "protan": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
        "deutan": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
        "tritan": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
    }

    def lab(rgb: list[float]) -> tuple[float, float, float]:
        r, g, b = (min(max(v, 0), 1) for v in rgb)
        xyz = (
            (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505,
            0.2126 * r + 0.7152 * g + 0.0722 * b,
            (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089,
        )
        x, y, z = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in xyz)
        return 116 * y - 16, 500 * (x - y), 200 * (y - z)

    def linear(value: int) -> float:
        v = value / 255
        return v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4

    for dark in (False, True):
        page = open_page(both[0], dark=dark)
        fills = page.evaluate(
            """() => Object.fromEntries([...document.querySelectorAll('#breakdown tbody tr')].map((row) =>
              [row.dataset.category, getComputedStyle(row.querySelector('.swatch')).backgroundColor]))"""
        )
        assert len(fills) == 7
        for kind, matrix in kinds.items():
            seen = {}
            for name, fill in fills.items():
                rgb = [linear(int(v)) for v in re.findall(r"\d+", fill)[:3]]
                seen[name] = lab([sum(a * b for a, b in zip(row, rgb, strict=True)) for row in matrix])
            for one in seen:
                for two in seen:
                    if one < two:
                        distance = sum((a - b) ** 2 for a, b in zip(seen[one], seen[two], strict=True)) ** 0.5
                        assert distance > 11, (dark, kind, one, two, distance)

"""The first page: figures, breakdown, findings, health and machine."""

from __future__ import annotations

import copy

import pytest
import synthetic_report as synthetic
from page_reader import DASH, Open, assert_close, table_rows


@pytest.fixture(scope="module")
def report() -> dict:
    return synthetic.build()


def test_the_breakdown_is_the_data_and_sums_to_the_wall_clock(open_page: Open, report: dict) -> None:
    page = open_page(report)
    rows = table_rows(page, "#breakdown")
    total = report["overview"]["total"]
    assert [row["Category"][0].split(" ")[1] for row in rows] == list(total["by_category"])
    for row, (name, value) in zip(rows, total["by_category"].items(), strict=True):
        assert row["Time"][1] == value, name
        assert_close(row["Time"][0], value, name)
        assert_close(row["Share"][0].replace("<", ""), 100 * value / total["wall_ns"], name)
    foot = page.locator("#breakdown tfoot")
    assert "Sum = wall clock" in foot.inner_text()
    assert (
        int(foot.locator("td").first.get_attribute("data-value"))
        == total["wall_ns"]
        == sum(row["Time"][1] for row in rows)
    )


def test_the_stacked_bar_has_the_shares(open_page: Open, report: dict) -> None:
    page = open_page(report)
    total = report["overview"]["total"]
    widths = page.evaluate(
        "() => [...document.querySelectorAll('.stack')[0].children].map((part) => part.getBoundingClientRect().width)"
    )
    shares = [value / total["wall_ns"] for value in total["by_category"].values() if value]
    assert len(widths) == len(shares)
    for width, share in zip(widths, shares, strict=True):
        assert abs(width / sum(widths) - share) < 0.005
    assert "kernel" in page.locator(".stack").first.get_attribute("aria-label")


def test_a_breakdown_that_does_not_add_up_says_so(open_page: Open, report: dict) -> None:
    wrong = copy.deepcopy(report)
    wrong["overview"]["total"]["by_category"]["gap"] -= 5_000_000
    page = open_page(wrong)
    assert "Sum = wall clock" not in page.locator("#breakdown").inner_text()
    assert "The categories add up to" in page.locator("main").inner_text()


def test_key_figures(open_page: Open, report: dict) -> None:
    page = open_page(report)
    cards = dict(
        page.evaluate(
            """() => [...document.querySelectorAll('.card')].map((card) =>
              [card.children[0].textContent, card.children[1].textContent])"""
        )
    )
    total = report["overview"]["total"]
    assert_close(cards["Wall clock"], total["wall_ns"])
    assert_close(cards["In kernels"], 100 * total["by_category"]["kernel"] / total["wall_ns"])
    assert_close(cards["Peak memory"], report["memory"]["peak_bytes"])
    assert cards["Energy"] == DASH
    assert cards["Trace"] == "sound"


def test_steps_are_drawn_read_by_keys_and_listed(open_page: Open, report: dict) -> None:
    page = open_page(report)
    steps = report["overview"]["steps"]
    chart = page.locator("section[aria-label=Steps] svg")
    chart.focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    assert page.locator("section[aria-label=Steps] .readout").inner_text().startswith(f"{steps[1]['name']}:")
    page.locator("summary", has_text="Table of 24 steps").click()
    rows = table_rows(page, "section[aria-label=Steps] table")
    assert [row["Step"][0] for row in rows] == [step["name"] for step in steps]
    for row, step in zip(rows, steps, strict=True):
        assert row["Wall clock"][1] == step["wall_ns"]
        assert row["kernel"][1] == step["by_category"]["kernel"]
        assert sum(row[name][1] for name in step["by_category"] if name in row) == step["wall_ns"]


def test_two_thousand_steps_stay_few_nodes(open_page: Open, report: dict) -> None:
    many = copy.deepcopy(report)
    one = many["overview"]["steps"][1]
    many["overview"]["steps"] = [dict(one, name=f"Step#{i}") for i in range(2000)]
    page = open_page(many)
    assert page.locator("section[aria-label=Steps] svg > *").count() < 100


def test_findings_and_their_links(open_page: Open, report: dict) -> None:
    page = open_page(report)
    items = page.locator(".findings li")
    assert items.count() == len(report["overview"]["findings"])
    for i, finding in enumerate(report["overview"]["findings"]):
        text = items.nth(i).inner_text()
        assert all(finding[key] in text for key in ("severity", "title", "detail", "advice"))
    items.first.locator("a").click()
    page.wait_for_function("() => document.documentElement.dataset.page === 'operators'")
    assert page.locator("input[type=search]").input_value() == report["overview"]["findings"][0]["operator"]


def test_health_machine_versions_and_energy(open_page: Open, report: dict) -> None:
    changed = copy.deepcopy(report)
    changed["health"].update(dropped=7, overlapping=2, messages=["two clocks were found"])
    page = open_page(changed)
    rows = table_rows(page, "#health")
    assert [row["Number"][1] for row in rows] == [7, 0, 0, 0, 2, 0, 0, 0]
    assert [row["State"][0] for row in rows] == ["look", "good", "good", "good", "look", "good", "good", "good"]
    text = page.locator("main").inner_text()
    assert "two clocks were found" in text
    assert "7 records dropped" in text
    for known in (report["machine"]["cpu"], report["machine"]["isa"], "0.1.0", "2.13.0", "3.11.7"):
        assert known in text
    assert report["energy"]["reason"] in text
    peaks = table_rows(page, "#peaks")
    found = {row["Peak"][0]: (row["1 thread"][1], row["2 threads"][1]) for row in peaks}
    assert found["fp32, GFLOP/s"] == (259.0, 501.0)
    assert found["bf16, GFLOP/s"] == (479.0, None)


def test_measured_energy_is_shown(open_page: Open, report: dict) -> None:
    measured = dict(report, energy={"joules": 12.5, "reason": None, "domains": [{"name": "package-0", "joules": 11.0}]})
    text = open_page(measured).locator("main").inner_text()
    assert "12.5 J" in text
    assert "Energy, package-0\n11.0 J" in text


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ({"truncated": True, "complete": False}, "The trace is cut off."),
        ({"complete": False}, "The recording was not finished."),
        ({"sampled": True, "events": 1_000_000, "shown": 60_000}, "It shows 60,000 of 1,000,000 events."),
        ({"note": "steps were merged"}, "steps were merged"),
    ],
)
def test_notes_about_the_source(open_page: Open, report: dict, source: dict, says: str) -> None:
    page = open_page(dict(report, source=dict(report["source"], **source)))
    assert says in page.locator(".note").all_inner_texts()[0]


def test_a_sound_report_has_no_notes(open_page: Open, report: dict) -> None:
    assert open_page(report).locator(".note").count() == 0


def test_pages_are_links_and_the_title_follows(open_page: Open, report: dict) -> None:
    page = open_page(report)
    for name in ("kernels", "memory"):
        page.locator(f"nav a[data-page={name}]").click()
        page.wait_for_function("name => document.documentElement.dataset.page === name", arg=name)
        assert page.title() == f"{name.capitalize()} {DASH} {report['title']}"
        assert page.locator("nav a[aria-current=page]").inner_text().lower() == name
        assert page.evaluate("() => document.activeElement.tagName") == "H1"
    page.go_back()
    page.wait_for_function("() => document.documentElement.dataset.page === 'kernels'")

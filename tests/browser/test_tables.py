"""Operators and kernels: values, sorting, search, grouping, CSV."""

from __future__ import annotations

import copy
import csv
import io
import json

import pytest
import synthetic_report as synthetic
from page_reader import Open, assert_close, table_rows
from playwright.sync_api import Page

COLUMNS = {
    "Count": "count",
    "Total": "total_ns",
    "Self": "self_ns",
    "Share": "share",
    "Mean": "mean_ns",
    "Median": "median_ns",
    "Min": "min_ns",
    "Max": "max_ns",
    "GFLOP/s": "gflops",
    "GB/s": "gbytes_per_s",
    "% of peak": "percent_of_peak",
}
TABLE = "main table"


@pytest.fixture(scope="module")
def report() -> dict:
    return synthetic.build()


def names(page: Page) -> list[str]:
    return page.locator("main tbody th button").all_inner_texts()


@pytest.mark.parametrize(
    ("route", "key"),
    [
        ("operators", "operators"),
        ("operators?group=shape", "operators_by_shape"),
        ("kernels", "kernels"),
        ("runtime", "runtime"),
    ],
)
def test_every_cell_is_the_data(open_page: Open, report: dict, route: str, key: str) -> None:
    page = open_page(report, None, route)
    rows = table_rows(page, TABLE)
    wanted = sorted(report[key], key=lambda row: -row["total_ns"])
    assert len(rows) == len(wanted) > 1
    for row, data in zip(rows, wanted, strict=True):
        assert row["Name"][0].startswith(data["name"])
        for label, field in COLUMNS.items():
            assert row[label][1] == data[field], (data["name"], label)
            assert_close(row[label][0].replace("<", ""), data[field], (data["name"], label))
        assert row["Bound"][0] == (data["bound"] or "not modelled")
    foot = page.locator("main tfoot td")
    assert foot.nth(1).inner_text() == "", "totals hold one another"
    assert int(foot.nth(2).get_attribute("data-value")) == sum(row["self_ns"] for row in report[key])


def test_sorting_by_each_column_both_ways_with_unknown_last(open_page: Open, report: dict) -> None:
    page = open_page(report, None, "operators?group=shape&sort=name")
    for label, field in COLUMNS.items():
        button = page.get_by_role("button", name=label, exact=True)
        head = page.locator("main thead th", has=button)
        for direction in ("descending", "ascending"):
            button.click()
            assert head.get_attribute("aria-sort") == direction
            assert page.locator("main th[aria-sort]").count() == 1
            shown = [row[label][1] for row in table_rows(page, TABLE)]
            known = [value for value in shown if value is not None]
            assert known == sorted(known, reverse=direction == "descending")
            assert shown[len(known) :] == [None] * (len(shown) - len(known))
            assert sorted(known) == sorted(row[field] for row in report["operators_by_shape"] if row[field] is not None)


def test_sorting_by_name_with_the_keyboard(open_page: Open, report: dict) -> None:
    page = open_page(report, None, "operators")
    page.get_by_role("button", name="Name", exact=True).focus()
    page.keyboard.press("Enter")
    assert names(page) == sorted(row["name"] for row in report["operators"])
    assert page.locator("#status").inner_text() == "Sorted by Name, smallest first"


@pytest.mark.parametrize(
    ("query", "matches"),
    [
        ("LAYER_norm", lambda row: row["name"] == "layer_norm"),
        ("384x1536", lambda row: "384x1536" in row["shapes"]),
        ("word_emb", lambda row: "word_emb" in (row["module"] or "")),
        ("linear 1536x384", lambda row: "linear" in row["name"] and "1536x384" in row["shapes"]),
        ("nothing at all", lambda row: False),
    ],
)
def test_search_by_name_shape_and_module(open_page: Open, report: dict, query: str, matches: object) -> None:
    page = open_page(report, None, "operators?group=shape")
    page.locator("input[type=search]").fill(query)
    wanted = [row for row in report["operators_by_shape"] if matches(row)]
    assert sorted(names(page)) == sorted(row["name"] for row in wanted)
    assert page.locator(".toolbar .count").inner_text() == f"{len(wanted)} of {len(report['operators_by_shape'])} rows"
    assert "q=" in page.url


def test_grouping_by_shape_and_the_address(open_page: Open, report: dict) -> None:
    page = open_page(report, None, "operators")
    button = page.get_by_role("button", name="Group by shape")
    assert button.get_attribute("aria-pressed") == "false"
    button.click()
    assert button.get_attribute("aria-pressed") == "true"
    assert len(names(page)) == len(report["operators_by_shape"]) > len(report["operators"])
    page.locator("input[type=search]").fill("linear")
    page.get_by_role("button", name="Count", exact=True).click()
    before = names(page)
    page.reload()
    page.wait_for_selector("html[data-ready]")
    assert names(page) == before
    assert page.locator("main th[aria-sort]").inner_text().startswith("Count")


def test_choosing_a_section(open_page: Open, report: dict) -> None:
    page = open_page(report, None, "operators")
    page.get_by_label("Section").select_option("reshape")
    assert names(page) == ["permute"]


def test_details_of_a_row_by_keyboard(open_page: Open, report: dict) -> None:
    page = open_page(report, None, "operators?group=shape&q=word_embeddings")
    row = next(row for row in report["operators_by_shape"] if row["name"] == "embedding")
    button = page.locator("main tbody th button")
    button.focus()
    page.keyboard.press("Enter")
    assert button.get_attribute("aria-expanded") == "true"
    text = page.locator("tr.opened").inner_text()
    for key in ("shapes", "dtypes", "kernel", "module", "source"):
        assert row[key] in text, key
    page.keyboard.press("Enter")
    assert page.locator("tr.opened").count() == 0


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_csv_is_what_the_table_shows(open_page: Open, report: dict) -> None:
    page = open_page(report, None, "operators?q=norm")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy CSV").click()
    page.wait_for_function("() => document.getElementById('status').textContent.startsWith('Copied')")
    copied = page.evaluate("() => navigator.clipboard.readText()")
    with page.expect_download() as download:
        page.get_by_role("button", name="Save CSV").click()
    assert download.value.path().read_text("utf-8") == copied
    assert download.value.suggested_filename == "operators.csv"
    (row,) = rows_of(copied)
    data = next(row for row in report["operators"] if row["name"] == "layer_norm")
    for field in ("count", "total_ns", "mean_ns", "gflops", "percent_of_peak", "flops", "bytes"):
        assert float(row[field]) == data[field], field
    assert row["kernel"] == data["kernel"]
    assert row["module"] == ""


def test_csv_of_hostile_names_cannot_be_a_formula(open_page: Open) -> None:
    page = open_page(synthetic.hostile(), None, "operators")
    with page.expect_download() as download:
        page.get_by_role("button", name="Save CSV").click()
    rows = rows_of(download.value.path().read_text("utf-8"))
    assert {row["name"] for row in rows} >= {synthetic.HOSTILE[0], synthetic.HOSTILE[2]}
    assert all(row["name"][0] not in "=+-@" for row in rows)


def test_many_rows_come_in_parts_and_all_are_searched(open_page: Open, report: dict) -> None:
    many = copy.deepcopy(report)
    one = many["operators"][0]
    many["operators"] = [dict(one, name=f"operator {i}", total_ns=10_000_000 - i) for i in range(1300)]
    page = open_page(many, None, "operators")
    assert len(names(page)) == 200
    assert "200 of 1,300 rows" in page.locator(".more").inner_text()
    page.get_by_role("button", name="Show 1,000 more").click()
    assert len(names(page)) == 1200
    page.locator("input[type=search]").fill("operator 1299")
    assert names(page) == ["operator 1299"]


def test_save_json_gives_the_data_back(open_page: Open, report: dict) -> None:
    page = open_page(report)
    with page.expect_download() as download:
        page.get_by_role("button", name="Save JSON").click()
    saved = json.loads(download.value.path().read_text("utf-8"))
    assert saved["operators"] == report["operators"]
    assert saved["timeline"]["events"] == report["timeline"]["events"]

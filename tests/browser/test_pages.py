"""Memory, modules, roofline and the difference of two runs."""

from __future__ import annotations

import math
import re

import pytest
import synthetic_report as synthetic
from page_reader import Open, assert_close, table_rows
from playwright.sync_api import Page


@pytest.fixture(scope="module")
def report() -> dict:
    return synthetic.build()


# Memory


def test_memory_events_and_figures(open_page: Open, report: dict) -> None:
    page = open_page(report, None, "memory")
    memory = report["memory"]
    rows = table_rows(page, "main table")
    assert len(rows) == len(memory["events"])
    for row, event in zip(rows, memory["events"], strict=True):
        assert row["Time"][1] == event["time_ns"]
        assert row["Size"][1] == event["bytes"]
        assert row["Allocated after"][1] == event["allocated"]
        assert_close(row["Size"][0], event["bytes"])
        assert row["Kind"][0] == event["kind"]
        assert row["Address"][0] == hex(event["address"])
    peak = page.locator(".card", has_text="Peak")
    assert_close(peak.locator("dd").first.inner_text(), memory["peak_bytes"])
    page.get_by_role("combobox", name="Kind").select_option("Release")
    assert len(table_rows(page, "main table")) == sum(event["kind"] == "Release" for event in memory["events"])


def test_the_memory_curve_reads_its_points_and_marks_the_peak(open_page: Open, report: dict) -> None:
    page = open_page(report, None, "memory")
    curve = report["memory"]["curve"]
    chart = page.locator(".chart svg")
    chart.focus()
    page.keyboard.press("Home")
    readout = page.locator(".readout")
    for i in range(4):
        when, rest = readout.inner_text().split(": ")
        allocated, reserved = rest.split(" allocated, ")
        assert_close(when, curve["time_ns"][i])
        assert_close(allocated, curve["allocated"][i])
        assert_close(reserved.removesuffix(" reserved"), curve["reserved"][i])
        page.keyboard.press("ArrowRight")
    box = chart.bounding_box()
    peak = page.locator(".chart circle.peak").bounding_box()
    # The peak stands where its time stands between the ends of the curve, and nothing is higher.
    top = page.evaluate("() => document.querySelector('.chart .memory-allocated').getBBox().y")
    part = report["memory"]["peak_time_ns"] / report["time"]["wall_ns"]
    plot = page.evaluate(
        "() => { const a = document.querySelector('.chart .axis'); return [a.x1.baseVal.value, a.x2.baseVal.value]; }"
    )
    assert abs((peak["x"] + peak["width"] / 2 - box["x"]) - (plot[0] + part * (plot[1] - plot[0]))) < 2
    assert abs(peak["y"] + peak["height"] / 2 - box["y"] - top) < 2


# Modules


def tree_rows(page: Page) -> dict[str, tuple[float | None, ...]]:
    return page.evaluate(
        """() => Object.fromEntries([...document.querySelectorAll('.tree tbody tr')].map((row) =>
          [`${row.getAttribute('aria-level')} ${row.cells[0].textContent.trim()} ${row.rowIndex}`,
            [1, 2, 3].map((i) => Number(row.cells[i].dataset.value))]))"""
    )


def flat(tree: dict, level: int = 1) -> list[tuple[int, dict]]:
    return [(level, tree), *(found for child in tree["children"] for found in flat(child, level + 1))]


def test_the_whole_tree_is_the_data(open_page: Open, report: dict) -> None:
    page = open_page(report, None, "modules")
    assert len(tree_rows(page)) == 4
    page.get_by_role("button", name="Expand all").click()
    wanted = {
        f"{level} {node['name']} {i}": [node["count"], node["total_ns"], node["self_ns"]]
        for i, (level, node) in enumerate(flat(report["modules"]), start=1)
    }
    assert tree_rows(page) == wanted
    page.get_by_role("button", name="Collapse all").click()
    assert len(tree_rows(page)) == 4


def test_the_tree_opens_and_closes_by_keyboard(open_page: Open, report: dict) -> None:
    page = open_page(report, None, "modules")
    page.locator(".tree tr[tabindex='0']").focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    focused = "() => document.activeElement.cells[0].textContent.trim()"
    assert page.evaluate(focused) == "encoder"
    assert page.evaluate("() => document.activeElement.getAttribute('aria-expanded')") == "true"
    page.keyboard.press("ArrowRight")
    assert page.evaluate(focused) == "layer"
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert page.evaluate(focused) == "encoder"
    assert len(tree_rows(page)) == 4
    page.keyboard.press("End")
    assert page.evaluate(focused) == "pooler"


def test_flame_boxes_have_the_width_of_their_time(open_page: Open, report: dict) -> None:
    page = open_page(report, None, "modules")
    whole = page.locator(".flame").bounding_box()["width"]
    boxes = {
        label.split(", ")[0]: width
        for label, width in page.evaluate(
            """() => [...document.querySelectorAll('.flame button')].map((box) =>
              [box.getAttribute('aria-label'), box.getBoundingClientRect().width])"""
        )
    }
    encoder = next(node for _, node in flat(report["modules"]) if node["name"] == "encoder")
    assert abs(boxes["encoder"] / whole - encoder["total_ns"] / report["modules"]["total_ns"]) < 0.005
    labels = page.evaluate(
        "() => [...document.querySelectorAll('.flame button')].map((b) => b.getAttribute('aria-label'))"
    )
    assert_close(next(label for label in labels if label.startswith("encoder,")).split(", ")[1], encoder["total_ns"])


def test_flame_zoom_by_click_and_back_by_escape(open_page: Open, report: dict) -> None:
    page = open_page(report, None, "modules")
    whole = page.locator(".flame").bounding_box()["width"]
    layer = page.locator(".flame button[aria-label^='3,']")
    assert layer.bounding_box()["width"] < whole / 4
    layer.click()
    assert page.locator(".flame button[aria-label^='3,']").bounding_box()["width"] > 0.99 * whole
    assert page.locator(".readout").inner_text().startswith("BertModel \u203a encoder \u203a layer \u203a 3: total ")
    assert page.locator(".tree tr[aria-expanded=true]", has_text=re.compile("^3")).count() == 1
    page.locator(".flame button[aria-label^='3,']").focus()
    page.keyboard.press("ArrowDown")
    assert page.evaluate("() => document.activeElement.getAttribute('aria-label')").startswith("attention,")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Reset zoom").click()
    assert page.locator(".flame button[aria-label^='3,']").bounding_box()["width"] < whole / 4


def test_module_search_finds_in_tree_and_flame(open_page: Open, report: dict) -> None:
    page = open_page(report, None, "modules")
    page.locator("input[type=search]").fill("sdpa")
    wanted = sum("sdpa" in node["name"] for _, node in flat(report["modules"]))
    assert page.locator(".toolbar .count").inner_text() == f"{wanted} entries found"
    assert page.locator(".tree tr.hit").count() == wanted
    assert page.locator(".flame button.hit").count() == wanted


# Roofline


def test_points_stand_where_their_figures_say(open_page: Open, report: dict) -> None:
    page = open_page(report, None, "roofline")
    points = report["roofline"]["points"]
    marks = page.evaluate(
        """() => {
          const svg = document.querySelector('.chart svg');
          const at = (node) => { const box = node.getBBox(); return [box.x + box.width / 2, box.y + box.height / 2]; };
          const texts = [...svg.querySelectorAll('text')];
          const ends = ['x1', 'x2', 'y1', 'y2'];
          const grid = [...svg.querySelectorAll('line.grid')].map((line) => ends.map((end) => line[end].baseVal.value));
          return { points: [...svg.querySelectorAll('.point')].map((p) => [p.getAttribute('aria-label'), ...at(p)]),
            columns: grid.filter(([a, b]) => a === b).map(([a]) => a),
            rows: grid.filter(([, , a, b]) => a === b).map(([, , a]) => a),
            labels: texts.map((t) => t.textContent) };
        }"""
    )
    assert len(marks["points"]) == len(points) > 4
    numbers = [float(label.replace(",", "")) for label in marks["labels"] if re.fullmatch(r"[\d.,]+", label)]
    x_values, y_values = numbers[: len(marks["columns"])], numbers[len(marks["columns"]) :]
    assert len(y_values) == len(marks["rows"])

    def place(value: float, values: list[float], pixels: list[float]) -> float:
        part = math.log(value / values[0]) / math.log(values[-1] / values[0])
        return pixels[0] + part * (pixels[-1] - pixels[0])

    by_size = sorted(points, key=lambda point: -point["total_ns"])
    for point, (label, x, y) in zip(by_size, marks["points"], strict=True):
        assert label.startswith(f"{point['name']} {point['shapes']}: ")
        assert abs(x - place(point["intensity"], x_values, marks["columns"])) < 2
        assert abs(y - place(point["gflops"], y_values, marks["rows"])) < 3
    for roof in report["roofline"]["roofs"]:
        assert roof["name"] in page.locator("#roofs").inner_text()
        assert any(label.startswith(f"{roof['name']} ") for label in marks["labels"])


def test_roofline_points_by_keyboard_and_table(open_page: Open, report: dict) -> None:
    page = open_page(report, None, "roofline")
    points = sorted(report["roofline"]["points"], key=lambda point: -point["total_ns"])
    page.locator(".point[tabindex='0']").focus()
    assert page.locator(".readout").inner_text().startswith(f"{points[0]['name']} {points[0]['shapes']}")
    page.keyboard.press("ArrowRight")
    assert page.locator(".readout").inner_text().startswith(f"{points[1]['name']} {points[1]['shapes']}")
    assert page.locator(".point.on").count() == 1
    rows = table_rows(page, "main table")
    for row, point in zip(rows, points, strict=True):
        for label, key in (
            ("Count", "count"),
            ("Total", "total_ns"),
            ("FLOP/byte", "intensity"),
            ("GFLOP/s", "gflops"),
            ("% of peak", "percent_of_peak"),
        ):
            assert row[label][1] == point[key]
        assert row["Bound"][0] == point["bound"]


def test_a_roofline_without_roofs_gives_the_reason(open_page: Open, report: dict) -> None:
    without = dict(report, roofline=dict(report["roofline"], roofs=[], reason="the peaks were not measured"))
    page = open_page(without, None, "roofline")
    assert "the peaks were not measured" in page.locator(".note").inner_text()
    assert page.locator(".point").count() == len(report["roofline"]["points"])


# Difference


def test_the_difference_is_the_data_sorted_by_its_size(open_page: Open) -> None:
    report, diff = synthetic.pair()
    page = open_page(report, diff, "difference")
    rows = table_rows(page, "section[aria-label='Operators of both runs'] table")
    wanted = sorted(diff["rows"], key=lambda row: -abs(row["delta_ns"]))
    assert len(rows) == len(wanted)
    for row, data in zip(rows, wanted, strict=True):
        assert row["Operator"][0].startswith(f"{data['name']}{data['shapes']}")
        assert row["Change"][1] == data["delta_ns"]
        assert_close(row["Change"][0], data["delta_ns"])
        assert row["B over A"][1] == data["ratio"]
        for side in "ab":
            figures = data[side] or dict.fromkeys(("count", "total_ns", "median_ns"))
            assert row[f"{side.upper()} total"][1] == figures["total_ns"]
            assert row[f"{side.upper()} count"][1] == figures["count"]
            assert row[f"{side.upper()} median"][1] == figures["median_ns"]
    gone = next(row for row in rows if row["Operator"][0].startswith("gelu"))
    assert "only in A" in gone["Operator"][0]
    faster = next(row for row in rows if row["Operator"][0].startswith("linear"))
    assert "faster" in faster["B over A"][0]
    for row in table_rows(page, "#diff-categories"):
        data = diff["by_category"][row["Category"][0].strip()]
        assert (row["A"][1], row["B"][1]) == (data["a_ns"], data["b_ns"])
    assert page.locator(".note").count() == 0


def test_runs_that_cannot_be_compared_say_what_differs(open_page: Open) -> None:
    report, diff = synthetic.pair(comparable=False)
    page = open_page(report, diff, "difference")
    assert "These runs are not comparable." in page.locator(".note").first.inner_text()
    for difference in diff["differences"]:
        assert difference in page.locator("#differences").inner_text()
    assert page.locator("#runs .badge", has_text="differs").count() == 3


def test_without_a_second_run_there_is_no_such_page(open_page: Open, report: dict) -> None:
    page = open_page(report, None, "difference")
    assert page.locator("html").get_attribute("data-page") == "overview"
    assert page.locator("nav a[data-page=difference]").count() == 0

"""The timeline: zoom, pan, selection, search, keys, and the same in words."""

from __future__ import annotations

import pytest
import synthetic_report as synthetic
from page_reader import Open, assert_close, go
from playwright.sync_api import Page


@pytest.fixture(scope="module")
def report() -> dict:
    return synthetic.build()


def view(page: Page) -> tuple[float, float]:
    """The part of time that is shown, once the page has settled."""
    page.wait_for_timeout(200)
    return tuple(float(page.locator(".timeline").get_attribute(f"data-{end}")) for end in ("from", "to"))


def selected(page: Page) -> int:
    return int(page.locator(".timeline").get_attribute("data-selected"))


def event(report: dict, i: int) -> dict:
    timeline = report["timeline"]
    found = {key: column[i] for key, column in timeline["events"].items()}
    found["text"] = timeline["names"][found["name"]]
    return found


def first_of(report: dict, lane: int, category: str) -> int:
    events = report["timeline"]["events"]
    wanted = report["timeline"]["categories"].index(category)
    return next(
        i for i, (a, c) in enumerate(zip(events["lane"], events["category"], strict=True)) if (a, c) == (lane, wanted)
    )


def canvas_box(page: Page) -> dict:
    return page.locator(".tracks canvas").bounding_box()


def test_it_starts_with_everything(open_page: Open, report: dict) -> None:
    page = open_page(report, None, "timeline")
    events = report["timeline"]["events"]
    start, end = view(page)
    assert start <= min(events["start_ns"])
    assert end >= max(a + b for a, b in zip(events["start_ns"], events["dur_ns"], strict=True))
    assert page.locator("#timeline-count").inner_text() == f"All {len(events['id']):,} events of the trace are shown."
    assert page.locator("#timeline-view").inner_text().endswith(f"{len(events['id']):,} events.")
    legend = page.locator(".legend li").all_inner_texts()
    assert set(legend) == {report["timeline"]["categories"][c] for c in events["category"]}


def test_keys_zoom_pan_and_fit(open_page: Open, report: dict) -> None:
    page = open_page(report, None, "timeline")
    whole = view(page)
    page.locator(".timeline").focus()
    for key in ("w", "+"):
        before = view(page)
        page.keyboard.press(key)
        after = view(page)
        assert before[0] < after[0] < after[1] < before[1], key
    for key, direction in (("d", 1), ("a", -1), ("ArrowRight", 1), ("ArrowLeft", -1)):
        before = view(page)
        page.keyboard.press(key)
        after = view(page)
        assert (after[0] - before[0]) * direction > 0, key
        assert abs((after[1] - after[0]) - (before[1] - before[0])) <= 2, key
    for key in ("s", "-"):
        before = view(page)
        page.keyboard.press(key)
        after = view(page)
        assert after[1] - after[0] > before[1] - before[0], key
    page.keyboard.press("w")
    page.keyboard.press("0")
    assert view(page) == whole


def test_the_wheel_zooms_about_the_pointer(open_page: Open, report: dict) -> None:
    page = open_page(report, None, "timeline")
    before = view(page)
    box = canvas_box(page)
    page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 60)
    page.mouse.wheel(0, -400)
    after = view(page)
    under = [start + 0.25 * (end - start) for start, end in (before, after)]
    assert after[1] - after[0] < 0.7 * (before[1] - before[0])
    assert abs(under[0] - under[1]) < 0.01 * (after[1] - after[0])
    page.mouse.wheel(0, 400)
    assert view(page)[1] - view(page)[0] > after[1] - after[0]


def test_dragging_moves_the_view(open_page: Open, report: dict) -> None:
    page = open_page(report, None, "timeline")
    page.get_by_role("button", name="Zoom in").click()
    before = view(page)
    box = canvas_box(page)
    page.mouse.move(box["x"] + 600, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 400, box["y"] + 60, steps=4)
    page.mouse.up()
    after = view(page)
    moved = 200 / box["width"] * (before[1] - before[0])
    assert abs(after[0] - before[0] - moved) < 0.02 * moved
    assert selected(page) == -1, "a drag is not a click"


def test_buttons_do_what_the_keys_do(open_page: Open, report: dict) -> None:
    page = open_page(report, None, "timeline")
    whole = view(page)
    page.get_by_role("button", name="Zoom in").click()
    inner = view(page)
    page.get_by_role("button", name="Later").click()
    later = view(page)
    assert whole[0] < inner[0] < later[0]
    page.get_by_role("button", name="Earlier").click()
    page.get_by_role("button", name="Zoom out").click()
    page.get_by_role("button", name="Fit all").click()
    assert view(page) == whole


def test_a_click_selects_what_is_under_it(open_page: Open, report: dict) -> None:
    page = open_page(report, None, "timeline")
    start, end = view(page)
    box = canvas_box(page)
    found = set()
    for y in range(30, int(box["height"]), 8):
        page.mouse.click(box["x"] + 70, box["y"] + y)
        i = selected(page)
        if i < 0:
            continue
        item = event(report, i)
        when = start + 70 / box["width"] * (end - start)
        slack = 4 * (end - start) / box["width"]
        assert item["start_ns"] - slack <= when <= item["start_ns"] + item["dur_ns"] + slack
        assert page.locator("[aria-label='Selected event'] h2").inner_text().strip() == item["text"]
        found.add((item["lane"], item["row"]))
    assert found >= {(0, row) for row in range(5)} | {(1, 0)}


def test_details_of_a_kernel_and_the_way_to_its_launch(open_page: Open, report: dict) -> None:
    i = first_of(report, 1, "kernel")
    page = open_page(report, None, f"timeline?event={i}")
    item = event(report, i)
    site = report["timeline"]["sites"][item["site"]]
    panel = page.locator("[aria-label='Selected event']")
    text = panel.inner_text()
    for wanted in (
        site["shapes"],
        site["module"],
        site["source"],
        site["kernel"],
        "kernel",
        f"{item['dur_ns']:,} ns",
        str(item["id"]),
    ):
        assert wanted in text, wanted
    launch = report["timeline"]["flows"]["from"][report["timeline"]["flows"]["to"].index(i)]
    assert "Launched by thresherNodeCompute on host" in text
    page.locator(".timeline").focus()
    page.keyboard.press("g")
    assert selected(page) == launch
    assert "Launches" in panel.inner_text()
    page.keyboard.press("g")
    assert selected(page) == i


def test_work_that_is_not_modelled_says_so(open_page: Open, report: dict) -> None:
    events, sites = report["timeline"]["events"], report["timeline"]["sites"]
    i = next(i for i, site in enumerate(events["site"]) if site >= 0 and sites[site]["flops"] is None)
    page = open_page(report, None, f"timeline?event={i}")
    assert "Work\nnot modelled" in page.locator("[aria-label='Selected event']").inner_text()
    assert "GFLOP/s" not in page.locator("[aria-label='Selected event']").inner_text()


def test_the_keyboard_walks_from_event_to_event(open_page: Open, report: dict) -> None:
    page = open_page(report, None, "timeline")
    page.locator(".timeline").focus()
    page.keyboard.press("n")
    first = selected(page)
    assert event(report, first)["text"] == "Step#0"
    page.keyboard.press("n")
    second = event(report, selected(page))
    assert (second["text"], second["row"]) == ("Step#1", 0)
    page.keyboard.press("p")
    assert selected(page) == first
    rows = []
    for _ in range(5):
        page.keyboard.press("ArrowDown")
        item = event(report, selected(page))
        rows.append((item["lane"], item["row"]))
    assert rows == [(0, 1), (0, 2), (0, 3), (0, 4), (1, 0)]
    kernel = event(report, selected(page))
    page.keyboard.press("n")
    assert event(report, selected(page))["start_ns"] > kernel["start_ns"]
    page.keyboard.press("f")
    start, end = view(page)
    item = event(report, selected(page))
    assert item["dur_ns"] / (end - start) > 0.4
    page.keyboard.press("Escape")
    assert selected(page) == -1


def test_search_counts_highlights_and_steps(open_page: Open, report: dict) -> None:
    page = open_page(report, None, "timeline")
    pale = """() => {
      const canvas = document.querySelector('.tracks canvas');
      const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
      return data.reduce((sum, value) => sum + value, 0);
    }"""
    before = page.evaluate(pale)
    box = page.locator("input[type=search]")
    box.fill("layer.3.intermediate")
    events, sites = report["timeline"]["events"], report["timeline"]["sites"]
    wanted = [
        i for i, site in enumerate(events["site"]) if site >= 0 and "layer.3.intermediate" in sites[site]["module"]
    ]
    assert page.locator(".toolbar .count").inner_text() == f"{len(wanted)} events found"
    page.wait_for_timeout(100)
    assert page.evaluate(pale) > before, "what was not found is paler on a light page"
    box.press("Enter")
    assert selected(page) == wanted[0]
    page.get_by_role("button", name="Next event found").click()
    assert selected(page) == wanted[1]
    page.get_by_role("button", name="Previous event found").click()
    assert selected(page) == wanted[0]
    box.fill("no such thing")
    assert page.locator(".toolbar .count").inner_text() == "0 events found"
    box.fill("")
    assert page.locator(".toolbar .count").inner_text() == ""


def test_the_longest_events_in_view_are_a_table(open_page: Open, report: dict) -> None:
    page = open_page(report, None, "timeline")
    view(page)
    events = report["timeline"]["events"]
    longest = sorted(events["dur_ns"], reverse=True)[:25]
    cells = page.locator("[aria-label='Longest events in view'] td[data-value]")
    assert [int(cell.get_attribute("data-value")) for cell in cells.all()] == longest
    button = page.locator("[aria-label='Longest events in view'] button").nth(3)
    i = int(button.get_attribute("data-event"))
    button.click()
    assert selected(page) == i
    assert_close(
        page.locator("[aria-label='Selected event'] dd").nth(3).inner_text().split(" (")[0], event(report, i)["dur_ns"]
    )


def test_lanes_can_be_hidden(open_page: Open, report: dict) -> None:
    page = open_page(report, None, "timeline")
    tall = canvas_box(page)["height"]
    page.locator("summary", has_text="Lanes (3)").click()
    page.get_by_label("host: python 4711, main thread").uncheck()
    assert canvas_box(page)["height"] < tall
    view(page)
    page.locator(".timeline").focus()
    page.keyboard.press("n")
    assert event(report, selected(page))["lane"] == 1


def test_one_lane_needs_no_choice_of_lanes(open_page: Open) -> None:
    report = synthetic.build(2)
    report["timeline"]["lanes"] = report["timeline"]["lanes"][:1]
    events = report["timeline"]["events"]
    kept = [i for i, lane in enumerate(events["lane"]) if lane == 0]
    report["timeline"]["events"] = {key: [column[i] for i in kept] for key, column in events.items()}
    report["timeline"]["flows"] = {"from": [], "to": []}
    page = open_page(report, None, "timeline")
    assert page.locator("summary").count() == 0
    assert "null" not in page.locator("main").inner_text()


def test_a_link_restores_view_search_and_selection(open_page: Open, report: dict) -> None:
    page = open_page(report, None, "timeline?q=sdpa&from=1000000&to=3000000&event=40")
    assert view(page) == (1_000_000, 3_000_000)
    assert selected(page) == 40
    assert page.locator("input[type=search]").input_value() == "sdpa"
    page.locator(".timeline").focus()
    page.keyboard.press("0")
    page.keyboard.press("w")
    shown = view(page)
    page.reload()
    page.wait_for_selector("html[data-ready]")
    assert view(page) == shown
    assert selected(page) == 40


@pytest.mark.parametrize("dark", [False, True])
def test_kernels_are_drawn_in_the_colour_of_the_legend(open_page: Open, report: dict, dark: bool) -> None:
    page = open_page(report, None, "timeline", dark=dark)
    count = page.evaluate(
        """() => {
          const fill = getComputedStyle(document.querySelector('.legend .fill-kernel')).backgroundColor;
          const wanted = fill.match(/\\d+/g).map(Number);
          const canvas = document.querySelector('.tracks canvas');
          const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
          let count = 0;
          for (let i = 0; i < data.length; i += 4) count += wanted.every((value, k) => value === data[i + k]);
          return count;
        }"""
    )
    assert count > 200


def test_a_down_sampled_trace_says_how_much_is_shown(open_page: Open) -> None:
    report = synthetic.big(3_000, total=1_000_000)
    page = open_page(report, None, "timeline")
    shown = len(report["timeline"]["events"]["id"])
    assert page.locator("#timeline-count").inner_text().startswith(f"{shown:,} of 1,000,000 events are shown")
    go(page, "overview")
    assert f"It shows {shown:,} of 1,000,000 events." in page.locator(".note").first.inner_text()


def test_a_narrow_screen_keeps_the_timeline_usable(open_page: Open, report: dict) -> None:
    page = open_page(report, None, "timeline", width=420)
    box = canvas_box(page)
    assert 350 < box["width"] <= 420
    page.mouse.click(box["x"] + 70, box["y"] + 60)
    assert selected(page) >= 0

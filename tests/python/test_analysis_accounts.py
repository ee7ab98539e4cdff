"""Every nanosecond counts once, nested rows never overlap, self times are exact: against slow references."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from trace_samples import START, random_events, trace_of

from thresher.profiler.analysis import build_report
from thresher.profiler.analysis.accounts import CATEGORIES, account
from thresher.profiler.analysis.nesting import nest, self_times
from thresher.profiler.analysis.overview import find_steps
from thresher.profiler.trace import EVENT, Category

ACCOUNT = {
    Category.KERNEL: 0,
    Category.COPY: 1,
    Category.COMMUNICATION: 2,
    Category.RUNTIME: 3,
    Category.EXECUTION: 3,
    Category.HOST: 4,
    Category.CALL: 5,
    Category.OTHER: 5,
}


def slow_sweep(events: np.ndarray[Any, Any], begin: int, end: int) -> list[int]:
    """Nanosecond by nanosecond."""
    best = np.full(end - begin, 6)
    for event in events:
        rank = ACCOUNT.get(Category(event["category"]))
        if rank is not None:
            first = max(int(event["start_ns"]) - begin, 0)
            last = max(int(event["start_ns"] + event["dur_ns"]) - begin, 0)
            best[first:last] = np.minimum(best[first:last], rank)
    return np.bincount(best, minlength=7).tolist()


@pytest.mark.parametrize("seed", range(40))
def test_categories_add_up_to_the_wall_clock(seed: int) -> None:
    events = random_events(seed, count=1 + seed * 3)
    trace = trace_of(events)
    report = build_report(trace)
    begin = int(events["start_ns"].min())
    end = int((events["start_ns"] + events["dur_ns"]).max())
    total = report["overview"]["total"]
    assert total["wall_ns"] == end - begin == report["time"]["wall_ns"]
    assert list(total["by_category"].values()) == slow_sweep(events, begin, end)
    assert sum(total["by_category"].values()) == total["wall_ns"]
    steps = find_steps(trace)
    assert len(steps.names) == len(report["overview"]["steps"])
    for step, first, last in zip(report["overview"]["steps"], steps.start.tolist(), steps.end.tolist(), strict=True):
        assert list(step["by_category"].values()) == slow_sweep(events, first, last)
        assert step["wall_ns"] == last - first == sum(step["by_category"].values())


@pytest.mark.parametrize("seed", range(20))
def test_accounts_do_not_depend_on_how_the_time_is_cut(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from thresher.profiler.trace import store

    events = random_events(seed, count=300, extent=4000)
    edges = np.sort(np.random.default_rng(seed).integers(START, START + 4500, 40))
    trace = trace_of(events, start_ns=START + 50, stop_ns=START + 3500)
    whole = account(trace, edges)
    monkeypatch.setattr(store, "_WINDOW_EVENTS", 24)
    monkeypatch.setattr(store, "_SAMPLE_EVERY", 4)
    monkeypatch.setattr(store, "_LONG_PER_CHUNK", 5)
    pieces = [trace.events[begin : begin + 40] for begin in range(0, 300, 40)]
    pieces = [pieces[index] for index in np.random.default_rng(seed).permutation(len(pieces))]
    cut = store.Store(lambda number: pieces[number])
    for piece in pieces:
        cut.add(piece)
    assert len(list(cut.windows())) > 6
    trace.store = cut
    in_windows = account(trace, edges)
    assert in_windows.by_category.tolist() == whole.by_category.tolist()
    assert in_windows.at_edges.tolist() == whole.at_edges.tolist()
    assert in_windows.overlapping == whole.overlapping
    assert in_windows.out_of_window == whole.out_of_window


def test_self_times_do_not_depend_on_how_the_time_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    from thresher.profiler.trace import store

    random = np.random.default_rng(5)
    rows = []
    at = START
    for _ in range(200):
        length = int(random.integers(50, 500))
        for depth in range(4):
            rows.append((at + depth * 5, length - depth * 10, depth, int(Category.HOST)))
        at += length + int(random.integers(0, 20))
    events = np.zeros(len(rows), EVENT)
    for name, values in zip(("start_ns", "dur_ns", "name", "category"), zip(*rows, strict=True), strict=True):
        events[name] = values
    events["site"] = -1
    trace = trace_of(events)
    whole = account(trace)
    monkeypatch.setattr(store, "_WINDOW_EVENTS", 24)
    monkeypatch.setattr(store, "_SAMPLE_EVERY", 4)
    pieces = [events[begin : begin + 50] for begin in range(0, len(events), 50)]
    trace.store = store.Store(lambda number: pieces[number])
    for piece in pieces:
        trace.store.add(piece)
    assert account(trace).self_ns == whole.self_ns
    assert list(whole.self_ns.values()) == [10 * 200, 10 * 200, 10 * 200, int(events["dur_ns"][3::4].sum())]


@pytest.mark.parametrize("seed", range(40))
def test_rows_never_overlap_and_parents_contain(seed: int) -> None:
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 120))
    start = random.integers(0, 300, count)
    end = start + random.integers(0, 60, count)
    lane = random.integers(0, 3, count)
    found = nest(lane, start, end)
    for a in range(count):
        parent = int(found.parent[a])
        if parent >= 0:
            assert lane[parent] == lane[a]
            assert start[parent] <= start[a] and max(end[a], start[a] + 1) <= max(end[parent], start[parent] + 1)
            assert found.depth[a] == found.depth[parent] + 1
        for b in range(a):
            if lane[a] == lane[b] and found.row[a] == found.row[b]:
                assert end[a] <= start[b] or end[b] <= start[a]


@pytest.mark.parametrize("seed", range(20))
def test_nested_intervals_take_as_many_rows_as_they_are_deep(seed: int) -> None:
    random = np.random.default_rng(seed)
    intervals: list[tuple[int, int, int]] = []

    def fill(first: int, last: int, depth: int, parent: int) -> None:
        points = np.sort(
            random.choice(np.arange(first, last + 1), size=min(6, last - first + 1), replace=False)
        ).tolist()
        for begin, end in zip(points[::2], points[1::2], strict=False):
            number = len(intervals)
            intervals.append((begin, end, parent))
            if depth < 5 and end - begin > 4:
                fill(begin + 1, end - 1, depth + 1, number)

    fill(0, 4000, 0, -1)
    start, end, parent = (np.array(column) for column in zip(*intervals, strict=True))
    shuffled = random.permutation(len(start))
    found = nest(np.zeros(len(start), np.int64), start[shuffled], end[shuffled])
    where = {int(old): new for new, old in enumerate(shuffled)}
    assert found.parent.tolist() == [where.get(int(parent[old]), -1) for old in shuffled]
    assert found.row.tolist() == found.depth.tolist()
    own = self_times(found, start[shuffled], end[shuffled])
    children = dict.fromkeys(range(len(start)), 0)
    for number, above in enumerate(parent.tolist()):
        if above >= 0:
            children[above] += int(end[number] - start[number])
    assert own.tolist() == [int(end[old] - start[old]) - children[int(old)] for old in shuffled]


def test_children_that_overlap_count_once() -> None:
    start, end = np.array([0, 10, 15, 40]), np.array([100, 20, 30, 50])
    found = nest(np.zeros(4, np.int64), start, end)
    assert self_times(found, start, end).tolist() == [100 - 20 - 10, 10, 15, 10]
    assert len({0, *found.row.tolist()}) == 3


def test_priority_of_the_categories() -> None:
    events = np.zeros(7, EVENT)
    order = (Category.CALL, Category.HOST, Category.EXECUTION, Category.COMMUNICATION, Category.COPY, Category.KERNEL)
    for number, category in enumerate(order):
        events[number]["category"] = category
        events[number]["start_ns"] = START + number * 10
        events[number]["dur_ns"] = 120 - 20 * number
        events[number]["lane"] = 3 if category <= Category.COMMUNICATION else 0
    events[6] = (START - 30, 200, 0, Category.STEP, 0, 1, 0, -1, 0, 0, 0, 0, 0)
    events["site"] = -1
    found = build_report(trace_of(events))["overview"]
    wanted = dict(zip(CATEGORIES, (20, 20, 20, 20, 20, 20, 80), strict=True))
    assert found["total"]["by_category"] == wanted
    assert found["steps"] == [{"name": "name 0", "start_ns": 0, "wall_ns": 200, "by_category": wanted}]


def test_many_steps_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    from thresher.profiler.analysis import overview

    events = np.zeros(50, EVENT)
    events["category"] = Category.CALL
    events["start_ns"] = START + np.arange(50) * 100
    events["dur_ns"] = 60
    events["site"] = -1
    monkeypatch.setattr(overview, "MAX_STEPS", 20)
    found = build_report(trace_of(events))["overview"]
    assert [step["name"] for step in found["steps"]][::16] == ["call 1 to call 3", "call 49 to call 50"]
    assert (
        sum(step["wall_ns"] for step in found["steps"])
        == 50 * 60
        == sum(s["by_category"]["other"] for s in found["steps"])
    )
    assert "3 of the 50 steps are added up in each line" in found["note"]


def test_a_call_inside_a_call_is_no_step() -> None:
    events = np.zeros(3, EVENT)
    events["category"] = Category.CALL
    events["start_ns"] = START + np.array([0, 10, 200])
    events["dur_ns"] = [100, 50, 10]
    events["site"] = -1
    assert [step["start_ns"] for step in build_report(trace_of(events))["overview"]["steps"]] == [0, 200]


def test_health_counts() -> None:
    def event(
        start: int, dur: int, category: Category, lane: int, correlation: int, external: int = 0
    ) -> tuple[int, ...]:
        return (START + start, dur, 0, category, 0, lane, 0, -1, correlation, external, 0, 0, 0)

    events = np.array(
        [
            event(10, 5, Category.RUNTIME, 0, 1),
            event(9, 5, Category.KERNEL, 3, 1),  # before its launch
            event(12, 5, Category.KERNEL, 3, 9),  # no launch, overlaps
            event(13, 5, Category.KERNEL, 4, 8, 77),  # its operator is there
            event(13, 5, Category.HOST, 0, 0, 77),
            event(90, 15, Category.COPY, 3, 1),  # ends after the recording
            event(-5, 2, Category.HOST, 1, 0),  # begins before it
            event(-9, 200, Category.PYTHON, 2, 0),  # frames may
        ],
        EVENT,
    )
    found = build_report(trace_of(events, start_ns=START, stop_ns=START + 100, dropped=4, bad_times=2))["health"]
    counts = {name: value for name, value in found.items() if isinstance(value, int)}
    assert counts == {
        "dropped": 4,
        "unlinked": 1,
        "out_of_window": 2,
        "before_launch": 1,
        "overlapping": 1,
        "bad_times": 2,
        "unknown_events": 0,
        "malformed": 0,
    }
    assert len(found["messages"]) == 6

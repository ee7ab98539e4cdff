"""What the file holds, without a browser."""

from __future__ import annotations

import base64
import copy
import gzip
import json
import random
import re
from typing import Any

import numpy
import pytest
import synthetic_report as synthetic

from thresher.profiler.html import limits, render


def embedded(page: str) -> dict[str, Any]:
    (data,) = re.findall(r'<script type="text/plain" id="data">([^<]*)</script>', page)
    return json.loads(gzip.decompress(base64.b64decode(data)))


def test_the_data_are_the_report() -> None:
    report, diff = synthetic.pair()
    found = embedded(render(report, diff))
    assert found["diff"] == diff
    for key in ("operators", "operators_by_shape", "kernels", "modules", "memory", "roofline", "overview", "health"):
        assert found["report"][key] == report[key], key
    assert found["report"]["timeline"] == report["timeline"]
    assert found["report"]["page_notes"] == []


def test_the_same_report_gives_the_same_page_and_stays_as_it_is() -> None:
    report, diff = synthetic.pair()
    before = copy.deepcopy([report, diff])
    assert render(report, diff) == render(report, diff)
    assert [report, diff] == before


def test_nothing_is_fetched_and_only_its_own_script_may_run() -> None:
    page = render(synthetic.hostile())
    assert set(re.findall(r"https?://[^\s\"'<>)]+", page)) == {"http://www.w3.org/2000/svg"}
    assert len(re.findall(r"<script", page)) == 2
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert "default-src 'none'" in policy[1]
    assert "unsafe" not in policy[1]


def test_hostile_names_stay_inside_the_data() -> None:
    page = render(synthetic.hostile())
    page.encode("utf-8")  # a lone surrogate would raise
    assert "window.hacked=1</script>" not in page
    assert "<img src=x" not in page
    assert page.count("</script>") == 2


def test_numbers_that_json_or_javascript_lack() -> None:
    report = synthetic.build(1)
    report["operators"][0].update(gflops=float("nan"), gbytes_per_s=float("inf"), flops=2**60)
    report["timeline"]["events"] = {key: numpy.array(column) for key, column in report["timeline"]["events"].items()}
    report["operators"][1]["count"] = numpy.int64(7)
    found = embedded(render(report))["report"]
    assert found["operators"][0]["gflops"] is None
    assert found["operators"][0]["gbytes_per_s"] is None
    assert found["operators"][0]["flops"] == str(2**60)
    assert found["operators"][1]["count"] == 7
    assert found["timeline"]["events"] == synthetic.build(1)["timeline"]["events"]


def test_too_many_events_lose_the_shortest_and_the_page_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TIMELINE_EVENTS", 300)
    report = synthetic.build()
    found = embedded(render(report))["report"]
    events, kept = report["timeline"]["events"], found["timeline"]["events"]
    total = len(events["id"])
    assert len(kept["id"]) == found["timeline"]["shown"] == 300
    assert found["timeline"]["total"] == total
    assert sorted(kept["dur_ns"]) == sorted(events["dur_ns"])[-300:]
    assert kept["start_ns"] == sorted(kept["start_ns"])
    assert found["page_notes"] == [f"Timeline: the longest 300 of {total:,} events are on this page."]
    flows = found["timeline"]["flows"]
    assert flows["from"]
    for a, b in zip(flows["from"], flows["to"], strict=True):
        assert kept["id"][a] == kept["id"][b], "an arrow still joins a launch and its kernel"


def test_every_list_has_a_limit() -> None:
    report = synthetic.build(1)
    many = 30_000
    for key in ("operators", "operators_by_shape", "kernels"):
        report[key] = [dict(report[key][0], total_ns=i) for i in range(many)]
    report["memory"]["events"] = [dict(report["memory"]["events"][0], bytes=i) for i in range(many)]
    report["memory"]["curve"] = {
        "time_ns": list(range(many)),
        "allocated": [10 if i != 12_345 else 99_999 for i in range(many)],
        "reserved": [20] * many,
    }
    report["overview"]["steps"] *= many
    report["roofline"]["points"] = [dict(report["roofline"]["points"][0], total_ns=i) for i in range(many)]
    leaf = {"name": "leaf", "total_ns": 1, "self_ns": 1, "count": 1, "source": None, "kind": "operator", "children": []}
    report["modules"]["children"] = [dict(leaf, total_ns=i) for i in range(many)]
    page = render(report)
    assert len(page) < 5_000_000
    found = embedded(page)["report"]
    assert [len(found[key]) for key in ("operators", "operators_by_shape", "kernels")] == [limits.TABLE_ROWS] * 3
    assert max(row["total_ns"] for row in found["operators"]) == many - 1
    assert max(found["memory"]["curve"]["allocated"]) == 99_999, "no peak is lost"
    assert {len(column) for column in found["memory"]["curve"].values()} == {len(found["memory"]["curve"]["time_ns"])}
    assert len(found["overview"]["steps"]) == limits.STEPS
    assert len(found["modules"]["children"]) == limits.MODULES - 1
    assert len(found["page_notes"]) == 8


def test_a_page_of_long_texts_still_fits() -> None:
    noise = random.Random(1)
    report = synthetic.build(1)
    texts = ["".join(noise.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=1500)) for _ in range(5_000)]
    report["operators_by_shape"] = [dict(report["operators"][0], name=name, total_ns=i) for i, name in enumerate(texts)]
    page = render(report)
    assert len(page) < 5_000_000
    found = embedded(page)["report"]
    assert 500 < len(found["operators_by_shape"]) < 5_000
    assert any(note.startswith("Operators by shape:") for note in found["page_notes"])


def test_columns_of_different_lengths_are_cut_to_the_shortest() -> None:
    report = synthetic.build(1)
    report["timeline"]["events"]["site"] = report["timeline"]["events"]["site"][:-3]
    events = embedded(render(report))["report"]["timeline"]["events"]
    assert len({len(column) for column in events.values()}) == 1


def test_the_least_report() -> None:
    assert embedded(render({})) == {"report": {"page_notes": []}, "diff": None}

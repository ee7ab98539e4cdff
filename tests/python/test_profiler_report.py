"""The operator report: its arithmetic, its formats, and what the engine's profiler feeds it."""

from __future__ import annotations

import csv
import gzip
import importlib.util
import io
import json
import os
import random
import statistics
from pathlib import Path
from typing import Any

import pytest
from processes import run_python, run_with_torch

from thresher.profiler import KeyAverages, OpReport, render
from thresher.profiler.formats import summary_lines
from thresher.profiler.percentages import apportion, percentages

GOLDEN = Path(__file__).parents[1] / "golden"
REPOSITORY = Path(__file__).parents[2]
RECORDS = json.loads((GOLDEN / "op_report_records.json").read_text())["records"]

needs_engine = pytest.mark.skipif(
    importlib.util.find_spec("thresher._engine") is None, reason="the engine is not built"
)


def summarize(records: list[list[Any]], **changes: Any) -> dict[str, Any]:
    """What the engine makes of the golden records (no call in them surrounds another)."""
    groups: dict[tuple[str, str], list[int]] = {}
    for section, name, start, end in records:
        groups.setdefault((section, name), []).append(end - start)
    calls = [ns for (section, _), times in groups.items() if section == "call" for ns in times]
    rows = [
        {
            "phase": "inference",
            "section": section,
            "name": name,
            "count": len(times),
            "total_ns": sum(times),
            "min_ns": min(times),
            "max_ns": max(times),
            "median_ns": int(statistics.median_low(times)),
            "flops": 8e9 if name == "linear" else -1.0,
            "bytes": 4e6 if name == "linear" else -1.0,
        }
        for (section, name), times in groups.items()
        if section != "call"
    ]
    rows_ns = sum(row["total_ns"] for row in rows)
    return {
        "enabled": True,
        "rank": 0,
        "isa": "avx2",
        "num_threads": 2,
        "cpu": "Example CPU",
        "records": len(records),
        "dropped": 0,
        "overwritten": 0,
        "phases": [
            {
                "phase": "inference",
                "calls": len(calls),
                "executions": 0,
                "wall_ns": sum(calls),
                "rows_ns": rows_ns,
                "gap_ns": sum(calls) - rows_ns,
            }
        ],
        "rows": rows,
        **changes,
    }


@pytest.fixture
def report() -> OpReport:
    return OpReport.from_summary(summarize(RECORDS), version="0.1.0")


@pytest.mark.parametrize(("format", "suffix"), [("text", "txt"), ("json", "json"), ("csv", "csv")])
def test_golden(report: OpReport, format: str, suffix: str) -> None:
    golden = GOLDEN / f"op_report.{suffix}"
    found = render(report, format)
    if os.environ.get("UPDATE_GOLDEN") == "1":
        golden.write_text(found)
    assert found == golden.read_text(), f"run with UPDATE_GOLDEN=1 if {golden.name} should change"


def test_text_has_the_promised_shape(report: OpReport) -> None:
    lines = render(report, "text").splitlines()
    for title in ("*** forward ***", "*** reshape ***", "*** alloc ***"):
        start = lines.index(title)
        assert lines[start + 1] == lines[start + 3] == "-" * 95
        assert lines[start + 2].split() == [
            "rank",
            "opname",
            "count",
            "min_ms",
            "max_ms",
            "ave_ms",
            "total_ms",
            "percentage",
        ]
    assert lines[1].startswith("phase inference")
    assert all(len(line) <= 95 or "longer_than" in line for line in lines)


def test_rows_are_sorted_and_add_up(report: OpReport) -> None:
    for section in report.sections:
        shares = [row.percentage for row in section.rows]
        assert shares == sorted(shares, reverse=True)
        assert round(sum(shares), 9) == 100
    phase = report.phase("inference")
    assert phase.rows_ns + phase.gap_ns == phase.wall_ns == 12_500_000
    with pytest.raises(KeyError, match=r"expected one of \['inference'\], got 'decode'"):
        report.phase("decode")


def test_printed_summary_adds_up() -> None:
    generator = random.Random(1)
    for _ in range(300):
        records = [
            [
                generator.choice(["forward", "reshape", "alloc", "call"]),
                generator.choice("abcde"),
                0,
                generator.randrange(1, 10**7),
            ]
            for _ in range(generator.randrange(1, 60))
        ]
        report = OpReport.from_summary(summarize(records))
        (phase,) = report.phases
        assert phase.rows_ns + phase.gap_ns == phase.wall_ns
        *parts, wall = summary_lines(phase)
        assert float(parts[-1][1]) == pytest.approx(phase.gap_ns / 1e6, abs=0.01)
        assert round(sum(float(total) for _, total, _ in parts), 6) == float(wall[1])
        if report.wall_ns > 0:
            assert round(sum(float(share) for _, _, share in parts), 6) == 100
        for section in report.sections:
            if section.rows:
                assert sum(round(float(f"{row.percentage:.2f}") * 100) for row in section.rows) == 10_000


def test_percentages_are_fair() -> None:
    assert percentages([]) == []
    assert percentages([1, 1, 1]) == [33.34, 33.33, 33.33]
    assert percentages([0, 0]) == [50, 50]
    assert percentages([5]) == [100]
    assert apportion([0.4, 0.4, -0.8], 0) == [1, 0, -1]
    generator = random.Random(2)
    for _ in range(200):
        weights = [generator.random() ** 4 for _ in range(generator.randrange(1, 90))]
        shares = percentages(weights)
        assert round(sum(shares), 6) == 100
        whole = sum(weights)
        assert all(abs(share - 100 * weight / whole) <= 0.01 for share, weight in zip(shares, weights, strict=True))


def test_json_round_trip(report: OpReport) -> None:
    assert OpReport.from_json(render(report, "json")) == report
    rows = json.loads(render(report, "json"))["phases"][0]["sections"][0]["rows"]
    linear = next(row for row in rows if row["opname"] == "linear")
    assert linear["median_ms"] == 3.0
    assert linear["gflop_per_s"] == pytest.approx(8e9 / 8e6)
    assert linear["flop_per_byte"] == pytest.approx(2000)
    unknown = next(row for row in rows if row["opname"] == "sdpa")
    assert [unknown[name] for name in ("flops", "bytes", "gflop_per_s", "percent_of_peak", "bound")] == [None] * 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rank opname", "expected JSON"),
        ("[]", "got a list"),
        ('{"traceEvents": []}', "traceEvents"),
        ('{"format": "thresher-op-report", "format_version": 99}', "expected format version 1, got 99"),
        ('{"format": "thresher-op-report", "format_version": 1}', "damaged"),
    ],
)
def test_other_files_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OpReport.from_json(text)


def test_csv_reads_back(report: OpReport) -> None:
    rows = list(csv.DictReader(io.StringIO(render(report, "csv"))))
    assert [row["opname"] for row in rows if row["section"] == "reshape"] == ["permute", "cat"]
    total = {name: float(row["total_ms"]) for row in rows for name in [row["section"]] if name in ("gap", "wall")}
    operators = sum(float(row["total_ms"]) for row in rows if row["opname"])
    assert operators + total["gap"] == pytest.approx(total["wall"])


def test_key_averages_are_those_of_torch_profiler(report: OpReport) -> None:
    averages = KeyAverages(report)
    assert [row.key for row in averages] == [row.opname for row in report.rows]
    linear = averages[0]
    assert (linear.key, linear.count, linear.section) == ("linear", 2, "forward")
    assert linear.cpu_time_total == linear.self_cpu_time_total == 8000.0 and linear.cpu_time == 4000.0
    assert averages.self_cpu_time_total == pytest.approx(sum(row.total_ns for row in report.rows) / 1e3)
    lines = averages.table(sort_by="count", row_limit=3).splitlines()
    assert lines[1].split()[0] == "Name" and len(lines) == 3 + 3 + 2
    assert {line.split()[-2] for line in lines[3:6]} == {"2"}
    assert averages.table(sort_by="key").splitlines()[3].split()[0].startswith("a_name")
    first = averages.table(sort_by="self_cpu_time_total", row_limit=1, max_name_column_width=4).splitlines()[3].split()
    assert first[0] == "l..." and first[2:] == ["8.000ms", "8.000ms", "4.000ms", "2", "1000.00"]
    assert len(averages.table(row_limit=-1).splitlines()) == len(averages) + 5
    with pytest.raises(ValueError, match=r"expected one of self_cpu_time_total.* got 'cuda_time'"):
        averages.table(sort_by="cuda_time")


@needs_engine
def test_a_profile_has_the_methods_of_torch_profiler(tmp_path: Path) -> None:
    code = f"""
import thresher, torch
model = thresher.compile(torch.nn.Linear(4, 4))
with torch.no_grad(), thresher.profiler.profile() as p:
    for _ in range(3):
        model(torch.ones(2, 4))
        p.step()
print(sum(row.count for row in p.key_averages() if row.key == "linear"))
print(p.key_averages().table(sort_by="cpu_time_total", row_limit=1))
for _ in range(2):
    p.export_chrome_trace({str(tmp_path / "run.json.gz")!r})
try:
    p.export_chrome_trace("run.html")
except ValueError as error:
    print(error)
"""
    done = run_with_torch(code)
    assert done.stdout.startswith("3\n"), done.stderr
    assert "Self CPU time total" in done.stdout and "expected a name that ends in .json or .json.gz" in done.stdout
    events = json.loads(gzip.decompress((tmp_path / "run.json.gz").read_bytes()))["traceEvents"]
    assert sum("Step#" in event["name"] for event in events) == 2


def test_rich_shows_every_row(report: OpReport) -> None:
    rich_console = pytest.importorskip("rich.console")
    out = io.StringIO()
    rich_console.Console(file=out, width=200).print(render(report, "rich"))
    for row in report.rows:
        assert row.opname in out.getvalue()
    assert "not modelled" in out.getvalue()


def test_unknown_format_lists_the_known(report: OpReport) -> None:
    with pytest.raises(ValueError, match="expected one of text, json, csv, rich, got 'xml'"):
        render(report, "xml")


def test_no_records_says_what_to_do() -> None:
    text = render(OpReport.from_summary(summarize([], phases=[], enabled=False)), "text")
    assert "THRESHER_PROFILE=ON" in text


def test_dropped_records_are_shown() -> None:
    assert "7 dropped" in render(OpReport.from_summary(summarize(RECORDS, dropped=7)), "text")


def test_operators_without_a_call_have_no_share_of_a_wall_clock() -> None:
    report = OpReport.from_summary(summarize([["forward", "linear", 0, 2_000_000]]))
    assert summary_lines(report.phases[0])[-2:] == [("gap", "-2.00", "-"), ("wall", "0.00", "-")]


@needs_engine
def test_engine_gives_the_golden_text(report: OpReport) -> None:
    from thresher import _engine, profiler

    profiler.reset()
    profiler.start()
    assert profiler.is_enabled()
    try:
        base = _engine.profile_now_ns()
        for section, name, start, end in RECORDS:
            _engine.profile_record(section, name, base + start, base + end)
    finally:
        profiler.stop()
    assert not profiler.is_enabled()
    expected = render(report, "text").splitlines()[:-1]  # the last line names the machine
    assert profiler.op_report().splitlines()[:-1] == expected
    assert profiler.op_report().splitlines()[:-1] == expected, "reading must not erase"
    found = profiler.collect()
    assert found.records == len(RECORDS)
    assert found.dropped == 0
    medians = {row.opname: row.median_ns for row in found.rows}
    assert medians["linear"] == pytest.approx(3_000_000, rel=0.01)
    profiler.reset()
    assert profiler.collect().records == 0


@needs_engine
def test_profile_block() -> None:
    from thresher import _engine, profiler

    profiler.reset()
    with profiler.profile() as block:
        assert profiler.is_enabled()
        _engine.profile_record("forward", "linear", 0, 10)
        assert block.report.records == 1
    assert not profiler.is_enabled()
    profiler.reset()
    assert block.report.records == 1, "the block's report stays"
    assert "linear" in block.op_report()
    _engine.profile_record("forward", "linear", 0, 10)
    assert profiler.collect().records == 0, "off means off"


@needs_engine
def test_profile_block_leaves_a_running_profiler_alone() -> None:
    from thresher import _engine, profiler

    profiler.reset()
    profiler.start()
    try:
        _engine.profile_record("forward", "linear", 0, 10)
        with profiler.profile() as block:
            _engine.profile_record("forward", "linear", 0, 10)
        assert profiler.is_enabled()
        assert block.report.records == 2
    finally:
        profiler.stop()
        profiler.reset()


@needs_engine
def test_wrong_records_are_refused() -> None:
    from thresher import _engine

    with pytest.raises(ValueError, match="expected an end after the start"):
        _engine.profile_record("forward", "x", 2, 1)
    with pytest.raises(ValueError, match='got "forwards"'):
        _engine.profile_record("forwards", "x", 1, 2)


@needs_engine
def test_report_is_written_at_exit(tmp_path: Path) -> None:
    code = "import thresher; from thresher import _engine as e; e.profile_record('forward', 'linear', 0, 1000)"
    target = tmp_path / "new folder" / "report-{pid}.json"
    done = run_python(code, THRESHER_PROFILE="ON", THRESHER_PROFILE_OUTPUT=str(target))
    assert done.returncode == 0, done.stderr
    (written,) = target.parent.iterdir()
    assert "{pid}" not in written.name
    assert OpReport.from_json(written.read_text()).rows[0].opname == "linear"


@needs_engine
def test_a_report_that_cannot_be_written_is_said_and_harmless(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    target = tmp_path / "file" / "report.json"
    done = run_python("import thresher", THRESHER_PROFILE="ON", THRESHER_PROFILE_OUTPUT=str(target))
    assert done.returncode == 0
    assert f"THRESHER_PROFILE_OUTPUT={target}: the operator report was not written" in done.stderr


@needs_engine
def test_profiler_is_off_by_default() -> None:
    code = "import thresher; print(thresher.profiler.is_enabled())"
    assert run_python(code).stdout.strip() == "False"
    assert run_python(code, THRESHER_PROFILE="ON").stdout.strip() == "True"


@needs_engine
@pytest.mark.parametrize("late", [False, True], ids=["set before the import", "set after the import"])
def test_what_the_program_says_goes_before_the_environment(late: bool) -> None:
    code = f"""
import os
{"import thresher" if late else "os"}
os.environ["THRESHER_PROFILE"] = "ON"
import thresher, torch
print(thresher.profiler.is_enabled())
thresher.profiler.stop()
model = thresher.compile(torch.nn.Linear(4, 4))
with torch.no_grad():
    model(torch.ones(1, 4))
print(thresher.profiler.is_enabled(), len(thresher.profiler.collect().rows))
"""
    done = run_with_torch(code)
    assert done.stdout.split() == [str(not late), "False", "0"], done.stderr


@needs_engine
def test_event_table_of_the_docs_is_that_of_the_code() -> None:
    import re

    from thresher import _engine

    events = [tuple(str(event[key]) for key in ("number", "name", "area", "doc")) for event in _engine.profile_events()]
    documented = re.findall(
        r"^\| (\d+) \| `([^`]+)` \| ([^|]+) \| (.+) \|$", (REPOSITORY / "docs/profiling.md").read_text(), re.M
    )
    assert documented == events


PEAKS = {
    "threads": [{"num_threads": 2, "fp32_gflops": 100.0, "dram_read_gbytes": 20.0}],
    "cache_bytes": {},
}


def place(name: str, count: int, flops: float, moved: float, precision: str = "fp32") -> dict[str, object]:
    """One place of the engine's sums, of which only its costs matter."""
    texts = {"kernel": "", "shapes": "", "dtypes": "f32", "module": "", "source": "", "precision": precision}
    return {
        "phase": "inference",
        "section": "forward",
        "name": name,
        "count": count,
        "flops": flops,
        "bytes": moved,
        **texts,
    }


@pytest.mark.parametrize(
    ("places", "percent", "bound"),
    [
        ([place("linear", 2, 2e8, 1e6)], 50.0, "compute"),  # 2 x 2 ms of the 8 ms that the row took
        ([place("linear", 2, 1e6, 4e7)], 50.0, "memory"),
        ([place("linear", 1, 2e8, 1e6), place("linear", 1, 1e6, 1.2e8)], 100.0, "memory"),  # 2 ms and 6 ms
        ([place("linear", 2, 1e6, 1e6)], 1.25, "overhead"),
        ([place("linear", 1, 2e8, 1e6), place("linear", 1, -1, -1)], None, None),
        ([place("linear", 2, 2e8, 1e6, precision="int8")], None, None),  # whose peak is not known
        ([], None, None),
    ],
)
def test_percent_of_peak(places: list[dict[str, object]], percent: float | None, bound: str | None) -> None:
    summary = {**summarize([["forward", "linear", 0, 8_000_000]]), "sites": places, "num_threads": 2}
    (row,) = OpReport.from_summary(summary, peaks=PEAKS).rows
    assert row.percent_of_peak == (percent if percent is None else pytest.approx(percent))
    assert row.bound == bound
    again = OpReport.from_json(render(OpReport.from_summary(summary, peaks=PEAKS), "json")).rows[0]
    assert (again.percent_of_peak, again.bound) == (row.percent_of_peak, row.bound)
    (unmeasured,) = OpReport.from_summary(summary).rows
    assert unmeasured.percent_of_peak is None


@pytest.mark.parametrize(("phase", "rate"), [("decode", 20.0), ("prefill", 100.0)])
def test_a_step_of_an_answer_reads_its_weights_from_memory(phase: str, rate: float) -> None:
    """Two products of 20 MB a step, of which one alone would fit into L3."""
    entry = {**PEAKS["threads"][0], "l3_read_gbytes": 100.0}
    peaks = {"threads": [entry], "cache_bytes": {"l3": 32 << 20, "l3_cores": 2}}
    summary = summarize([["call", "c", 0, 8_000_000], ["forward", "linear", 0, 8_000_000]])
    for part in ("phases", "rows"):
        summary[part] = [{**each, "phase": phase} for each in summary[part]]
    places = [{**place("linear", 1, 1e3, 20e6), "phase": phase} for _ in range(2)]
    report = OpReport.from_summary({**summary, "sites": places}, peaks=peaks)
    least_ms = 2 * 20 / rate
    assert report.phase(phase).percent_of_peak == pytest.approx(100 * least_ms / 8)
    assert report.rows[0].percent_of_peak == pytest.approx(100 * least_ms / 8)

"""Each finding appears where it should, with its figures, and not where it should not; each is documented."""

from __future__ import annotations

import inspect
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from trace_samples import HEAD, PEAKS, START, chrome_file, complete, record, records, write_encoder

from thresher.profiler.analysis import build_report, findings
from thresher.profiler.trace import NativeWriter, read_trace

READING = Path(__file__).parents[2] / "docs" / "profiling" / "reading.md"
MS = 1_000_000


def engine(
    path: Path,
    *rows: tuple[int, ...],
    plan: list[dict[str, Any]] | None = None,
    head: dict[str, Any] | None = None,
    dropped: int = 0,
    complete: bool = True,
) -> dict[str, Any]:
    with NativeWriter(path / "run.thrtrace", {**HEAD, **(head or {})}) as writer:
        writer.data({"peaks": PEAKS})
        writer.sites(
            plan or [{"id": 1, "name": "linear", "hardware": 34, "flops": 1e9, "bytes": 1e6, "precision": "fp32"}]
        )
        writer.records(records(*rows))
        writer.close(stop_ns=START + 10**10 if complete else None, dropped=dropped)
    return build_report(read_trace(path / "run.thrtrace"))


def rules(report: dict[str, Any]) -> set[str]:
    return {finding["rule"] for finding in report["overview"]["findings"]}


def finding(report: dict[str, Any], rule: str) -> dict[str, Any]:
    found = [entry for entry in report["overview"]["findings"] if entry["rule"] == rule]
    assert len(found) == 1, f"{rule}: {sorted(rules(report))}"
    return found[0]


def op(start_ms: float, length_ms: float, site: int = 1) -> tuple[int, ...]:
    start, length = round(start_ms * MS), round(length_ms * MS)
    return record(0, start, start + length, site=site, correlation=start + 1, event=9)


def test_a_good_run_has_no_findings(tmp_path: Path) -> None:
    plan = [{"id": 1, "name": "linear", "hardware": 34, "flops": 1e9, "bytes": 1e6, "precision": "int8"}]
    assert rules(engine(tmp_path, op(0, 8), op(8.1, 8), plan=plan)) == set()


def test_peaks_that_were_measured_on_a_busy_machine(tmp_path: Path) -> None:
    def plan(flops: float) -> list[dict[str, Any]]:
        return [{"id": 1, "name": "linear", "hardware": 34, "flops": flops, "bytes": 1e6, "precision": "fp32"}]

    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    usual = engine(tmp_path / "a", op(0, 8), op(8.1, 8), plan=plan(1e9))
    assert "low-peaks" not in rules(usual)
    (row,) = usual["operators"]
    beyond = 1e9 * 120 / row["percent_of_peak"]
    report = engine(tmp_path / "b", op(0, 8), op(8.1, 8), plan=plan(beyond))
    assert "linear reaches 120 % of the peak" in finding(report, "low-peaks")["detail"]


def test_every_rule_is_documented_and_the_gravest_come_first(tmp_path: Path) -> None:
    source = inspect.getsource(findings)
    names = set(re.findall(r'^\s+"([a-z]+(?:-[a-z]+)*)",$', source, re.MULTILINE)) - {"high", "medium", "info"}
    assert len(names) == len(findings.RULES)
    text = READING.read_text()
    assert [name for name in sorted(names) if f"(`{name}`)" not in text] == []
    report = build_report(read_trace(write_encoder(tmp_path / "a.thrtrace", 20)), max_events=10)
    order = [entry["severity"] for entry in report["overview"]["findings"]]
    assert order == sorted(order, key=["high", "medium", "info"].index) and len(order) > 1


def test_dropped(tmp_path: Path) -> None:
    found = finding(engine(tmp_path, op(0, 8), dropped=17), "dropped")
    assert found["severity"] == "high" and found["detail"].startswith("17 records")


def test_inconsistent(tmp_path: Path) -> None:
    found = finding(engine(tmp_path, op(0, 8), op(5, 8), record(3, 9, 3, event=2)), "inconsistent")
    assert found["detail"].startswith("1 overlapping, 1 bad times.")


def test_incomplete(tmp_path: Path) -> None:
    assert "2 events" in finding(engine(tmp_path, op(0, 8), complete=False), "incomplete")["detail"]


@pytest.mark.parametrize(("gap", "severity"), [(1, None), (4, "medium"), (20, "high")])
def test_gap(tmp_path: Path, gap: int, severity: str | None) -> None:
    calls = [record(2, at * MS, (at + 8) * MS, event=39) for at in (0, 8 + gap)]
    report = engine(tmp_path, op(0, 8), op(8 + gap, 8), *calls)
    if severity is None:
        assert "gap" not in rules(report)
        return
    found = finding(report, "gap")
    assert found["severity"] == severity
    assert f"During {gap}.00 ms of {16 + gap}.00 ms" in found["detail"]
    assert f"0.00 ms of it inside the steps, {gap}.00 ms between them" in found["detail"]


def test_calls(tmp_path: Path) -> None:
    report = engine(tmp_path, op(2, 4), record(2, 0, 10 * MS, event=39), record(1, MS, 8 * MS, event=5))
    assert "3.00 ms in Python around the engine and 3.00 ms in the engine" in finding(report, "calls")["detail"]
    assert "calls" not in rules(engine(tmp_path, op(0, 9.9), record(2, 0, 10 * MS, event=39)))


def test_compilation_is_no_calling(tmp_path: Path) -> None:
    compiled = [record(1, 10 * MS, 40 * MS, event=43), record(1, 20 * MS, 30 * MS, event=44)]
    found = rules(engine(tmp_path, op(0, 9.9), record(2, 0, 10 * MS, event=39), *compiled))
    assert "calls" not in found and "compile" in found
    report = engine(tmp_path, op(2, 4), record(2, 0, 10 * MS, event=39), record(1, MS, 8 * MS, event=5), *compiled)
    detail = finding(report, "calls")["detail"]
    assert "3.00 ms in the engine around its kernels, 60 % of the wall clock but for compilation" in detail


def test_fallback(tmp_path: Path) -> None:
    def report(host: float) -> dict[str, Any]:
        events = [
            complete("kernel", "linear fp32", 0, 900, pid=0, tid=0, shapes="1x2", correlation=1),
            complete("privateuse1_runtime", "thresherNodeCompute", 0, 900, correlation=1),
            complete("cpu_op", "aten::convolution", 1000, host),
        ]
        return build_report(read_trace(chrome_file(tmp_path / "a.json", events)))

    found = finding(report(300), "fallback")
    assert (found["severity"], found["operator"]) == ("high", "aten::convolution")
    assert "0.30 ms of 1.20 ms (25 %)" in found["detail"]
    assert finding(report(100), "fallback")["severity"] == "medium"
    assert "fallback" not in rules(report(10))
    # Where nothing runs in the engine, nothing is said of a fallback.
    alone = chrome_file(tmp_path / "b.json", [complete("cpu_op", "aten::convolution", 0, 5)])
    assert "fallback" not in rules(build_report(read_trace(alone)))


def test_compile(tmp_path: Path) -> None:
    found = finding(
        engine(tmp_path, op(5, 8), record(3, 0, 4 * MS, event=0), record(3, 4 * MS, 5 * MS, event=1)), "compile"
    )
    assert found["severity"] == "high"
    assert "thresherCompileGraph 1 time, 4.00 ms" in found["detail"] and "38.5 % of the wall clock" in found["detail"]
    many = [record(3, at * MS, at * MS + 1000, event=0) for at in range(5)]
    assert "5 graphs were compiled" in finding(engine(tmp_path, op(5, 8), *many), "compile")["advice"]


def test_warm_up(tmp_path: Path) -> None:
    def steps(first: int) -> dict[str, Any]:
        edges = [0, first, first + 5, first + 10, first + 15, first + 20]
        rows = [record(6, a * MS, b * MS, value=n) for n, (a, b) in enumerate(pairwise(edges))]
        return engine(tmp_path, op(0, first + 20), *rows)

    assert "Step#0 took 40.00 ms, the others 5.00 ms" in finding(steps(40), "warm-up")["detail"]
    assert "warm-up" not in rules(steps(6))


def test_disturbed(tmp_path: Path) -> None:
    def runs(lengths: list[float]) -> dict[str, Any]:
        starts = [sum(lengths[:n]) for n in range(len(lengths))]
        return engine(tmp_path, *(op(start, length) for start, length in zip(starts, lengths, strict=True)))

    found = finding(runs([8.0] * 20 + [80.0]), "disturbed")
    assert "took 240.00 ms; had each run taken the median of its kind, it would be 168.00 ms" in found["detail"]
    assert "median 8000.0 us" in found["detail"] and "longest 80.00 ms" in found["detail"]
    assert "disturbed" not in rules(runs([8.0] * 20 + [9.0]))


def test_copies(tmp_path: Path) -> None:
    plan = [
        {"id": 1, "name": "linear", "hardware": 34, "flops": 1e9, "bytes": 1e6},
        {
            "id": 2,
            "name": "contiguous",
            "hardware": 35,
            "section": "reshape",
            "source": "net.py:4 in forward",
            "flops": 0,
            "bytes": 1e8,
        },
    ]
    found = finding(engine(tmp_path, op(0, 8, 1), op(8, 2, 2), plan=plan), "copies")
    assert found["operator"] == "contiguous"
    assert "2.00 ms of 10.00 ms (20 %)" in found["detail"] and "contiguous at net.py:4 in forward" in found["detail"]
    assert "copies" not in rules(engine(tmp_path, op(0, 8, 1), op(8, 0.5, 2), plan=plan))


def test_memory_bound(tmp_path: Path) -> None:
    plan = [
        {
            "id": 1,
            "name": "linear",
            "hardware": 34,
            "flops": 2e6,
            "bytes": 48e6,
            "shapes": "1x1000, 1000x1000",
            "precision": "fp32",
        }
    ]
    found = finding(engine(tmp_path, op(0, 1.25), plan=plan), "memory-bound")
    assert (found["severity"], found["operator"]) == ("high", "linear")
    assert "linear (1x1000, 1000x1000), 1 runs of 1250.0 us, 80 % of the peak" in found["detail"]
    # Other operators wait for memory by nature.
    plan[0]["name"] = "layer_norm"
    assert "memory-bound" not in rules(engine(tmp_path, op(0, 1.25), plan=plan))


def test_overhead_bound(tmp_path: Path) -> None:
    plan = [{"id": 1, "name": "add", "hardware": 34, "flops": 100.0, "bytes": 100.0}]
    assert finding(engine(tmp_path, op(0, 1), plan=plan), "overhead-bound")["operator"] == "add"


def test_precision(tmp_path: Path) -> None:
    plan = [{"id": 1, "name": "linear", "hardware": 34, "flops": 1e9, "bytes": 1e6, "precision": "fp32"}]
    report = engine(tmp_path, op(0, 6), plan=plan)
    assert "int8 is 1.6 times as high" in finding(report, "precision")["detail"]
    plan[0]["precision"] = "int8"
    assert "precision" not in rules(engine(tmp_path, op(0, 6), plan=plan))


def test_one_thread(tmp_path: Path) -> None:
    report = engine(tmp_path, op(0, 12), head={"num_threads": 1})
    assert "1 thread" in finding(report, "one-thread")["detail"]


def test_sampled_and_no_peaks(tmp_path: Path) -> None:
    trace = read_trace(write_encoder(tmp_path / "a.thrtrace", 20))
    trace.meta.pop("peaks")
    report = build_report(trace, max_events=30)
    assert finding(report, "sampled")["detail"].startswith("30 of 400")
    assert "thresher peaks" in finding(report, "no-peaks")["advice"]

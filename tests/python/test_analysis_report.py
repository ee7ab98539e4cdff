"""The report: its schema, its tables, the cost model, the time line, modules."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from json_schema import violations
from trace_samples import (
    HEAD,
    PEAKS,
    START,
    STEPS,
    chrome_file,
    complete,
    encoder_records,
    record,
    records,
    sites,
    write_encoder,
)

from thresher import _engine
from thresher.profiler.analysis import build_report
from thresher.profiler.analysis.costs import CostModel, bound_of
from thresher.profiler.analysis.peaks import NO_PEAKS, normalise
from thresher.profiler.trace import NativeWriter, Site, read_trace

SCHEMA = json.loads((resources.files("thresher.profiler.analysis") / "schema.json").read_text())
DOCS = Path(__file__).parents[2] / "docs" / "profiling"


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return build_report(read_trace(write_encoder(tmp_path_factory.mktemp("encoder") / "run.thrtrace", 50)))


def mixed(path: Path) -> dict[str, Any]:
    """Half in the engine, half in PyTorch."""
    events = []
    for call in range(4):
        at = call * 1000.0
        number = call * 10
        events += [
            complete("user_annotation", f"ProfilerStep#{call}", at, 900),
            complete("python_function", "train.py(7): run", at + 1, 898),
            complete("python_function", "nn.Module: Net_0", at + 2, 890),
            complete("python_function", "/usr/lib/torch/nn/modules/conv.py(40): forward", at + 3, 400),
            complete("python_function", "nn.Module: Conv2d_0", at + 4, 395),
            complete(
                "cpu_op",
                "aten::conv2d",
                at + 10,
                300,
                **{"External id": number + 1, "Input Dims": [[1, 3, 8, 8]], "Input type": ["float"]},
            ),
            complete("cpu_op", "aten::mkldnn_convolution", at + 20, 250, **{"External id": number + 2}),
            complete("cpu_op", "CompiledFunction", at + 450, 300, **{"External id": number + 3}),
            complete("privateuse1_runtime", "thresherCall", at + 460, 280, **{"External id": number + 3}),
            complete(
                "privateuse1_runtime",
                "thresherNodeCompute",
                at + 470,
                200,
                **{"External id": number + 3, "correlation": call + 1},
            ),
            complete(
                "kernel",
                "linear fp32 avx2",
                at + 470,
                200,
                pid=0,
                tid=0,
                **{
                    "External id": number + 3,
                    "correlation": call + 1,
                    "shapes": "1x64, 64x64",
                    "dtypes": "f32, f32",
                    "module": "net.fc",
                    "source": "net.py:9 in forward",
                    "flops": 8192,
                    "bytes": 16896,
                },
            ),
        ]
    return build_report(read_trace(chrome_file(path, events)))


def test_reports_follow_the_schema(encoder: dict[str, Any], tmp_path: Path) -> None:
    for report in (
        encoder,
        mixed(tmp_path / "mixed.json"),
        build_report(read_trace(chrome_file(tmp_path / "empty.json", []))),
    ):
        assert violations(report, SCHEMA) == []
        assert json.loads(json.dumps(report, allow_nan=False)) == report


def test_the_schema_refuses_what_is_wrong(encoder: dict[str, Any]) -> None:
    wrong = json.loads(json.dumps(encoder))
    wrong["extra"] = 1
    wrong["operators"][0]["count"] = 0
    wrong["timeline"]["events"]["row"][3] = 1.5
    wrong["modules"]["children"][0]["kind"] = "kernel"
    del wrong["health"]["dropped"]
    found = violations(wrong, SCHEMA)
    assert len(found) == 5, found


def test_the_documentation_names_every_key() -> None:
    text = (DOCS / "report_data.md").read_text()

    def keys(schema: dict[str, Any]) -> set[str]:
        found = set(schema.get("properties", {}))
        items = [schema["items"]] if "items" in schema else []
        for inner in [*schema.get("properties", {}).values(), *schema.get("$defs", {}).values(), *items]:
            found |= keys(inner)
        return found

    missing = sorted(key for key in keys(SCHEMA) if f"`{key}`" not in text)
    assert missing == []


def test_sections_and_shares(encoder: dict[str, Any]) -> None:
    for table in ("operators", "operators_by_shape", "kernels"):
        rows = encoder[table]
        assert sum(row["count"] for row in rows) == 50 * STEPS
        for section in ("forward", "reshape"):
            assert sum(round(row["share"] * 100) for row in rows if row["section"] == section) == 10_000
    assert [row["name"] for row in encoder["kernels"] if row["section"] == "forward"] != []
    assert {row["name"] for row in encoder["operators"]} == {"linear", "layer_norm", "reshape"}
    assert {row["name"] for row in encoder["kernels"]} == {"linear fp32 avx2", "layer_norm fp32 avx2", "reshape"}
    assert {row["name"] for row in encoder["runtime"]} == {"thresherCall", "thresherGraphExecution"}


def test_rows_are_the_sums_of_the_records(encoder: dict[str, Any]) -> None:
    rows = encoder_records(50)
    plan = {site["id"]: site for site in sites()}
    for row in encoder["operators_by_shape"]:
        chosen = [
            r
            for r in rows
            if r["kind"] == 0 and (plan[r["site"]]["name"], plan[r["site"]]["shapes"]) == (row["name"], row["shapes"])
        ]
        duration = np.array([r["end_ns"] - r["start_ns"] for r in chosen])
        assert (row["count"], row["total_ns"], row["min_ns"], row["max_ns"]) == (
            len(chosen),
            duration.sum(),
            duration.min(),
            duration.max(),
        )
        assert row["median_ns"] == int(np.median(duration))
        assert row["mean_ns"] == pytest.approx(duration.mean())
        flops = sum(plan[r["site"]]["flops"] for r in chosen)
        assert row["flops"] == flops
        assert row["gflops"] == pytest.approx(flops / duration.sum())


def test_self_time_of_an_execution_is_what_its_operators_leave(encoder: dict[str, Any]) -> None:
    run = next(row for row in encoder["runtime"] if row["name"] == "thresherGraphExecution")
    operators = sum(row["total_ns"] for row in encoder["operators"])
    assert run["self_ns"] == run["total_ns"] - operators
    by_category = encoder["overview"]["total"]["by_category"]
    assert by_category["runtime"] == run["self_ns"]
    assert by_category["kernel"] + by_category["copy"] == operators


def test_modules_are_a_tree_that_adds_up(encoder: dict[str, Any]) -> None:
    def check(node: dict[str, Any]) -> None:
        if node["kind"] == "operator":
            assert node["children"] == [] and node["self_ns"] == node["total_ns"]
            return
        assert node["total_ns"] == sum(child["total_ns"] for child in node["children"])
        assert node["self_ns"] == sum(child["total_ns"] for child in node["children"] if child["kind"] == "operator")
        for child in node["children"]:
            check(child)

    root = encoder["modules"]
    check(root)
    assert root["name"] == "model"
    assert root["total_ns"] == sum(row["total_ns"] for row in encoder["operators"])
    layer = root["children"][0]["children"][0]
    assert (root["children"][0]["name"], layer["name"]) == ("encoder", "layer")
    operator = layer["children"][0]["children"][0]["children"][0]
    assert operator["kind"] == "operator" and operator["source"].startswith("modeling.py:") and operator["kernel"]
    flat = {row["name"]: row for row in encoder["modules_flat"]}
    assert sum(row["self_ns"] for row in flat.values()) == root["total_ns"]
    assert flat["encoder.layer.0.output"]["count"] == 100


def test_a_mixed_trace(tmp_path: Path) -> None:
    report = mixed(tmp_path / "mixed.json")
    rows = {row["name"]: row for row in report["operators"]}
    assert (rows["aten::conv2d"]["total_ns"], rows["aten::conv2d"]["self_ns"]) == (4 * 300_000, 4 * 50_000)
    assert (rows["linear"]["total_ns"], rows["linear"]["device"]) == (4 * 200_000, "device")
    assert rows["CompiledFunction"]["self_ns"] == 4 * 20_000
    total = report["overview"]["total"]["by_category"]
    assert {name: ns // 4000 for name, ns in total.items() if name != "gap"} == {
        "kernel": 200,
        "copy": 0,
        "communication": 0,
        "runtime": 0,
        "host": 400,
        "other": 0,
    }
    flat = {row["name"]: row for row in report["modules_flat"]}
    assert flat["Net_0.Conv2d_0"]["self_ns"] == 4 * 300_000
    assert flat["Net_0.Conv2d_0"]["source"] == "train.py:7 in run"
    assert flat["net.fc"]["source"] == "net.py:9 in forward"
    fallback = next(finding for finding in report["overview"]["findings"] if finding["rule"] == "fallback")
    assert "1.20 ms of 2.00 ms (60 %)" in fallback["detail"] and "CompiledFunction" not in fallback["detail"]


def test_what_the_engine_records_on_the_host(tmp_path: Path) -> None:
    plan = [
        {"id": 1, "name": "outputs", "section": "alloc", "hardware": 34, "flops": -1, "bytes": -1},
        {"id": 2, "name": "PyTorch operators", "section": "forward", "hardware": 34, "flops": -1, "bytes": -1},
        {"id": 3, "name": "linear", "section": "forward", "hardware": 34},
    ]
    with NativeWriter(tmp_path / "a.thrtrace", HEAD) as writer:
        writer.sites(plan)
        writer.records(
            records(
                record(2, 0, 100, event=39, section=3),
                record(3, 1, 5, event=2, section=2, site=1),
                record(0, 10, 60, event=9, site=3, correlation=1),
                record(3, 70, 90, event=42, site=2),
                record(3, 92, 93, event=8, section=3),
            )
        )
        writer.close(stop_ns=START + 100)
    report = build_report(read_trace(tmp_path / "a.thrtrace"))
    rows = {row["name"]: (row["section"], row["self_ns"], row["device"]) for row in report["operators"]}
    assert rows == {
        "outputs": ("alloc", 4, "host"),
        "linear": ("forward", 50, "device"),
        "PyTorch operators": ("host", 20, "host"),
    }
    assert {row["name"] for row in report["runtime"]} == {"thresherCall", "thresherLaunchKernels"}
    found = report["overview"]["total"]["by_category"]
    assert (found["kernel"], found["runtime"], found["host"], found["other"]) == (50, 5, 20, 25)
    fallback = next(finding for finding in report["overview"]["findings"] if finding["rule"] == "fallback")
    assert fallback["operator"] == "PyTorch operators" and "(29 %)" in fallback["detail"]
    assert violations(report, SCHEMA) == []


def test_the_time_line(encoder: dict[str, Any]) -> None:
    line = encoder["timeline"]
    columns = line["events"]
    assert {len(column) for column in columns.values()} == {line["shown"]} == {50 * (2 * STEPS + 2)}
    assert columns["start_ns"] == sorted(columns["start_ns"]) and columns["start_ns"][0] == 0
    assert [lane["kind"] for lane in line["lanes"]] == ["host", "device"]
    assert [lane["rows"] for lane in line["lanes"]] == [3, 1]
    for name in ("lane", "name", "category"):
        target = {"lane": "lanes", "name": "names", "category": "categories"}[name]
        assert min(columns[name]) >= 0 and max(columns[name]) < len(line[target])
    assert min(columns["site"]) >= -1 and max(columns["site"]) < len(line["sites"])
    assert len(line["flows"]["from"]) == 50 * STEPS
    for source, target in zip(line["flows"]["from"], line["flows"]["to"], strict=True):
        assert columns["id"][source] == columns["id"][target] != 0
        assert line["lanes"][columns["lane"][source]]["kind"] == "host"
        assert line["lanes"][columns["lane"][target]]["kind"] == "device"
        assert columns["start_ns"][source] <= columns["start_ns"][target]


def test_a_time_line_with_too_many_events_says_so(tmp_path: Path) -> None:
    trace = read_trace(write_encoder(tmp_path / "a.thrtrace", 50))
    report = build_report(trace, max_events=100)
    source, line = report["source"], report["timeline"]
    assert line["shown"] == len(line["events"]["lane"]) == 100 and line["total"] == 1000
    assert source["sampled"] and source["shown"] == 100 and "100 of 1000 events" in source["note"]
    assert report["operators"] == build_report(trace)["operators"]
    assert any(finding["rule"] == "sampled" for finding in report["overview"]["findings"])
    assert violations(report, SCHEMA) == []


def test_memory_of_a_native_trace(tmp_path: Path) -> None:
    allocated = np.cumsum([100, 50, -100, 200, -250]).tolist()
    rows = [
        record(4, at * 10, at * 10, event=37 if amount > 0 else 38, value=amount, execution=4096 + at, correlation=sum_)
        for at, (amount, sum_) in enumerate(zip([100, 50, -100, 200, -250], allocated, strict=True))
    ]
    with NativeWriter(tmp_path / "a.thrtrace", HEAD) as writer:
        writer.records(records(*rows))
        writer.close(stop_ns=START + 1000)
    report = build_report(read_trace(tmp_path / "a.thrtrace"))
    found = report["memory"]
    assert found["curve"] == {"time_ns": [0, 10, 20, 30, 40], "allocated": allocated, "reserved": []}
    assert (found["peak_bytes"], found["peak_time_ns"], found["total_events"]) == (250, 30, 5)
    assert [(event["kind"], event["bytes"]) for event in found["events"]][2:4] == [
        ("Release", 100),
        ("Allocation", 200),
    ]
    assert violations(report, SCHEMA) == []


def test_a_long_memory_curve_keeps_its_peak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from thresher.profiler.trace import store

    monkeypatch.setattr(store, "_MAX_MEMORY_EVENTS", 500)
    random = np.random.default_rng(0)
    rows = np.zeros(20_000, encoder_records(1).dtype)
    rows["start_ns"] = rows["end_ns"] = START + np.arange(20_000) * 10
    rows["kind"], rows["event"], rows["value"] = 4, 37, 8
    rows["correlation"] = 1000 + random.integers(0, 100, 20_000)
    rows["correlation"][12_345] = 50_000
    with NativeWriter(tmp_path / "a.thrtrace", HEAD) as writer:
        for begin in range(0, 20_000, 700):
            writer.records(rows[begin : begin + 700])
    found = build_report(read_trace(tmp_path / "a.thrtrace", limit=1000))["memory"]
    assert (found["peak_bytes"], found["peak_time_ns"], found["total_events"]) == (50_000, 123_450, 20_000)
    assert len(found["curve"]["time_ns"]) <= 4000


def test_peaks_in_every_form() -> None:
    normal, reason = normalise(PEAKS)
    assert reason is None and normal is not None
    assert normal["threads"][1]["fp32_gflops"] == 200.0 and normal["threads"][1]["bf16_gflops"] is None
    assert normal["cache_bytes"]["l3"] == 32 << 20
    assert normalise(normal)[0] == normal
    assert normalise(None) == (None, NO_PEAKS)
    for bad in ({}, {"by_threads": []}, {"threads": [{"num_threads": "two"}]}, "text", 5, {"by_threads": {}}):
        found, reason = normalise(bad)
        assert found is None and reason
    assert normalise({"reason": "not measured: busy"}) == (None, "not measured: busy")


def test_peaks_of_this_machine_are_understood() -> None:
    from thresher.machine.roofs import Peaks, Rate, ThreadPeaks

    rate = Rate(2.0, 1.0, 3.0)
    entry = ThreadPeaks(2, 5, rate, None, rate, rate, rate, rate, rate, rate, rate, 1, 2, 3, 4)
    peaks = Peaks("cpu", "x86_64", "avx2", "AVX2", "quads", 2, 32, 64, 128, 2, "1", "now", 1.0, False, (entry,))
    for form in (peaks, peaks.to_dict()):
        normal, reason = normalise(form)
        assert reason is None and normal is not None
        assert normal["threads"] == [
            {
                "num_threads": 2,
                "fp32_gflops": 2.0,
                "bf16_gflops": None,
                "int8_gops": 2.0,
                "dram_read_gbytes": 2.0,
                "l1_read_gbytes": 2.0,
                "l2_read_gbytes": 2.0,
                "l3_read_gbytes": 2.0,
            }
        ]


def test_tiles_of_fp16_have_a_roof_of_their_own() -> None:
    without, _ = normalise(PEAKS)
    assert CostModel(without, None, 2).peak("fp16") == CostModel(without, None, 2).peak("fp32")
    entries = [{**entry, "fp16_gflops": {"median": 900.0}} for entry in PEAKS["by_threads"]]
    with_tiles, _ = normalise({**PEAKS, "by_threads": entries})
    assert CostModel(with_tiles, None, 2).peak("fp16") == 900.0
    assert normalise(with_tiles)[0] == with_tiles


def model_of(num_threads: int | None = 2) -> CostModel:
    normal, reason = normalise(PEAKS)
    return CostModel(normal, reason, num_threads)


@pytest.mark.parametrize(
    ("amount", "rate"),
    [
        (1000, 340.0),
        (64 << 10, 340.0),
        ((64 << 10) + 1, 190.0),
        (1 << 20, 190.0),
        (2 << 20, 110.0),
        (32 << 20, 110.0),
        (33 << 20, 48.0),
    ],
)
def test_the_memory_level_is_the_smallest_that_holds_the_bytes(amount: int, rate: float) -> None:
    assert model_of().bandwidth(amount) == rate


def test_cost_of_one_run() -> None:
    cost = model_of().of(Site(1, "linear", flops=2e6, bytes=340e3, precision="fp32"))
    assert (cost.compute_ns, cost.memory_ns, cost.roof_ns) == (2e6 / 200, 340e3 / 190, 1e4)
    assert model_of().of(Site(1, "x", flops=2e6, bytes=1.0, precision="int8")).compute_ns == 2e6 / 320
    # Without bf16 instructions it computes in fp32.
    assert model_of().of(Site(1, "x", flops=2e6, bytes=1.0, precision="bf16")).compute_ns == 2e6 / 200
    # The precision of the first input counts where none is named.
    assert model_of().of(Site(1, "x", flops=2e6, bytes=1.0, dtypes="i8, f32")).compute_ns == 2e6 / 320
    assert model_of(1).of(Site(1, "x", flops=2e6, bytes=1.0)).compute_ns == 2e6 / 100


def test_weights_in_blocks_are_multiplied_as_integers() -> None:
    blocks = [row["name"] for row in _engine.encodings() if row["numbers"] > 1]
    assert "q4_1" in blocks and "q6_k" in blocks
    assert {model_of().peak(name) for name in blocks} == {320}
    assert model_of().peak("int8_weight") == model_of().peak("int4_weight") == 200


@pytest.mark.parametrize(
    ("site", "reason"),
    [
        (None, "not known"),
        (Site(1, "x"), "not known"),
        (Site(1, "x", flops=1.0), "not known"),
        (Site(1, "x", flops=0.0, bytes=0.0), "computes and moves nothing"),
        (Site(1, "x", flops=1.0, bytes=1.0, precision="int3"), "no peak was measured for int3"),
    ],
)
def test_what_is_not_modelled_says_why(site: Site | None, reason: str) -> None:
    cost = model_of().of(site)
    assert cost.roof_ns is None and cost.reason is not None and reason in cost.reason


def test_what_bounds_work() -> None:
    assert bound_of(50, 10, 100) == "compute"
    assert bound_of(10, 50, 100) == "memory"
    assert bound_of(19, 10, 100) == "overhead"
    assert bound_of(10, 20, 100) == "memory"


def test_percentages_of_the_peak_in_the_report(tmp_path: Path) -> None:
    plan = [
        {"id": 1, "name": "large", "hardware": 34, "flops": 200e3, "bytes": 1e3, "precision": "fp32"},
        {"id": 2, "name": "streams", "hardware": 34, "flops": 100.0, "bytes": 48e6, "precision": "fp32"},
        {"id": 3, "name": "small", "hardware": 34, "flops": 100.0, "bytes": 100.0, "precision": "fp32"},
        {"id": 4, "name": "unknown", "hardware": 34},
        {"id": 5, "name": "large", "hardware": 34},
    ]
    with NativeWriter(tmp_path / "a.thrtrace", HEAD) as writer:
        writer.data({"peaks": PEAKS})
        writer.sites(plan)
        lengths = {1: 2_000, 2: 2_000_000, 3: 1_000, 4: 10, 5: 10}
        at, rows = 0, []
        for site, length in lengths.items():
            rows.append(record(0, at, at + length, site=site, correlation=site, event=9))
            at += length
        writer.records(records(*rows[:4]))
        writer.close(stop_ns=START + at)
    report = build_report(read_trace(tmp_path / "a.thrtrace"))
    found = {row["name"]: (row["percent_of_peak"], row["bound"], row["not_modelled"]) for row in report["operators"]}
    assert found["large"] == (pytest.approx(50.0), "compute", None)
    assert found["streams"] == (pytest.approx(50.0), "memory", None)
    assert found["small"][1] == "overhead"
    assert found["unknown"] == (None, None, "its operations and bytes are not known")
    roofline = report["roofline"]
    assert {roof["name"] for roof in roofline["roofs"]} == {"fp32", "int8", "L1", "L2", "L3", "DRAM"}
    assert {point["name"] for point in roofline["points"]} == {"large", "streams", "small"}
    assert roofline["num_threads"] == 2 and roofline["reason"] is None


def test_without_peaks_nothing_is_invented(tmp_path: Path) -> None:
    trace = read_trace(write_encoder(tmp_path / "a.thrtrace", 3))
    trace.meta.pop("peaks")
    report = build_report(trace)
    assert report["machine"]["peaks"] is None and report["machine"]["peaks_reason"] == NO_PEAKS
    assert all(row["percent_of_peak"] is None and row["bound"] is None for row in report["operators"])
    assert {row["not_modelled"] for row in report["operators"]} == {NO_PEAKS}
    assert report["roofline"]["roofs"] == [] and report["roofline"]["reason"] == NO_PEAKS
    # Speeds need no peaks.
    assert all(row["gflops"] is not None for row in report["operators"])
    assert build_report(trace, peaks=PEAKS)["machine"]["peaks"] is not None


def test_energy(tmp_path: Path) -> None:
    trace = read_trace(write_encoder(tmp_path / "a.thrtrace", 3))
    assert build_report(trace)["energy"]["joules"] is None and build_report(trace)["energy"]["reason"]
    trace.meta["energy"] = {"joules": None, "reason": "no permission", "domains": []}
    assert build_report(trace)["energy"] == {"joules": None, "reason": "no permission", "domains": []}
    trace.meta["energy"] = {"joules": 2.5, "domains": [{"name": "package-0", "joules": 2.5}]}
    assert build_report(trace)["energy"] == {
        "joules": 2.5,
        "reason": None,
        "domains": [{"name": "package-0", "joules": 2.5}],
    }


def test_title(tmp_path: Path) -> None:
    trace = read_trace(write_encoder(tmp_path / "a.thrtrace", 3))
    assert build_report(trace)["title"] == "encoder.py"
    assert build_report(trace, title="mine")["title"] == "mine"


def test_neither_pytorch_nor_the_engine_is_needed(tmp_path: Path) -> None:
    file = write_encoder(tmp_path / "a.thrtrace", 3)
    script = (
        "import sys\nfrom thresher.profiler.trace import read_trace\nfrom thresher.profiler.analysis import "
        "build_report\n"
        f"build_report(read_trace({str(file)!r}))\n"
        "print(sorted(name for name in sys.modules if name.split('.')[0] == 'torch' or name == 'thresher._engine'))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"


def test_a_typical_run_is_quick(tmp_path: Path) -> None:
    # 200 calls of a plan of 9 steps: about as many events as 45 steps run 40 times.
    trace = read_trace(write_encoder(tmp_path / "a.thrtrace", 500))
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        build_report(trace)
        times.append(time.perf_counter() - begin)
    assert min(times) < 1.0
    assert math.isfinite(min(times))

"""Reading Chrome JSON: PyTorch's own traces, Thresher's, damage of every sort, files larger than memory."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trace_samples import START, chrome_file, complete

from thresher.profiler.analysis import build_report
from thresher.profiler.trace import Category, Trace, TraceError, read_trace


def events_of(trace: Trace, *columns: str) -> list[tuple[Any, ...]]:
    return [(trace.names[event["name"]], *(int(event[column]) for column in columns)) for event in trace.events]


def test_categories_follow_the_conventions_of_torch(tmp_path: Path) -> None:
    wanted = [
        ("cpu_op", "aten::linear", Category.HOST),
        ("cpu_op", "c10d::allreduce_", Category.COMMUNICATION),
        ("kernel", "linear fp32 avx2", Category.KERNEL),
        ("kernel", "ncclDevKernel_AllReduce", Category.COMMUNICATION),
        ("gpu_memcpy", "Memcpy HtoD", Category.COPY),
        ("gpu_memset", "Memset", Category.COPY),
        ("privateuse1_runtime", "thresherNodeCompute", Category.RUNTIME),
        ("privateuse1_runtime", "thresherCall", Category.CALL),
        ("privateuse1_runtime", "thresherSubgraphExecution", Category.CALL),
        ("privateuse1_runtime", "thresherGraphExecution", Category.EXECUTION),
        ("privateuse1_runtime", "thresherBarrier2", Category.COMMUNICATION),
        ("cuda_runtime", "cudaLaunchKernel", Category.RUNTIME),
        ("user_annotation", "mine", Category.ANNOTATION),
        ("user_annotation", "ProfilerStep#12", Category.STEP),
        ("gpu_user_annotation", "ProfilerStep#12", Category.ANNOTATION),
        ("python_function", "model.py(3): forward", Category.PYTHON),
        ("something_new", "x", Category.OTHER),
        (None, "y", Category.OTHER),
    ]
    file = chrome_file(
        tmp_path / "a.json", [complete(cat, name, index, 0.5) for index, (cat, name, _) in enumerate(wanted)]
    )  # type: ignore[arg-type]
    trace = read_trace(file)
    assert [(name, Category(number)) for name, number in events_of(trace, "category")] == [(n, c) for _, n, c in wanted]
    devices = [trace.lanes[event["lane"]].kind == "device" for event in trace.events]
    assert devices == [cat in ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation") for cat, _, _ in wanted]


def test_times_are_exact_to_the_nanosecond(tmp_path: Path) -> None:
    # The text has more digits than a float: 4434954367227.596 is not one.
    times = ["4434954367227.596", "4434954367227.597", "0.001", "7", "12.5", "3.9999", "1e3", "-2.250"]
    lines = ",".join(f'{{"ph":"X","cat":"cpu_op","name":"{t}","pid":1,"tid":1,"ts":{t},"dur":0.003}}' for t in times)
    (tmp_path / "a.json").write_text(f'{{"traceEvents":[{lines}],"baseTimeNanoseconds":1790857026000000000}}')
    found = {
        name: start - 1790857026000000000 for name, start in events_of(read_trace(tmp_path / "a.json"), "start_ns")
    }
    assert [found[t] for t in times] == [4434954367227596, 4434954367227597, 1, 7000, 12500, 4000, 1000000, -2250]


def test_what_a_kernel_says(tmp_path: Path) -> None:
    arguments = {
        "External id": 9,
        "correlation": 21,
        "device": 0,
        "stream": 3,
        "shapes": "1x128x384, 384x1536",
        "dtypes": "f32, f32",
        "module": "encoder.layer.0.dense",
        "source": "model.py:12 in forward",
        "flops": 150994944,
        "bytes": 2.9e6,
        "phase": "decode",
    }
    trace = read_trace(
        chrome_file(tmp_path / "a.json", [complete("kernel", "linear fp32 avx2", 1, 2, pid=0, tid=3, **arguments)])
    )
    event = trace.events[0]
    site = trace.sites[event["site"]]
    assert (event["external"], event["correlation"], event["phase"], event["event"]) == (9, 21, 2, 34)
    assert (site.name, site.kernel, site.flops, site.bytes) == ("linear", "linear fp32 avx2", 150994944.0, 2.9e6)
    assert (site.shapes, site.module, site.source) == (arguments["shapes"], arguments["module"], arguments["source"])


@pytest.mark.parametrize(
    ("name", "said", "operator"),
    [
        ("linear fp32 avx2", {}, "linear"),
        ("Memcpy DtoD (cast bool avx2)", {}, "cast"),
        ("Memset (fill)", {}, "fill"),
        ("Memcpy HtoD", {}, "Memcpy"),
        ("odd name", {"operator": "sdpa"}, "sdpa"),
    ],
)
def test_a_kernel_names_its_operator(tmp_path: Path, name: str, said: dict[str, str], operator: str) -> None:
    event = complete("kernel", name, 1, 2, shapes="1x2", correlation=1, **said)
    trace = read_trace(chrome_file(tmp_path / "a.json", [event]))
    assert trace.sites[trace.events[0]["site"]].name == operator


def test_memory_for_outputs_is_in_its_section(tmp_path: Path) -> None:
    event = complete("privateuse1_runtime", "thresherMalloc", 1, 2, operator="outputs", section="alloc")
    rows = build_report(read_trace(chrome_file(tmp_path / "a.json", [event])))["operators"]
    assert [(row["name"], row["section"], row["total_ns"]) for row in rows] == [("outputs", "alloc", 2000)]


def test_operators_of_pytorch_have_shapes(tmp_path: Path) -> None:
    arguments = {
        "External id": 1,
        "Input Dims": [[4, 16], [32, 16], [], [[2], [3, 4]]],
        "Input type": ["float", "c10::BFloat16", "Scalar", "TensorList"],
    }
    trace = read_trace(chrome_file(tmp_path / "a.json", [complete("cpu_op", "aten::linear", 1, 2, **arguments)]))
    site = trace.sites[trace.events[0]["site"]]
    assert (site.name, site.shapes, site.dtypes) == (
        "aten::linear",
        "4x16, 32x16, scalar, (2, 3x4)",
        "f32, bf16, Scalar, TensorList",
    )


def test_a_bare_kernel_belongs_to_the_operator_that_launched_it(tmp_path: Path) -> None:
    events = [
        complete("kernel", "ampere_sgemm", 5, 2, pid=0, tid=7, **{"External id": 4, "correlation": 1}),
        complete("cpu_op", "aten::mm", 1, 3, **{"External id": 4}),
        complete("cuda_runtime", "cudaLaunchKernel", 2, 1, correlation=1),
    ]
    report = build_report(read_trace(chrome_file(tmp_path / "a.json", events)))
    device = [row for row in report["operators"] if row["device"] == "device"]
    assert [(row["name"], row["kernel"], row["total_ns"]) for row in device] == [("aten::mm", "ampere_sgemm", 2000)]
    assert report["health"]["unlinked"] == 0
    line = report["timeline"]
    arrows = [
        (line["names"][line["events"]["name"][a]], line["names"][line["events"]["name"][b]])
        for a, b in zip(line["flows"]["from"], line["flows"]["to"], strict=True)
    ]
    assert arrows == [("cudaLaunchKernel", "ampere_sgemm")]


def test_memory_events(tmp_path: Path) -> None:
    def memory(ts: float, amount: int, allocated: int, device: int = 0) -> dict[str, Any]:
        arguments = {
            "Bytes": amount,
            "Total Allocated": allocated,
            "Total Reserved": 5 << 32,
            "Addr": 2**63 + 5,
            "Device Type": device,
            "Device Id": -1,
        }
        return {
            "ph": "i",
            "s": "t",
            "cat": "cpu_instant_event",
            "name": "[memory]",
            "pid": 1,
            "tid": 1,
            "ts": ts,
            "args": arguments,
        }

    events = [memory(1, 256, 256), memory(2, 100, 100, 20), memory(3, -256, 0), memory(4, 50, 150, 20)]
    found = build_report(read_trace(chrome_file(tmp_path / "a.json", events)))["memory"]
    assert found["curve"]["allocated"] == [256, 356, 100, 150]
    assert found["curve"]["reserved"] == [5 << 32, 10 << 32, 10 << 32, 10 << 32]
    assert (found["peak_bytes"], found["peak_time_ns"], found["total_events"]) == (356, 1000, 4)
    assert [(e["kind"], e["bytes"], e["name"]) for e in found["events"]] == [
        ("Allocation", 256, "cpu"),
        ("Allocation", 100, "device 20:-1"),
        ("Release", 256, "cpu"),
        ("Allocation", 50, "device 20:-1"),
    ]
    assert found["events"][0]["address"] == 2**63 + 5


def test_begin_and_end_events_and_the_older_form(tmp_path: Path) -> None:
    pairs = [
        {"ph": "B", "name": "outer", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": 1, "args": {"External id": 5}},
        {"ph": "B", "name": "inner", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": 2},
        {"ph": "E", "pid": 1, "tid": 1, "ts": 3},
        {"ph": "E", "pid": 1, "tid": 2, "ts": 3},
        {"ph": "E", "pid": 1, "tid": 1, "ts": 9.5},
    ]
    (tmp_path / "a.json").write_text(json.dumps(pairs))
    assert events_of(read_trace(tmp_path / "a.json"), "start_ns", "dur_ns", "external") == [
        ("outer", 1000, 8500, 5),
        ("inner", 2000, 1000, 0),
    ]


def test_compressed_is_the_same(tmp_path: Path) -> None:
    plain = chrome_file(tmp_path / "a.json", [complete("cpu_op", f"op {n}", n, 0.5) for n in range(2000)])
    # The name does not matter, only the content does.
    (tmp_path / "b.bin").write_bytes(gzip.compress(plain.read_bytes()))
    one, other = read_trace(plain), read_trace(tmp_path / "b.bin")
    assert (one.events == other.events).all() and one.names == other.names


@pytest.mark.parametrize("compress", [False, True])
def test_cut_anywhere_all_before_is_good(tmp_path: Path, compress: bool) -> None:
    events = [complete("cpu_op", f"op {n} {'x' * (n % 50)}", n, 0.5, **{"External id": n}) for n in range(200)]
    plain = chrome_file(tmp_path / "a.json", events, note={"deep": [1, 2.5, "ä"]}).read_bytes()
    head = plain.index(b'"traceEvents": [') + len(b'"traceEvents": [')
    whole = gzip.compress(plain) if compress else plain
    cut = tmp_path / "cut.json"
    seen = set()
    for length in range(len(whole) - 1, 20, -61):
        cut.write_bytes(whole[:length])
        try:
            trace = read_trace(cut)
        except TraceError as error:
            assert compress or length < head
            assert "expected" in str(error)
            continue
        seen.add(len(trace.events))
        assert trace.meta["truncated"] and not trace.meta["complete"]
        assert [name for (name,) in events_of(trace)] == [event["name"] for event in events[: len(trace.events)]]
        if not compress:
            # Every event that ends before the cut is there.
            assert len(trace.events) == plain[:length].count(b"}}") - plain[:head].count(b"}}")
    assert len(seen) > 20 or compress


def test_damage_in_the_middle_ends_the_trace_there(tmp_path: Path) -> None:
    text = chrome_file(tmp_path / "a.json", [complete("cpu_op", f"op {n}", n, 0.5) for n in range(50)]).read_text()
    middle = text.index("op 25")
    (tmp_path / "a.json").write_text(text[:middle] + '"' + text[middle + 1 :])
    trace = read_trace(tmp_path / "a.json")
    assert len(trace.events) == 25 and trace.meta["truncated"]


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b'{"a": 1, "b": [2]}', "expected an object with \"traceEvents\", got the keys ['a', 'b']"),
        (b'{"traceEvents": {"a": 1}}', "got the keys ['traceEvents']"),
        (b"{}", "got the keys []"),
        (b"[1, 2, 3]", "got 3 elements without them"),
        (b'{"traceEvents": [{"name": "x"}, null]}', "got 2 elements without them"),
        (b"a text file\n", "got a file that begins with 'a text file"),
        (b"  \n\t ", "with nothing"),
        (b'"text"', "got a file that begins with"),
        (b"{'single': 1}", "got a file that begins with"),
        # Each process that shares the tests must name them alike: no time of day in what becomes a name.
        (gzip.compress(b"not JSON at all", mtime=0), "got compressed data that begins with 'not JSON"),
        (gzip.compress(bytes(range(256)) * 10, mtime=0), "got compressed data that begins with"),
        (gzip.compress(b"", mtime=0), "got compressed data that begins with nothing"),
        (b"\x1f\x8bnot really gzip", "got compressed data that begins with nothing"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, content: bytes, found: str) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(TraceError, match=re.escape(found)) as error:
        read_trace(tmp_path / "a.json")
    assert "expected" in str(error.value) and "give the file" in str(error.value)


def test_a_report_is_no_trace(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"format": "thresher-op-report", "phases": []}))
    with pytest.raises(TraceError, match="got the keys \\['format', 'phases'\\]"):
        read_trace(tmp_path / "a.json")


def test_strange_events_are_counted_not_fatal(tmp_path: Path) -> None:
    events: list[Any] = [
        complete("cpu_op", "good", 1, 2),
        complete("cpu_op", "backwards", 5, -2),
        complete("cpu_op", "far", 1e300, 2),
        {"ph": "X", "name": "no time"},
        {"ph": "X", "name": "text", "ts": "soon", "dur": 1},
        {"ph": "X", "name": "list", "ts": [1], "dur": 1},
        {"ph": "X", "cat": ["list"], "name": "cat", "ts": 1, "dur": 1},
        {"ph": "X", "name": "args", "ts": 2, "dur": 1, "args": [1, 2]},
        {"ph": "i", "name": "[memory]", "ts": 1, "args": {"Bytes": "many"}},
        {"ph": "M", "name": "thread_name", "args": {"name": 5}},
        {"ph": "C", "name": "a counter", "ts": 1, "args": {"x": 5}},
        17,
        "text",
        {"no": "phase"},
        complete("cpu_op", "odd ids", 9, 1, **{"External id": "abc", "correlation": -1, "stream": None}),
        complete("cpu_op", "other process", 10, 1, pid="Spans", tid="x"),
    ]
    trace = read_trace(chrome_file(tmp_path / "a.json", events))
    assert [name for (name,) in events_of(trace)] == ["good", "odd ids", "other process"]
    assert (trace.meta["bad_times"], trace.meta["malformed"]) == (2, 9)
    report = build_report(trace)
    assert report["health"]["malformed"] == 9


def test_nothing_but_metadata_is_an_empty_report(tmp_path: Path) -> None:
    report = build_report(read_trace(chrome_file(tmp_path / "a.json", [])))
    assert report["source"]["events"] == 0 and report["time"]["wall_ns"] == 0
    assert report["operators"] == [] and report["timeline"]["lanes"] == []


def test_more_events_than_memory_has_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from thresher.profiler.trace import chrome, store

    random = np.random.default_rng(0)
    events = []
    for number in range(3000):
        ts = number * 50 + float(random.integers(0, 9))
        events.append(complete("cpu_op", f"aten::op{number % 7}", ts, 40 + number % 3, **{"External id": number + 1}))
        events.append(complete("cpu_op", "aten::inner", ts + 5, 20, **{"External id": 0}))
        events.append(complete("kernel", "k", ts + 6, 9, pid=0, tid=0, **{"External id": number + 1}))
    file = chrome_file(tmp_path / "a.json", list(random.permutation(np.array(events, object))))
    exact = build_report(read_trace(file))
    monkeypatch.setattr(chrome, "_CHUNK", 500)
    monkeypatch.setattr(store, "_WINDOW_EVENTS", 1024)
    monkeypatch.setattr(store, "_LONG_PER_CHUNK", 16)
    trace = read_trace(file, limit=2000)
    assert trace.sampled and len(trace.events) <= 2000 + 18
    report = build_report(trace)
    assert report["overview"]["total"] == exact["overview"]["total"]
    assert report["health"] == exact["health"]
    for one, other in zip(exact["operators"], report["operators"], strict=True):
        assert abs(one.pop("median_ns") - other.pop("median_ns")) <= 500
        assert one == other


def test_a_trace_of_the_stock_profiler(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile, record_function, schedule

    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 16))
    file = tmp_path / "stock.json.gz"
    averages = {}

    def ready(profiler: Any) -> None:
        profiler.export_chrome_trace(str(file))
        averages.update({row.key: row for row in profiler.key_averages()})

    plan = schedule(wait=0, warmup=1, active=2, repeat=1)
    wanted_data = {"record_shapes": True, "with_stack": True, "profile_memory": True}
    with profile(activities=[ProfilerActivity.CPU], schedule=plan, on_trace_ready=ready, **wanted_data) as profiler:
        for _ in range(3):
            with record_function("mine"):
                model(torch.randn(4, 16)).sum().backward()
            profiler.step()
    with gzip.open(file) as opened:
        raw = json.load(opened)
    trace = read_trace(file)
    wanted = Counter(
        event["name"] for event in raw["traceEvents"] if event.get("ph") == "X" and event.get("cat") != "Trace"
    )
    found = Counter(trace.names[event["name"]] for event in trace.events if event["category"] != Category.MEMORY)
    assert found == wanted
    report = build_report(trace)
    assert sum(report["overview"]["total"]["by_category"].values()) == report["overview"]["total"]["wall_ns"]
    assert [step["name"] for step in report["overview"]["steps"]] == ["ProfilerStep#1", "ProfilerStep#2"]
    # Times are those that the profiler itself computes; it merges an operator with its only child of the same name.
    compared = 0
    for row in report["operators"]:
        expected = averages[row["name"]]
        assert row["count"] >= expected.count
        if row["count"] == expected.count:
            compared += 1
            assert row["total_ns"] / 1e3 == pytest.approx(expected.cpu_time_total, rel=1e-3, abs=0.01)
            assert row["self_ns"] / 1e3 == pytest.approx(expected.self_cpu_time_total, rel=1e-3, abs=0.05)
    assert compared > 8
    shapes = {(row["name"], row["shapes"]) for row in report["operators_by_shape"]}
    assert ("aten::linear", "4x16, 32x16, 32") in shapes
    flat = {row["name"]: row for row in report["modules_flat"]}
    assert flat["Sequential_0.Linear_0"]["source"].startswith("test_trace_chrome.py:")
    assert sum(row["self_ns"] for row in report["modules_flat"]) == sum(row["self_ns"] for row in report["operators"])
    assert report["memory"]["peak_bytes"] > 0
    assert report["time"]["start_unix_ns"] > START - 10**18

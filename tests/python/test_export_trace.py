"""Traces as Chrome JSON and in Perfetto's format: read back by what reads them elsewhere."""

from __future__ import annotations

import gzip
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import synthetic_trace
import trace_processor

from thresher.profiler.export import OutputError, check_output, open_output, write_trace
from thresher.profiler.export import layout as layout_module
from thresher.profiler.export.layout import Layout
from thresher.profiler.export.wire import number, varint
from thresher.profiler.trace import EVENT, Category, Lane, NativeWriter, Site, Trace, read_trace
from thresher.profiler.trace.native import RECORD

STEPS = 3
needs_root_to_be_denied = pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    return read_trace(synthetic_trace.write(tmp_path / "run.thrtrace", STEPS))


def chrome(trace: Trace, path: Path) -> dict[str, Any]:
    write_trace(trace, path)
    data: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes())
    return data


def of_category(data: dict[str, Any], category: str) -> list[dict[str, Any]]:
    return [event for event in data["traceEvents"] if event.get("cat") == category and event["ph"] != "M"]


def test_chrome_has_what_readers_of_torch_profiler_expect(trace: Trace, tmp_path: Path) -> None:
    data = chrome(trace, tmp_path / "run.json")
    assert data["schemaVersion"] == 1
    assert data["displayTimeUnit"] == "ms"
    assert data["traceName"] == "run.json"
    assert data["distributedInfo"]["rank"] == 0
    assert data["deviceProperties"] == [
        {"id": 0, "name": "Test CPU @ 2 GHz", "device": "thresher:0", "isa": "avx2", "numThreads": 2}
    ]
    assert data["thresher"]["peaks"] == synthetic_trace.PEAKS
    counts = Counter(event.get("cat", event["ph"]) for event in data["traceEvents"])
    assert counts == {
        "M": 10,  # two processes and two threads
        "kernel": 2 * STEPS,
        "gpu_memcpy": STEPS,
        "privateuse1_runtime": 5 * STEPS,
        "user_annotation": 2 * STEPS,
        "cpu_instant_event": 2 * STEPS,
        "ac2g": 6 * STEPS,
    }
    kernel = of_category(data, "kernel")[0]
    assert kernel["name"] == "linear fp32 avx2"
    assert (kernel["pid"], kernel["tid"]) == (0, 0)
    assert kernel["args"] == {
        "External id": 7,
        "device": 0,
        "stream": 0,
        "correlation": 1,
        "execution": 1,
        "operator": "linear",
        "shapes": "1x16x384, 384x1536",
        "dtypes": "f32, f32",
        "outputs": "1x16x1536",
        "kernel": "linear fp32 avx2",
        "precision": "fp32",
        "section": "forward",
        "module": "encoder.layer.0.intermediate.dense",
        "source": "modeling_bert.py:412 in forward",
        "graph": "graph_0",
        "flops": 18874368,
        "bytes": 2482176,
    }
    assert [event["name"] for event in of_category(data, "user_annotation")][:2] == ["ProfilerStep#0", "tokenize"]
    copy = of_category(data, "gpu_memcpy")[0]
    assert copy["args"]["memory bandwidth (GB/s)"] == round(196_608 / 50_001, 3)
    assert "flops" not in of_category(data, "kernel")[1]["args"], "what is not modelled is not there, and never 0"


def test_chrome_times_are_exact_microseconds_with_three_decimals(trace: Trace, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    data = chrome(trace, path)
    base = data["baseTimeNanoseconds"]
    assert base == synthetic_trace.START_NS
    found = sorted(
        (base + round(event["ts"] * 1000), round(event["dur"] * 1000))
        for event in data["traceEvents"]
        if event["ph"] == "X"
    )
    timed = trace.events[trace.events["category"] != Category.MEMORY]
    assert found == sorted(zip(timed["start_ns"].tolist(), timed["dur_ns"].tolist(), strict=True))
    assert '"dur": 50.001,' in path.read_text()


def test_chrome_arrows_lead_from_launch_to_kernel(trace: Trace, tmp_path: Path) -> None:
    data = chrome(trace, tmp_path / "run.json")
    arrows = of_category(data, "ac2g")
    for kind, category in (("s", ("privateuse1_runtime",)), ("f", ("kernel", "gpu_memcpy"))):
        ends = {event["id"]: event for event in arrows if event["ph"] == kind}
        assert len(ends) == 3 * STEPS
        slices = {
            event["args"]["correlation"]: event
            for name in category
            for event in of_category(data, name)
            if "correlation" in event["args"]
        }
        assert slices.keys() == ends.keys()
        for identity, arrow in ends.items():
            assert [arrow[key] for key in ("pid", "tid", "ts")] == [
                slices[identity][key] for key in ("pid", "tid", "ts")
            ]
    assert all(event["bp"] == "e" for event in arrows if event["ph"] == "f")


def test_chrome_memory_events(trace: Trace, tmp_path: Path) -> None:
    taken, released = of_category(chrome(trace, tmp_path / "run.json"), "cpu_instant_event")[:2]
    assert (taken["name"], taken["ph"], taken["s"]) == ("[memory]", "i", "t")
    assert taken["args"]["Bytes"] == 4096 and released["args"]["Bytes"] == -4096
    assert taken["args"]["Total Allocated"] == 8192
    assert taken["args"]["Addr"] == 0x7F00_0000_1000
    assert taken["args"]["Device Type"] == 20


def test_chrome_reads_back_as_the_same_trace(trace: Trace, tmp_path: Path) -> None:
    write_trace(trace, tmp_path / "run.json.gz")
    again = read_trace(tmp_path / "run.json.gz")
    assert again.total_events == trace.total_events

    def sums(found: Trace) -> dict[tuple[str, str], tuple[int, int]]:
        result: dict[tuple[str, str], tuple[int, int]] = {}
        for event in found.events:
            category = Category(int(event["category"]))
            if category in (Category.KERNEL, Category.COPY):
                key = (category.name, found.names[event["name"]])
                count, total = result.get(key, (0, 0))
                result[key] = (count + 1, total + int(event["dur_ns"]))
        return result

    assert sums(again) == sums(trace)
    modules = {site.module for site in again.sites.values()}
    assert "encoder.layer.0.intermediate.dense" in modules


def test_compressed_file_is_the_same_each_time(trace: Trace, tmp_path: Path) -> None:
    write_trace(trace, str(tmp_path / "a.json.gz"))
    first = (tmp_path / "a.json.gz").read_bytes()
    write_trace(trace, tmp_path / "a.json.gz", force=True)
    assert (tmp_path / "a.json.gz").read_bytes() == first


def test_trace_without_events(tmp_path: Path) -> None:
    trace = read_trace(synthetic_trace.write(tmp_path / "empty.thrtrace", 0))
    assert chrome(trace, tmp_path / "empty.json")["traceEvents"] == []
    write_trace(trace, tmp_path / "empty.pftrace")
    (rows,) = trace_processor.query(tmp_path / "empty.pftrace", "select count(*) as n from slice")
    assert rows == [{"n": 0}]


def make(
    events: list[dict[str, Any]], lanes: list[Lane], names: list[str], sites: dict[int, Site] | None = None
) -> Trace:
    table = np.zeros(len(events), EVENT)
    table["site"] = -1
    for index, event in enumerate(events):
        for name, value in event.items():
            table[name][index] = value
    meta = {"format": "chrome", "file": "x.json", "complete": True, "truncated": False, "dropped": 0}
    return Trace(
        meta=meta,
        names=names,
        lanes=lanes,
        sites=sites or {},
        events=table,
        total_events=len(table),
        totals=None,
        store=None,  # type: ignore[arg-type]
    )


def test_overlapping_events_get_rows_of_their_own(tmp_path: Path) -> None:
    lanes = [Lane(0, "host", 10, 11, "thread 11"), Lane(1, "device", 0, 3, "cuda:0 stream 3")]
    spans = [(0, 100), (10, 20), (50, 100), (60, 100), (120, 100), (400, 10)]
    events = [{"start_ns": 1000 + s, "dur_ns": d, "category": Category.HOST, "lane": 0} for s, d in spans]
    trace = make(events, lanes, ["aten::add"])
    rows = [entry.track for entry in Layout(trace).entries()]
    assert rows == [0, 0, 2, 3, 0, 0]
    slices = of_category(chrome(trace, tmp_path / "x.json"), "cpu_op")
    assert len({(event["pid"], event["tid"]) for event in slices}) == 3
    write_trace(trace, tmp_path / "x.pftrace")
    found, problems = trace_processor.query(
        tmp_path / "x.pftrace",
        "select ts, dur, depth from slice order by ts",
        "select name, value from stats where severity in ('error', 'data_loss') and value > 0",
    )
    assert [(row["ts"], row["dur"], row["depth"]) for row in found] == [
        (0, 100, 0),
        (10, 20, 1),
        (50, 100, 0),
        (60, 100, 0),
        (120, 100, 0),
        (400, 10, 0),
    ]
    assert problems == []


def test_operators_of_pytorch_keep_their_shapes(tmp_path: Path) -> None:
    lanes = [Lane(0, "host", 10, 11, ""), Lane(1, "host", 10, 12, "")]
    site = Site(0, "aten::linear", shapes="2x8, 8x8, ", dtypes="float, float, float")
    odd = Site(1, "aten::add", shapes="weird")
    events = [
        {"start_ns": 5, "dur_ns": 7, "category": Category.HOST, "external": 3, "site": 0},
        {"start_ns": 6, "dur_ns": 0, "category": Category.PYTHON, "lane": 1, "name": 1},
        {"start_ns": 7, "dur_ns": 0, "category": Category.HOST, "lane": 1, "site": 1},
    ]
    trace = make(events, lanes, ["aten::linear", 'model.py(3): "f"\n'], {0: site, 1: odd})
    data = chrome(trace, tmp_path / "x.json")
    first, second = of_category(data, "cpu_op")
    assert first["args"] == {
        "External id": 3,
        "Input Dims": [[2, 8], [8, 8], []],
        "Input type": ["float", "float", "float"],
    }
    assert second["args"] == {"shapes": "weird"}
    assert of_category(data, "python_function")[0]["name"] == 'model.py(3): "f"\n'


def test_numbers_of_devices_and_processes_do_not_collide(tmp_path: Path) -> None:
    lanes = [
        Lane(0, "host", 0, 1, ""),
        Lane(1, "device", 0, 1, "a:0 stream 1"),
        Lane(2, "device", 1, 1, "a:1 stream 1"),
    ]
    events = [{"start_ns": i, "dur_ns": 1, "category": Category.KERNEL, "lane": i} for i in range(3)]
    data = chrome(make(events, lanes, ["k"]), tmp_path / "x.json")
    assert len({(event["pid"], event["tid"]) for event in of_category(data, "kernel")}) == 3
    names = {event["args"]["name"] for event in data["traceEvents"] if event["name"] == "process_name"}
    assert names == {"python", "a:0", "a:1"}


def test_perfetto_decodes_with_its_own_definitions(trace: Trace, tmp_path: Path) -> None:
    definitions = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    path = tmp_path / "run.pftrace"
    write_trace(trace, path)
    decoded = definitions.Trace()
    decoded.ParseFromString(path.read_bytes())
    kinds = Counter(packet.track_event.type for packet in decoded.packet if packet.HasField("track_event"))
    timed = int((trace.events["category"] != Category.MEMORY).sum())
    assert kinds == {1: timed, 2: timed, 3: 2 * STEPS, 4: 2 * STEPS}
    assert decoded.packet[0].clock_snapshot.clocks[1].timestamp == synthetic_trace.START_NS
    size = decoded.ByteSize()
    decoded.DiscardUnknownFields()
    assert decoded.ByteSize() == size, "every field is one that Perfetto knows"


def test_perfetto_answers_queries(trace: Trace, tmp_path: Path) -> None:
    path = tmp_path / "run.pftrace"
    write_trace(trace, path)
    slices, kernels, flows, counter, threads, problems = trace_processor.query(
        path,
        "select category, count(*) as n, sum(dur) as ns from slice group by category order by category",
        "select slice.name as name, track.name as track, parent.name as device,"
        " extract_arg(arg_set_id, 'debug.module') as module, extract_arg(arg_set_id, 'debug.flops') as flops,"
        " extract_arg(arg_set_id, 'debug.stream') as stream"
        " from slice join track on slice.track_id = track.id join track parent on track.parent_id = parent.id"
        " where category = 'kernel' order by ts limit 1",
        "select a.name as launch, b.name as kernel, a.ts = b.ts as together from flow"
        " join slice a on flow.slice_out = a.id join slice b on flow.slice_in = b.id",
        "select value from counter join track on counter.track_id = track.id where name = 'memory allocated'"
        " order by ts",
        "select thread.name as thread, tid, process.name as process, pid from thread join process using (upid)"
        f" where tid = {synthetic_trace.THREAD}",
        "select name, value from stats where severity in ('error', 'data_loss') and value > 0",
    )
    assert problems == []
    assert {row["category"]: row["n"] for row in slices} == {
        "kernel": 2 * STEPS,
        "gpu_memcpy": STEPS,
        "privateuse1_runtime": 5 * STEPS,
        "user_annotation": 2 * STEPS,
        "cpu_instant_event": 2 * STEPS,
    }
    is_kernel = trace.events["category"] == Category.KERNEL
    assert {row["category"]: row["ns"] for row in slices}["kernel"] == trace.events["dur_ns"][is_kernel].sum()
    assert kernels == [
        {
            "name": "linear fp32 avx2",
            "track": "thresher:0 stream 0",
            "device": "thresher:0",
            "module": "encoder.layer.0.intermediate.dense",
            "flops": 18874368,
            "stream": 0,
        }
    ]
    assert len(flows) == 3 * STEPS
    assert all(row["launch"] == "thresherNodeCompute" and row["together"] for row in flows)
    assert [row["value"] for row in counter] == [8192.0, 4096.0] * STEPS
    assert [(row["thread"], row["process"], row["pid"]) for row in threads] == [
        (f"thread {synthetic_trace.THREAD}", "python", synthetic_trace.PID)
    ]


def test_perfetto_reads_the_chrome_json_too(trace: Trace, tmp_path: Path) -> None:
    write_trace(trace, tmp_path / "run.json")
    rows, flows, problems = trace_processor.query(
        tmp_path / "run.json",
        "select count(*) as n, sum(dur) as ns from slice where category = 'kernel'",
        "select count(*) as n from flow",
        "select name, value from stats where severity in ('error', 'data_loss') and value > 0",
    )
    is_kernel = trace.events["category"] == Category.KERNEL
    assert rows == [{"n": 2 * STEPS, "ns": trace.events["dur_ns"][is_kernel].sum()}]
    assert flows == [{"n": 3 * STEPS}]
    assert problems == []


def test_trace_too_large_for_memory_is_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout_module, "_CHUNK", 7)
    path = synthetic_trace.write(tmp_path / "run.thrtrace", 200)
    trace = read_trace(path, limit=100)
    assert trace.sampled
    data = chrome(trace, tmp_path / "run.json")
    assert len(of_category(data, "kernel")) == 400
    assert len(of_category(data, "ac2g")) == 1200
    assert data["thresher"]["complete"]
    write_trace(trace, tmp_path / "run.pftrace")
    (rows,) = trace_processor.query(
        tmp_path / "run.pftrace", "select count(*) as n, sum(dur) as ns from slice where category = 'kernel'"
    )
    assert rows == [{"n": 400, "ns": 200 * 450_000}]


def test_strange_names_survive(tmp_path: Path) -> None:
    names = ['quote " and \\ backslash', "\x00control\n", "umlaut ä 漢字 🎉", "lone \udce4"]
    sites = [{"id": index, "name": name, "hardware": 34} for index, name in enumerate(names)]
    table = np.zeros(len(names), RECORD)
    table["start_ns"] = synthetic_trace.START_NS + np.arange(len(names)) * 10
    table["end_ns"] = table["start_ns"] + 5
    table["site"] = np.arange(len(names))
    table["correlation"] = np.arange(len(names)) + 1
    with NativeWriter(tmp_path / "x.thrtrace", {"start_ns": synthetic_trace.START_NS}) as writer:
        writer.sites(sites)
        writer.records(table)
        writer.close(synthetic_trace.START_NS + 1000)
    trace = read_trace(tmp_path / "x.thrtrace")
    found = of_category(chrome(trace, tmp_path / "x.json"), "kernel")
    assert [event["name"] for event in found] == names
    write_trace(trace, tmp_path / "x.pftrace")
    (rows,) = trace_processor.query(
        tmp_path / "x.pftrace", "select name from slice where category='kernel' order by ts"
    )
    assert [row["name"] for row in rows][2] == names[2]


@pytest.mark.parametrize(
    ("value", "wanted"),
    [(0, b"\x00"), (127, b"\x7f"), (128, b"\x80\x01"), (300, b"\xac\x02"), (-1, b"\xff" * 9 + b"\x01")],
)
def test_varint(value: int, wanted: bytes) -> None:
    assert varint(value) == wanted
    assert number(1, value) == b"\x08" + wanted


def test_other_suffix_is_refused(trace: Trace, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"expected a name that ends in one of .json, .json.gz, .pftrace"):
        write_trace(trace, tmp_path / "run.xml")


def test_existing_file_is_kept_without_force(trace: Trace, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text("precious")
    with pytest.raises(OutputError, match=r"got one that exists.*--force"):
        write_trace(trace, path)
    assert path.read_text() == "precious"
    write_trace(trace, path, force=True)
    assert json.loads(path.read_text())["traceName"] == "run.json"


def test_unwritable_places(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="expected a folder, got the file"):
        check_output(tmp_path / "file" / "deeper" / "x.json")
    with pytest.raises(OutputError, match="got a folder; name a file in it"):
        check_output(tmp_path)
    check_output(tmp_path / "new" / "folders" / "x.json")
    assert not (tmp_path / "new").exists(), "checking leaves nothing behind"


@needs_root_to_be_denied
def test_no_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(OutputError, match="got no permission in"):
        check_output(tmp_path / "x.json")


@pytest.mark.parametrize("suffix", [".json", ".json.gz", ".pftrace"])
def test_full_disk(trace: Trace, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"full{suffix}"
    path.symlink_to("/dev/full")
    with pytest.raises(OutputError, match="got: No space left on device; make room or choose another disk"):
        write_trace(trace, path)
    assert path.is_symlink() and Path("/dev/full").is_char_device(), "a device is written, never replaced"


def test_nothing_is_left_of_a_file_that_failed(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("old")
    with pytest.raises(RuntimeError), open_output(path, force=True) as file:
        file.write(b"half")
        raise RuntimeError
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["x.json"]

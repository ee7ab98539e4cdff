"""Reading the engine's trace files: all kinds of records, damage of every sort, files larger than memory."""

from __future__ import annotations

import re
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from trace_samples import HEAD, START, STEPS, encoder_records, record, records, sites, write_encoder

from thresher.profiler.trace import EVENT, Category, NativeWriter, Trace, TraceError, read_trace
from thresher.profiler.trace.event_names import EVENT_NAMES, event_name
from thresher.profiler.trace.events import sort_events
from thresher.profiler.trace.native_file import RECORD
from thresher.profiler.trace.sampling import visible

REPOSITORY = Path(__file__).parents[2]


def write(path: Path, *rows: tuple[int, ...], stop: int | None = 10_000, dropped: int = 0) -> Path:
    with NativeWriter(path, HEAD) as writer:
        writer.sites(sites())
        if rows:
            writer.records(records(*rows))
        writer.close(stop_ns=None if stop is None else START + stop, dropped=dropped)
    return path


def names(trace: Trace) -> list[tuple[str, str, str]]:
    return [
        (trace.names[event["name"]], Category(event["category"]).name, trace.lanes[event["lane"]].kind)
        for event in trace.events
    ]


def test_event_names_are_those_of_the_engine() -> None:
    header = (REPOSITORY / "src/thresher/profile/events.h").read_text()
    begin = header.index("kEvents = {{")
    found = re.findall(r'^\s*\{"([^"]+)",', header[begin : header.index("}};", begin)], re.MULTILINE)
    assert tuple(found) == EVENT_NAMES
    assert event_name(len(EVENT_NAMES)) == f"Unknown event {len(EVENT_NAMES)}"


def test_record_is_64_bytes_as_the_format_says() -> None:
    assert RECORD.itemsize == 64
    assert [RECORD.fields[name][1] for name in ("value", "external", "site", "lane", "kind")] == [32, 40, 48, 56, 60]  # type: ignore[index]


def test_an_operator_becomes_a_host_row_and_a_hardware_row(tmp_path: Path) -> None:
    file = write(
        tmp_path / "a.thrtrace",
        record(0, 100, 150, correlation=7, site=1, event=9, lane=2, thread=4, external=3, user=5, execution=6),
    )
    trace = read_trace(file)
    assert names(trace) == [("thresherNodeCompute", "RUNTIME", "host"), ("layer_norm fp32 avx2", "KERNEL", "device")]
    host, device = trace.events
    for field in ("start_ns", "dur_ns", "correlation", "site", "external", "user", "execution"):
        assert host[field] == device[field]
    assert (host["start_ns"], host["dur_ns"], host["correlation"], host["external"]) == (START + 100, 50, 7, 3)
    assert trace.lanes[host["lane"]].tid == 4
    assert trace.lanes[device["lane"]].tid == 2
    assert trace.sites[1].flops == 2.0 * 16 * 384 * 384 * 2


def test_a_device_of_its_own_has_lanes_of_its_own(tmp_path: Path) -> None:
    file = write(
        tmp_path / "a.thrtrace",
        record(3, 100, 110, correlation=7, site=1, event=18, section=3, thread=4),
        record(7, 105, 160, correlation=7, site=1, event=34, lane=2, thread=4, device=1, value=START + 100),
        record(7, 165, 170, correlation=8, site=1, event=34, lane=2, thread=4, device=2),
        record(0, 200, 210, correlation=9, site=1, event=9, lane=2, thread=4),
    )
    trace = read_trace(file)
    assert names(trace) == [
        ("thresherLaunchStream", "RUNTIME", "host"),
        ("layer_norm fp32 avx2", "KERNEL", "device"),
        ("layer_norm fp32 avx2", "KERNEL", "device"),
        ("thresherNodeCompute", "RUNTIME", "host"),
        ("layer_norm fp32 avx2", "KERNEL", "device"),
    ]
    launch, first, second, _, on_cpu = trace.events
    assert launch["correlation"] == first["correlation"] == 7
    lanes = [trace.lanes[event["lane"]] for event in (first, second, on_cpu)]
    assert [(lane.pid, lane.tid, lane.name) for lane in lanes] == [
        (1, 2, "cuda:0 stream 2"),
        (2, 2, "cuda:1 stream 2"),
        (0, 2, "thresher:0 stream 2"),
    ]


def test_every_kind_of_record(tmp_path: Path) -> None:
    file = write(
        tmp_path / "a.thrtrace",
        record(6, 0, 1000, value=3),
        record(2, 10, 900, event=39, section=3),
        record(1, 20, 800, event=5, section=3, execution=1),
        record(0, 30, 40, event=9, site=2, correlation=1),
        record(3, 50, 60, event=0, section=3),
        record(3, 61, 62, event=26, section=3),
        record(3, 63, 64, event=999, section=3),
        record(4, 70, 70, event=37, value=-64, execution=4096, correlation=128),
        record(5, 80, 90, site=3),
        record(200, 95, 96, event=1),
    )
    trace = read_trace(file)
    assert names(trace) == [
        ("Step#3", "STEP", "host"),
        ("thresherCall", "CALL", "host"),
        ("thresherGraphExecution", "EXECUTION", "host"),
        ("thresherNodeCompute", "RUNTIME", "host"),
        ("reshape", "COPY", "device"),
        ("thresherCompileGraph", "RUNTIME", "host"),
        ("thresherBarrier1", "COMMUNICATION", "host"),
        ("Unknown event 999", "RUNTIME", "host"),
        ("Memory (Allocation)", "MEMORY", "host"),
        ("linear", "ANNOTATION", "host"),
        ("thresherInitGraph", "OTHER", "host"),
    ]
    assert trace.meta["unknown_events"] == 1
    memory = trace.store.memory()[0]
    assert (memory["value"], memory["execution"], memory["correlation"]) == (-64, 4096, 128)


def test_metadata_is_merged(tmp_path: Path) -> None:
    with NativeWriter(tmp_path / "a.thrtrace", HEAD) as writer:
        writer.data({"python": "3.11.7", "torch": "old"})
        writer.records(records(record(3, 1, 2, event=2)))
        writer.block(b"NEWS", b"a block of a later version")
        writer.data({"torch": "2.13.0"})
        writer.close(stop_ns=START + 50, dropped=12)
    meta = read_trace(tmp_path / "a.thrtrace").meta
    assert (meta["python"], meta["torch"], meta["isa"], meta["dropped"]) == ("3.11.7", "2.13.0", "avx2", 12)
    assert (meta["format"], meta["file"], meta["complete"], meta["truncated"]) == ("native", "a.thrtrace", True, False)
    assert meta["stop_ns"] == START + 50


def test_a_killed_process_leaves_what_it_had_written(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path / "a.thrtrace", record(3, 1, 2, event=2), stop=None))
    assert (len(trace.events), trace.meta["complete"], trace.meta["truncated"]) == (1, False, False)


@pytest.mark.parametrize("limit", [2_000_000, 100])
def test_cut_anywhere_all_before_is_good(tmp_path: Path, limit: int) -> None:
    whole = write_encoder(tmp_path / "whole.thrtrace", 20, block=10).read_bytes()
    blocks = _block_ends(whole)
    cut = tmp_path / "cut.thrtrace"
    for length in [*range(16, len(whole), 977), *blocks, *(end - 8 for end in blocks)]:
        cut.write_bytes(whole[:length])
        complete_blocks = [end for end in blocks if end <= length]
        if not complete_blocks:
            with pytest.raises(TraceError, match="killed before it had recorded anything"):
                read_trace(cut, limit=limit)
            continue
        trace = read_trace(cut, limit=limit)
        counted = sum(_records_in(whole, end) for end in blocks if end <= length)
        executed = int(trace.totals.count[trace.totals.category != Category.RUNTIME].sum())
        assert executed == counted
        assert trace.meta["truncated"] == (length not in (*blocks, len(whole)))
        assert trace.meta["complete"] == (length >= blocks[-1])


def test_a_damaged_block_ends_the_trace(tmp_path: Path) -> None:
    whole = bytearray(write_encoder(tmp_path / "a.thrtrace", 20, block=50).read_bytes())
    ends = _block_ends(bytes(whole))
    whole[ends[4] - 100] ^= 1
    (tmp_path / "a.thrtrace").write_bytes(whole)
    trace = read_trace(tmp_path / "a.thrtrace")
    assert trace.meta["truncated"] and not trace.meta["complete"]
    assert trace.totals.count[trace.totals.category != Category.RUNTIME].sum() == 50


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "an empty file"),
        (b"THRT", "got b'THRT'"),
        (b"THRTRACE" + struct.pack("<II", 2, 64), "expected format version 1, got 2"),
        (b"THRTRACE" + struct.pack("<II", 1, 72), "expected records of 64 bytes, got 72"),
        (b"THRTRACE" + struct.pack("<II", 1, 64), "killed before it had recorded anything"),
        (b"THRTRACE" + struct.pack("<II", 1, 64) + b"\xff" * 64, "killed before it had recorded anything"),
        (b"\x7fELF" + bytes(range(256)), "got a file that begins with"),
        (b"\x00" * 4096, "got a file that begins with"),
        (b"PK\x03\x04 a zip file", "got a file that begins with"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, content: bytes, found: str) -> None:
    (tmp_path / "a.thrtrace").write_bytes(content)
    with pytest.raises(TraceError, match=re.escape(found)) as error:
        read_trace(tmp_path / "a.thrtrace")
    assert "expected" in str(error.value) and "a.thrtrace" in str(error.value)


@pytest.mark.parametrize("payload", [b"not JSON", b"[1, 2]", b'"text"', b"\xff\xfe"])
def test_a_head_that_is_no_object_is_refused(tmp_path: Path, payload: bytes) -> None:
    block = struct.pack("<4sIQ", b"HEAD", zlib.crc32(payload), len(payload)) + payload + b"\0" * (-len(payload) % 8)
    (tmp_path / "a.thrtrace").write_bytes(b"THRTRACE" + struct.pack("<II", 1, 64) + block)
    with pytest.raises(TraceError, match="block HEAD"):
        read_trace(tmp_path / "a.thrtrace")


def test_folders_and_missing_files(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="got a folder"):
        read_trace(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_trace(tmp_path / "missing")
    with pytest.raises(ValueError, match="limit of at least 1"):
        read_trace(tmp_path / "missing", limit=0)


def test_sites_that_make_no_sense(tmp_path: Path) -> None:
    with NativeWriter(tmp_path / "a.thrtrace", HEAD) as writer:
        writer.sites([{"id": -1, "name": "x"}, {"id": 1 << 40, "name": "x"}, {"name": "x"}, {"id": "1"}])
        writer.block(b"SITE", b'[3, null, {"id": 5, "name": "kept", "flops": 1e999, "bytes": -1, "hardware": "no"}]')
        writer.records(
            records(*(record(0, 10 * n, 10 * n + 5, site=n, correlation=n, event=9) for n in (1, 5, 4_000_000_000)))
        )
        writer.close(stop_ns=START + 1000)
    trace = read_trace(tmp_path / "a.thrtrace")
    assert list(trace.sites) == [5]
    assert (trace.sites[5].flops, trace.sites[5].bytes) == (None, None)
    assert [name for name, category, _ in names(trace) if category == "KERNEL"] == [
        "unknown operator",
        "kept",
        "unknown operator",
    ]


def test_broken_times_are_counted_and_left_out(tmp_path: Path) -> None:
    day = 86_400_000_000_000
    file = write(
        tmp_path / "a.thrtrace",
        record(3, 10, 20, event=2),
        record(3, 30, 25, event=2),
        record(3, -START, 25, event=2),
        record(3, -START - 5, -START + 5, event=2),
        record(3, -10 * day, -9 * day, event=2),
        record(3, 40, (1 << 62) - START + 7, event=2),
    )
    trace = read_trace(file)
    assert trace.meta["bad_times"] == 5
    assert trace.events["start_ns"].tolist() == [START + 10]
    assert (trace.events["dur_ns"] >= 0).all()


def test_random_bytes_as_records_never_crash(tmp_path: Path) -> None:
    from thresher.profiler.analysis import build_report

    random = np.random.default_rng(3)
    rows = random.integers(0, 256, 64 * 2000, np.uint8).view(RECORD)
    # Half of them with times that can be believed, so that they reach the analyses.
    rows["start_ns"][::2] = START + random.integers(0, 10**9, 1000)
    rows["end_ns"][::2] = rows["start_ns"][::2] + random.integers(-100, 10**6, 1000)
    with NativeWriter(tmp_path / "a.thrtrace", HEAD) as writer:
        writer.sites(sites())
        writer.records(rows)
    for limit in (2_000_000, 50):
        trace = read_trace(tmp_path / "a.thrtrace", limit=limit)
        assert trace.meta["bad_times"] > 500
        report = build_report(trace)
        assert sum(report["overview"]["total"]["by_category"].values()) == report["overview"]["total"]["wall_ns"]


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_file_that_does_not_fit_has_the_same_sums(
    tmp_path: Path, shuffle: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from thresher.profiler.analysis import build_report
    from thresher.profiler.trace import native, store

    file = write_encoder(tmp_path / "a.thrtrace", 400, block=333, shuffle=shuffle)
    exact = read_trace(file)
    monkeypatch.setattr(native, "CHUNK_EVENTS", 500)
    monkeypatch.setattr(store, "_WINDOW_EVENTS", 256)
    monkeypatch.setattr(store, "_LONG_PER_CHUNK", 8)
    sampled = read_trace(file, limit=1000)
    assert not exact.sampled and sampled.sampled
    assert len(sampled.events) <= 1000 < sampled.total_events == exact.total_events == 400 * (2 * STEPS + 2)
    assert sum(len(part) for part in sampled.chunks()) == sampled.total_events
    key = ("category", "phase", "name", "site")
    wanted = {
        tuple(exact.names[row[2]] if i == 2 else v for i, v in enumerate(row)): rest
        for row, rest in zip(
            _columns(exact, key), _columns(exact, ("count", "total_ns", "min_ns", "max_ns")), strict=True
        )
    }
    found = {
        tuple(sampled.names[row[2]] if i == 2 else v for i, v in enumerate(row)): rest
        for row, rest in zip(
            _columns(sampled, key), _columns(sampled, ("count", "total_ns", "min_ns", "max_ns")), strict=True
        )
    }
    assert wanted == found
    a, b = build_report(exact), build_report(sampled)
    assert a["overview"]["total"] == b["overview"]["total"]
    assert a["overview"]["steps"] == b["overview"]["steps"]
    assert a["health"] == b["health"]
    for table in ("operators", "operators_by_shape", "kernels", "runtime"):
        for one, other in zip(a[table], b[table], strict=True):
            median, close = one.pop("median_ns"), other.pop("median_ns")
            assert one == other
            assert abs(close - median) <= 0.011 * median + 1
    assert b["source"]["sampled"] and "all sums cover all events" in b["source"]["note"]


@pytest.mark.parametrize("seed", range(20))
def test_events_are_sorted_by_start_and_the_longer_first(seed: int) -> None:
    random = np.random.default_rng(seed)
    events = np.zeros(200, EVENT)
    events["start_ns"] = random.integers(0, 30, 200)
    events["dur_ns"] = random.integers(0, 5, 200)
    events["value"] = np.arange(200)
    wanted = sorted(events.tolist(), key=lambda event: (event[0], -event[1], event[11]))
    assert sort_events(events).tolist() == wanted


@pytest.mark.parametrize("shift", [0, 40])
def test_what_is_kept_of_a_time_line(shift: int) -> None:
    random = np.random.default_rng(0)
    events = np.zeros(5000, EVENT)
    events["start_ns"] = random.integers(0, 10**6, 5000)
    events["dur_ns"] = random.integers(1, 1000, 5000).astype(np.int64) << shift
    events["lane"] = random.integers(0, 3, 5000)
    events["category"] = Category.HOST
    kept = visible(events, 600)
    assert len(kept) == 600 == len(set(kept.tolist())) and (np.diff(kept) > 0).all()
    # 50 buckets a lane: the longest of each is there (times beyond some minutes are alike).
    bucket = events["start_ns"] * 50 // 10**6
    for lane in range(3):
        for number in range(50):
            inside = np.flatnonzero((events["lane"] == lane) & (bucket == number))
            inside_kept = np.intersect1d(inside, kept)
            assert len(inside_kept) > 0
            if shift == 0:
                assert events["dur_ns"][inside].max() == events["dur_ns"][inside_kept].max()
    assert visible(events, 5000).tolist() == list(range(5000))
    assert len(visible(events, 0)) == 0


def test_the_longest_events_of_every_stretch_stay(tmp_path: Path) -> None:
    rows = encoder_records(300)
    rows["end_ns"][5_0::100] += 5_000_000
    with NativeWriter(tmp_path / "a.thrtrace", HEAD) as writer:
        writer.sites(sites())
        writer.records(rows)
    whole, part = read_trace(tmp_path / "a.thrtrace"), read_trace(tmp_path / "a.thrtrace", limit=600)
    longest = np.sort(whole.events["dur_ns"])[-20:]
    assert np.isin(longest, part.events["dur_ns"]).all()
    # No stretch of a lane is empty that was not.
    for lane in np.unique(whole.events["lane"]):
        all_starts = whole.events["start_ns"][whole.events["lane"] == lane]
        starts = part.events["start_ns"][part.events["lane"] == lane]
        edges = np.linspace(all_starts.min(), all_starts.max() + 1, 21)
        assert (np.histogram(starts, edges)[0] > 0).tolist() == (np.histogram(all_starts, edges)[0] > 0).tolist()


def _columns(trace: Trace, columns: tuple[str, ...]) -> list[tuple[int, ...]]:
    return list(zip(*(getattr(trace.totals, name).tolist() for name in columns), strict=True))


def _block_ends(data: bytes) -> list[int]:
    ends, offset = [], 16
    while offset < len(data):
        length = struct.unpack_from("<4sIQ", data, offset)[2]
        offset += 16 + length + -length % 8
        ends.append(offset)
    return ends


def _records_in(data: bytes, end: int) -> int:
    offset = 16
    while offset < end:
        tag, _, length = struct.unpack_from("<4sIQ", data, offset)
        if offset + 16 + length + -length % 8 == end:
            return length // 64 if tag == b"RECS" else 0
        offset += 16 + length + -length % 8
    raise AssertionError("no block ends there")

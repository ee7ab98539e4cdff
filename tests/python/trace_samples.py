"""Traces for the tests: made record by record, and whole runs of a small encoder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from thresher.profiler.trace import EVENT, Category, Lane, NativeWriter, Site, Trace
from thresher.profiler.trace.native_file import RECORD
from thresher.profiler.trace.store import Store
from thresher.profiler.trace.totals import TotalsSum

START = 1_790_000_000_000_000_000
STEPS = 9
PEAKS = {
    "cpu_model": "Test CPU",
    "l1_bytes": 32 << 10,
    "l2_bytes": 512 << 10,
    "l3_bytes": 32 << 20,
    "l3_cores": 2,
    "by_threads": [
        {
            "num_threads": threads,
            "fp32_gflops": {"median": 100.0 * threads, "min": 90.0, "max": 110.0},
            "bf16_gflops": None,
            "int8_gops": {"median": 160.0 * threads, "min": 90.0, "max": 110.0},
            "l1_read_gb_per_s": {"median": 170.0 * threads, "min": 1.0, "max": 200.0},
            "l2_read_gb_per_s": {"median": 95.0 * threads, "min": 1.0, "max": 200.0},
            "l3_read_gb_per_s": {"median": 55.0 * threads, "min": 1.0, "max": 200.0},
            "dram_read_gb_per_s": {"median": 24.0 * threads, "min": 1.0, "max": 200.0},
        }
        for threads in (1, 2)
    ],
}
HEAD = {
    "engine_version": "0.1.0",
    "isa": "avx2",
    "cpu": "Test CPU",
    "num_threads": 2,
    "pid": 77,
    "start_ns": START - 1000,
}


def record(kind: int, start: int, end: int, **fields: int) -> tuple[int, ...]:
    """One record; times are relative to START."""
    values = dict.fromkeys(RECORD.names or (), 0)
    values |= {"start_ns": START + start, "end_ns": START + end, "kind": kind, **fields}
    return tuple(values.values())


def records(*rows: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.array(list(rows), RECORD)


def sites() -> list[dict[str, Any]]:
    """The plan of a small encoder."""
    names = ("linear", "layer_norm", "reshape")
    return [
        {
            "id": number,
            "name": names[number % 3],
            "kernel": "" if number % 3 == 2 else f"{names[number % 3]} fp32 avx2",
            "hardware": 35 if number % 3 == 2 else 34,
            "section": "reshape" if number % 3 == 2 else "forward",
            "shapes": f"16x384, 384x{384 * (1 + number % 2)}",
            "dtypes": "f32, f32",
            "outputs": "16x384",
            "precision": "fp32",
            "module": f"encoder.layer.{number // 3}.{'attention' if number % 3 == 0 else 'output'}",
            "source": f"modeling.py:{100 + number} in forward",
            "flops": 0.0 if number % 3 == 2 else 2.0 * 16 * 384 * 384 * (1 + number % 2),
            "bytes": 4.0 * (16 * 384 + 384 * 384),
            "graph": "graph_0",
            "step": number,
        }
        for number in range(1, STEPS + 1)
    ]


def encoder_records(calls: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Calls of the encoder, one after another."""
    random = np.random.default_rng(seed)
    found = np.zeros((calls, STEPS + 2), RECORD)
    duration = random.integers(2_000, 60_000, (calls, STEPS))
    between = random.integers(10, 300, (calls, STEPS))
    end = np.cumsum(duration + between, axis=1)
    length = end[:, -1]
    begin = START + np.cumsum(np.r_[0, (length + random.integers(3_000, 30_000, calls))[:-1]])
    ops = found[:, :STEPS]
    ops["start_ns"] = begin[:, None] + 1_000 + end - duration
    ops["end_ns"] = begin[:, None] + 1_000 + end
    ops["correlation"] = 1 + np.arange(calls * STEPS).reshape(calls, STEPS)
    ops["site"] = np.arange(1, STEPS + 1)
    ops["event"] = 9
    for column, (kind, event, margin) in enumerate([(1, 5, 200), (2, 39, 900)]):
        row = found[:, STEPS + column]
        row["kind"], row["event"], row["section"] = kind, event, 3
        row["start_ns"] = begin + 1_000 - margin
        row["end_ns"] = begin + 1_000 + length + margin
    found["execution"] = 1 + np.arange(calls)[:, None]
    result: np.ndarray[Any, Any] = found.reshape(-1)
    return result


def write_encoder(path: Path, calls: int, *, block: int = 4096, shuffle: bool = False) -> Path:
    """A native trace of the encoder."""
    rows = encoder_records(calls)
    if shuffle:
        rows = np.random.default_rng(1).permutation(rows)
    with NativeWriter(path, HEAD) as writer:
        writer.data({"script": "encoder.py", "torch": "2.13.0", "python": "3.11.7", "peaks": PEAKS})
        writer.sites(sites())
        for begin in range(0, len(rows), block):
            writer.records(rows[begin : begin + block])
        writer.close(stop_ns=int(rows["end_ns"].max()) + 1000)
    return path


def trace_of(events: np.ndarray[Any, Any], **meta: Any) -> Trace:
    """A trace of events that are at hand; lanes 0 to 2 are threads, 3 and 4 are streams."""
    events = events[np.lexsort((-events["dur_ns"], events["start_ns"]))]
    store = Store()
    store.add(events)
    totals = TotalsSum(exact=True)
    totals.add(events)
    return Trace(
        meta={"format": "chrome", "file": "made", "complete": True, "truncated": False, "dropped": 0, **meta},
        names=[f"name {index}" for index in range(8)],
        lanes=[Lane(index, "device" if index > 2 else "host", 1, index, f"lane {index}") for index in range(5)],
        sites={0: Site(0, "operator")},
        events=events,
        total_events=len(events),
        totals=totals.result(),
        store=store,
    )


def random_events(seed: int, count: int, extent: int = 1000) -> np.ndarray[Any, Any]:
    """Events of all kinds that overlap as they like, some without duration, some alike."""
    random = np.random.default_rng(seed)
    events = np.zeros(count, EVENT)
    events["start_ns"] = START + random.integers(0, extent, count)
    events["dur_ns"] = random.integers(0, extent // 5 + 1, count) * random.integers(0, 2, count)
    events["category"] = random.choice([int(c) for c in Category if c != Category.MEMORY], count)
    events["lane"] = np.where(
        events["category"] <= Category.COMMUNICATION, random.integers(3, 5, count), random.integers(0, 3, count)
    )
    events["name"] = random.integers(0, 8, count)
    events["site"] = -1
    events["event"] = 0xFFFF
    events["correlation"] = random.integers(0, 20, count)
    return events


def chrome_file(path: Path, events: list[dict[str, Any]], **members: Any) -> Path:
    """A Chrome JSON trace."""
    data = {"schemaVersion": 1, "baseTimeNanoseconds": START, **members, "traceEvents": events}
    path.write_text(json.dumps(data))
    return path


def complete(cat: str, name: str, ts: float, dur: float, *, pid: Any = 1, tid: Any = 1, **args: Any) -> dict[str, Any]:
    """A complete event of a Chrome JSON trace."""
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}

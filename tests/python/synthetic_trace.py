"""Traces without a model: what a profiled run of a small encoder looks like, in the engine's own format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from thresher.profiler.trace import NativeWriter
from thresher.profiler.trace.native import RECORD

START_NS = 1_760_000_000_123_456_789
PID = 4242
THREAD = 4243
MACHINE = {"engine_version": "0.1.0", "isa": "avx2", "cpu": "Test CPU @ 2 GHz", "num_threads": 2}
PEAKS = {
    "threads": [
        {
            "num_threads": threads,
            "fp32_gflops": 100.0 * threads,
            "bf16_gflops": None,
            "int8_gops": 400.0 * threads,
            "dram_read_gbytes": 20.0 * threads,
            "l1_read_gbytes": 400.0 * threads,
            "l2_read_gbytes": 200.0 * threads,
            "l3_read_gbytes": 80.0 * threads,
        }
        for threads in (1, 2)
    ]
}
SITES: list[dict[str, Any]] = [
    {
        "id": 1,
        "name": "linear",
        "kernel": "linear fp32 avx2",
        "hardware": 34,
        "section": "forward",
        "shapes": "1x16x384, 384x1536",
        "dtypes": "f32, f32",
        "outputs": "1x16x1536",
        "precision": "fp32",
        "module": "encoder.layer.0.intermediate.dense",
        "source": "modeling_bert.py:412 in forward",
        "flops": 18_874_368.0,
        "bytes": 2_482_176.0,
        "graph": "graph_0",
        "step": 0,
    },
    {
        "id": 2,
        "name": "gelu",
        "kernel": "gelu fp32 avx2",
        "hardware": 34,
        "section": "forward",
        "flops": -1,
        "bytes": -1,
    },
    {"id": 3, "name": "copy", "hardware": 35, "section": "reshape", "shapes": "1x16x1536", "bytes": 196_608.0},
    {"id": 4, "name": "tokenize", "section": ""},
]
STEP_NS = 1_000_000


def records(steps: int = 3, *, speed: float = 1.0) -> np.ndarray[Any, Any]:
    """Records of some steps of a millisecond each: a range, a call, an execution, three operators, memory.

    Args:
        steps: How many.
        speed: Times of the operator linear are divided by it.
    """
    rows: list[dict[str, int]] = []
    for step in range(steps):
        start = START_NS + step * STEP_NS
        run = step + 1
        linear = int(400_000 / speed)
        end = start + 200_000 + linear + 150_000

        def add(kind: int, begin: int, end: int, **more: int) -> None:
            rows.append({"kind": kind, "start_ns": begin, "end_ns": end, "thread": THREAD, "site": 0, **more})

        add(6, start, start + STEP_NS, event=39, section=3, value=step, site=9)
        add(5, start + 1000, end + 3000, event=0, section=3, site=4)
        add(2, start + 2000, end + 2000, event=39, section=3)
        add(1, start + 3000, end + 1000, event=5, section=3, execution=run)
        first = step * 3 + 1
        add(0, start + 100_000, start + 100_000 + linear, site=1, correlation=first, execution=run, external=7, event=9)
        at = start + 150_000 + linear
        add(0, at, at + 50_000, site=2, correlation=first + 1, execution=run, event=9)
        add(0, at + 60_000, at + 110_001, site=3, correlation=first + 2, execution=run, event=9, section=1)
        add(4, start + 5000, start + 5000, event=37, value=4096, execution=0x7F00_0000_1000, correlation=8192)
        add(4, end, end, event=38, value=-4096, execution=0x7F00_0000_1000, correlation=4096)
    table = np.zeros(len(rows), RECORD)
    for index, row in enumerate(rows):
        for name, value in row.items():
            table[name][index] = value
    return table


def write(
    path: Path,
    steps: int = 3,
    *,
    speed: float = 1.0,
    finished: bool = True,
    data: dict[str, Any] | None = None,
    **head: Any,
) -> Path:
    """Writes such a trace and returns its path.

    Args:
        path: The file.
        steps: How many steps.
        speed: Times of the operator linear are divided by it.
        finished: Whether the recording was stopped; otherwise as if the process had been killed.
        data: What the metadata holds beside the peaks.
        head: What differs from `MACHINE`.
    """
    with NativeWriter(path, {**MACHINE, "pid": PID, "rank": 0, "start_ns": START_NS, **head}) as writer:
        writer.data({"peaks": PEAKS, "python": "3.11.7", "torch": "2.13.0", **(data or {})})
        writer.sites(SITES)
        writer.records(records(steps, speed=speed))
        if finished:
            writer.close(START_NS + steps * STEP_NS)
    return path

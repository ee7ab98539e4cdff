"""How one model's time falls with the number of threads, and what a core that another process keeps busy costs.

Usage: python scaling.py --model minilm --output FOLDER [--quick], in an environment with Thresher; bench/run.py
--scaling calls it. The weights are random: what is measured does not depend on them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

import lines
import torch
from models import MODELS
from report import Row
from sizes import SHAPES, inputs_of
from transformers import BertConfig, BertModel

import thresher
from measure import environment
from measure.statistics import median, percentile
from measure.table import Table
from thresher import _engine

SEQUENCE = 128
BATCHES = (1, 8, 32)
PRECISIONS = ("fp32", "bf16", "int8")
ROUNDS = 6
QUICK_ROUNDS = 3
SAMPLE_SECONDS = 0.25  # of calls in a turn, at least one
QUICK_SAMPLE_SECONDS = 0.05
BUSY_CALLS = 300  # enough for a 99th percentile
MOST_BUSY_SECONDS = 6.0


def thread_counts(cores: int) -> list[int]:
    """1, 2, 4 and so on, and all cores."""
    counts = [1]
    while counts[-1] * 2 < cores:
        counts.append(counts[-1] * 2)
    return counts if cores == 1 else [*counts, cores]


class Case:
    """One model at one number of threads, batch and precision."""

    def __init__(self, encoder: Any, threads: int, batch: int, precision: str) -> None:
        self.threads, self.batch, self.precision = threads, batch, precision
        torch.compiler.reset()
        self._model = thresher.compile(encoder, threads=threads, precision=precision)
        self._inputs = inputs_of((batch, SEQUENCE))
        for _ in range(3):
            self.call()

    def call(self) -> float:
        """One call, in milliseconds."""
        begin = time.perf_counter()
        with torch.inference_mode():
            self._model(**self._inputs)
        return (time.perf_counter() - begin) * 1e3

    def sample(self, seconds: float) -> list[float]:
        """Calls for so long, at least one; one before them wakes threads and is not counted."""
        self.call()
        times: list[float] = []
        end = time.perf_counter() + seconds
        while not times or time.perf_counter() < end:
            times.append(self.call())
        return times


def measure(model: str, precisions: tuple[str, ...], batches: tuple[int, ...], quick: bool) -> dict[str, Any]:
    """Everything, as plain data. Precisions and numbers of threads take turns: a slow moment meets them all."""
    torch.manual_seed(7)
    encoder = BertModel(BertConfig(**SHAPES[model]), add_pooling_layer=False).eval()
    cores = _engine.usable_cores()
    counts = thread_counts(cores)
    rounds, seconds = (QUICK_ROUNDS, QUICK_SAMPLE_SECONDS) if quick else (ROUNDS, SAMPLE_SECONDS)
    cases: list[dict[str, Any]] = []
    for batch in batches:
        group = [Case(encoder, threads, batch, precision) for precision in precisions for threads in counts]
        medians: list[list[float]] = [[] for _ in group]
        calls: list[list[float]] = [[] for _ in group]
        for turn in range(rounds):
            order = range(len(group)) if turn % 2 == 0 else reversed(range(len(group)))
            for at in order:
                times = group[at].sample(seconds)
                calls[at] += times
                medians[at].append(median(times))
        for at, case in enumerate(group):
            alone = medians[at - at % len(counts)]  # the same precision on one thread
            speedups = [one / own for one, own in zip(alone, medians[at], strict=True)]
            cases.append(
                {
                    "precision": case.precision,
                    "batch": batch,
                    "threads": case.threads,
                    "median_ms": median(calls[at]),
                    "least_ms": min(calls[at]),
                    "p99_ms": percentile(calls[at], 0.99),
                    "speedup": median(speedups),
                }
            )
        print(f"bench: batch {batch}", file=sys.stderr, flush=True)
    return {
        "format": "thresher scaling",
        "model": model,
        "sequence": SEQUENCE,
        "cores": cores,
        "environment": environment.describe(),
        "cases": cases,
        "busy": busy(encoder, cores, quick),
    }


def busy(encoder: Any, cores: int, quick: bool) -> dict[str, Any]:
    """All cores at batch 1, on an idle machine and beside a process that keeps one of them busy, by turns."""
    case = Case(encoder, cores, 1, "fp32")
    turns = 2 if quick else 4
    seconds = MOST_BUSY_SECONDS / (4 if quick else 1) / turns
    found: dict[str, list[float]] = {"idle": [], "busy": []}
    for _ in range(turns):
        found["idle"] += case.sample(seconds)[: BUSY_CALLS // turns]
        with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
            try:
                time.sleep(0.1)
                found["busy"] += case.sample(seconds)[: BUSY_CALLS // turns]
            finally:
                other.kill()
    result: dict[str, Any] = {"threads": cores, "ratio": median(found["busy"]) / median(found["idle"])}
    for name, times in found.items():
        result[name] = {"median_ms": median(times), "p99_ms": percentile(times, 0.99), "calls": len(times)}
    return result


def table_of(found: dict[str, Any]) -> Table:
    """One row a precision and batch: the time on one thread, and how many times faster more threads are."""
    counts = sorted({case["threads"] for case in found["cases"]})
    columns = ["<precision", "batch", "1 thread ms", *(f"{count}" for count in counts[1:]), "all ms"]
    table = Table(f"{MODELS[found['model']].title}, sequence {SEQUENCE}: times as fast as one thread", columns)
    for key in dict.fromkeys((case["precision"], case["batch"]) for case in found["cases"]):
        row = [case for case in found["cases"] if (case["precision"], case["batch"]) == key]
        faster = [f"{case['speedup']:.2f}" for case in row[1:]]
        table.add(key[0], str(key[1]), f"{row[0]['median_ms']:.2f}", *faster, f"{row[-1]['median_ms']:.2f}")
    return table


def picture_of(found: dict[str, Any]) -> str:
    """The times as lines over the number of threads, one panel a batch."""
    rows = [
        Row(
            threads=case["threads"],
            batch=case["batch"],
            sequence=SEQUENCE,
            key=f"thresher-{case['precision']}",
            title="Thresher",
            precision=case["precision"],
            median=case["median_ms"],
            p10=case["least_ms"],
            p90=case["p99_ms"],
            ratio=case["speedup"],
            ratio_low=case["speedup"],
            ratio_high=case["speedup"],
            error=0.0,
            gflops=0.0,
            create_ms=0.0,
            first_ms=0.0,
        )
        for case in found["cases"]
    ]
    return lines.svg(rows, f"{MODELS[found['model']].title}, sequence {SEQUENCE}", along="threads")


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SHAPES, default="minilm")
    parser.add_argument("--precision", help=f"default: {','.join(PRECISIONS)}, with --quick fp32")
    parser.add_argument("--batches", help=f"default: {','.join(map(str, BATCHES))}, with --quick 1 and 8")
    parser.add_argument("--quick", action="store_true", help="less than a minute: short turns")
    parser.add_argument("--output", type=Path, default=Path("build/bench"))
    options = parser.parse_args()
    batches = tuple(map(int, options.batches.split(","))) if options.batches else BATCHES
    precisions = tuple(options.precision.split(",")) if options.precision else PRECISIONS
    if options.quick:
        batches = batches if options.batches else BATCHES[:2]
        precisions = precisions if options.precision else PRECISIONS[:1]
    found = measure(options.model, precisions, batches, options.quick)
    options.output.mkdir(parents=True, exist_ok=True)
    stem = "scaling" if options.model == "minilm" else f"scaling-{options.model}"
    (options.output / f"{stem}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (options.output / f"{stem}.svg").write_text(picture_of(found), encoding="utf-8")
    table_of(found).print()
    beside = found["busy"]
    print(
        f"one core busy: {beside['ratio']:.2f} times the time of an idle machine on {beside['threads']} threads; "
        f"99th percentile {beside['busy']['p99_ms'] / beside['busy']['median_ms']:.2f} times the median"
    )
    print(f"results: {options.output}/{stem}.json, {stem}.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())

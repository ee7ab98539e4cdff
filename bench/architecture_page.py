"""The page of architectures: error, what is left to PyTorch, and times against eager, each in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from architectures import ARCHITECTURES

from measure.statistics import median, percentile
from measure.table import Table
from measure.worker import Worker, WorkerError, clean_environment

CREATE_LIMIT_S = 240.0
TURN_LIMIT_S = 60.0
BUDGET_S = 40.0  # of turns, of one row: what is slow gets fewer
MIN_ROUNDS = 3
SHOWN = 5  # operators in a cell; the JSON file has all
SLOWER = 0.97  # beneath what noise moves a median by


def measure(
    python: Path, output: Path, names: Sequence[str], precisions: Sequence[str], threads: int, rounds: int
) -> list[dict[str, Any]]:
    """Measures every architecture in every precision.

    Returns:
      A row each: what the worker's "create" answers, samples, and medians; or "failed" with the reason.
    """
    rows = []
    for name in names:
        for precision in precisions:
            print(f"bench: {name} {precision}", file=sys.stderr, flush=True)
            row: dict[str, Any] = {"architecture": name, "kind": ARCHITECTURES[name].kind, "precision": precision}
            try:
                row |= _measure_one(python, output, name, precision, threads, rounds)
            except WorkerError as error:
                row["failed"] = str(error)
                print(f"bench: {error}", file=sys.stderr, flush=True)
            rows.append(row)
    return rows


def _measure_one(python: Path, output: Path, name: str, precision: str, threads: int, rounds: int) -> dict[str, Any]:
    script = Path(__file__).with_name("architecture_worker.py")
    variables = clean_environment(threads, {"THRESHER_NUM_THREADS": str(threads), "THRESHER_PROFILE": "OFF"})
    log = output / "logs" / f"architecture-{name}-{precision}.log"
    with Worker(f"{name} {precision}", [str(python), str(script), name, precision], variables, log) as worker:
        row = worker.call("create", CREATE_LIMIT_S)
        samples: dict[str, list[float]] = {engine: [] for engine in row.pop("engines")}
        spent = 0.0
        for turn in range(rounds):
            for engine in list(samples) if turn % 2 else reversed(samples):
                samples[engine].append(worker.call("turn", TURN_LIMIT_S, engine=engine)["ms"])
                spent += 2 * samples[engine][-1] / 1e3
            if spent > BUDGET_S and turn + 1 >= MIN_ROUNDS:
                break
    ratios = [eager / ours for eager, ours in zip(samples["eager"], samples["thresher"], strict=True)]
    return row | {
        "samples_ms": samples,
        "eager_ms": median(samples["eager"]),
        "thresher_ms": median(samples["thresher"]),
        "ratio": median(ratios),
        "ratio_p10": percentile(ratios, 0.1),
        "ratio_p90": percentile(ratios, 0.9),
        "times_fp32": _times_fp32(samples),
    }


def _times_fp32(samples: dict[str, list[float]]) -> float | None:
    """How many times as fast as the same model in float32, in Thresher too; None for that itself."""
    if "thresher-fp32" not in samples:
        return None
    pairs = zip(samples["thresher-fp32"], samples["thresher"], strict=True)
    return median([fp32 / ours for fp32, ours in pairs])


def is_bad(row: dict[str, Any]) -> bool:
    """Whether a row is one that should not be: failed, slower than eager, another answer, or in PyTorch after all."""
    if "failed" in row or row.get("eager_shapes"):
        return True
    return row["ratio"] < SLOWER or not row["same_shape"] or wrong(row)


def wrong(row: dict[str, Any]) -> bool:
    """Whether the error is larger than rounding explains: twice eager's, where that is not tiny itself."""
    return bool(row["error"] > max(2 * row["eager_error"], 1e-5))


def table_of(rows: Sequence[dict[str, Any]], threads: int) -> Table:
    """The page's table."""
    left = ("<architecture", "<kind", "<values", "error", "eager's", "parts", "in engine", "<left to PyTorch")
    title = f"Architectures of transformers, random weights, {threads} threads"
    table = Table(title, (*left, "eager ms", "ms", "times eager", "times own fp32"))
    for row in rows:
        if "failed" in row:
            reason = row["failed"].splitlines()[0]
            table.add(
                row["architecture"], row["kind"], row["precision"], *("",) * 4, reason, "", "", "failed", "", bad=True
            )
            continue
        table.add(
            row["architecture"],
            row["kind"],
            row["precision"],
            f"{row['error']:.1e}",
            f"{row['eager_error']:.1e}",
            str(row["parts"]),
            f"{row['nodes_in_engine']}/{row['nodes']}",
            _left(row["left"]),
            f"{row['eager_ms']:.1f}",
            f"{row['thresher_ms']:.1f}",
            f"{row['ratio']:.2f} ({row['ratio_p10']:.2f}..{row['ratio_p90']:.2f})",
            "" if row["times_fp32"] is None else f"{row['times_fp32']:.2f}",
            bad=is_bad(row),
        )
    return table


def _left(left: dict[str, int]) -> str:
    """The operators that are met most often, and how many others there are."""
    names = [f"{_short(name)} x{count}" if count > 1 else _short(name) for name, count in left.items()]
    return ", ".join([*names[:SHOWN], *([f"{len(names) - SHOWN} more"] if len(names) > SHOWN else [])])


def _short(name: str) -> str:
    """An operator's name without namespace and overload."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else name

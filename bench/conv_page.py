"""The page of convolutions: Thresher beside the best of PyTorch, ONNX Runtime and OpenVINO, in turns."""

from __future__ import annotations

import contextlib
import csv
import io
import math
import sys
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from measure.statistics import median
from measure.table import Table
from measure.worker import Worker, WorkerError, clean_environment
from thresher.draw.bars import whole_svg

OURS = "thresher"
# Key, title, environment.
ENGINES = (
    (OURS, "Thresher", "thresher"),
    ("torch", "PyTorch", "thresher"),
    ("torch-last", "PyTorch, channels_last", "thresher"),
    ("onnxruntime", "ONNX Runtime", "peers"),
    ("openvino", "OpenVINO", "peers"),
)
TITLES = {key: title for key, title, _ in ENGINES}
MAKE_LIMIT_S = 240.0
TURN_LIMIT_S = 60.0
BUDGET_S = 20.0  # of turns, of one case: what is slow gets fewer
MIN_ROUNDS = 3
# An answer is no convolution of the same numbers where it is off by more, as a share of its length.
LARGEST_ERROR = {"fp32": 1e-4, "bf16": 2e-2, "int8": 0.5}
_WIDTH, _LABEL, _VALUE, _BAR, _TOP = 920, 280, 220, 16, 64


def measure(
    pythons: Mapping[str, Path],
    output: Path,
    file: Path | None,
    networks: Sequence[str],
    batches: Sequence[int],
    threads: Sequence[int],
    rounds: int,
    precisions: Sequence[str],
) -> dict[str, Any]:
    """Measures the convolutions of a file of commands, or networks where there is none.

    Args:
      pythons: interpreters of the environments that ENGINES names.
      output: folder of the workers' files.
      file: commands, or None.
      networks: beginnings of the networks' names; none for all.
      batches, threads, precisions: every combination is measured.
      rounds: turns of every engine in every case.

    Returns:
      "environment" and "rows": a case each, with "engines" by key (samples, median, error, or why it is not available),
      "roof_ms", what Thresher's operators take at least at the machine's measured peaks, and, against the peer with the
      smallest median, "best", "ratio" and "ratio_at_roof", what the ratio would be at that least time. Where an engine
      failed, or gave another answer, "failed" says so, and the rows are those before it.

    Raises:
      WorkerError: an engine does not start, or there is nothing to measure.
    """
    rows: list[dict[str, Any]] = []
    about: dict[str, Any] = {}
    for count in threads:
        with contextlib.ExitStack() as stack:
            workers = {}
            for key, title, place in ENGINES:
                variables = clean_environment(count, {"THRESHER_NUM_THREADS": str(count), "THRESHER_PROFILE": "OFF"})
                script = Path(__file__).with_name("conv_worker.py")
                command = [str(pythons[place]), str(script), key, str(count), str(output / "models" / "conv")]
                worker = Worker(title, command, variables, output / "logs" / f"conv-{key}.log")
                workers[key] = stack.enter_context(worker)
            given = str(file.resolve()) if file else None
            asked = {"file": given, "networks": list(networks), "batches": list(batches)}
            found = workers[OURS].call("begin", MAKE_LIMIT_S, **asked)
            about = found["environment"]
            for case in found["cases"]:
                if case["precision"] not in precisions:
                    continue
                try:
                    rows.append(_measure_one(workers, case, count, rounds))
                except WorkerError as error:
                    told = f"{case['name']}, batch {case['batch']}, {count} threads, {case['precision']}"
                    return {"environment": about, "rows": rows, "failed": f"{told}: {error}"}
                report(rows[-1])
    return {"environment": about, "rows": rows}


def report(row: Mapping[str, Any]) -> None:
    """A line about what was just measured."""
    name = f"{row['name']}, batch {row['batch']}, {row['threads']} threads, {row['precision']}"
    told = f"{row['ratio']:.2f} x {TITLES[row['best']]}" if "ratio" in row else "no peer has it"
    print(f"bench: {name}: {told}", file=sys.stderr, flush=True)


def _measure_one(workers: Mapping[str, Worker], case: dict[str, Any], threads: int, rounds: int) -> dict[str, Any]:
    engines: dict[str, dict[str, Any]] = {}
    for key, worker in workers.items():
        engines[key] = worker.call("make", MAKE_LIMIT_S, case=case)
        if engines[key].get("error", 0.0) > LARGEST_ERROR[case["precision"]]:
            raise WorkerError(f"{TITLES[key]}: {case['name']}: another answer, off by {engines[key]['error']:.1e}")
    if "unavailable" in engines[OURS]:
        raise WorkerError(f"Thresher: {case['name']}: {engines[OURS]['unavailable']}")
    samples: dict[str, list[float]] = {key: [] for key, made in engines.items() if "unavailable" not in made}
    spent = 0.0
    for turn in range(rounds):
        for key in list(samples) if turn % 2 else reversed(samples):
            samples[key].append(workers[key].call("turn", TURN_LIMIT_S)["ms"])
            spent += 2 * samples[key][-1] / 1e3
        if spent > BUDGET_S and turn + 1 >= MIN_ROUNDS:
            break
    for key, found in samples.items():
        engines[key] |= {"samples_ms": found, "median_ms": median(found)}
    return {**case, "threads": threads, "engines": engines, **_compared(samples, engines[OURS]["roof_ms"])}


def _compared(samples: Mapping[str, Sequence[float]], roof_ms: float | None) -> dict[str, Any]:
    """The peer with the smallest median, and how many times as fast Thresher is: the median over the turns."""
    found: dict[str, Any] = {"roof_ms": roof_ms}
    peers = {key: median(each) for key, each in samples.items() if key != OURS}
    if peers:
        best = min(peers, key=lambda key: peers[key])
        found |= {"best": best, "ratio": median([p / o for p, o in zip(samples[best], samples[OURS], strict=True)])}
        if roof_ms:
            found["ratio_at_roof"] = peers[best] / roof_ms
    return found


def means_of(rows: Sequence[Mapping[str, Any]], figure: str = "ratio") -> list[tuple[str, float, int]]:
    """Geometric means of the ratios: for each precision, of all and of each kind, with how many they are of."""
    found = []
    for precision in dict.fromkeys(row["precision"] for row in rows):
        named = [row for row in rows if row["precision"] == precision and figure in row]
        kinds = dict.fromkeys(row["kind"] for row in named)
        for kind in ("all", *(kinds if len(kinds) > 1 else ())):
            ratios = [row[figure] for row in named if kind in ("all", row["kind"])]
            if ratios:
                mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
                found.append((f"{precision}, {kind}", mean, len(ratios)))
    return found


def table_of(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    """All cases, and the geometric means."""
    peers = [key for key, *_ in ENGINES if key != OURS]
    columns = (
        "<case",
        "batch",
        "threads",
        "<type",
        "Thresher ms",
        *(f"{TITLES[key]} ms" for key in peers),
        "of roof",
        "times best",
        "at roof",
    )
    table = Table(title, columns)
    for row in rows:
        times = [row["engines"][key].get("median_ms") for key in (OURS, *peers)]
        roof = row["roof_ms"]
        table.add(
            row["name"],
            str(row["batch"]),
            str(row["threads"]),
            row["precision"],
            *("" if time is None else f"{time:.3f}" for time in times),
            f"{roof / times[0]:.0%}" if roof else "",
            f"{row['ratio']:.2f}" if "ratio" in row else "",
            f"{row['ratio_at_roof']:.2f}" if "ratio_at_roof" in row else "",
            bad=row.get("ratio", 1.0) < 1,
        )
    at_roof = {name: mean for name, mean, _ in means_of(rows, "ratio_at_roof")}
    for name, mean, count in means_of(rows):
        most = f"{at_roof[name]:.2f}" if name in at_roof else ""
        table.add(f"geometric mean, {name} ({count})", *("",) * (len(columns) - 3), f"{mean:.2f}", most)
    return table


def csv_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line for each case."""
    text = io.StringIO()
    keys = [key for key, *_ in ENGINES]
    columns = [
        "name",
        "kind",
        "batch",
        "threads",
        "precision",
        *(f"{key}_ms" for key in keys),
        "roof_ms",
        "best",
        "ratio",
    ]
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({**row, **{f"{key}_ms": row["engines"][key].get("median_ms") for key in keys}})
    return text.getvalue()


def svg_of(rows: Sequence[Mapping[str, Any]], title: str) -> str:
    """A bar for each case: how many times as fast as the best peer; a line stands at 1."""
    shown = [row for row in rows if "ratio" in row]
    longest = max([1.0, *(row["ratio"] for row in shown)])
    scale = (_WIDTH - _LABEL - _VALUE) / longest
    parts, y = [], _TOP
    several = len({(row["batch"], row["threads"]) for row in shown}) > 1
    for row in shown:
        label = f"{row['name']}, b{row['batch']} t{row['threads']}" if several else row["name"]
        if row["precision"] != "fp32":
            label += f", {row['precision']}"
        width = max(1.0, row["ratio"] * scale)
        tip = f"{row['ratio']:.2f} x {TITLES[row['best']]}"
        parts.append(f'<text x="{_LABEL - 8}" y="{y + 11}" text-anchor="end">{escape(label)}</text>')
        style = "ours" if row["ratio"] >= 1 else "peer"
        parts.append(f'<rect class="{style}" x="{_LABEL}" y="{y}" width="{width:.1f}" height="{_BAR - 4}"/>')
        parts.append(f'<text class="value" x="{_LABEL + width + 6:.1f}" y="{y + 11}">{escape(tip)}</text>')
        y += _BAR
    at = _LABEL + scale
    parts.append(f'<line class="axis" x1="{at:.1f}" y1="{_TOP - 4}" x2="{at:.1f}" y2="{y}"/>')
    means = ", ".join(f"{name} {mean:.2f}" for name, mean, _ in means_of(shown) if name.endswith(", all"))
    figures = f"Times as fast as the fastest peer, medians. Geometric means: {means}"
    return whole_svg(_WIDTH, y + 12, title, figures, [], parts)

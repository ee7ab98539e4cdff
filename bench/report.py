"""The comparison as a table: medians, and ratios taken round by round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from comparison import REFERENCE, label

from measure.statistics import median, percentile
from measure.table import Table


@dataclass(frozen=True)
class Row:
    """One engine in one case; times in ms.

    Attributes:
      ratio: how many times faster than the reference: the median over the rounds of the quotient of the two engines'
        medians in that round. What slows the host for a while slows both and cancels.
      ratio_low, ratio_high: 10th and 90th percentile of those quotients.
      error: largest absolute difference from PyTorch eager's last hidden state.
      gflops: multiplications and additions of the matrix products per nanosecond of the median.
      create_ms: making the engine's own form of the model, as far as that happens before a call.
      first_ms: the first call of this shape, less one ordinary call: here the back ends of torch.compile compile.
    """

    threads: int
    batch: int
    sequence: int
    key: str
    title: str
    precision: str
    median: float
    p10: float
    p90: float
    ratio: float
    ratio_low: float
    ratio_high: float
    error: float
    gflops: float
    create_ms: float
    first_ms: float

    @property
    def label(self) -> str:
        """Name in a picture."""
        return label(self.title, self.precision)


def rows_of(result: dict[str, Any]) -> list[Row]:
    """Every row of the table.

    Args:
      result: what `comparison.measure` returned, with "flops" of every "BATCH-SEQUENCE".
    """
    rows: list[Row] = []
    for case in result["cases"]:
        engines = case["engines"]
        reference = [median(samples) for samples in engines[REFERENCE]["rounds_ms"]]
        flops = result["flops"][f"{case['batch']}-{case['sequence']}"]
        for key, entry in engines.items():
            samples = [sample for block in entry["rounds_ms"] for sample in block]
            ratios = [r / median(block) for r, block in zip(reference, entry["rounds_ms"], strict=True)]
            typical = median(samples)
            rows.append(
                Row(
                    threads=case["threads"],
                    batch=case["batch"],
                    sequence=case["sequence"],
                    key=key,
                    title=result["engines"][key]["title"],
                    precision=result["engines"][key]["precision"],
                    median=typical,
                    p10=percentile(samples, 0.1),
                    p90=percentile(samples, 0.9),
                    ratio=median(ratios),
                    ratio_low=percentile(ratios, 0.1),
                    ratio_high=percentile(ratios, 0.9),
                    error=entry["error"],
                    gflops=flops / typical / 1e6,
                    create_ms=entry["create_ms"],
                    first_ms=entry["first_ms"] - typical,
                )
            )
    return rows


def unavailable_of(result: dict[str, Any]) -> dict[str, tuple[str, str, str]]:
    """Title, precision and reason of every engine that is not available, by key."""
    return {
        key: (engine["title"], engine["precision"], engine["unavailable"])
        for key, engine in result["engines"].items()
        if "unavailable" in engine
    }


def table_of(rows: list[Row], title: str, unavailable: Mapping[str, tuple[str, str, str]]) -> Table:
    """All cases in one table, then a row for every engine that is not available.

    Args:
      rows: what `rows_of` gives.
      title: name of the model.
      unavailable: what `unavailable_of` gives.
    """
    where_columns = ("threads", "batch", "sequence", "<engine", "<precision")
    time_columns = ("median ms", "p10", "p90", "times eager", "<p10..p90", "GFLOP/s", "max abs error")
    remark = ("<remark",) if unavailable else ()
    table = Table(f"{title}, processes in turns", (*where_columns, *time_columns, "create s", "first call s", *remark))
    for row in rows:
        where = (str(row.threads), str(row.batch), str(row.sequence), row.title, row.precision)
        times = (f"{row.median:.2f}", f"{row.p10:.2f}", f"{row.p90:.2f}", f"{row.ratio:.2f}")
        once = (f"{row.create_ms / 1e3:.2f}", f"{row.first_ms / 1e3:.2f}")
        spread = f"{row.ratio_low:.2f}..{row.ratio_high:.2f}"
        table.add(*where, *times, spread, f"{row.gflops:.0f}", f"{row.error:.1e}", *once, *("" for _ in remark))
    for name, precision, reason in unavailable.values():
        nothing = ["-"] * (len(time_columns) + 2)
        table.add("-", "-", "-", name, precision, *nothing, f"not available: {reason}")
    return table


def profiler_cost(result: dict[str, Any]) -> list[str]:
    """A sentence a case about Thresher with its profiler on; empty where that was not measured."""
    lines: list[str] = []
    for case in result["cases"]:
        off, on = (case["engines"].get(key) for key in ("thresher", "thresher-profiled"))
        if off is None or on is None:
            continue
        ratios = [median(b) / median(a) for a, b in zip(off["rounds_ms"], on["rounds_ms"], strict=True)]
        lines.append(
            f"profiler on costs {median(ratios) - 1:+.1%} at {case['threads']} thread(s), batch {case['batch']}, "
            f"sequence {case['sequence']} (rounds: {percentile(ratios, 0.1) - 1:+.1%} to "
            f"{percentile(ratios, 0.9) - 1:+.1%})"
        )
    return lines


def environment_lines(result: dict[str, Any]) -> list[str]:
    """Where and with what it was measured."""
    engines = result["engines"]
    environments = {key: engine["environment"] for key, engine in engines.items() if "environment" in engine}
    first = environments[REFERENCE]
    versions: dict[str, str] = {}
    for environment in environments.values():
        versions |= {name: value for name, value in environment["versions"].items() if value}
    return [
        f"processor: {first['cpu_model']} (family/model {first['cpu_family_model']}), {first['cores']} cores, "
        f"{' '.join(first['isa'])}",
        f"software: Python {first['python']}, {first['system']}, "
        + ", ".join(f"{name} {value}" for name, value in versions.items()),
        f"revision: {result['revision']}",
        *(f"{label(e['title'], e['precision'])}: {e['note']}" for e in engines.values() if e.get("note")),
    ]

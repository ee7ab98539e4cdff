"""The roofline plot: what each operator reaches under the roofs of its machine."""

from __future__ import annotations

from typing import Any

from thresher.profiler.analysis.costs import CostModel

_COMPUTE = (("fp32", "fp32_gflops"), ("bf16", "bf16_gflops"), ("fp16", "fp16_gflops"), ("int8", "int8_gops"))
_MEMORY = (
    ("L1", "l1_read_gbytes"),
    ("L2", "l2_read_gbytes"),
    ("L3", "l3_read_gbytes"),
    ("DRAM", "dram_read_gbytes"),
)


def roofline(rows: list[dict[str, Any]], costs: CostModel) -> dict[str, Any]:
    """The part "roofline" of the report.

    Args:
        rows: The operators by shape.
        costs: The cost model.
    """
    entry = costs.entry or {}
    roofs: list[dict[str, Any]] = [{"name": name, "gflops": entry[key]} for name, key in _COMPUTE if entry.get(key)]
    roofs += [{"name": name, "gbytes_per_s": entry[key]} for name, key in _MEMORY if entry.get(key)]
    names = (
        "name",
        "shapes",
        "count",
        "total_ns",
        "intensity",
        "gflops",
        "percent_of_peak",
        "bound",
        "precision",
        "phase",
    )
    points = [
        {name: row[name] for name in names}
        for row in rows
        if row["intensity"] is not None and row["intensity"] > 0 and row["gflops"] is not None
    ]
    reason = None
    if not roofs:
        reason = costs.reason
    elif not points:
        reason = "no operator of the trace says how much it computes and moves"
    return {"roofs": roofs, "points": points, "num_threads": entry.get("num_threads"), "reason": reason}

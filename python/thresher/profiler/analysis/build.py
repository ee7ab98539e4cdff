"""From a trace to the data of the report."""

from __future__ import annotations

from typing import Any

from thresher.profiler.analysis.accounts import account
from thresher.profiler.analysis.costs import CostModel
from thresher.profiler.analysis.findings import findings
from thresher.profiler.analysis.health import health
from thresher.profiler.analysis.kernels import kernels
from thresher.profiler.analysis.memory import memory
from thresher.profiler.analysis.modules import modules
from thresher.profiler.analysis.operators import operators, operators_by_shape, runtime
from thresher.profiler.analysis.overview import find_steps, overview
from thresher.profiler.analysis.peaks import normalise
from thresher.profiler.analysis.phases import phases, set_decoding
from thresher.profiler.analysis.roofline import roofline
from thresher.profiler.analysis.rows import groups_of
from thresher.profiler.analysis.timeline import DEFAULT_MAX_EVENTS, timeline
from thresher.profiler.trace.model import Trace

FORMAT = "thresher-profile"
FORMAT_VERSION = 1


def build_report(
    trace: Trace, *, peaks: object = None, title: str | None = None, max_events: int = DEFAULT_MAX_EVENTS
) -> dict[str, Any]:
    """The data of the report; docs/profiling/report_data.md describes it.

    Args:
        trace: The trace.
        peaks: Peaks of the machine where it was recorded, as `thresher.peaks()` or its `to_dict()` gives them; by
        default
            those that the trace holds.
        title: Title; by default the script, or else the file.
        max_events: How many events the time line shows at most.
    """
    meta = trace.meta
    steps = find_steps(trace)
    accounts = account(trace, steps.edges)
    groups = groups_of(trace, accounts.self_ns)
    num_threads = meta.get("num_threads")
    num_threads = int(num_threads) if isinstance(num_threads, int) and num_threads > 0 else None
    normal, reason = normalise(peaks if peaks is not None else meta.get("peaks"))
    costs = CostModel(normal, reason, num_threads)
    set_decoding(trace, groups, costs)
    by_shape = operators_by_shape(trace, groups, costs)
    tree, flat = modules(trace, groups)
    line = timeline(trace, accounts.begin_ns, max_events=max_events)
    report: dict[str, Any] = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "title": title or str(meta.get("script") or meta.get("file") or "profile"),
        "source": _source(trace, line),
        "machine": {
            "cpu": _text(meta.get("cpu")),
            "isa": _text(meta.get("isa")),
            "num_threads": num_threads,
            "peaks": normal,
            "peaks_reason": reason or costs.note or None,
        },
        "versions": {
            "thresher": _text(meta.get("engine_version") or meta.get("thresher")),
            "torch": _text(meta.get("torch")),
            "python": _text(meta.get("python")),
        },
        "time": {"start_unix_ns": accounts.begin_ns, "wall_ns": accounts.wall_ns},
        "health": health(trace, accounts),
        "energy": _energy(meta.get("energy")),
        "overview": overview(accounts, steps),
        "operators": operators(trace, groups, costs),
        "operators_by_shape": by_shape,
        "kernels": kernels(trace, groups, costs),
        "runtime": runtime(trace, groups, costs),
        "modules_flat": flat,
        "timeline": line,
        "memory": memory(trace, accounts.begin_ns),
        "modules": tree,
        "roofline": roofline(by_shape, costs),
    }
    report["overview"]["findings"] = findings(report)
    report["overview"]["phases"] = phases(trace, by_shape)
    return report


def _source(trace: Trace, line: dict[str, Any]) -> dict[str, Any]:
    sampled = line["shown"] < line["total"]
    note = ""
    if sampled:
        note = f"the time line shows {line['shown']} of {line['total']} events, in each stretch of time the longest; "
        note += "all sums cover all events"
    if trace.sampled:
        note += "; medians are within 1 %, modules come from the engine's operators alone"
    return {
        "file": str(trace.meta.get("file", "")),
        "kind": str(trace.meta.get("format", "")),
        "complete": bool(trace.meta.get("complete", True)),
        "truncated": bool(trace.meta.get("truncated", False)),
        "events": trace.total_events,
        "shown": line["shown"],
        "sampled": sampled,
        "note": note,
    }


def _energy(energy: object) -> dict[str, Any]:
    if not isinstance(energy, dict):
        return {"joules": None, "reason": "the trace holds no measurement of energy", "domains": []}
    joules = energy.get("joules")
    domains = [
        {"name": str(domain.get("name", "")), "joules": domain["joules"]}
        for domain in energy.get("domains") or []
        if isinstance(domain, dict) and isinstance(domain.get("joules"), (int, float))
    ]
    if not isinstance(joules, (int, float)):
        return {"joules": None, "reason": str(energy.get("reason") or "it was not measured"), "domains": domains}
    return {"joules": float(joules), "reason": None, "domains": domains}


def _text(value: object) -> str | None:
    return str(value) if value not in (None, "") else None

"""What a person should do about a profile: rules over the finished report."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

_COMPILING = ("thresherCompileGraph", "thresherInitGraph", "thresherCaptureGraph", "thresherImportGraph")
_PRODUCTS = ("linear", "linears", "matmul", "bmm", "conv", "attention")
_COPIES = ("contiguous", "copy", "clone", "to", "aten::contiguous", "aten::copy_", "aten::clone", "aten::_to_copy")
_OPERATOR = re.compile(r"(?!thresher)[A-Za-z_]\w*::(?!.*::)|PyTorch operators$")
_ABOVE_PEAK = 110.0
_ORDER = {"high": 0, "medium": 1, "info": 2}


@dataclass(frozen=True)
class Finding:
    """Something worth doing.

    Attributes:
        severity: "high", "medium" or "info".
        title: What it is.
        detail: With which figures.
        advice: What to do.
        operator: The operator that it is about, None for none.
        rule: Name of the rule, as docs/profiling/reading.md lists it.
    """

    severity: str
    title: str
    detail: str
    advice: str
    rule: str
    operator: str | None = None


Rule = Callable[[dict[str, Any]], Iterator[Finding]]


def findings(report: dict[str, Any]) -> list[dict[str, Any]]:
    """The findings of a report, the gravest first.

    Args:
        report: The report, complete but for its findings.
    """
    found = [finding for rule in RULES for finding in rule(report)]
    found.sort(key=lambda finding: _ORDER[finding.severity])
    names = ("severity", "title", "detail", "advice", "operator", "rule")
    return [{name: getattr(finding, name) for name in names} for finding in found]


def _dropped(report: dict[str, Any]) -> Iterator[Finding]:
    dropped = report["health"]["dropped"]
    if dropped:
        yield Finding(
            "high",
            "Records were lost",
            f"{dropped} records are missing from this trace; counts and sums are too small by as much.",
            "Give the profiler more room with THRESHER_PROFILE_RECORDS, or record a shorter part of the program.",
            "dropped",
        )


def _broken(report: dict[str, Any]) -> Iterator[Finding]:
    health = report["health"]
    names = ("unlinked", "out_of_window", "before_launch", "overlapping", "bad_times")
    wrong = [f"{health[name]} {name.replace('_', ' ')}" for name in names if health[name]]
    if wrong:
        yield Finding(
            "medium",
            "Some events do not fit together",
            f"{', '.join(wrong)}. " + " ".join(f"{message}." for message in health["messages"]),
            "Do not trust single bars of these events. Record again; if the clock of the machine was being set, "
            "wait until it has settled.",
            "inconsistent",
        )


def _incomplete(report: dict[str, Any]) -> Iterator[Finding]:
    source = report["source"]
    if source["truncated"] or not source["complete"]:
        yield Finding(
            "medium",
            "The recording ends too early",
            f"{source['events']} events up to the place where the file ends are in this report.",
            "Stop the profiler before the process ends: leave its `with` block, or call stop().",
            "incomplete",
        )


def _gap(report: dict[str, Any]) -> Iterator[Finding]:
    total = report["overview"]["total"]
    gap, wall = total["by_category"]["gap"], total["wall_ns"]
    steps = report["overview"]["steps"]
    inside = sum(step["by_category"]["gap"] for step in steps)
    share = _share(gap, wall)
    if share < 20:
        return
    detail = f"During {_ms(gap)} of {_ms(wall)} ({share:.0f} %) nothing that the trace knows of ran"
    if steps:
        detail += f"; {_ms(inside)} of it inside the steps, {_ms(max(gap - inside, 0))} between them"
    yield Finding(
        "high" if share >= 50 else "medium",
        "Much of the time lies between the recorded work",
        detail + ".",
        "Look at the time line for what comes before each gap: tokenizing, loading data, Python of the program, "
        "waiting for another process. Move it off the path of the model, or do it in another thread.",
        "gap",
    )


def _python(report: dict[str, Any]) -> Iterator[Finding]:
    total = report["overview"]["total"]
    # What is compiled is another finding, and goes once.
    compiling = min(sum(row["self_ns"] for row in _compiling(report)), total["by_category"]["runtime"])
    other, wall = total["by_category"]["other"], total["wall_ns"] - compiling
    runtime = total["by_category"]["runtime"] - compiling
    work = total["by_category"]["kernel"] + total["by_category"]["copy"]
    share = _share(other + runtime, wall)
    if share >= 15 and other + runtime > work / 4:
        yield Finding(
            "medium",
            "Much of the time goes into calling, not into computing",
            f"{_ms(other)} in Python around the engine and {_ms(runtime)} in the engine around its kernels, "
            f"{share:.0f} % of the wall clock{' but for compilation' if compiling else ''}, beside {_ms(work)} in "
            "kernels and copies.",
            "Call the model with more at once: a larger batch or longer sequences. Check in the table of host "
            "events that nothing is compiled or prepared again in each call.",
            "calls",
        )


def _fallback(report: dict[str, Any]) -> Iterator[Finding]:
    rows = report["operators"]
    engine = sum(row["self_ns"] for row in rows if row["device"] == "device")
    # Operators have a namespace; other host rows are parts of PyTorch around them.
    host = [row for row in rows if row["section"] == "host" and row["self_ns"] > 0 and _OPERATOR.match(row["name"])]
    outside = sum(row["self_ns"] for row in host)
    if not engine or not outside:
        return
    share = _share(outside, engine + outside)
    if share < 2:
        return
    top = host[:5]
    yield Finding(
        "high" if share >= 20 else "medium",
        "Some operators run in PyTorch",
        f"{_ms(outside)} of {_ms(engine + outside)} ({share:.0f} %) of the operators' time: "
        + ", ".join(f"{row['name']} {_ms(row['self_ns'])}" for row in top)
        + ".",
        "`thresher ops` lists what the engine supports. Every change between engine and PyTorch costs a call as "
        "well: keep unsupported operators together, at the ends of the model, or replace them; fallback='error' "
        "names them all.",
        "fallback",
        top[0]["name"],
    )


def _compiling(report: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for row in report["runtime"] if row["name"] in _COMPILING]


def _compile(report: dict[str, Any]) -> Iterator[Finding]:
    rows = _compiling(report)
    time_ns = sum(row["total_ns"] for row in rows)
    if not rows:
        return
    wall = report["overview"]["total"]["wall_ns"]
    share = _share(time_ns, wall)
    count = sum(row["count"] for row in rows if row["name"] == _COMPILING[0])
    which = ", ".join(
        f"{row['name']} {row['count']} time{'s' * (row['count'] != 1)}, {_ms(row['total_ns'])}" for row in rows
    )
    yield Finding(
        "high" if share >= 20 else "medium" if share >= 2 else "info",
        "Graphs are compiled or prepared inside the recording",
        f"{which}: {share:.1f} % of the wall clock.",
        "Call the model once or twice before recording. If graphs are compiled again and again, the shapes of the "
        "inputs change: pad them, or mark them as dynamic."
        if count <= 2
        else f"{count} graphs were compiled: the shapes of the inputs change. Pad them to a few lengths, or mark the "
        "changing dimension as dynamic; warm up with each of them before recording.",
        "compile",
    )


def _warm_up(report: dict[str, Any]) -> Iterator[Finding]:
    steps = report["overview"]["steps"]
    if len(steps) < 4:
        return
    rest = sorted(step["wall_ns"] for step in steps[1:])
    middle = rest[len(rest) // 2]
    first = steps[0]["wall_ns"]
    if first > 2 * middle and first - middle > 1_000_000:
        yield Finding(
            "medium",
            "The first step is not like the others",
            f"{steps[0]['name']} took {_ms(first)}, the others {_ms(middle)} (median).",
            "Leave it out of what you compare: warm up before recording, or give the schedule of torch.profiler a "
            "warm-up.",
            "warm-up",
        )


def _disturbed(report: dict[str, Any]) -> Iterator[Finding]:
    rows = [row for row in report["operators_by_shape"] if row["device"] == "device" and row["count"] >= 10]
    time_ns = sum(row["total_ns"] for row in rows)
    # Runs of one operator with one shape do the same work: what lies above the median is something else's doing.
    usual = sum(min(row["count"] * row["median_ns"], row["total_ns"]) for row in rows)
    share = _share(time_ns - usual, time_ns)
    if share < 25:
        return
    top = max(rows, key=lambda row: row["total_ns"] - row["count"] * row["median_ns"])
    yield Finding(
        "high" if share >= 50 else "medium",
        "Equal work takes unequal time",
        f"The operators took {_ms(time_ns)}; had each run taken the median of its kind, it would be {_ms(usual)}. The "
        f"largest part: {top['name']}, median {top['median_ns'] / 1e3:.1f} us, mean {top['mean_ns'] / 1e3:.1f} us, "
        f"longest {_ms(top['max_ns'])}.",
        "Something else used the cores: other processes, or more threads than cores. Record on a quiet machine, with "
        "THRESHER_NUM_THREADS at most the number of free cores, and read medians instead of totals until then.",
        "disturbed",
    )


def _memory_bound(report: dict[str, Any]) -> Iterator[Finding]:
    rows = [row for row in report["operators_by_shape"] if row["bound"] == "memory" and _is_product(row["name"])]
    yield from _bound(
        report,
        rows,
        10,
        "Matrix products wait for memory",
        "Their weights are read once for few rows of input. Read fewer bytes: precision='int8' or 'bf16'; or read "
        "them for more rows at once: a larger batch.",
        "memory-bound",
    )


def _overhead_bound(report: dict[str, Any]) -> Iterator[Finding]:
    rows = [row for row in report["operators_by_shape"] if row["bound"] == "overhead"]
    yield from _bound(
        report,
        rows,
        20,
        "Operators are too small for their cost of starting",
        "Give them more to do: a larger batch, or several requests in one call. With few rows, fewer threads may be "
        "faster (THRESHER_NUM_THREADS). If the operators are large, their kernels do not fit these shapes: report "
        "it.",
        "overhead-bound",
    )


def _bound(
    report: dict[str, Any], rows: list[dict[str, Any]], least: int, title: str, advice: str, rule: str
) -> Iterator[Finding]:
    whole = sum(row["self_ns"] for row in report["operators"])
    time_ns = sum(row["self_ns"] for row in rows)
    share = _share(time_ns, whole)
    if not rows or share < least:
        return
    top = rows[0]
    shapes = f" ({top['shapes']})" if top["shapes"] else ""
    yield Finding(
        "high" if share >= 50 else "medium",
        title,
        f"{_ms(time_ns)} of {_ms(whole)} ({share:.0f} %) of the operators' time. The largest: {top['name']}{shapes}, "
        f"{top['count']} runs of {top['mean_ns'] / 1e3:.1f} us, {top['percent_of_peak']:.0f} % of the peak.",
        advice,
        rule,
        top["name"],
    )


def _precision(report: dict[str, Any]) -> Iterator[Finding]:
    rows = [
        row
        for row in report["operators_by_shape"]
        if row["bound"] == "compute" and row["precision"] == "fp32" and _is_product(row["name"])
    ]
    peaks = report["machine"]["peaks"]
    if not rows or peaks is None:
        return
    entry = peaks["threads"][-1]
    fp32 = entry["fp32_gflops"]
    better = {
        name: entry[key] / fp32
        for name, key in (("bf16", "bf16_gflops"), ("int8", "int8_gops"))
        if fp32 and entry.get(key) and entry[key] > 1.2 * fp32
    }
    whole = sum(row["self_ns"] for row in report["operators"])
    time_ns = sum(row["self_ns"] for row in rows)
    share = _share(time_ns, whole)
    if not better or share < 30:
        return
    best = max(better, key=lambda name: better[name])
    yield Finding(
        "info",
        "Arithmetic in fp32 bounds the model",
        f"{_ms(time_ns)} of {_ms(whole)} ({share:.0f} %) of the operators' time is bound by fp32 arithmetic; this "
        f"machine's peak in {best} is {better[best]:.1f} times as high.",
        f"Try precision='{best}' and measure what it costs in accuracy (`nox -s bench -- --accuracy`, or your own "
        "data).",
        "precision",
        rows[0]["name"],
    )


def _single_thread(report: dict[str, Any]) -> Iterator[Finding]:
    machine = report["machine"]
    peaks = machine["peaks"]
    cores = peaks["threads"][-1]["num_threads"] if peaks else None
    if machine["num_threads"] == 1 and cores is not None and cores > 1:
        yield Finding(
            "medium",
            "One thread is used",
            f"The engine ran with 1 thread; the peaks of this machine were measured with up to {cores}.",
            "Unless other processes use the cores, set THRESHER_NUM_THREADS or leave it away; the default is all "
            "cores that the process may use.",
            "one-thread",
        )


def _copies(report: dict[str, Any]) -> Iterator[Finding]:
    rows = [row for row in report["operators"] if row["section"] == "reshape" or row["name"] in _COPIES]
    whole = sum(row["self_ns"] for row in report["operators"])
    time_ns = sum(row["self_ns"] for row in rows)
    share = _share(time_ns, whole)
    if share < 10:
        return
    top = max(rows, key=lambda row: row["self_ns"])
    place = f" at {top['source']}" if top["source"] else ""
    yield Finding(
        "high" if share >= 40 else "medium",
        "Much time goes into moving data",
        f"{_ms(time_ns)} of {_ms(whole)} ({share:.0f} %) of the operators' time only copies or rearranges. The "
        f"largest: {top['name']}{place}, {top['count']} runs, {_ms(top['self_ns'])}.",
        "Pass contiguous inputs (tensor.contiguous() once, outside the loop), keep one layout through the model, "
        "and avoid transposing back and forth.",
        "copies",
        top["name"],
    )


def _sampled(report: dict[str, Any]) -> Iterator[Finding]:
    source = report["source"]
    if source["sampled"]:
        yield Finding(
            "info",
            "The time line shows a part of the events",
            f"{source['shown']} of {source['events']}: in each stretch of time the longest. All sums cover all events.",
            "To see every event of a stretch, record a shorter part of the program.",
            "sampled",
        )


def _no_peaks(report: dict[str, Any]) -> Iterator[Finding]:
    if report["machine"]["peaks"] is None:
        yield Finding(
            "info",
            "No peaks: the report cannot say what bounds an operator",
            f"{report['machine']['peaks_reason']}.",
            "Run `thresher peaks` once on that machine (two seconds); recordings after that hold its result.",
            "no-peaks",
        )


def _low_peaks(report: dict[str, Any]) -> Iterator[Finding]:
    # Bytes that stay in a cache from one operator to the next can beat the roof of memory; arithmetic cannot.
    above = [
        row for row in report["operators"] if row["bound"] == "compute" and (row["percent_of_peak"] or 0) > _ABOVE_PEAK
    ]
    if above:
        row = max(above, key=lambda row: int(row["total_ns"]))
        yield Finding(
            "medium",
            "Operators are faster than the measured peaks",
            f"{row['name']} reaches {row['percent_of_peak']:.0f} % of the peak: the machine was busy with something "
            "else when its peaks were measured. Percentages, and what bounds an operator, are wrong by as much.",
            "Run `thresher peaks --refresh` while the machine does nothing else, and record again.",
            "low-peaks",
            str(row["name"]),
        )


def _is_product(name: str) -> bool:
    return any(part in name for part in _PRODUCTS)


def _share(part: float, whole: float) -> float:
    return 100.0 * part / whole if whole > 0 else 0.0


def _ms(nanoseconds: float) -> str:
    return f"{nanoseconds / 1e6:.2f} ms"


RULES: tuple[Rule, ...] = (
    _dropped,
    _broken,
    _incomplete,
    _gap,
    _python,
    _fallback,
    _compile,
    _warm_up,
    _disturbed,
    _copies,
    _memory_bound,
    _overhead_bound,
    _precision,
    _single_thread,
    _sampled,
    _no_peaks,
    _low_peaks,
)

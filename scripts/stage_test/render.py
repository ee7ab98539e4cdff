"""The verdict for people (terminal, Markdown) and for programs (JSON)."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from measure.statistics import median
from measure.table import Table
from stage_test.plan import AGREEMENT_LIMIT, CHECKS, MEAN_ERROR_BOUND, SCENARIOS, SPREAD_BOUND
from stage_test.stage import write_json
from stage_test.verdict import Attempt, Verdict, figure


def runs_table(attempt: Attempt) -> Table:
    """Times of all runs."""
    columns = (
        "<scenario",
        "<profiler",
        "requests",
        "median ms",
        "mean ms",
        "p10 ms",
        "p90 ms",
        "p90/p10",
        "1st call ms",
    )
    plan = attempt.runs[SCENARIOS[0].id]["plan"]
    title = (
        f"Requests: batch {plan['batch']}, sequence {plan['sequence']}, {plan['threads']} thread(s), "
        f"attempt {attempt.number}"
    )
    table = Table(title, columns)
    for scenario in SCENARIOS:
        if scenario.id not in attempt.runs:
            continue
        s = attempt.summaries[scenario.id]
        first = float(attempt.runs[scenario.id]["warmup_ms"][0])
        times = [f"{value:.3f}" for value in (s.median, s.mean, s.p10, s.p90)]
        table.add(
            scenario.title,
            scenario.profiler,
            str(s.count),
            *times,
            f"{s.spread:.2f}",
            f"{first:.1f}",
            bad=s.spread > SPREAD_BOUND or s.mean_error > MEAN_ERROR_BOUND,
        )
    return table


def checks_table(attempt: Attempt) -> Table:
    """The ratios, how sure they are, and their limits."""
    title = f"Ratios, attempt {attempt.number}"
    table = Table(title, ("<check", "<by", "measured ms", "reference ms", "ratio", "+-", "limit", "<result"))
    for o in attempt.outcomes:
        times = (f"{value:.3f}" for value in (o.measured, o.reference, o.value, 2 * o.error, o.limit))
        cells = (o.title, o.statistic, *times)
        table.add(*cells, "PASS" if o.passed else "FAIL", bad=not o.passed)
    return table


def agreement_table(verdict: Verdict) -> Table:
    """Differences from PyTorch."""
    table = Table("Agreement with PyTorch", ("<check", "<quantity", "found", "limit", "<result"))
    for o in verdict.agreement:
        table.add(
            o.title, o.statistic, figure(o.value), figure(o.limit), "PASS" if o.passed else "FAIL", bad=not o.passed
        )
    return table


def similarity_table(verdict: Verdict) -> Table:
    """Cosine similarities of the sentence pairs."""
    table = Table("Sentence similarity (cosine)", ("<first", "<second", "PyTorch", "Thresher"))
    for pair in verdict.similarities:
        table.add(pair["first"], pair["second"], f"{pair['pytorch']:.6f}", f"{pair['thresher']:.6f}")
    return table


def tables(verdict: Verdict) -> list[Table]:
    """Every table, in reading order; a noisy first attempt stays visible above the second."""
    shown = [table for attempt in verdict.attempts for table in (runs_table(attempt), checks_table(attempt))]
    return [*shown, agreement_table(verdict), similarity_table(verdict)]


def remarks(verdict: Verdict) -> list[str]:
    """Sentences below the tables: speed-up, profiler sessions, noise."""
    run = verdict.deciding.runs["1-on"]
    starts = [float(block["profiler_start_ms"]) for block in run["blocks"]]
    stops = [float(block["profiler_stop_ms"]) for block in run["blocks"]]
    lines = [
        f"Speed-up of Thresher over PyTorch eager: {verdict.speedup('median'):.2f} by median, "
        f"{verdict.speedup('mean'):.2f} by mean",
        f"torch.profiler costs {median(starts):.1f} ms to start and {median(stops):.1f} ms to stop, a block; that is "
        "not part of the requests' times",
    ]
    for attempt in verdict.attempts:
        last = attempt is verdict.deciding
        if attempt.noise:
            then = "these times are judged all the same" if last else "measured once more"
            lines.append(f"NOISY HOST in attempt {attempt.number} ({then}): " + "; ".join(attempt.noise))
        else:
            lines.append(
                f"Attempt {attempt.number} was quiet: p90 / p10 at most {SPREAD_BOUND:.2f} and standard error of the "
                f"mean at most {MEAN_ERROR_BOUND:.0%} in every run"
            )
    return lines


def operator_report(verdict: Verdict) -> str:
    """The text of the profiled run's operator report."""
    return str(verdict.deciding.runs["3-on"].get("op_report", "")).rstrip()


def final_line(verdict: Verdict) -> str:
    """The last line of the output."""
    return f"stage_test: {'PASS' if verdict.passed else 'FAIL'}"


def environment_lines(verdict: Verdict) -> list[str]:
    """Where and with what it was measured."""
    run = verdict.deciding.runs["3-off"]
    environment = run["environment"]
    versions = ", ".join(f"{name} {value}" for name, value in environment["versions"].items() if value)
    engine = run.get("engine", {})
    loads = [block["load_average"][0] for block in run["blocks"] if block["load_average"]]
    return [
        f"processor: {environment['cpu_model']} (family/model {environment['cpu_family_model']}), "
        f"{environment['cores']} cores, {' '.join(environment['isa'])}",
        f"engine: instruction set {engine.get('isa', 'unknown')}, {engine.get('threads', '?')} thread(s)",
        f"software: Python {environment['python']}, {environment['system']}, {versions}",
        f"revision: {run['revision']}; load average while measuring: {min(loads):.2f} to {max(loads):.2f}"
        if loads
        else f"revision: {run['revision']}",
    ]


def markdown(verdict: Verdict) -> str:
    """The whole result as one page."""
    parts = [f"# {final_line(verdict)}", "", *(f"- {line}" for line in environment_lines(verdict)), ""]
    for table in tables(verdict):
        parts += [table.markdown(), ""]
    parts += [*(f"- {line}" for line in remarks(verdict)), ""]
    parts += [*(f"- {outcome.message()}" for outcome in verdict.failures), ""] if verdict.failures else []
    parts += ["## Operator report of the profiled run", "", "```", operator_report(verdict), "```", ""]
    return "\n".join(parts)


def as_json(verdict: Verdict) -> dict[str, Any]:
    """The whole result as one value; the samples stay in the runs' own files."""
    return {
        "format": "thresher stage_test verdict",
        "passed": verdict.passed,
        "limits": {
            "ratio": {check.title: check.limit for check in CHECKS},
            "agreement": AGREEMENT_LIMIT,
            "spread": SPREAD_BOUND,
            "mean_error": MEAN_ERROR_BOUND,
        },
        "speedup": {name: verdict.speedup(name) for name in ("median", "mean")},
        "attempts": [
            {
                "number": attempt.number,
                "noise": attempt.noise,
                "summaries": {key: asdict(value) for key, value in attempt.summaries.items()},
                "outcomes": [{**asdict(outcome), "passed": outcome.passed} for outcome in attempt.outcomes],
            }
            for attempt in verdict.attempts
        ],
        "agreement": [{**asdict(outcome), "passed": outcome.passed} for outcome in verdict.agreement],
        "similarities": verdict.similarities,
        "environment": verdict.deciding.runs["3-off"]["environment"],
        "revision": verdict.deciding.runs["3-off"]["revision"],
    }


def write(verdict: Verdict, folder: Path) -> list[Path]:
    """Writes stage_test.md and stage_test.json.

    Returns:
      The two files.
    """
    page = folder / "stage_test.md"
    page.write_text(markdown(verdict), encoding="utf-8")
    data = folder / "stage_test.json"
    write_json(data, as_json(verdict))
    return [page, data]


def show(verdict: Verdict) -> None:
    """Prints everything; the last line is the result."""
    print("\n".join(environment_lines(verdict)) + "\n")
    for table in tables(verdict):
        table.print()
    report = operator_report(verdict)
    if report:
        print("Operator report of the profiled run\n" + report + "\n")
    print("\n".join(remarks(verdict)))
    for outcome in verdict.failures:
        print(outcome.message())
    print(final_line(verdict), flush=True)

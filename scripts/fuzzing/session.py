"""What the nox session fuzz does."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from toolchain.layout import build_lock
from toolchain.process import ToolchainError, cores, note, write_json

from . import program, selfcheck
from .campaign import Runner
from .outcome import Outcome, table
from .target import RESULTS, Target, planted, select

FORMAT = "thresher-fuzz"


def show_targets(chosen: Sequence[Target], json_file: Path | None) -> None:
    """Prints what targets there are."""
    rows = [
        {
            "target": target.name,
            "language": target.language,
            "about": target.about,
            "seeds": len(target.kept("corpus")),
            "regressions": len(target.kept("regressions")),
        }
        for target in chosen
    ]
    width = max(len(target.name) for target in chosen)
    for row in rows:
        counts = f"{row['seeds']:>3} seeds {row['regressions']:>3} regressions"
        print(f"{row['target']:<{width}}  {row['language']:<6}  {counts}  {row['about']}")
    write_json(json_file, {"format": f"{FORMAT}-targets", "targets": rows})


def run_fuzz(
    names: Sequence[str],
    *,
    seconds: int,
    jobs: int | None,
    list_only: bool,
    minimize: bool,
    self_check: bool,
    json_file: Path | None,
) -> None:
    """Builds and runs fuzz targets, or lists them, makes their corpora smaller, or checks the fuzzers themselves.

    Args:
        names: which targets; all for none.
        seconds: how long each runs.
        jobs: how many run at once; None: one a core.
        list_only: whether to print the targets only.
        minimize: whether to make corpora and findings smaller, instead.
        self_check: whether to look for what is planted, instead.
        json_file: where the results go, too.

    Raises:
        ToolchainError: something was found, or could not be run.
    """
    if seconds < 1 or (jobs is not None and jobs < 1):
        raise ToolchainError(f"--seconds, --jobs: expected at least 1, got {seconds} and {jobs}.")
    if self_check and names:
        raise ToolchainError("--self-check runs what is planted for it; leave --target out.")
    chosen = planted() if self_check else select(names)
    if list_only:
        show_targets(chosen, json_file)
        return
    with build_lock():
        programs = program.build(chosen)
    runner = Runner(programs.command, programs.environment())
    runnable = [target for target in chosen if target.language not in programs.skipped]
    left_out = [
        Outcome(target.name, target.language, skipped=programs.skipped[target.language])
        for target in chosen
        if target.language in programs.skipped
    ]
    workers = min(jobs or cores(), max(len(runnable), 1))
    if minimize:
        for target in runnable:
            before, after = runner.minimize(target, seconds)
            note(f"{target.name}: {before[0]} inputs of {before[1]} bytes -> {after[0]} of {after[1]}")
        return
    if self_check:
        for target in runnable:  # it must find anew what it found the last time
            for folder in (target.corpus, target.findings):
                shutil.rmtree(folder, ignore_errors=True)
        report([*selfcheck.check(runner, runnable, workers), *left_out], json_file, "self-check")
        note("all that is planted was found")
        return
    outcomes = [*runner.run_all(runnable, seconds, workers), *left_out]
    report(outcomes, json_file, "run")
    conclude(outcomes)


def report(outcomes: Sequence[Outcome], json_file: Path | None, kind: str) -> None:
    """Prints the table and writes it as JSON, always beside the corpora too."""
    print(f"\n{table(outcomes)}\n", flush=True)
    for outcome in outcomes:
        for reason in outcome.reasons:
            print(f"{outcome.target}: {reason}")
        for line in outcome.replay:
            print(f"  to replay: {line}")
    data = {"format": FORMAT, "kind": kind, "targets": [outcome.to_dict() for outcome in outcomes]}
    for path in {RESULTS / f"{kind}.json", json_file}:
        write_json(path, json.loads(json.dumps(data)))


def conclude(outcomes: Sequence[Outcome]) -> None:
    """Raises where a target found something or did not run.

    Raises:
        ToolchainError: names these targets.
    """
    failed = [outcome.target for outcome in outcomes if not outcome.ok]
    if failed:
        raise ToolchainError(
            f"Found by {', '.join(failed)}: see above. Keep the input of a finding in tests/fuzz/regressions/TARGET, "
            "as text or, where it is none, as digits in a file that ends in .hex (docs/fuzzing.md)."
        )

#!/usr/bin/env python3
"""Compares Thresher with other engines on one model; see --help and docs/benchmarks.md."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

import accuracy
import architecture_page
import bars
import conv_page
import lines
import llm_page
import llm_turns
import llm_works
import options
from comparison import Places, Settings, export, label, measure
from models import MODELS
from report import environment_lines, profiler_cost, rows_of, table_of, unavailable_of

from measure import environment
from measure.environment import git_revision
from measure.table import Table
from measure.worker import WorkerError, clean_environment

ROOT = Path(__file__).resolve().parents[1]
ARCHITECTURE_ROUNDS = 12
LLM_ROUNDS = 5
CONV_ROUNDS = 7
EXIT_DONE = 0
EXIT_BROKEN = 1
EXIT_ERROR = 2


def main(argv: Sequence[str]) -> int:
    """Runs the command line.

    Returns:
      The exit code: 0 measured, 1 Thresher is not as good as it has to be, 2 an engine failed.
    """
    chosen = options.parse(list(argv))
    settings = options.settings_of(chosen)
    output = chosen.output.resolve()
    if chosen.architectures:
        return _architectures(chosen, output)
    if chosen.sizes is not None:
        return _worker("sizes.py", chosen, output, "--count", str(chosen.sizes))
    if chosen.door:
        return _worker("door.py", chosen, output)
    if chosen.loading:
        return _worker("loading.py", chosen, output, *(("--rounds", str(chosen.rounds)) if chosen.rounds else ()))
    if chosen.scaling:
        wanted = ["--quick"] if chosen.quick else []
        wanted += ["--precision", ",".join(chosen.precision)] if chosen.precision else []
        wanted += ["--batches", ",".join(map(str, chosen.batches))] if chosen.batches else []
        return _worker("scaling.py", chosen, output, *wanted)
    # Not resolve(): the python of an environment is a link, and following it leaves the environment.
    pythons = {
        "thresher": chosen.python_thresher.absolute(),
        "peers": chosen.python_peers.absolute(),
        "zentorch": chosen.python_zentorch.absolute() if chosen.python_zentorch else None,
    }
    places = Places(pythons, output / "models", output)
    try:
        if chosen.subject == "conv":
            return _conv(chosen, {"thresher": pythons["thresher"], "peers": pythons["peers"]}, output)
        if chosen.subject == "llm":
            return _llm(chosen, {"thresher": pythons["thresher"], "peers": pythons["peers"]}, output)
        print("bench: writing the model and its inputs", file=sys.stderr, flush=True)
        export(places, settings, accuracy=chosen.accuracy)
        if chosen.accuracy:
            return _accuracy(settings, places)
        return _times(settings, places, latency=chosen.latency)
    except (WorkerError, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return EXIT_ERROR
    except KeyboardInterrupt:
        print("bench: interrupted", file=sys.stderr)
        return 130


def _times(settings: Settings, places: Places, *, latency: bool) -> int:
    result = measure(settings, places, git_revision(ROOT))
    result["flops"] = json.loads((places.output / "model.json").read_text(encoding="utf-8"))["flops"]
    rows = rows_of(result)
    result["summary"] = [asdict(row) for row in rows]
    unavailable = unavailable_of(result)
    names = [label(title, precision) for title, precision, _ in unavailable.values()]
    title = MODELS[settings.model].title
    draw = lines.svg if latency else bars.svg
    stem = _stem("latency" if latency else "bench", settings)
    (places.output / f"{stem}.svg").write_text(draw(rows, title, names), encoding="utf-8")
    remarks = [*environment_lines(result), *profiler_cost(result)]
    _write(places.output, stem, table_of(rows, title, unavailable), remarks, result, "svg")
    return EXIT_DONE


def _accuracy(settings: Settings, places: Places) -> int:
    result, rows = accuracy.measure(settings, places, git_revision(ROOT))
    broken = [row for row in rows if row.broken]
    result["rows"] = [asdict(row) | {"broken": row.broken} for row in rows]
    table = accuracy.table_of(rows, unavailable_of(result), MODELS[settings.model].title)
    _write(places.output, "accuracy", table, environment_lines(result), result)
    for row in broken:
        name, corpus = label(row.title, row.precision), accuracy.CORPORA[row.corpus].title
        print(f"bench: {name} loses {row.loss:.4f} on {corpus}, allowed are {row.limit:g}", file=sys.stderr)
    return EXIT_BROKEN if broken else EXIT_DONE


def _worker(program: str, chosen: argparse.Namespace, output: Path, *arguments: str) -> int:
    command: list[str | Path] = [
        chosen.python_thresher.absolute(),
        "-W",
        "ignore",
        Path(__file__).with_name(program),
    ]
    command += ["--model", chosen.model, "--output", output, *arguments]
    threads = (chosen.threads or (2,))[0]
    return subprocess.run(command, env=clean_environment(threads, {"THRESHER_PROFILE": "OFF"}), check=False).returncode


def _architectures(chosen: argparse.Namespace, output: Path) -> int:
    python = chosen.python_thresher.absolute()
    threads = max(chosen.threads or (2,))
    rounds = chosen.rounds or (options.QUICK_ROUNDS if chosen.quick else ARCHITECTURE_ROUNDS)
    precisions = chosen.precision or ("fp32", "bf16")
    rows = architecture_page.measure(python, output, chosen.architectures, precisions, threads, rounds)
    machine = next((row["environment"] for row in rows if "environment" in row), {})
    result = {"format": "thresher architectures", "revision": git_revision(ROOT), "threads": threads}
    result |= {
        "environment": machine,
        "rows": [{k: v for k, v in row.items() if k != "environment"} for row in rows],
    }
    bad = [row for row in rows if architecture_page.is_bad(row)]
    remarks = [f"{len(rows) - len(bad)} of {len(rows)} rows as they should be; {machine.get('cpu_model', '')}"]
    output.mkdir(parents=True, exist_ok=True)
    _write(output, "architectures", architecture_page.table_of(rows, threads), remarks, result)
    return EXIT_BROKEN if bad else EXIT_DONE


def _llm(chosen: argparse.Namespace, pythons: dict[str, Path], output: Path) -> int:
    threads = chosen.threads or (1, 2)
    places = llm_turns.Places(pythons, output)
    output.mkdir(parents=True, exist_ok=True)
    models = llm_page.models_of(places, [file.resolve() for file in chosen.model_file or ()], max(threads))
    settings = llm_works.Settings(
        places,
        threads,
        chosen.rounds or (options.QUICK_ROUNDS if chosen.quick else LLM_ROUNDS),
        chosen.sequences or (128, 512, 2048),
        chosen.batches or (8, 32),
    )
    rows = llm_page.measure(models, chosen.work or tuple(llm_works.WORKS), settings)
    machine = environment.describe()
    result = {"format": "thresher language models", "revision": git_revision(ROOT), "environment": machine}
    result["rows"] = [row.to_dict() for row in rows]
    remarks = [f"{machine['cpu_model']}, {' '.join(machine['isa'])}", *llm_page.notes_of(rows)]
    _write(output, "llm", llm_page.table_of(rows), remarks, result)
    return EXIT_DONE


def _conv(chosen: argparse.Namespace, pythons: dict[str, Any], output: Path) -> int:
    files: list[Path | None] = [Path(__file__).with_name(name) for name in options.CONVOLUTIONS]
    if chosen.commands_file or chosen.networks is not None:
        files = [chosen.commands_file]
    else:
        files.append(None)
    output.mkdir(parents=True, exist_ok=True)
    for file in files:
        found = conv_page.measure(
            pythons,
            output,
            file,
            chosen.networks or (),
            chosen.batches or (1, 8),
            chosen.threads or (1, 2),
            chosen.rounds or (options.QUICK_ROUNDS if chosen.quick else CONV_ROUNDS),
            chosen.precision or ("fp32", "bf16", "int8"),
        )
        what = file.stem if file else "networks"
        rows, machine = found["rows"], found["environment"]
        remarks = [f"{machine['cpu_model']}, {' '.join(machine['isa'])}"]
        title = f"Convolutions of {file.name}" if file else "Networks of vision and speech"
        result = {"format": "thresher convolutions", "revision": git_revision(ROOT), "file": what, **found}
        (output / f"conv-{what}.csv").write_text(conv_page.csv_of(rows), encoding="utf-8")
        (output / f"conv-{what}.svg").write_text(conv_page.svg_of(rows, title), encoding="utf-8")
        _write(output, f"conv-{what}", conv_page.table_of(rows, title), remarks, result, "csv", "svg")
        if "failed" in found:
            print(f"bench: {found['failed']}", file=sys.stderr)
            return EXIT_ERROR
    return EXIT_DONE


def _stem(name: str, settings: Settings) -> str:
    """Name of the result files: one model's do not replace another's."""
    return name if settings.model == "minilm" else f"{name}-{settings.model}"


def _write(output: Path, stem: str, table: Table, remarks: list[str], result: dict[str, Any], *also: str) -> None:
    """Writes and prints a result."""
    page = [table.markdown(), "", *(f"- {line}" for line in remarks), ""]
    (output / f"{stem}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    (output / f"{stem}.md").write_text("\n".join(page), encoding="utf-8")
    table.print()
    print("\n".join(remarks))
    print(f"results: {output}/{', '.join(f'{stem}.{ending}' for ending in ('json', 'md', *also))}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

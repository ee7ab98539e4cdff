"""The page of language models: prompts and answers by each engine, in turns, on the same file."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure.statistics import median
from measure.table import Table
from measure.worker import Worker, WorkerError, clean_environment

CREATE_LIMIT_S = 300.0
RUN_LIMIT_S = 300.0
OURS = "thresher"


@dataclass(frozen=True)
class LlmEngine:
    """An engine and whose environment it is in."""

    key: str
    title: str
    place: str


ENGINES = (
    LlmEngine(OURS, "Thresher", "thresher"),
    LlmEngine("llama_cpp", "llama.cpp", "peers"),
    LlmEngine("ik_llama", "ik_llama.cpp", "peers"),
)


@dataclass(frozen=True)
class Load:
    """What is asked at a time: so many prompts of so many tokens, answers of so many."""

    batch: int
    prompt: int
    output: int


def measure(
    pythons: Mapping[str, Path], output: Path, model: Path, load: Load, threads: int, rounds: int
) -> dict[str, Any]:
    """Measures one load with every engine, all of them loaded, one turn each a round, after one that is not counted.

    Returns:
      The load, and for each engine what "create" answers, samples, and their medians: seconds to the first token,
      tokens of prompts a second, milliseconds between two tokens of an answer, tokens of all answers a second; or
      "unavailable" with the reason.

    Raises:
      WorkerError: an engine failed, or there is no Thresher.
    """
    row: dict[str, Any] = {"model": model.name, "threads": threads, **vars(load), "engines": {}}
    script = Path(__file__).with_name("llm_worker.py")
    variables = clean_environment(threads, {"THRESHER_NUM_THREADS": str(threads), "THRESHER_PROFILE": "OFF"})
    with ExitStack() as stack:
        workers = {}
        for engine in ENGINES:
            sizes = map(str, (threads, load.batch, load.prompt + load.output))
            command = [str(pythons[engine.place]), str(script), engine.key, str(model), *sizes]
            log = output / "logs" / f"llm-{engine.key}.log"
            worker = stack.enter_context(Worker(engine.title, command, variables, log))
            made = worker.call("create", CREATE_LIMIT_S)
            row["engines"][engine.key] = {"title": engine.title, **made}
            if "unavailable" not in made:
                workers[engine.key] = worker
            elif engine.key == OURS:
                raise WorkerError(f"{engine.title}: {made['unavailable']}; give the python of an environment with it")
        samples: dict[str, list[dict[str, float]]] = {key: [] for key in workers}
        for turn in range(rounds + 1):
            for key in workers if turn % 2 else reversed(workers):
                sizes_of = {"prompt": load.prompt, "output": load.output}
                sample = workers[key].call("run", RUN_LIMIT_S, seed=turn, **sizes_of)
                if turn:
                    samples[key].append(sample)
    for key, found in samples.items():
        row["engines"][key] |= summary(load, found)
    return row


def summary(load: Load, samples: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Medians of the turns of one engine."""
    token_s = median([(s["end"] - s["prompts"]) / (load.output - 1) for s in samples])
    return {
        "samples": list(samples),
        "first_ms": median([s["first"] for s in samples]) * 1e3,
        "prompt_tokens_per_s": load.batch * load.prompt / median([s["prompts"] for s in samples]),
        "token_ms": token_s * 1e3,
        "tokens_per_s": load.batch / token_s,
        "peak_mb": max(s["peak_mb"] for s in samples),
    }


def table_of(rows: Sequence[Mapping[str, Any]], threads: int) -> Table:
    """One row an engine and load; what is not available has its reason."""
    columns = ["<model", "batch", "prompt", "<engine", "start s", "first token ms", "prompt tok/s", "ms a token"]
    table = Table(f"language models, {threads} threads", [*columns, "tok/s", "peak MB", "<Thresher is faster by"])
    for row in rows:
        ours = row["engines"][OURS]
        load = (row["model"], str(row["batch"]), str(row["prompt"]))
        for key, engine in row["engines"].items():
            if "unavailable" in engine:
                table.add(*load, engine["title"], "", "", "", "", "", "", f"not available: {engine['unavailable']}")
                continue
            prompts = ours["prompt_tokens_per_s"] / engine["prompt_tokens_per_s"]
            answers = engine["token_ms"] / ours["token_ms"]
            table.add(
                *load,
                engine["title"],
                f"{engine['start_s']:.2f}",
                f"{engine['first_ms']:.1f}",
                f"{engine['prompt_tokens_per_s']:.0f}",
                f"{engine['token_ms']:.2f}",
                f"{engine['tokens_per_s']:.1f}",
                f"{engine['peak_mb']:.0f}",
                "" if key == OURS else f"{prompts:.2f} (prompts), {answers:.2f} (answers)",
                bad=key != OURS and min(prompts, answers) < 1,
            )
    return table


def notes_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the engines say of themselves, each once."""
    found = {f"{e['title']}: {e['note']}" for row in rows for e in row["engines"].values() if e.get("note")}
    return sorted(found)


def report(text: str) -> None:
    """Says what is measured now."""
    print(f"bench: {text}", file=sys.stderr, flush=True)

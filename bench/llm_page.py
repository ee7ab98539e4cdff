"""The page of language models: every work on every model, in one table."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llm_turns import ENGINES, Places
from llm_works import WORKS, Model, Row, Settings

from measure.table import Table
from measure.worker import WorkerError, clean_environment

_EXPORT_LIMIT_S = 900.0
_TITLES = {engine.key: engine.title for engine in ENGINES}


def models_of(places: Places, paths: Sequence[Path], threads: int) -> list[Model]:
    """The models that are measured; of GGUF files transformers writes what engines need that do not read them.

    Args:
      places: where things lie.
      paths: GGUF files and Hugging Face folders; none: SmolLM2-135M and a model of 0.4 billion random weights.
      threads: to write with.

    Raises:
      WorkerError: that failed.
    """
    found = [Model(path.name, path, path, "bf16") for path in paths if path.is_dir()]
    files = [path for path in paths if path.is_file()]
    if paths and not files:
        return found
    script, described = Path(__file__).with_name("llm_export.py"), places.output / "llm-models" / "models.json"
    command = [str(places.pythons["peers"]), str(script), str(described.parent), *map(str, files)]
    report("writing the models")
    done = subprocess.run(
        command, env=clean_environment(threads, {}), timeout=_EXPORT_LIMIT_S, check=False, stderr=subprocess.PIPE
    )
    if done.returncode:
        raise WorkerError(f"llm_export.py: {done.stderr.decode(errors='replace')[-2000:]}")
    for each in json.loads(described.read_text(encoding="utf-8")):
        found.append(Model(each["title"], Path(each["file"]), Path(each["folder"]), each["bits"]))
    return found


def measure(models: Sequence[Model], works: Sequence[str], settings: Settings) -> list[Row]:
    """Every work on every model.

    Raises:
      WorkerError: an engine failed.
    """
    rows: list[Row] = []
    for model in models:
        for work in works:
            report(f"{model.title}: {work}")
            rows.extend(WORKS[work](model, settings))
    return rows


def table_of(rows: Sequence[Row]) -> Table:
    """One row a work; those that miss something are bad."""
    columns = ["<model", "<work", "threads", "<Thresher", "<of the roof", "<times as fast as others", "<wanted"]
    table = Table("language models", [*columns, "<missed"])
    for row in rows:
        share = "" if row.share is None else f"{row.share:.0%} ({row.roof})"
        peers = ", ".join(f"{_TITLES[key]} {times:.2f}" for key, times in row.peers.items())
        table.add(row.model, row.work, str(row.threads), row.found, share, peers, row.wanted, row.missed,
                  bad=bool(row.missed))  # fmt: skip
    return table


def notes_of(rows: Sequence[Row]) -> list[str]:
    """What engines say of themselves, and which were not there, each once."""
    found = set()
    for row in rows:
        engines: Mapping[str, Any] = row.details.get("engines", {})
        for engine in engines.values():
            text = engine.get("note") or engine.get("unavailable")
            if text:
                found.add(f"{engine['title']}: {text}")
    return sorted(found)


def report(text: str) -> None:
    """Says what is measured now."""
    print(f"bench: {text}", file=sys.stderr, flush=True)

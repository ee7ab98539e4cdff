"""Measures the engines in turns and writes all samples to one file."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from measure.progress import Progress
from measure.worker import Worker, WorkerError, clean_environment

FORMAT = "thresher bench"
CALL_LIMIT_S = 600.0


@dataclass(frozen=True)
class EngineSpec:
    """One bar of the chart.

    Attributes:
      key: name in the files and on the command line.
      title: name in the table.
      module: file under engines/.
      needs_thresher: whether it runs in the environment with Thresher, else in that of the peers.
      variables: environment variables of its process.
      optional: whether it is measured only on request.
    """

    key: str
    title: str
    module: str
    needs_thresher: bool = False
    variables: tuple[tuple[str, str], ...] = ()
    optional: bool = False


REFERENCE = "eager"
ENGINES: tuple[EngineSpec, ...] = (
    EngineSpec("eager", "PyTorch eager", "eager"),
    EngineSpec("inductor", "PyTorch inductor", "inductor", optional=True),
    EngineSpec("onnxruntime", "ONNX Runtime", "onnxruntime"),
    EngineSpec("openvino", "OpenVINO", "openvino"),
    EngineSpec("thresher", "Thresher", "thresher", True, (("THRESHER_PROFILE", "OFF"),)),
    EngineSpec("thresher-profiled", "Thresher, profiler on", "thresher", True, (("THRESHER_PROFILE", "ON"),)),
)


@dataclass(frozen=True)
class Settings:
    """How much is measured.

    Attributes:
      threads, batches, sequences: every combination of the three is one case.
      rounds: how often every engine gets its turn in a case.
      engines: keys of ENGINES.
    """

    threads: tuple[int, ...]
    batches: tuple[int, ...]
    sequences: tuple[int, ...]
    rounds: int
    engines: tuple[str, ...]

    def calls(self, batch: int) -> int:
        """Timed calls of one turn: fewer where a call takes longer, so that all cases take about as long."""
        return max(2, 6 // batch)


def export(python: Path, folder: Path, settings: Settings) -> None:
    """Runs export.py in the environment of the peers.

    Raises:
      WorkerError: it failed; the message holds the end of what it wrote.
    """
    command = [str(python), "-W", "ignore", str(Path(__file__).with_name("export.py")), str(folder)]
    command += [",".join(map(str, numbers)) for numbers in (settings.batches, settings.sequences)]
    try:
        done = subprocess.run(
            command, env=clean_environment(1, {}), capture_output=True, text=True, timeout=CALL_LIMIT_S, check=False
        )
    except OSError as error:
        raise WorkerError(f"cannot start {python}: {error.strerror}; give the python of an environment") from error
    if done.returncode:
        tail = "\n".join("  | " + line for line in done.stderr.splitlines()[-25:])
        raise WorkerError(f"exporting the model to ONNX ended with status {done.returncode}:\n{tail}")


def measure(
    settings: Settings, python_thresher: Path, python_peers: Path, folder: Path, revision: str
) -> dict[str, Any]:
    """The whole comparison.

    Args:
      settings: what to measure.
      python_thresher: python of the environment with Thresher.
      python_peers: python of the environment with PyTorch, ONNX Runtime and OpenVINO.
      folder: where export.py left its files; the workers' standard error goes to FOLDER/logs.
      revision: of the source tree.

    Returns:
      All samples and the environments, ready for JSON.

    Raises:
      WorkerError: an engine failed.
    """
    specs = [spec for spec in ENGINES if spec.key in settings.engines]
    turns = len(settings.batches) * len(settings.sequences) * (1 + settings.rounds)
    progress = Progress("bench", len(settings.threads) * (len(specs) + turns))
    engines: dict[str, Any] = {spec.key: {"title": spec.title} for spec in specs}
    cases: list[dict[str, Any]] = []
    for threads in settings.threads:
        with contextlib.ExitStack() as stack:
            workers: dict[str, Worker] = {}
            created: dict[str, float] = {}
            for spec in specs:
                python = python_thresher if spec.needs_thresher else python_peers
                command = [str(python), str(Path(__file__).with_name("engine_worker.py")), spec.module, str(folder)]
                extra = {"THRESHER_NUM_THREADS": str(threads), **dict(spec.variables)} if spec.needs_thresher else {}
                log = folder / "logs" / f"{spec.key}-{threads}.stderr.txt"
                worker = Worker(spec.title, [*command, str(threads)], clean_environment(threads, extra), log)
                workers[spec.key] = stack.enter_context(worker)
                answer = worker.call("create", CALL_LIMIT_S)
                created[spec.key] = answer["create_ms"]
                engines[spec.key].setdefault("environment", answer["environment"])
                progress.step(f"{spec.title} is ready")
            for batch in settings.batches:
                for sequence in settings.sequences:
                    name = f"{threads} thread(s), batch {batch}, sequence {sequence}"
                    case = {"threads": threads, "batch": batch, "sequence": sequence}
                    measured = _case(settings, specs, workers, batch, sequence, progress, name)
                    for key, entry in measured.items():
                        entry["create_ms"] = created[key]
                    cases.append({**case, "engines": measured})
    return {
        "format": FORMAT,
        "written_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "revision": revision,
        "settings": asdict(settings),
        "engines": engines,
        "cases": cases,
    }


def _case(
    settings: Settings,
    specs: Sequence[EngineSpec],
    workers: dict[str, Worker],
    batch: int,
    sequence: int,
    progress: Progress,
    name: str,
) -> dict[str, dict[str, Any]]:
    case = f"{batch}-{sequence}"
    result: dict[str, dict[str, Any]] = {}
    for spec in specs:
        result[spec.key] = {**workers[spec.key].call("first", CALL_LIMIT_S, case=case), "rounds_ms": []}
    progress.step(f"{name}, first calls")
    for number in range(settings.rounds):
        # Turned and reversed, so that nobody always follows the same engine.
        start = number // 2 % len(specs)
        order = [*specs[start:], *specs[:start]]
        for spec in reversed(order) if number % 2 else order:
            answer = workers[spec.key].call("block", CALL_LIMIT_S, case=case, calls=settings.calls(batch))
            result[spec.key]["rounds_ms"].append(answer["samples_ms"])
        progress.step(name)
    return result

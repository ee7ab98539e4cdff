"""Measures the engines in turns and writes all samples to one file."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from measure.progress import Progress
from measure.worker import Worker, WorkerError, clean_environment

FORMAT = "thresher bench"
CALL_LIMIT_S = 600.0
PRECISIONS = ("fp32", "bf16", "fp16", "int8")


@dataclass(frozen=True)
class EngineSpec:
    """One bar of the chart.

    Attributes:
      key: name in the files and on the command line.
      title: name in the table.
      module: file under engines/.
      precision: one of PRECISIONS.
      environment: which environment has it: "peers", "thresher" or "zentorch".
      variables: environment variables of its process.
      asked_by: option that it is measured with; empty where it always is.
    """

    key: str
    title: str
    module: str
    precision: str = "fp32"
    environment: str = "peers"
    variables: tuple[tuple[str, str], ...] = ()
    asked_by: str = ""

    @property
    def must_run(self) -> bool:
        """Whether a run without it is worth nothing: the reference, and Thresher in the precision it always has."""
        return self.key == REFERENCE or (self.environment == "thresher" and self.precision == "fp32")


REFERENCE = "eager"
_OFF = (("THRESHER_PROFILE", "OFF"),)
_ON = (("THRESHER_PROFILE", "ON"),)
ENGINES: tuple[EngineSpec, ...] = (
    EngineSpec("eager", "PyTorch eager", "eager"),
    EngineSpec("eager-bf16", "PyTorch eager", "eager", "bf16", asked_by="precision"),
    EngineSpec("inductor", "PyTorch inductor", "inductor", asked_by="inductor"),
    EngineSpec("inductor-bf16", "PyTorch inductor", "inductor", "bf16", asked_by="inductor"),
    EngineSpec("zentorch", "zentorch", "zentorch", environment="zentorch", asked_by="zentorch"),
    EngineSpec("zentorch-bf16", "zentorch", "zentorch", "bf16", "zentorch", asked_by="zentorch"),
    EngineSpec("onnxruntime", "ONNX Runtime", "onnxruntime"),
    EngineSpec("onnxruntime-int8", "ONNX Runtime", "onnxruntime", "int8"),
    EngineSpec("openvino", "OpenVINO", "openvino"),
    EngineSpec("openvino-bf16", "OpenVINO", "openvino", "bf16"),
    EngineSpec("ctranslate2", "CTranslate2", "ctranslate2", asked_by="precision"),
    EngineSpec("ctranslate2-int8", "CTranslate2", "ctranslate2", "int8"),
    EngineSpec("thresher", "Thresher", "thresher", "fp32", "thresher", _OFF),
    EngineSpec("thresher-profiled", "Thresher, profiler on", "thresher", "fp32", "thresher", _ON),
    EngineSpec("thresher-bf16", "Thresher", "thresher", "bf16", "thresher", _OFF),
    EngineSpec("thresher-fp16", "Thresher", "thresher", "fp16", "thresher", _OFF, "precision"),
    EngineSpec("thresher-int8", "Thresher", "thresher", "int8", "thresher", _OFF),
)


def label(title: str, precision: str) -> str:
    """Name in a picture, where there is no column for the precision."""
    return title if precision == "fp32" else f"{title} {precision}"


@dataclass(frozen=True)
class Settings:
    """How much is measured.

    Attributes:
      threads, batches, sequences: every combination of the three is one case.
      rounds: how often every engine gets its turn in a case.
      engines: keys of ENGINES.
      model: key of models.MODELS.
    """

    threads: tuple[int, ...]
    batches: tuple[int, ...]
    sequences: tuple[int, ...]
    rounds: int
    engines: tuple[str, ...]
    model: str = "minilm"

    def calls(self, batch: int, sequence: int) -> int:
        """Timed calls of one turn: fewer where a call takes longer, so that all cases take about as long."""
        return min(24, max(2, 6 * 128 // (batch * sequence)))

    def specs(self) -> list[EngineSpec]:
        """The chosen engines, in the order of the table."""
        return [spec for spec in ENGINES if spec.key in self.engines]


@dataclass(frozen=True)
class Places:
    """Where things lie.

    Attributes:
      pythons: interpreter of every environment that EngineSpec.environment names; None for one that is not there.
      models: folder that keeps the models between runs.
      output: folder of this run; the workers' standard error goes to its folder logs.
    """

    pythons: Mapping[str, Path | None]
    models: Path
    output: Path


def export(places: Places, settings: Settings, *, accuracy: bool = False) -> None:
    """Runs export.py in the environment of the peers.

    Raises:
      WorkerError: it failed; the message holds the end of what it wrote.
    """
    python = places.pythons["peers"]
    command = [str(python), "-W", "ignore", str(Path(__file__).with_name("export.py")), "--model", settings.model]
    command += ["--models", str(places.models), "--output", str(places.output)]
    for option, numbers in (("--batches", settings.batches), ("--sequences", settings.sequences)):
        command += [option, ",".join(map(str, numbers))]
    if accuracy:
        command.append("--accuracy")
    try:
        done = subprocess.run(
            command, env=clean_environment(1, {}), capture_output=True, text=True, timeout=CALL_LIMIT_S, check=False
        )
    except OSError as error:
        raise WorkerError(f"cannot start {python}: {error.strerror}; give the python of an environment") from error
    if done.returncode:
        tail = "\n".join("  | " + line for line in done.stderr.splitlines()[-25:])
        raise WorkerError(f"writing the model and its inputs ended with status {done.returncode}:\n{tail}")


class Bench:
    """The engines of one run: starts their processes, and remembers which ones are not available.

    Attributes:
      engines: by key: title, precision, and "environment" and "note" or, where it cannot run, "unavailable".
    """

    def __init__(self, settings: Settings, places: Places) -> None:
        self._places = places
        self._model = places.models / settings.model
        self._specs = settings.specs()
        self.engines: dict[str, dict[str, Any]] = {
            spec.key: {"title": spec.title, "precision": spec.precision} for spec in self._specs
        }

    def specs(self) -> list[EngineSpec]:
        """The engines that are available as far as it is known."""
        return [spec for spec in self._specs if "unavailable" not in self.engines[spec.key]]

    def start(self, spec: EngineSpec, threads: int, stack: contextlib.ExitStack) -> tuple[Worker, float] | None:
        """Starts an engine's process and makes the engine.

        Returns:
          The process and how long making took, in ms; None if the engine is not available.

        Raises:
          WorkerError: the engine must run and does not.
        """
        python = self._places.pythons[spec.environment]
        if python is None:
            self.engines[spec.key]["unavailable"] = f"no environment with requirements/bench-{spec.environment}.txt"
            return None
        command = [str(python), str(Path(__file__).with_name("engine_worker.py")), spec.module, spec.precision]
        command += [str(self._model), str(self._places.output), str(threads)]
        extra = dict(spec.variables)
        if spec.environment == "thresher":
            extra["THRESHER_NUM_THREADS"] = str(threads)
        log = self._places.output / "logs" / f"{spec.key}-{threads}.stderr.txt"
        environment = clean_environment(threads, extra)
        worker = stack.enter_context(Worker(label(spec.title, spec.precision), command, environment, log))
        answer = self.ask(spec, worker, "create")
        if answer is None:
            return None
        entry = self.engines[spec.key]
        entry.setdefault("environment", answer["environment"])
        entry["note"] = answer["note"]
        return worker, answer["create_ms"]

    def ask(self, spec: EngineSpec, worker: Worker, do: str, **arguments: Any) -> dict[str, Any] | None:
        """Sends a command that may show that the engine is not available; None if it does.

        A peer that fails or dies here is not available either, for example because its library was built for another
        processor. A failure of Thresher is an error.

        Raises:
          WorkerError: the engine must run and does not, or Thresher failed.
        """
        try:
            answer = worker.call(do, CALL_LIMIT_S, **arguments)
        except WorkerError as error:
            if spec.must_run or spec.environment == "thresher":
                raise
            self.engines[spec.key]["unavailable"] = str(error).splitlines()[0]
            return None
        reason = answer.get("unavailable")
        if reason is None:
            return answer
        if spec.must_run:
            raise WorkerError(f"{worker.name} is not available: {reason}")
        self.engines[spec.key]["unavailable"] = reason
        return None


def measure(settings: Settings, places: Places, revision: str) -> dict[str, Any]:
    """The whole comparison.

    Args:
      settings: what to measure.
      places: the environments, and where export.py left its files.
      revision: of the source tree.

    Returns:
      All samples and the environments, ready for JSON.

    Raises:
      WorkerError: an engine failed.
    """
    bench = Bench(settings, places)
    turns = len(settings.batches) * len(settings.sequences) * (1 + settings.rounds)
    progress = Progress("bench", len(settings.threads) * (len(bench.engines) + turns))
    cases: list[dict[str, Any]] = []
    for threads in settings.threads:
        with contextlib.ExitStack() as stack:
            workers: dict[str, Worker] = {}
            created: dict[str, float] = {}
            for spec in bench.specs():
                started = bench.start(spec, threads, stack)
                if started is not None:
                    workers[spec.key], created[spec.key] = started
                progress.step(
                    f"{label(spec.title, spec.precision)} is {'not available' if started is None else 'ready'}"
                )
            for batch in settings.batches:
                for sequence in settings.sequences:
                    name = f"{threads} thread(s), batch {batch}, sequence {sequence}"
                    case = {"threads": threads, "batch": batch, "sequence": sequence}
                    measured = _case(settings, bench, workers, batch, sequence, progress, name)
                    for key, entry in measured.items():
                        entry["create_ms"] = created[key]
                    cases.append({**case, "engines": measured})
    return {**head(settings, bench, revision), "cases": cases}


def head(settings: Settings, bench: Bench, revision: str) -> dict[str, Any]:
    """What every result file begins with."""
    return {
        "format": FORMAT,
        "written_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "revision": revision,
        "settings": asdict(settings),
        "engines": bench.engines,
    }


def _case(
    settings: Settings,
    bench: Bench,
    workers: dict[str, Worker],
    batch: int,
    sequence: int,
    progress: Progress,
    name: str,
) -> dict[str, dict[str, Any]]:
    case = f"{batch}-{sequence}"
    result: dict[str, dict[str, Any]] = {}
    for spec in bench.specs():
        answer = bench.ask(spec, workers[spec.key], "first", case=case)
        if answer is not None:
            result[spec.key] = {**answer, "rounds_ms": []}
    progress.step(f"{name}, first calls")
    specs: Sequence[EngineSpec] = bench.specs()
    for number in range(settings.rounds):
        # Turned and reversed, so that nobody always follows the same engine.
        start = number // 2 % len(specs)
        order = [*specs[start:], *specs[:start]]
        for spec in reversed(order) if number % 2 else order:
            calls = settings.calls(batch, sequence)
            answer = workers[spec.key].call("block", CALL_LIMIT_S, case=case, calls=calls)
            result[spec.key]["rounds_ms"].append(answer["samples_ms"])
        progress.step(name)
    return result

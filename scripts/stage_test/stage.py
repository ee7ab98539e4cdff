"""Runs the scenarios in turns, those of one kind in one process, and writes one JSON file a run."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from measure.environment import git_revision
from measure.progress import Progress
from measure.worker import Worker, clean_environment
from stage_test.plan import AGREEMENT_FILE, AGREEMENT_FORMAT, KINDS, RUN_FORMAT, Plan, Scenario, scenarios_of

PREPARE_LIMIT_S = 600.0
# A request that takes longer than this is a hang, whatever the machine.
REQUEST_LIMIT_S = 60.0


class Measurement:
    """The processes while they live, one for each kind of scenario. Use it as a context manager."""

    def __init__(
        self,
        plan: Plan,
        python_base: Path,
        python_thresher: Path,
        output: Path,
        root: Path,
        python_serve: Path | None = None,
    ) -> None:
        """Starts nothing yet.

        Args:
          plan: how much to measure.
          python_base: python of the environment without Thresher.
          python_thresher: python of the environment with it.
          output: folder of the results; attempts of an earlier run in it are removed.
          root: the source tree, for its revision.
          python_serve: python of an environment with the server and its model; wanted where the plan has (5).
        """
        self._plan = plan
        self._scenarios = scenarios_of(asdict(plan))
        self._kinds = [kind for kind in KINDS if any(scenario.kind == kind for scenario in self._scenarios)]
        self._pythons = {kind: python_base if kind == "base" else python_thresher for kind in self._kinds}
        if python_serve is not None:
            self._pythons["serve"] = python_serve
        self._output = output
        self._revision = git_revision(root)
        self._workers: dict[str, Worker] = {}
        self._prepared: dict[str, dict[str, Any]] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Measurement:
        for old in self._output.glob("attempt-*"):
            shutil.rmtree(old)
        (self._output / AGREEMENT_FILE).unlink(missing_ok=True)
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _command(self, kind: str) -> list[str]:
        plan = self._plan
        runner = Path(__file__).with_name("serve_runner.py" if kind == "serve" else "runner.py")
        numbers = [str(plan.threads), str(plan.batch), str(plan.sequence)]
        return [str(self._pythons[kind]), str(runner), kind, *numbers]

    def _environment(self, kind: str) -> Mapping[str, str]:
        extra = {} if kind == "base" else {"THRESHER_NUM_THREADS": str(self._plan.threads)}
        return clean_environment(self._plan.threads, extra)

    def _start(self) -> None:
        progress = Progress("stage_test: loading the model and warming up", len(self._kinds))
        for kind in self._kinds:
            watched = [scenario for scenario in self._scenarios if scenario.kind == kind]
            log = self._output / "logs" / f"{kind}.stderr.txt"
            name = f"scenarios {', '.join(scenario.id for scenario in watched)} ({watched[0].title})"
            worker = Worker(name, self._command(kind), self._environment(kind), log)
            self._workers[kind] = self._stack.enter_context(worker)
            profilers = [scenario.profiler for scenario in watched]
            self._prepared[kind] = worker.call(
                "prepare", PREPARE_LIMIT_S, warmups=self._plan.warmups, profilers=profilers
            )
            progress.step(kind)

    def attempt(self, number: int) -> Path:
        """One full measurement.

        Returns:
          The folder attempt-NUMBER, which holds SCENARIO.json for every scenario.

        Raises:
          WorkerError: a scenario's process failed.
        """
        blocks: dict[str, list[dict[str, Any]]] = {scenario.id: [] for scenario in self._scenarios}
        turns = list(self._plan.turns())
        for worker in self._workers.values():
            worker.call("begin", PREPARE_LIMIT_S)
        progress = Progress(f"stage_test: attempt {number}", len(turns))
        for round_number, scenario, requests in turns:
            limit = REQUEST_LIMIT_S * (requests + 1)
            worker = self._workers[scenario.kind]
            block = worker.call("block", limit, requests=requests, profiler=scenario.profiler)
            blocks[scenario.id].append({"round": round_number, **block})
            progress.step(f"round {round_number + 1}, {scenario.id}")
        folder = self._output / f"attempt-{number}"
        folder.mkdir(parents=True)
        for scenario in self._scenarios:
            finished = self._workers[scenario.kind].call("finish", PREPARE_LIMIT_S, profiler=scenario.profiler)
            run = self._run(scenario, number, blocks[scenario.id], finished)
            write_json(folder / f"{scenario.id}.json", run)
        return folder

    def agreement(self) -> Path:
        """Compares the outputs with PyTorch's. Comes last, because its shapes make torch.compile compile again.

        Returns:
          The file agreement.json: {"scenarios": {ID: {...}}}.

        Raises:
          WorkerError: a scenario's process failed.
        """
        progress = Progress("stage_test: comparing outputs", len(self._scenarios))
        scenarios: dict[str, Any] = {}
        for scenario in self._scenarios:
            worker = self._workers[scenario.kind]
            scenarios[scenario.id] = worker.call("agree", PREPARE_LIMIT_S, profiler=scenario.profiler)
            progress.step(scenario.id)
        path = self._output / AGREEMENT_FILE
        write_json(path, {"format": AGREEMENT_FORMAT, "scenarios": scenarios})
        return path

    def _run(
        self, scenario: Scenario, number: int, blocks: list[dict[str, Any]], finished: dict[str, Any]
    ) -> dict[str, Any]:
        samples = [sample for block in blocks for sample in block["samples_ms"]]
        described = [{k: v for k, v in block.items() if k != "samples_ms"} for block in blocks]
        prepared = self._prepared[scenario.kind]
        return {
            "format": RUN_FORMAT,
            "scenario": asdict(scenario),
            "attempt": number,
            "plan": asdict(self._plan),
            "written_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "revision": self._revision,
            **prepared,
            **finished,
            "blocks": described,
            "samples_ms": samples,
        }


def write_json(path: Path, value: Any) -> None:
    """Writes a value so that a reader never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)

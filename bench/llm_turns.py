"""Engines of language models, each loaded in a process of its own, which answer the same prompts in turns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure.statistics import median
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
    LlmEngine("openvino_genai", "OpenVINO GenAI", "peers"),
    LlmEngine("ctranslate2", "CTranslate2", "peers"),
    LlmEngine("eager", "PyTorch", "peers"),
)


@dataclass(frozen=True)
class Load:
    """What is asked at a time: so many prompts of so many tokens, answers of so many."""

    batch: int
    prompt: int
    output: int


@dataclass(frozen=True)
class Places:
    """Where things lie.

    Attributes:
      pythons: of the environments, by place.
      output: folder of logs.
    """

    pythons: Mapping[str, Path]
    output: Path


class Loaded:
    """Engines that have loaded a model."""

    def __init__(self, workers: dict[str, Worker], made: dict[str, dict[str, Any]]) -> None:
        self._workers, self.made = workers, made

    def measure(self, load: Load, rounds: int, *, roofs: bool = False) -> dict[str, Any]:
        """One turn of each engine a round, after one that is not counted.

        Args:
          load: what is asked.
          rounds: that are counted.
          roofs: the machine's are measured as often, beside: what it can changes with who else is on it.

        Returns:
          The load, and for each engine what "create" answered, samples and their medians; or "unavailable" with the
          reason. With `roofs` their medians as well.
        """
        found: list[dict[str, float]] = []
        samples: dict[str, list[dict[str, float]]] = {key: [] for key in self._workers}
        for turn in range(rounds + 1):
            for key in self._workers if turn % 2 else reversed(self._workers):
                sample = self._workers[key].call("run", RUN_LIMIT_S, seed=turn, **vars(load))
                if turn:
                    samples[key].append(sample)
            if roofs and turn:
                found.append(self.call("roofs"))
        engines = {
            key: {**made, **(summary(load, samples[key]) if key in samples else {})} for key, made in self.made.items()
        }
        made: dict[str, Any] = {**vars(load), "engines": engines}
        if roofs:
            made["roofs"] = {name: median([each[name] for each in found]) for name in found[0]}
        return made

    def call(self, method: str, **arguments: Any) -> dict[str, Any]:
        """What one of our own engine's methods gives."""
        return self._workers[OURS].call("call", RUN_LIMIT_S, method=method, **arguments)


@contextmanager
def loaded(
    places: Places,
    model: tuple[Path, Path],
    threads: int,
    batch: int,
    context: int,
    keys: Sequence[str] = (OURS,),
    **options: Any,
) -> Iterator[Loaded]:
    """Loads a model in the engines of these keys.

    Args:
      places: where things lie.
      model: the GGUF file and its folder, see llm_engines.Model.
      threads: of every engine.
      batch: answers at once.
      context: tokens of each, prompts included; 0: what Thresher takes by default.
      keys: of ENGINES.
      **options: of our own.

    Raises:
      WorkerError: an engine failed, or there is no Thresher.
    """
    variables = clean_environment(threads, {"THRESHER_NUM_THREADS": str(threads), "THRESHER_PROFILE": "OFF"})
    script = Path(__file__).with_name("llm_worker.py")
    with ExitStack() as stack:
        workers, made = {}, {}
        for engine in [each for each in ENGINES if each.key in keys]:
            command = [str(places.pythons[engine.place]), str(script), engine.key, *map(str, model)]
            log = places.output / "logs" / f"llm-{engine.key}.log"
            worker = Worker(engine.title, [*command, *map(str, (threads, batch, context))], variables, log)
            stack.enter_context(worker)
            found = worker.call("create", CREATE_LIMIT_S, **(options if engine.key == OURS else {}))
            made[engine.key] = {"title": engine.title, **found}
            if "unavailable" not in found:
                workers[engine.key] = worker
            elif engine.key == OURS:
                raise WorkerError(f"{engine.title}: {found['unavailable']}; give the python of an environment with it")
        yield Loaded(workers, made)


def summary(load: Load, samples: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Medians of the turns of one engine: seconds become milliseconds and tokens a second."""
    token_s = median([(s["end"] - s["prompts"]) / (load.output - 1) for s in samples])
    return {
        "samples": list(samples),
        "first_ms": median([s["first"] for s in samples]) * 1e3,
        "prompt_tokens_per_s": load.batch * load.prompt / median([s["prompts"] for s in samples]),
        "token_ms": token_s * 1e3,
        "tokens_per_s": load.batch / token_s,
        "peak_mb": max(s["peak_mb"] for s in samples),
    }

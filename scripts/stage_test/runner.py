"""One scenario inside the environment under test: answers the stage's commands (see `measure.service`).

Started by the stage as `python runner.py KIND THREADS BATCH SEQUENCE`; not meant to be started by hand.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import gc
import importlib.metadata
import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# This folder's own module names must not hide installed ones.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch

from measure import environment, minilm, service, text


def require_absent() -> None:
    """Scenario (1) needs an environment that Thresher cannot have touched.

    Raises:
      RuntimeError: Thresher can be imported here.
    """
    if importlib.util.find_spec("thresher") is not None:
        raise RuntimeError(
            "scenario (1) needs an environment without Thresher, but `import thresher` finds one under "
            f"{sys.prefix}; give --python-base the python of an environment where it is not installed"
        )


def load_entry_points() -> list[str]:
    """Imports Thresher and everything that it announces to PyTorch.

    Returns:
      "GROUP: NAME = VALUE" of every entry point loaded.

    Raises:
      RuntimeError: the back end is not announced.
    """
    importlib.import_module("thresher")
    loaded: list[str] = []
    # PyTorch itself reads both groups: the first when a back end is looked up, the second by `import torch`.
    for group in ("torch_dynamo_backends", "torch.backends"):
        for point in importlib.metadata.entry_points(group=group):
            if "thresher" in point.value:
                point.load()
                loaded.append(f"{group}: {point.name} = {point.value}")
    if not any(line.startswith("torch_dynamo_backends: thresher") for line in loaded):
        raise RuntimeError(
            f"expected an entry point 'thresher' in the group torch_dynamo_backends, got {loaded or 'none'} in "
            f"{sys.prefix}; install Thresher's wheel there"
        )
    return loaded


class Runner:
    """The model, its requests and the clock."""

    def __init__(self, kind: str, threads: int, batch: int, sequence: int) -> None:
        self._kind = kind
        self._compiled = kind.startswith("backend")
        self._bf16 = kind == "backend-bf16"
        self._batch = batch
        self._sequence = sequence
        self._threads = threads
        self._turn = 0
        self._requests: list[dict[str, torch.Tensor]] = []
        self._eager: torch.nn.Module
        self._call: Callable[..., Any]

    def prepare(self, command: dict[str, Any]) -> dict[str, Any]:
        """Loads the model and runs the warm-ups: {"warmups": N, "profilers": [...]}, unwatched first."""
        entry_points: list[str] = []
        if self._kind == "base":
            require_absent()
        else:
            entry_points = load_entry_points()
        torch.set_num_threads(self._threads)
        self._eager = minilm.load_model().to(torch.bfloat16 if self._bf16 else torch.float32)
        self._requests = [
            minilm.tokenize([text.PASSAGES[(i + j) % len(text.PASSAGES)] for j in range(self._batch)], self._sequence)
            for i in range(len(text.PASSAGES))
        ]
        self._call = torch.compile(self._eager, backend="thresher") if self._compiled else self._eager
        block = self._run(command["warmups"])
        for profiler in command["profilers"]:  # what a profiler does the first time is nobody's request
            self._run(1, profiler)
        self.begin({})
        return {
            "entry_points": entry_points,
            "warmup_ms": block["samples_ms"],
            "environment": environment.describe(),
            "torch_threads": torch.get_num_threads(),
            "attention": str(getattr(self._eager.config, "_attn_implementation", "unknown")),
        }

    def begin(self, _: dict[str, Any]) -> dict[str, Any]:
        """Forgets the operator records so far: the report shall speak of one attempt's requests only."""
        if self._compiled:
            import thresher

            thresher.profiler.reset()
        return {}

    def block(self, command: dict[str, Any]) -> dict[str, Any]:
        """One settling request, which refills the caches after other processes ran, then the timed ones.

        The command is {"requests": N, "profiler": "off", "thresher" or "torch.profiler"}.
        """
        gc.collect()
        return self._run(command["requests"], command["profiler"], settle=True)

    def _run(self, count: int, profiler: str = "off", settle: bool = False) -> dict[str, Any]:
        samples: list[float] = []
        result: dict[str, Any] = {"started_at": round(time.time(), 3), "load_average": environment.load_average()}
        begin = time.perf_counter()
        with torch.no_grad(), self._watch(profiler):
            entered = time.perf_counter()
            if settle:
                result["settle_ms"] = self._request()
            for _ in range(count):
                samples.append(self._request())
            leaving = time.perf_counter()
        if profiler != "off":
            result["profiler_start_ms"] = (entered - begin) * 1e3
            result["profiler_stop_ms"] = (time.perf_counter() - leaving) * 1e3
        result["samples_ms"] = samples
        return result

    def _watch(self, profiler: str) -> contextlib.AbstractContextManager[Any]:
        if profiler == "off":
            return contextlib.nullcontext()
        if profiler == "torch.profiler" and self._compiled:
            from thresher import torch_profiler

            watch: contextlib.AbstractContextManager[Any] = torch_profiler.profile()
            return watch
        if profiler == "torch.profiler":
            return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
        return _operator_records()

    def _request(self) -> float:
        """Milliseconds that one request takes, from its token tensors to the encoder's output."""
        inputs = self._requests[self._turn % len(self._requests)]
        self._turn += 1
        begin = time.perf_counter()
        self._call(**inputs)
        return (time.perf_counter() - begin) * 1e3

    def finish(self, command: dict[str, Any]) -> dict[str, Any]:
        """What is known after an attempt: the operator report and the engine's statistics."""
        result: dict[str, Any] = {"load_average": environment.load_average()}
        if self._compiled:
            import thresher
            from thresher import _engine

            if command["profiler"] == "thresher":
                result["op_report"] = thresher.profiler.op_report()
                result["records_dropped"] = _engine.profile_dropped()
            result["engine"] = {
                "isa": _engine.isa(),
                "threads": _engine.num_threads(),
                "compilation": dataclasses.asdict(thresher.compilation_stats()),
            }
        return result

    def agree(self, _: dict[str, Any]) -> dict[str, Any]:
        """Outputs of this scenario against eager PyTorch of the same process, and similarities of the sentence pairs.

        The pairs go through as one padded batch, a shape that was not timed; the passages as they were timed. In
        bfloat16 both are compared with the same weights in float64 instead.
        """
        pairs = minilm.tokenize([sentence for pair in text.PAIRS for sentence in pair])
        if self._bf16:
            return self._errors(pairs)
        hidden_error = 0.0
        pooled_error = 0.0
        with torch.no_grad():
            for inputs in [*self._requests, pairs]:
                mask = inputs["attention_mask"]
                wanted = self._eager(**inputs).last_hidden_state
                found = self._call(**inputs).last_hidden_state
                # Positions of padding hold no answer: nobody reads them.
                real = mask.bool()
                hidden_error = max_keeping_nan(hidden_error, (found - wanted)[real].abs().max().item())
                pooled = minilm.pool(found, mask)
                pooled_error = max_keeping_nan(pooled_error, (pooled - minilm.pool(wanted, mask)).abs().max().item())
        similarities = (pooled[0::2] * pooled[1::2]).sum(1)
        return {
            "last_hidden_state_max_abs": hidden_error,
            "pooled_max_abs": pooled_error,
            "similarities": [
                {"first": a, "second": b, "cosine": value}
                for (a, b), value in zip(text.PAIRS, similarities.tolist(), strict=True)
            ],
        }

    def _errors(self, pairs: dict[str, torch.Tensor]) -> dict[str, Any]:
        """Largest errors of the last hidden state against float64: of Thresher, and of PyTorch in bfloat16."""
        exact = copy.deepcopy(self._eager).double()
        calls: tuple[Callable[..., Any], ...] = (self._call, self._eager)
        errors = {"last_hidden_state_error": 0.0, "last_hidden_state_error_of_pytorch": 0.0}
        with torch.no_grad():
            for inputs in [*self._requests, pairs]:
                real = inputs["attention_mask"].bool()
                wanted = exact(**inputs).last_hidden_state[real]
                for name, call in zip(errors, calls, strict=True):
                    found = call(**inputs).last_hidden_state[real]
                    errors[name] = max_keeping_nan(errors[name], (found - wanted).abs().max().item())
        return dict(errors)


@contextlib.contextmanager
def _operator_records() -> Iterator[None]:
    import thresher

    thresher.profiler.start()
    try:
        yield
    finally:
        thresher.profiler.stop()


def max_keeping_nan(a: float, b: float) -> float:
    """The larger number, or NaN if either is one: an output of NaN must not pass for agreement."""
    return a + b if a != a or b != b else max(a, b)


def main(arguments: list[str]) -> int:
    """Serves one scenario."""
    kind, threads, batch, sequence = arguments
    runner = Runner(kind, int(threads), int(batch), int(sequence))
    return service.serve(
        {
            "prepare": runner.prepare,
            "begin": runner.begin,
            "block": runner.block,
            "finish": runner.finish,
            "agree": runner.agree,
        }
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

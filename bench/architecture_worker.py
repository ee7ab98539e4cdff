"""One architecture in a process of its own (see `measure.service`).

Usage: python architecture_worker.py ARCHITECTURE PRECISION, where PRECISION is the type of the model's values.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

import torch
from architectures import ARCHITECTURES, make
from torch.overrides import TorchFunctionMode

import thresher
from measure import environment, service

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
MIN_TURN_S = 0.02  # short calls are timed together


class InDouble(TorchFunctionMode):
    """Computes in float64 what a model asks to be computed in float32, as norms and softmax of reduced models do."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.float:
            return args[0].double()
        args = tuple(torch.float64 if arg is torch.float32 else arg for arg in args)
        kwargs = {key: torch.float64 if arg is torch.float32 else arg for key, arg in (kwargs or {}).items()}
        return func(*args, **kwargs)


class ArchitectureWorker:
    """A model, eager and compiled, and the clock."""

    def __init__(self, name: str, precision: str) -> None:
        self._architecture = ARCHITECTURES[name]
        self._dtype = DTYPES[precision]
        self._calls: dict[str, Callable[[], Any]] = {}

    def create(self, _: dict[str, Any]) -> dict[str, Any]:
        """Compiles the model and compares it with a float64 reference."""
        model, inputs = make(self._architecture)
        model = model.to(self._dtype)
        inputs = {key: self._cast(value, self._dtype) for key, value in inputs.items()}
        with torch.no_grad():
            eager = _first(model(**inputs))
            begin = time.perf_counter()
            compiled = thresher.compile(model)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                got = _first(compiled(**inputs))
            first_s = time.perf_counter() - begin
            reference = self._reference({key: self._cast(value, torch.float64) for key, value in inputs.items()})
            self._calls = {"eager": lambda: model(**inputs), "thresher": lambda: compiled(**inputs)}
            if self._dtype is not torch.float32:
                self._add_float32()
        scale = reference.norm().item()
        stats = thresher.compilation_stats()
        left: dict[str, int] = {}
        for entry in stats.unsupported:
            left[entry.op] = left.get(entry.op, 0) + entry.count
        return {
            "engines": list(self._calls),
            "first_s": first_s,
            "error": (got.double() - reference).norm().item() / scale,
            "eager_error": (eager.double() - reference).norm().item() / scale,
            "same_shape": got.shape == eager.shape and got.dtype == eager.dtype,
            "graphs": stats.graphs,
            "parts": stats.partitions,
            "nodes": stats.nodes_supported + stats.nodes_unsupported,
            "nodes_in_engine": stats.nodes_supported,
            "left": dict(sorted(left.items(), key=lambda item: -item[1])),
            "eager_shapes": list(stats.eager_shapes),
            "environment": environment.describe(),
        }

    def _add_float32(self) -> None:
        """The same model in float32: what the engine makes of values in 16 bits is held against that."""
        model, inputs = make(self._architecture)
        compiled = thresher.compile(model)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compiled(**inputs)
        self._calls["thresher-fp32"] = lambda: compiled(**inputs)

    def turn(self, command: dict[str, Any]) -> dict[str, Any]:
        """One call that is not counted, then several that are: {"engine": one of those in "create"'s answer}."""
        call = self._calls[command["engine"]]
        with torch.no_grad():
            call()
            begin = time.perf_counter()
            count = 0
            while count == 0 or time.perf_counter() - begin < MIN_TURN_S:
                call()
                count += 1
            return {"ms": (time.perf_counter() - begin) * 1e3 / count}

    def _reference(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        """The answer of the same weights, as rounded, in float64."""
        model = make(self._architecture)[0].to(self._dtype).double()
        if hasattr(getattr(model, "config", None), "_experts_implementation"):
            model.set_experts_implementation("eager")  # the others have no float64
        torch.set_default_dtype(torch.float64)
        try:
            with InDouble():
                return _first(model(**inputs))
        finally:
            torch.set_default_dtype(torch.float32)

    @staticmethod
    def _cast(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return value.to(dtype) if value.is_floating_point() else value


def _first(output: Any) -> torch.Tensor:
    tensor = output if isinstance(output, torch.Tensor) else output[0]
    assert isinstance(tensor, torch.Tensor)
    return tensor


if __name__ == "__main__":
    worker = ArchitectureWorker(*sys.argv[1:])
    sys.exit(service.serve({"create": worker.create, "turn": worker.turn}))

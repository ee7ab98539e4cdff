"""What can run a model of PyTorch, each by a name."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from thresher.compiler import CompilerConfig
from thresher.compiler import compile as thresher_compile
from thresher.measure.inputs import Call

Run = Callable[[], Any]


class Engine:
    """One engine.

    Attributes:
      name: by which users ask for it.
      title: what tables call it.
    """

    name = ""
    title = ""

    def obstacle(self) -> str | None:
        """Why it cannot run anything here, None where it can."""
        return None

    def prepare(self, model: Any, call: Call, config: CompilerConfig, threads: int) -> Run:
        """Makes its own form of a model, as far as that happens before a call.

        Args:
          model: what to run.
          call: the arguments of every call.
          config: how Thresher compiles.
          threads: how many the engine may use, where it is one that can be told.

        Returns:
          One call, which gives what the model gives, or a list of arrays.
        """
        raise NotImplementedError


def _lacks(*packages: str) -> str | None:
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    return f"expected {', '.join(missing)} to be installed; pip install {' '.join(missing)}" if missing else None


class _Eager(Engine):
    name, title = "eager", "PyTorch eager"

    def prepare(self, model: Any, call: Call, config: CompilerConfig, threads: int) -> Run:
        args, kwargs = call
        return lambda: model(*args, **kwargs)


class _Thresher(Engine):
    name, title = "thresher", "Thresher"

    def prepare(self, model: Any, call: Call, config: CompilerConfig, threads: int) -> Run:
        args, kwargs = call
        compiled = thresher_compile(model, config=config)
        return lambda: compiled(*args, **kwargs)


class _Inductor(Engine):
    name, title = "inductor", "torch.compile (Inductor)"

    def obstacle(self) -> str | None:
        compilers = (os.environ.get("CXX", ""), "g++", "c++", "clang++")
        if any(name and shutil.which(name) for name in compilers):
            return None
        return "expected a C++ compiler, which Inductor calls, got none; install g++"

    def prepare(self, model: Any, call: Call, config: CompilerConfig, threads: int) -> Run:
        args, kwargs = call
        # Each batch is compiled for itself: code for all sizes is slower.
        compiled: Any = torch.compile(model, dynamic=False)
        return lambda: compiled(*args, **kwargs)


class _ZenTorch(Engine):
    name, title = "zentorch", "zentorch"

    def obstacle(self) -> str | None:
        return _lacks("zentorch")

    def prepare(self, model: Any, call: Call, config: CompilerConfig, threads: int) -> Run:
        importlib.import_module("zentorch")
        args, kwargs = call
        compiled: Any = torch.compile(model, backend="zentorch", dynamic=False)
        return lambda: compiled(*args, **kwargs)


class _Plain(torch.nn.Module):
    """A model that takes all its tensors by position and gives a tuple of tensors, as tracers want it."""

    def __init__(self, model: Any, call: Call) -> None:
        super().__init__()
        self._model = model
        self._positional = len(call[0])
        self._names = list(call[1])

    def forward(self, *tensors: torch.Tensor) -> tuple[Any, ...]:
        """Calls the model."""
        named = dict(zip(self._names, tensors[self._positional :], strict=True))
        result = self._model(*tensors[: self._positional], **named)
        return tuple(leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor))


@contextlib.contextmanager
def _quiet_tracing() -> Iterator[None]:
    """Tracers warn of every condition on a size; results are compared with eager PyTorch's anyway."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class _OnnxRuntime(Engine):
    name, title = "onnxruntime", "ONNX Runtime"

    def obstacle(self) -> str | None:
        return _lacks("onnxruntime", "onnx")

    def prepare(self, model: Any, call: Call, config: CompilerConfig, threads: int) -> Run:
        onnxruntime: Any = importlib.import_module("onnxruntime")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        tensors = (*call[0], *call[1].values())
        with tempfile.TemporaryDirectory(prefix="thresher-") as folder, _quiet_tracing():
            path = Path(folder) / "model.onnx"
            names = [f"input_{i}" for i in range(len(tensors))]
            torch.onnx.export(_Plain(model, call).eval(), tensors, str(path), input_names=names, dynamo=False)
            session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        used = {port.name for port in session.get_inputs()}  # a model may ignore some
        feed = {name: one.numpy(force=True) for name, one in zip(names, tensors, strict=True) if name in used}
        return lambda: session.run(None, feed)


class _OpenVino(Engine):
    name, title = "openvino", "OpenVINO"

    def obstacle(self) -> str | None:
        return _lacks("openvino")

    def prepare(self, model: Any, call: Call, config: CompilerConfig, threads: int) -> Run:
        openvino: Any = importlib.import_module("openvino")
        tensors = (*call[0], *call[1].values())
        settings = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": "f32",  # by itself it takes bf16 where the processor has it
        }
        with _quiet_tracing():
            made = openvino.convert_model(_Plain(model, call).eval(), example_input=tensors)
        compiled = openvino.Core().compile_model(made, "CPU", settings)
        request = compiled.create_infer_request()
        given = [tensor.numpy(force=True) for tensor in tensors]

        def run() -> list[Any]:
            request.infer(given, share_inputs=True)
            return [request.get_output_tensor(i).data for i in range(len(compiled.outputs))]

        return run


ENGINES: dict[str, Engine] = {
    engine.name: engine for engine in (_Eager(), _Thresher(), _Inductor(), _ZenTorch(), _OnnxRuntime(), _OpenVino())
}

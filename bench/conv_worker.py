"""One engine on convolutions and networks, in a process of its own (see `measure.service`).

Usage: python conv_worker.py ENGINE THREADS FOLDER. The engine "thresher" leaves the network, its input and the answer
that is expected in FOLDER, where the others find them.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import shutil
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

import numpy as np
import torch
from conv_cases import DTYPES, PRECISIONS, layers, make, networks
from engines import Unavailable, unavailable_reason

from measure import environment, service

MIN_TURN_S = 0.01  # short calls are timed together
FILES = ("model.pt", "input.npy", "expected.npy")


class ConvWorker:
    """A network, an engine and the clock."""

    def __init__(self, engine: str, threads: int, folder: Path) -> None:
        self._engine, self._threads, self._folder = engine, threads, folder
        self._call: Callable[[], Any] = lambda: None
        self._output: Callable[[Any], np.ndarray] = np.asarray
        self._written: dict[str, Any] = {}
        torch.set_num_threads(threads)

    def begin(self, command: dict[str, Any]) -> dict[str, Any]:
        """What there is to measure; measures the roofs if nobody has.

        The command is {"file": commands or null, "networks": beginnings of names, none for all, "batches": sizes}.
        """
        import thresher

        thresher.peaks()
        if command["file"] is None:
            found = [
                {"name": name, "kind": "network", "network": name, "batch": batch, "precision": precision}
                for name in networks(command["networks"])
                for batch in command["batches"]
                for precision in PRECISIONS[torch.float32]
            ]
        else:
            found = layers(Path(command["file"]), command["batches"])
        return {"cases": found, "environment": environment.describe()}

    def make(self, command: dict[str, Any]) -> dict[str, Any]:
        """Makes the engine's form of {"case": ...}, and compares its answer with the expected one."""
        case = command["case"]
        self._call = lambda: None
        _give_memory_back()
        try:
            with warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")
                if self._engine == "thresher":
                    self._write(case)
                self._prepare(case)
                answer = np.asarray(self._output(self._call()), dtype=np.float32)
        except Exception as error:
            reason = unavailable_reason(error)
            if reason is None:
                raise
            return {"unavailable": reason}
        expected = np.load(self._folder / "expected.npy")
        if answer.shape != expected.shape:
            raise ValueError(f"{case['name']}: expected an answer of {expected.shape}, got {answer.shape}")
        error = float(np.linalg.norm(answer - expected) / np.linalg.norm(expected))
        return {"error": error, "roof_ms": self._roof_ms()}

    def turn(self, _: dict[str, Any]) -> dict[str, Any]:
        """One call that is not counted, then several that are."""
        with torch.no_grad():
            self._call()
            begin = time.perf_counter()
            count = 0
            while count == 0 or time.perf_counter() - begin < MIN_TURN_S:
                self._call()
                count += 1
            return {"ms": (time.perf_counter() - begin) * 1e3 / count}

    def _roof_ms(self) -> float | None:
        """What Thresher's operators take at least at the measured peaks, one after the other; None of other engines."""
        if self._engine != "thresher":
            return None
        from thresher.signatures.timing import work_of_call

        roof_ns = work_of_call(self._call, self._threads).roof_ns
        return None if roof_ns is None else roof_ns / 1e6

    def _write(self, case: dict[str, Any]) -> None:
        written = {**case, "precision": None}  # the files are the same in every precision
        if written == self._written:
            return
        self._written = {}
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        model, x = make(case)
        torch.jit.trace(model, x, check_trace=False).save(self._folder / FILES[0])
        for file, tensor in zip(FILES[1:], (x, model(x)), strict=True):
            np.save(self._folder / file, tensor.numpy())
        self._written = written

    def _prepare(self, case: dict[str, Any]) -> None:
        if self._engine in ("onnxruntime", "openvino"):
            if self._engine == "onnxruntime" and case["precision"] == "bf16":
                raise Unavailable("ONNX Runtime has no convolution in bfloat16 on processors")
            self._prepare_peer(case)
            return
        if self._engine != "thresher" and case["precision"] == "int8":
            raise Unavailable("PyTorch takes int8 from models that were quantised with calibration data")
        model, x = make(case)
        dtype = DTYPES[case["precision"]]
        model, x = model.to(dtype), x.to(dtype)
        last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
        # Networks get images as they come.
        if last and (self._engine == "torch-last" or (self._engine == "thresher" and case.get("channels_last"))):
            model, x = model.to(memory_format=last), x.to(memory_format=last)
        elif self._engine == "torch-last":
            raise Unavailable("one dimension has no such order of memory")
        if self._engine == "thresher":
            import thresher

            thresher.clear_cache()
            torch._dynamo.reset()
            config = thresher.CompilerConfig(
                fallback="error", precision="int8" if case["precision"] == "int8" else "model"
            )
            model = thresher.compile(model, config=config)
        self._call = lambda: model(x)
        self._output = lambda answer: answer.float().numpy()

    def _prepare_peer(self, case: dict[str, Any]) -> None:
        onnx = self._folder / "model.onnx"
        x = np.load(self._folder / "input.npy")
        if not onnx.exists():
            network = torch.jit.load(self._folder / "model.pt")
            example = torch.from_numpy(x)
            torch.onnx.export(network, (example,), str(onnx), input_names=["x"], opset_version=18, dynamo=False)
        module = importlib.import_module(f"engines.{self._engine}")
        folder, precision = self._folder, case["precision"]
        if precision == "int8":
            # Both take the same file, in which what is between the layers is rounded as well.
            folder, precision = _calibrated(onnx, x), "fp32"
        engine = module.Engine(folder, self._threads, precision)
        try:
            engine.create()
        except RuntimeError as error:
            if case["precision"] != "int8":
                raise
            raise Unavailable(f"does not take the int8 file: {str(error).splitlines()[0]}") from error
        inputs = engine.prepare({"x": x})
        self._call = lambda: engine.run(inputs)
        self._output = engine.output


def _give_memory_back() -> None:
    """What the case before has used: the C library keeps it else, by and by all of the machine's, beside four peers."""
    gc.collect()
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):  # glibc
        library.malloc_trim(0)


def _calibrated(onnx: Path, x: np.ndarray) -> Path:
    """A folder with the int8 form of a network as its model."""
    from engines.onnxruntime import calibrated

    folder = onnx.parent / "int8"
    if not folder.exists():
        made = calibrated(onnx, {"x": x})
        folder.mkdir()
        made.replace(folder / "model.onnx")
    return folder


if __name__ == "__main__":
    worker = ConvWorker(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
    sys.exit(service.serve({"begin": worker.begin, "make": worker.make, "turn": worker.turn}))

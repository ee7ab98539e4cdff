"""OpenVINO's CPU plug-in, held to float32 (it would take bf16 where the processor has it)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino


class Engine:
    def __init__(self, onnx: Path, threads: int) -> None:
        self._onnx = onnx
        self._settings = {
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": "f32",
        }
        self._request: Any = None

    def create(self) -> None:
        core = openvino.Core()
        self._request = core.compile_model(core.read_model(self._onnx), "CPU", self._settings).create_infer_request()

    def prepare(self, case: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return case

    def run(self, inputs: dict[str, np.ndarray]) -> Any:
        return self._request.infer(inputs, share_inputs=True)

    def output(self, answer: Any) -> np.ndarray:
        return np.array(answer[0])

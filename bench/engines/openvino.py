"""OpenVINO's CPU plug-in, told which precision to compute in (by itself it takes bf16 where the processor has it)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino

from engines import Unavailable

HINTS = {"fp32": "f32", "bf16": "bf16"}


class Engine:
    note = ""

    def __init__(self, model: Path, threads: int, precision: str) -> None:
        self._onnx = model / "model.onnx"
        self._hint = HINTS[precision]
        self._settings = {
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": self._hint,
        }
        self._request: Any = None

    def create(self) -> None:
        core = openvino.Core()
        compiled = core.compile_model(core.read_model(self._onnx), "CPU", self._settings)
        found = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
        # It takes a hint for bf16 on every processor, and then computes in float32 where bf16 is missing.
        if found != self._hint:
            raise Unavailable(f"asked for {self._hint}, OpenVINO computes in {found} on this processor")
        self.note = f"computes in {found}"
        self._request = compiled.create_infer_request()

    def prepare(self, case: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return case

    def run(self, inputs: dict[str, np.ndarray]) -> Any:
        return self._request.infer(inputs, share_inputs=True)

    def output(self, answer: Any) -> np.ndarray:
        return np.array(answer[0])

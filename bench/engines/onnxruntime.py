"""ONNX Runtime's CPU provider with all graph optimisations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime


class Engine:
    def __init__(self, onnx: Path, threads: int) -> None:
        self._onnx = onnx
        self._options = onnxruntime.SessionOptions()
        self._options.intra_op_num_threads = threads
        self._options.inter_op_num_threads = 1
        self._options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        self._session: Any = None

    def create(self) -> None:
        self._session = onnxruntime.InferenceSession(str(self._onnx), self._options, providers=["CPUExecutionProvider"])

    def prepare(self, case: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return case

    def run(self, inputs: dict[str, np.ndarray]) -> Any:
        return self._session.run(None, inputs)

    def output(self, answer: Any) -> np.ndarray:
        return np.asarray(answer[0])

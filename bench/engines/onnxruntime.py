"""ONNX Runtime's CPU provider with all graph optimisations; int8 by its own dynamic quantisation, or its static one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from measure import environment


class Engine:
    note = ""

    def __init__(self, model: Path, threads: int, precision: str) -> None:
        self._onnx = model / "model.onnx"
        if precision == "int8":
            self._onnx, self.note = _quantized(self._onnx)
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


def calibrated(onnx: Path, inputs: dict[str, np.ndarray]) -> Path:
    """The int8 form of a model whose ranges were found on `inputs`: what is fastest for convolutions."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Once(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._left = [inputs]

        def get_next(self) -> dict[str, np.ndarray] | None:
            return self._left.pop() if self._left else None

    path = onnx.with_name(f"onnxruntime-{onnxruntime.__version__}-calibrated.onnx")
    if not path.exists():
        partial = path.with_name(f"{path.name}.partial")
        quantize_static(
            onnx,
            partial,
            Once(),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            reduce_range=_wants_seven_bits(),
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )
        partial.replace(path)
    return path


def _wants_seven_bits() -> bool:
    """Without VNNI the kernels add two products in 16 bits, which overflow unless the weights have seven bits."""
    return not {"avx512_vnni", "avx_vnni", "asimddp"} & set(environment.describe()["isa"])


def _quantized(onnx: Path) -> tuple[Path, str]:
    """The int8 form of a model, written on the first call, and what was done."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    seven = _wants_seven_bits()
    bits = 7 if seven else 8
    path = onnx.with_name(f"onnxruntime-{onnxruntime.__version__}-int{bits}.onnx")
    if not path.exists():
        partial = path.with_name(f"{path.name}.partial")
        quantize_dynamic(onnx, partial, per_channel=True, reduce_range=seven, weight_type=QuantType.QInt8)
        partial.replace(path)
    return path, f"quantize_dynamic, weights per channel in {bits} bits, activations per tensor"

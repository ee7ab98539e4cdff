"""Weights in fewer bits, without calibration."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from thresher import _engine
from thresher.llm.formats.tensors import BLOCKS, StoredTensor


def quantize(weight: npt.NDArray[np.float32] | StoredTensor, encoding: str, group: int = 32) -> StoredTensor:
    """Quantises a weight, rounding as llama.cpp does.

    Args:
        weight: float32 [out, in], or a tensor as it is stored, which is dequantised first.
        encoding: q8_0, q4_0, q4_1, q5_0 or q5_1.
        group: How many numbers of a row share a scale: 32, 64, 128, ... up to the whole row. The scale stands in each
            of their blocks, so that the size is the same for all.

    Returns:
        The weight in blocks.

    Raises:
        ValueError: Rows are no whole groups; a number is not finite, or too large for a scale in f16.
        NotImplementedError: Another encoding.
    """
    numbers = weight.dequantized() if isinstance(weight, StoredTensor) else np.ascontiguousarray(weight, np.float32)
    if numbers.ndim != 2 or group < 1 or numbers.shape[1] % group:
        raise ValueError(f"expected a weight [out, in] with rows of whole groups of {group}, got {list(numbers.shape)}")
    if encoding not in BLOCKS:
        raise NotImplementedError(f"expected q8_0, q4_0, q4_1, q5_0 or q5_1, got {encoding}")
    blocks = np.asarray(_engine.encode(encoding, numbers.reshape(-1), group), np.uint8)
    return StoredTensor(encoding, tuple(numbers.shape), blocks)

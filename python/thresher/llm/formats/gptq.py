"""Weights as GPTQ and AWQ leave them in safetensors, turned into blocks that hold the same numbers.

A linear is three tensors: codes of a few bits, 32 bits of them in an i32 (`qweight`); for each group of inputs and each
output a scale (`scales`) and the code that stands for 0 (`qzeros`). What a code says is (code - zero) * scale, which
blocks of q4_0, q5_0 or q8_0 say, too: their zero is fixed, and the scale stands in each block of 32. So nothing is
rounded.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from thresher.llm.formats.tensors import StoredTensor

_log = logging.getLogger(__name__)

_BLOCK = 32
_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # which four bits of an i32 hold the first of eight outputs, the second, ...
_LEVELS = {"q4_0": 8, "q5_0": 16, "q8_0": 0}  # what is added to a number to make its code

Integers = npt.NDArray[np.int32]


def unpack_linears(tensors: Mapping[str, StoredTensor], config: Mapping[str, Any]) -> dict[str, StoredTensor]:
    """Turns the linears of a quantised checkpoint into weights [out, in].

    Args:
      tensors: of the checkpoint.
      config: `quantization_config` of config.json.

    Returns:
      All tensors; for `name.qweight`, `.qzeros`, `.scales` and `.g_idx` a `name.weight`, in blocks where groups are
      whole blocks and scales fit f16, else in f32. Where columns had to be sorted by their groups there is a
      `name.columns`, i64 [in], the input that each belongs to.

    Raises:
      ValueError: a method or a number of bits that is not read, or tensors that do not fit each other.
    """
    method = str(config.get("quant_method", "")).lower()
    if method not in ("gptq", "awq"):
        raise ValueError(
            f"quantization_config: expected quant_method gptq or awq, got {method!r}; take another checkpoint"
        )
    bits = config.get("bits", config.get("w_bit"))
    if bits not in ((4, 8) if method == "gptq" else (4,)):
        raise ValueError(f"quantization_config: expected {'4 or 8' if method == 'gptq' else '4'} bits, got {bits!r}")
    version = str(config.get("version", "gemm")).lower()
    if method == "awq" and version != "gemm":
        raise ValueError(f"quantization_config: expected version gemm of awq, got {version!r}")
    offset = 1 if method == "gptq" and config.get("checkpoint_format") != "gptq_v2" else 0
    found = {name: tensor for name, tensor in tensors.items() if not _is_part(name, tensors)}
    for name in tensors:
        if name.endswith(".qweight"):
            prefix = name.removesuffix("qweight")
            try:
                found |= _linear(prefix, tensors, method, int(bits), offset)
            except (KeyError, ValueError) as error:
                what = f"expected a tensor {error}, got none" if isinstance(error, KeyError) else str(error)
                raise ValueError(
                    f"{name} ({method}): {what}; the checkpoint is not complete or of another kind"
                ) from None
    return found


def _is_part(name: str, tensors: Mapping[str, StoredTensor]) -> bool:
    prefix, _, part = name.rpartition(".")
    return part in ("qweight", "qzeros", "scales", "g_idx") and f"{prefix}.qweight" in tensors


def _linear(
    prefix: str, tensors: Mapping[str, StoredTensor], method: str, bits: int, offset: int
) -> dict[str, StoredTensor]:
    packed, zeros = _integers(tensors[prefix + "qweight"]), _integers(tensors[prefix + "qzeros"])
    scales = tensors[prefix + "scales"].dequantized()
    if scales.ndim != 2 or packed.ndim != 2 or zeros.shape != (len(scales), scales.shape[1] * bits // 32):
        raise ValueError(f"expected qzeros for scales {list(scales.shape)}, got {list(zeros.shape)}")
    groups, outputs = scales.shape
    if method == "gptq":
        codes = _unpack(packed.T, bits, range(32 // bits))
        zero = (_unpack(zeros, bits, range(32 // bits)) + offset) & (2**bits - 1)
    else:
        codes = np.ascontiguousarray(_unpack(packed, bits, _AWQ_ORDER).T)
        zero = _unpack(zeros, bits, _AWQ_ORDER)
    inputs = codes.shape[1]
    if len(codes) != outputs or groups < 1 or inputs % groups:
        raise ValueError(f"expected codes for scales {list(scales.shape)}, got {list(codes.shape)}")
    made: dict[str, StoredTensor] = {}
    group_of = np.arange(inputs) // (inputs // groups)
    if prefix + "g_idx" in tensors:
        own = _integers(tensors[prefix + "g_idx"])
        if own.shape != (inputs,) or (np.bincount(own.clip(0), minlength=groups) != inputs // groups).any():
            raise ValueError(f"expected g_idx with {inputs // groups} inputs in each of {groups} groups, got others")
        if (own != group_of).any():
            columns = np.argsort(own, kind="stable")
            codes = codes[:, columns]
            made[prefix + "columns"] = StoredTensor("i64", (inputs,), columns.astype(np.int64).view(np.uint8))
    numbers = codes - zero.T[:, group_of]
    made[prefix + "weight"] = _blocks(prefix, numbers, scales.T, inputs // groups)
    return made


def _integers(tensor: StoredTensor) -> Integers:
    if tensor.encoding != "i32":
        raise ValueError(f"expected i32, got {tensor.encoding}")
    words: Integers = np.asarray(tensor.array(), np.int32)
    return words


def _unpack(words: Integers, bits: int, order: range | tuple[int, ...]) -> Integers:
    """Codes of rows of words, those of a word in the order that their bits are named in."""
    shifts = bits * np.array(order, np.int32)
    codes: Integers = (np.ascontiguousarray(words)[:, :, None] >> shifts) & np.int32(2**bits - 1)
    return codes.reshape(len(words), -1)


def _blocks(prefix: str, numbers: Integers, scales: npt.NDArray[np.float32], group: int) -> StoredTensor:
    """The same numbers times their scales [out, groups], in the smallest blocks that hold them."""
    least, most = int(numbers.min()), int(numbers.max())
    halves = scales.astype(np.float16)
    encoding = "q4_0" if least >= -8 and most <= 7 else "q5_0" if least >= -16 and most <= 15 else "q8_0"
    outputs, inputs = numbers.shape
    if group % _BLOCK or (halves.astype(np.float32) != scales).any() or least < -128 or most > 127:
        _log.info("%sweight: no blocks hold these numbers exactly: kept in f32", prefix)
        weight = numbers * np.repeat(scales, group, axis=1)
        return StoredTensor(
            "f32", (outputs, inputs), np.ascontiguousarray(weight, np.float32).reshape(-1).view(np.uint8)
        )
    codes: npt.NDArray[np.uint8] = (numbers + _LEVELS[encoding]).astype(np.uint8).reshape(-1, _BLOCK)
    parts: list[npt.NDArray[np.uint8]] = [np.repeat(halves, group // _BLOCK, axis=1).reshape(-1, 1).view(np.uint8)]
    if encoding == "q5_0":
        parts.append(np.packbits(codes >> 4, axis=1, bitorder="little"))
    half = _BLOCK // 2
    if encoding == "q8_0":
        parts.append(codes)
    else:
        parts.append((codes[:, :half] & np.uint8(15)) | (codes[:, half:] << np.uint8(4)))
    return StoredTensor(encoding, (outputs, inputs), np.concatenate(parts, axis=1).reshape(-1))

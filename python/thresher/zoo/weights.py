"""Weights of files that name them otherwise, in the order in which they are used."""

from __future__ import annotations

import importlib
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

# Kinds of numbers, as CTranslate2 counts them.
_CTRANSLATE2 = (torch.float32, torch.int8, torch.int16, torch.int32, torch.float16, torch.bfloat16)


def fill(model: torch.nn.Module, weights: Sequence[torch.Tensor]) -> Any:
    """Puts weights into a model whose modules are registered in the order in which they are used.

    Args:
      model: keeps its shapes.
      weights: as many as its state has, without counters of batches; dimensions of 1 may be others.

    Returns:
      The model in eval mode.

    Raises:
      ValueError: their number or shapes differ.
    """
    state = {name: value for name, value in model.state_dict().items() if not name.endswith("num_batches_tracked")}
    if len(state) != len(weights):
        raise ValueError(f"expected {len(state)} weights, got {len(weights)}; take the version that the entry names")
    with torch.no_grad():
        for (name, value), given in zip(state.items(), weights, strict=True):
            if given.squeeze().shape != value.squeeze().shape:
                raise ValueError(f"{name}: expected a weight of {list(value.shape)}, got {list(given.shape)}")
            value.copy_(given.reshape(value.shape))
    return model.eval()


def of_onnx(path: Path) -> tuple[list[torch.Tensor], dict[str, str]]:
    """What an ONNX file of Paddle's has learnt, in the order of its nodes and as PyTorch has it, and its metadata."""
    onnx: Any = importlib.import_module("onnx")
    numpy_helper: Any = importlib.import_module("onnx.numpy_helper")
    model = onnx.load(path)
    constants = {
        node.output[0]: node.attribute[0].t
        for node in model.graph.node
        # Numbers of formulas are no weights.
        if node.op_type == "Constant" and not node.output[0].startswith(("p2o.", "fill_constant"))
    }
    weights = []
    for node in model.graph.node:
        for name in node.input:
            if name in constants:
                weight = torch.from_numpy(numpy_helper.to_array(constants[name]).copy())
                weights.append(weight.t() if node.op_type == "MatMul" else weight)
    return weights, {entry.key: entry.value for entry in model.metadata_props}


def of_ctranslate2(path: Path) -> dict[str, torch.Tensor]:
    """What stands in a model file of CTranslate2's, floats as float32.

    Raises:
      ValueError: it is of another version than 6.
    """
    data = path.read_bytes()
    at = 0

    def number(kind: str) -> int:
        nonlocal at
        (found,) = struct.unpack_from(f"<{kind}", data, at)
        at += struct.calcsize(kind)
        return int(found)

    def text() -> str:
        nonlocal at
        size = number("H")
        at += size
        return data[at - size : at - 1].decode()  # a zero ends it

    version = number("I")
    if version != 6:
        raise ValueError(f"{path}: expected a file of version 6, got {version}; take the version that the entry names")
    text()  # of the model
    number("I")
    found = {}
    for _ in range(number("I")):
        name = text()
        shape = [number("I") for _ in range(number("B"))]
        kind, size = number("B"), number("I")
        values = torch.frombuffer(bytearray(data[at : at + size]), dtype=_CTRANSLATE2[kind]).reshape(shape)
        found[name] = values.float() if values.is_floating_point() else values
        at += size
    return found

"""safetensors files, as models are loaded from them."""

from __future__ import annotations

from fuzz_targets import as_file

from thresher.llm.formats import read_safetensors


def run(data: bytes) -> None:
    with as_file(data, "model.safetensors") as path:
        try:
            tensors = read_safetensors(path)
        except ValueError:
            return
        for tensor in tensors.values():
            assert tensor.dequantized().shape == tensor.shape

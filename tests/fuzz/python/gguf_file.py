"""GGUF files, as models are loaded from them."""

from __future__ import annotations

from fuzz_targets import as_file

from thresher import _engine
from thresher.llm.formats import read_gguf

# Dequantising is the engine's part; so many bytes show what the reader gives it.
MOST_BYTES = 1 << 16


def run(data: bytes) -> None:
    with as_file(data, "model.gguf") as path:
        try:
            tensors = read_gguf(path)
        except ValueError:
            return
        texts = [value for value in tensors.metadata.values() if isinstance(value, _engine.Texts)]
        for value in texts:
            assert len(list(value)) == len(value)
            try:
                numbers, pairs = _engine.pairs_vocabulary(texts[0], value)
            except ValueError:  # no pairs
                continue
            assert [" ".join(pair) for pair in pairs] == list(value)
            assert set(numbers) == set(texts[0])
        for tensor in tensors.values():
            if tensor.data.nbytes <= MOST_BYTES:
                assert tensor.dequantized().shape == tensor.shape

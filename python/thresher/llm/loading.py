"""Finds the parts of a model on disk."""

from __future__ import annotations

import dataclasses
import json
import math
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from thresher.llm.formats import MappedFile, StoredTensor, quantize, read_gguf, read_safetensors, unpack_linears
from thresher.llm.models import ModelConfig, gguf
from thresher.llm.tokenizer import Tokenizer

WEIGHTS = ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0")  # what matrices are quantised to when they are loaded
_BLOCK = 32  # numbers of a block of each, which share a scale
_LARGEST_GROUP = 512
_ENDS_OF_TURNS = ("<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>")  # beside what a GGUF file says


@dataclasses.dataclass(frozen=True, slots=True)
class Text:
    """What a model reads and writes.

    Attributes:
      tokenizer: None where the folder has none.
      eos_token_ids: tokens that end an answer.
    """

    tokenizer: Tokenizer | None
    eos_token_ids: tuple[int, ...]


class PendingText:
    """A Text that is made when it is first asked for."""

    def __init__(self, make: Callable[[], Text]) -> None:
        """Takes what makes it."""
        self._make: Callable[[], Text] | None = make
        self._made: Text | None = None
        self._lock = threading.Lock()

    def result(self) -> Text:
        """Makes it, once; raises what is wrong with it."""
        with self._lock:
            if self._made is None:
                assert self._make is not None
                self._made = self._make()
                self._make = None  # what it holds on to is of no more use
            return self._made


@dataclasses.dataclass(frozen=True, slots=True)
class Loaded:
    """A model on disk.

    Attributes:
      config: what its graph follows from.
      tensors: its weights.
      files: which these are parts of, as far as they are not numbers of their own.
      text: is made when it is first asked for.
    """

    config: ModelConfig
    tensors: Mapping[str, StoredTensor]
    files: tuple[MappedFile, ...]
    text: PendingText


def load(path: Path, weights: str = "model") -> Loaded:
    """Reads a model: a Hugging Face folder or a GGUF file.

    Args:
      path: of the model.
      weights: how matrices are kept: "model" (as they are stored), "fp32" or a format of WEIGHTS, which may name how
        many numbers share a scale: "q4_0:128".

    Raises:
      FileNotFoundError: the path, or a file that is wanted there, does not exist.
      ValueError: a file is not what it should be, or the model is not supported; of a tokenizer, text.result() raises
        it.
    """
    encoding, group = encoding_of(weights)
    if not path.exists():
        raise FileNotFoundError(f"expected a model at {path}, got nothing there")
    loaded = _folder(path) if path.is_dir() else _gguf(path)
    if encoding == "model":
        return loaded
    return dataclasses.replace(loaded, tensors={n: _encoded(t, encoding, group) for n, t in loaded.tensors.items()})


def encoding_of(weights: str) -> tuple[str, int]:
    """What `weights` of ``load`` says: an encoding, and how many numbers share a scale.

    Raises:
      ValueError: it says something else.
    """
    encoding, colon, group = weights.partition(":")
    if encoding not in ("model", "fp32", *WEIGHTS):
        raise ValueError(f"weights: expected one of model, fp32, {', '.join(WEIGHTS)}, got {weights!r}")
    if not colon:
        return encoding, _BLOCK
    if encoding not in WEIGHTS:
        raise ValueError(
            f"weights: expected a group for one of {', '.join(WEIGHTS)} alone, got {weights!r}; the groups of a "
            f"model's own weights stay as they are, say {encoding!r}"
        )
    if not group.isdecimal() or int(group) % _BLOCK or not _BLOCK <= int(group) <= _LARGEST_GROUP:
        raise ValueError(
            f"weights: expected a group of a multiple of {_BLOCK} numbers up to {_LARGEST_GROUP}, as in "
            f"{encoding}:128, got {weights!r}"
        )
    return encoding, int(group)


def _encoded(tensor: StoredTensor, encoding: str, group: int) -> StoredTensor:
    if encoding == "fp32":
        numbers = tensor.dequantized()
        return StoredTensor("f32", tensor.shape, np.ascontiguousarray(numbers).reshape(-1).view(np.uint8))
    if len(tensor.shape) != 2 or tensor.shape[-1] % _BLOCK:
        return tensor
    return quantize(tensor, encoding, math.gcd(tensor.shape[-1], group))  # rows are whole groups


def _folder(path: Path) -> Loaded:
    described = read_json(path / "config.json")
    config = ModelConfig.from_dict(described)
    stored = read_safetensors(path)
    tensors: Mapping[str, StoredTensor] = stored
    quantized = described.get("quantization_config")
    if quantized is not None:
        if not isinstance(quantized, dict):
            raise ValueError(f"{path / 'config.json'}: expected an object as quantization_config, got {quantized!r}")
        tensors = unpack_linears(tensors, quantized)

    def text() -> Text:
        tokenizer = Tokenizer.from_folder(path) if (path / "tokenizer.json").is_file() else None
        return Text(tokenizer, _ends(path, config, tokenizer))

    return Loaded(config, tensors, stored.files, PendingText(text))


def _gguf(path: Path) -> Loaded:
    tensors = read_gguf(path)
    factors = tensors.get("rope_freqs.weight")
    config = gguf.config_of(tensors.metadata, None if factors is None else factors.dequantized())

    def text(metadata: Mapping[str, Any] = tensors.metadata) -> Text:
        tokenizer = gguf.tokenizer_of(metadata)
        ends = {number for name in _ENDS_OF_TURNS if (number := tokenizer.token_id(name)) is not None}
        return Text(tokenizer, tuple(sorted(ends.union(config.eos_token_ids))))

    # Without the metadata: a vocabulary takes more memory there than in the tokenizer.
    return Loaded(config, dict(tensors), tensors.files, PendingText(text))


def read_json(file: Path, kind: type = dict) -> Any:
    """What a file of a model's folder says.

    Args:
      file: the file.
      kind: what has to be in it, dict or list.

    Raises:
      FileNotFoundError: it does not exist.
      ValueError: it is not JSON, or holds something else.
    """
    if not file.is_file():
        raise FileNotFoundError(f"expected {file}, got none; is this a model's folder?")
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file}: expected JSON, got {error}") from None
    if not isinstance(found, kind):
        raise ValueError(f"{file}: expected {'an object' if kind is dict else 'a list'}, got a {type(found).__name__}")
    return found


def _ends(path: Path, config: ModelConfig, tokenizer: Tokenizer | None) -> tuple[int, ...]:
    """What generation_config.json says ends an answer, else config.json, else the tokenizer."""
    file = path / "generation_config.json"
    if file.is_file():
        found = read_json(file).get("eos_token_id")
        if isinstance(found, list):
            return tuple(int(token) for token in found)
        if found is not None:
            return (int(found),)
    if config.eos_token_ids or tokenizer is None or "eos_token" not in tokenizer.special:
        return config.eos_token_ids
    number = tokenizer.token_id(tokenizer.special["eos_token"])
    return () if number is None else (number,)

"""Loads encoders: texts to vectors, and pairs of texts to scores."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from thresher import _engine
from thresher.llm.formats import read_safetensors
from thresher.llm.loading import read_json
from thresher.llm.models.config import UnsupportedModelError
from thresher.llm.models.encoder import Encoder, EncoderConfig
from thresher.llm.plans import Plans
from thresher.llm.tensor_place import tensor_place
from thresher.llm.tokenizer import Tokenizer

_STEP_TOKENS = 2048  # of the texts that are computed together, with their padding
_MOST_TEXTS = 64
_ONE = ((7,), (11,), (13,), (20,), (37,))
_MANY = ((3, 5), (11, 5), (3, 13), (11, 13), (19, 23), (27, 33))
_IDENTITY = "torch.nn.modules.linear.Identity"
_POOLINGS = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean", "pooling_mode_max_tokens": "max"}

Floats = npt.NDArray[np.float32]


@dataclasses.dataclass(frozen=True, slots=True)
class Encoded:
    """The tokens of a text, or of a pair of them.

    Attributes:
      tokens: with those that the tokenizer puts around texts.
      types: which text of a pair each belongs to, 0 or 1.
    """

    tokens: Sequence[int]
    types: Sequence[int]


class TextEncoder:
    """An encoder that is loaded: BERT, RoBERTa, XLM-RoBERTa or CamemBERT.

        encoder = thresher.llm.TextEncoder("path/to/all-MiniLM-L6-v2")
        a, b = encoder.embed(["A guitar has six strings.", "She plays the guitar."])
        print(a @ b)

    A model with a head for one label (BertForSequenceClassification, ...) scores pairs and embeds nothing; another one
    embeds, and scores pairs by the cosine of their vectors. Any number of threads may use it.
    """

    def __init__(self, path: str | os.PathLike[str], *, precision: str = "model", num_threads: int = 0) -> None:
        """Loads a model.

        Args:
          path: a Hugging Face folder: config.json, *.safetensors and tokenizer.json; what sentence-transformers put
            beside them (modules.json) says how vectors are made, otherwise they are means of length 1.
          precision: of products with weights: "model" (as they are stored), "fp32", "bf16", "fp16", "int8",
            "int8_weight" or "int4_weight".
          num_threads: default: as many as the engine has.

        Raises:
          FileNotFoundError: something is missing at `path`.
          ValueError: the model or an option is not supported; the message names it.
        """
        folder = Path(path)
        if not folder.is_dir():
            raise FileNotFoundError(f"expected the folder of an encoder at {folder}, got none")
        _engine.initialize()
        described = read_json(folder / "config.json")
        self.config = EncoderConfig.from_dict(described)
        self.tokenizer = Tokenizer.from_folder(folder)
        self.max_length = min(self.config.max_length, _max_length(folder))
        self._pooling, self._normalize = _pooling(folder)
        own = described.get("sentence_transformers")
        self._sigmoid = not (isinstance(own, dict) and own.get("activation_fn") == _IDENTITY)
        encoder = Encoder(self.config, read_safetensors(folder))
        options = {"precision": precision, "num_threads": num_threads}
        store = _engine.WeightStore()
        self._one = Plans("one", encoder.one, {"tokens": self.max_length}, _ONE, store, "encoder", options)
        most = {"texts": _MOST_TEXTS, "tokens": self.max_length}
        self._many = Plans("batch", encoder.batch, most, _MANY, store, "encoder", options)
        self._one.at((2,))  # what is wrong with the checkpoint is found now

    @property
    def scores_pairs(self) -> bool:
        """Whether it is a model that scores pairs and embeds nothing."""
        return self.config.scores

    @property
    def dimensions(self) -> int:
        """Elements of a vector."""
        return self.config.hidden_size

    def encode(self, text: str | Sequence[int], pair: str | None = None, *, truncate: int | None = None) -> Encoded:
        """Tokens of a text, or of a pair.

        Args:
          text: a text, or all its tokens.
          pair: what it is compared with.
          truncate: cuts what is longer than so many tokens, a pair's second text first.

        Raises:
          ValueError: it is empty, too long, or has tokens that the model does not know.
        """
        if isinstance(text, str):
            tokens, types = self.tokenizer.encode_pair(text, pair, most=truncate)
        else:
            tokens = [int(token) for token in text][:truncate]
            types = [0] * len(tokens)
        wrong = next((token for token in tokens if not 0 <= token < self.config.vocab_size), None)
        if wrong is not None:
            raise ValueError(f"input: expected tokens from 0 to {self.config.vocab_size - 1}, got {wrong}")
        if not tokens:
            raise ValueError("input: expected a text, got none")
        if len(tokens) > self.max_length:
            raise ValueError(f"input: expected at most {self.max_length} tokens, got {len(tokens)}; shorten the text")
        return Encoded(tokens, [min(kind, self.config.types - 1) for kind in types])

    def embed(self, texts: str | Sequence[str]) -> Floats:
        """Vectors of texts.

        Args:
          texts: one or many.

        Returns:
          f32 [texts, dimensions].

        Raises:
          ValueError: a text is too long, or the model is one that scores pairs.
        """
        many = [texts] if isinstance(texts, str) else texts
        return self.run([self.encode(text) for text in many])

    def score(self, query: str, texts: Sequence[str]) -> Floats:
        """How well texts answer a query.

        Args:
          query: what they are compared with.
          texts: many.

        Returns:
          f32 [texts]; of models that score, the probability (or what the model gives instead); of others the cosine.

        Raises:
          ValueError: a text is too long.
        """
        if self.scores_pairs:
            return self.run([self.encode(query, text) for text in texts])[:, 0]
        return cosines(self.embed([query, *texts]))

    def run(self, items: Sequence[Encoded]) -> Floats:
        """Vectors, f32 [items, dimensions], or scores, f32 [items, 1], in the order of `items`."""
        if self.scores_pairs is False and any(any(item.types) for item in items):
            raise ValueError("expected single texts for a model that embeds, got pairs")
        found = np.empty((len(items), 1 if self.scores_pairs else self.dimensions), np.float32)
        for group in _groups([len(item.tokens) for item in items]):
            found[group] = self._step([items[number] for number in group])
        return found

    def _step(self, items: Sequence[Encoded]) -> Floats:
        texts, most = len(items), max(len(item.tokens) for item in items)
        tokens, types = np.zeros((2, texts, most), np.int32)
        mask = np.full((texts, 1, 1, most), -np.inf, np.float32)
        for row, item in enumerate(items):
            count = len(item.tokens)
            tokens[row, :count], types[row, :count], mask[row, ..., :count] = item.tokens, item.types, 0
        positions = np.arange(most, dtype=np.int32) + np.int32(self.config.first_position)
        out = np.empty((texts, 1) if self.scores_pairs else (texts, most, self.dimensions), np.float32)
        inputs = [tokens, types, positions, *([mask] if texts > 1 else [])]
        plans, sizes = (self._one, (most,)) if texts == 1 else (self._many, (texts, most))
        plans.run(sizes, b"".join(tensor_place(each.ctypes.data, each.shape) for each in inputs), _of(out))
        if self.scores_pairs:
            return (1 / (1 + np.exp(-out))).astype(np.float32) if self._sigmoid else out
        return self._pooled(out, mask[:, 0, 0, :, None] == 0)

    def _pooled(self, hidden: Floats, real: npt.NDArray[np.bool_]) -> Floats:
        if self._pooling == "cls":
            vectors: Floats = hidden[:, 0]
        elif self._pooling == "max":
            vectors = np.where(real, hidden, -np.inf).max(axis=1)
        else:
            vectors = (hidden * real).sum(axis=1) / real.sum(axis=1, dtype=np.float32)
        return _normalized(vectors) if self._normalize else vectors


def cosines(vectors: Floats) -> Floats:
    """Cosines of the first vector with all others, f32 [vectors - 1]."""
    unit = _normalized(vectors)
    found: Floats = unit[1:] @ unit[0]
    return found


def _normalized(vectors: Floats) -> Floats:
    found: Floats = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return found


def _of(array: Floats) -> bytes:
    return tensor_place(array.ctypes.data, array.shape)


def _groups(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Numbers of texts that are computed together: of like lengths, as each is padded to the longest."""
    group: list[int] = []
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        longest = lengths[group[0]] if group else 0
        full = len(group) >= _MOST_TEXTS or (len(group) + 1) * longest > _STEP_TOKENS
        if group and (full or 2 * lengths[number] < longest):
            yield group
            group = []
        group.append(number)
    if group:
        yield group


def _max_length(folder: Path) -> int:
    file = folder / "sentence_bert_config.json"
    found = read_json(file).get("max_seq_length") if file.is_file() else None
    return found if isinstance(found, int) and found > 0 else 1 << 30


def _pooling(folder: Path) -> tuple[str, bool]:
    """How a vector is made of those of its tokens: cls, mean or max; and whether it gets the length 1."""
    file = folder / "modules.json"
    if not file.is_file():
        return "mean", True
    modules = read_json(file, list)
    pooling, normalize = "mean", False
    for module in modules:
        kind = str(module.get("type", "")).rpartition(".")[2] if isinstance(module, dict) else ""
        if kind == "Pooling":
            pooling = _mode(folder / str(module.get("path", "")) / "config.json")
        elif kind == "Normalize":
            normalize = True
        elif kind != "Transformer":
            raise UnsupportedModelError(f"{file}: expected Transformer, Pooling and Normalize, got {kind!r}")
    return pooling, normalize


def _mode(file: Path) -> str:
    described: dict[str, Any] = read_json(file)
    named = described.get("pooling_mode")
    modes = [named] if isinstance(named, str) else [n for n, on in described.items() if n.startswith("pooling_") and on]
    found = [_POOLINGS.get(mode, mode) for mode in modes]
    if len(found) != 1 or found[0] not in _POOLINGS.values():
        raise UnsupportedModelError(f"{file}: expected one of {', '.join(_POOLINGS.values())}, got {found}")
    return found[0]

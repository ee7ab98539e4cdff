"""The engine's graphs of an encoder: the layers over whole texts, and the score of one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from thresher import _engine
from thresher.llm.formats import StoredTensor
from thresher.llm.models.checkpoint import Checkpoint
from thresher.llm.models.config import UnsupportedModelError, activation_of
from thresher.llm.models.graph_builder import GraphBuilder

_KINDS = ("bert", "roberta", "xlm-roberta", "camembert")
_LARGEST = 1 << 24  # of a size in config.json


@dataclasses.dataclass(frozen=True, slots=True)
class EncoderConfig:
    """An encoder in the terms that its graph is built from.

    Attributes:
      architecture: `model_type` of config.json.
      positions: rows of the table of positions.
      first_position: the row of a text's first token.
      types: rows of the table of segments.
      max_length: tokens of a text.
      scores: there is a head that scores texts, as models have that compare pairs.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    intermediate_size: int
    activation: str
    norm_eps: float
    positions: int
    first_position: int
    types: int
    scores: bool

    @property
    def max_length(self) -> int:
        """Tokens of a text."""
        return self.positions - self.first_position

    @staticmethod
    def from_dict(config: Mapping[str, Any]) -> EncoderConfig:
        """Reads what config.json holds.

        Raises:
          UnsupportedModelError: the architecture, or something it asks for, is not known; what is missing is named.
        """
        kind = config.get("model_type")
        if kind not in _KINDS:
            raise UnsupportedModelError(f"expected an encoder of {', '.join(_KINDS)}, got model_type {kind!r}")
        embedding = config.get("position_embedding_type", "absolute")
        if embedding != "absolute":
            raise UnsupportedModelError(f"config.json: expected absolute positions, got {embedding!r}")
        if config.get("is_decoder"):
            raise UnsupportedModelError("config.json: expected an encoder, got is_decoder")
        scores = any(str(name).endswith("ForSequenceClassification") for name in config.get("architectures") or ())
        labels = config.get("num_labels") or len(config.get("id2label") or (0, 0))
        if scores and labels != 1:
            raise UnsupportedModelError(f"config.json: expected one label, a score, got {labels}")
        try:
            made = EncoderConfig(
                architecture=str(kind),
                vocab_size=config["vocab_size"],
                hidden_size=config["hidden_size"],
                num_layers=config["num_hidden_layers"],
                num_heads=config["num_attention_heads"],
                intermediate_size=config["intermediate_size"],
                activation=activation_of(str(config["hidden_act"])),
                norm_eps=float(config["layer_norm_eps"]),
                positions=config["max_position_embeddings"],
                first_position=0 if kind == "bert" else int(config.get("pad_token_id", 1)) + 1,
                types=config["type_vocab_size"],
                scores=scores,
            )
        except KeyError as error:
            raise UnsupportedModelError(f"config.json of a {kind}: expected {error}, got none") from None
        for name in (
            "vocab_size",
            "hidden_size",
            "num_layers",
            "num_heads",
            "intermediate_size",
            "max_length",
            "types",
        ):
            value = getattr(made, name)
            if not isinstance(value, int) or not 1 <= value <= _LARGEST:
                raise UnsupportedModelError(f"config.json: expected {name} from 1 to {_LARGEST}, got {value!r}")
        if made.hidden_size % made.num_heads:
            raise UnsupportedModelError(
                f"config.json: expected a hidden size that {made.num_heads} heads divide, got {made.hidden_size}"
            )
        return made


class Encoder(Checkpoint):
    """Builds the graphs of one model: of one text, and of several that are padded to one length."""

    def __init__(self, config: EncoderConfig, tensors: Mapping[str, StoredTensor]) -> None:
        """Prepares what graphs of all sizes share.

        Args:
          config: the model.
          tensors: its checkpoint, which must stay as it is.

        Raises:
          ValueError: the checkpoint is another model's.
        """
        super().__init__(config.architecture, tensors)
        self.config = config

    def one(self, tokens: int) -> _engine.Graph:
        """One text: `batch` without the mask, as there is nothing to pad."""
        return self._graph(1, tokens, padded=False)

    def batch(self, texts: int, tokens: int) -> _engine.Graph:
        """Several texts.

        Inputs are tokens and types (i32 [texts, tokens]), positions (i32 [tokens]) and a mask (f32 [texts, 1, 1,
        tokens]; 0, or -inf where there is padding). The output is f32 [texts, tokens, hidden size], of a model that
        scores f32 [texts, 1].
        """
        return self._graph(texts, tokens, padded=True)

    def _graph(self, texts: int, tokens: int, *, padded: bool) -> _engine.Graph:
        config = self.config
        build = GraphBuilder(self)
        graph = build.graph
        ids = graph.input("tokens", "i32", [texts, tokens])
        types = graph.input("types", "i32", [texts, tokens])
        positions = graph.input("positions", "i32", [tokens])
        mask = graph.input("mask", "f32", [texts, 1, 1, tokens]) if padded else None
        width, heads = config.hidden_size, config.num_heads
        size = width // heads

        def linear(x: int, name: str, inputs: int, outputs: int, residual: int | None = None, **attrs: Any) -> int:
            bias = build.small(f"{name}.bias", (outputs,))
            return build.add("linear", x, build.weight(f"{name}.weight", (outputs, inputs)), bias, residual, **attrs)

        def norm(x: int, name: str) -> int:
            weight, bias = (
                build.small(f"{name.removesuffix('weight')}{each}", (width,)) for each in ("weight", "bias")
            )
            return build.add("layer_norm", x, weight, bias, eps=config.norm_eps)

        def rows(role: str, count: int, indices: int) -> int:
            found = build.add("embedding", build.weight(self.name(role), (count, width)), indices)
            return found if graph.dtype(found) == "f32" else build.add("cast", found, dtype="f32")

        def by_heads(x: int) -> int:
            return build.add("permute", build.add("reshape", x, shape=[texts, tokens, heads, size]), dims=[0, 2, 1, 3])

        build.module = "embeddings"
        x = build.add("add", rows("embedding", config.vocab_size, ids), rows("types", config.types, types))
        x = build.add("add", x, rows("positions", config.positions, positions))
        x = norm(x, self.name("embedding_norm"))
        for layer in range(config.num_layers):
            build.module = f"layers.{layer}"
            q, k, v = (by_heads(linear(x, self.name(role, layer), width, width)) for role in ("q", "k", "v"))
            y = build.add("sdpa", q, k, v, mask, scale=size**-0.5)
            y = build.add("reshape", build.add("permute", y, dims=[0, 2, 1, 3]), shape=[texts, tokens, width])
            x = norm(linear(y, self.name("o", layer), width, width, x), self.name("attention_post_norm", layer))
            y = linear(x, self.name("up", layer), width, config.intermediate_size, activation=config.activation)
            y = linear(y, self.name("down", layer), config.intermediate_size, width, x)
            x = norm(y, self.name("feed_forward_post_norm", layer))
        if config.scores:
            build.module = "classifier"
            x = build.add("slice", x, dim=1, start=0, end=1, step=1)
            x = build.add("reshape", x, shape=[texts, width])
            of_bert = config.architecture == "bert"
            x = linear(x, self.name("pooler") if of_bert else "classifier.dense", width, width, activation="tanh")
            x = linear(x, "classifier" if of_bert else "classifier.out_proj", width, 1)
        build.module = ""
        graph.set_outputs([x])
        return graph

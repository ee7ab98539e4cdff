"""The engine's graphs of a decoder: the layers over all tokens of a step, and the scores of the next token."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from thresher import _engine
from thresher.llm.formats import StoredTensor
from thresher.llm.formats.tensors import BLOCKS
from thresher.llm.layer_groups import LayerGroup
from thresher.llm.models import rope
from thresher.llm.models.checkpoint import Checkpoint, Part
from thresher.llm.models.config import ModelConfig, Rope
from thresher.llm.models.graph_builder import GraphBuilder
from thresher.llm.models.sharding import HEAD_SHARE, Share, shard

PAGE_TOKENS = 32


class Decoder(Checkpoint):
    """Builds the graphs of one model.

    `body` reads the tokens of a step and writes their keys and values to the states; `head` scores what may come next.
    The last layer is in both, unless the body is to be whole: the body has its keys and values, which all later tokens
    look at, and the head the rest, which matters to nobody but the tokens whose scores are wanted. Of a prompt that is
    the last one.
    """

    def __init__(
        self,
        config: ModelConfig,
        tensors: Mapping[str, StoredTensor],
        max_positions: int,
        share: Share = Share(),  # noqa: B008 is immutable
    ) -> None:
        """Prepares what graphs of all sizes share.

        Args:
          config: the model.
          tensors: its checkpoint, which must stay as it is.
          max_positions: how long a sequence may become.
          share: the part of it that is built here, of ranks that exchange what they compute.

        Raises:
          ValueError: the checkpoint is another model's.
          UnsupportedModelError: it cannot be shared by so many ranks.
        """
        if share.size > 1:
            config, tensors = shard(config, tensors, share)
        super().__init__(config.architecture, tensors)
        self.config = config
        self.share = share
        self.max_positions = max_positions
        self._ropes: dict[int, tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]] = {}

    def body(
        self,
        tokens: int,
        sequences: int,
        table_width: int,
        pages: Sequence[int],
        cache: str,
        groups: Sequence[LayerGroup] | None = None,
        values: str | None = "f32",
        *,
        whole: bool = False,
    ) -> _engine.Graph:
        """The layers but the last, and its keys and values; or all layers and the last norm.

        Inputs are tokens and positions (i32 [tokens]), per group of layers slots (i32 [tokens]), starts
        (i32 [sequences + 1]), lengths (i32 [sequences]), prompts_from (i32 [1]: tokens from there on are prompts' and
        may meet weights in blocks and pages as bf16), per group tables (i32 [sequences, table_width]), and one state a
        layer; the output is f32 [tokens, hidden size].

        Args:
          tokens: how many tokens a step has.
          sequences: of how many sequences at most.
          table_width: how many pages each may have.
          pages: per layer how many pages there are.
          cache: how they hold it: f32, bf16, f16, or in blocks of q8_0 or q4_0.
          groups: layers that have the same pages of a sequence; default: all.
          values: what goes from one operator to the next: f32, bf16 or f16; None: as the model's weights are stored,
            bf16 where they are in blocks.
          whole: all layers and the last norm.
        """
        build = _Layers(self, tokens)
        config, graph, last = self.config, build.graph, self.config.num_layers - 1
        ids = graph.input("tokens", "i32", [tokens])
        positions = graph.input("positions", "i32", [tokens])
        group_of = {layer: n for n, group in enumerate(groups or ()) for layer in group.layers}
        ends = ["", *(f".{number}" for number in range(1, len(groups or ())))]
        slots = [graph.input(f"slots{end}", "i32", [tokens]) for end in ends]
        starts = graph.input("starts", "i32", [sequences + 1])
        lengths = graph.input("lengths", "i32", [sequences])
        build.prompts_from = graph.input("prompts_from", "i32", [1])
        tables = [graph.input(f"tables{end}", "i32", [sequences, table_width]) for end in ends]
        states = [
            graph.state(f"kv.{layer}", cache, [count, config.num_kv_heads, 2, PAGE_TOKENS, config.head_size])
            for layer, count in enumerate(pages)
        ]
        words = build.weight(self._names.of("embedding"), self._table_shape())
        x = build.cast(build.add("embedding", words, ids), "f32")
        if config.embedding_scale != 1.0:
            x = build.add("mul", x, build.number(config.embedding_scale))
        if config.learned_positions:
            table = build.weight(self._names.of("positions"), (config.learned_positions, config.hidden_size))
            x = build.add("add", x, build.add("embedding", table, positions))
        x = build.cast(x, self._values(values))
        for layer in range(config.num_layers):
            turn = build.turn(layer, positions)
            build.module = f"layers.{layer}"
            group = group_of.get(layer, 0)
            normed = build.norm(x, "attention_norm", layer)
            if layer == last and not whole:
                k, v = build.projections(layer, normed, "kv")
                build.keep(layer, k, v, states[layer], turn, slots[group])
                break
            q, k, v = build.projections(layer, normed, "qkv")
            state = build.keep(layer, k, v, states[layer], turn, slots[group])
            x = build.rest(layer, x, q, turn, _Seen(state, starts, lengths, tables[group]))
            build.module = ""
        build.module = ""
        graph.set_outputs([build.cast(build.norm(x, "norm") if whole else x, "f32")])
        return graph

    def head(
        self,
        rows: int,
        sequences: int,
        table_width: int,
        pages: int,
        cache: str,
        values: str | None = "f32",
        *,
        whole: bool = False,
        best: bool = False,
    ) -> _engine.Graph:
        """What the body leaves to do, for tokens whose scores are wanted, and these: f32 [rows, vocabulary].

        The tokens are the last ones of their sequences. Inputs are hidden (f32 [rows, hidden size], what the body gives
        for them) and, unless that is whole, positions (i32 [rows]), starts, lengths, prompts_from and tables as the
        body's, but of these tokens alone, and the state of the last layer, which the body has written.

        Args:
          rows: how many tokens.
          sequences: of how many sequences at most.
          table_width: how many pages each may have.
          pages: how many pages the last layer has.
          cache: as the body's, and so is the next.
          values: what goes from one operator to the next.
          whole: the body has all layers.
          best: of each only the highest score, f32 [rows], and its token, i64 [rows]; NaN counts as the highest.
        """
        build = _Layers(self, rows)
        x = build.graph.input("hidden", "f32", [rows, self.config.hidden_size])
        if not whole:
            x = self._rest_of_last(build, x, rows, sequences, table_width, pages, cache, values)
        if self.config.tie_embeddings or not self._names.has("head"):
            name = self._names.of("embedding")
        else:
            name = self._names.of("head") + ".weight"
        if self.has_tensor(HEAD_SHARE):
            logits = self._gathered(build, x, rows)
        else:
            logits = build.add("linear", x, build.weight(name, self._table_shape()))
        cap = self.config.logits_softcap
        if cap:
            scaled = build.add("mul", logits, build.number(1.0 / cap))
            logits = build.add("mul", build.add("tanh", scaled), build.number(cap))
        if best:
            highest = build.add("amax", logits, dims=[1], keepdim=False)
            build.graph.set_outputs([highest, build.add("argmax", logits, dim=1)])
        else:
            build.graph.set_outputs([logits])
        return build.graph

    def _rest_of_last(
        self,
        build: _Layers,
        x: int,
        rows: int,
        sequences: int,
        table_width: int,
        pages: int,
        cache: str,
        values: str | None,
    ) -> int:
        """What the last layer makes of x, of which keys and values are kept, and the last norm."""
        config, graph, last = self.config, build.graph, self.config.num_layers - 1
        positions = graph.input("positions", "i32", [rows])
        starts = graph.input("starts", "i32", [sequences + 1])
        lengths = graph.input("lengths", "i32", [sequences])
        build.prompts_from = graph.input("prompts_from", "i32", [1])
        tables = graph.input("tables", "i32", [sequences, table_width])
        shape = [pages, config.num_kv_heads, 2, PAGE_TOKENS, config.head_size]
        seen = _Seen(graph.state(f"kv.{last}", cache, shape), starts, lengths, tables)
        turn = build.turn(last, positions)
        build.module = f"layers.{last}"
        x = build.cast(x, self._values(values))
        (q,) = build.projections(last, build.norm(x, "attention_norm", last), "q")
        x = build.rest(last, x, q, turn, seen)
        build.module = ""
        return build.cast(build.norm(x, "norm"), "f32")

    def angles(self, own: Rope) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Cosines and sines of all positions."""
        if id(own) not in self._ropes:
            self._ropes[id(own)] = rope.tables(own, self.max_positions)
        return self._ropes[id(own)]

    def _values(self, wanted: str | None) -> str:
        """What goes from one operator to the next."""
        if wanted is not None:
            return wanted
        encoding = self.stored(self._names.of("embedding"), self._table_shape()).encoding
        return encoding if BLOCKS[encoding][0] == 1 else "bf16"

    def _gathered(self, build: GraphBuilder, x: int, rows: int) -> int:
        """The scores of all tokens, of which each rank computes as many."""
        vocabulary, hidden = self._table_shape()
        own = build.add("linear", x, build.weight(HEAD_SHARE, (vocabulary // self.share.size, hidden)))
        of_all = build.add("permute", build.add("all_gather", own, ranks=self.share.size), dims=[1, 0, 2])
        return build.add("reshape", of_all, shape=[rows, vocabulary])

    def _table_shape(self) -> tuple[int, int]:
        return (self.config.vocab_size, self.config.hidden_size)


class _Seen(NamedTuple):
    """The ids of what tokens look at: keys and values, and what tells the sequences of a step apart."""

    state: int
    starts: int
    lengths: int
    tables: int


class _Turn(NamedTuple):
    """The ids of the cosines and sines of all tokens."""

    cos: int
    sin: int
    interleaved: bool


class _Layers(GraphBuilder):
    """The parts that layers consist of."""

    def __init__(self, decoder: Decoder, tokens: int) -> None:
        super().__init__(decoder)
        self._decoder = decoder
        self._config = decoder.config
        self._tokens = tokens
        self._turns: dict[int, _Turn] = {}
        self.prompts_from: int | None = None

    def linear(
        self, x: int, name: str, inputs: int, outputs: int, own: tuple[int, int] | None = None, **attrs: Any
    ) -> int:
        """x times a weight of the checkpoint, plus its bias if it has one; `own`: of these of its outputs alone."""
        inputs_first = self._config.architecture == "gpt2"
        shape = (outputs, inputs)
        if inputs_first:
            attrs["layout"] = "kn"
            shape = (inputs, outputs)
        if self._decoder.has_tensor(f"{name}.columns"):  # the weight's, in another order than x has them
            columns = self.graph.constant(f"{name}.columns", self._decoder.columns(f"{name}.columns"))
            x = self.add("embedding", self.add("permute", x, dims=[1, 0]), columns)
            x = self.add("permute", x, dims=[1, 0])
        bias = None
        if self._decoder.has_tensor(f"{name}.bias"):
            bias = self.small(f"{name}.bias", (outputs,), part=None if own is None else Part(0, *own))
        part = None if own is None else Part(1 if inputs_first else 0, *own)
        weight = self.weight(f"{name}.weight", shape, part)
        wide_from = self.prompts_from if weight in self.in_blocks else None
        return self.add("linear", x, weight, bias, None, wide_from, **attrs)

    def norm(self, x: int, role: str, *numbers: int, size: int | None = None) -> int:
        """A norm over the last dimension."""
        config = self._config
        name = self._decoder.name(role, *numbers)
        shape = (config.hidden_size if size is None else size,)
        gguf = not name.endswith(("norm.weight",)) or name.startswith(("blk.", "output_norm"))
        plus_one = config.norm == "rms_plus_one" and not gguf  # GGUF stores the sum
        weight = self.small(name, shape, 1.0 if plus_one else 0.0)
        if config.norm == "layer":
            bias = self.small(name.removesuffix("weight") + "bias", shape)
            return self.add("layer_norm", x, weight, bias, eps=config.norm_eps)
        return self.add("rms_norm", x, weight, eps=config.norm_eps)

    def turn(self, layer: int, positions: int) -> _Turn | None:
        """What queries and keys of a layer are turned by; None: they are not."""
        ropes = self._config.ropes
        own = ropes[layer]
        if own is None:
            return None
        if id(own) not in self._turns:
            kinds = [id(each) for each in ropes if each is not None]
            number = list(dict.fromkeys(kinds)).index(id(own))
            cos, sin = (
                self.add("embedding", self.graph.constant(f"{name}.{number}", table, True), positions)
                for name, table in zip(("cos", "sin"), self._decoder.angles(own), strict=True)
            )
            self._turns[id(own)] = _Turn(cos, sin, own.interleaved)
        return self._turns[id(own)]

    def projections(self, layer: int, x: int, roles: str) -> list[int]:
        """Queries, keys and values of all tokens, [tokens, heads, head size] each: those that are neighbours in qkv."""
        config, decoder = self._config, self._decoder
        size, hidden = config.head_size, config.hidden_size
        heads = {"q": config.num_heads, "k": config.num_kv_heads, "v": config.num_kv_heads}
        if decoder.has("qkv", layer):
            ends = dict(zip("qkv", itertools.accumulate(count * size for count in heads.values()), strict=True))
            begins = {role: ends[role] - heads[role] * size for role in roles}
            first, end = begins[roles[0]], ends[roles[-1]]
            own = None if roles == "qkv" else (first, end)
            joined = self.linear(x, decoder.name("qkv", layer), hidden, ends["v"], own)
            made = [joined]
            if len(roles) > 1:
                made = [
                    self.add("slice", joined, dim=1, start=begins[role] - first, end=ends[role] - first, step=1)
                    for role in roles
                ]
        else:
            made = [self.linear(x, decoder.name(role, layer), hidden, heads[role] * size) for role in roles]
        return [
            self.add("reshape", each, shape=[self._tokens, heads[role], size])
            for role, each in zip(roles, made, strict=True)
        ]

    def keep(self, layer: int, k: int, v: int, state: int, turn: _Turn | None, slots: int) -> int:
        """The state once it has keys and values of all tokens."""
        if self._config.qk_norm:
            k = self.norm(k, "k_norm", layer, size=self._config.head_size)
        if turn is None:
            return self.add("kv_write", state, k, v, slots)
        return self.add("kv_write", state, k, v, slots, turn.cos, turn.sin, interleaved=turn.interleaved)

    def rest(self, layer: int, x: int, q: int, turn: _Turn | None, seen: _Seen) -> int:
        """What a layer makes of x, once there are queries of it, and its keys and values are kept."""
        config, decoder = self._config, self._decoder
        if config.qk_norm:
            q = self.norm(q, "q_norm", layer, size=config.head_size)
        if turn is not None:
            q = self.add("rotary", q, turn.cos, turn.sin, interleaved=turn.interleaved)
        y = self.add(
            "paged_attention",
            seen.state,
            q,
            seen.starts,
            seen.lengths,
            seen.tables,
            self.prompts_from,
            scale=config.attention_scale,
            window=config.windows[layer],
            softcap=config.attention_softcap,
        )
        wide = config.num_heads * config.head_size
        y = self.add("reshape", y, shape=[self._tokens, wide])
        y = self._summed(self.linear(y, decoder.name("o", layer), wide, config.hidden_size))
        if config.post_norms:
            y = self.norm(y, "attention_post_norm", layer)
        x = self.add("add", x, y)
        y = self.feed_forward(layer, self.norm(x, "feed_forward_norm", layer))
        if config.post_norms:
            y = self.norm(y, "feed_forward_post_norm", layer)
        return self.add("add", x, y)

    def feed_forward(self, layer: int, x: int) -> int:
        """The part behind attention: one of its kind, or those of many that a router chooses."""
        config, decoder = self._config, self._decoder
        if config.sparse_layers and config.sparse_layers[layer]:
            return self.cast(self._experts(layer, self.cast(x, "f32")), self.graph.dtype(x))
        hidden, size = config.hidden_size, config.intermediate_size
        if not config.gated:
            y = self.linear(x, decoder.name("up", layer), hidden, size, activation=config.activation)
        else:
            if decoder.has("gate_up", layer):
                both = self.linear(x, decoder.name("gate_up", layer), hidden, 2 * size)
                gate = self.add("slice", both, dim=1, start=0, end=size, step=1)
                up = self.add("slice", both, dim=1, start=size, end=2 * size, step=1)
            else:
                gate = self.linear(x, decoder.name("gate", layer), hidden, size)
                up = self.linear(x, decoder.name("up", layer), hidden, size)
            y = self.add("mul", self.add(config.activation, gate), up)
        return self._summed(self.linear(y, decoder.name("down", layer), size, hidden))

    def _summed(self, x: int) -> int:
        """What all ranks have computed, added up."""
        return x if self._decoder.share.size == 1 else self.add("all_reduce", x)

    def _experts(self, layer: int, x: int) -> int:
        """Tokens sorted by their experts, so that each expert multiplies its own in one product."""
        config, decoder = self._config, self._decoder
        count, chosen, hidden, size = config.experts, config.experts_per_token, config.hidden_size, config.expert_size
        rows = self._tokens * chosen
        scores = self.add("softmax", self.linear(x, decoder.name("router", layer), hidden, count), dim=-1)
        weights, experts = self.graph.add("sort", [scores], {"descending": True, "k": chosen}, "", self.module)
        if config.normalize_experts:
            weights = self.add("div", weights, self.add("sum", weights, dims=[1], keepdim=True))
        flat = self.add("reshape", experts, shape=[rows])
        sorted_experts, order = self.graph.add("sort", [flat], {}, "", self.module)
        _, back = self.graph.add("sort", [order], {}, "", self.module)
        numbers = self.graph.constant("experts", np.arange(count, dtype=np.int64)[:, None])
        before = self.add("le", self.add("reshape", sorted_experts, shape=[1, rows]), numbers)
        ends = self.add("sum", self.add("cast", before, dtype="i64"), dims=[1], keepdim=False)
        token = self.add("cast", order, dtype="f32")
        token = self.add("cast", self.add("floor", self.add("div", token, self.number(chosen))), dtype="i64")
        gathered = self.add("embedding", x, token)

        def grouped(y: int, role: str, outputs: int, inputs: int) -> int:
            parts = [
                self.weight(decoder.name(role, layer, expert) + ".weight", (outputs, inputs)) for expert in range(count)
            ]
            return self.add("grouped_linear", y, ends, *parts)

        gate = grouped(gathered, "expert_gate", size, hidden)
        up = grouped(gathered, "expert_up", size, hidden)
        y = grouped(self.add("mul", self.add(config.activation, gate), up), "expert_down", hidden, size)
        y = self.add("reshape", self.add("embedding", y, back), shape=[self._tokens, chosen, hidden])
        weighted = self.add("mul", y, self.add("reshape", weights, shape=[self._tokens, chosen, 1]))
        return self._summed(self.add("sum", weighted, dims=[1], keepdim=False))

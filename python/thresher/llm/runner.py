"""Runs the plans of a model over the tokens of one step."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from thresher import _engine
from thresher.llm.formats.tensors import stored_bytes
from thresher.llm.layer_groups import LayerGroup, layer_groups
from thresher.llm.models.decoder import PAGE_TOKENS, Decoder
from thresher.llm.plans import Plans
from thresher.llm.rank_group import RankGroup
from thresher.llm.step_inputs import StepInputs, Work
from thresher.llm.tensor_place import tensor_place

Scores = npt.NDArray[np.float32] | list[tuple[int, float]]  # as Runner.run() gives them

CACHES = ("f32", "bf16", "f16", "q8_0", "q4_0")  # how keys and values may be kept
_ALIGNMENT = 64
# Numbers of tokens that a device's steps are filled up to, so that few graphs serve all of them; beyond the last one
# multiples of it, which products have tiles of in any case.
_BUCKETS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)
# On a device, by precision: what goes from one operator to the next; else as the model's weights are stored.
_VALUES = {"fp32": "f32", "fp16": "f16", **dict.fromkeys(("bf16", "int8", "int8_weight", "int4_weight"), "bf16")}
_SAMPLES = ((7,), (11,), (13,), (20,), (37,))


def bucket(count: int, most: int) -> int:
    """The least number of rows that steps of a device are computed with, at least `count` and at most `most`."""
    for size in _BUCKETS:
        if size >= count:
            return min(size, most)
    return min(-(-count // _BUCKETS[-1]) * _BUCKETS[-1], most)


def page_bytes(decoder: Decoder, cache: str, group: LayerGroup) -> int:
    """What one page takes in all layers of a group together."""
    config = decoder.config
    return stored_bytes(cache, (len(group.layers), config.num_kv_heads, 2, PAGE_TOKENS, config.head_size))


class Runner:
    """The plans, and the memory that they share: pages and what is told of each step."""

    def __init__(
        self,
        decoder: Decoder,
        *,
        pages: Sequence[int],
        max_batch: int,
        max_tokens: int,
        max_scored: int | None = None,
        cache: str = "f32",
        precision: str = "model",
        num_threads: int = 0,
        device: _engine.Device | None = None,
        store: _engine.WeightStore | None = None,
        ranks: RankGroup | None = None,
        name: str = "llm",
    ) -> None:
        """Takes memory for the pages; plans are made when they are first wanted.

        Args:
          decoder: builds the model's graphs.
          pages: how many there are for each of ``layer_groups``.
          max_batch: sequences of one step.
          max_tokens: tokens of one step, of all sequences together.
          max_scored: scores of one step, of all sequences together; default: one a sequence.
          cache: how keys and values are kept in the pages, one of CACHES.
          precision: of products with weights, as in the compiler's configuration.
          num_threads: 0: as many as the engine has.
          device: what computes, and holds the pages; default: the CPU.
          store: of packed weights; default: a new one.
          ranks: the processes of which this computes one share; the decoder is of that share.
          name: of the plans in profiles.

        Raises:
          MemoryError: there is no room for the pages.
        """
        self.max_batch, self.max_tokens = max_batch, max_tokens
        self.max_scored = max(max_batch, min(max_scored or max_batch, max_tokens))
        self._decoder = decoder
        config = decoder.config
        self.pages = tuple(pages)
        self.groups = layer_groups(config.windows, decoder.max_positions)
        self._page_bytes = [page_bytes(decoder, cache, group) for group in self.groups]
        self._cache = cache
        self._ranks = ranks
        self._options: dict[str, Any] = {"precision": precision, "num_threads": num_threads}
        self._options["device"] = device if ranks is None else ranks.device
        self._options["graphs"] = self._in_buckets = device is not None
        self._name = name
        self._store = _engine.WeightStore() if store is None else store
        self._width = -(-decoder.max_positions // PAGE_TOKENS)
        # A page of all layers of a group is one piece of memory, so that the first tokens touch little of it. Each
        # layer sees the pages of all, from its own first one on; its next one is as many further as there are layers.
        self._steps = [len(group.layers) for group in self.groups]
        self._states: list[Any] = []
        self._layer_pages = [0] * config.num_layers
        states = [b""] * config.num_layers
        for group, step, count, size in zip(self.groups, self._steps, self.pages, self._page_bytes, strict=True):
            state = _Pages(count * size) if device is None else device.empty(count * size)
            self._states.append(state)
            for number, layer in enumerate(group.layers):
                self._layer_pages[layer] = (count - 1) * step + 1
                shape = (self._layer_pages[layer], config.num_kv_heads, 2, PAGE_TOKENS, config.head_size)
                states[layer] = tensor_place(state.address + number * size // step, shape)
        # A device would have to be told of the head's tokens, too, and gets all layers in one plan.
        self._whole, last = device is not None, config.num_layers - 1
        groups = (number for number, group in enumerate(self.groups) if last in group.layers)
        last_group = None if self._whole else next(groups)
        self._new_inputs = functools.partial(
            StepInputs,
            *(max_tokens, max_batch, self.max_scored, self._width, self._steps, config.hidden_size, states, last_group),
        )
        self._inputs = self._new_inputs()
        self._apart: StepInputs | None = None  # of a step that is done in pieces
        self._score_places: dict[tuple[int, bool], bytes] = {}  # by scores; the best alone?
        self._logits = np.empty((self.max_scored, config.vocab_size), np.float32)
        self._body = Plans("body", self._body_graph, {"rows": max_tokens}, _SAMPLES, self._store, name, self._options)
        self._best_scores = np.empty(self.max_scored, np.float32)
        self._best_tokens = np.empty(self.max_scored, np.int64)
        head = {"rows": self.max_scored}
        self._head = Plans("head", self._head_graph, head, _SAMPLES, self._store, name, self._options)
        best = functools.partial(self._head_graph, best=True)
        self._best_head = Plans("best_head", best, head, _SAMPLES, self._store, name, self._options)

    @property
    def finds_best(self) -> bool:
        """Whether run() finds the best tokens where nothing else is wanted: scores of all are long to copy."""
        return self._in_buckets

    @property
    def pauses(self) -> bool:
        """Whether begin() may be used: a device has what it was given, and several ranks would have to agree."""
        return self._options["device"] is None

    @property
    def weight_bytes(self) -> int:
        """Packed weights in memory."""
        return self._store.bytes

    @property
    def cache_bytes(self) -> int:
        """Memory of all pages."""
        return sum(count * size for count, size in zip(self.pages, self._page_bytes, strict=True))

    @property
    def token_bytes(self) -> int:
        """What keys and values of a token take in all layers."""
        return sum(self._page_bytes) // PAGE_TOKENS

    def read_bytes(self, length: int) -> int:
        """Memory that computing one token more of a sequence of `length` tokens reads: weights and its pages."""
        read = self.weight_bytes
        for group, size in zip(self.groups, self._page_bytes, strict=True):
            wanted = group.policy.wanted(length, length, PAGE_TOKENS)
            read += min(len(wanted) * PAGE_TOKENS, length) * size // PAGE_TOKENS
        return read

    def prepare(self, first: Callable[[], object] | None = None, meanwhile: Callable[[], object] | None = None) -> None:
        """Makes the plans that one sequence alone wants: for many tokens and for one.

        Args:
          first: is called by another thread while graphs are built, and has returned before plans are made of them.
          meanwhile: is called while other threads make the plans, which leaves the interpreter to it.
        """
        with ThreadPoolExecutor(2, "thresher-plans") as beside:
            before = None if first is None else beside.submit(first)
            builds = [self._head.begin((1,)), self._body.begin((1,))]
            if self.finds_best:
                builds.append(self._best_head.begin((1,)))
            if self.max_tokens > 1:
                builds.append(self._body.begin((min(self.max_tokens, 64),)))
            if before is not None:
                before.result()
            made = [beside.submit(build) for build in builds]
            if meanwhile is not None:
                meanwhile()
            for plan in made:
                plan.result()

    def run(self, work: Sequence[Work]) -> Scores:
        """Computes one step.

        Args:
          work: of at most max_batch sequences, those that answer first, at most max_tokens tokens and at least one
            each; at most max_scored scores are wanted.

        Returns:
          Scores, f32 [tokens behind which they are wanted, vocabulary], in the order of `work`; good until the next
          step. Where it finds the best, and no work wants more, these: a token and its score each. Of several ranks
          one whose step fails ends all.
        """
        if self._ranks is None:
            return self._compute(work)
        try:
            if self._ranks.rank == 0:
                self._ranks.tell(work)
            return self._compute(work)
        except BaseException as error:
            self._ranks.abort(error)

    def _compute(self, work: Sequence[Work]) -> Scores:
        inputs = self._inputs
        count, wanted = inputs.fill(work)
        rows = self._fill_up(inputs, count)
        self._body.run((rows,), *self._places(inputs, rows))
        return self._score(inputs, work, rows, count, wanted)

    def begin(self, work: Sequence[Work]) -> PausableStep:
        """Begins a step that is computed in pieces, of tokens of prompts; where ``pauses``, one at a time."""
        inputs = self._apart = self._apart or self._new_inputs()
        count, wanted = inputs.fill(work)
        run = self._body.begin_run((count,), *self._places(inputs, count))
        return PausableStep(run, functools.partial(self._score, inputs, work, count, count, wanted))

    def _score(self, inputs: StepInputs, work: Sequence[Work], rows: int, tokens: int, wanted: Sequence[int]) -> Scores:
        """The scores behind these tokens, of a step of so many, of which the body has computed so many rows."""
        count = len(wanted)
        if not count:
            return self._logits[:0]
        scores = count
        if self._in_buckets:
            scores = min(rows, self.max_scored) if count == tokens else bucket(count, self.max_scored)
        best = self.finds_best and all(item.best for item in work if item.scored)
        places = inputs.head_places(wanted, tokens, scores), self._place_scores(scores, best)
        if not best:
            self._head.run((scores,), *places)
            return self._logits[:count]
        self._best_head.run((scores,), *places)
        return list(zip(self._best_tokens[:count].tolist(), self._best_scores[:count].tolist(), strict=True))

    def _fill_up(self, inputs: StepInputs, tokens: int) -> int:
        """How many tokens the step computes: on a device a bucket full of them."""
        if not self._in_buckets:
            return tokens
        rows = bucket(tokens, self.max_tokens)
        inputs.fill_up(tokens, rows)
        return rows

    def _places(self, inputs: StepInputs, rows: int) -> tuple[bytes, bytes]:
        return inputs.places(rows, keep=self._in_buckets or rows <= self.max_batch)

    def _place_scores(self, scores: int, best: bool) -> bytes:
        places = self._score_places.get((scores, best))
        if places is None:
            if best:
                places = b"".join(
                    tensor_place(a.ctypes.data, (scores,)) for a in (self._best_scores, self._best_tokens)
                )
            else:
                places = tensor_place(self._logits.ctypes.data, (scores, self._decoder.config.vocab_size))
            self._score_places[scores, best] = places
        return places

    def _body_graph(self, tokens: int) -> _engine.Graph:
        return self._decoder.body(
            *(tokens, self.max_batch, self._width, self._layer_pages, self._cache),
            groups=self.groups,
            values=self._values,
            whole=self._whole,
        )

    def _head_graph(self, rows: int, *, best: bool = False) -> _engine.Graph:
        return self._decoder.head(
            *(rows, self.max_batch, self._width, self._layer_pages[-1], self._cache, self._values),
            whole=self._whole,
            best=best,
        )

    @property
    def _values(self) -> str | None:
        """What goes from one operator to the next; None: what the weights are stored as."""
        return _VALUES.get(self._options["precision"]) if self._in_buckets else "f32"


class PausableStep:
    """A step of a runner that is computed in pieces, between which it computes others."""

    def __init__(self, run: _engine.PausableRun, score: Callable[[], Scores]) -> None:
        self._run, self._score = run, score
        self._scored = False  # are the scores all that is left?

    @property
    def longest_s(self) -> float:
        """Of what has been computed between two places where it could pause."""
        return self._run.longest_step_s

    def run_for(self, seconds: float) -> Scores | None:
        """Computes the next piece, which is likely to end in time, or cannot be shorter.

        Returns:
          Scores as of Runner.run(); None: there are more pieces.
        """
        began = time.monotonic()
        if not self._scored:
            self._scored = self._run.run_for(seconds)
            if not self._scored or time.monotonic() - began > seconds / 2:
                return None
        return self._score()


class _Pages:
    """Pages in the host's memory."""

    def __init__(self, nbytes: int) -> None:
        self._memory = np.empty(nbytes + _ALIGNMENT, np.uint8)

    @property
    def address(self) -> int:
        """Where they begin."""
        return -(-self._memory.ctypes.data // _ALIGNMENT) * _ALIGNMENT

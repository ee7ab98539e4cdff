"""What plans are told of one step's sequences, and where."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from thresher.llm.models.decoder import PAGE_TOKENS
from thresher.llm.tensor_place import tensor_place


@dataclasses.dataclass(slots=True)
class Work:
    """What one sequence has to compute in a step.

    Attributes:
      tokens: the tokens themselves.
      position: of the first of them; keys and values of those before are in the pages.
      pages: of the sequence, in order, of each group of layers.
      scored: behind how many of the last tokens scores are wanted.
      drafted: how many of the last tokens are guesses.
      answering: whether the tokens lie behind its prompt: no step computes prompts before answers.
      best: whether it is enough to know the best token where scores are wanted, and its score.
    """

    tokens: Sequence[int]
    position: int
    pages: Sequence[Sequence[int]]
    scored: int
    drafted: int = 0
    answering: bool = False
    best: bool = False


class StepInputs:
    """Memory of one step: what the body takes of each token and sequence, what it gives, and what the head takes.

    Attributes:
      hidden: what the body gives, f32 [tokens, hidden size].
    """

    def __init__(
        self,
        max_tokens: int,
        max_batch: int,
        max_scored: int,
        width: int,
        steps: Sequence[int],
        hidden_size: int,
        states: Sequence[bytes],
        last_group: int | None,
    ) -> None:
        """Takes the memory.

        Args:
          max_tokens: of one step.
          max_batch: sequences of one step.
          max_scored: of its tokens, whose scores are wanted.
          width: pages of a sequence at most.
          steps: for each group of layers, how many of a layer's pages lie from one page of the group to the next.
          hidden_size: of the model.
          states: the places of the layers' pages.
          last_group: which group of layers the last one belongs to; None: the body has all of it.
        """
        self._steps = steps
        self._tokens = np.zeros(max_tokens, np.int32)
        self._positions = np.zeros(max_tokens, np.int32)
        self._slots = [np.zeros(max_tokens, np.int32) for _ in steps]
        self._starts = np.zeros(max_batch + 1, np.int32)
        self._lengths = np.zeros(max_batch, np.int32)
        self._prompts_from = np.zeros(1, np.int32)
        self._tables = [np.zeros((max_batch, width), np.int32) for _ in steps]
        self._table_of: list[list[list[int]]] = [[[] for _ in range(max_batch)] for _ in steps]
        self.hidden = np.empty((max_tokens, hidden_size), np.float32)
        fixed = (self._starts, self._lengths, self._prompts_from, *self._tables)
        self._fixed_places = b"".join([*(tensor_place(each.ctypes.data, each.shape) for each in fixed), *states])
        # Of tokens whose scores are wanted, what the head looks at.
        self._scored = np.empty((max_scored, hidden_size), np.float32)
        self._scored_positions = np.zeros(max_scored, np.int32)
        self._scored_starts = np.zeros(max_batch + 1, np.int32)
        self._scored_prompts_from = np.zeros(1, np.int32)
        self._head_fixed_places: bytes | None = None
        if last_group is not None:
            told = (self._scored_starts, self._lengths, self._scored_prompts_from, self._tables[last_group])
            places = [tensor_place(each.ctypes.data, each.shape) for each in told]
            self._head_fixed_places = b"".join([*places, states[-1]])
        self._head_places: dict[tuple[int, bool], bytes] = {}  # by rows; are these all tokens?
        self._token_addresses = [a.ctypes.data for a in (self._tokens, self._positions, *self._slots)]
        self._places: dict[int, tuple[bytes, bytes]] = {}  # by tokens: inputs and output

    def fill(self, work: Sequence[Work]) -> tuple[int, list[int]]:
        """Writes what a step computes.

        Returns:
          How many tokens, and behind which of them scores are wanted.
        """
        start = answers = scored_answers = 0
        wanted: list[int] = []
        for number, item in enumerate(work):
            count = len(item.tokens)
            end = start + count
            if count == 1:
                self._tokens[start], self._positions[start] = item.tokens[0], item.position
            else:
                self._tokens[start:end] = item.tokens
                positions = np.arange(item.position, end - start + item.position, dtype=np.int32)
                self._positions[start:end] = positions
                whole, behind = positions // PAGE_TOKENS, positions % PAGE_TOKENS
            for tables, known, slots, step, pages in zip(
                *(self._tables, self._table_of, self._slots, self._steps, item.pages), strict=True
            ):
                table = tables[number]
                if known[number] != pages:
                    table[: len(pages)] = pages
                    table[: len(pages)] *= step
                    known[number] = list(pages)
                if count == 1:
                    page, place = divmod(item.position, PAGE_TOKENS)
                    slots[start] = pages[page] * step * PAGE_TOKENS + place
                else:
                    slots[start:end] = table[whole] * PAGE_TOKENS + behind
            self._starts[number + 1] = end
            self._lengths[number] = item.position + count
            wanted.extend(range(end - item.scored, end))
            self._scored_starts[number + 1] = len(wanted)
            start = end
            if item.answering:
                answers, scored_answers = end, len(wanted)
        self._starts[len(work) + 1 :] = start
        self._prompts_from[0] = answers
        self._scored_starts[len(work) + 1 :] = len(wanted)
        self._scored_prompts_from[0] = scored_answers
        return start, wanted

    def fill_up(self, tokens: int, rows: int) -> None:
        """Fills what lies behind the step's tokens up to so many rows.

        These belong to no sequence: their keys are not kept, and nobody reads what they give.
        """
        self._tokens[tokens:rows] = 0
        self._positions[tokens:rows] = 0
        for slots in self._slots:
            slots[tokens:rows] = -1

    def places(self, tokens: int, *, keep: bool) -> tuple[bytes, bytes]:
        """What the body takes and gives; kept for numbers of tokens that come again."""
        found = self._places.get(tokens)
        if found is not None:
            return found
        inputs = b"".join([*(tensor_place(each, (tokens,)) for each in self._token_addresses), self._fixed_places])
        found = inputs, tensor_place(self.hidden.ctypes.data, (tokens, self.hidden.shape[1]))
        if keep:
            self._places[tokens] = found
        return found

    def head_places(self, wanted: Sequence[int], tokens: int, rows: int) -> bytes:
        """What the head takes.

        Args:
          wanted: what fill() said.
          tokens: of the step.
          rows: what the head computes, at least as many as are wanted.
        """
        every = len(wanted) == tokens
        hidden, positions = (self.hidden, self._positions) if every else (self._scored, self._scored_positions)
        if not every:
            np.take(self.hidden, wanted, axis=0, out=hidden[: len(wanted)])
            if self._head_fixed_places is not None:
                np.take(self._positions, wanted, out=positions[: len(wanted)])
        found = self._head_places.get((rows, every))
        if found is None:
            found = tensor_place(hidden.ctypes.data, (rows, hidden.shape[1]))
            if self._head_fixed_places is not None:
                found += tensor_place(positions.ctypes.data, (rows,)) + self._head_fixed_places
            self._head_places[rows, every] = found
        return found

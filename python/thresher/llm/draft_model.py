"""A smaller model that guesses how the answers of a larger one go on."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Sequence as Many

import numpy as np

from thresher.llm.kv_cache import KVCache
from thresher.llm.pace import Pace
from thresher.llm.request import Sequence
from thresher.llm.runner import PausableStep, Runner
from thresher.llm.speculation import ModelDrafts
from thresher.llm.step_inputs import Work

_log = logging.getLogger(__name__)

_SMOOTHING = 0.2


@dataclasses.dataclass(frozen=True, slots=True)
class _Chunk:
    """Tokens of an answer that the model has not seen."""

    own: ModelDrafts
    work: Work


@dataclasses.dataclass(frozen=True, slots=True)
class _CatchingUp:
    """A step of such tokens that is computed in pieces, between which answers go on without guesses."""

    run: PausableStep
    chunks: Many[_Chunk]


class DraftModel:
    """Guesses for several answers at a time. Belongs to the engine's thread.

    Attributes:
      guess_s: the time of a guess; 0: not known yet.
      piece_s: how long answers may wait for what is computed of their prompts between two of their tokens.
    """

    def __init__(self, runner: Runner, cache: KVCache, vocab_size: int, longest: int) -> None:
        """Begins without answers.

        Args:
          runner: of the smaller model.
          cache: its pages.
          vocab_size: of the larger model; what it does not know is not guessed.
          longest: how many tokens are guessed at a time.
        """
        self.guess_s = self.piece_s = 0.0
        self._runner, self._cache = runner, cache
        self._vocab_size, self._longest = vocab_size, longest
        self._failed = False
        self._pace = Pace(runner.max_tokens)
        self._catching_up: _CatchingUp | None = None

    @property
    def used_pages(self) -> int:
        """Pages that answers have."""
        return self._cache.used

    def propose(self, wanted: Many[tuple[Sequence, int]], price: float) -> dict[int, list[int]]:
        """Drafts of answers, by the id of each.

        Args:
          wanted: answers that decode, and how many tokens are useful for each at most.
          price: as of Drafts.pays().
        """
        if self._failed:
            return {}
        try:
            return self._propose(wanted, price)
        except Exception:
            _log.exception("the draft model failed; answers go on without it")
            self._failed = True
            return {}

    def forget(self, sequence: Sequence) -> None:
        """Gives back the pages of an answer."""
        own = sequence.drafts
        if isinstance(own, ModelDrafts):
            if self._is_catching_up(own):
                self._catching_up = None  # its pages go
            self._cache.release(own.held)
            own.tokens, own.same = [], 0

    def _propose(self, wanted: Many[tuple[Sequence, int]], price: float) -> dict[int, list[int]]:
        begin = time.monotonic()
        open_ = self._catch_up(wanted, price)
        drafts: dict[int, list[int]] = {id(sequence): [] for sequence, *_ in open_}
        guessed = 0
        while open_:
            work = [
                Work(new, len(own.tokens), own.held.pages, 1, answering=True, best=True) for _, own, new, _ in open_
            ]
            found = self._runner.run(work)
            still = []
            for (sequence, own, new, room), scores in zip(open_, found, strict=True):
                own.tokens += new
                token = scores[0] if isinstance(scores, tuple) else int(np.argmax(scores))
                if token >= self._vocab_size:
                    continue
                draft = drafts[id(sequence)]
                draft.append(token)
                guessed += 1
                if len(draft) < room and self._grow(own, len(own.tokens) + 1):
                    still.append((sequence, own, [token], room))
            open_ = still
        if guessed:
            guess_s = (time.monotonic() - begin) / guessed
            self.guess_s += (guess_s - self.guess_s) * (_SMOOTHING if self.guess_s else 1.0)
        return {number: draft for number, draft in drafts.items() if draft}

    def _catch_up(
        self, wanted: Many[tuple[Sequence, int]], price: float
    ) -> list[tuple[Sequence, ModelDrafts, list[int], int]]:
        """Computes what this model has not seen of the answers; gives those of which one step is left."""
        ready: list[tuple[Sequence, ModelDrafts, list[int], int]] = []
        behind: list[_Chunk] = []
        space = self._runner.max_tokens
        spare = self._pace.apart(self.piece_s) if self._runner.pauses else space
        for sequence, room in wanted:
            own = sequence.drafts
            if room < 1 or not isinstance(own, ModelDrafts) or not own.pays(price) or self._is_catching_up(own):
                continue
            tokens = sequence.tokens
            last = min(len(own.tokens), len(tokens) - 1)
            while own.same < last and own.tokens[own.same] == tokens[own.same]:
                own.same += 1
            own.same = min(own.same, last)
            del own.tokens[own.same :]
            new = tokens[own.same :]
            prompt = len(sequence.request.prompt)
            answering = own.same >= prompt
            chunk = new[:space] if answering else tokens[own.same : prompt][: min(space, spare)]
            if not chunk or not self._grow(own, own.same + len(chunk)):
                continue
            space -= len(chunk)
            if not answering:
                spare -= len(chunk)
            if len(chunk) == len(new):
                ready.append((sequence, own, new, min(room, self._longest)))
            else:
                behind.append(_Chunk(own, Work(chunk, own.same, own.held.pages, 0, answering=answering)))
        if behind and self._catching_up is None:
            behind.sort(key=lambda chunk: not chunk.work.answering)
            work = [chunk.work for chunk in behind]
            if self._runner.pauses:
                self._catching_up = _CatchingUp(self._runner.begin(work), behind)
            else:
                self._runner.run(work)
                self._saw(behind)
        self._go_on()
        return ready

    def _is_catching_up(self, own: ModelDrafts) -> bool:
        return self._catching_up is not None and any(chunk.own is own for chunk in self._catching_up.chunks)

    def _go_on(self) -> None:
        """Computes a piece of what is computed in pieces, if anything is."""
        step = self._catching_up
        if step is not None and step.run.run_for(self.piece_s) is not None:
            self._catching_up = None
            self._saw(step.chunks)
            self._pace.note_apart(sum(len(chunk.work.tokens) for chunk in step.chunks), step.run.longest_s)

    @staticmethod
    def _saw(chunks: Many[_Chunk]) -> None:
        for chunk in chunks:
            chunk.own.tokens += chunk.work.tokens

    def _grow(self, own: ModelDrafts, length: int) -> bool:
        # Guesses may turn out wrong: what they would look at again is behind what is known to be the answer's.
        self._cache.advance(own.held, (), own.same, False)
        return self._cache.grow(own.held, own.same, length)

"""Guesses how an answer goes on: from what stands in it and its prompt already, or by a smaller model."""

from __future__ import annotations

from collections.abc import Sequence

from thresher.llm.kv_cache import Held

_SIZES = (4, 3, 2)  # of what is looked for, the longest first
_FIRST_PAUSE, _LONGEST_PAUSE = 8, 256
_MEMORY = 16.0  # how many guesses back acceptance is remembered


class Drafts:
    """What the guesses for one answer have come to.

    A guess is checked by the step that computes it and changes no token. How many come true is counted: where they cost
    more than they save, no more are made for a while, twice as long each time.
    """

    def __init__(self) -> None:
        self._drafted = self._accepted = 0.0
        self._pause, self._skipped = _FIRST_PAUSE, 0

    def judge(self, drafted: int, accepted: int) -> None:
        """Learns how many guesses of a draft came true."""
        kept = max(0.0, 1.0 - drafted / _MEMORY)
        self._drafted = kept * self._drafted + drafted
        self._accepted = kept * self._accepted + accepted

    def pays(self, price: float) -> bool:
        """Whether to guess now.

        Args:
          price: what computing a guess costs, as a share of what one that comes true saves.
        """
        if self._drafted < _MEMORY / 2 or self._accepted >= price * self._drafted:
            self._pause, self._skipped = (_FIRST_PAUSE if self._accepted else self._pause), 0
            return True
        self._skipped += 1
        if self._skipped <= self._pause:
            return False
        self._pause, self._skipped = min(2 * self._pause, _LONGEST_PAUSE), 0
        return True


class NGramDrafts(Drafts):
    """Drafts for one answer: what followed the last time its last tokens stood there."""

    def __init__(self, longest: int) -> None:
        """Takes how many tokens a draft has at most."""
        super().__init__()
        self._longest = longest
        self._after: dict[tuple[int, ...], int] = {}  # where what follows these tokens begins
        self._indexed = 0

    def propose(self, tokens: Sequence[int], most: int, price: float) -> list[int]:
        """What might come next.

        Args:
          tokens: of prompt and answer.
          most: how many are wanted at most.
          price: as of pays().
        """
        most = min(most, self._longest)
        if most < 1 or not self.pays(price):
            return []
        for end in range(self._indexed + 1, len(tokens)):
            for size in _SIZES:
                if size <= end:
                    self._after[tuple(tokens[end - size : end])] = end
        self._indexed = max(self._indexed, len(tokens) - 1)
        for size in _SIZES:
            if size < len(tokens):
                found = self._after.get(tuple(tokens[-size:]))
                if found is not None:
                    return list(tokens[found : found + most])
        return []


class ModelDrafts(Drafts):
    """Drafts for one answer by a smaller model, and what that has computed of it.

    Attributes:
      tokens: whose keys and values are in `pages`.
      same: how many of them are known to be those of the answer.
      held: pages of the smaller model.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tokens: list[int] = []
        self.same = 0
        self.held = Held()

"""Layers that keep the same of a sequence, and what that is."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol


class Policy(Protocol):
    """What layers keep of a sequence."""

    @property
    def lasting(self) -> bool:
        """What tokens have written stays as it is: who begins alike may use it, and guesses leave no trace."""

    def wanted(self, first: int, last: int, page_tokens: int) -> range:
        """The pages of a sequence, counted from its beginning, that computing its tokens [first, last) wants."""

    def most(self, length: int, step: int, page_tokens: int) -> int:
        """How many pages a sequence of `length` tokens wants at a time, `step` of which are computed together."""

    def longest(self, pages: int, step: int, page_tokens: int) -> int | None:
        """How long a sequence may become with so many pages; None: as long as it likes."""


@dataclasses.dataclass(frozen=True, slots=True)
class AllTokens:
    """Keys and values of all tokens."""

    lasting: bool = True

    def wanted(self, first: int, last: int, page_tokens: int) -> range:
        """All pages up to the last token's."""
        return range(-(-last // page_tokens))

    def most(self, length: int, step: int, page_tokens: int) -> int:
        """All of its pages."""
        return -(-length // page_tokens)

    def longest(self, pages: int, step: int, page_tokens: int) -> int | None:
        """As long as there are pages."""
        return pages * page_tokens


@dataclasses.dataclass(frozen=True, slots=True)
class LastTokens:
    """Keys and values of the last tokens, which a sliding window looks at.

    Attributes:
      window: how many a query sees, its own included.
    """

    window: int
    lasting: bool = True

    def wanted(self, first: int, last: int, page_tokens: int) -> range:
        """The pages from the first that the first token sees."""
        return range(max(first - self.window + 1, 0) // page_tokens, -(-last // page_tokens))

    def most(self, length: int, step: int, page_tokens: int) -> int:
        """The window and a step, wherever in a page they begin; no more than all pages."""
        seen = self.window - 1 + step
        return min(-(-length // page_tokens), -(-(seen - 1) // page_tokens) + 1)

    def longest(self, pages: int, step: int, page_tokens: int) -> int | None:
        """Without an end, where there are pages for the window and a step."""
        whole = pages * page_tokens
        return None if self.most(whole + page_tokens, step, page_tokens) <= pages else whole


@dataclasses.dataclass(frozen=True, slots=True)
class RecurrentState:
    """One state that every token changes: a page of its own, as long as the sequence runs."""

    lasting: bool = False

    def wanted(self, first: int, last: int, page_tokens: int) -> range:
        """The one."""
        return range(1)

    def most(self, length: int, step: int, page_tokens: int) -> int:
        """One."""
        return 1

    def longest(self, pages: int, step: int, page_tokens: int) -> int | None:
        """Without an end."""
        return None


@dataclasses.dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers with pages of their own.

    Attributes:
      layers: their numbers.
      policy: what they keep.
    """

    layers: tuple[int, ...]
    policy: Policy


def layer_groups(windows: Sequence[int], length: int) -> tuple[LayerGroup, ...]:
    """The groups of a decoder, those that keep all tokens first.

    Args:
      windows: per layer how many keys a query sees; 0: all.
      length: how long a sequence may become; a window as long is none.
    """
    kinds = [window if window < length else 0 for window in windows]
    return tuple(
        LayerGroup(
            tuple(layer for layer, kind in enumerate(kinds) if kind == window),
            LastTokens(window) if window else AllTokens(),
        )
        for window in sorted(set(kinds))
    )


def divide(
    budget: int, policies: Sequence[Policy], sizes: Sequence[int], length: int, step: int, page_tokens: int
) -> list[int]:
    """How many pages each group gets: as many as sequences of `length` tokens want of each.

    Args:
      budget: bytes of all pages.
      policies: of the groups.
      sizes: bytes of a page of each.
      length: of a sequence; where one does not fit, shorter ones.
      step: how many tokens of it are computed together.
      page_tokens: how many tokens a page holds.

    Returns:
      Pages a group; none at all where there is no room for a page of each.
    """

    def of_one(length: int) -> list[int]:
        return [policy.most(length, step, page_tokens) for policy in policies]

    def bytes_of(pages: Sequence[int]) -> int:
        return sum(count * size for count, size in zip(pages, sizes, strict=True))

    one = of_one(length)
    if bytes_of(one) <= budget:
        return [budget * count // bytes_of(one) for count in one]
    shortest, longest = 0, -(-length // page_tokens)  # in pages: one that fits, one that does not
    while longest - shortest > 1:
        middle = (shortest + longest) // 2
        if bytes_of(of_one(middle * page_tokens)) <= budget:
            shortest = middle
        else:
            longest = middle
    return of_one(shortest * page_tokens) if shortest else [0] * len(sizes)

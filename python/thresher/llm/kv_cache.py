"""What sequences keep in the groups of a model's layers."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence

import numpy as np

from thresher.llm.cache import PagePool
from thresher.llm.layer_groups import Policy

_KEY_BYTES = 16


@dataclasses.dataclass(slots=True)
class Held:
    """What a sequence has.

    Attributes:
      pages: per group its pages from the beginning on; those before begins[group] are other sequences' by now.
      begins: per group the first page that it has.
      keys: of full pages from the beginning on: each says all tokens up to the page's end, and stays when pages go.
      registered: how many of them others may have found.
    """

    pages: list[list[int]] = dataclasses.field(default_factory=list)
    begins: list[int] = dataclasses.field(default_factory=list)
    keys: list[bytes] = dataclasses.field(default_factory=list)
    registered: int = 0

    def own(self, group: int) -> list[int]:
        """The pages of a group that are the sequence's."""
        return self.pages[group][self.begins[group] :] if self.pages else []


class KVCache:
    """The pages of all groups of layers. Belongs to one thread.

    A beginning of a prompt is found where every group still has what its policy wants behind it.

    Attributes:
      pools: of the groups.
      policies: of the groups.
      page_tokens: how many tokens a page holds.
      asked_tokens: how many were looked for.
      hit_tokens: of those, found.
    """

    def __init__(self, pools: Sequence[PagePool], policies: Sequence[Policy]) -> None:
        """Takes the pools of all groups, with pages of equally many tokens."""
        self.pools, self.policies = tuple(pools), tuple(policies)
        self.page_tokens = pools[0].page_tokens
        self.asked_tokens = self.hit_tokens = 0

    @property
    def pages(self) -> int:
        """Of all groups."""
        return sum(pool.pages for pool in self.pools)

    @property
    def used(self) -> int:
        """Pages that sequences have."""
        return sum(pool.used for pool in self.pools)

    @property
    def kept(self) -> int:
        """Pages without users that hold parts of prompts."""
        return sum(pool.kept for pool in self.pools)

    def longest(self, step: int) -> int | None:
        """How long a sequence may become that computes at most `step` tokens at a time; None: there is no end."""
        limits = [
            policy.longest(pool.pages, step, self.page_tokens)
            for pool, policy in zip(self.pools, self.policies, strict=True)
        ]
        return min((limit for limit in limits if limit is not None), default=None)

    def match(self, held: Held, tokens: Sequence[int], most: int) -> None:
        """Gives a sequence that has nothing what is there of its beginning: at most `most` tokens, whole pages."""
        if not all(policy.lasting for policy in self.policies):
            return
        for pool in self.pools:
            pool.expire()
        most //= self.page_tokens
        self._name(held, tokens, most)
        found = [[pool.find(key) for key in held.keys[:most]] for pool in self.pools]
        begins = [_runs(pages) for pages in found]
        for count in range(most, 0, -1):
            starts = [self._start(policy, count) for policy in self.policies]
            if all(run[count - 1] <= start for run, start in zip(begins, starts, strict=True)):
                break
        else:
            return
        held.begins, held.registered = starts, count
        held.pages = [
            [page if page is not None and number >= start else 0 for number, page in enumerate(pages[:count])]
            for pages, start in zip(found, starts, strict=True)
        ]
        for group, pool in enumerate(self.pools):
            for page in held.own(group):
                pool.use(page)

    def has_room(self, held: Held, length: int, step: int, others: int) -> bool:
        """Whether a sequence may begin.

        Args:
          held: what it has.
          length: of its tokens.
          step: how many are computed together at most.
          others: sequences that run; each may want a page more soon.
        """
        return all(
            policy.most(length, step, self.page_tokens) - len(held.own(group)) + others <= pool.available
            for group, (pool, policy) in enumerate(zip(self.pools, self.policies, strict=True))
        )

    def grow(self, held: Held, first: int, last: int) -> bool:
        """Gives a sequence the pages that computing its tokens [first, last) wants; False: there are not enough."""
        if not held.pages:
            held.pages, held.begins = [[] for _ in self.pools], [0] * len(self.pools)
        for pool, policy, pages in zip(self.pools, self.policies, held.pages, strict=True):
            wanted = policy.wanted(first, last, self.page_tokens).stop
            while len(pages) < wanted:
                page = pool.allocate()
                if page is None:
                    return False
                pages.append(page)
        return True

    def room(self, held: Held) -> int:
        """How many tokens of a sequence its pages hold, guesses among them; 0: there may be no guesses."""
        if not all(policy.lasting for policy in self.policies):
            return 0
        return min(map(len, held.pages)) * self.page_tokens

    def advance(self, held: Held, tokens: Sequence[int], computed: int, found: bool) -> None:
        """Takes back what is not looked at again.

        Args:
          held: what a sequence has.
          tokens: its own.
          computed: how many of them are, for good.
          found: its full pages may be found by others.
        """
        if not held.pages:
            return
        full = computed // self.page_tokens
        if found and full > held.registered:
            self._name(held, tokens, full)
            for pool, policy, pages, begin in zip(self.pools, self.policies, held.pages, held.begins, strict=True):
                for number in range(max(held.registered, begin), full if policy.lasting else 0):
                    pool.register(pages[number], held.keys[number])
            held.registered = full
        for group, (pool, policy) in enumerate(zip(self.pools, self.policies, strict=True)):
            begin = policy.wanted(computed, computed + 1, self.page_tokens).start
            for number in range(held.begins[group], begin):
                pool.release([held.pages[group][number]])
            held.begins[group] = max(begin, held.begins[group])

    def release(self, held: Held) -> None:
        """Takes back all that a sequence has."""
        for group, pool in enumerate(self.pools):
            pool.release(held.own(group))
        held.pages, held.begins, held.registered = [], [], 0

    def clear(self) -> None:
        """Forgets what nobody uses."""
        for pool in self.pools:
            pool.clear()

    def count(self, asked: int, hit: int) -> None:
        """Adds to the sums of tokens that were asked for and found."""
        self.asked_tokens += asked
        self.hit_tokens += hit

    def _start(self, policy: Policy, count: int) -> int:
        """The first page that is looked at again behind `count` full ones."""
        computed = count * self.page_tokens
        return policy.wanted(computed, computed + 1, self.page_tokens).start

    def _name(self, held: Held, tokens: Sequence[int], count: int) -> None:
        """Makes the keys of the first `count` pages."""
        size = self.page_tokens
        while len(held.keys) < count:
            first = len(held.keys) * size
            key = hashlib.blake2b(held.keys[-1] if held.keys else b"", digest_size=_KEY_BYTES)
            key.update(np.asarray(tokens[first : first + size], np.int32).tobytes())
            held.keys.append(key.digest())


def _runs(pages: Sequence[int | None]) -> list[int]:
    """For each place where the pages that are there without a gap up to it begin; behind it, if it is one itself."""
    begin = 0
    found = []
    for number, page in enumerate(pages):
        if page is None:
            begin = number + 1
        found.append(begin)
    return found

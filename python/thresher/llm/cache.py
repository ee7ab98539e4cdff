"""The pages that a group of layers keeps things in: who has them, and which hold what part of a prompt."""

from __future__ import annotations

import dataclasses
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence


@dataclasses.dataclass(slots=True)
class _Page:
    """What is known of a page.

    Attributes:
      users: how many sequences have it.
      key: under which it is found as part of a prompt; None: it is not.
      freed: when its last user left, in seconds of the pool's clock.
    """

    users: int = 0
    key: bytes | None = None
    freed: float = 0.0


class PagePool:
    """Hands out pages, and finds those that hold a part of a prompt already.

    A full page can be registered: then it is kept when its users leave, until the room is wanted (the one longest
    unused first) or its time is over. A page is in exactly one state: free, used by one or more, or kept.
    """

    def __init__(
        self, pages: int, page_tokens: int, ttl_s: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Makes a pool of free pages.

        Args:
          pages: how many there are.
          page_tokens: how many tokens one holds.
          ttl_s: for how long a page without users is kept; None: until its room is wanted.
          clock: seconds.
        """
        self.pages = pages
        self.page_tokens = page_tokens
        self.evicted = 0
        self._ttl_s = ttl_s
        self._clock = clock
        self._page = [_Page() for _ in range(pages)]
        self._free = list(range(pages - 1, -1, -1))
        self._kept: OrderedDict[int, None] = OrderedDict()  # pages without users that are registered, oldest first
        self._found: dict[bytes, int] = {}

    @property
    def available(self) -> int:
        """Pages that can be handed out, kept ones included."""
        return len(self._free) + len(self._kept)

    @property
    def used(self) -> int:
        """Pages that sequences have."""
        return self.pages - self.available

    @property
    def kept(self) -> int:
        """Pages without users that hold a part of a prompt."""
        return len(self._kept)

    def allocate(self) -> int | None:
        """A page with one user, or None where all are used."""
        if not self._free:
            if not self._kept:
                return None
            self._forget(next(iter(self._kept)))
            self.evicted += 1
        page = self._free.pop()
        self._page[page] = _Page(users=1)
        return page

    def release(self, pages: Sequence[int]) -> None:
        """Takes back pages of a sequence, in its order."""
        now = self._clock()
        for page in reversed(pages):  # the end of a text is forgotten before its beginning
            held = self._page[page]
            if held.users < 1:
                raise RuntimeError(f"page {page} is released, but nobody has it")
            held.users -= 1
            if held.users:
                continue
            held.freed = now
            if held.key is None:
                self._free.append(page)
            else:
                self._kept[page] = None

    def find(self, key: bytes) -> int | None:
        """The page that was registered as this part of a prompt."""
        return self._found.get(key)

    def use(self, page: int) -> None:
        """A page that was found gets one user more."""
        self._page[page].users += 1
        self._kept.pop(page, None)

    def register(self, page: int, key: bytes) -> None:
        """Makes a page, which is full and computed, findable, unless another one is as that part of a prompt."""
        held = self._page[page]
        if held.key is None and key not in self._found:
            held.key = key
            self._found[key] = page

    def expire(self) -> None:
        """Forgets kept pages whose time is over."""
        if self._ttl_s is None:
            return
        limit = self._clock() - self._ttl_s
        while self._kept:
            page = next(iter(self._kept))
            if self._page[page].freed > limit:
                return
            self._forget(page)

    def clear(self) -> None:
        """Forgets all kept pages."""
        while self._kept:
            self._forget(next(iter(self._kept)))

    def check(self) -> None:
        """Raises AssertionError where the accounts do not add up."""
        assert len(set(self._free)) == len(self._free)
        assert not set(self._free) & set(self._kept)
        for number, page in enumerate(self._page):
            assert page.users >= 0
            assert (page.users == 0) == (number in self._kept or number in set(self._free))
            assert page.key is None or self._found[page.key] == number
        assert len(self._found) == sum(page.key is not None for page in self._page)

    def _forget(self, page: int) -> None:
        held = self._page[page]
        assert held.key is not None
        del self._kept[page]
        del self._found[held.key]
        held.key = None
        self._free.append(page)

"""The pages and the scheduler against what must hold at all times, by many random histories."""

from __future__ import annotations

import pytest

pytest.importorskip("hypothesis")
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from thresher.llm.cache import PagePool
from thresher.llm.kv_cache import Held, KVCache
from thresher.llm.layer_groups import AllTokens, LastTokens, RecurrentState, divide, layer_groups
from thresher.llm.request import Request, Sequence, State
from thresher.llm.sampling import SamplingParams
from thresher.llm.scheduler import Scheduler, _shares
from thresher.llm.speculation import NGramDrafts

_SIZE = 4  # tokens of a page
_PAGES = 8
_WINDOW = 6
# Per group what its layers keep.
_KINDS = {
    "all": [AllTokens()],
    "window": [LastTokens(_WINDOW)],
    "both": [AllTokens(), LastTokens(_WINDOW)],
    "two windows": [LastTokens(1), LastTokens(_WINDOW)],
    "state": [AllTokens(), RecurrentState()],
}
# One more and one less than what fills a page, two, the pool.
_LENGTHS = st.sampled_from([1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 30, 31])


_ALL = (AllTokens(),)


def _cache(policies=_ALL, pages=_PAGES, size=_SIZE, ttl=None, clock=lambda: 0.0):
    return KVCache([PagePool(pages, size, ttl, clock) for _ in policies], policies)


class _History(RuleBasedStateMachine):
    """Requests come, are computed, end or are cancelled; what a page holds is remembered as the tokens up to there."""

    @initialize(
        batch=st.integers(1, 4),
        tokens=st.integers(1, 12),
        more=st.integers(0, 6),
        prefix=st.booleans(),
        ttl=st.sampled_from([None, 5]),
        kind=st.sampled_from(list(_KINDS)),
        pauses=st.booleans(),
    )
    def begin(self, batch, tokens, more, prefix, ttl, kind, pauses):
        self.now = 0.0
        self.pauses = pauses
        self.apart = None  # a step that is computed in pieces
        self.pieces = 0  # of it, that are left
        self.cache = _cache(_KINDS[kind], ttl=ttl, clock=lambda: self.now)
        self.most_scored = batch + more
        self.scheduler = Scheduler(
            self.cache,
            max_batch=batch,
            max_tokens=max(batch, tokens),
            max_scored=self.most_scored,
            pauses=pauses,
            prefix_cache=prefix,
        )
        # Per group: (page, offset): all tokens up to that one.
        self.held: list[dict[tuple[int, int], tuple[int, ...]]] = [{} for _ in self.cache.pools]
        self.open: list[Sequence] = []
        self.number = 0
        self.idle = 0

    @rule(
        length=_LENGTHS,
        more=_LENGTHS,
        base=st.integers(0, 2),
        priority=st.integers(0, 1),
        chunk=st.integers(1, 12),
        scored=st.booleans(),
        drafts=st.booleans(),
    )
    def submit(self, length, more, base, priority, chunk, scored, drafts):
        self.scheduler.chunk = chunk
        prompt = [(base if i < 9 else i % 3) for i in range(length)]  # many begin alike
        room = _PAGES * _SIZE - length
        params = SamplingParams(prompt_logprobs=0 if scored else None)
        request = Request(self.number, prompt, params, min(more, room), lambda _: None, priority)
        self.number += 1
        sequence = Sequence(request, 0, None)
        sequence.drafts = NGramDrafts(3) if drafts else None
        self.open.append(sequence)
        self.scheduler.add(sequence)

    @precondition(lambda self: self.open)
    @rule(index=st.integers(0, 100))
    def cancel(self, index):
        sequence = self.open.pop(index % len(self.open))
        self.scheduler.finish(sequence)
        assert not sequence.held.pages and sequence.state is State.FINISHED

    @rule(seconds=st.integers(1, 4))
    def wait(self, seconds):
        self.now += seconds

    @rule(steps=st.integers(1, 6))
    def compute(self, steps):
        for _ in range(steps):
            self._step()

    def _step(self):
        waiting = [s for s in self.scheduler.running if s.answering and len(s.tokens) - s.computed == 1]
        step = self.scheduler.next_step()
        if step is not None:
            beside = self.pauses and any(s in waiting for s in step.sequences)
            assert not beside or all(len(s.tokens) - s.computed == 1 for s in step.sequences)
            self._compute(step)
        apart = self.scheduler.apart
        if self.pauses and (apart is not None or (step is not None and step.decoding)):
            apart = self.scheduler.next_apart()
        if step is None and apart is None:
            # Nothing to do although something waits: only where it gave its pages back just now.
            self.idle += 1
            assert not self.open or self.idle < 3
            return
        self.idle = 0
        if apart is not None and apart is not self.apart:
            self.apart, self.pieces = apart, apart.tokens % 3
            self.before = self._places(apart)
        elif apart is not None and self.pieces:
            self.pieces -= 1
        elif apart is not None:
            assert self._places(apart) == self.before  # nobody has written there meanwhile
            self._compute(apart)

    def _places(self, step):
        """Whether and how often each place is used that a step writes to, and what is there."""
        found = []
        for group, policy in enumerate(self.cache.policies):
            for work in step.work:
                last = work.position + len(work.tokens)
                pages = work.pages[group]
                state = isinstance(policy, RecurrentState)
                places = (
                    [(pages[0], 0)] if state else [(pages[p // _SIZE], p % _SIZE) for p in range(work.position, last)]
                )
                users = [self.cache.pools[group]._page[page].users for page, _ in places]
                found.append((places, users, [self.held[group].get(place) for place in places]))
        return found

    def _compute(self, step):
        assert 1 <= len(step.work) <= self.scheduler.max_batch
        assert step.tokens <= self.scheduler.max_tokens
        assert sum(work.scored for work in step.work) <= self.most_scored
        written = set()
        for sequence, work in zip(step.sequences, step.work, strict=True):
            assert sequence.state is State.RUNNING
            assert work.position == sequence.computed and len(work.tokens) > 0
            tokens = (*sequence.tokens, *work.tokens[-work.drafted or len(work.tokens) :])
            for position, token in enumerate(work.tokens[: len(sequence.tokens) - work.position], work.position):
                assert sequence.tokens[position] == token
            for group, policy in enumerate(self.cache.policies):
                self._look(group, policy, work, tokens, written)
        self.scheduler.done(step)
        for sequence, work in zip(step.sequences, step.work, strict=True):
            request = sequence.request
            scores = work.scored
            position = work.position + len(work.tokens) - scores
            while scores and position < len(request.prompt) - 1:
                assert position == len(request.prompt_logprobs)  # each token of the prompt once, whatever happens
                request.prompt_logprobs.append(None)
                position, scores = position + 1, scores - 1
            assert (scores > 0) == (sequence.computed == len(sequence.tokens))
            if not scores:
                continue
            assert scores == 1 + work.drafted
            known = 0 if request.params.prompt_logprobs is None else len(request.prompt) - 1
            assert len(request.prompt_logprobs) == known
            for guess in [*work.tokens[len(work.tokens) - work.drafted :], None]:
                token = len(sequence.tokens) % 3
                sequence.tokens.append(token)
                if sequence.generated >= request.max_tokens:
                    assert guess is None
                    self.scheduler.finish(sequence)
                    self.open.remove(sequence)
                if token != guess:
                    break
                self.scheduler.accept(sequence)

    def _look(self, group, policy, work, tokens, written):
        """What a sequence reads and writes in the pages of a group."""
        pages, held, pool = work.pages[group], self.held[group], self.cache.pools[group]
        last = work.position + len(work.tokens)
        if isinstance(policy, RecurrentState):
            place = (pages[0], 0)
            assert len(pages) == 1 and (group, place) not in written and pool._page[pages[0]].users == 1
            if work.position:
                assert held[place] == tokens[: work.position]
            written.add((group, place))
            held[place] = tokens[:last]
            return
        first = max(work.position - policy.window + 1, 0) if isinstance(policy, LastTokens) else 0
        for position in range(first, work.position):
            # What it will read is what it, or somebody with the same beginning, wrote.
            assert held[pages[position // _SIZE], position % _SIZE] == tokens[: position + 1]
        for position in range(work.position, last):
            place = (pages[position // _SIZE], position % _SIZE)
            assert (group, place) not in written  # nobody else writes there
            assert pool._page[place[0]].users == 1
            written.add((group, place))
            held[place] = tokens[: position + 1]

    @invariant()
    def accounts_add_up(self):
        if not hasattr(self, "cache"):
            return
        for group, (pool, policy) in enumerate(zip(self.cache.pools, self.cache.policies, strict=True)):
            pool.check()
            users = [0] * _PAGES
            for sequence in self.scheduler.running:
                own = sequence.held.own(group)
                assert len(set(own)) == len(own)
                assert len(own) <= policy.most(_PAGES * _SIZE, self.scheduler.max_tokens, _SIZE)
                for page in own:
                    users[page] += 1
            assert users == [page.users for page in pool._page]
            assert pool.used == sum(count > 0 for count in users)
        assert all(not s.held.pages for s in self.scheduler.waiting)
        assert sorted(map(id, self.open)) == sorted(map(id, self.scheduler.running + self.scheduler.waiting))

    def teardown(self):
        if not hasattr(self, "cache"):
            return
        # Whatever happened before: everything ends, and in a bounded number of steps.
        most = 10 + sum(10 * (len(s.tokens) + s.request.max_tokens) for s in self.open)
        for _ in range(most):
            if not self.open:
                break
            self._step()
        assert not self.open
        assert self.cache.used == 0


def test_every_history_ends_with_all_that_must_hold():
    run_state_machine_as_test(_History, settings=settings(max_examples=200, stateful_step_count=40, deadline=None))


def test_a_full_pool_makes_the_last_in_order_begin_again():
    scheduler = Scheduler(_cache(pages=4), max_batch=4, max_tokens=16)
    first, second = (Sequence(Request(n, [n] * 8, SamplingParams(), 8, lambda _: None), 0, None) for n in range(2))
    scheduler.add(first)
    scheduler.add(second)
    step = scheduler.next_step()
    assert step.sequences == [first] or step.sequences == [first, second]
    while first.generated < 8:
        scheduler.done(step)
        for sequence, work in zip(step.sequences, step.work, strict=True):
            if work.scored:
                sequence.tokens.append(9)
        step = scheduler.next_step()
    assert first.request.stats.preemptions == 0


def test_a_prompt_does_not_stop_those_that_decode_nor_they_it():
    scheduler = Scheduler(_cache(pages=64), max_batch=4, max_tokens=32)
    scheduler.chunk = 8
    decoding = Sequence(Request(0, [1], SamplingParams(), 100, lambda _: None), 0, None)
    scheduler.add(decoding)
    step = scheduler.next_step()
    scheduler.done(step)
    decoding.tokens.append(1)
    long, short = (
        Sequence(Request(n, [n] * length, SamplingParams(), 10, lambda _: None), 0, None)
        for n, length in ((1, 100), (2, 4))
    )
    scheduler.add(long)
    scheduler.add(short)
    step = scheduler.next_step()
    assert step.sequences == [decoding, long, short]
    assert [len(w.tokens) for w in step.work] == [1, 4, 4]  # the short prompt does not wait for the long one
    scheduler.done(step)
    decoding.tokens.append(1)
    short.tokens.append(1)
    step = scheduler.next_step()
    assert [len(w.tokens) for w in step.work] == [1, 1, 8]  # answers first


def test_prompts_beside_answers_are_a_step_of_their_own_where_steps_can_pause():
    scheduler = Scheduler(_cache(pages=64), max_batch=4, max_tokens=32, pauses=True)
    scheduler.chunk = 8
    decoding, long, short, last = (
        Sequence(Request(n, [n] * length, SamplingParams(), 100, lambda _: None), 0, None)
        for n, length in enumerate((1, 100, 4, 4))
    )
    scheduler.add(decoding)
    scheduler.done(scheduler.next_step())
    for sequence in (long, short):
        scheduler.add(sequence)
    decoding.tokens.append(1)
    step = scheduler.next_step()
    assert step.sequences == [decoding]
    apart = scheduler.next_apart()
    assert apart.sequences == [long, short]
    assert [len(w.tokens) for w in apart.work] == [4, 4]
    scheduler.done(step)
    decoding.tokens.append(1)
    scheduler.add(last)
    step = scheduler.next_step()
    assert step.sequences == [decoding]  # what is under way is not begun once more, and what came waits for its end
    assert scheduler.next_apart() is apart
    scheduler.done(step)
    scheduler.finish(decoding)
    assert scheduler.next_step() is None  # nor are prompts that nobody waits beside
    scheduler.done(apart)
    assert [long.computed, short.computed] == [4, 4]
    short.tokens.append(1)
    step = scheduler.next_step()
    assert step.sequences == [short]
    apart = scheduler.next_apart()
    assert apart.sequences == [long, last]
    scheduler.finish(last)  # it takes its pages along: the other begins again
    assert scheduler.next_apart().sequences == [long] and long.computed == 4


def test_pages_of_a_prompt_are_found_up_to_its_last_token():
    cache = _cache()
    scheduler = Scheduler(cache, max_batch=1, max_tokens=32)
    for number, (length, cached) in enumerate([(9, 0), (9, 8), (8, 4), (4, 0), (12, 8), (13, 12)]):
        sequence = Sequence(Request(number, list(range(length)), SamplingParams(), 1, lambda _: None), 0, None)
        scheduler.add(sequence)
        step = scheduler.next_step()
        assert sequence.computed == cached
        assert sequence.request.stats.cached_tokens == cached
        scheduler.done(step)
        scheduler.finish(sequence)
    assert cache.asked_tokens == 9 + 9 + 8 + 4 + 12 + 13
    assert cache.hit_tokens == 8 + 4 + 8 + 12


def _match(cache, tokens, most):
    held = Held()
    cache.match(held, tokens, most)
    return held


def _computed(cache, tokens):
    """What a sequence of these tokens has, all of them computed."""
    held = _match(cache, tokens, len(tokens))
    done = held.registered * cache.page_tokens
    assert cache.grow(held, done, len(tokens))
    cache.advance(held, tokens, len(tokens), True)
    return held


def test_the_page_longest_unused_goes_first_and_ends_before_beginnings():
    cache = _cache(pages=3, size=2)
    (pool,) = cache.pools
    held = _computed(cache, [1, 2, 3, 4, 5, 6])
    (pages,) = held.pages
    cache.release(held)
    assert (cache.used, cache.kept) == (0, 3)
    taken = pool.allocate()
    assert taken == pages[2] and pool.evicted == 1
    held = _match(cache, [1, 2, 3, 4, 5, 6], 6)
    assert held.pages == [pages[:2]]
    cache.release(held)
    cache.clear()
    assert _match(cache, [1, 2, 3, 4], 4).pages == []
    pool.check()


def test_pages_are_forgotten_when_their_time_is_over():
    now = [0.0]
    cache = _cache(pages=4, size=2, ttl=10.0, clock=lambda: now[0])
    held = _computed(cache, [1, 2])
    pages = held.pages
    cache.release(held)
    now[0] = 9.0
    held = _match(cache, [1, 2], 2)
    assert held.pages == pages
    cache.release(held)
    now[0] = 19.0
    assert _match(cache, [1, 2], 2).registered == 0
    assert cache.kept == 0


def test_behind_a_window_a_beginning_is_found_by_what_the_window_sees():
    cache = _cache([AllTokens(), LastTokens(_WINDOW)], pages=16)
    tokens = list(range(30))
    held = _computed(cache, tokens)
    # Of 30 tokens the next query sees the last 5, and itself.
    assert [len(held.own(group)) for group in range(2)] == [8, 2]
    assert [pool.kept for pool in cache.pools] == [0, 6]
    cache.release(held)
    assert _match(cache, tokens, 29).registered == 7
    # Pages that no window sees any more are lost: what begins alike is found from there on, as it was.
    cache = _cache([AllTokens(), LastTokens(_WINDOW)], pages=16)
    cache.release(_computed(cache, tokens))
    for _ in range(10):
        cache.pools[1].allocate()  # all that were free, and one that was kept longest
    found = _match(cache, tokens, 7)
    assert found.registered == 0, "the window of token 4 begins before its page 1"
    found = _match(cache, tokens, 29)
    assert found.registered == 7 and found.begins == [0, 5] and len(found.own(1)) == 2
    cache.release(found)
    for pool in cache.pools:
        pool.check()


def test_a_state_that_changes_is_nobody_elses():
    cache = _cache([AllTokens(), RecurrentState()])
    held = _computed(cache, list(range(12)))
    assert [len(pages) for pages in held.pages] == [3, 1]
    cache.release(held)
    assert _match(cache, list(range(12)), 12).registered == 0
    assert (cache.used, cache.pools[1].kept) == (0, 0)


@pytest.mark.parametrize("window", [1, 2, 4, 5, 6, 31, 64])
@pytest.mark.parametrize("step", [1, 3, 4, 12])
def test_a_window_wants_no_more_pages_than_it_says(window, step):
    policy = LastTokens(window)
    most = max(len(policy.wanted(first, first + step, _SIZE)) for first in range(200))
    assert most == policy.most(10_000, step, _SIZE)
    for length in range(1, 60):
        wanted = [len(policy.wanted(first, min(first + step, length), _SIZE)) for first in range(length)]
        assert max(wanted) <= policy.most(length, step, _SIZE)
    assert policy.longest(most, step, _SIZE) is None
    assert policy.longest(most - 1, step, _SIZE) == (most - 1) * _SIZE


def test_layers_are_grouped_by_their_windows():
    groups = layer_groups([0, 16, 16, 0, 64, 16], 64)
    assert [group.layers for group in groups] == [(0, 3, 4), (1, 2, 5)], "a window of all tokens is none"
    assert [group.policy for group in groups] == [AllTokens(), LastTokens(16)]
    assert [group.policy for group in layer_groups([16, 16], 64)] == [LastTokens(16)]


def test_memory_is_divided_as_sequences_want_it():
    policies, sizes = [AllTokens(), LastTokens(_WINDOW)], [100, 1000]
    one = 16 * 100 + 5 * 1000  # of 64 tokens, 12 at a time
    assert divide(one, policies, sizes, 64, 12, _SIZE) == [16, 5]
    assert divide(3 * one, policies, sizes, 64, 12, _SIZE) == [48, 15]
    assert divide(one - 1, policies, sizes, 64, 12, _SIZE) == [15, 5]
    assert divide(2 * 1100, policies, sizes, 64, 12, _SIZE) == [2, 2]
    assert divide(1099, policies, sizes, 64, 12, _SIZE) == [0, 0]
    assert divide(750, [AllTokens()], [100], 64, 12, _SIZE) == [7]


def test_a_page_is_not_released_twice():
    pool = PagePool(2, 2)
    page = pool.allocate()
    pool.release([page])
    with pytest.raises(RuntimeError, match="nobody has it"):
        pool.release([page])


@pytest.mark.parametrize(
    ("wanted", "room", "shares"),
    [([10, 10], 6, [3, 3]), ([1, 10], 6, [1, 5]), ([5], 0, [0]), ([], 4, []), ([2, 2, 2], 2, [1, 1, 0]), ([3], 9, [3])],
)
def test_room_is_shared(wanted, room, shares):
    assert _shares(wanted, room) == shares

"""The pages and the scheduler against what must hold at all times, by many random histories."""

from __future__ import annotations

import pytest

pytest.importorskip("hypothesis")
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from thresher.llm.cache import PagePool
from thresher.llm.request import Request, Sequence, State
from thresher.llm.sampling import SamplingParams
from thresher.llm.scheduler import Scheduler, _shares
from thresher.llm.speculation import NGramDrafts

_SIZE = 4  # tokens of a page
_PAGES = 8
# One more and one less than what fills a page, two, the pool.
_LENGTHS = st.sampled_from([1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 30, 31])


class _History(RuleBasedStateMachine):
    """Requests come, are computed, end or are cancelled; what a page holds is remembered as the tokens up to there."""

    @initialize(
        batch=st.integers(1, 4),
        tokens=st.integers(1, 12),
        more=st.integers(0, 6),
        prefix=st.booleans(),
        ttl=st.sampled_from([None, 5]),
    )
    def begin(self, batch, tokens, more, prefix, ttl):
        self.now = 0.0
        self.pool = PagePool(_PAGES, _SIZE, ttl, lambda: self.now)
        self.most_scored = batch + more
        self.scheduler = Scheduler(
            self.pool,
            max_batch=batch,
            max_tokens=max(batch, tokens),
            max_scored=self.most_scored,
            prefix_cache=prefix,
        )
        self.held: dict[tuple[int, int], tuple[int, ...]] = {}  # (page, offset): all tokens up to that one
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
        assert not sequence.pages and sequence.state is State.FINISHED

    @rule(seconds=st.integers(1, 4))
    def wait(self, seconds):
        self.now += seconds

    @rule(steps=st.integers(1, 6))
    def compute(self, steps):
        for _ in range(steps):
            self._step()

    def _step(self):
        step = self.scheduler.next_step()
        if step is None:
            # Nothing to do although something waits: only where it gave its pages back just now.
            self.idle += 1
            assert not self.open or self.idle < 3
            return
        self.idle = 0
        assert 1 <= len(step.work) <= self.scheduler.max_batch
        assert step.tokens <= self.scheduler.max_tokens
        assert sum(work.scored for work in step.work) <= self.most_scored
        written = set()
        for sequence, work in zip(step.sequences, step.work, strict=True):
            assert sequence.state is State.RUNNING
            assert work.position == sequence.computed and len(work.tokens) > 0
            for position in range(work.position):
                # What it will read is what it, or somebody with the same beginning, wrote.
                place = (sequence.pages[position // _SIZE], position % _SIZE)
                assert self.held[place] == tuple(sequence.tokens[: position + 1])
            for position, token in enumerate(work.tokens, work.position):
                place = (sequence.pages[position // _SIZE], position % _SIZE)
                assert place not in written  # nobody else writes there
                assert self.pool._page[place[0]].users == 1
                written.add(place)
                if position < len(sequence.tokens):
                    assert sequence.tokens[position] == token
                self.held[place] = (*sequence.tokens, *work.tokens[-work.drafted or len(work.tokens) :])[: position + 1]
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

    @invariant()
    def accounts_add_up(self):
        if not hasattr(self, "pool"):
            return
        self.pool.check()
        users = [0] * _PAGES
        for sequence in self.scheduler.running:
            assert len(set(sequence.pages)) == len(sequence.pages)
            for page in sequence.pages:
                users[page] += 1
        assert users == [page.users for page in self.pool._page]
        assert self.pool.used == sum(count > 0 for count in users)
        assert all(not s.pages for s in self.scheduler.waiting)
        assert sorted(map(id, self.open)) == sorted(map(id, self.scheduler.running + self.scheduler.waiting))

    def teardown(self):
        if not hasattr(self, "pool"):
            return
        # Whatever happened before: everything ends, and in a bounded number of steps.
        most = 10 + sum(10 * (len(s.tokens) + s.request.max_tokens) for s in self.open)
        for _ in range(most):
            if not self.open:
                break
            self._step()
        assert not self.open
        assert self.pool.used == 0


TestHistory = _History.TestCase
TestHistory.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_a_full_pool_makes_the_last_in_order_begin_again():
    pool = PagePool(4, _SIZE)
    scheduler = Scheduler(pool, max_batch=4, max_tokens=16)
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
    pool = PagePool(64, _SIZE)
    scheduler = Scheduler(pool, max_batch=4, max_tokens=32)
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
    assert [len(w.tokens) for w in step.work] == [1, 8, 1]


def test_pages_of_a_prompt_are_found_up_to_its_last_token():
    pool = PagePool(8, _SIZE)
    scheduler = Scheduler(pool, max_batch=1, max_tokens=32)
    for number, (length, cached) in enumerate([(9, 0), (9, 8), (8, 4), (4, 0), (12, 8), (13, 12)]):
        sequence = Sequence(Request(number, list(range(length)), SamplingParams(), 1, lambda _: None), 0, None)
        scheduler.add(sequence)
        step = scheduler.next_step()
        assert sequence.computed == cached
        assert sequence.request.stats.cached_tokens == cached
        scheduler.done(step)
        scheduler.finish(sequence)
    assert pool.asked_tokens == 9 + 9 + 8 + 4 + 12 + 13
    assert pool.hit_tokens == 8 + 4 + 8 + 12


def test_the_page_longest_unused_goes_first_and_ends_before_beginnings():
    pool = PagePool(3, 2)
    pages = [pool.allocate() for _ in range(3)]
    pool.register(pages, [1, 2, 3, 4, 5, 6], 0, 3)
    pool.release(pages)
    assert (pool.used, pool.kept) == (0, 3)
    taken = pool.allocate()
    assert taken == pages[2] and pool.evicted == 1
    assert pool.match([1, 2, 3, 4, 5, 6], 6) == pages[:2]
    pool.release(pages[:2])
    pool.clear()
    assert pool.match([1, 2, 3, 4], 4) == []
    pool.check()


def test_pages_are_forgotten_when_their_time_is_over():
    now = [0.0]
    pool = PagePool(4, 2, 10.0, lambda: now[0])
    page = pool.allocate()
    pool.register([page], [1, 2], 0, 1)
    pool.release([page])
    now[0] = 9.0
    assert pool.match([1, 2], 2) == [page]
    pool.release([page])
    now[0] = 19.0
    assert pool.match([1, 2], 2) == []
    assert pool.kept == 0


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

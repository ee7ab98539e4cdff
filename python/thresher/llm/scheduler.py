"""Which sequences compute what in the next step.

The scheduler computes nothing itself. Sequences that decode go first, one token each; prompts share what room is left,
in chunks, or a step of their own that is computed in pieces between those of the others, so that neither side waits
for the other to end. Where pages run out, the sequence that is last in order (priority, then arrival) gives its own
back and begins again later: the first one always goes on, so that everything ends.
"""

from __future__ import annotations

import dataclasses

from thresher.llm.draft_model import DraftModel
from thresher.llm.kv_cache import KVCache
from thresher.llm.request import Sequence, State
from thresher.llm.speculation import NGramDrafts
from thresher.llm.step_inputs import Work


@dataclasses.dataclass(slots=True)
class Step:
    """The sequences of a step and what each computes."""

    sequences: list[Sequence]
    work: list[Work]

    @property
    def tokens(self) -> int:
        """Of all sequences together."""
        return sum(len(item.tokens) for item in self.work)

    @property
    def decoding(self) -> int:
        """How many sequences compute a single token behind their prompt."""
        return sum(item.answering for item in self.work)

    @property
    def drafted(self) -> int:
        """How many tokens are guesses."""
        return sum(item.drafted for item in self.work)


class Scheduler:
    """Holds all sequences that are not finished. Belongs to one thread."""

    def __init__(
        self,
        cache: KVCache,
        *,
        max_batch: int,
        max_tokens: int,
        max_scored: int | None = None,
        pauses: bool = False,
        prefix_cache: bool = True,
        draft_model: DraftModel | None = None,
    ) -> None:
        """Begins without sequences.

        Args:
          cache: where pages come from.
          max_batch: sequences of one step.
          max_tokens: tokens of one step.
          max_scored: scores of one step; default: one a sequence.
          pauses: steps can be computed in pieces, so that no step has prompts beside answers.
          prefix_cache: beginnings of prompts that are in pages already are not computed again.
          draft_model: guesses how answers go on; None: those that guess do so for themselves.
        """
        self.cache = cache
        self.max_batch, self.max_tokens = max_batch, max_tokens
        self.chunk = max_tokens  # of prompts, where others decode at the same time
        self.apart: Step | None = None  # of prompts, which is computed in pieces beside others
        self.draft_price = 0.0  # the time of a guess in a step, as a share of the step's
        self._spare = (max_scored or max_batch) - max_batch  # scores beside one of each sequence
        self._pauses = pauses
        self._prefix_cache = prefix_cache
        self._draft_model = draft_model
        self.waiting: list[Sequence] = []  # both in order
        self.running: list[Sequence] = []

    @property
    def answering(self) -> int:
        """How many sequences compute the next token of an answer in the next step, as far as there is room."""
        return len(self._decoding())

    def add(self, sequence: Sequence) -> None:
        """Puts a sequence into the queue."""
        sequence.state = State.WAITING
        self.waiting.append(sequence)
        self.waiting.sort(key=lambda s: s.order)

    def finish(self, sequence: Sequence) -> None:
        """Takes a sequence out, wherever it is."""
        if sequence.state is State.RUNNING:
            self._take_back(sequence)
        elif sequence.state is State.WAITING:
            self.waiting.remove(sequence)
        sequence.state = State.FINISHED

    def next_step(self) -> Step | None:
        """What to compute now; None: nothing, or what is computed apart alone."""
        work: dict[int, tuple[Sequence, int]] = {}  # by id: how many tokens
        room = self.max_tokens
        spare = self._spare
        for sequence in self._decoding():
            if room == 0:
                break
            if sequence.state is State.RUNNING and self._grow(sequence, 1, work):
                work[id(sequence)] = (sequence, 1)
                room -= 1
        drafts = self._drafts([s for s, _ in work.values()], min(room, spare))
        room -= sum(map(len, drafts.values()))
        spare -= sum(map(len, drafts.values()))
        limit = min(room, self.chunk) if work else room
        self._admit(limit)
        if len(work) < len(self.running) and self.apart is None and not (work and self._pauses):
            prompts = [s for s in self.running if id(s) not in work and len(s.tokens) > s.computed]
            self._share(prompts, limit, spare, work)
        return self._step(work, drafts)

    def next_apart(self) -> Step | None:
        """The step of prompts that is computed in pieces beside others; None: no prompt is left."""
        if self.apart is None:
            work: dict[int, tuple[Sequence, int]] = {}
            prompts = [s for s in self.running if len(s.tokens) - s.computed > 1]
            self._share(prompts, min(self.chunk, self.max_tokens), self._spare, work)
            self.apart = self._step(work, {})
        return self.apart

    def _decoding(self) -> list[Sequence]:
        """Who computes a single token in the next step."""
        apart = () if self.apart is None else self.apart.sequences
        return [s for s in self.running if len(s.tokens) - s.computed == 1 and s not in apart]

    def _step(self, work: dict[int, tuple[Sequence, int]], drafts: dict[int, list[int]]) -> Step | None:
        chosen = sorted(work.values(), key=lambda entry: (not entry[0].answering, entry[0].order))
        if not chosen:
            return None
        step = Step([], [])
        for sequence, count in chosen:
            first, last = sequence.computed, sequence.computed + count
            step.sequences.append(sequence)
            scored = max(0, last - max(first, sequence.scores_from))
            draft = drafts.get(id(sequence), [])
            tokens = sequence.tokens[first:last] + draft
            answering = sequence.answering
            step.work.append(Work(tokens, first, sequence.held.pages, scored + len(draft), len(draft), answering))
        return step

    def _share(self, prompts: list[Sequence], limit: int, spare: int, work: dict[int, tuple[Sequence, int]]) -> None:
        """Gives sequences their shares of so many tokens and scores."""
        wanted = []
        for sequence in prompts:
            unscored = max(sequence.scores_from - sequence.computed, 0)
            # What is computed once more: its prompt's tokens as such, and those of its answer in another step.
            end = len(sequence.tokens) if sequence.answering else len(sequence.request.prompt)
            count = min(end - sequence.computed, unscored + 1 + spare)
            spare -= max(count - unscored - 1, 0)
            wanted.append(count)
        shares = _shares(wanted, limit)
        for sequence, share in zip(prompts, shares, strict=True):
            if share and sequence.state is State.RUNNING and self._grow(sequence, share, work):
                work[id(sequence)] = (sequence, share)

    def done(self, step: Step) -> None:
        """The step was computed: what it wrote may be used."""
        if step is self.apart:
            self.apart = None
        for sequence, item in zip(step.sequences, step.work, strict=True):
            if sequence.state is not State.RUNNING:
                continue
            self._advance(sequence, len(item.tokens) - item.drafted)

    def accept(self, sequence: Sequence) -> None:
        """A guess of the step came true: the sequence has it as its last token, and it is computed."""
        self._advance(sequence, 1)

    def _advance(self, sequence: Sequence, count: int) -> None:
        sequence.computed += count
        self.cache.advance(sequence.held, sequence.tokens, sequence.computed, self._prefix_cache)

    def _drafts(self, decoding: list[Sequence], most: int) -> dict[int, list[int]]:
        """Guesses for sequences that decode, by id; they take no pages from anybody."""
        drafts: dict[int, list[int]] = {}
        price = self.draft_price * len(decoding)
        rooms: list[tuple[Sequence, int]] = []
        for sequence in decoding:
            if sequence.drafts is None or sequence.state is not State.RUNNING or not sequence.answering:
                continue
            in_pages = self.cache.room(sequence.held) - sequence.computed - 1
            rooms.append((sequence, min(in_pages, sequence.request.max_tokens - sequence.generated - 1)))
        if self._draft_model is not None:
            each = most // max(len(rooms), 1)
            return self._draft_model.propose([(sequence, min(room, each)) for sequence, room in rooms], price)
        for sequence, room in rooms:
            if isinstance(sequence.drafts, NGramDrafts) and most > 0:
                draft = sequence.drafts.propose(sequence.tokens, min(room, most), price)
                if draft:
                    drafts[id(sequence)] = draft
                    most -= len(draft)
        return drafts

    def _admit(self, limit: int) -> None:
        """Begins sequences of the queue while there is room for a first chunk of each."""
        while self.waiting and len(self.running) < self.max_batch and limit > 0:
            sequence = self.waiting[0]
            most = sequence.scores_from  # what is scored is computed
            held = sequence.held
            if self._prefix_cache:
                self.cache.match(held, sequence.tokens, most)
            # One page more for each that runs, or it would soon be in the way of those before it.
            if self.running and not self.cache.has_room(held, len(sequence.tokens), self.max_tokens, len(self.running)):
                self.cache.release(held)
                return
            self.waiting.pop(0)
            sequence.computed = held.registered * self.cache.page_tokens
            sequence.state = State.RUNNING
            self.running.append(sequence)
            self.running.sort(key=lambda s: s.order)
            stats = sequence.request.stats
            if self._prefix_cache:
                self.cache.count(len(sequence.tokens), sequence.computed)
            if sequence.index == 0 and not stats.preemptions:
                stats.cached_tokens = sequence.computed

    def _grow(self, sequence: Sequence, count: int, work: dict[int, tuple[Sequence, int]]) -> bool:
        """Gives a sequence pages for `count` tokens more; False: it had to give back its own."""
        while not self.cache.grow(sequence.held, sequence.computed, sequence.computed + count):
            victim = max(self.running, key=lambda s: s.order)
            work.pop(id(victim), None)
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self._take_back(sequence)
        sequence.request.stats.preemptions += 1
        self.add(sequence)

    def _take_back(self, sequence: Sequence) -> None:
        """Ends what runs of a sequence; the others of its step begin that one again."""
        self.running.remove(sequence)
        if self.apart is not None and sequence in self.apart.sequences:
            self.apart = None
        if self._draft_model is not None:
            self._draft_model.forget(sequence)
        self.cache.release(sequence.held)
        sequence.computed = 0


def _shares(wanted: list[int], room: int) -> list[int]:
    """Divides room among those who want some: equally, what one leaves going to the others, the first ones first."""
    shares = [0] * len(wanted)
    while wanted and room > 0:
        hungry = [i for i, want in enumerate(wanted) if shares[i] < want]
        if not hungry:
            break
        each = max(1, room // len(hungry))
        for i in hungry:
            more = min(each, wanted[i] - shares[i], room)
            shares[i] += more
            room -= more
    return shares

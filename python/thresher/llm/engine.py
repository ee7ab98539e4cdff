"""The thread that runs steps, and the door to it."""

from __future__ import annotations

import dataclasses
import functools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from thresher.llm.constraints import Guides
from thresher.llm.doorbell import Doorbell
from thresher.llm.draft_model import DraftModel
from thresher.llm.kv_cache import KVCache
from thresher.llm.pace import Pace
from thresher.llm.profile_window import ProfileWindow
from thresher.llm.request import Delta, Request, State
from thresher.llm.request import Sequence as Answer
from thresher.llm.runner import PausableStep, Runner, Scores
from thresher.llm.sampling import Floats, Logprobs, Sampler, SamplingParams, report
from thresher.llm.scheduler import Scheduler, Step
from thresher.llm.speculation import ModelDrafts, NGramDrafts
from thresher.llm.step_inputs import Work
from thresher.llm.step_record import recorded_step
from thresher.llm.tokenizer import TextStream, Tokenizer

_log = logging.getLogger(__name__)

_SMOOTHING = 0.2
_DRAFT_SHARE = 0.3  # of a piece, what a draft model may take where the model has one of its own
_UNHURRIED_S = 1e6  # for a step in pieces that nobody waits for


class QueueFullError(RuntimeError):
    """Too many requests wait: come again later."""


class EngineClosedError(RuntimeError):
    """The engine has been closed, or its thread has died."""


@dataclasses.dataclass(frozen=True, slots=True)
class EngineStats:
    """The engine now, and sums since it began.

    Attributes:
      running: answers that have pages.
      waiting: answers in the queue.
      pages: of the cache, of all groups of layers together.
      pages_used: by answers that run.
      pages_kept: hold parts of prompts that nobody uses now.
      prompt_tokens: of all prompts that were begun.
      looked_up_tokens: of all that were looked for in pages, more than once where an answer had to begin again.
      cached_tokens: of those, found in pages.
      computed_tokens: of prompts and answers.
      output_tokens: of answers.
      steps: how many were computed.
      step_s: the time of all steps.
      preemptions: answers that had to begin again because pages ran out.
      drafted_tokens: guesses that were computed.
      accepted_tokens: of those, that came true.
      finished, failed, cancelled: requests.
    """

    running: int
    waiting: int
    pages: int
    pages_used: int
    pages_kept: int
    prompt_tokens: int
    looked_up_tokens: int
    cached_tokens: int
    computed_tokens: int
    output_tokens: int
    steps: int
    step_s: float
    preemptions: int
    drafted_tokens: int
    accepted_tokens: int
    finished: int
    failed: int
    cancelled: int


@dataclasses.dataclass(slots=True)
class _Apart:
    """A step of prompts that is computed in pieces between steps of answers."""

    step: Step
    run: PausableStep
    time_s: float = 0.0  # so far


class Engine:
    """Computes requests together. All methods may be called from any thread.

    Attributes:
      max_length: tokens of a prompt with its answer.
      doorbell: wakes event loops at the end of a step; for what delivers, on the engine's thread.
    """

    def __init__(
        self,
        runner: Runner,
        cache: KVCache,
        *,
        vocab_size: int,
        max_length: int,
        eos_token_ids: Sequence[int] = (),
        tokenizer: Tokenizer | None = None,
        max_waiting: int = 1024,
        prefix_cache: bool = True,
        draft_tokens: int = 0,
        draft_model: DraftModel | None = None,
        allow_grammars: bool = False,
    ) -> None:
        """Starts the engine's thread.

        Args:
          runner: computes steps.
          cache: the pages of the runner.
          vocab_size: how many tokens the model has.
          max_length: tokens of a prompt with its answer.
          eos_token_ids: tokens that end an answer.
          tokenizer: makes text; None: answers are tokens alone.
          max_waiting: answers in the queue beyond which requests are refused.
          prefix_cache: beginnings of prompts are computed once.
          draft_tokens: how many are guessed at a time; 0: none.
          draft_model: guesses them; None: they are taken from what stands in prompt and answer.
          allow_grammars: answers may be asked to keep to grammars.
        """
        self.max_length = min(max_length, cache.longest(runner.max_tokens) or max_length)
        self.doorbell = Doorbell()
        self._runner = runner
        self._cache = cache
        self._scheduler = Scheduler(
            cache,
            max_batch=runner.max_batch,
            max_tokens=runner.max_tokens,
            max_scored=runner.max_scored,
            pauses=runner.pauses,
            prefix_cache=prefix_cache,
            draft_model=draft_model,
        )
        self._draft_tokens = draft_tokens
        self._draft_model = draft_model
        self._vocab_size = vocab_size
        self._eos = frozenset(eos_token_ids)
        self._tokenizer = tokenizer
        self._guides = (
            None if tokenizer is None else Guides(tokenizer, vocab_size, eos_token_ids, grammars=allow_grammars)
        )
        self._max_waiting = max_waiting
        self._lock = threading.Condition()
        self._arrived: deque[Request] = deque()
        self._cancelled: deque[Request] = deque()
        self._open: dict[int, list[Answer]] = {}
        self._queued = 0  # answers that were submitted and are not finished
        self._number = 0
        self._closed = False
        self._pace = Pace(runner.max_tokens)
        self._apart: _Apart | None = None
        self._draft_s = 0.0  # a guess in a step
        self._failure: BaseException | None = None  # what the thread died of
        self._window: ProfileWindow | None = None
        self._turn_began = 0.0  # when the thread last began to do something; 0: it waits
        self._drafted = self._accepted = 0
        self._prompt_tokens = self._computed = self._output = self._steps = self._preemptions = 0
        self._finished = self._failed = self._cancels = 0
        self._step_s = 0.0
        self._thread = threading.Thread(target=self._run, name="thresher-llm", daemon=True)
        self._thread.start()

    def submit(
        self, prompt: Sequence[int], params: SamplingParams, deliver: Callable[[Delta], None], priority: int = 0
    ) -> Request:
        """Puts a request into the queue.

        Args:
          prompt: tokens, at least one.
          params: its options.
          deliver: gets what each step adds, on the engine's thread; must return soon and raise nothing.
          priority: the lowest goes first.

        Raises:
          ValueError: the prompt is empty or too long, or has tokens that the model does not know; or nothing keeps to
            the form that is asked for.
          ModuleNotFoundError: a form is asked for, and llguidance is not installed.
          QueueFullError: too many requests wait.
          EngineClosedError: close() was called.
        """
        tokens = [int(token) for token in prompt]
        if not tokens:
            raise ValueError("prompt: expected at least one token, got none")
        if len(tokens) >= self.max_length:
            raise ValueError(
                f"prompt: expected at most {self.max_length - 1} tokens, so that one more fits into {self.max_length}, "
                f"got {len(tokens)}; shorten it, or load the model with a larger max_length or kv_cache_bytes"
            )
        wrong = next((token for token in tokens if not 0 <= token < self._vocab_size), None)
        if wrong is not None:
            raise ValueError(f"prompt: expected tokens from 0 to {self._vocab_size - 1}, got {wrong}")
        for token in params.logit_bias:
            if not 0 <= token < self._vocab_size:
                raise ValueError(f"logit_bias: expected tokens from 0 to {self._vocab_size - 1}, got {token}")
        if params.stop and self._tokenizer is None:
            raise ValueError("stop: expected a model with a tokenizer, got none; use stop_token_ids")
        guide = None
        if params.form is not None:
            if self._guides is None:
                raise ValueError("expected a model with a tokenizer for answers of a form, got none")
            guide = self._guides.make(params.form)
        room = self.max_length - len(tokens)
        with self._lock:
            if self._failure is not None:
                raise EngineClosedError(f"expected an engine that runs, got one that died of {self._failure!r}")
            if self._closed:
                raise EngineClosedError("the engine has been closed")
            if self._queued + params.n > self._max_waiting + self._runner.max_batch:
                raise QueueFullError(f"expected at most {self._max_waiting} answers in the queue; try again later")
            self._queued += params.n
            request = Request(self._number, tokens, params, min(params.max_tokens or room, room), deliver, priority)
            request.guide = guide
            self._number += 1
            self._arrived.append(request)
            self._lock.notify()
        return request

    def cancel(self, request: Request) -> None:
        """Ends a request, wherever it is; its pages are free within a step."""
        with self._lock:
            self._cancelled.append(request)
            self._lock.notify()

    def stats(self) -> EngineStats:
        """The engine now; numbers may be a step apart."""
        scheduler, cache = self._scheduler, self._cache
        return EngineStats(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting) + len(self._arrived),
            pages=cache.pages,
            pages_used=cache.used,
            pages_kept=cache.kept,
            prompt_tokens=self._prompt_tokens,
            looked_up_tokens=cache.asked_tokens,
            cached_tokens=cache.hit_tokens,
            computed_tokens=self._computed,
            output_tokens=self._output,
            steps=self._steps,
            step_s=self._step_s,
            preemptions=self._preemptions,
            drafted_tokens=self._drafted,
            accepted_tokens=self._accepted,
            finished=self._finished,
            failed=self._failed,
            cancelled=self._cancels,
        )

    def profile(self, window: ProfileWindow) -> None:
        """Profiles the steps of a window.

        Raises:
          RuntimeError: those of another one are not over.
          EngineClosedError: close() was called.
        """
        with self._lock:
            if self._closed:
                raise EngineClosedError("the engine has been closed")
            if self._window is not None and not self._window.result.done():
                raise RuntimeError("expected one profile at a time, got another one; wait for its result or cancel it")
            self._window = window

    @property
    def failure(self) -> BaseException | None:
        """What the engine's thread died of; None: it lives."""
        return self._failure

    @property
    def busy_s(self) -> float:
        """For how long the thread has been busy with the present step; 0: it waits for requests."""
        began = self._turn_began
        return time.monotonic() - began if began else 0.0

    def close(self) -> None:
        """Cancels what is open and ends the thread."""
        with self._lock:
            self._closed = True
            self._lock.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    # ---- the engine's thread ----

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            _log.exception("the engine's thread died")
            self._die(error)
        finally:
            self._turn_began = 0.0
            if self._window is not None:
                self._window.end()

    def _die(self, error: BaseException) -> None:
        """Fails what is open: nobody waits for a thread that is no more."""
        with self._lock:
            self._failure = error
            arrived = list(self._arrived)
            self._arrived.clear()
        closed = EngineClosedError(f"the engine's thread died of {error!r}")
        for answer in [answer for answers in self._open.values() for answer in answers]:
            self._deliver(answer.request, Delta(answer.index, finish_reason="error", error=closed))
        for request in arrived:
            for index in range(request.params.n):
                self._deliver(request, Delta(index, finish_reason="error", error=closed))
        self.doorbell.step_ends()

    def _work(self) -> None:
        while True:
            with self._lock:
                while not (self._arrived or self._cancelled or self._busy() or self._closed):
                    self._turn_began = 0.0
                    self._lock.wait()
                self._turn_began = time.monotonic()
                arrived, cancelled = list(self._arrived), list(self._cancelled)
                self._arrived.clear()
                self._cancelled.clear()
                closed = self._closed
            for request in arrived:
                self._begin(request)
            for request in list(self._requests()) if closed else cancelled:
                request.cancelled = True
                for answer in list(self._open.get(request.number, ())):
                    self._end(answer, "cancel")
            self.doorbell.step_ends()
            if closed:
                return
            answering = self._scheduler.answering
            # Only where prompts are to be computed is it asked how much of them.
            prompts = bool(self._scheduler.waiting or answering < len(self._scheduler.running))
            if prompts and not self._runner.pauses:
                self._scheduler.chunk = self._pace.chunk(answering)
            if self._draft_model is not None:
                piece_s = self._pace.piece_s(answering, 0.0)
                self._draft_model.piece_s = piece_s * _DRAFT_SHARE if prompts else piece_s
            step = self._scheduler.next_step()
            if step is not None:
                self._compute(step, self._compute_step)
            self.doorbell.step_ends()
            if prompts and self._runner.pauses:
                self._compute_apart(step)

    def _busy(self) -> bool:
        return bool(self._scheduler.waiting or self._scheduler.running)

    def _requests(self) -> list[Request]:
        return [answers[0].request for answers in self._open.values() if answers]

    def _begin(self, request: Request) -> None:
        try:
            answers = []
            for index in range(request.params.n):
                guide = None if request.guide is None else request.guide.copy()
                sampler = Sampler(request.params, request.prompt, self._vocab_size, index, guide)
                answer = Answer(request, index, sampler)
                answer.ends = frozenset(request.params.stop_token_ids)
                if not request.params.ignore_eos:
                    answer.ends |= self._eos
                if self._draft_tokens:
                    model = self._draft_model is not None
                    answer.drafts = ModelDrafts() if model else NGramDrafts(self._draft_tokens)
                if self._tokenizer is not None:
                    answer.text = TextStream(
                        self._tokenizer, tuple(request.params.stop), skip_special=request.params.skip_special_tokens
                    )
                answers.append(answer)
        except Exception as error:
            with self._lock:
                self._queued -= request.params.n
            self._failed += 1
            for index in range(request.params.n):
                self._deliver(request, Delta(index, finish_reason="error", error=error))
            return
        self._open[request.number] = answers.copy()
        self._prompt_tokens += len(request.prompt)
        for answer in answers:
            self._scheduler.add(answer)

    def _compute_apart(self, answers: Step | None) -> None:
        """A piece of the prompts' step, the present one or the next, behind a step of answers; None: nobody waits."""
        if answers is not None and answers.decoding:
            piece_s = self._pace.piece_s(answers.decoding, time.monotonic() - self._turn_began)
            self._scheduler.chunk = self._pace.apart(piece_s)
        elif self._scheduler.apart is not None:
            piece_s = _UNHURRIED_S
        else:
            return
        step = self._scheduler.next_apart()
        if self._apart is not None and self._apart.step is not step:  # one that went has taken its pages along
            self._apart = None
        if step is not None:
            self._compute(step, functools.partial(self._compute_piece, piece_s=piece_s), first=self._apart is None)
            self.doorbell.step_ends()

    def _compute(self, step: Step, compute: Callable[[Step], None], *, first: bool = True) -> None:
        """A step or a piece of one; in profiles a call: of decode if it has answers alone, else of prefill."""
        window = self._window
        if window is not None:
            if window.result.done():
                window = self._window = None
            else:
                window.before(step)
        try:
            with recorded_step(step.work, first=first):
                compute(step)
        finally:
            if window is not None:
                window.after()

    def _compute_step(self, step: Step) -> None:
        start = time.monotonic()
        self._prepare(step)
        try:
            scores = self._runner.run(step.work)
        except Exception as error:
            self._fail(step, error)
            return
        self._finish(step, scores)
        self._note(step, time.monotonic() - start)

    def _compute_piece(self, step: Step, piece_s: float) -> None:
        start = time.monotonic()
        try:
            if self._apart is None:
                self._prepare(step)
                self._apart = _Apart(step, self._runner.begin(step.work))
            apart = self._apart
            scores = apart.run.run_for(piece_s)
        except Exception as error:
            self._fail(step, error)
            return
        apart.time_s += time.monotonic() - start
        if scores is None:
            return
        self._apart = None
        self._finish(step, scores)
        self._count(step, apart.time_s)
        self._pace.note_apart(step.tokens, apart.run.longest_s)

    def _prepare(self, step: Step) -> None:
        """Before a step is computed."""
        now = time.monotonic()
        for answer, item in zip(step.sequences, step.work, strict=True):
            if not answer.request.stats.started:
                answer.request.stats.started = now
            if self._runner.finds_best:
                item.best = self._takes_best(answer)

    def _fail(self, step: Step, error: Exception) -> None:
        _log.exception("a step failed")
        for answer in step.sequences:
            self._end(answer, "error", error)

    def _finish(self, step: Step, scores: Scores) -> None:
        """Behind a step that was computed."""
        self._scheduler.done(step)
        row = 0
        for answer, item in zip(step.sequences, step.work, strict=True):
            try:
                self._take(answer, item, scores[row : row + item.scored])
            except Exception as error:
                _log.exception("an answer failed")
                self._end(answer, "error", error)
            row += item.scored

    def _takes_best(self, answer: Answer) -> bool:
        """Whether of a step's scores the answer wants to know the best alone."""
        params = answer.request.params
        wants_more = params.prompt_logprobs is not None or answer.generated < params.min_tokens
        return answer.sampler.takes_best and not wants_more

    def _take(self, answer: Answer, item: Work, scores: Scores) -> None:
        """Takes the scores of a step: of tokens of the prompt, of the last token and of guesses behind it."""
        request = answer.request
        rows = list(scores)
        position = item.position + len(item.tokens) - len(rows)
        while rows and position < len(request.prompt) - 1:
            count = request.params.prompt_logprobs or 0
            request.prompt_logprobs.append(report(rows.pop(0), request.prompt[position + 1], count))
            position += 1
        if not rows:
            return
        accepted = 0
        draft = item.tokens[len(item.tokens) - item.drafted :]
        for row, guess in zip(rows, [*draft, None], strict=True):
            token = self._extend(answer, row)
            if token != guess:
                break
            accepted += 1
            if answer.state is State.FINISHED:
                break
            self._scheduler.accept(answer)
        if draft and answer.drafts is not None:
            answer.drafts.judge(len(draft), accepted)
            request.stats.drafted_tokens += len(draft)
            request.stats.accepted_tokens += accepted
            self._drafted += len(draft)
            self._accepted += accepted

    def _extend(self, answer: Answer, scores: Floats | tuple[int, float]) -> int:
        """Adds the next token to an answer, and ends it where it is its last."""
        request, params = answer.request, answer.request.params
        few = answer.generated < params.min_tokens
        if isinstance(scores, tuple):
            token, logprobs = answer.sampler.choose_best(*scores), None
        else:
            banned = [token for token in answer.ends if 0 <= token < self._vocab_size] if few else ()
            token, logprobs = answer.sampler.choose(scores, banned)
        answer.tokens.append(token)
        stats = request.stats
        if not stats.first_token:
            stats.first_token = time.monotonic()
        stats.output_tokens += 1
        self._output += 1
        reason = None
        text, stopped = "", False
        if token in answer.ends:
            reason = "stop"
        elif answer.text is not None:
            text, stopped = answer.text.add(token)
            stopped = stopped and not few
            if stopped:
                reason = "stop"
        guide = answer.sampler.guide
        if reason is None and guide is not None and guide.whole:
            reason = "stop"
        if reason is None and answer.generated >= request.max_tokens:
            reason = "length"
        if reason is not None:
            if answer.text is not None and not stopped:
                text += answer.text.finish()
            self._end(answer, reason, None, (token,), text, (logprobs,) if logprobs else ())
        else:
            self._deliver(request, Delta(answer.index, (token,), text, (logprobs,) if logprobs else ()))
        return token

    def _end(
        self,
        answer: Answer,
        reason: str,
        error: Exception | None = None,
        tokens: tuple[int, ...] = (),
        text: str = "",
        logprobs: tuple[Logprobs, ...] = (),
    ) -> None:
        if answer.state is State.FINISHED:
            return
        request = answer.request
        self._scheduler.finish(answer)
        answers = self._open[request.number]
        answers.remove(answer)
        request.open -= 1
        with self._lock:
            self._queued -= 1
        if not answers:
            del self._open[request.number]
            request.stats.finished = time.monotonic()
            self._preemptions += request.stats.preemptions
            self._finished += reason in ("stop", "length")
            self._failed += reason == "error"
            self._cancels += reason == "cancel"
        stop = answer.text.met if reason == "stop" and answer.text is not None else None
        self._deliver(request, Delta(answer.index, tokens, text, logprobs, reason, error, stop))

    def _deliver(self, request: Request, delta: Delta) -> None:
        try:
            request.deliver(delta)
        except Exception:
            _log.exception("what a request delivers to raised")
            self.cancel(request)

    def _count(self, step: Step, time_s: float) -> None:
        self._computed += step.tokens
        self._steps += 1
        self._step_s += time_s

    def _note(self, step: Step, time_s: float) -> None:
        """Learns how long steps take, so that prompts beside answers get as many tokens as these can bear."""
        self._count(step, time_s)
        tokens, decoding, drafted = step.tokens, step.decoding, step.drafted
        if drafted:
            alone_s = self._pace.alone_s(decoding)
            if alone_s and tokens == decoding + drafted:
                guess_s = max(time_s - alone_s, 0.0) / drafted
                self._draft_s += (guess_s - self._draft_s) * (_SMOOTHING if self._draft_s else 1.0)
                model_s = 0.0 if self._draft_model is None else self._draft_model.guess_s
                self._scheduler.draft_price = (self._draft_s + model_s) / alone_s
        elif tokens == decoding:
            self._pace.note_alone(decoding, time_s)
        elif decoding:
            self._pace.note_beside(decoding, tokens - decoding, time_s)

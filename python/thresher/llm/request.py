"""Requests, the sequences they consist of, and what is handed out of them."""

from __future__ import annotations

import dataclasses
import enum
import time
from collections.abc import Callable
from typing import Any

from thresher.llm.constraints import Guide
from thresher.llm.kv_cache import Held
from thresher.llm.sampling import Logprobs, Sampler, SamplingParams
from thresher.llm.speculation import Drafts


class State(enum.Enum):
    """Where a sequence is."""

    WAITING = "waiting"  # not begun, or to begin again
    RUNNING = "running"  # has pages
    FINISHED = "finished"


@dataclasses.dataclass(frozen=True, slots=True)
class Delta:
    """What a step added to an answer.

    Attributes:
      index: which of the request's answers.
      token_ids: the new tokens.
      text: the new text; empty without a tokenizer.
      logprobs: one a token, where they were asked for.
      finish_reason: "stop", "length", "cancel" or "error" in the last one of an answer, else None.
      error: what went wrong, where something did.
      stop: which of the request's stop texts ended the answer, where one did.
    """

    index: int
    token_ids: tuple[int, ...] = ()
    text: str = ""
    logprobs: tuple[Logprobs, ...] = ()
    finish_reason: str | None = None
    error: Exception | None = None
    stop: str | None = None


@dataclasses.dataclass(slots=True)
class RequestStats:
    """When things happened to a request, in seconds of time.monotonic(); 0: not yet."""

    arrived: float = 0.0
    started: float = 0.0
    first_token: float = 0.0
    finished: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    preemptions: int = 0
    drafted_tokens: int = 0  # guesses that were computed
    accepted_tokens: int = 0  # of those, that came true

    @property
    def queue_s(self) -> float:
        """Time in the queue."""
        return max(0.0, self.started - self.arrived)

    @property
    def ttft_s(self) -> float:
        """Time to the first token."""
        return max(0.0, self.first_token - self.arrived)

    @property
    def tokens_per_s(self) -> float:
        """Tokens a second behind the first one; 0 where there is none."""
        time_s = self.finished - self.first_token
        return (self.output_tokens - 1) / time_s if time_s > 0 and self.output_tokens > 1 else 0.0


class Sequence:
    """One answer while it is computed. Belongs to the engine's thread."""

    def __init__(self, request: Request, index: int, sampler: Sampler) -> None:
        self.request = request
        self.index = index
        self.sampler = sampler
        self.state = State.WAITING
        self.tokens = list(request.prompt)
        self.computed = 0  # of tokens: their keys and values are in the pages
        self.held = Held()
        self.text: Any = None  # turns tokens into text; None: nobody wants it
        self.drafts: Drafts | None = None
        self.ends: frozenset[int] = frozenset()  # tokens that end the answer

    @property
    def generated(self) -> int:
        """How many tokens the answer has."""
        return len(self.tokens) - len(self.request.prompt)

    @property
    def answering(self) -> bool:
        """Whether the next token to compute lies behind the prompt."""
        return self.computed >= len(self.request.prompt)

    @property
    def scores_from(self) -> int:
        """From which token on the scores behind it are wanted."""
        request = self.request
        known = len(request.prompt_logprobs)
        if self.index or request.params.prompt_logprobs is None or known == len(request.prompt) - 1:
            return len(self.tokens) - 1
        return known

    @property
    def order(self) -> tuple[int, int, int]:
        """Who goes first: the most urgent, then the oldest."""
        return (self.request.priority, self.request.number, self.index)


class Request:
    """A prompt and what is wanted of it."""

    def __init__(
        self,
        number: int,
        prompt: list[int],
        params: SamplingParams,
        max_tokens: int,
        deliver: Callable[[Delta], None],
        priority: int = 0,
    ) -> None:
        """Describes a request.

        Args:
          number: of the request, in order of arrival.
          prompt: its tokens.
          params: its options.
          max_tokens: how many tokens an answer may have in the end.
          deliver: gets what each step adds, on the engine's thread.
          priority: the lowest goes first.
        """
        self.number = number
        self.prompt = prompt
        self.params = params
        self.max_tokens = max_tokens
        self.deliver = deliver
        self.priority = priority
        self.stats = RequestStats(arrived=time.monotonic(), prompt_tokens=len(prompt))
        self.prompt_logprobs: list[Logprobs] = []  # one a token from the second on, where they were asked for
        self.guide: Guide | None = None  # of an answer that has not begun
        self.open = params.n  # answers that are not finished
        self.cancelled = False

"""How the next token is chosen."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from thresher.llm.constraints import Form, Guide

Floats = npt.NDArray[np.float32]
_MOST_LOGPROBS = 64
_GROUP = 64  # scores that are looked at as one first
_LEAST_TEMPERATURE = 1e-30  # below, a quotient of f32 overflows


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Options of one request.

    Attributes:
      max_tokens: how many tokens at most; None: as many as fit.
      min_tokens: so many come before anything ends the text.
      temperature: scores are divided by it; 0: always the most likely token.
      top_k: only so many of the most likely tokens; 0: all.
      top_p: only the most likely tokens that together have this probability.
      min_p: only tokens with at least this share of the most likely one's probability.
      repetition_penalty: scores of tokens of prompt and text are divided by it (multiplied, where below 0).
      presence_penalty: taken from the scores of tokens of the text.
      frequency_penalty: the same, as often as they are in it.
      logit_bias: added to the scores of tokens.
      seed: the same seed gives the same tokens, whatever else runs; None: a seed of its own.
      stop: texts that end the answer; they are not part of it.
      stop_token_ids: tokens that end it, beside those of the model.
      ignore_eos: the model's own do not.
      skip_special_tokens: special tokens, such as marks of turns, are no part of the text.
      logprobs: how many of the most likely tokens are reported with each token; None: nothing is, 0: the token itself.
      prompt_logprobs: the same with each token of the prompt from the second on; all of it is computed then.
      no_repeat_ngram_size: no run of so many tokens comes twice in prompt and text; 0: any may.
      regex, choice, json_schema, grammar: the form of the answer, at most one of them; see Form. An answer that
        max_tokens ends may be cut short.
      n: how many answers.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = dataclasses.field(default_factory=dict)
    seed: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    no_repeat_ngram_size: int = 0
    regex: str | None = None
    choice: Sequence[str] | None = None
    json_schema: Mapping[str, Any] | bool | str | None = None
    grammar: str | None = None
    n: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        _want("max_tokens", self.max_tokens, self.max_tokens is None or self.max_tokens >= 1, "1 or more, or None")
        _want("min_tokens", self.min_tokens, self.min_tokens >= 0, "0 or more")
        if self.max_tokens is not None:
            _want("min_tokens", self.min_tokens, self.min_tokens <= self.max_tokens, "at most max_tokens")
        _want("temperature", self.temperature, 0 <= self.temperature < math.inf, "0 or more")
        _want("top_k", self.top_k, self.top_k >= 0, "0 (all) or more")
        _want("top_p", self.top_p, 0 < self.top_p <= 1, "above 0 and at most 1")
        _want("min_p", self.min_p, 0 <= self.min_p <= 1, "0 to 1")
        _want("repetition_penalty", self.repetition_penalty, 0 < self.repetition_penalty < math.inf, "above 0")
        for name in ("presence_penalty", "frequency_penalty"):
            _want(name, getattr(self, name), math.isfinite(getattr(self, name)), "a finite number")
        _want("n", self.n, 1 <= self.n <= 128, "1 to 128")
        for name in ("logprobs", "prompt_logprobs"):
            count = getattr(self, name)
            _want(name, count, count is None or 0 <= count <= _MOST_LOGPROBS, f"0 to {_MOST_LOGPROBS}, or None")
        _want("no_repeat_ngram_size", self.no_repeat_ngram_size, self.no_repeat_ngram_size >= 0, "0 (any) or more")
        _want("stop", self.stop, all(isinstance(s, str) and s for s in self.stop), "texts that are not empty")
        for token, bias in self.logit_bias.items():
            _want("logit_bias", {token: bias}, isinstance(token, int) and not math.isnan(bias), "numbers of tokens")
        if self.form is not None:
            self.form.check()

    @property
    def form(self) -> Form | None:
        """What the answer has to keep to."""
        form = Form(self.regex, self.choice, self.json_schema, self.grammar)
        return None if form == Form() else form


def _want(name: str, value: object, holds: bool, wanted: str) -> None:
    if not holds:
        raise ValueError(f"{name}: expected {wanted}, got {value!r}")


@dataclasses.dataclass(frozen=True, slots=True)
class Logprobs:
    """Logarithms of probabilities where one token was chosen, before anything but the model has its say.

    Attributes:
      token_id: the token that was chosen.
      logprob: its own.
      top: (token, logprob) of the most likely ones, the likeliest first.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


class Sampler:
    """Chooses the tokens of one answer; its numbers depend on nothing but its seed and how often it was asked."""

    def __init__(
        self,
        params: SamplingParams,
        prompt: Sequence[int],
        vocab_size: int,
        index: int = 0,
        guide: Guide | None = None,
    ) -> None:
        """Prepares for one answer.

        Args:
          params: the request's options.
          prompt: its tokens.
          vocab_size: how many tokens there are.
          index: which of the n answers.
          guide: watches the form of this answer.

        Raises:
          ValueError: a token of logit_bias is not one of the model's.
        """
        self._params = params
        self._vocab_size = vocab_size
        self.guide = guide
        for token in params.logit_bias:
            _want("logit_bias", token, 0 <= token < vocab_size, f"tokens from 0 to {vocab_size - 1}")
        entropy = None if params.seed is None else [params.seed & (2**64 - 1), index]
        self._random = np.random.Generator(np.random.Philox(np.random.SeedSequence(entropy)))
        self._bias_at = np.fromiter(params.logit_bias.keys(), np.int64, len(params.logit_bias))
        self._bias = np.fromiter(params.logit_bias.values(), np.float32, len(params.logit_bias))
        self._seen: npt.NDArray[np.bool_] | None = None
        if params.repetition_penalty != 1.0:
            self._seen = np.zeros(vocab_size, np.bool_)
            self._seen[np.asarray(prompt, np.int64)] = True
        self._counts: Floats | None = None
        if params.presence_penalty or params.frequency_penalty:
            self._counts = np.zeros(vocab_size, np.float32)
        self._plain = not (params.logit_bias or self._seen is not None or self._counts is not None)
        self._repeats: _Repeats | None = None
        if params.no_repeat_ngram_size:
            self._repeats = _Repeats(params.no_repeat_ngram_size, prompt)

    @property
    def takes_best(self) -> bool:
        """Whether it always takes the token with the highest score, and nobody wants to know of others."""
        params = self._params
        plain = self._plain and self._repeats is None and self.guide is None
        return plain and params.temperature == 0 and params.logprobs is None

    def choose_best(self, token: int, score: float) -> int:
        """The next token where takes_best holds, which is the one with the highest score.

        Raises:
          ValueError: the score is no number.
        """
        if not math.isfinite(score):
            raise ValueError(f"expected finite scores, got {score}; the model computed nothing to choose by")
        return token

    def choose(self, logits: Floats, banned: Sequence[int] = ()) -> tuple[int, Logprobs | None]:
        """The next token.

        Args:
          logits: the model's scores, f32 [vocabulary]; they may be overwritten.
          banned: tokens that must not be chosen now.

        Raises:
          ValueError: the scores hold no number to choose by.
        """
        params = self._params
        logprobs = None if params.logprobs is None else logits - _log_sum_exp(logits)
        if not self._plain:
            self._adjust(logits)
        if self._repeats is not None:
            banned = [*banned, *self._repeats.banned()]
        if len(banned):
            logits[list(banned)] = -np.inf
        if self.guide is not None:
            self.guide.forbid(logits)
        token = int(logits.argmax()) if params.temperature == 0 else self._draw(logits)
        self.choose_best(token, float(logits[token]))
        if self.guide is not None:
            self.guide.take(token)
        if self._seen is not None:
            self._seen[token] = True
        if self._counts is not None:
            self._counts[token] += 1
        if self._repeats is not None:
            self._repeats.add(token)
        return token, None if logprobs is None else _report(logprobs, token, params.logprobs or 0)

    def _adjust(self, logits: Floats) -> None:
        params = self._params
        if self._seen is not None:
            own = logits[self._seen]
            penalty = np.float32(params.repetition_penalty)
            logits[self._seen] = np.where(own > 0, own / penalty, own * penalty)
        if self._counts is not None:
            logits -= self._counts * np.float32(params.frequency_penalty)
            logits -= (self._counts > 0) * np.float32(params.presence_penalty)
        if len(self._bias_at):
            logits[self._bias_at] += self._bias

    def _draw(self, logits: Floats) -> int:
        params = self._params
        position = self._random.random()  # one number a token, whatever happens to it
        most = logits.max()
        if not math.isfinite(most):
            raise ValueError(f"expected finite scores, got {most}; the model computed nothing to choose by")
        order: npt.NDArray[np.int64] | None = None
        weights = logits
        if params.top_k and params.top_k < self._vocab_size:
            order = _largest(logits, params.top_k)
            weights = logits[order]
        weights -= most
        weights /= np.float32(max(params.temperature, _LEAST_TEMPERATURE))
        np.exp(weights, out=weights)
        least = np.float32(params.min_p)  # of weights: the largest is 1
        if params.top_p < 1:
            counted = weights if not params.min_p else weights[weights >= least]
            whole = float(counted.sum(dtype=np.float64))
            # All below this are together less than what top_p leaves out, so that few are left to sort.
            below = np.float32((1 - params.top_p) * whole / len(weights))
            ranked = np.sort(counted[counted >= below])[::-1]
            count = int(np.searchsorted(np.cumsum(ranked, dtype=np.float64), params.top_p * whole)) + 1
            kept = _first_of_largest(weights, ranked[min(count, len(ranked)) - 1], count)
        elif params.min_p > 0:
            kept = np.flatnonzero(weights >= least)
        else:
            kept = None
        if kept is not None:
            order = kept if order is None else order[kept]
            weights = weights[kept]
        chosen = _at(weights, position)
        return chosen if order is None else int(order[chosen])


def _largest(scores: Floats, count: int) -> npt.NDArray[np.int64]:
    """Where the `count` largest scores are, in order; of equals the first ones."""
    groups = len(scores) // _GROUP
    candidates = scores
    if groups >= 2 * count:
        # As many groups have a largest score of at least this, so that nothing below it is among the largest.
        heads = scores[: groups * _GROUP].reshape(groups, _GROUP).max(axis=1)
        candidates = scores[scores >= np.partition(heads, -count)[-count]]
    return _first_of_largest(scores, np.partition(candidates, -count)[-count], count)


def _first_of_largest(values: Floats, least: np.float32, count: int) -> npt.NDArray[np.int64]:
    """Where `count` values are, in order: all above the least of them, and the first of those that equal it."""
    kept = np.flatnonzero(values >= least)
    if len(kept) > count:
        equal = np.flatnonzero(values[kept] == least)
        kept = np.delete(kept, equal[len(equal) - (len(kept) - count) :])
    return kept


def _at(weights: Floats, position: float) -> int:
    """Which weight stands at a share of the sum of all; never one that is 0."""
    groups = -(-len(weights) // _GROUP)
    padded = weights
    if len(weights) % _GROUP:
        padded = np.zeros(groups * _GROUP, np.float32)
        padded[: len(weights)] = weights
    rows = padded.reshape(groups, _GROUP)
    ends = np.cumsum(rows.sum(axis=1), dtype=np.float64)
    target = position * ends[-1]
    group = min(int(np.searchsorted(ends, target, side="right")), groups - 1)
    while not rows[group].any():
        group -= 1
    sums = np.cumsum(rows[group], dtype=np.float64)
    chosen = int(np.searchsorted(sums, target - (ends[group - 1] if group else 0.0), side="right"))
    return group * _GROUP + min(chosen, int(np.flatnonzero(rows[group])[-1]))


class _Repeats:
    """Which tokens would make a run of `size` tokens come a second time."""

    def __init__(self, size: int, tokens: Sequence[int]) -> None:
        self._size = size
        self._last: tuple[int, ...] = ()
        self._next: dict[tuple[int, ...], list[int]] = {}
        for token in tokens:
            self.add(token)

    def add(self, token: int) -> None:
        if len(self._last) == self._size - 1:
            self._next.setdefault(self._last, []).append(token)
        self._last = (*self._last, token)[-(self._size - 1) :] if self._size > 1 else ()

    def banned(self) -> Sequence[int]:
        return self._next.get(self._last, ()) if len(self._last) == self._size - 1 else ()


def report(logits: Floats, token: int, count: int) -> Logprobs:
    """The logarithms of probabilities behind scores: of `token`, and of the `count` most likely ones."""
    return _report(logits - _log_sum_exp(logits), token, count)


def _log_sum_exp(logits: Floats) -> np.float32:
    most = logits.max()
    return np.float32(most + np.log(np.exp((logits - most).astype(np.float64)).sum()))


def _report(logprobs: Floats, token: int, count: int) -> Logprobs:
    top: list[tuple[int, float]] = []
    if count:
        likely = np.argpartition(logprobs, -count)[-count:]
        likely = likely[np.lexsort((likely, -logprobs[likely]))]
        top = [(int(i), float(logprobs[i])) for i in likely]
    return Logprobs(token, float(logprobs[token]), tuple(top))

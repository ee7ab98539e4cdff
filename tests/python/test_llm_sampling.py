"""Choosing tokens: against a sampler that sorts everything, and by how often each token comes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thresher.llm.sampling import Sampler, SamplingParams


def _allowed(logits, params):
    """Probabilities of tokens after top_k, min_p and top_p in that order, by whole sorts in float64."""
    order = np.argsort(-logits, kind="stable")
    kept = order[: params.top_k] if params.top_k else order
    weights = np.exp((logits[kept].astype(np.float64) - logits.max()) / params.temperature)
    inside = weights >= params.min_p
    kept, weights = kept[inside], weights[inside]
    if params.top_p < 1:
        sums = np.cumsum(weights)
        count = int(np.searchsorted(sums, params.top_p * sums[-1])) + 1
        kept, weights = kept[:count], weights[:count]
    allowed = np.zeros(len(logits))
    allowed[kept] = weights / weights.sum()
    return allowed


@settings(max_examples=150, deadline=None)
@given(
    size=st.sampled_from([1, 2, 63, 64, 65, 1000, 5003]),
    spread=st.sampled_from([0.0, 0.5, 3.0, 20.0]),
    top_k=st.sampled_from([0, 1, 3, 40]),
    top_p=st.sampled_from([1.0, 0.999, 0.7, 0.01]),
    min_p=st.sampled_from([0.0, 0.1, 1.0]),
    temperature=st.sampled_from([0.3, 1.0, 2.0]),
    seed=st.integers(0, 2**32),
)
def test_tokens_are_those_of_a_sampler_that_sorts(size, spread, top_k, top_p, min_p, temperature, seed):
    random = np.random.default_rng(seed)
    logits = (spread * random.standard_normal(size)).round(2).astype(np.float32)  # with equals among them
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
    allowed = _allowed(logits, params)
    # What stands at the very edge of top_p may fall on either side.
    edges = [_allowed(logits, _with_top_p(params, top_p * factor)) for factor in (1 - 1e-5, 1 + 1e-5)]
    sampler = Sampler(params, [0], size)
    for _ in range(5):
        token, _ = sampler.choose(logits.copy())
        assert any(each[token] > 0 for each in (allowed, *edges))


def _with_top_p(params, top_p):
    names = ("temperature", "top_k", "min_p", "seed")
    return SamplingParams(top_p=min(top_p, 1.0), **{name: getattr(params, name) for name in names})


@pytest.mark.parametrize("options", [{}, {"top_k": 5}, {"top_p": 0.8}, {"min_p": 0.2}, {"top_k": 7, "top_p": 0.9}])
def test_each_token_comes_as_often_as_its_probability_says(options):
    logits = np.random.default_rng(3).standard_normal(200).astype(np.float32) * 2
    params = SamplingParams(temperature=0.9, seed=11, **options)
    sampler = Sampler(params, [0], len(logits))
    draws = 4000
    counts = np.bincount([sampler.choose(logits.copy())[0] for _ in range(draws)], minlength=len(logits))
    allowed = _allowed(logits, params)
    assert not counts[allowed == 0].any()
    errors = np.abs(counts / draws - allowed)
    assert (errors <= 5 * np.sqrt(allowed / draws) + 1e-3).all()


def test_the_last_tokens_of_all_can_be_drawn():
    logits = np.full(130, -math.inf, np.float32)
    logits[[0, 129]] = 0
    sampler = Sampler(SamplingParams(seed=0), [0], len(logits))
    assert {sampler.choose(logits.copy())[0] for _ in range(50)} == {0, 129}


def test_a_temperature_next_to_nothing_takes_the_most_likely():
    logits = np.array([1.0, 3.0, 3.0, 2.0], np.float32)
    sampler = Sampler(SamplingParams(temperature=1e-320, seed=0), [0], 4)
    assert {sampler.choose(logits.copy())[0] for _ in range(20)} == {1, 2}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("options", [{}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.5}, {"temperature": 0.0}])
def test_scores_that_are_not_numbers_are_refused(bad, options):
    logits = np.full(100, bad, np.float32)
    sampler = Sampler(SamplingParams(seed=0, **{"temperature": 1.0, **options}), [0], 100)
    with pytest.raises(ValueError, match="finite"):
        sampler.choose(logits)

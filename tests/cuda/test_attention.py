"""Attention of devices against numpy in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest


def _random(shape: Any, seed: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _attention(q: Any, k: Any, v: Any, mask: Any, *, causal: bool) -> Any:
    group = q.shape[1] // k.shape[1]
    k, v = (np.repeat(x.astype(np.float64), group, 1) for x in (k, v))
    scores = q.astype(np.float64) @ np.swapaxes(k, 2, 3) / math.sqrt(q.shape[3])
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == np.bool_ else scores + mask
    if causal:
        scores = np.where(np.tri(*scores.shape[2:], dtype=bool), scores, -np.inf)
    most = scores.max(3, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - np.where(np.isfinite(most), most, 0))
    total = weights.sum(3, keepdims=True)
    return weights / np.where(total == 0, 1, total) @ v


def _check(lab: Any, q: Any, k: Any, v: Any, mask: Any = None, *, causal: bool = False) -> None:
    (found,) = lab.node("sdpa", q, k, v, mask, scale=1 / math.sqrt(q.shape[3]), causal=causal)
    wanted = _attention(q, k, v, mask, causal=causal)
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max(initial=0) <= 5e-6


def _operands(batch: int, heads: int, kv_heads: int, queries: int, keys: int, depth: int) -> list[Any]:
    return [
        _random((batch, heads, queries, depth), 1),
        _random((batch, kv_heads, keys, depth), 2),
        _random((batch, kv_heads, keys, depth), 3),
    ]


@pytest.mark.parametrize("depth", [1, 8, 31, 32, 64, 80, 128, 256])
def test_heads_of_every_width(lab: Any, depth: int) -> None:
    _check(lab, *_operands(2, 3, 3, 19, 70, depth))


@pytest.mark.parametrize("length", [1, 16, 17, 63, 64, 65, 130])
@pytest.mark.parametrize("causal", [False, True])
def test_lengths_around_a_tile(lab: Any, length: int, causal: bool) -> None:
    _check(lab, *_operands(1, 2, 2, length, length, 32), causal=causal)
    _check(lab, *_operands(1, 4, 2, 5, length, 32), causal=causal)


def test_few_queries_and_many_keys(lab: Any) -> None:
    _check(lab, *_operands(1, 4, 2, 1, 3001, 64))


@pytest.mark.parametrize("shape", [(2, 4, 19, 70), (1, 1, 19, 70), (2, 1, 1, 70), (1, 4, 19, 1), (1, 1, 1, 1)])
def test_masks(lab: Any, shape: tuple[int, ...]) -> None:
    operands = _operands(2, 4, 2, 19, 70, 32)
    mask = _random(shape, 4)
    _check(lab, *operands, mask)
    _check(lab, *operands, mask > -1)


def test_rows_that_see_nothing_are_zero(lab: Any) -> None:
    operands = _operands(1, 2, 2, 5, 40, 32)
    mask = np.ones((5, 40), np.bool_)
    mask[2] = False
    _check(lab, *operands, mask)
    _check(lab, *operands, np.where(mask, 0, -np.inf).astype(np.float32))
    _check(lab, *_operands(1, 2, 2, 5, 0, 32))

"""Kernels of devices that move, make, choose and reduce elements of every type, against numpy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

_NAMES = {"float32": "f32", "int64": "i64", "int32": "i32", "bool": "bool", "float16": "f16"}
_TYPES = (np.float32, np.int64, np.int32, np.bool_, np.float16)


def _some(shape: Any, dtype: Any, seed: int = 0) -> Any:
    numbers = np.random.default_rng(seed).integers(-40, 40, shape)
    return (numbers > 0) if dtype is np.bool_ else numbers.astype(dtype)


def _run(lab: Any, build: Callable[[Any, list[int]], Sequence[int]], arrays: list[Any], likes: list[Any]) -> list[Any]:
    """What a graph over these arrays gives, in arrays like `likes`."""

    def make(graph: Any) -> Sequence[int]:
        return build(graph, [graph.input("x", _NAMES[array.dtype.name], array.shape) for array in arrays])

    plan = lab.plan(make)
    inputs = [lab.put(np.ascontiguousarray(array)) for array in arrays]
    outputs = [lab.device.empty(max(like.nbytes, 1)) for like in likes]
    plan.launch(lab.stream, inputs, outputs)
    return [
        lab.get(buffer, np.zeros(like.nbytes, np.bool_)).view(like.dtype).reshape(like.shape)
        for buffer, like in zip(outputs, likes, strict=True)
    ]


def _check(lab: Any, op: str, arrays: list[Any], wanted: Any, **attrs: Any) -> None:
    (found,) = _run(lab, lambda graph, inputs: graph.add(op, inputs, attrs), arrays, [wanted])
    assert np.array_equal(found, wanted), op


@pytest.mark.parametrize("dtype", _TYPES)
def test_moving(lab: Any, dtype: Any) -> None:
    for width in (1, 5, 48):
        x, y = _some((7, 6, width), dtype), _some((7, 2, width), dtype, 1)
        rows, columns = np.array([3, 0, 6, 3]), np.array([[5], [1]], np.int32)
        table = x.reshape(42, width)
        _check(lab, "embedding", [table, columns], table[columns])
        _check(lab, "index", [x, rows, columns], x[rows, columns])
        _check(lab, "cat", [x, y, x], np.concatenate([x, y, x], 1), dim=1)
        picked = np.random.default_rng(2).integers(0, 6, (7, 9, width))
        _check(lab, "gather", [x, picked], np.take_along_axis(x, picked, 1), dim=1)
        condition = _some(x.shape, np.bool_, 3)
        _check(lab, "where", [condition, x, x[:1]], np.where(condition, x, x[:1]))
        found = _run(
            lab,
            lambda g, i: g.add("slice", g.add("permute", i, {"dims": [2, 0, 1]}), {"start": 0}),
            [x],
            [np.ascontiguousarray(x.transpose(2, 0, 1))],
        )
        assert np.array_equal(found[0], x.transpose(2, 0, 1))


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.int32])
def test_index_put(lab: Any, dtype: Any) -> None:
    x, rows = _some((9, 33), dtype), np.array([4, 1, 4, -1, 1])
    values = _some((5, 33), dtype, 1)
    for accumulate in (False, True):
        wanted = x.copy()
        for row, value in zip(rows, values, strict=True):
            wanted[row] = wanted[row] + value if accumulate else value
        _check(lab, "index_put", [x, values, rows], wanted, accumulate=accumulate)


@pytest.mark.parametrize("dtype", _TYPES)
def test_making_and_casting(lab: Any, dtype: Any) -> None:
    name = _NAMES[np.dtype(dtype).name]
    value = 1.0 if dtype is np.bool_ else 7.0
    found = _run(
        lab,
        lambda g, _: g.add("full", [], {"shape": [3, 171], "value": value, "dtype": name}),
        [],
        [np.zeros((3, 171), dtype)],
    )
    assert (found[0] == dtype(value)).all()
    for other in _TYPES:
        x = _some((40, 64), other)
        _check(lab, "cast", [x], x.astype(dtype), dtype=name)
    if dtype is not np.bool_:
        found = _run(
            lab,
            lambda g, _: g.add("arange", [], {"start": 3.0, "end": 503.0, "dtype": name}),
            [],
            [np.zeros(500, dtype)],
        )
        assert np.array_equal(found[0], np.arange(3, 503).astype(dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.int32])
def test_reducing(lab: Any, dtype: Any) -> None:
    long = 17000 if dtype is np.float32 else 3000  # sums of the first are made in two parts
    for shape in ((5, 64), (3, 40, 33), (2, long)):
        x = _some(shape, dtype)
        for dim in range(len(shape)):
            _check(lab, "sum", [x], x.sum(dim).astype(dtype), dims=[dim])  # of small integers: exact
            _check(lab, "amax", [x], x.max(dim), dims=[dim])
            _check(lab, "amin", [x], x.min(dim), dims=[dim])
            _check(lab, "argmax", [x], x.argmax(dim), dim=dim)
            _check(lab, "cumsum", [x], x.cumsum(dim).astype(dtype), dim=dim)
        _check(lab, "sum", [x], np.asarray(x.sum(), dtype))
    truth = _some((6, 70), np.bool_)
    _check(lab, "amax", [truth], truth.any(1), dims=[1])
    _check(lab, "amin", [truth], truth.all(1), dims=[1])


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.int32, np.bool_])
def test_sorting(lab: Any, dtype: Any) -> None:
    x = _some((4, 70, 3), dtype)
    for dim in range(3):
        wanted = [np.sort(x, dim, kind="stable"), np.argsort(x, dim, kind="stable")]
        found = _run(lab, lambda g, i, dim=dim: g.add("sort", i, {"dim": dim}), [x], wanted)
        assert all(np.array_equal(one, other) for one, other in zip(found, wanted, strict=True))


@pytest.mark.parametrize("dtype", [np.int64, np.int32])
def test_arithmetic_of_integers(lab: Any, dtype: Any) -> None:
    a, b = _some((30, 64), dtype), _some((30, 64), dtype, 1)
    for op, function in {
        "add": np.add,
        "mul": np.multiply,
        "maximum": np.maximum,
        "bitwise_xor": np.bitwise_xor,
    }.items():
        _check(lab, op, [a, b], function(a, b))
    for op, function in {"lt": np.less, "ne": np.not_equal, "logical_and": np.logical_and}.items():
        _check(lab, op, [a, b], function(a, b))
    b[b == 0] = 3
    _check(lab, "floor_divide", [a, b], np.floor_divide(a, b))
    _check(lab, "remainder", [a, b], np.remainder(a, b))


def test_wrong_indices_are_told_and_hurt_nobody_else(lab: Any) -> None:
    table, good = _some((5, 8), np.float32), np.array([1, 2])
    with pytest.raises(IndexError, match=r"embedding: index 5 at position 1 is outside \[0, 5\)"):
        _check(lab, "embedding", [table, np.array([0, 5])], table[[0, 0]])
    _check(lab, "embedding", [table, good], table[good])


def test_steps_read_what_those_before_them_wrote(lab: Any) -> None:
    """On devices where a kernel takes its place before the one before it has ended."""
    size, rounds = (2048 if lab.is_real else 16), 20
    x = np.random.default_rng(0).integers(-8, 9, (size, size)).astype(np.float32)

    def build(graph: Any, inputs: list[int]) -> Sequence[int]:
        (value,) = inputs
        for _ in range(rounds):
            # Blocks of the second read what all blocks of the first have written.
            (value,) = graph.add("pointwise", [value, inputs[0]], {"program": "s0=mul(in0,0.5); s1=add(s0,in1)"})
            (value,) = graph.add("cumsum", graph.add("permute", [value], {"dims": [1, 0]}), {"dim": 1})
            (value,) = graph.add("pointwise", [value], {"program": "s0=tanh(in0)"})
        return [value]

    wanted = x.astype(np.float64)
    for _ in range(rounds):
        wanted = np.tanh(np.cumsum((wanted * 0.5 + x).T, 1))
    for _ in range(10 if lab.is_real else 1):
        (found,) = _run(lab, build, [x], [x])
        np.testing.assert_allclose(found, wanted, atol=2e-3)

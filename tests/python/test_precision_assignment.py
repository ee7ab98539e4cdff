"""The precision of products, as the engine's plans report it."""

from __future__ import annotations

import numpy as np
import pytest

from thresher import _engine


def build(**settings: object) -> _engine.Plan:
    rng = np.random.default_rng(0)
    graph = _engine.Graph()
    x = graph.input("x", "f32", [2, 64])
    for name in ("layer.0.fc", "layer.1.fc"):
        weight = graph.constant(name, rng.standard_normal((64, 64), dtype=np.float32), True)
        (x,) = graph.add("linear", [x, weight], {"layout": "nk"}, "model.py:3 in forward", name)
    graph.set_outputs([x])
    return _engine.Plan.build(graph, _engine.WeightStore(), **settings)  # type: ignore[arg-type]


def test_fp32_decides_nothing() -> None:
    assert build().precision_decisions() == []


def test_decisions_say_what_and_why() -> None:
    first, second = build(precision="int8_weight", exclude=["layer.1"]).precision_decisions()
    error = first.pop("weight_error")
    assert isinstance(error, float) and 0.001 < error < 0.02
    assert first == {
        "module": "layer.0.fc",
        "source": "model.py:3 in forward",
        "op": "linear",
        "k": 64,
        "n": 64,
        "precision": "int8_weight",
        "reason": "asked for",
    }
    assert (second["precision"], second["weight_error"]) == ("fp32", None)
    assert second["reason"] == 'excluded by "layer.1"'


def test_a_limit_on_the_error() -> None:
    decisions = build(precision="int4_weight", max_weight_error=0.01).precision_decisions()
    assert [decision["precision"] for decision in decisions] == ["fp32", "fp32"]


def test_unknown_precision() -> None:
    with pytest.raises(ValueError, match=r"expected a precision of model fp32 bf16 .*got 'int3'"):
        build(precision="int3")

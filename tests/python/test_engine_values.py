"""What passes between Python and the engine: tensors, attributes, settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

_engine = pytest.importorskip("thresher._engine")


def relu(shape: tuple[int, ...] = (2, 3)) -> Any:
    graph = _engine.Graph()
    graph.set_outputs(graph.add("relu", [graph.input("x", "f32", list(shape))]))
    return graph


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.int32, np.bool_])
def test_constants_of_every_type_come_back(dtype: Any) -> None:
    array = np.array([[0, 1, 2], [3, 0, 5]]).astype(dtype)
    graph = _engine.Graph()
    contents = graph.contents(graph.constant("c", array))
    assert contents.dtype == dtype
    assert np.array_equal(contents, array)


def test_an_attribute_of_no_known_type_is_named() -> None:
    graph = _engine.Graph()
    x = graph.input("x", "f32", [2])
    with pytest.raises(TypeError, match="attribute 'dim': expected bool, int, float, str or a list of ints"):
        graph.add("softmax", [x], {"dim": {}})


def test_a_plan_says_what_it_takes_and_gives() -> None:
    plan = _engine.Plan.build(relu(), _engine.WeightStore())
    assert plan.inputs == [("x", "f32", (2, 3))]
    assert plan.outputs == [("f32", (2, 3))]


def test_tensors_of_too_many_dimensions_are_refused() -> None:
    plan = _engine.Plan.build(relu(), _engine.WeightStore())
    deep = np.zeros((1,) * 9, np.float32)
    with pytest.raises(ValueError, match="expected a tensor of at most 8 dimensions, got 9"):
        plan.run([deep], [np.zeros((2, 3), np.float32)])


def test_a_model_is_asked_for_shapes_that_it_has(tmp_path: Path) -> None:
    path = str(tmp_path / "model.thrmodel")
    _engine.write_model(path, "model", [(relu(), ["y"])])
    model = _engine.Model.load(path)
    assert model.inputs() == [("x", "f32", (2, 3))]
    for ask in (model.inputs, model.outputs, model.plan):
        with pytest.raises(IndexError, match="the model has 1 combinations of shapes"):
            ask(1)


def test_settings_are_read_by_their_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THRESHER_NUM_THREADS", "3")
    monkeypatch.setenv("THRESHER_PROFILE", "on")
    monkeypatch.setenv("THRESHER_LOG", "debug")
    assert _engine.env_value("THRESHER_NUM_THREADS") == 3
    assert _engine.env_value("THRESHER_PROFILE") is True
    assert _engine.env_value("THRESHER_LOG") == "debug"
    with pytest.raises(ValueError, match="THRESHER_THREADS: expected a variable that env_vars"):
        _engine.env_value("THRESHER_THREADS")

"""Passes of the user's: they run at their place, and what they do wrong is said in words that help."""

from __future__ import annotations

import doctest
from typing import Any

import numpy as np
import pytest

pytest.importorskip("thresher._engine")

import thresher
from thresher import _engine, passes
from thresher.passes import Graph, Node, Pass, Rewriter

GELU = """graph 1
input %x : f32[2, 4]
const %c : f32[] = [2]
%a = mul(%x, %c)
%y = gelu(%a) @ "m.py:3" in "act"
return %y
"""


def run(graph: Graph, *extra: Any, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    plan = _engine.Plan.build(graph, _engine.WeightStore(), passes=list(extra))
    out = np.empty(plan.outputs[0][1], np.float32)
    plan.run([x], [out])
    return out


def use_tanh(new: Rewriter, node: Node, inputs: list[int | None]) -> int | None:
    return new.add("gelu_tanh", inputs, of=node) if node.op == "gelu" else None


def test_the_example_of_the_documentation() -> None:
    failed, tried = doctest.testmod(passes)
    assert tried >= 5 and failed == 0


def test_what_a_pass_can_ask_of_a_graph() -> None:
    graph = Graph.parse(GELU)
    (x,), (y,) = graph.inputs, graph.outputs
    assert (graph.name(x), graph.dtype(x), graph.shape(x)) == ("x", "f32", (2, 4))
    mul, gelu = passes.nodes(graph)
    assert (gelu.op, gelu.inputs, gelu.outputs, gelu.attrs, gelu.source, gelu.module) == (
        "gelu",
        mul.outputs,
        (y,),
        {},
        "m.py:3",
        "act",
    )
    constant = mul.inputs[1]
    assert constant is not None and graph.is_constant(constant) and not graph.is_weight(constant)
    assert graph.contents(constant).tolist() == 2.0
    with pytest.raises(ValueError, match="expected a constant"):
        graph.contents(y)
    with pytest.raises(ValueError, match="expected a constant"):
        Graph().adopt(graph, y)
    with pytest.raises(IndexError):
        graph.name(99)
    copied = graph.copy()
    copied.set_outputs([mul.outputs[0]])
    assert copied.outputs != graph.outputs


def test_absent_operands_and_several_results_survive_a_copy() -> None:
    head = "graph 1\ninput %x : f32[2, 4]\ninput %w : f32[3, 4]\n"
    graph = Graph.parse(head + '%y = linear(%x, %w, _, _) {activation = "relu"}\nreturn %y, %y\n')
    assert next(passes.nodes(graph)).inputs[2:] == (None, None, None)
    assert passes.rewrite(graph, lambda new, node, inputs: None).text() == graph.text()


def test_constants_are_carried_over_without_a_copy() -> None:
    weight = np.arange(12, dtype=np.float32).reshape(3, 4)
    graph = Graph()
    x = graph.input("x", "f32", [2, 4])
    w = graph.constant("w", weight, True)
    graph.set_outputs(graph.add("linear", [x, w]))
    new = passes.rewrite(graph, lambda new, node, inputs: None)
    (node,) = passes.nodes(new)
    carried = node.inputs[1]
    assert carried is not None and new.is_weight(carried)
    contents = new.contents(carried)
    assert np.shares_memory(contents, weight) and not contents.flags.writeable
    del graph, new
    assert contents.tolist() == weight.tolist()


def test_plan_runs_functions_among_its_passes() -> None:
    x = np.linspace(-3, 3, 8, dtype=np.float32).reshape(2, 4)
    seen: list[str] = []
    fast = passes.rewriting(use_tanh)
    plan = _engine.Plan.build(
        Graph.parse(GELU),
        _engine.WeightStore(),
        passes=["dead_code", ("fast", fast), "dead_code"],
        dump=lambda name, text: seen.append(f"{name}: {text.count('gelu_tanh')}"),
    )
    assert seen == ["input: 0", "value_widening: 0", "dead_code: 0", "fast: 1", "dead_code: 1"]
    assert [step["name"] for step in plan.steps()] == ["mul", "gelu_tanh"]
    a = 2 * x.astype(np.float64)
    want = 0.5 * a * (1 + np.tanh(np.sqrt(2 / np.pi) * (a + 0.044715 * a**3)))
    np.testing.assert_allclose(run(Graph.parse(GELU), ("fast", fast), x=x), want, atol=1e-6)


def no_outputs(graph: Graph) -> Graph:
    graph.set_outputs([])
    return graph


def other_shape(graph: Graph) -> Graph:
    graph.set_outputs(graph.add("reshape", [graph.outputs[0]], {"shape": [8]}))
    return graph


def other_type(graph: Graph) -> Graph:
    graph.set_outputs(graph.add("cast", [graph.outputs[0]], {"dtype": "i64"}))
    return graph


def more_inputs(graph: Graph) -> Graph:
    graph.input("z", "f32", [1])
    return graph


WRONG = [
    (no_outputs, "expected 1 outputs, got 0; a pass keeps"),
    (other_shape, r"expected number 0 of the outputs as f32\[2, 4\], got f32\[8\]"),
    (other_type, r"expected number 0 of the outputs as f32\[2, 4\], got i64\[2, 4\]"),
    (more_inputs, "expected 1 inputs, got 2"),
]


@pytest.mark.parametrize(("function", "message"), WRONG, ids=lambda value: getattr(value, "__name__", ""))
def test_a_result_that_cannot_stand_for_the_graph(function: Any, message: str) -> None:
    with pytest.raises(ValueError, match="pass wrong: " + message):
        run(Graph.parse(GELU), ("wrong", function), x=np.zeros((2, 4), np.float32))


def test_a_result_that_is_no_graph() -> None:
    with pytest.raises(TypeError, match="pass none: expected a Graph as its result, got NoneType"):
        run(Graph.parse(GELU), ("none", lambda graph: None), x=np.zeros((2, 4), np.float32))


def test_what_a_pass_leaves_dead_is_dropped() -> None:
    def leave(graph: Graph) -> Graph:
        graph.add("neg", [graph.inputs[0]])
        return graph

    plan = _engine.Plan.build(Graph.parse(GELU), _engine.WeightStore(), passes=[("leave", leave)])
    assert [step["name"] for step in plan.steps()] == ["mul", "gelu"]


def test_rules_are_checked() -> None:
    graph = Graph.parse(GELU)
    with pytest.raises(ValueError, match="gave 2 results for mul, expected 1"):
        passes.rewrite(graph, lambda new, node, inputs: (0, 0))
    with pytest.raises(ValueError, match=r"gave f32\[8\] for mul, expected f32\[2, 4\]"):
        passes.rewrite(graph, lambda new, node, inputs: new.add("reshape", [inputs[0]], {"shape": [8]}))
    with pytest.raises(ValueError, match="unknown attribute"):
        passes.rewrite(graph, lambda new, node, inputs: new.add("neg", [inputs[0]], {"shape": [8]}))


def test_names_and_places_of_passes() -> None:
    with pytest.raises(ValueError, match="letters, digits"):
        Pass("my pass", no_outputs)
    with pytest.raises(TypeError, match="expected a function"):
        Pass("mine", 3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="for after"):
        Pass("mine", no_outputs, after=3)  # type: ignore[arg-type]
    assert thresher.Pass is Pass and Pass.of(no_outputs).name == "no_outputs"


# ---- in a compilation ----


def test_order_in_a_configuration(compiler: Any) -> None:
    def first(graph: Graph) -> Graph:
        return graph

    def last(graph: Graph) -> Graph:
        return graph

    extra = (
        Pass("second", first, after="input"),
        last,
        Pass("third", first, after="input"),
        Pass("behind", first, after="dead_code"),
        Pass("own", first, after="behind"),
        "dead_code",
    )
    names = compiler.CompilerConfig(optimization_level="O1", extra_passes=extra).pass_names()
    assert names == [
        *("second", "third", "value_widening", "dead_code", "behind", "own", "constant_folding", "last", "dead_code")
    ]


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ((lambda graph: graph,), "letters, digits"),
        ((Pass("dead_code", no_outputs),), "uses already"),
        ((Pass("input", no_outputs),), "uses already"),
        ((no_outputs, no_outputs), "got 2"),
        ((Pass("mine", no_outputs, after="dead_cod"),), "did you mean 'dead_code'"),
        ((3,), "expected a tuple of pass names, functions"),
    ],
    ids=lambda value: "" if isinstance(value, tuple) else value,
)
def test_passes_that_a_configuration_refuses(compiler: Any, extra: Any, message: str) -> None:
    with pytest.raises(compiler.ConfigError, match=message):
        compiler.CompilerConfig(extra_passes=extra)


def test_a_place_that_these_settings_leave_out(compiler: Any) -> None:
    with pytest.raises(compiler.ConfigError, match="wants to run after 'epilogue_fusion', got no such pass"):
        compiler.CompilerConfig(fusion=False, extra_passes=(Pass("mine", no_outputs, after="epilogue_fusion"),))


def test_a_pass_in_a_model(compiler: Any) -> None:
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)).eval()
    tanh = nn.Sequential(model[0], nn.GELU(approximate="tanh"), model[2])
    x = 3 * torch.randn(5, 8)
    fast = Pass("fast_gelu", passes.rewriting(use_tanh), after="input")
    with torch.no_grad():
        got = compiler.compile(model, config=compiler.CompilerConfig(extra_passes=(fast,)))(x)
        torch.testing.assert_close(got, tanh(x), rtol=1e-5, atol=1e-5)
        assert (model(x) - tanh(x)).abs().max() > 1e-4


@pytest.mark.parametrize(
    "function", [no_outputs, lambda graph: 1 / 0, lambda graph: None], ids=["graph", "raise", "none"]
)
def test_errors_of_a_pass_reach_the_caller_and_name_it(compiler: Any, function: Any) -> None:
    import torch
    from torch import nn

    config = compiler.CompilerConfig(extra_passes=(Pass("broken", function),))
    compiled = compiler.compile(nn.Linear(3, 3), config=config)
    with torch.no_grad(), pytest.raises(compiler.PassError, match="pass broken: ") as caught:
        compiled(torch.ones(2, 3))
    assert caught.value.__cause__ is not None or "NoneType" in str(caught.value)

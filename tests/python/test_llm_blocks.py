"""Weights in blocks through graph, plan and kernels: on every instruction set, against float64."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_llm_formats import BLOCKED, BLOCKS, random_blocks

from thresher import _engine

Array = np.ndarray[Any, np.dtype[Any]]

# The share of the largest magnitude of its group that rounding an element of a row to 8 bits may change.
ROUNDING = 0.501 / 127


def weight(encoding: str, n: int, k: int, seed: int = 0) -> tuple[Array, Array]:
    data = random_blocks(encoding, n * k // BLOCKS[encoding][0], seed)
    return data, _engine.decode(encoding, data).reshape(n, k).astype(np.float64)


def rows_as_multiplied(x: Array) -> Array:
    """What rows are rounded to: int8 in groups of 32."""
    groups = x.reshape(*x.shape[:-1], -1, 32)
    scale = (np.abs(groups).max(-1, keepdims=True) / np.float32(127)).astype(np.float32)
    codes = np.rint(groups * np.where(scale > 0, np.float32(1) / np.where(scale > 0, scale, 1), 0).astype(np.float32))
    return (codes * scale.astype(np.float64)).reshape(x.shape)


def run(graph: _engine.Graph, inputs: list[Array], threads: int = 1) -> list[Array]:
    plan = _engine.Plan.build(graph, _engine.WeightStore(), num_threads=threads)
    outputs = [np.empty(shape, np.float32) for _, shape in plan.outputs]
    plan.run(inputs, outputs)
    return outputs


def linear(encoding: str, m: int, n: int, k: int, threads: int = 1) -> None:
    data, w = weight(encoding, n, k)
    x = np.random.default_rng(1).standard_normal((m, k)).astype(np.float32)
    bias = np.random.default_rng(2).standard_normal(n).astype(np.float32)
    graph = _engine.Graph()
    a = graph.input("x", "f32", [m, k])
    b = graph.weight("w", encoding, [n, k], data)
    assert graph.encoding(b) == encoding
    graph.set_outputs(graph.add("linear", [a, b, graph.constant("bias", bias)]))
    (out,) = run(graph, [x], threads)
    exact = rows_as_multiplied(x) @ w.T + bias
    magnitude = np.abs(x).astype(np.float64) @ np.abs(w).T + np.abs(bias)
    largest = np.abs(x).astype(np.float64).reshape(m, -1, 32).max(-1).repeat(32, 1)
    rounding = ROUNDING * largest @ np.abs(w).T
    # Elements near the middle between two codes may be rounded either way.
    np.testing.assert_array_less(np.abs(out - exact), 1e-5 * magnitude + 0.02 * rounding + 1e-30)
    np.testing.assert_array_less(np.abs(out - (x.astype(np.float64) @ w.T + bias)), rounding + 1e-5 * magnitude)
    # A row alone gives the same bits as beside others.
    graph = _engine.Graph()
    a = graph.input("x", "f32", [1, k])
    nodes = [a, graph.weight("w", encoding, [n, k], data), graph.constant("bias", bias)]
    graph.set_outputs(graph.add("linear", nodes))
    np.testing.assert_array_equal(run(graph, [x[-1:]])[0][0], out[-1])


SIZES = [(1, 64, 256), (3, 33, 512), (8, 7, 256), (17, 50, 768), (61, 96, 2304)]


@pytest.mark.parametrize("encoding", BLOCKED)
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_linear(encoding: str, m: int, n: int, k: int) -> None:
    linear(encoding, m, n, k, threads=2)


@pytest.mark.parametrize("encoding", [name for name in BLOCKED if BLOCKS[name][0] == 32])
def test_odd_numbers_of_groups(encoding: str) -> None:
    for k in (32, 96, 544, 1120):
        linear(encoding, 20, 40, k)


@pytest.mark.parametrize("isa", _engine.isas())
def test_every_instruction_set(isa: str) -> None:
    code = "import test_llm_blocks as t; [t.linear(e, m, n, k) for e in t.BLOCKED for m, n, k in t.SIZES]"
    environment = {**os.environ, "THRESHER_ISA": isa, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, env=environment, check=True)


def embedded(encoding: str, indices: Array) -> Array:
    data, _ = weight(encoding, 40, 512)
    graph = _engine.Graph()
    table = graph.weight("table", encoding, [40, 512], data)
    ids = graph.input("ids", "i64", list(indices.shape))
    graph.set_outputs(graph.add("embedding", [table, ids]))
    return run(graph, [indices], threads=2)[0]


@pytest.mark.parametrize("encoding", BLOCKED)
def test_embedding(encoding: str) -> None:
    indices = np.array([[3, 39, 0], [3, 7, 11]])
    numbers = _engine.decode(encoding, weight(encoding, 40, 512)[0]).reshape(40, 512)
    np.testing.assert_array_equal(embedded(encoding, indices), numbers[indices])
    with pytest.raises(IndexError, match=r"index 40 at position 1 is outside \[0, 40\)"):
        embedded(encoding, np.array([0, 40]))


def test_table_and_weight_are_one_constant() -> None:
    data, w = weight("q8_0", 96, 64)
    graph = _engine.Graph()
    both = graph.weight("w", "q8_0", [96, 64], data)
    (rows,) = graph.add("embedding", [both, graph.input("ids", "i64", [4])])
    graph.set_outputs(graph.add("linear", [rows, both]))
    assert "as q8_0" in graph.text()
    assert graph.contents(both).shape == (96, 68)
    ids = np.array([5, 95, 0, 5])
    (out,) = run(graph, [ids])
    x = w[ids].astype(np.float32)
    np.testing.assert_allclose(out, rows_as_multiplied(x) @ w.T, atol=2e-2 * np.abs(x).max() * np.abs(w).max())


def test_several_weights_of_one_input() -> None:
    x = np.random.default_rng(1).standard_normal((3, 256)).astype(np.float32)
    parts = [weight("q4_k", n, 256, seed=n) for n in (64, 33, 40)]
    graph = _engine.Graph()
    a = graph.input("x", "f32", [3, 256])
    results = []
    for data, w in parts:
        (product,) = graph.add("linear", [a, graph.weight("w", "q4_k", list(w.shape), data)])
        results += graph.add("mul", [product, product])
    graph.set_outputs(results)
    plan = _engine.Plan.build(graph, _engine.WeightStore(), num_threads=2)
    assert "linears" in plan.graph_text
    outputs = [np.empty(shape, np.float32) for _, shape in plan.outputs]
    plan.run([x], outputs)
    for out, (_, w) in zip(outputs, parts, strict=True):
        np.testing.assert_allclose(out, (rows_as_multiplied(x) @ w.T) ** 2, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("merged", [False, True])
def test_wide_rows(merged: bool) -> None:
    """A run says from which row on rows may be bf16; with AMX they are, and the others are what they were."""
    m, k = 40, 512
    x = np.random.default_rng(1).standard_normal((m, k)).astype(np.float32)
    parts = [weight("q4_k", n, k, seed=n) for n in (64, 96)[: 1 + merged]]
    graph = _engine.Graph()
    a, wide_from = graph.input("x", "f32", [m, k]), graph.input("wide_from", "i32", [1])
    results = []
    for data, w in parts:
        nodes = [a, graph.weight("w", "q4_k", list(w.shape), data), None, None, wide_from]
        (product,) = graph.add("linear", nodes)
        results += graph.add("mul", [product, product])
    graph.set_outputs(results)
    plan = _engine.Plan.build(graph, _engine.WeightStore(), num_threads=2)
    assert ("linears" in plan.graph_text) == merged

    def squares(first: int) -> list[Array]:
        outputs = [np.empty(shape, np.float32) for _, shape in plan.outputs]
        plan.run([x, np.array([first], np.int32)], outputs)
        return outputs

    exact, wide = squares(m), squares(0)
    for first in (1, 7, m - 1, m + 5, -3):
        for out, of_int8, of_bf16 in zip(squares(first), exact, wide, strict=True):
            end = min(max(first, 0), m)
            np.testing.assert_array_equal(out[:end], of_int8[:end])
            np.testing.assert_array_equal(out[end:], of_bf16[end:])
    for of_int8, of_bf16, (_, w) in zip(exact, wide, parts, strict=True):
        assert (of_int8 == of_bf16).all() == (_engine.isa() != "amx")
        wanted = (x.astype(np.float64) @ w.T) ** 2
        error, before = (np.abs(out - wanted).mean() for out in (of_bf16, of_int8))
        assert error <= before  # bf16 has more of a number than 8 bits of a group's largest


def test_wide_from_is_an_integer() -> None:
    graph = _engine.Graph()
    data, _ = weight("q4_0", 64, 64)
    x, w = graph.input("x", "f32", [2, 64]), graph.weight("w", "q4_0", [64, 64], data)
    with pytest.raises(ValueError, match=r"expected wide_from i32 \[1\], got f32\[2, 64\]"):
        graph.add("linear", [x, w, None, None, x])


def test_experts() -> None:
    x = np.random.default_rng(1).standard_normal((7, 64)).astype(np.float32)
    parts = [weight("mxfp4", 40, 64, seed=n) for n in range(3)]
    graph = _engine.Graph()
    nodes = [graph.input("x", "f32", [7, 64]), graph.input("ends", "i32", [3])]
    nodes += [graph.weight("w", "mxfp4", [40, 64], data) for data, _ in parts]
    graph.set_outputs(graph.add("grouped_linear", nodes))
    (out,) = run(graph, [x, np.array([2, 2, 6], np.int32)], threads=2)
    wanted = np.zeros((7, 40))
    wanted[:2] = rows_as_multiplied(x[:2]) @ parts[0][1].T
    wanted[2:6] = rows_as_multiplied(x[2:6]) @ parts[2][1].T
    np.testing.assert_allclose(out, wanted, atol=1e-2 * np.abs(wanted).max())


def test_text_and_model_files_keep_blocks(tmp_path: Path) -> None:
    data, _ = weight("q5_0", 96, 64)
    x = np.random.default_rng(1).standard_normal((2, 64)).astype(np.float32)
    graph = _engine.Graph()
    nodes = [graph.input("x", "f32", [2, 64]), graph.weight("w", "q5_0", [96, 64], data)]
    graph.set_outputs(graph.add("linear", nodes))
    path = str(tmp_path / "model.thrmodel")
    _engine.write_model(path, "model", [(graph, ["y"])])
    model = _engine.Model.load(path)
    out = np.empty((2, 96), np.float32)
    model.run([x], [out])
    np.testing.assert_array_equal(out, run(graph, [x])[0])
    other = _engine.Graph()
    nodes = [other.input("x", "f32", [2, 64]), other.weight("w", "q5_0", [96, 64], data.copy())]
    other.set_outputs(other.add("linear", nodes))
    assert other.hash() == graph.hash()


def bad(build: Any) -> _engine.Graph:
    graph = _engine.Graph()
    data, _ = weight("q4_0", 64, 64)
    build(graph, graph.input("x", "f32", [2, 64]), graph.weight("w", "q4_0", [64, 64], data), data)
    return graph


@pytest.mark.parametrize(("build", "error", "message"), [
    (lambda g, x, w, d: g.add("add", [x, w]), NotImplementedError, "add: .* operand 'b', got q4_0"),
    (lambda g, x, w, d: g.add("linear", [w, w]), NotImplementedError, "operand 'x', got q4_0"),
    (lambda g, x, w, d: g.add("reshape", [w], {"shape": [-1]}), NotImplementedError, "got q4_0"),
    (lambda g, x, w, d: g.add("linear", [x, w], {"layout": "kn"}), NotImplementedError, "expected layout \"nk\""),
    (lambda g, x, w, d: g.add("linear", [x, w], {"precision": "int8"}), NotImplementedError, "got a precision"),
    (lambda g, x, w, d: g.weight("v", "q4_0", [64, 65], d), ValueError, "a multiple of 32"),
    (lambda g, x, w, d: g.weight("v", "q4_0", [64], d), ValueError, "a multiple of 32"),
    (lambda g, x, w, d: g.weight("v", "q4_0", [64, 64], d[1:]), ValueError, "expected 2304 bytes for q4_0"),
    (lambda g, x, w, d: g.weight("v", "q4_0", [64, 64], d.view(np.float16)), ValueError, "expected bytes"),
    (lambda g, x, w, d: g.weight("v", "q4_0", [-32, -32], d), ValueError, "sizes of a tensor"),
    (lambda g, x, w, d: g.weight("v", "q3_k", [64, 64], d), ValueError, "expected an encoding of f32, .* got 'q3_k'"),
    (lambda g, x, w, d: g.weight("v", "f32", [1], d[1:5]), ValueError, "multiple of 4"),
])  # fmt: skip
def test_what_blocks_are_not_for(build: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        bad(build)


def test_blocks_are_no_result() -> None:
    graph = bad(lambda g, x, w, d: g.set_outputs([w]))
    with pytest.raises(NotImplementedError, match="q4_0"):
        _engine.Plan.build(graph, _engine.WeightStore())

"""Convolutions, pooling and resizing of devices against PyTorch in float64; channels last."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from thresher import _engine

torch = pytest.importorskip("torch")
functional = torch.nn.functional


def _random(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _second(x: Any) -> Any:
    """[N, spatial..., C] as PyTorch has it, in float64."""
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(x, -1, 1))).double()


def _last(x: Any) -> Any:
    return np.ascontiguousarray(np.moveaxis(x.numpy(), 1, -1))


# x without its batch, weight, and attributes.
_CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "1x1": ((5, 4, 24), (20, 24, 1, 1), {}),
    "1x1 with a stride": ((5, 4, 8), (20, 8, 1, 1), {"stride": [2, 2]}),
    "3x3": ((6, 5, 8), (12, 8, 3, 3), {"padding": [1, 1]}),
    "first layer": ((9, 8, 3), (16, 3, 7, 7), {"padding": [3, 3], "stride": [2, 2]}),
    "groups": ((5, 5, 36), (40, 18, 3, 3), {"groups": 2, "padding": [1, 0]}),
    "depthwise": ((7, 6, 16), (16, 1, 3, 3), {"groups": 16, "padding": [1, 1], "stride": [2, 1]}),
    "transposed": ((4, 3, 8), (8, 6, 3, 2), {"transposed": True, "stride": [2, 3], "output_padding": [1, 0]}),
    "transposed groups": ((4, 3, 36), (36, 20, 2, 2), {"transposed": True, "groups": 2, "stride": [2, 2]}),
    "dilated lines": ((20, 5), (9, 5, 3), {"dilation": [3], "padding": [2]}),
    "volumes": ((3, 4, 5, 8), (6, 8, 2, 3, 3), {"padding": [0, 1, 1]}),
}


def _expected(x: Any, weight: Any, bias: Any, attrs: dict[str, Any]) -> Any:
    rank = weight.ndim - 2
    attrs = dict(attrs)
    transposed = attrs.pop("transposed", False)
    run = getattr(functional, f"conv_transpose{rank}d" if transposed else f"conv{rank}d")
    return run(_second(x), torch.from_numpy(weight).double(), torch.from_numpy(bias).double(), **attrs)


@pytest.mark.parametrize("kind", ["input", "constant", "bf16"])
@pytest.mark.parametrize("name", _CASES)
def test_convolution(lab: Any, name: str, kind: str) -> None:
    shape, weight_shape, attrs = _CASES[name]
    x, weight = _random(2, *shape), _random(*weight_shape, seed=1)
    bias = _random(weight_shape[1] * attrs.get("groups", 1) if "transposed" in attrs else weight_shape[0], seed=2)
    wanted = _last(_expected(x, weight, bias, attrs))
    residual = _random(*wanted.shape, seed=3)
    for first in (False, True):
        settings = {**attrs, "activation": "relu", "residual_first": first}
        if kind == "bf16":
            settings["precision"] = "bf16"

        def build(graph: Any, settings: dict[str, Any] = settings) -> Sequence[int]:
            given = [graph.input("x", "f32", x.shape)]
            if kind == "input":
                given += [graph.input("w", "f32", weight.shape), graph.input("b", "f32", bias.shape)]
            else:
                given += [graph.constant("w", weight), graph.constant("b", bias)]
            given.append(graph.input("r", "f32", residual.shape))
            return graph.add("convolution", given, settings)  # type: ignore[no-any-return]

        operands = [x, weight, bias, residual] if kind == "input" else [x, residual]
        (found,) = lab.run(lab.plan(build), *operands)
        exact = np.maximum(wanted + residual, 0) if first else np.maximum(wanted, 0) + residual
        assert found.shape == exact.shape
        tolerance = 2e-2 if kind == "bf16" else 2e-6
        error = np.abs(found - exact).max() / np.abs(exact).max()
        assert error < tolerance, f"{error:.1e}"


_POOLS: dict[str, tuple[str, dict[str, Any], Callable[[Any], Any]]] = {
    "max": (
        "max_pool",
        {"kernel": [3, 3], "stride": [2, 2], "padding": [1, 1]},
        lambda x: functional.max_pool2d(x, 3, 2, 1),
    ),
    "mean": (
        "avg_pool",
        {"kernel": [3, 2], "padding": [1, 0], "count_include_pad": False},
        lambda x: functional.avg_pool2d(x, (3, 2), padding=(1, 0), count_include_pad=False),
    ),
    "adaptive": ("adaptive_avg_pool", {"size": [3, 2]}, lambda x: functional.adaptive_avg_pool2d(x, (3, 2))),
    "whole": ("adaptive_avg_pool", {"size": [1, 1]}, lambda x: functional.adaptive_avg_pool2d(x, 1)),
    "nearest": ("resize", {"size": [9, 4]}, lambda x: functional.interpolate(x, (9, 4))),
    "linear": (
        "resize",
        {"size": [9, 4], "mode": "linear"},
        lambda x: functional.interpolate(x, (9, 4), mode="bilinear"),
    ),
    "cubic": (
        "resize",
        {"size": [5, 13], "mode": "cubic", "align_corners": True},
        lambda x: functional.interpolate(x, (5, 13), mode="bicubic", align_corners=True),
    ),
}


@pytest.mark.parametrize("channels", [8, 5])
@pytest.mark.parametrize("name", _POOLS)
def test_pooling_and_resizing(lab: Any, name: str, channels: int) -> None:
    op, attrs, reference = _POOLS[name]
    x = _random(2, 7, 8, channels)
    (found,) = lab.node(op, x, **attrs)
    assert np.allclose(found, _last(reference(_second(x))), rtol=1e-5, atol=1e-5)


def test_a_maximum_keeps_what_is_not_a_number(lab: Any) -> None:
    x = _random(1, 4, 4, 8)
    x[0, 1, 1, 3] = np.nan
    (found,) = lab.node("max_pool", x, kernel=[2, 2])
    assert np.isnan(found[0, 0, 0, 3])
    assert np.isnan(found).sum() == 1


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_a_network_in_small_numbers(lab: Any, precision: str) -> None:
    """What a device does not multiply in what it takes for int8 (convolutions, 24 inputs) is computed in fp32."""
    rng = np.random.default_rng(3)

    def weight(*shape: int) -> Any:
        return (rng.standard_normal(shape) / np.sqrt(np.prod(shape) / shape[0])).astype(np.float32)

    graph = _engine.Graph()
    x = graph.input("x", "f32", [2, 7, 9, 16])
    (a,) = graph.add("convolution", [x, graph.constant("a", weight(32, 16, 3, 3), weight=True)], {"padding": [1, 1]})
    attrs = {"transposed": True, "stride": [2, 2]}
    (b,) = graph.add("convolution", [a, graph.constant("b", weight(32, 24, 2, 2), weight=True)], attrs)
    (c,) = graph.add("linear", [b, graph.constant("c", weight(64, 24), weight=True)])
    graph.set_outputs(graph.add("linear", [c, graph.constant("d", weight(40, 64), weight=True)]))
    given = rng.standard_normal((2, 7, 9, 16), dtype=np.float32)
    expected = np.empty((2, 14, 18, 40), np.float32)
    _engine.Plan.build(graph, _engine.WeightStore()).run([given], [expected])
    plan = _engine.Plan.build(graph, _engine.WeightStore(), precision=precision, device=lab.device)
    (found,) = lab.run(plan, given)
    assert np.linalg.norm(found - expected) <= 0.03 * np.linalg.norm(expected)
    if not lab.is_cpu:
        names = [decision["precision"] for decision in plan.precision_decisions()]
        assert names == (["bf16"] * 4 if precision == "bf16" else ["fp32", "fp32", "fp32", "int8_weight"])

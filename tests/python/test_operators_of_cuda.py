"""Operators that PyTorch traces for CUDA tensors alone: what the importer makes of them, run on the CPU."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import fx  # noqa: E402
from torch.nn import functional  # noqa: E402

from thresher import _engine  # noqa: E402
from thresher.compiler.errors import UnsupportedNode  # noqa: E402
from thresher.compiler.importer import import_graph  # noqa: E402

aten: Any = torch.ops.aten


def _run(target: Any, args: Sequence[Any], wanted: int = 1, **options: Any) -> list[Any]:
    """The first results of a graph of one operator, whose tensors are the graph's inputs."""
    graph = fx.Graph()
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    nodes = []
    for i, tensor in enumerate(tensors):
        nodes.append(graph.placeholder(f"x{i}"))
        nodes[-1].meta["val"] = tensor
    rest = iter(nodes)
    node = graph.call_function(target, tuple(next(rest) if isinstance(a, torch.Tensor) else a for a in args), options)
    node.meta["val"] = [tensors[0]] * 9
    items = [graph.call_function(operator.getitem, (node, i)) for i in range(wanted)]
    for item in items:
        item.meta["val"] = tensors[0]
    graph.output(tuple(items))
    imported = import_graph(fx.GraphModule(torch.nn.Module(), graph), tensors, frozenset())
    plan = _engine.Plan.build(imported.builder.graph, _engine.WeightStore())
    outputs = [torch.empty(shape) for _, shape in plan.outputs]
    plan.run([tensor.numpy() for tensor in tensors], [out.numpy() for out in outputs])
    return outputs


@pytest.mark.parametrize("eps", [1e-5, None])
def test_rms_norm(eps: float | None) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(3, 5, 16), torch.randn(16)
    out, scale = _run(aten._fused_rms_norm.default, [x, [16], weight, eps], 2)
    torch.testing.assert_close(out, functional.rms_norm(x, (16,), weight, eps))
    used = torch.finfo(torch.float32).eps if eps is None else eps
    torch.testing.assert_close(scale, torch.rsqrt(x.square().mean(-1, keepdim=True) + used))


def test_rms_norm_of_halves_says_which_eps() -> None:
    x = torch.randn(3, 16).to(torch.bfloat16)
    with pytest.raises(UnsupportedNode, match="no eps"):
        _run(aten._fused_rms_norm.default, [x, [16], None, None])


@pytest.mark.parametrize("name", ["efficient", "cudnn", "flash"])
def test_attention(name: str) -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 4, 5, 16), torch.randn(2, 4, 7, 16), torch.randn(2, 4, 7, 16)
    mask = None if name == "flash" else torch.randn(2, 4, 5, 7)
    target = getattr(aten, f"_scaled_dot_product_{name}_attention").default
    args = [query, key, value, *([] if name == "flash" else [mask, False]), 0.0]
    (out,) = _run(target, [*args, name == "flash"], scale=0.5)
    wanted = functional.scaled_dot_product_attention(query, key, value, mask, 0.0, name == "flash", scale=0.5)
    torch.testing.assert_close(out, wanted)
    with pytest.raises(UnsupportedNode, match="only training needs"):
        _run(target, args, 2)

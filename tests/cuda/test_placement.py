"""Graphs whose tensors lie on several devices: what reads those of another runs in PyTorch, and the list says why."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from thresher.compiler.partition import find_unsupported
from thresher.compiler.placement import placement_of
from thresher.machine import Backend
from thresher.machine.backend import open_device

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def two_devices(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The emulator has two; tensors that say they are there need no memory."""
    library = request.config.getoption("--device-library")
    if library is None or not Backend("cuda").obstacle():
        pytest.skip("the emulator's devices")
    monkeypatch.setitem(sys.modules, "thresher_cuda", types.SimpleNamespace(library_path=lambda: library))


def traced(function: Callable[..., Any], *devices: str) -> Any:
    with FakeTensorMode() as mode:
        inputs = [mode.from_tensor(torch.empty(4, 8, device="meta")) for _ in devices]
        graph = make_fx(function)(*inputs)
        placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
        # A build of PyTorch without CUDA traces no operator there, but its tensors may say that they are.
        by_input = dict(zip(placeholders, map(torch.device, devices), strict=True))
        for node in graph.graph.nodes:
            if node.op == "output":
                continue
            where = by_input.get(node) or by_input[node.all_input_nodes[0]]
            node.meta["val"] = torch._subclasses.FakeTensor(mode, torch.empty(4, 8, device="meta"), where)
            by_input[node] = where
    return graph


def reasons(graph: Any) -> dict[str, str]:
    placement = placement_of(graph, None)
    found = find_unsupported(graph, placement, frozenset(), "O2")
    return {node.name: text.reason if text else "" for node, text in found.items()}


def test_all_on_one_device() -> None:
    for index in (0, 1):
        graph = traced(lambda x: torch.softmax(x, 1) * 2, f"cuda:{index}")
        placement = placement_of(graph, None)
        assert placement.tensors == torch.device("cuda", index) and placement.in_place
        assert placement.engine is open_device("cuda", index), "one of the process"
        assert reasons(graph) == {}


def test_tensors_of_two_devices_and_of_the_host() -> None:
    def three(x: Any, y: Any, z: Any) -> Any:
        return torch.sin(x), torch.cos(y), torch.tanh(z)

    graph = traced(three, "cuda:0", "cuda:1", "cpu")
    found = reasons(graph)
    assert set(found) == {"cos", "tanh"}
    assert "is on cuda:1, expected cuda:0" in found["cos"] and "is on cpu, expected cuda:0" in found["tanh"]


def test_an_operator_that_reads_two_devices() -> None:
    graph = traced(lambda x, y: torch.tanh(x) + torch.tanh(y), "cuda:0", "cuda:1")
    found = reasons(graph)
    assert any("is on cuda:1, expected cuda:0" in text for text in found.values())
    assert len(found) == 2, "the one that reads both, and the one that makes the other"


def test_a_device_that_there_is_not() -> None:
    placement = placement_of(traced(torch.tanh, "cuda:2"), None)
    assert placement.engine is None and "expected a cuda device from 0 to 1, got 2" in placement.obstacle

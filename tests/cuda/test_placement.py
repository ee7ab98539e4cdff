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

from thresher import _engine
from thresher.compiler.builder import Builder
from thresher.compiler.partition import find_unsupported
from thresher.compiler.placement import Placement, placement_of
from thresher.compiler.weights import Store
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


@pytest.mark.parametrize("layout", ["nk", "kn"])
def test_weights_that_only_kernels_read_are_not_copied(layout: str) -> None:
    """The emulator's memory is the host's, so that tensors of PyTorch are the device's."""
    engine, store = open_device("cuda", 0), Store()
    torch.manual_seed(1)
    x, bias = torch.randn(20, 64), torch.randn(48)
    stored = torch.randn((48, 64) if layout == "nk" else (64, 48), dtype=torch.bfloat16)
    weight = stored if layout == "nk" else stored.t()  # as matrices may lie, too
    for _ in range(2):  # further plans find what is there
        builder = Builder(Placement(torch.device("cuda", 0), engine), store)
        rows = builder.input("x", torch.float32, (20, 64), 0)
        kept = builder.constant("weight", weight, weight=True)
        linear = builder.emit("linear", [rows, kept, builder.constant("bias", bias, weight=True)])
        builder.graph.set_outputs([linear.id])
        plan = _engine.Plan.build(builder.graph, store.engine, device=engine)
        result = torch.empty(20, 48)
        plan.run([x.numpy()], [result.numpy()])
        wanted = x.bfloat16().double() @ weight.double().t() + bias
        assert (result - wanted).abs().max() < 1e-4 * wanted.abs().max()
    copies = [store.placed(weight if layout == "nk" else weight.t(), engine).copies, store.placed(bias, engine).copies]
    assert copies[0] == (0 if layout == "nk" else 1), "turned once, by the host, where a product wants it so"


def test_what_passes_compute_with_is_copied_and_given_back() -> None:
    engine, store = open_device("cuda", 0), Store()
    numbers = torch.arange(6.0)
    constant = store.placed(numbers, engine)
    graph = _engine.Graph()
    held = graph.placed("x", "f32", [2, 3], constant)
    assert constant.copies == 0
    assert graph.contents(held).tolist() == [[0, 1, 2], [3, 4, 5]] and constant.copies == 1
    numbers += 1  # which no caller does without another store
    assert graph.contents(held)[1].tolist() == [4, 5, 6] and constant.copies == 2, "nothing was kept"
    with pytest.raises(ValueError, match=r"expected 48 bytes for f32\[3, 4\], got 24"):
        graph.placed("x", "f32", [3, 4], constant)

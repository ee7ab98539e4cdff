"""Calls of thresher.compile's models that run no line of Python, and what makes them run some."""

from __future__ import annotations

import gc
import threading
import weakref
from array import array
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from thresher import _engine  # noqa: E402
from thresher.compiler import runtime  # noqa: E402
from thresher.torch_shim import tensors  # noqa: E402

pytestmark = pytest.mark.skipif(tensors.PreparedCall is None, reason="no library for this PyTorch")


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What ran a plan from Python since."""
    found: list[str] = []

    def noting(name: str) -> Callable[..., Any]:
        run = getattr(runtime.Entry, name)

        def note(*args: Any) -> Any:
            found.append(name)
            return run(*args)

        return note

    for name in ("run", "run_profiled"):
        monkeypatch.setattr(runtime.Entry, name, noting(name))
    with torch.no_grad():
        yield found


class Several(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Any, y: Any) -> Any:
        z = self.linear(x + y)
        return {"sum": z, "turned": torch.sigmoid(z).transpose(0, 1), "given": y}


class Turned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        return self.linear(x.transpose(1, 2))


def image(channels: int) -> Any:
    return torch.randn(2, channels, 5, 6).to(memory_format=torch.channels_last)


MODELS = {
    "a tensor": (lambda: nn.Linear(8, 8), lambda: [torch.randn(3, 8)]),
    "a row of a matrix": (lambda: nn.Linear(8, 8), lambda: [torch.randn(8, 3).t()]),
    "gaps": (lambda: nn.Linear(8, 8), lambda: [torch.randn(3, 16)[:, ::2]]),
    "several": (Several, lambda: [torch.randn(3, 8), torch.randn(3, 8)]),
    "transposed": (Turned, lambda: [torch.randn(2, 8, 5)]),
    "channels last": (lambda: nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last), lambda: [image(3)]),
    "channels first": (lambda: nn.Conv2d(3, 4, 3), lambda: [torch.randn(2, 3, 5, 6)]),
    "bfloat16": (lambda: nn.Linear(8, 8).bfloat16(), lambda: [torch.randn(3, 8).bfloat16()]),
    "large": (lambda: nn.Linear(8, 600), lambda: [torch.randn(600, 8)]),
}


@pytest.mark.parametrize("name", MODELS)
def test_results_are_those_of_the_model(compiler: Any, lines: list[str], name: str) -> None:
    make, arguments = MODELS[name]
    model = make().eval()
    compiled = compiler.compile(model)
    kept = []
    for call in range(5):
        given = arguments()
        if call == 2:
            lines.clear()
        results = compiled(*given)
        wanted = model(*given)
        if not isinstance(wanted, dict):
            results, wanted = {"": results}, {"": wanted}
        kept.append((results, wanted))
        assert list(results) == list(wanted) and type(results) is type(wanted)
        if "given" in results:
            assert results["given"] is given[1]
    assert lines == []
    for results, wanted in kept:  # nothing was overwritten by a later call
        for key, tensor in results.items():
            close = 2e-2 if tensor.dtype == torch.bfloat16 else 1e-5
            torch.testing.assert_close(tensor, wanted[key], rtol=close, atol=close)
            assert tensor.stride() == wanted[key].stride() and not tensor.requires_grad
            tensor.add_(1)  # it is the caller's


def test_inference_mode(compiler: Any, lines: list[str]) -> None:
    model = nn.Linear(8, 8).eval()
    compiled = compiler.compile(model)
    with torch.inference_mode():
        for _ in range(3):
            lines.clear()
            assert compiled(torch.randn(2, 8)).is_inference()
    assert lines == []
    for _ in range(3):
        assert not compiled(torch.randn(2, 8)).is_inference()


def test_what_changes_is_met_by_python(compiler: Any, lines: list[str]) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval()
    compiled = compiler.compile(model)

    def lines_of_a_call() -> int:
        lines.clear()
        x = torch.randn(3, 8)
        torch.testing.assert_close(compiled(x), model(x))
        return len(lines)

    def settle() -> None:
        for _ in range(2):
            lines_of_a_call()
        assert lines_of_a_call() == 0

    settle()
    model[0].weight.mul_(2)
    assert lines_of_a_call() == 1
    settle()
    model[0].weight.data = torch.randn(8, 8)
    assert lines_of_a_call() == 1
    settle()
    model[0].bias.data.add_(1)  # which PyTorch does not count
    assert lines_of_a_call() == 1
    settle()
    compiler.clear_cache()
    assert lines_of_a_call() == 1
    settle()
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        assert lines_of_a_call() == 1
        settle()
    finally:
        torch.set_num_threads(threads)
    assert lines_of_a_call() == 1
    settle()
    _engine.profile_start()
    try:
        assert lines_of_a_call() == 1 and lines == ["run_profiled"]
    finally:
        _engine.profile_stop()
    assert lines_of_a_call() == 0  # nothing had to be prepared again


def test_errors_are_those_of_other_calls(compiler: Any, lines: list[str]) -> None:
    model = nn.Embedding(5, 8).eval()
    compiled = compiler.compile(model)
    good, bad = torch.tensor([1, 4]), torch.tensor([1, 5])
    for _ in range(3):
        compiled(good)
    for _ in range(3):
        with pytest.raises(IndexError, match="index 5"):
            compiled(bad)
    for _ in range(2):
        torch.testing.assert_close(compiled(good), model(good))
    lines.clear()
    torch.testing.assert_close(compiled(good), model(good))
    assert lines == []


def test_runs_are_counted(compiler: Any, lines: list[str]) -> None:
    model = nn.Linear(8, 8).eval()
    compiled = compiler.compile(model, dynamic=True, config=compiler.CompilerConfig(plan_sizes="one"))
    for rows in (2, 3, 2, 3, 2, 3):
        compiled(torch.randn(rows, 8))
    (graph,) = (
        graph for graph in runtime.RECORDER.alive() if isinstance(graph, runtime.CompiledGraph) and graph.plans()
    )
    assert graph.generation is not None
    of_rows = {key[2][0][0]: entry for key, entry in graph.generation.entries.items()}  # type: ignore[index]
    assert of_rows[2].used[0] < of_rows[3].used[0]
    calls = graph.generation.calls[0]
    lines.clear()
    compiled(torch.randn(2, 8))
    assert of_rows[2].used[0] > of_rows[3].used[0] and lines == []
    assert graph.generation.calls[0] == calls + 1


def test_many_threads(compiler: Any) -> None:
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16)).eval()
    compiled = compiler.compile(model)
    with torch.no_grad():
        for _ in range(3):
            compiled(torch.randn(4, 32))
    wrong: list[str] = []

    def work() -> None:
        with torch.no_grad():
            for _ in range(300):
                x = torch.randn(4, 32)
                if not torch.allclose(compiled(x), model(x), atol=1e-5):
                    wrong.append("result")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    with torch.no_grad():
        for _ in range(20):
            compiler.clear_cache()  # the plan that others run is dropped
    for thread in threads:
        thread.join()
    assert wrong == []


def prepared(**changes: Any) -> Any:
    """A PreparedCall that has no plan."""
    x = torch.randn(2, 3)
    given: dict[str, Any] = {
        "slow": lambda leaves: ("slow", leaves),
        "watch": tensors.TensorWatch([], b"", [], b"", b"", b""),
        "entry": weakref.ref(prepared),
        "door": (0, 0, 0),
        "threads": torch.get_num_threads() + 1,
        "inputs": [(0, None)],
        "outputs": tensors.places([x]),
        "orders": [None],
        "result": 0,
        "build": print,
        "counts": (array("q", [0]), array("q", [0]), array("q", [0, 1])),
    }
    assert tensors.PreparedCall is not None
    return tensors.PreparedCall(*(given | changes).values())


def test_without_what_it_wants_it_is_slow() -> None:
    assert prepared().call([1]) == ("slow", [1])
    with pytest.raises(TypeError, match="list"):
        prepared().call((1,))
    with pytest.raises(ZeroDivisionError):
        prepared(slow=lambda leaves: 1 / 0).call([1])


@pytest.mark.parametrize(
    "changes",
    [
        {"watch": print},
        {"entry": print},
        {"result": 1},
        {"orders": []},
        {"orders": [None, None]},
        {"orders": [(0,)]},
        {"orders": [(0, 2)]},
        {"outputs": b"12345678" * 3},
        {"inputs": [(-1, None)]},
        {"inputs": [(0, (1,))]},
        {"inputs": [0]},
        {"counts": (array("b", [0]),) * 3},
        {"counts": (array("q", [0]),) * 3},
        {"counts": ()},
    ],
    ids=str,
)
def test_what_makes_no_call_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected"):
        prepared(**changes)


@pytest.mark.parametrize("changes", [{"inputs": [("x", None)]}, {"counts": (b"12345678",) * 3}], ids=str)
def test_other_kinds_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises((TypeError, BufferError)):
        prepared(**changes)


def test_it_is_collected() -> None:
    class Slow:
        def __call__(self, leaves: Any) -> None:
            raise AssertionError(leaves)

    slow = Slow()
    slow.call = prepared(slow=slow)  # type: ignore[attr-defined]  # a cycle
    alive = weakref.ref(slow)
    del slow
    gc.collect()
    assert alive() is None

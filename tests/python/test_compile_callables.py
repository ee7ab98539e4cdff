"""thresher.compile of what is no module, and the arguments that it shares with torch.compile."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from processes import run_with_torch

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402


class Encoder(nn.Module):
    """A model that is called by another name than forward."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def encode(self, x: torch.Tensor, *, twice: bool = False) -> torch.Tensor:
        y = torch.relu(self.layer(x))
        return torch.relu(self.layer(y)) if twice else y


def runs_in_the_engine(compiler: Any, call: Any, want: torch.Tensor) -> None:
    compiler.clear_cache()
    with torch.no_grad():
        got = call()
    torch.testing.assert_close(got, want)
    stats = compiler.compilation_stats()
    assert stats.plans == 1 and not stats.unsupported


def test_functions(compiler: Any) -> None:
    weight = torch.randn(8, 8)

    def project(x: torch.Tensor) -> torch.Tensor:
        """Multiplies."""
        return torch.relu(x @ weight)

    compiled = compiler.compile(project, precision="fp32")
    x = torch.randn(3, 8)
    runs_in_the_engine(compiler, lambda: compiled(x), project(x))
    assert compiled.__name__ == "project" and compiled.__doc__ == "Multiplies."


@torch.no_grad()
def test_bound_methods(compiler: Any) -> None:
    model = Encoder().eval()
    x = torch.randn(3, 8)
    compiled = compiler.compile(model.encode)
    runs_in_the_engine(compiler, lambda: compiled(x, twice=True), model.encode(x, twice=True))
    model.layer.weight.mul_(2)
    torch.testing.assert_close(compiled(x, twice=True), model.encode(x, twice=True))


def test_as_a_decorator(compiler: Any) -> None:
    @compiler.compile(optimization_level="O1", threads=1)
    def double(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) * 2

    runs_in_the_engine(compiler, lambda: double(torch.ones(2, 2)), torch.full((2, 2), 2.0))


@pytest.mark.parametrize(("model", "found"), [(3, "a int"), (Encoder, "the class Encoder"), ("encode", "a str")])
def test_what_cannot_be_called(compiler: Any, model: Any, found: str) -> None:
    with pytest.raises(compiler.ConfigError, match=f"expected a torch.nn.Module or a function, got {found}"):
        compiler.compile(model)


class Breaking(nn.Module):
    """A model that TorchDynamo captures in two parts."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x)
        torch._dynamo.graph_break()
        return y * 2


def test_fullgraph(compiler: Any) -> None:
    x = torch.ones(2, 2)
    with torch.no_grad():
        torch.testing.assert_close(compiler.compile(Breaking())(x), x * 2)
        torch._dynamo.reset()  # TorchDynamo keeps what it captured with the code of the class
        with pytest.raises(torch._dynamo.exc.Unsupported):
            compiler.compile(Breaking(), fullgraph=True)(x)
        torch.testing.assert_close(compiler.compile(Encoder().encode, fullgraph=True)(torch.zeros(1, 8)).shape, (1, 8))
    with pytest.raises(compiler.ConfigError, match="fullgraph: expected True or False, got 'yes'"):
        compiler.compile(Breaking(), fullgraph="yes")


@pytest.mark.parametrize("mode", [None, "default", "reduce-overhead"])
def test_modes_that_are_the_default(compiler: Any, mode: str | None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiler.compile(nn.ReLU(), mode=mode)


def test_modes_that_ask_for_measurements(compiler: Any) -> None:
    with pytest.warns(UserWarning, match=r"mode='max-autotune' is taken for 'default'.*thresher.tune"):
        compiler.compile(nn.ReLU(), mode="max-autotune")
    with (
        pytest.warns(UserWarning, match="max-autotune-no-cudagraphs"),
        torch.no_grad(),
    ):
        road = torch.compile(nn.ReLU(), backend=compiler.thresher_backend, mode="max-autotune-no-cudagraphs")
        road(torch.ones(2))


def test_unknown_modes(compiler: Any) -> None:
    with pytest.raises(compiler.ConfigError, match=r"mode: expected None or one of default, reduce-overhead.*'fast'"):
        compiler.compile(nn.ReLU(), mode="fast")


def test_an_unsupported_pytorch_is_said_at_the_first_use() -> None:
    code = """
import torch
torch.__version__ = "2.99.1+cpu"
import thresher
print("imported")
thresher.compile(torch.nn.ReLU())
"""
    done = run_with_torch(code)
    assert done.stderr.count("expected PyTorch 2.13, got 2.99.1+cpu") == 1, done.stderr
    assert "pip install 'torch==2.13.*'" in done.stderr


def test_no_word_about_a_supported_one() -> None:
    assert "expected PyTorch" not in run_with_torch("import torch, thresher; thresher.compile(torch.nn.ReLU())").stderr


def test_models_run_without_the_shim() -> None:
    code = """
import torch, thresher
from thresher.torch_shim import library
def none(*args, **kwargs):
    raise library.ShimError("none")
library.find = none
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).eval()
compiled = thresher.compile(model)
with torch.no_grad():
    for rows in (1, 2, 3, 2):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(compiled(x), model(x))
    model[0].weight.mul_(3)
    torch.testing.assert_close(compiled(x), model(x))
    model[0].weight = torch.nn.Parameter(torch.randn(8, 8))
    torch.testing.assert_close(compiled(x), model(x))
from thresher.torch_shim import tensors
print(tensors.places.__name__, thresher.compilation_stats().guarded)
"""
    done = run_with_torch(code)
    assert done.stdout.split() == ["_places", "()"], done.stderr

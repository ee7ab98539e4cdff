"""Convolutions in int8 and bf16: what is chosen, and what it computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from thresher import _engine

# Largest error of a result whose entries have a deviation of about 1.
LIMITS = {"int8": 0.15, "bf16": 0.05}


class Network(nn.Module):
    """Convolutions of several kinds on NCHW images of 3 channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.wide = nn.Conv2d(16, 24, 3, padding=1)
        self.depthwise = nn.Conv2d(24, 24, 3, padding=1, groups=24)
        self.dilated = nn.Conv2d(24, 48, (3, 5), stride=2, padding=(2, 3), dilation=2, bias=False)
        self.grouped = nn.Conv2d(48, 48, 3, padding=1, groups=2)
        self.inner = nn.Conv2d(48, 48, 3, padding=1)
        self.up = nn.ConvTranspose2d(48, 8, 2, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(x))
        x = torch.relu(self.depthwise(nn.functional.silu(self.wide(x))))
        x = torch.relu(self.grouped(self.dilated(x)))
        return self.up(x + self.inner(x))  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def network() -> nn.Module:
    """Random weights, scaled so that results have a deviation of about 1."""
    torch.manual_seed(0)
    model = Network().eval()
    with torch.no_grad():
        x = torch.randn(2, 3, 33, 29)
        model.up.weight /= model(x).std()
    return model


@pytest.mark.parametrize("precision", LIMITS)
def test_a_network(compiler: Any, network: nn.Module, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THRESHER_SMALL_PRODUCTS", "always")
    x = torch.randn(2, 3, 33, 29)
    compiled = compiler.compile(network, precision=precision, config=compiler.CompilerConfig(fallback="error"))
    with torch.no_grad():
        error = (compiled(x) - network(x)).abs().max().item()
    assert error <= LIMITS[precision]
    chosen = {d.module: (d.precision, d.reason) for d in compiler.compilation_stats().precision_decisions}
    for layer in ("wide", "dilated", "grouped", "inner", "up"):
        assert chosen[layer][0] == precision, chosen
    few = "3 channels are no multiple of 8"
    filled = f"asked for; {few}, so it is filled up and multiplied in bf16"
    of_bf16 = "bf16" in _engine.isa() or "amx" in _engine.isa()
    assert chosen["stem"] == (("bf16", filled) if of_bf16 else ("fp32", few))
    assert chosen["depthwise"] == ("fp32", "a convolution of small groups")
    assert precision != "int8" or error > 1e-4, "the precision made no difference: was it applied?"


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (nn.ConvTranspose2d(16, 8, 4, stride=2, padding=1), "asked for"),
        (nn.ConvTranspose1d(16, 8, 16, stride=8, padding=4), "asked for"),
        (nn.ConvTranspose2d(16, 8, 3, stride=2, padding=1), "a transposed convolution"),  # too many zeros
        (nn.ConvTranspose2d(16, 8, 3, padding=1), "a transposed convolution"),
        (nn.ConvTranspose2d(12, 8, 2, stride=2), "12 channels are no multiple of 8"),
        (nn.ConvTranspose2d(16, 8, 2, stride=2, groups=2), "a transposed convolution"),
    ],
)
def test_transposed(compiler: Any, layer: nn.Module, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THRESHER_SMALL_PRODUCTS", "always")
    x = torch.randn(2, layer.in_channels, *(9, 11)[: layer.weight.dim() - 2])
    compiled = compiler.compile(layer.eval(), precision="int8", config=compiler.CompilerConfig(fallback="error"))
    with torch.no_grad():
        expected = layer(x)
        assert (compiled(x) - expected).abs().max() <= 0.05 * expected.abs().max()
    (decision,) = compiler.compilation_stats().precision_decisions
    assert (decision.precision, decision.reason) == ("int8" if reason == "asked for" else "fp32", reason)


def test_weights_that_are_widened_are_rounded_all_the_same(compiler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THRESHER_SMALL_PRODUCTS", "never")
    torch.manual_seed(2)
    model = nn.Conv2d(16, 40, 3, padding=1).eval()
    rounded = nn.Conv2d(16, 40, 3, padding=1).eval()
    with torch.no_grad():
        for to, number in zip(rounded.parameters(), model.parameters(), strict=True):
            to.copy_(number.bfloat16() if number.dim() > 1 else number)
        x = torch.randn(1, 16, 9, 11)
        wanted = compiler.compile(rounded, precision="fp32")(x)
        assert torch.equal(compiler.compile(model, precision="bf16")(x), wanted)
        assert not torch.equal(compiler.compile(model, precision="fp32")(x), wanted)


@pytest.mark.parametrize("shape", [(2, 16, 41), (2, 16, 5, 9, 7)])
def test_one_and_three_dimensions(compiler: Any, shape: tuple[int, ...]) -> None:
    torch.manual_seed(1)
    kind = nn.Conv1d if len(shape) == 3 else nn.Conv3d
    model = kind(16, 24, 3, stride=2, padding=1).eval()
    x = torch.randn(shape)
    compiled = compiler.compile(model, precision="int8", config=compiler.CompilerConfig(fallback="error"))
    with torch.no_grad():
        expected = model(x)
        assert (compiled(x) - expected).abs().max() <= 0.03 * expected.abs().max()


def test_a_picture_does_not_depend_on_its_neighbours(compiler: Any, network: nn.Module) -> None:
    compiled = compiler.compile(network, precision="int8", dynamic=True)
    x = torch.randn(3, 3, 33, 29)
    with torch.no_grad():
        first = compiled(x)[0]
        other = x.clone()
        other[1] *= 1000
        other[2, 0, 4, 4] = float("nan")
        changed = compiled(other)
        alone = compiled(x[:1])[0]
    assert torch.equal(changed[0], first)
    assert torch.equal(alone, first)
    assert changed[2].isnan().any() and changed[1].isfinite().all()


@pytest.mark.parametrize("odd", [float("nan"), float("inf")])
@pytest.mark.parametrize(("channels", "kernel", "stride"), [(3, 7, 2), (3, 3, 2), (1, 3, 1), (4, 4, 4), (2, 11, 3)])
def test_what_a_first_convolution_does_not_cover_does_not_reach_it(
    compiler: Any, channels: int, kernel: int, stride: int, odd: float
) -> None:
    layer = nn.Conv2d(channels, 40, kernel, stride=stride, padding=kernel // 2).eval()
    x = torch.randn(2, channels, 45, 61)
    x[1, channels - 1, 20, 33] = odd
    compiled = compiler.compile(layer, precision="bf16", config=compiler.CompilerConfig(fallback="error"))
    with torch.no_grad():
        assert torch.equal(compiled(x).isfinite(), layer(x).isfinite())


def test_excluded(compiler: Any, network: nn.Module) -> None:
    x = torch.randn(1, 3, 33, 29)
    layers = ("stem", "wide", "dilated", "grouped", "inner", "up")
    compiled = compiler.compile(network, precision="int8", precision_exclude=layers)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), network(x), rtol=1e-4, atol=1e-4)

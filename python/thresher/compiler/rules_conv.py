"""Importer rules: convolutions. The engine has channels last; permutes stand around what PyTorch has second."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch

from thresher.compiler.builder import Builder, Value, rule
from thresher.compiler.errors import UnsupportedNode

aten: Any = torch.ops.aten


def channels_last(b: Builder, x: Value) -> Value:
    """[N, C, spatial...] as [N, spatial..., C]."""
    return b.permute(x, (0, *range(2, x.rank), 1))


def channels_second(b: Builder, x: Value) -> Value:
    """[N, spatial..., C] as [N, C, spatial...]."""
    return b.permute(x, (0, x.rank - 1, *range(1, x.rank - 1)))


def per_dimension(values: Sequence[int], rank: int) -> list[int]:
    """One number for each spatial dimension; a single one stands for all."""
    return [int(v) for v in values] * (rank if len(values) == 1 else 1)


@rule(aten.convolution.default)
def _(b: Builder, a: SimpleNamespace) -> Value:
    x, weight = a.input, a.weight
    rank = weight.rank - 2
    if x.rank != weight.rank or not 1 <= rank <= 3:
        raise UnsupportedNode(f"ranks {x.rank} and {weight.rank}, expected one to three spatial dimensions")
    attrs: dict[str, Any] = {
        "stride": per_dimension(a.stride, rank),
        "padding": per_dimension(a.padding, rank),
        "dilation": per_dimension(a.dilation, rank),
        "groups": int(a.groups),
    }
    if a.transposed:
        attrs |= {"transposed": True, "output_padding": per_dimension(a.output_padding, rank)}
    return channels_second(b, b.emit("convolution", [channels_last(b, x), weight, a.bias], **attrs))

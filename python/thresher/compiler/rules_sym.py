"""Importer rules: sizes and arithmetic on them, which are plain numbers once the shapes are known."""

from __future__ import annotations

import math
import operator
from types import SimpleNamespace
from typing import Any

import torch

from thresher.compiler.builder import Builder, dim, rule

aten: Any = torch.ops.aten

# Callables that the graph applies to numbers; the importer calls them as they are.
NUMBER_FUNCTIONS = {
    operator.add,
    operator.sub,
    operator.mul,
    operator.floordiv,
    operator.mod,
    operator.truediv,
    operator.neg,
    operator.pow,
    operator.eq,
    operator.ne,
    operator.lt,
    operator.le,
    operator.gt,
    operator.ge,
    operator.and_,
    operator.or_,
    math.ceil,
    math.floor,
    math.trunc,
    int,
    float,
    max,
    min,
    torch.sym_int,
    torch.sym_float,
    torch.sym_max,
    torch.sym_min,
    torch.sym_not,
    torch.sym_ite,
    torch.sym_sum,
    *(getattr(torch, name) for name in ("_sym_sqrt", "_sym_log2", "_sym_exp") if hasattr(torch, name)),
}


@rule(aten.sym_numel.default)
def _(b: Builder, a: SimpleNamespace) -> int:
    count: int = a.self.numel
    return count


@rule(aten.sym_size.int)
def _(b: Builder, a: SimpleNamespace) -> int:
    size: int = a.self.shape[dim(a.dim, a.self.rank)]
    return size

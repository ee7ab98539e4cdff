"""Attention of CUDA tensors as one operator of the traced graph.

PyTorch's own would become the kernel that it chooses while it traces; this one is chosen by whoever runs it, the
engine or PyTorch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.nn import functional

_library: Any = torch.library.Library("thresher", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define(
    "scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, "
    "float dropout_p=0.0, bool is_causal=False, *, float? scale=None, bool enable_gqa=False) -> Tensor"
)


def _attend(query: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Heads lie inside of positions, whichever kernel PyTorch takes."""
    out = functional.scaled_dot_product_attention(query, *args, **kwargs)
    return out.transpose(-3, -2).contiguous().transpose(-3, -2) if out.dim() > 2 else out


def _fake(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    shape = (*query.shape[:-1], value.shape[-1])
    if len(shape) == 2:
        return query.new_empty(shape)
    return query.new_empty((*shape[:-3], shape[-2], shape[-3], shape[-1])).transpose(-3, -2)


_library.impl("scaled_dot_product_attention", _attend, "CompositeExplicitAutograd")
torch.library.register_fake("thresher::scaled_dot_product_attention", _fake, lib=_library)

ATTENTION: Any = torch.ops.thresher.scaled_dot_product_attention.default


class Interpreter(fx.Interpreter):
    """Runs a graph of TorchDynamo with attention of CUDA tensors kept whole."""

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs one function."""
        if target is functional.scaled_dot_product_attention:
            tensor = args[0] if args else kwargs["query"]
            if tensor.is_cuda:
                target = ATTENTION
        return super().call_function(target, args, kwargs)

"""Operators that are replaced by simpler ones while PyTorch traces a model.

Everything else stays whole: what the engine knows maps to it directly, and what it lacks runs best as PyTorch's own
kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import get_decompositions
from torch.nn import functional

aten: Any = torch.ops.aten

_MASK_SRC, _MASK_PADDING = 0, 1  # mask_type of the fused operator; 2 is a mask for every batch and head


def _transformer_encoder_layer(
    src: torch.Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor,
    norm_weight_2: torch.Tensor,
    norm_bias_2: torch.Tensor,
    ffn_weight_1: torch.Tensor,
    ffn_bias_1: torch.Tensor,
    ffn_weight_2: torch.Tensor,
    ffn_bias_2: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> torch.Tensor:
    """nn.TransformerEncoderLayer's fused inference operator. src: float32 [batch, length, embed_dim]."""

    def norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, (embed_dim,), weight, bias, eps)

    def attend(x: torch.Tensor) -> torch.Tensor:
        qkv = functional.linear(x, qkv_weight, qkv_bias)
        query, key, value = qkv.chunk(3, dim=-1)
        return _attention(query, key, value, num_heads, proj_weight, proj_bias, mask, mask_type)

    def feed(x: torch.Tensor) -> torch.Tensor:
        hidden = functional.linear(x, ffn_weight_1, ffn_bias_1)
        hidden = functional.gelu(hidden) if use_gelu else functional.relu(hidden)
        return functional.linear(hidden, ffn_weight_2, ffn_bias_2)

    if norm_first:
        x = src + attend(norm(src, norm_weight_1, norm_bias_1))
        return x + feed(norm(x, norm_weight_2, norm_bias_2))
    x = norm(src + attend(src), norm_weight_1, norm_bias_1)
    return norm(x + feed(x), norm_weight_2, norm_bias_2)


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    num_heads: int,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    mask: torch.Tensor | None,
    mask_type: int | None,
) -> torch.Tensor:
    batch, length, width = query.shape

    def heads(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(batch, x.shape[1], num_heads, width // num_heads).transpose(1, 2)

    bias = None if mask is None else _additive(mask, mask_type, query.dtype)
    out = functional.scaled_dot_product_attention(heads(query), heads(key), heads(value), attn_mask=bias)
    return functional.linear(out.transpose(1, 2).reshape(batch, length, width), proj_weight, proj_bias)


def _additive(mask: torch.Tensor, mask_type: int | None, dtype: torch.dtype) -> torch.Tensor:
    """What to add to the scores: -inf where the fused operator masks, that is where `mask` is not zero.

    A row that is masked whole gives NaN there, so it does here.
    """
    hidden = mask.to(torch.bool)
    if mask_type == _MASK_PADDING:
        hidden = hidden[:, None, None, :]
    elif mask_type == _MASK_SRC:
        hidden = hidden[None, None]
    nothing_left = hidden.all(dim=-1, keepdim=True)
    scores = torch.zeros_like(hidden, dtype=dtype).masked_fill(hidden, float("-inf"))
    return scores.masked_fill(nothing_left, float("nan"))


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten._transformer_encoder_layer_fwd.default: _transformer_encoder_layer,
}

# Of inference alone: PyTorch has no kernel for them that is faster than their parts together in the engine. What they
# are written out in is PyTorch's.
_OF_INFERENCE = get_decompositions(
    [
        *(aten.affine_grid_generator, aten.binary_cross_entropy_with_logits, aten.deg2rad, aten.diag_embed),
        *(aten.frac, aten.linspace, aten.logaddexp, aten.logit, aten.logsumexp, aten.mse_loss),
        *(aten.nll_loss_forward, aten.rad2deg, aten.sinc, aten.smooth_l1_loss, aten.threshold, aten.xlogy),
    ]
)


def for_inference() -> dict[Any, Callable[..., Any]]:
    """What is replaced where no gradients are needed: DECOMPOSITIONS, and more."""
    return {**_OF_INFERENCE, **DECOMPOSITIONS}

"""What the operators take: one function each, which gives the shape of the result or says what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

APPROXIMATIONS = ("none", "tanh")

_broadcast: Any = torch.broadcast_shapes


def floats(op: str, **tensors: torch.Tensor | None) -> None:
    """Compares dtypes and devices.

    Raises:
      ValueError: a tensor is not of floats, or not of the dtype and on the device of the first.
    """
    present = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    first_name, first = next(iter(present.items()))
    for name, tensor in present.items():
        if not tensor.is_floating_point():
            raise ValueError(f"thresher.ops.{op}: expected {name} of floats, got {_kind(tensor)}; convert it first")
        if tensor.dtype != first.dtype or tensor.device != first.device:
            raise ValueError(
                f"thresher.ops.{op}: expected {name} of {_kind(first)} on {first.device} as {first_name} is, got "
                f"{_kind(tensor)} on {tensor.device}; convert it with .to({first_name})"
            )


def matmul(a: torch.Tensor, b: torch.Tensor) -> Sequence[int]:
    """The shape of a @ b."""
    floats("matmul", a=a, b=b)
    if a.dim() < 2 or b.dim() < 2 or a.shape[-1] != b.shape[-2]:
        raise _wrong("matmul", "a [..., m, k] and b [..., k, n]", "transpose one, or add a dimension", a, b)
    try:
        batch = _broadcast(a.shape[:-2], b.shape[:-2])
    except RuntimeError as error:
        raise _wrong("matmul", "batches that broadcast", "expand or reshape one", a, b) from error
    return (*batch, a.shape[-2], b.shape[-1])


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> Sequence[int]:
    """The shape of x @ weight.T + bias."""
    floats("linear", x=x, weight=weight, bias=bias)
    if x.dim() < 1 or weight.dim() != 2 or x.shape[-1] != weight.shape[1]:
        raise _wrong("linear", "x [..., k] and weight [n, k]", "transpose the weight", x, weight)
    if bias is not None and tuple(bias.shape) != (weight.shape[0],):
        raise _wrong("linear", "weight [n, k] and bias [n]", "give one number for each row of the weight", weight, bias)
    return (*x.shape[:-1], weight.shape[0])


def attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, causal: bool
) -> Sequence[int]:
    """The shape of softmax(query @ key.T) @ value."""
    floats("attention", query=query, key=key, value=value)
    wanted = "query [b, h, q, d], key [b, g, k, d] and value [b, g, k, e] with h a multiple of g"
    same = query.dim() == key.dim() == value.dim() == 4 and (
        query.shape[0] == key.shape[0] == value.shape[0]
        and key.shape[1] == value.shape[1]
        and key.shape[2] == value.shape[2]
        and query.shape[3] == key.shape[3]
    )
    if not same or key.shape[1] == 0 or query.shape[1] % key.shape[1] != 0:
        raise _wrong("attention", wanted, "put heads before positions", query, key, value)
    if mask is not None:
        if causal:
            raise ValueError(
                "thresher.ops.attention: expected a mask or causal=True, got both; put -inf above the mask's diagonal"
            )
        if mask.dtype != torch.bool and mask.dtype != query.dtype:
            raise ValueError(
                f"thresher.ops.attention: expected a mask of bool or {_kind(query)}, got {_kind(mask)}; True lets a "
                "position be seen, and floats are added to the scores"
            )
        scores = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
        try:
            fits = tuple(_broadcast(mask.shape, scores)) == scores
        except RuntimeError:
            fits = False
        if not fits:
            raise ValueError(
                f"thresher.ops.attention: expected a mask that broadcasts to {list(scores)}, got "
                f"{list(mask.shape)}; its last two dimensions are queries and keys"
            )
    return (*query.shape[:3], value.shape[3])


def norm(
    op: str,
    x: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> Sequence[int]:
    """The shape of a norm over the last dimensions."""
    floats(op, x=x, weight=weight, bias=bias)
    dims = len(normalized_shape)
    if dims < 1 or dims > x.dim() or tuple(x.shape[-dims:]) != tuple(normalized_shape):
        raise ValueError(
            f"thresher.ops.{op}: expected x to end with normalized_shape {list(normalized_shape)}, got "
            f"{list(x.shape)}; give the sizes of its last dimensions"
        )
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor is not None and tuple(tensor.shape) != tuple(normalized_shape):
            raise ValueError(
                f"thresher.ops.{op}: expected {name} of shape {list(normalized_shape)}, got {list(tensor.shape)}; "
                "one number for each normalised element"
            )
    if not eps >= 0:
        raise ValueError(f"thresher.ops.{op}: expected eps of at least 0, got {eps}; 1e-5 is common")
    return tuple(x.shape)


def softmax(x: torch.Tensor, dim: int) -> Sequence[int]:
    """The shape of a softmax."""
    floats("softmax", x=x)
    rank = max(x.dim(), 1)
    if not -rank <= dim < rank:
        raise ValueError(
            f"thresher.ops.softmax: expected dim from {-rank} to {rank - 1} for x of shape {list(x.shape)}, got {dim}; "
            "-1 is the last"
        )
    return tuple(x.shape)


def gelu(x: torch.Tensor, approximate: str) -> Sequence[int]:
    """The shape of gelu of x."""
    floats("gelu", x=x)
    if approximate not in APPROXIMATIONS:
        raise ValueError(
            f'thresher.ops.gelu: expected approximate "none" or "tanh", got {approximate!r}; "none" goes through erf'
        )
    return tuple(x.shape)


def silu(x: torch.Tensor) -> Sequence[int]:
    """The shape of silu of x."""
    floats("silu", x=x)
    return tuple(x.shape)


def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Sequence[int]:
    """The shape of x with its pairs turned."""
    floats("rotary", x=x, cos=cos, sin=sin)
    fits = x.dim() in (3, 4) and cos.dim() == 2 and cos.shape == sin.shape and cos.shape[0] == x.shape[-3]
    if not fits or cos.shape[1] < 1 or 2 * cos.shape[1] > x.shape[-1]:
        raise _wrong(
            "rotary",
            "x [..., tokens, heads, d] of rank 3 or 4, cos and sin [tokens, pairs] with pairs at most d / 2",
            "put tokens before heads",
            x,
            cos,
            sin,
        )
    return tuple(x.shape)


def _kind(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _wrong(op: str, wanted: str, cure: str, *tensors: torch.Tensor) -> ValueError:
    found = ", ".join(str(list(tensor.shape)) for tensor in tensors)
    return ValueError(f"thresher.ops.{op}: expected {wanted}, got {found}; {cure}")

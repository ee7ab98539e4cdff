"""Scaled dot-product attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from thresher.signatures.signature import DTYPE_NAMES, Argument, Signature, float_type, joined, sizes


@dataclass(frozen=True, init=False)
class SdpaSignature(Signature):
    """Scaled dot-product attention of all heads of a batch.

        >>> SdpaSignature((2, 8, 128, 64), causal=True).output_shape
        (2, 8, 128, 64)

    Attributes:
        query_shape: Sizes of the query: [n, heads, length, size].
        key_shape: Sizes of key and value: [n, heads, length, size].
        causal: Whether query i sees keys 0 to i only.
        masked: Whether there is a mask of floats that is added to the scores: [n, 1, query's length, key's length].
        dtype: torch.float32, torch.bfloat16 or torch.float16, of all tensors.
    """

    query_shape: tuple[int, ...]
    key_shape: tuple[int, ...]
    causal: bool
    masked: bool
    dtype: torch.dtype

    def __init__(
        self,
        query_shape: Sequence[int],
        key_shape: Sequence[int] | None = None,
        *,
        causal: bool = False,
        masked: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Checks everything.

        Args:
            query_shape: As the attribute.
            key_shape: As the attribute; by default the query's.
            causal: As the attribute.
            masked: As the attribute.
            dtype: As the attribute.

        Raises:
            ValueError: The shapes do not fit each other, or an argument cannot be; names both shapes.
        """
        query = sizes("query_shape", query_shape)
        key = query if key_shape is None else sizes("key_shape", key_shape)
        if len(query) != 4 or len(key) != 4 or query[:2] != key[:2] or query[3] != key[3]:
            raise ValueError(
                "sdpa: expected query and key of [n, heads, length, size] that differ in length alone, got "
                f"{list(query)} and {list(key)}"
            )
        if causal and masked:
            raise ValueError("sdpa: expected a mask or causal, got both")
        fields = {
            "query_shape": query,
            "key_shape": key,
            "causal": bool(causal),
            "masked": bool(masked),
            "dtype": float_type("sdpa", dtype),
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    @property
    def func_name(self) -> str:
        """Readable and unique."""
        parts = ["sdpa", DTYPE_NAMES[self.dtype], joined(self.query_shape), joined(self.key_shape)]
        flags = (("causal", self.causal), ("masked", self.masked))
        return "_".join([*parts, *(name for name, is_so in flags if is_so)])

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """Query, key, value and, with `masked`, mask."""
        tensors = (
            Argument("query", self.query_shape, self.dtype),
            Argument("key", self.key_shape, self.dtype),
            Argument("value", self.key_shape, self.dtype),
        )
        mask = (self.query_shape[0], 1, self.query_shape[2], self.key_shape[2])
        return (*tensors, Argument("mask", mask, self.dtype)) if self.masked else tensors

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The query's."""
        return self.query_shape

    @property
    def depth(self) -> int:
        """Products of a score, and of an element of the result."""
        return self.query_shape[3] + self.key_shape[2]

    def call(self, *args: torch.Tensor) -> torch.Tensor:
        """Attention in PyTorch."""
        query, key, value = args[:3]
        mask = args[3] if self.masked else None
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=self.causal)

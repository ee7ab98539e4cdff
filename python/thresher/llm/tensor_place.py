"""Tensors as plans take them."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence


def tensor_place(address: int, shape: Sequence[int]) -> bytes:
    """A row-major tensor, as Plan.run_at() takes it."""
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    return struct.pack(f"={2 + 2 * len(shape)}q", address, len(shape), *shape, *strides)

"""Tables of the angles of rotary positions."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from thresher.llm.models.config import Rope

Floats = npt.NDArray[np.float32]


def tables(rope: Rope, positions: int) -> tuple[Floats, Floats]:
    """Cosines and sines of all angles.

    Args:
      rope: how angles follow from positions.
      positions: how many positions, from 0 on.

    Returns:
      cos and sin, each f32 [positions, rope.pairs]; where the scaling asks for it they are multiplied by its factor.
    """
    frequencies, factor = _frequencies(rope, positions)
    angles = np.outer(np.arange(positions, dtype=np.float32), frequencies.astype(np.float32)).astype(np.float32)
    return (np.cos(angles) * np.float32(factor)).astype(np.float32), (np.sin(angles) * np.float32(factor)).astype(
        np.float32
    )


def _frequencies(rope: Rope, positions: int) -> tuple[npt.NDArray[np.float64], float]:
    """Turns a token of each pair, and what cosines and sines are multiplied by."""
    width = 2 * rope.pairs
    base = rope.theta ** -(np.arange(0, width, 2, dtype=np.float64) / width)
    scaling = rope.scaling
    kind = scaling.get("rope_type", "default")
    if kind == "factors":
        return base / np.asarray(scaling["factors"], np.float64), 1.0
    if kind == "linear":
        return base / float(scaling["factor"]), 1.0
    if kind == "llama3":
        return _llama3(base, scaling["factor"], scaling), 1.0
    if kind == "yarn":
        return _yarn(base, rope)
    if kind == "longrope":
        original = float(scaling.get("original_max_position_embeddings") or positions)
        most = float(scaling.get("max_position_embeddings") or positions)
        factors = scaling["long_factor"] if positions > original else scaling["short_factor"]
        stretch = float(scaling.get("factor") or most / original)
        factor = scaling.get("attention_factor")
        if factor is None:
            factor = 1.0 if stretch <= 1 else math.sqrt(1 + math.log(stretch) / math.log(original))
        return base / np.asarray(factors, np.float64), float(factor)
    # "dynamic" changes nothing up to the length that the model was trained with.
    return base, 1.0


def _llama3(base: npt.NDArray[np.float64], factor: float, scaling: object) -> npt.NDArray[np.float64]:
    """Slow turns are slowed down, fast ones stay, those between are blended."""
    assert hasattr(scaling, "__getitem__")
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    original = float(scaling["original_max_position_embeddings"])
    length = 2 * math.pi / base
    blend = (original / length - low) / (high - low)
    blended = (1 - blend) * base / factor + blend * base
    slow = np.where(length > original / low, base / factor, base)
    between = (length >= original / high) & (length <= original / low)
    return np.where(between, blended, slow)


def _yarn(base: npt.NDArray[np.float64], rope: Rope) -> tuple[npt.NDArray[np.float64], float]:
    scaling = rope.scaling
    factor = float(scaling["factor"])
    original = float(scaling.get("original_max_position_embeddings") or scaling["max_position_embeddings"])
    width = 2 * rope.pairs

    def pair_of(rotations: float) -> float:
        return width * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = pair_of(float(scaling.get("beta_fast") or 32)), pair_of(float(scaling.get("beta_slow") or 1))
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    if low == high:
        high += 0.001
    ramp = np.clip((np.arange(rope.pairs) - low) / (high - low), 0, 1)

    def magnitude(scale: float, m: float) -> float:
        return 1.0 if scale <= 1 else 0.1 * m * math.log(scale) + 1.0

    attention = scaling.get("attention_factor")
    if attention is None:
        m, m_all = scaling.get("mscale"), scaling.get("mscale_all_dim")
        attention = magnitude(factor, m) / magnitude(factor, m_all) if m and m_all else magnitude(factor, 1.0)
    return base / factor * ramp + base * (1 - ramp), float(attention)

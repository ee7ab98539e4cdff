"""Whisper's architecture in its smallest size, with seeded weights: no package ships those that were trained."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch

from thresher.zoo.entry import Entry, Parts

# The sizes of openai/whisper-tiny.
SIZES = {
    "d_model": 384,
    "encoder_layers": 4,
    "decoder_layers": 4,
    "encoder_attention_heads": 6,
    "decoder_attention_heads": 6,
    "encoder_ffn_dim": 1536,
    "decoder_ffn_dim": 1536,
    "vocab_size": 51865,
}
FRAMES, BANDS = 3000, 80  # 30 seconds


def _demonstrate(run: Callable[..., Any]) -> str:
    inputs = _inputs()
    with torch.no_grad():
        logits = run(**inputs).logits
    tokens = logits.argmax(-1)[0].tolist()
    return (
        f"30 seconds of noise become the tokens {tokens}; they mean nothing, for the weights are seeded.\n"
        "What can be judged is that eager PyTorch gives the same."
    )


def _inputs() -> dict[str, torch.Tensor]:
    noise = torch.randn(1, BANDS, FRAMES, generator=torch.Generator().manual_seed(0))
    return {"input_features": noise, "decoder_input_ids": torch.tensor([[50258, 50259, 50359, 50363]])}


def _make() -> Parts:
    transformers: Any = importlib.import_module("transformers")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(**SIZES)).eval()
    model.config.use_cache = False
    return Parts(model, _inputs(), _demonstrate)


ENTRY = Entry(
    "whisper-tiny",
    "speech",
    "Whisper in the size of whisper-tiny: 30 seconds of sound to scores of tokens.",
    37760640,
    "seeded",
    "random numbers, seed 0; the architecture is that of transformers",
    (("transformers", "transformers"),),
    _make,
)

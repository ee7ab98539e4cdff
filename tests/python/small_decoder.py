"""A small decoder of transformers with random weights, as a folder that language models are loaded from."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def write_decoder(path: Path, architecture: str, seed: int, **changes: Any) -> Path:
    """Writes one of two layers of width 64, with four heads that share two of keys and values.

    Args:
      path: the folder.
      architecture: as the name of its configuration in transformers begins, such as "Llama".
      seed: of the weights.
      **changes: of its configuration.

    Returns:
      The folder.
    """
    import torch
    import transformers

    sizes = {
        "vocab_size": 160,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
    }
    config = getattr(transformers, f"{architecture}Config")(**{**sizes, **changes})
    torch.manual_seed(seed)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(path)
    return path

"""Finds the parts of a model on disk."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from thresher.llm.models import ModelConfig
from thresher.llm.models.checkpoint import read_folder
from thresher.llm.models.decoder import Tensors
from thresher.llm.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True, slots=True)
class Loaded:
    """A model on disk.

    Attributes:
      config: what its graph follows from.
      tensors: its weights.
      tokenizer: None where the folder has none.
      eos_token_ids: tokens that end an answer.
    """

    config: ModelConfig
    tensors: Tensors
    tokenizer: Tokenizer | None
    eos_token_ids: tuple[int, ...]


def load(path: Path) -> Loaded:
    """Reads a model.

    Raises:
      FileNotFoundError: the path, or a file that is wanted there, does not exist.
      ValueError: a file is not what it should be, or the model is not supported.
    """
    if not path.exists():
        raise FileNotFoundError(f"expected a model at {path}, got nothing there")
    if not path.is_dir():
        raise ValueError(f"expected a folder with config.json, got the file {path}")
    described, tensors = read_folder(path)
    config = ModelConfig.from_dict(described)
    tokenizer = Tokenizer.from_folder(path) if (path / "tokenizer.json").is_file() else None
    return Loaded(config, tensors, tokenizer, _ends(path, config, tokenizer))


def _ends(path: Path, config: ModelConfig, tokenizer: Tokenizer | None) -> tuple[int, ...]:
    """What generation_config.json says ends an answer, else config.json, else the tokenizer."""
    file = path / "generation_config.json"
    if file.is_file():
        found = json.loads(file.read_text(encoding="utf-8")).get("eos_token_id")
        if isinstance(found, list):
            return tuple(int(token) for token in found)
        if found is not None:
            return (int(found),)
    if config.eos_token_ids or tokenizer is None or "eos_token" not in tokenizer.special:
        return config.eos_token_ids
    number = tokenizer.token_id(tokenizer.special["eos_token"])
    return () if number is None else (number,)

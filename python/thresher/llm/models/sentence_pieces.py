"""Tokenizers of sentence pieces as GGUF files have them: pieces with scores instead of merges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from thresher.llm.models.config import UnsupportedModelError

_SPACE = "\u2581"
_NORMAL, _UNKNOWN = 1, 2  # types of tokens


def pieces_backend(metadata: Mapping[str, Any]) -> Any:
    """A tokenizers.Tokenizer of the vocabulary in the metadata (tokenizer.ggml.model "llama").

    Raises:
      UnsupportedModelError: there are no scores.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, processors

    tokens = list(metadata["tokenizer.ggml.tokens"])
    scores = metadata.get("tokenizer.ggml.scores")
    if scores is None or len(scores) != len(tokens):
        found = "none" if scores is None else len(scores)
        raise UnsupportedModelError(f"expected tokenizer.ggml.scores of {len(tokens)} tokens, got {found}")
    types = np.asarray(metadata.get("tokenizer.ggml.token_type", np.full(len(tokens), _NORMAL)))
    unknown = np.flatnonzero(types == _UNKNOWN)
    backend = Tokenizer(
        models.BPE(
            dict(zip(tokens, range(len(tokens)), strict=True)),
            _merges(tokens, np.asarray(scores), types),
            unk_token=tokens[int(unknown[0])] if len(unknown) else None,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefixed = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    spaces = [normalizers.Replace(" ", _SPACE)]
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), *spaces] if prefixed else spaces)
    texts = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*texts, decoders.Strip(" ", 1, 0)] if prefixed else texts)
    around: dict[str, int] = {}
    template = ["$A"]
    for name, given in (("bos", True), ("eos", False)):
        number = metadata.get(f"tokenizer.ggml.{name}_token_id")
        wanted = metadata.get(f"tokenizer.ggml.add_{name}_token", given)
        if wanted and number is not None and int(number) < len(tokens):
            token = tokens[int(number)]
            around[token] = int(number)
            template.insert(0 if name == "bos" else len(template), token)
    if around:
        backend.post_processor = processors.TemplateProcessing(
            single=" ".join(template), special_tokens=list(around.items())
        )
    return backend


def _merges(
    tokens: Sequence[str], scores: npt.NDArray[np.float32], types: npt.NDArray[np.int32]
) -> list[tuple[str, str]]:
    """Pairs of pieces that are a piece together, the best piece first."""
    normal = np.flatnonzero(types == _NORMAL)
    known = {tokens[int(number)] for number in normal}
    found = []
    for number in normal[np.argsort(-scores[normal], kind="stable")]:
        piece = tokens[int(number)]
        for end in range(len(piece) - 1, 0, -1):
            if piece[:end] in known and piece[end:] in known:
                found.append((piece[:end], piece[end:]))
    return found

"""What a GGUF file says of its model and its tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from thresher import _engine
from thresher.llm.models.config import ModelConfig, Rope, UnsupportedModelError
from thresher.llm.models.sentence_pieces import pieces_backend
from thresher.llm.tokenizer import Tokenizer

# general.architecture, what it is called in config.json, and whether its pairs of rotary positions are neighbours.
_ARCHITECTURES = {
    "llama": ("llama", True),
    "qwen2": ("qwen2", False),
    "qwen3": ("qwen3", False),
    "phi3": ("phi3", False),
    "gemma3": ("gemma3_text", False),
}
_GEMMA_PATTERN = 6  # each sixth layer sees all keys
_CONTROL, _USER_DEFINED = 3, 4  # types of tokens
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def config_of(metadata: Mapping[str, Any], factors: Any = None) -> ModelConfig:
    """The model that the metadata describes.

    Args:
      metadata: of the file.
      factors: what frequencies of rotary positions are divided by (the tensor rope_freqs.weight), if there are some.

    Raises:
      UnsupportedModelError: the architecture is not known, or a key is missing.
    """
    architecture = metadata.get("general.architecture")
    if architecture not in _ARCHITECTURES:
        raise UnsupportedModelError(f"expected a GGUF of {', '.join(_ARCHITECTURES)}, got {architecture!r}")
    if "tokenizer.ggml.tokens" not in metadata:
        raise UnsupportedModelError("expected the key tokenizer.ggml.tokens, got none; take a file with a vocabulary")
    kind, interleaved = _ARCHITECTURES[architecture]

    def value(name: str, fallback: Any = None) -> Any:
        found = metadata.get(f"{architecture}.{name}", fallback)
        if found is None:
            raise UnsupportedModelError(f"expected {architecture}.{name} in the file's metadata, got none")
        return found

    layers, hidden, heads = (
        int(value("block_count")),
        int(value("embedding_length")),
        int(value("attention.head_count")),
    )
    size = int(value("attention.key_length", hidden // heads))
    scaling: dict[str, Any] = {"rope_type": "default"}
    if factors is not None:
        scaling = {"rope_type": "factors", "factors": factors}
    elif value("rope.scaling.type", "none") in ("linear", "yarn"):
        scaling = {
            "rope_type": value("rope.scaling.type"),
            "factor": float(value("rope.scaling.factor")),
            "original_max_position_embeddings": int(value("rope.scaling.original_context_length", 0)) or None,
            "max_position_embeddings": int(value("context_length")),
        }
    pairs = int(value("rope.dimension_count", size)) // 2
    own = Rope(float(value("rope.freq_base", 10000.0)), pairs, scaling, interleaved)
    ropes: tuple[Rope, ...] = (own,) * layers
    windows: tuple[int, ...] = (int(value("attention.sliding_window", 0)),) * layers
    gemma = kind == "gemma3_text"
    if gemma:
        local = Rope(10000.0, pairs, {"rope_type": "default"}, interleaved)
        far = [(i + 1) % _GEMMA_PATTERN == 0 for i in range(layers)]
        ropes = tuple(own if all_keys else local for all_keys in far)
        windows = tuple(0 if all_keys else windows[0] for all_keys in far)
    found = (metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot"))
    ends = {int(token) for token in found if token is not None}
    return ModelConfig(
        architecture=kind,
        vocab_size=len(metadata["tokenizer.ggml.tokens"]),
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=int(value("attention.head_count_kv", heads)),
        head_size=size,
        intermediate_size=int(value("feed_forward_length")),
        norm_eps=float(value("attention.layer_norm_rms_epsilon")),
        max_positions=int(value("context_length")),
        windows=windows,
        ropes=ropes,
        attention_scale=size**-0.5,
        norm="rms_plus_one" if gemma else "rms",
        post_norms=gemma,
        qk_norm=gemma or kind == "qwen3",
        activation="gelu_tanh" if gemma else "silu",
        embedding_scale=float(hidden) ** 0.5 if gemma else 1.0,
        eos_token_ids=tuple(sorted(ends)),
        bos_token_id=metadata.get("tokenizer.ggml.bos_token_id"),
    )


def tokenizer_of(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer in the metadata.

    Raises:
      UnsupportedModelError: it is of another kind than pairs of bytes and sentence pieces.
    """
    from tokenizers import AddedToken

    kind = metadata.get("tokenizer.ggml.model")
    if kind not in _BACKENDS:
        raise UnsupportedModelError(
            "expected a tokenizer of pairs of bytes (gpt2) or of sentence pieces (llama) in the file, got "
            f"{kind!r}; use its Hugging Face folder"
        )
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata.get("tokenizer.ggml.token_type")
    if types is not None and len(types) != len(tokens):
        raise UnsupportedModelError(f"expected tokenizer.ggml.token_type of {len(tokens)} tokens, got {len(types)}")
    backend = _BACKENDS[kind](metadata)
    if types is not None:
        types = np.asarray(types)
        special = [tokens[i] for i in np.flatnonzero(types == _CONTROL)]
        backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
        others = [tokens[i] for i in np.flatnonzero(types == _USER_DEFINED)]
        backend.add_tokens([AddedToken(token, special=False, normalized=False) for token in others])
    names = {}
    for name in ("bos", "eos", "unknown", "padding"):
        number = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if number is not None and int(number) < len(tokens):
            names[{"unknown": "unk", "padding": "pad"}.get(name, name) + "_token"] = tokens[int(number)]
    return Tokenizer(backend, metadata.get("tokenizer.chat_template"), names)


def _pairs_backend(metadata: Mapping[str, Any]) -> Any:
    """A tokenizers.Tokenizer of pairs of bytes."""
    from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
    from tokenizers import Tokenizer as Backend

    pre = metadata.get("tokenizer.ggml.pre", "default")
    # There may be hundreds of thousands, and no other thread runs Python meanwhile: no loops of Python's own.
    tokens, merges = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.merges"]
    backend = Backend(models.BPE(*_engine.pairs_vocabulary(tokens, merges)))
    if pre in ("smollm", "starcoder", "refact", "command-r"):
        parts = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    elif pre in ("qwen2", "llama-bpe", "llama3", "llama-v3"):
        words = _WORDS % ("" if pre == "qwen2" else "{1,3}")
        parts = [
            pre_tokenizers.Split(Regex(words), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    elif pre in ("gpt-2", "default"):
        parts = [pre_tokenizers.ByteLevel(add_prefix_space=False)]
    else:
        raise UnsupportedModelError(f"expected a known split into words (tokenizer.ggml.pre), got {pre!r}")
    backend.pre_tokenizer = pre_tokenizers.Sequence(parts)
    if pre == "qwen2":
        backend.normalizer = normalizers.NFC()
    backend.decoder = decoders.ByteLevel()
    return backend


_BACKENDS = {"gpt2": _pairs_backend, "llama": pieces_backend}  # by tokenizer.ggml.model

"""The architectures of bench/run.py --architectures: small, with random weights, and large enough to do real work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

SEED = 15
WORDS = 4000
BATCH, SEQUENCE = 2, 128
IMAGES, PIXELS = 2, 128
SAMPLES = 16000  # a second of speech
FRAMES = 400  # four seconds of spectrogram


@dataclass(frozen=True)
class Architecture:
    """One row of the page.

    Attributes:
      key: name on the command line and in the table.
      kind: encoder, decoder, vision, speech, experts, state space or perceptron.
      family: what transformers calls it, as in FAMILYModel and FAMILYConfig; empty where PyTorch has all of it.
      inputs: what the model is called with, one of the functions below.
      sizes: arguments of the configuration.
      model: class of the model where it is not FAMILYModel.
      whole: the size of a published model: measured where it is asked for, not with all the others.
    """

    key: str
    kind: str
    family: str
    inputs: str
    sizes: Mapping[str, Any] = field(default_factory=dict)
    model: str = ""
    whole: bool = False


_BERT = {
    "vocab_size": WORDS,
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
}
_LLAMA = {**_BERT, "num_key_value_heads": 2, "intermediate_size": 688, "use_cache": False, "pad_token_id": 0}
_EXPERTS = {**_LLAMA, "num_hidden_layers": 2, "num_experts_per_tok": 2}

ARCHITECTURES = {
    one.key: one
    for one in (
        Architecture("bert", "encoder", "Bert", "words", _BERT),
        Architecture("roberta", "encoder", "Roberta", "words", _BERT),
        Architecture("mpnet", "encoder", "MPNet", "words", _BERT),
        Architecture(
            "distilbert",
            "encoder",
            "DistilBert",
            "words",
            {"vocab_size": WORDS, "dim": 256, "n_layers": 4, "n_heads": 4, "hidden_dim": 1024},
        ),
        Architecture("albert", "encoder", "Albert", "words", {**_BERT, "embedding_size": 64}),
        Architecture(
            "deberta",
            "encoder",
            "DebertaV2",
            "words",
            {**_BERT, "relative_attention": True, "position_buckets": 64, "pos_att_type": ["p2c", "c2p"]},
        ),
        Architecture(
            "modernbert", "encoder", "ModernBert", "words", {**_BERT, "intermediate_size": 384, "pad_token_id": 0}
        ),
        Architecture(
            "gpt2",
            "decoder",
            "GPT2",
            "words",
            {"vocab_size": WORDS, "n_embd": 256, "n_layer": 4, "n_head": 4, "use_cache": False},
        ),
        Architecture("llama", "decoder", "Llama", "words", _LLAMA),
        Architecture("qwen3", "decoder", "Qwen3", "words", {**_LLAMA, "head_dim": 64}),
        Architecture(
            "gemma3",
            "decoder",
            "Gemma3Text",
            "words",
            {**_LLAMA, "head_dim": 64, "sliding_window": 64},
            "Gemma3TextModel",
        ),
        Architecture("phi3", "decoder", "Phi3", "words", _LLAMA),
        Architecture(
            "opt", "decoder", "OPT", "words", {**_BERT, "ffn_dim": 1024, "word_embed_proj_dim": 256, "use_cache": False}
        ),
        Architecture("gptneox", "decoder", "GPTNeoX", "words", {**_BERT, "use_cache": False}),
        Architecture(
            "t5",
            "encoder and decoder",
            "T5",
            "two texts",
            {
                "vocab_size": WORDS,
                "d_model": 256,
                "d_kv": 64,
                "d_ff": 1024,
                "num_layers": 3,
                "num_heads": 4,
                "use_cache": False,
            },
        ),
        Architecture(
            "vit",
            "vision",
            "ViT",
            "pixels",
            {**{k: v for k, v in _BERT.items() if k != "vocab_size"}, "image_size": PIXELS, "patch_size": 16},
        ),
        Architecture("segformer", "vision", "Segformer", "pixels", {}),
        Architecture(
            "swin",
            "vision",
            "Swin",
            "pixels",
            {"image_size": PIXELS, "embed_dim": 48, "window_size": 4, "depths": [2, 2, 2], "num_heads": [2, 4, 8]},
        ),
        Architecture(
            "convnext", "vision", "ConvNext", "pixels", {"depths": [2, 2, 4, 2], "hidden_sizes": [48, 96, 192, 384]}
        ),
        Architecture(
            "resnet", "vision", "ResNet", "pixels", {"depths": [2, 2, 2, 2], "hidden_sizes": [64, 128, 256, 512]}
        ),
        Architecture("wav2vec2", "speech", "Wav2Vec2", "speech", {**_BERT, "conv_dim": [128] * 7}),
        Architecture(
            "whisper",
            "speech",
            "Whisper",
            "spectrogram",
            {
                "d_model": 256,
                "encoder_layers": 4,
                "encoder_attention_heads": 4,
                "encoder_ffn_dim": 1024,
                "num_mel_bins": 80,
                "max_source_positions": FRAMES // 2,
            },
            "WhisperEncoder",
        ),
        Architecture("mixtral", "experts", "Mixtral", "words", {**_EXPERTS, "num_local_experts": 4}),
        Architecture(
            "qwen2moe",
            "experts",
            "Qwen2Moe",
            "words",
            {**_EXPERTS, "num_experts": 8, "moe_intermediate_size": 256, "shared_expert_intermediate_size": 256},
        ),
        Architecture(
            "mamba",
            "state space",
            "Mamba",
            "plain words",
            {"vocab_size": WORDS, "hidden_size": 192, "num_hidden_layers": 2, "use_cache": False},
        ),
        Architecture(
            "mamba2",
            "state space",
            "Mamba2",
            "plain words",
            {
                "vocab_size": WORDS,
                "hidden_size": 256,
                "num_hidden_layers": 3,
                "num_heads": 8,
                "head_dim": 64,
                "state_size": 64,
                "n_groups": 1,
                "chunk_size": 32,
                "use_cache": False,
            },
        ),
        Architecture("mlp", "perceptron", "", "features"),
        Architecture("bert-base", "encoder", "Bert", "words", {}, whole=True),
        Architecture("gpt2-small", "decoder", "GPT2", "words", {"use_cache": False}, whole=True),
        Architecture(
            "llama-0.4b",
            "decoder",
            "Llama",
            "words",
            {
                **_LLAMA,
                "hidden_size": 896,
                "num_hidden_layers": 24,
                "num_attention_heads": 14,
                "intermediate_size": 4864,
                "vocab_size": 32000,
            },
            whole=True,
        ),
    )
}


SMALL = tuple(one.key for one in ARCHITECTURES.values() if not one.whole)
WHOLE = tuple(one.key for one in ARCHITECTURES.values() if one.whole)


def make(architecture: Architecture) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """The model in float32, ready for inference, and what to call it with; the same on every machine."""
    import torch

    torch.manual_seed(SEED)
    if architecture.family:
        import transformers
        from transformers.models import auto as _  # noqa: F401

        config = getattr(transformers, f"{architecture.family}Config")(**architecture.sizes)
        name = architecture.model or f"{architecture.family}Model"
        model: torch.nn.Module = _class_of(config, name)(config)
    else:
        model = _perceptron()
    # Statistics of batch norms and weights that begin as 0 or 1 would hide errors.
    with torch.no_grad():
        for key, value in (*model.named_parameters(), *model.named_buffers()):
            if key.endswith("running_mean"):
                value.normal_(0, 0.2)
            elif key.endswith("running_var"):
                value.uniform_(0.5, 1.5)
    return model.eval(), _INPUTS[architecture.inputs]()


def _class_of(config: Any, name: str) -> Any:
    """A model's class; some that are parts of others are not offered by transformers itself."""
    import importlib

    module = type(config).__module__.replace(".configuration_", ".modeling_")
    return getattr(importlib.import_module(module), name)


def _perceptron() -> torch.nn.Module:
    from torch import nn

    def layer(width_in: int, width_out: int) -> list[nn.Module]:
        return [nn.Linear(width_in, width_out), nn.BatchNorm1d(width_out), nn.ReLU()]

    return nn.Sequential(*layer(256, 1024), *layer(1024, 1024), *layer(1024, 512), nn.Linear(512, 10))


def _words() -> dict[str, torch.Tensor]:
    import torch

    mask = torch.ones(BATCH, SEQUENCE, dtype=torch.long)
    mask[-1, SEQUENCE - SEQUENCE // 4 :] = 0  # padding, as every batch of texts has
    return {"input_ids": torch.randint(5, WORDS, (BATCH, SEQUENCE)), "attention_mask": mask}


def _plain_words() -> dict[str, torch.Tensor]:
    return {"input_ids": _words()["input_ids"]}


def _two_texts() -> dict[str, torch.Tensor]:
    words = _words()
    return {**words, "decoder_input_ids": _words()["input_ids"][:, : SEQUENCE // 2]}


def _pixels() -> dict[str, torch.Tensor]:
    import torch

    return {"pixel_values": torch.randn(IMAGES, 3, PIXELS, PIXELS)}


def _speech() -> dict[str, torch.Tensor]:
    import torch

    return {"input_values": torch.randn(BATCH, SAMPLES)}


def _spectrogram() -> dict[str, torch.Tensor]:
    import torch

    return {"input_features": torch.randn(1, 80, FRAMES)}


def _features() -> dict[str, torch.Tensor]:
    import torch

    return {"input": torch.randn(256, 256)}


_INPUTS = {
    "words": _words,
    "plain words": _plain_words,
    "two texts": _two_texts,
    "pixels": _pixels,
    "speech": _speech,
    "spectrogram": _spectrogram,
    "features": _features,
}

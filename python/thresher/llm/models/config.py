"""What the graph of a language model follows from, read from a Hugging Face config.json."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any


class UnsupportedModelError(ValueError):
    """The model is of a kind, or uses something, that there is no graph for."""


@dataclasses.dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions.

    Attributes:
      theta: the base of the angles.
      pairs: how many pairs of elements of a head are turned.
      scaling: config.json's description of how angles are changed for long contexts; empty: not at all.
      interleaved: a pair is two neighbours; else element i and i + pairs.
    """

    theta: float
    pairs: int
    scaling: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    interleaved: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder in the terms that its graph is built from.

    Attributes:
      architecture: `model_type` of config.json.
      windows: per layer how many keys a query sees, its own included; 0: all.
      ropes: per layer the rotary positions; None: none.
      norm: "rms", "rms_plus_one" (weights are offsets from 1) or "layer".
      post_norms: norms stand behind attention and feed-forward, too.
      activation: of the feed-forward part, an activation of the operator `linear`.
      gated: down(act(gate(x)) * up(x)); else down(act(up(x))).
      experts: how many feed-forward parts each layer chooses from; 0: there is one.
      experts_per_token: how many it takes.
      normalize_experts: the weights of those are made to add up to 1.
      sparse_layers: per layer whether it has experts.
      learned_positions: rows of a table of positions that is added to the embeddings; 0: none.
      eos_token_ids: what ends a text, as config.json says.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    intermediate_size: int
    norm_eps: float
    max_positions: int
    windows: tuple[int, ...]
    ropes: tuple[Rope | None, ...]
    attention_scale: float
    norm: str = "rms"
    post_norms: bool = False
    qk_norm: bool = False
    activation: str = "silu"
    gated: bool = True
    tie_embeddings: bool = False
    embedding_scale: float = 1.0
    attention_softcap: float = 0.0
    logits_softcap: float = 0.0
    learned_positions: int = 0
    experts: int = 0
    experts_per_token: int = 0
    expert_size: int = 0
    normalize_experts: bool = True
    sparse_layers: tuple[bool, ...] = ()
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None

    @staticmethod
    def from_dict(config: Mapping[str, Any]) -> ModelConfig:
        """Reads what config.json holds.

        Raises:
          UnsupportedModelError: the architecture, or something it asks for, is not known; what is missing is named.
        """
        kind = config.get("model_type")
        if kind == "gemma3" and "text_config" in config:
            return ModelConfig.from_dict({**config["text_config"], "model_type": "gemma3_text"})
        reader = _READERS.get(str(kind))
        if reader is None:
            raise UnsupportedModelError(f"expected a model of {', '.join(sorted(_READERS))}, got model_type {kind!r}")
        try:
            made = reader(config)
        except KeyError as error:
            raise UnsupportedModelError(f"config.json of a {kind}: expected {error}, got none") from None
        _check(made)
        return made


_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
}


def _check(config: ModelConfig) -> None:
    for name in ("vocab_size", "hidden_size", "num_layers", "num_heads", "num_kv_heads", "head_size", "max_positions"):
        value = getattr(config, name)
        if not isinstance(value, int) or not 1 <= value <= 1 << 31:
            raise UnsupportedModelError(f"config.json: expected {name} from 1 up, got {value!r}")
    if config.num_heads % config.num_kv_heads:
        raise UnsupportedModelError(
            f"config.json: expected heads a multiple of key heads, got {config.num_heads} and {config.num_kv_heads}"
        )
    if config.head_size % 16:
        raise UnsupportedModelError(f"config.json: expected a head size that 16 divides, got {config.head_size}")


def activation_of(name: str) -> str:
    """What the operator `linear` calls an activation of config.json.

    Raises:
      UnsupportedModelError: there is none.
    """
    if name not in _ACTIVATIONS:
        raise UnsupportedModelError(f"config.json: expected an activation of {sorted(_ACTIVATIONS)}, got {name!r}")
    return _ACTIVATIONS[name]


def _tokens(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    found = value if isinstance(value, (list, tuple)) else [value]
    return tuple(int(token) for token in found)


def _scaling(config: Mapping[str, Any], layer_type: str | None = None) -> dict[str, Any]:
    """What config.json says about angles, of either generation of its form."""
    found = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    if layer_type is not None and layer_type in found:
        found = dict(found[layer_type])
    kind = found.get("rope_type", found.get("type", "default"))
    if kind == "su":
        kind = "longrope"
    if kind not in ("default", "linear", "llama3", "yarn", "longrope", "dynamic"):
        raise UnsupportedModelError(f"config.json: expected a known rope_type, got {kind!r}")
    for name in ("original_max_position_embeddings", "partial_rotary_factor"):
        if name in config:
            found.setdefault(name, config[name])
    return {**found, "rope_type": kind}


def _rope(config: Mapping[str, Any], head_size: int, layer_type: str | None = None, theta: float | None = None) -> Rope:
    scaling = _scaling(config, layer_type)
    theta = float(scaling.get("rope_theta", config.get("rope_theta", 10000.0)) if theta is None else theta)
    factor = float(scaling.get("partial_rotary_factor") or 1.0)
    scaling.setdefault("max_position_embeddings", config.get("max_position_embeddings"))
    return Rope(theta, int(head_size * factor) // 2, scaling)


def _windows(config: Mapping[str, Any], default: bool) -> tuple[int, ...]:
    """Per layer, from `layer_types` where there are some; else all layers alike."""
    layers = int(config["num_hidden_layers"])
    window = int(config.get("sliding_window") or 0)
    kinds = config.get("layer_types")
    if kinds:
        return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)
    return (window if default else 0,) * layers


def _common(config: Mapping[str, Any]) -> dict[str, Any]:
    heads = config["num_attention_heads"]
    head_size = config.get("head_dim") or config["hidden_size"] // heads
    layers = config["num_hidden_layers"]
    return {
        "architecture": config["model_type"],
        "vocab_size": config["vocab_size"],
        "hidden_size": config["hidden_size"],
        "num_layers": layers,
        "num_heads": heads,
        "num_kv_heads": config.get("num_key_value_heads") or heads,
        "head_size": head_size,
        "intermediate_size": config["intermediate_size"],
        "norm_eps": float(config.get("rms_norm_eps", 1e-6)),
        "max_positions": config.get("max_position_embeddings", 2048),
        "windows": _windows(config, False),
        "ropes": (_rope(config, head_size),) * layers,
        "attention_scale": head_size**-0.5,
        "activation": activation_of(config.get("hidden_act", "silu")),
        "tie_embeddings": bool(config.get("tie_word_embeddings", False)),
        "eos_token_ids": _tokens(config.get("eos_token_id")),
        "bos_token_id": config.get("bos_token_id"),
    }


def _llama(config: Mapping[str, Any]) -> ModelConfig:
    return ModelConfig(**_common(config))


def _mistral(config: Mapping[str, Any]) -> ModelConfig:
    return ModelConfig(**{**_common(config), "windows": _windows(config, True)})


def _qwen2(config: Mapping[str, Any]) -> ModelConfig:
    made = _common(config)
    if config.get("use_sliding_window") and not config.get("layer_types"):
        window = int(config.get("sliding_window") or 0)
        full = int(config.get("max_window_layers", made["num_layers"]))
        made["windows"] = tuple(0 if i < full else window for i in range(made["num_layers"]))
    return ModelConfig(**made)


def _qwen3(config: Mapping[str, Any]) -> ModelConfig:
    return dataclasses.replace(_qwen2(config), qk_norm=True)


def _qwen3_moe(config: Mapping[str, Any]) -> ModelConfig:
    made = _qwen3(config)
    dense = set(config.get("mlp_only_layers") or ())
    step = config.get("decoder_sparse_step", 1)
    return dataclasses.replace(
        made,
        experts=config["num_experts"] if "num_experts" in config else config["num_local_experts"],
        experts_per_token=config["num_experts_per_tok"],
        expert_size=config["moe_intermediate_size"],
        normalize_experts=bool(config.get("norm_topk_prob", False)),
        sparse_layers=tuple(i not in dense and (i + 1) % step == 0 for i in range(made.num_layers)),
    )


def _phi3(config: Mapping[str, Any]) -> ModelConfig:
    return ModelConfig(**{**_common(config), "windows": _windows(config, True)})


def _gemma3(config: Mapping[str, Any]) -> ModelConfig:
    defaults = {
        "head_dim": 256,
        "hidden_act": config.get("hidden_activation", "gelu_pytorch_tanh"),
        "tie_word_embeddings": True,
    }
    config = {**defaults, **config}
    made = _common(config)
    layers = made["num_layers"]
    kinds = config.get("layer_types")
    if not kinds:
        pattern = config.get("sliding_window_pattern", 6)
        kinds = ["full_attention" if (i + 1) % pattern == 0 else "sliding_attention" for i in range(layers)]
    window = int(config.get("sliding_window") or 0)
    local = config.get("rope_local_base_freq", 10000.0)
    old = not isinstance((config.get("rope_parameters") or {}).get("sliding_attention"), Mapping)
    ropes = {
        "full_attention": _rope(config, made["head_size"], "full_attention"),
        "sliding_attention": Rope(float(local), made["head_size"] // 2, {"rope_type": "default"})
        if old
        else _rope(config, made["head_size"], "sliding_attention"),
    }
    return ModelConfig(
        **{
            **made,
            "windows": tuple(window if kind == "sliding_attention" else 0 for kind in kinds),
            "ropes": tuple(ropes[kind] for kind in kinds),
            "attention_scale": float(config.get("query_pre_attn_scalar", 256)) ** -0.5,
            "norm": "rms_plus_one",
            "post_norms": True,
            "qk_norm": True,
            "embedding_scale": float(made["hidden_size"]) ** 0.5,
            "attention_softcap": float(config.get("attn_logit_softcapping") or 0),
            "logits_softcap": float(config.get("final_logit_softcapping") or 0),
        }
    )


def _gpt2(config: Mapping[str, Any]) -> ModelConfig:
    hidden, heads, layers = config["n_embd"], config["n_head"], config["n_layer"]
    return ModelConfig(
        architecture="gpt2",
        vocab_size=config["vocab_size"],
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=heads,
        head_size=hidden // heads,
        intermediate_size=config.get("n_inner") or 4 * hidden,
        norm_eps=float(config.get("layer_norm_epsilon", 1e-5)),
        max_positions=config["n_positions"],
        windows=(0,) * layers,
        ropes=(None,) * layers,
        attention_scale=(hidden // heads) ** -0.5 if config.get("scale_attn_weights", True) else 1.0,
        norm="layer",
        activation=activation_of(config.get("activation_function", "gelu_new")),
        gated=False,
        tie_embeddings=True,
        learned_positions=config["n_positions"],
        eos_token_ids=_tokens(config.get("eos_token_id")),
        bos_token_id=config.get("bos_token_id"),
    )


_READERS = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "phi3": _phi3,
    "gemma3_text": _gemma3,
    "gpt2": _gpt2,
}

"""What the tensors of a checkpoint are called."""

from __future__ import annotations

from collections.abc import Collection

_LLAMA = {
    "embedding": "embed_tokens.weight",
    "norm": "norm.weight",
    "attention_norm": "layers.{}.input_layernorm.weight",
    "feed_forward_norm": "layers.{}.post_attention_layernorm.weight",
    "q": "layers.{}.self_attn.q_proj",
    "k": "layers.{}.self_attn.k_proj",
    "v": "layers.{}.self_attn.v_proj",
    "qkv": "layers.{}.self_attn.qkv_proj",
    "o": "layers.{}.self_attn.o_proj",
    "q_norm": "layers.{}.self_attn.q_norm.weight",
    "k_norm": "layers.{}.self_attn.k_norm.weight",
    "gate": "layers.{}.mlp.gate_proj",
    "up": "layers.{}.mlp.up_proj",
    "gate_up": "layers.{}.mlp.gate_up_proj",
    "down": "layers.{}.mlp.down_proj",
    "router": "layers.{}.mlp.gate",
    "expert_gate": "layers.{}.mlp.experts.{}.gate_proj",
    "expert_up": "layers.{}.mlp.experts.{}.up_proj",
    "expert_down": "layers.{}.mlp.experts.{}.down_proj",
}
_GEMMA = {
    **_LLAMA,
    "attention_post_norm": "layers.{}.post_attention_layernorm.weight",
    "feed_forward_norm": "layers.{}.pre_feedforward_layernorm.weight",
    "feed_forward_post_norm": "layers.{}.post_feedforward_layernorm.weight",
}
_GPT2 = {
    "embedding": "wte.weight",
    "positions": "wpe.weight",
    "norm": "ln_f.weight",
    "attention_norm": "h.{}.ln_1.weight",
    "feed_forward_norm": "h.{}.ln_2.weight",
    "qkv": "h.{}.attn.c_attn",
    "o": "h.{}.attn.c_proj",
    "up": "h.{}.mlp.c_fc",
    "down": "h.{}.mlp.c_proj",
}
_BERT = {
    "embedding": "embeddings.word_embeddings.weight",
    "positions": "embeddings.position_embeddings.weight",
    "types": "embeddings.token_type_embeddings.weight",
    "embedding_norm": "embeddings.LayerNorm.weight",
    "q": "encoder.layer.{}.attention.self.query",
    "k": "encoder.layer.{}.attention.self.key",
    "v": "encoder.layer.{}.attention.self.value",
    "o": "encoder.layer.{}.attention.output.dense",
    "attention_post_norm": "encoder.layer.{}.attention.output.LayerNorm.weight",
    "up": "encoder.layer.{}.intermediate.dense",
    "down": "encoder.layer.{}.output.dense",
    "feed_forward_post_norm": "encoder.layer.{}.output.LayerNorm.weight",
    "pooler": "pooler.dense",
}
_GGUF = {
    "embedding": "token_embd.weight",
    "norm": "output_norm.weight",
    "head": "output",
    "attention_norm": "blk.{}.attn_norm.weight",
    "attention_post_norm": "blk.{}.post_attention_norm.weight",
    "feed_forward_norm": "blk.{}.ffn_norm.weight",
    "feed_forward_post_norm": "blk.{}.post_ffw_norm.weight",
    "q": "blk.{}.attn_q",
    "k": "blk.{}.attn_k",
    "v": "blk.{}.attn_v",
    "qkv": "blk.{}.attn_qkv",
    "o": "blk.{}.attn_output",
    "q_norm": "blk.{}.attn_q_norm.weight",
    "k_norm": "blk.{}.attn_k_norm.weight",
    "gate": "blk.{}.ffn_gate",
    "up": "blk.{}.ffn_up",
    "gate_up": "blk.{}.ffn_up_gate",
    "down": "blk.{}.ffn_down",
    "router": "blk.{}.ffn_gate_inp",
}
_ENCODERS = ("bert", "roberta", "xlm-roberta", "camembert")
_TABLES = {"gemma3_text": _GEMMA, "gpt2": _GPT2, **dict.fromkeys(_ENCODERS, _BERT)}
_PREFIXES = ("model.", "", "transformer.", "model.language_model.", "language_model.model.", "bert.", "roberta.")
_HEADS = ("lm_head", "language_model.lm_head")


class Names:
    """Finds the names that one checkpoint uses."""

    def __init__(self, architecture: str, names: Collection[str]) -> None:
        """Looks at the names of all tensors.

        Raises:
          ValueError: the table of embeddings, which every model has, is not among them.
        """
        self._names = names
        self._table = _GGUF if _GGUF["embedding"] in names else _TABLES.get(architecture, _LLAMA)
        embedding = self._table["embedding"]
        found = [prefix for prefix in _PREFIXES if prefix + embedding in names]
        if not found:
            raise ValueError(f"expected a tensor {embedding}, got {sorted(names)[:4]} ...; the checkpoint is another's")
        self._prefix = found[0]

    def of(self, role: str, *numbers: int) -> str:
        """The name of the tensor, or of the linear it belongs to, in that role."""
        if role == "head" and self._table is not _GGUF:
            return next((name for name in _HEADS if f"{name}.weight" in self._names), _HEADS[0])
        return self._prefix + self._table[role].format(*numbers)

    def has(self, role: str, *numbers: int) -> bool:
        """Whether there is such a tensor, or the weight of such a linear."""
        if role != "head" and role not in self._table:
            return False
        name = self.of(role, *numbers)
        return name in self._names or f"{name}.weight" in self._names

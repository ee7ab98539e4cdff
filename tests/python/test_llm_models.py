"""Language models against PyTorch: the same scores, and the same tokens, alone and together."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest

from thresher.llm.formats import StoredTensor, read_safetensors
from thresher.llm.layer_groups import layer_groups
from thresher.llm.models import Decoder, ModelConfig, UnsupportedModelError
from thresher.llm.models.checkpoint import MissingTensorError
from thresher.llm.models.decoder import PAGE_TOKENS
from thresher.llm.runner import Runner
from thresher.llm.step_inputs import Work

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

_SMALL = {
    "vocab_size": 120,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
_LONG = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 8,
    "long_factor": [1.0 + 0.25 * i for i in range(8)],
    "original_max_position_embeddings": 2,  # all texts here are longer: short ones have other angles in PyTorch
}

# What is asked for, and how far the scores may be away (most models: rounding alone).
_MODELS = {
    "llama": ("LlamaConfig", {}),
    "llama, head size of its own": ("LlamaConfig", {"head_dim": 32}),
    "llama, biases": ("LlamaConfig", {"attention_bias": True, "mlp_bias": True}),
    "llama, tied": ("LlamaConfig", {"tie_word_embeddings": True}),
    "llama, one head of keys": ("LlamaConfig", {"num_key_value_heads": 1}),
    "llama 3 angles": ("LlamaConfig", {"rope_parameters": _LLAMA3}),
    "llama, linear angles": (
        "LlamaConfig",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    ),
    "mistral": ("MistralConfig", {"sliding_window": 20}),
    "qwen2": ("Qwen2Config", {}),
    "qwen2, yarn": ("Qwen2Config", {"rope_parameters": _YARN}),
    "qwen3": ("Qwen3Config", {"head_dim": 32}),
    "phi3": ("Phi3Config", {"pad_token_id": 0, "sliding_window": None}),
    "phi3, long": (
        "Phi3Config",
        {"pad_token_id": 0, "rope_parameters": _LONG, "original_max_position_embeddings": 2},
    ),
    "gemma3": (
        "Gemma3TextConfig",
        {"head_dim": 16, "sliding_window": 20, "query_pre_attn_scalar": 16, "num_hidden_layers": 7},
    ),
    "qwen3 moe": (
        "Qwen3MoeConfig",
        {"head_dim": 16, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    ),
    "gpt2": ("GPT2Config", {}),
}


def _model(name):
    kind, options = _MODELS[name]
    if kind == "GPT2Config":
        config = transformers.GPT2Config(
            vocab_size=120, n_embd=64, n_layer=3, n_head=4, n_positions=256, initializer_range=0.2
        )
    else:
        config = getattr(transformers, kind)(**{**_SMALL, **options})
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():  # biases and norms begin as zeros and ones, which hide mistakes
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def _runner(model, tmp_path=None, **options):
    """Of what the model saves, which is what users have."""
    model.save_pretrained(tmp_path)
    described = json.loads((tmp_path / "config.json").read_text())
    decoder = Decoder(ModelConfig.from_dict(described), read_safetensors(tmp_path), 256)
    groups = len(layer_groups(decoder.config.windows, 256))
    return Runner(decoder, **{"pages": [40] * groups, "max_batch": 4, "max_tokens": 128, **options})


def _run(runner, *work):
    """A step whose sequences have pages of the same numbers in all groups of layers."""
    return runner.run(
        [Work(tokens, first, [pages] * len(runner.groups), *more) for tokens, first, pages, *more in work]
    )


def _stored(array):
    return StoredTensor("f32", array.shape, np.ascontiguousarray(array).reshape(-1).view(np.uint8))


def _reference(model, tokens):
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0].numpy()


def test_a_page_of_all_layers_is_one_piece_of_memory(tmp_path):
    runner = _runner(_model("gemma3"), tmp_path, cache="bf16")
    assert len(runner.groups) == 2
    memories = [state._memory for state in runner._states]
    for memory in memories:
        memory[:] = 0
    _run(runner, ([5, 6, 7, 8, 9], 0, [7], 1))
    for group, memory, state in zip(runner.groups, memories, runner._states, strict=True):
        of_a_layer = 2 * 2 * PAGE_TOKENS * 16 * 2  # two heads of 16, keys and values, bytes
        size = len(group.layers) * of_a_layer
        touched = np.flatnonzero(memory) - (state.address - memory.ctypes.data)
        assert 7 * size <= touched.min() and touched.max() < 8 * size
        assert touched.max() >= 8 * size - of_a_layer  # by the last layer


@pytest.mark.parametrize("name", _MODELS)
def test_scores_are_those_of_pytorch(name, tmp_path):
    model = _model(name)
    runner = _runner(model, tmp_path)
    random = np.random.default_rng(1)
    prompts = [random.integers(1, 120, length).tolist() for length in (100, 1, 17)]
    pages = [[7, 3, 21, 5], [1, 2], [30, 9]]
    expected = [_reference(model, [*prompt, 5, 6]) for prompt in prompts]
    scale = max(np.abs(e).max() for e in expected)

    def check(actual, rows):
        for row, e in zip(actual, rows, strict=True):
            assert np.abs(row - e).max() < 2e-5 * scale + 1e-5

    # The first in two chunks, the others beside them; then all decode.
    none = _run(runner, (prompts[0][:40], 0, pages[0], 0))
    assert none.shape == (0, 120)
    check(
        _run(
            runner,
            (prompts[0][40:], 40, pages[0], 1),
            (prompts[1], 0, pages[1], 1),
            (prompts[2], 0, pages[2], 0),
        ),
        [expected[0][99], expected[1][0]],
    )
    check(
        _run(runner, *(([5], len(prompt), own, 1) for prompt, own in zip(prompts, pages, strict=True))),
        [e[len(prompt)] for e, prompt in zip(expected, prompts, strict=True)],
    )
    check(_run(runner, ([6], 101, pages[0], 1)), [expected[0][101]])


@pytest.mark.parametrize("cache", ["bf16", "f16"])
def test_pages_of_16_bits(cache, tmp_path):
    model = _model("llama")
    runner = _runner(model, tmp_path, cache=cache)
    prompt = np.random.default_rng(2).integers(1, 120, 60).tolist()
    expected = _reference(model, prompt)[-1]
    actual = _run(runner, (prompt, 0, [3, 4], 1))[0]
    assert np.abs(actual - expected).max() < (0.03 if cache == "bf16" else 0.004) * np.abs(expected).max()
    assert np.abs(actual - expected).max() > 0


def test_one_plan_serves_many_sizes(tmp_path):
    model = _model("qwen3")
    runner = _runner(model, tmp_path)
    prompt = np.random.default_rng(3).integers(1, 120, 128).tolist()
    expected = _reference(model, prompt)
    for count in (2, 3, 8, 9, 50, 77, 128):
        actual = _run(runner, (prompt[:count], 0, [1, 2, 3, 4], 1))[0]
        assert np.abs(actual - expected[count - 1]).max() < 2e-5 * np.abs(expected).max()
    assert len(runner._body._many) == 1
    assert all(plan is runner._body._many[0] for plan, _ in runner._body._chosen.values())


@pytest.mark.parametrize("name", ["qwen3", "phi3", "gpt2", "gemma3"])
def test_the_last_layer_is_computed_for_scored_tokens_alone(name, tmp_path):
    """But for its keys and values; where queries lie in one weight with them, that is read once in two parts."""
    runner = _runner(_model(name), tmp_path)
    decoder, last = runner._decoder, runner._decoder.config.num_layers - 1
    body, head = runner._body_graph(20), runner._head_graph(2)

    def of_last(graph):
        return [node for node in graph.nodes() if node["module"] == f"layers.{last}"]

    def weights(graph):
        """Shapes of the weights of products in the last layer, [out, in]."""
        found = []
        for node in of_last(graph):
            if node["op"] == "linear":
                shape = graph.shape(node["inputs"][1])
                found.append(tuple(reversed(shape)) if name == "gpt2" else tuple(shape))
        return sorted(found)

    config = decoder.config
    wide, narrow = config.num_heads * config.head_size, config.num_kv_heads * config.head_size
    joined = decoder.has("qkv", last)
    kept = [(2 * narrow, config.hidden_size)] if joined else 2 * [(narrow, config.hidden_size)]
    assert weights(body) == kept
    assert (wide, config.hidden_size) in weights(head)
    assert sum(out * width for out, width in weights(body) + weights(head)) == sum(
        out * width for out, width in _of_a_layer(config)
    )
    assert [node["op"] for node in of_last(body)].count("kv_write") == 1
    assert "paged_attention" not in [node["op"] for node in of_last(body)]
    assert [node["op"] for node in head.nodes()].count("paged_attention") == 1


def _of_a_layer(config):
    """Shapes of a layer's weights, [out, in]."""
    wide, narrow = config.num_heads * config.head_size, config.num_kv_heads * config.head_size
    hidden, inner = config.hidden_size, config.intermediate_size
    return [(wide + 2 * narrow, hidden), (hidden, wide), ((2 if config.gated else 1) * inner, hidden), (hidden, inner)]


def test_a_model_of_one_layer_is_all_head(tmp_path):
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.LlamaConfig(**{**_SMALL, "num_hidden_layers": 1}), dtype=torch.float32
    ).eval()
    runner = _runner(model, tmp_path)
    prompt = np.random.default_rng(4).integers(1, 120, 50).tolist()
    expected = _reference(model, prompt)
    _run(runner, (prompt[:30], 0, [3, 4], 0))  # keys and values alone
    actual = _run(runner, (prompt[30:], 30, [3, 4], 4))
    assert np.abs(actual - expected[-4:]).max() < 2e-5 * np.abs(expected).max()


def test_scores_of_some_of_several_sequences(tmp_path):
    """Answers with guesses before prompts that want one row, or none."""
    model = _model("gemma3")
    runner = _runner(model, tmp_path, max_scored=8)
    random = np.random.default_rng(5)
    texts = [random.integers(1, 120, count).tolist() for count in (40, 33, 60, 12)]
    expected = [_reference(model, text) for text in texts]
    for number, text in enumerate(texts[:2]):
        _run(runner, (text[:-3], 0, [2 * number, 2 * number + 1], 0))
    work = [
        Work(text[at:], at, [pages] * len(runner.groups), scored, answering=number < 2)
        for number, (text, at, pages, scored) in enumerate(
            zip(texts, (37, 30, 0, 0), ([0, 1], [2, 3], [4, 5], [6]), (3, 2, 0, 1), strict=True)
        )
    ]
    actual = runner.run(work)
    wanted = np.concatenate([expected[0][-3:], expected[1][-2:], expected[3][-1:]])
    assert np.abs(actual - wanted).max() < 2e-5 * np.abs(wanted).max()


def test_plans_are_made_beside_what_else_is_done(tmp_path):
    model = _model("qwen3")
    runner, threads = _runner(model, tmp_path), []

    def note():
        threads.append(threading.current_thread() is threading.main_thread())

    runner.prepare(note, note)
    assert threads == [False, True]
    assert (len(runner._body._many), sorted(runner._body._chosen), list(runner._head._chosen)) == (
        1, [(1,), (64,)], [(1,)]
    )  # fmt: skip
    prompt = np.random.default_rng(3).integers(1, 120, 70).tolist()
    expected = _reference(model, prompt)
    for count in (64, 70):
        actual = _run(runner, (prompt[:count], 0, [1, 2, 3], 1))[0]
        assert np.abs(actual - expected[count - 1]).max() < 2e-5 * np.abs(expected).max()
    alone = _runner(model, tmp_path, max_tokens=1, max_batch=1)
    alone.prepare()
    assert not alone._body._many and list(alone._body._chosen) == [(1,)]


@pytest.mark.parametrize("which", ["first", "meanwhile"])
def test_what_is_done_beside_plans_may_fail(which, tmp_path):
    def fail():
        raise LookupError("no")

    with pytest.raises(LookupError, match="no"):
        _runner(_model("qwen3"), tmp_path).prepare(**{which: fail})


def test_what_is_missing_is_named():
    config = transformers.LlamaConfig(**_SMALL)
    arrays = {k: v.numpy() for k, v in transformers.LlamaForCausalLM(config).state_dict().items()}
    described = ModelConfig.from_dict(config.to_dict())

    def build(change):
        own = dict(arrays)
        change(own)
        return Decoder(described, {name: _stored(array) for name, array in own.items()}, 256).body(
            4, 2, 8, [4] * 3, "f32"
        )

    build(lambda own: None)
    with pytest.raises(MissingTensorError, match=r"expected a tensor model.layers.1.mlp.up_proj.weight, got none"):
        build(lambda own: own.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(MissingTensorError, match=r"q_proj.weight: expected shape \(64, 64\), got \(3, 64\)"):
        build(lambda own: own.update({"model.layers.0.self_attn.q_proj.weight": np.zeros((3, 64), np.float32)}))
    with pytest.raises(ValueError, match=r"expected a tensor embed_tokens.weight, got \['other'\]"):
        Decoder(described, {"other": _stored(np.zeros(1, np.float32))}, 256)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"model_type": "mamba"}, "got model_type 'mamba'"),
        ({"num_key_value_heads": 3}, "expected heads a multiple of key heads, got 4 and 3"),
        ({"head_dim": 20}, "expected a head size that 16 divides, got 20"),
        ({"hidden_act": "softsign"}, "got 'softsign'"),
        ({"rope_parameters": {"rope_type": "spiral"}}, "got 'spiral'"),
        ({"vocab_size": "many"}, "expected vocab_size from 1 up, got 'many'"),
    ],
)
def test_configurations_that_are_not_supported_are_refused(change, text):
    config = {**transformers.LlamaConfig(**_SMALL).to_dict(), **change}
    with pytest.raises(UnsupportedModelError, match=text.replace("(", r"\(")):
        ModelConfig.from_dict(config)


def test_a_config_without_sizes_is_refused():
    with pytest.raises(UnsupportedModelError, match="expected 'num_attention_heads', got none"):
        ModelConfig.from_dict({"model_type": "llama", "vocab_size": 10})

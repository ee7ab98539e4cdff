"""Models of transformers with random weights, small: whole in the engine, at sizes that change."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

WORDS = 200

# What a model family calls its sizes, and whether its attention looks at earlier words only.
FAMILIES: dict[str, tuple[dict[str, Any], bool]] = {
    "DistilBert": ({"dim": 64, "n_layers": 1, "n_heads": 4, "hidden_dim": 128}, False),
    "Albert": (
        {
            "hidden_size": 64,
            "embedding_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 128,
        },
        False,
    ),
    "Roberta": (  # counts positions with a running sum
        {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 128},
        False,
    ),
    "MPNet": (
        {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 128},
        False,
    ),
    "GPT2": (
        {"n_embd": 64, "n_layer": 2, "n_head": 4, "use_cache": False, "bos_token_id": None, "eos_token_id": None},
        True,
    ),
    "Llama": (
        {
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "intermediate_size": 128,
            "use_cache": False,
        },
        True,
    ),
}


# The others have their operators.
NIGHTLY = ("DistilBert", "MPNet")


@pytest.mark.parametrize(
    "family",
    [pytest.param(family, marks=[pytest.mark.thorough] if family in NIGHTLY else []) for family in FAMILIES],
)
def test_whole_in_the_engine(compiler: Any, family: str) -> None:
    sizes, causal = FAMILIES[family]
    config = getattr(transformers, f"{family}Config")(vocab_size=WORDS, **sizes)
    model = getattr(transformers, f"{family}Model")(config).eval()
    compiled = compiler.compile(model)
    with torch.no_grad():
        for batch, length in ((2, 7), (3, 9)):
            words = torch.randint(0, WORDS, (batch, length))
            mask = torch.ones(batch, length, dtype=torch.long)
            if not causal:
                mask[0, length // 2 :] = 0
            got = compiled(words, attention_mask=mask)[0]
            torch.testing.assert_close(got, model(words, attention_mask=mask)[0], rtol=1e-4, atol=1e-5)
    stats = compiler.compilation_stats()
    assert stats.nodes_unsupported == 0 and stats.eager_shapes == ()
    assert stats.graphs == 2  # the second one has symbols for both sizes


@pytest.mark.parametrize("family", [pytest.param("GPT2", marks=pytest.mark.thorough), "Llama"])
def test_keys_and_values_are_kept(compiler: Any, family: str) -> None:
    """A cache begins as a tensor without elements, to which the first keys are joined."""
    config = getattr(transformers, f"{family}Config")(vocab_size=WORDS, **FAMILIES[family][0] | {"use_cache": True})
    model = getattr(transformers, f"{family}Model")(config).eval()
    compiled = compiler.compile(model)
    words = torch.randint(0, WORDS, (2, 9))
    with torch.no_grad():
        got, want = compiled(words[:, :8]), model(words[:, :8])
        stats = compiler.compilation_stats()
        assert stats.nodes_unsupported == 0 and stats.eager_shapes == ()
        for kept, wanted in zip(got.past_key_values.layers, want.past_key_values.layers, strict=True):
            torch.testing.assert_close(kept.keys, wanted.keys, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(kept.values, wanted.values, rtol=1e-4, atol=1e-5)
        again = compiled(words[:, 8:], past_key_values=got.past_key_values)
        torch.testing.assert_close(again[0], model(words)[0][:, 8:], rtol=1e-4, atol=1e-5)
    assert compiler.compilation_stats().eager_shapes == ()


def test_llama_turns_queries_and_keys_in_a_step_each(compiler: Any) -> None:
    from thresher.compiler.stats import RECORDER

    sizes = FAMILIES["Llama"][0]
    config = transformers.LlamaConfig(vocab_size=WORDS, **sizes)
    model = transformers.LlamaModel(config).eval()
    words = torch.randint(0, WORDS, (2, 9))

    def run(**settings: Any) -> tuple[Any, list[dict[str, Any]]]:
        known = list(RECORDER.alive())
        compiled = compiler.compile(model, config=compiler.CompilerConfig(**settings))
        with torch.no_grad():
            got = compiled(words)[0]
        graphs = [graph for graph in RECORDER.alive() if graph not in known]
        return got, [step for graph in graphs for plan in graph.plans() for step in plan.steps()]

    got, steps = run()
    with torch.no_grad():
        torch.testing.assert_close(got, model(words)[0], rtol=1e-4, atol=1e-5)
    turned = [step["module"] for step in steps if step["name"] == "rotary"]
    for layer in range(config.num_hidden_layers):
        assert turned.count(f"layers.{layer}.self_attn") == 2
    names = [step["name"] for step in steps]
    assert not {"add", "silu", "neg"} & set(names)
    unfused, unfused_steps = run(fusion=False)
    torch.testing.assert_close(got, unfused, rtol=1e-4, atol=1e-5)
    unfused_names = [step["name"] for step in unfused_steps]
    assert "rotary" not in unfused_names and names.count("copy") <= unfused_names.count("copy")


def steps_of(compiler: Any) -> list[str]:
    """Names of the steps of all plans."""
    from thresher.compiler.stats import RECORDER

    return [str(step["name"]) for graph in RECORDER.alive() for plan in graph.plans() for step in plan.steps()]


def test_experts_are_whole_in_the_engine(compiler: Any) -> None:
    sizes = {**FAMILIES["Llama"][0], "num_hidden_layers": 1, "num_local_experts": 4, "num_experts_per_tok": 2}
    model = transformers.MixtralModel(transformers.MixtralConfig(vocab_size=WORDS, **sizes)).eval()
    compiled = compiler.compile(model)
    with torch.no_grad():
        for batch, length in ((2, 7), (3, 9), (1, 1)):
            words = torch.randint(0, WORDS, (batch, length))
            got = compiled(words)[0]
            torch.testing.assert_close(got, model(words)[0], rtol=1e-4, atol=1e-5)
    stats = compiler.compilation_stats()
    assert stats.nodes_unsupported == 0 and stats.eager_shapes == ()
    names = steps_of(compiler)
    # Two products a layer; the matrices of the experts are packed when the plan is made.
    assert names.count("grouped_linear") == 2 * model.config.num_hidden_layers * stats.plans
    assert "pack" not in names


def test_a_batch_norm_joins_the_product_before_it(compiler: Any) -> None:
    from torch import nn

    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4)).eval()
    with torch.no_grad():
        model[1].running_mean.normal_()
        model[1].running_var.uniform_(0.5, 1.5)
        model[1].weight.normal_()
        x = torch.randn(5, 8)
        compiled = compiler.compile(model)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-6)
        assert steps_of(compiler) == ["linear", "linear"]
        model[1].running_var.mul_(3)  # the factors, too, are made anew
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-6)

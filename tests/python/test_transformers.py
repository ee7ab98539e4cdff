"""Models of transformers with random weights, small: whole in the engine, at sizes that change."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

WORDS = 200

# What a model family calls its sizes, and whether its attention looks at earlier words only.
FAMILIES: dict[str, tuple[dict[str, Any], bool]] = {
    "DistilBert": ({"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128}, False),
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
        {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128},
        False,
    ),
    "MPNet": (
        {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128},
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


@pytest.mark.parametrize("family", FAMILIES)
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

"""Weights that are quantised while a model is loaded."""

from __future__ import annotations

import numpy as np
import pytest
from small_decoder import write_decoder
from typer.testing import CliRunner

from thresher import cache
from thresher.cli.app import app
from thresher.llm import LLM, loading, packed_weights
from thresher.llm.formats import quantize, read_safetensors

pytest.importorskip("torch")
pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    sizes = {"hidden_size": 256, "intermediate_size": 96, "initializer_range": 0.3}
    return write_decoder(tmp_path_factory.mktemp("model"), "Llama", seed=5, **sizes)


@pytest.mark.parametrize("weights, group", [("q4_0", 32), ("q4_0:64", 64), ("q5_1:128", 128), ("q8_0:256", 256)])
def test_matrices_are_quantised_in_groups(folder, weights, group):
    stored = read_safetensors(folder)
    loaded = loading.load(folder, weights).tensors
    encoding = weights.partition(":")[0]
    for role in ("self_attn.q_proj", "mlp.gate_proj"):
        name = f"model.layers.0.{role}.weight"
        assert loaded[name].encoding == encoding
        assert np.array_equal(loaded[name].data, quantize(stored[name], encoding, group).data), name
    # Rows of 96 numbers are whole groups of 32 only.
    down = "model.layers.0.mlp.down_proj.weight"
    assert np.array_equal(loaded[down].data, quantize(stored[down], encoding, 32).data)
    norm = "model.norm.weight"
    assert np.array_equal(loaded[norm].data, stored[norm].data)


def test_weights_in_other_groups_are_other_weights_in_the_cache(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(packed_weights, "_LEAST_BYTES", 0)
    cache.set_dir(tmp_path / "cache")
    try:
        answers = {}
        for weights in ("q4_0", "q4_0:256", "q4_0", "q4_0:256"):
            with LLM(folder, weights=weights, max_length=64, max_batch=2) as llm:
                tokens = llm.generate([[3, 1, 4, 1, 5]], temperature=0, max_tokens=12, ignore_eos=True, logprobs=0)
            found = [each.logprob for each in tokens[0].completions[0].logprobs]
            assert answers.setdefault(weights, found) == found, "packed and mapped weights have the same bits"
        assert answers["q4_0"] != answers["q4_0:256"]
    finally:
        cache.set_dir(None)


@pytest.mark.parametrize(
    "weights, text",
    [
        ("q4_k", "expected one of model, fp32, q8_0, q5_1, q5_0, q4_1, q4_0, got 'q4_k'"),
        ("q4_k:64", "expected one of model, fp32"),
        ("model:64", "expected a group for one of q8_0, q5_1, q5_0, q4_1, q4_0 alone, got 'model:64'"),
        ("fp32:32", "expected a group for one of"),
        ("q4_0:", "expected a group of a multiple of 32 numbers up to 512, as in q4_0:128, got 'q4_0:'"),
        ("q4_0:48", "expected a group of a multiple of 32"),
        ("q4_0:1024", "expected a group of a multiple of 32"),
        ("q4_0:-32", "expected a group of a multiple of 32"),
    ],
)
def test_what_cannot_be_is_named(folder, weights, text):
    with pytest.raises(ValueError, match="weights: ") as error:
        LLM(folder, weights=weights)
    assert text in str(error.value)
    done = CliRunner().invoke(app, ["llm", "run", str(folder), "x", "--weights", weights])
    assert done.exit_code == 1 and "weights: expected" in " ".join(done.output.split())

"""What the precisions compute, on a model with trained weights."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

SENTENCES = [
    "The storage engine writes every page twice.",
    "Rain is expected in the north, with strong winds near the coast.",
    "She plays the guitar and her brother plays the drums.",
    "An unrelated and rather longer sentence that makes the batch wider than the others need it to be.",
]

# Largest difference of the last hidden state from PyTorch in fp32, whose entries reach about 2, and least cosine
# similarity of the pooled embeddings. Both leave a factor of two over what was measured.
LIMITS = {
    "fp32": (2e-5, 0.999999),
    "fp16": (4e-3, 0.99999),
    "bf16": (4e-2, 0.9995),
    "int8_weight": (0.15, 0.995),
    "int8": (0.3, 0.99),
    "int4_weight": (1.5, 0.9),
}


@pytest.fixture(autouse=True)
def _every_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers too small to gain by it are multiplied as asked for, too."""
    monkeypatch.setenv("THRESHER_SMALL_PRODUCTS", "always")


def _batch(tokenizer: Any) -> tuple[torch.Tensor, torch.Tensor]:
    encoded = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    return encoded["input_ids"], encoded["attention_mask"]


def _pooled(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    return nn.functional.normalize((hidden * weights).sum(1) / weights.sum(1))


# Each of these is between two others that stay; fp32 is what test_compile.py compares.
NIGHTLY = ("fp32", "fp16", "int8_weight")


@pytest.mark.parametrize(
    "precision",
    [pytest.param(precision, marks=[pytest.mark.thorough] if precision in NIGHTLY else []) for precision in LIMITS],
)
def test_minilm(compiler: Any, minilm: Any, minilm_tokenizer: Any, precision: str) -> None:
    ids, mask = _batch(minilm_tokenizer)
    compiled = compiler.compile(minilm, precision=precision)
    with torch.no_grad():
        expected = minilm(ids, mask).last_hidden_state
        actual = compiled(ids, mask).last_hidden_state
        # The pads are computed as well, but mean nothing.
        error = ((actual - expected).abs() * mask.unsqueeze(-1)).max().item()
        similarity = (_pooled(actual, mask) * _pooled(expected, mask)).sum(-1).min().item()
    most, least = LIMITS[precision]
    assert error <= most
    assert similarity >= least
    if precision in ("int8", "int8_weight", "int4_weight"):
        assert error > LIMITS["fp32"][0], "the precision made no difference: was it applied?"
    stats = compiler.compilation_stats()
    if precision != "fp32":
        chosen = {decision.precision for decision in stats.precision_decisions}
        assert chosen == {precision}, [str(decision) for decision in stats.precision_decisions]
    assert stats.nodes_unsupported == 0


@pytest.fixture(scope="module")
def first_layers(minilm: Any) -> Any:
    """The trained model without its last four layers, of which PyTorch captures each anew."""
    config = copy.copy(minilm.config)
    config.num_hidden_layers = 2
    model = type(minilm)(config).eval()
    model.load_state_dict(minilm.state_dict(), strict=False)
    return model


# 8 bits have a scale that neighbours could change; of the others the C++ tests compare rows alone and among others.
@pytest.mark.parametrize(
    "precision", [*(pytest.param(p, marks=pytest.mark.thorough) for p in ("fp32", "bf16")), "int8"]
)
def test_a_sentence_does_not_depend_on_its_neighbours(
    compiler: Any, first_layers: Any, minilm_tokenizer: Any, precision: str
) -> None:
    ids, mask = _batch(minilm_tokenizer)
    compiled = compiler.compile(first_layers, precision=precision, dynamic=True)
    others = ids.clone()
    others[1:] = others[1:].flip(-1)
    with torch.no_grad():
        first = compiled(ids, mask).last_hidden_state[0]
        # Neighbours of other content but the same shape: not a bit changes.
        assert torch.equal(compiled(others, mask).last_hidden_state[0], first)
        # Other ids under the mask, at the end of the sentence itself: nor here, up to the pads.
        length = int(mask[0].sum())
        padded = ids.clone()
        padded[0, length:] = 2003
        assert torch.equal(compiled(padded, mask).last_hidden_state[0, :length], first[:length])
        # Alone and without pads: the same up to rounding, which 8 bits can turn into a step of the scale.
        alone = compiled(ids[:1, :length], mask[:1, :length]).last_hidden_state[0]
    assert (alone - first[:length]).abs().max() <= {"fp32": 1e-5, "bf16": 1e-3, "int8": 0.2}[precision]


@pytest.mark.parametrize("precision", ["bf16", "fp16", "int8", "int8_weight", "int4_weight"])
def test_a_row_with_nan_stays_alone(compiler: Any, precision: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(70, 33), nn.ReLU(), nn.Linear(33, 20)).eval()
    compiled = compiler.compile(model, precision=precision)
    x = torch.randn(5, 70)
    x[1, 3] = float("nan")
    with torch.no_grad():
        y = compiled(x)
    assert y[1].isnan().all()
    assert y[[0, 2, 3, 4]].isfinite().all()


def test_excluded_layers_stay_in_fp32(compiler: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8)).eval()
    x = torch.randn(9, 64)
    with torch.no_grad():
        expected = model(x)
        plain = compiler.compile(model, precision="int4_weight")(x)
        kept = compiler.compile(model, precision="int4_weight", precision_exclude=("0", "2"))(x)
    assert (plain - expected).abs().max() > 1e-3
    assert (kept - expected).abs().max() < 1e-5


def test_a_layer_that_loses_too_much_is_left_out_and_named(compiler: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8)).eval()
    with torch.no_grad():
        model[0].weight.mul_(1e-4)
        model[0].weight[:, 0] = 1.0  # one large weight a row takes the whole range
    x = torch.randn(3, 64)
    with torch.no_grad():
        compiler.compile(model, precision="int8", max_weight_error=0.001)(x)
    decisions = {decision.module: decision for decision in compiler.compilation_stats().precision_decisions}
    assert decisions["2"].precision == "fp32" and "exceeds" in decisions["2"].reason
    assert decisions["2"].weight_error is not None and decisions["2"].weight_error > 0.001


@pytest.mark.parametrize("rows", [1, 3, 8, 40])
@pytest.mark.parametrize("precision", ["bf16", "fp16", "int8", "int8_weight", "int4_weight"])
def test_any_number_of_rows(compiler: Any, precision: str, rows: int) -> None:
    torch.manual_seed(0)
    model = nn.Linear(100, 50).eval()
    x = torch.randn(rows, 100)
    with torch.no_grad():
        expected = model(x)
        actual = compiler.compile(model, precision=precision)(x)
    limit = {"bf16": 0.02, "fp16": 2e-3, "int8": 0.05, "int8_weight": 0.02, "int4_weight": 0.3}[precision]
    assert (actual - expected).abs().max() <= limit

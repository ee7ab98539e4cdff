"""The report on encodings, on a small model with random weights."""

from __future__ import annotations

import json

import numpy as np
import pytest
from test_llm_engine import folder  # noqa: F401
from typer.testing import CliRunner

from thresher.cli.app import app
from thresher.llm import LLM
from thresher.llm.quantize_report import quantize_report
from thresher.llm.sample_text import sample_text

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TEXT = sample_text().text


def test_perplexity_is_that_of_pytorch_and_bits_cost(folder):  # noqa: F811
    found = {r.name: r for r in quantize_report(folder, TEXT[:600], ["bf16", "q8_0", "q4_0"], window=200)}
    assert list(found) == ["fp32", "bf16", "q8_0", "q4_0"]
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with LLM(folder, precision="fp32", max_length=201) as llm:
        tokens = llm.encode(TEXT[:600])
    losses = []
    with torch.no_grad():
        for first in range(0, len(tokens), 200):
            part = torch.tensor(tokens[first : first + 200])
            losses += torch.nn.functional.cross_entropy(
                model(part[None]).logits[0, :-1], part[1:], reduction="none"
            ).tolist()
    assert found["fp32"].tokens == len(losses)
    assert found["fp32"].perplexity == pytest.approx(np.exp(np.mean(losses)), rel=1e-4)
    assert found["fp32"].agreement == 1.0
    assert found["q4_0"].agreement < found["q8_0"].agreement
    assert found["q4_0"].weight_bytes < found["q8_0"].weight_bytes < found["fp32"].weight_bytes


def test_command(folder, tmp_path):  # noqa: F811
    text = tmp_path / "text.txt"
    text.write_text(TEXT[:200])
    arguments = ["llm", "quantize-report", str(folder), "--text", str(text), "--encoding", "q8_0"]
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    assert [row["name"] for row in json.loads(result.stdout)["results"]] == ["fp32", "q8_0"]
    assert "q8_0" in CliRunner().invoke(app, arguments).stdout
    wrong = CliRunner().invoke(app, ["llm", "quantize-report", str(folder), "--encoding", "q9"])
    assert wrong.exit_code != 0 and "expected some of model, bf16" in wrong.output


def test_larger_groups_cost_more(folder):  # noqa: F811
    found = {r.name: r for r in quantize_report(folder, TEXT, ["q4_0", "q4_0:64"], most_tokens=300)}
    assert list(found) == ["fp32", "q4_0", "q4_0:64"] and found["fp32"].tokens == 299
    assert found["q4_0:64"].weight_bytes == found["q4_0"].weight_bytes
    assert found["q4_0:64"].perplexity != found["q4_0"].perplexity
    with pytest.raises(ValueError, match="as in q4_0:128, got 'q4_0:8'"):
        quantize_report(folder, TEXT, ["q4_0:8"])
    with pytest.raises(ValueError, match="encodings: expected some of model, bf16"):
        quantize_report(folder, TEXT, ["int8:64"])


def test_the_text_that_nobody_gave_is_long(folder):  # noqa: F811
    """By any tokenizer some four letters are one token at most."""
    assert len(TEXT) > 4 * 4096 * 4
    result = CliRunner().invoke(
        app, ["llm", "quantize-report", str(folder), "--encoding", "q8_0", "--tokens", "100", "--json"]
    )
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["text"] == sample_text().source
    assert [row["tokens"] for row in report["results"]] == [99, 99]

"""The page of language models of bench/run.py: its arithmetic, and one small model through the whole program."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import llm_page
import llm_turns
import llm_works
import options

import thresher

ROOT = Path(__file__).resolve().parents[2]


def _sample(first, prompts, end, peak_mb=100.0):
    return {"first": first, "prompts": prompts, "end": end, "peak_mb": peak_mb}


def test_medians_of_turns():
    load = llm_turns.Load(batch=4, prompt=100, output=11)
    found = llm_turns.summary(load, [_sample(0.1, 0.2, 1.2), _sample(0.3, 0.4, 2.4, 150.0), _sample(0.2, 0.5, 0.6)])
    assert found["first_ms"] == pytest.approx(200)
    assert found["prompt_tokens_per_s"] == pytest.approx(4 * 100 / 0.4)
    assert found["token_ms"] == pytest.approx(100)  # (1.2 - 0.2) / 10 of the turn in the middle
    assert found["tokens_per_s"] == pytest.approx(40)
    assert found["peak_mb"] == 150


def test_table_says_who_is_faster_and_what_is_missed():
    row = llm_works.Row("m", "decode", 2, "4 ms", 0.8, "reading", {"llama_cpp": 1.2}, "1.3 x llama.cpp", "llama.cpp")
    table = llm_page.table_of([row, llm_works.Row("m", "start", 2, "0.4 s")])
    assert table.rows[0][4:] == ("80% (reading)", "llama.cpp 1.20", "1.3 x llama.cpp", "llama.cpp")
    assert table.bad_rows == {0}
    notes = {"engines": {"a": {"title": "A", "note": "slow"}, "b": {"title": "B", "unavailable": "no such library"}}}
    rows = [llm_works.Row("m", "w", 1, "", details=notes)] * 2
    assert llm_page.notes_of(rows) == ["A: slow", "B: no such library"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["llm", "--model-file", "none.gguf"], "expected a GGUF file or a model's folder, got nothing at none.gguf"),
        (["llm", "--work", "dance"], "got 'dance'"),
        (["--work", "decode"], "belong to llm"),
    ],
)
def test_options_have_to_fit(arguments, message, capsys):
    with pytest.raises(SystemExit) as ended:
        options.parse(["--python-thresher", "p", "--python-peers", "q", *arguments])
    assert ended.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("works", ["batch", pytest.param(",".join(llm_works.WORKS), marks=pytest.mark.thorough)])
def test_the_whole_program_on_a_small_model(tmp_path, works):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=10000,
        hidden_size=64,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    python = tmp_path / "python"  # which finds Thresher where this process did
    python.write_text(f'#!/bin/sh\nPYTHONPATH={Path(thresher.__file__).parents[1]} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    command = [sys.executable, ROOT / "bench" / "run.py", "--python-thresher", python]
    command += ["--python-peers", sys.executable, "llm", "--model-file", tmp_path / "model", "--rounds", "1"]
    command += ["--batches", "3", "--sequences", "5", "--threads", "1", "--work", works, "--output", tmp_path / "out"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "out" / "llm.json").read_text(encoding="utf-8"))["rows"]
    assert "requests" in (tmp_path / "out" / "llm.md").read_text(encoding="utf-8")
    for row in rows:
        engines = row["details"].get("engines", {})
        assert all("unavailable" in e or e["samples"] for e in engines.values())
        for sample in engines["thresher"]["samples"] if engines else ():
            assert 0 < sample["first"] <= sample["prompts"] < sample["end"]
    found = [row["work"].split(",")[0] for row in rows]
    if works == "batch":
        assert found == ["3 requests"]
        return
    assert found[:5] == ["decode", "prompt of 5", "3 requests", "behind 191 tokens", "first token"]
    assert found[5:] == ["start", "peak memory", *["p99 gap beside a prompt of 249"] * 2]
    assert rows[0]["details"]["engines"]["eager"]["samples"]  # PyTorch, which is where this test runs
    assert rows[0]["peers"]["eager"] > 0 and rows[0]["share"] > 0 and rows[1]["share"] > 0

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
import options

import thresher

ROOT = Path(__file__).resolve().parents[2]


def _sample(first, prompts, end, peak_mb=100.0):
    return {"first": first, "prompts": prompts, "end": end, "peak_mb": peak_mb}


def test_medians_of_turns():
    load = llm_page.Load(batch=4, prompt=100, output=11)
    found = llm_page.summary(load, [_sample(0.1, 0.2, 1.2), _sample(0.3, 0.4, 2.4, 150.0), _sample(0.2, 0.5, 0.6)])
    assert found["first_ms"] == pytest.approx(200)
    assert found["prompt_tokens_per_s"] == pytest.approx(4 * 100 / 0.4)
    assert found["token_ms"] == pytest.approx(100)  # (1.2 - 0.2) / 10 of the turn in the middle
    assert found["tokens_per_s"] == pytest.approx(40)
    assert found["peak_mb"] == 150


def test_table_says_who_is_faster_and_what_is_not_there():
    load = llm_page.Load(batch=1, prompt=100, output=11)
    ours = {"title": "Thresher", "start_s": 1.0, **llm_page.summary(load, [_sample(0.1, 0.1, 1.1)])}
    peer = {"title": "Peer", "start_s": 2.0, "note": "slow", **llm_page.summary(load, [_sample(0.2, 0.2, 0.7)])}
    absent = {"title": "Absent", "unavailable": "no such library"}
    row = {"model": "m", **vars(load), "engines": {"thresher": ours, "peer": peer, "absent": absent}}
    table = llm_page.table_of([row], threads=2)
    assert table.rows[1][-1] == "2.00 (prompts), 0.50 (answers)"
    assert table.bad_rows == {1}
    assert table.rows[2][-1] == "not available: no such library"
    assert llm_page.notes_of([row, row]) == ["Peer: slow"]


def test_file_has_to_be_there(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        options.parse(["--python-thresher", "p", "--python-peers", "q", "--llm", str(tmp_path / "none.gguf")])
    assert ended.value.code == 2
    assert "--llm: expected a GGUF file, got nothing at" in capsys.readouterr().err


def test_the_whole_program_on_a_small_model(tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=10000,
        hidden_size=32,
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
    command += ["--python-peers", sys.executable, "--llm", tmp_path / "model", "--rounds", "2"]
    command += ["--batches", "1,3", "--sequences", "5", "--threads", "1", "--output", tmp_path / "out"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "out" / "llm.json").read_text(encoding="utf-8"))["rows"]
    assert [row["batch"] for row in rows] == [1, 3]
    for row in rows:
        ours = row["engines"]["thresher"]
        assert len(ours["samples"]) == 2
        assert all(0 < s["first"] <= s["prompts"] < s["end"] for s in ours["samples"])
        assert all("unavailable" in e or e["samples"] for e in row["engines"].values())
    assert "tok/s" in (tmp_path / "out" / "llm.md").read_text(encoding="utf-8")

"""The arithmetic and the verdict of bench/run.py --accuracy, on small data."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import accuracy
import corpora
import run
from comparison import PRECISIONS, Places, Settings
from engine_worker import EngineWorker

ENGINES = {
    "eager": {"title": "PyTorch eager", "precision": "fp32"},
    "openvino-bf16": {"title": "OpenVINO", "precision": "bf16"},
    "thresher-int8": {"title": "Thresher", "precision": "int8"},
}
# Cosines 1, .6 and 0 with the first text.
EMBEDDINGS = np.array([[1.0, 0.0], [1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
ARRAYS = {"lee50-pairs": np.array([[0, 1], [0, 2], [0, 3]]), "lee50-ratings": np.array([5.0, 3.0, 0.0])}


def test_pool_is_the_mean_of_the_real_tokens_at_unit_length() -> None:
    hidden = np.array([[[3.0, 0.0], [3.0, 8.0], [np.nan, 1e9]], [[0.0, -2.0], [5.0, 5.0], [5.0, 5.0]]], np.float32)
    mask = np.array([[1, 1, 0], [1, 0, 0]])
    assert accuracy.pool(hidden, mask) == pytest.approx(np.array([[0.6, 0.8], [0.0, -1.0]]))


def test_equal_values_share_their_rank() -> None:
    assert accuracy.ranks(np.array([10.0, 30.0, 20.0, 20.0, 5.0])).tolist() == [2.0, 5.0, 3.5, 3.5, 1.0]


def test_correlations() -> None:
    x, y = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 4.0, 9.0, 16.0])
    assert accuracy.spearman(x, y) == pytest.approx(1.0)
    assert accuracy.spearman(x, -y) == pytest.approx(-1.0)
    # By hand: covariance 25 / 4, variances 5 / 4 and 129 / 4.
    assert accuracy.pearson(x, y) == pytest.approx(25 / np.sqrt(5 * 129))
    # Two neighbours swapped in four: 1 - 6 * 2 / (4 * 15).
    assert accuracy.spearman(x, np.array([1.0, 3.0, 2.0, 4.0])) == pytest.approx(0.8)


def test_correlation_of_pairs() -> None:
    pairs, ratings = ARRAYS["lee50-pairs"], ARRAYS["lee50-ratings"]
    assert accuracy.correlation("Spearman", EMBEDDINGS, pairs, ratings) == pytest.approx(1.0)
    assert accuracy.correlation("Pearson", EMBEDDINGS, pairs, 2 + 3 * np.array([1.0, 0.6, 0.0])) == pytest.approx(1.0)


def test_rows_compare_with_the_reference() -> None:
    swapped = EMBEDDINGS[[0, 3, 2, 1]]
    found = {"lee50": {"eager": EMBEDDINGS, "openvino-bf16": swapped, "thresher-int8": swapped}}
    eager, openvino, ours = accuracy.rows_of(ENGINES, found, ARRAYS)
    assert (eager.loss, eager.max_error, eager.mean_error, eager.limit) == (0.0, 0.0, 0.0, None)
    assert ours.loss == pytest.approx(2 * eager.correlation, abs=0.1)
    assert (ours.max_error, ours.mean_error) == (1.0, 0.5)
    # Others are shown, Thresher is judged.
    assert (openvino.limit, openvino.broken) == (None, False)
    assert (ours.limit, ours.broken) == (accuracy.LIMITS["int8"], True)


@pytest.mark.parametrize(
    ("loss", "broken"), [(-0.2, False), (0.0, False), (0.005, False), (0.0051, True), (float("nan"), True)]
)
def test_limit(loss: float, broken: bool) -> None:
    row = accuracy.AccuracyRow(
        "lee50", "thresher-bf16", "Thresher", "bf16", 0.6, loss, accuracy.LIMITS["bf16"], 0.1, 0.1
    )
    assert row.broken is broken


def test_every_precision_has_a_limit() -> None:
    assert set(accuracy.LIMITS) == set(PRECISIONS)
    assert (accuracy.LIMITS["bf16"], accuracy.LIMITS["int8"]) == (0.005, 0.01)


def test_table_has_verdicts_and_what_is_not_available() -> None:
    swapped = EMBEDDINGS[[0, 3, 2, 1]]
    rows = accuracy.rows_of(ENGINES, {"lee50": {"eager": EMBEDDINGS, "thresher-int8": swapped}}, ARRAYS)
    table = accuracy.table_of(rows, {"openvino-bf16": ("OpenVINO", "bf16", "no such unit")}, "Model")
    assert [row[-1] for row in table.rows] == ["", "more than 0.01 lost", "not available: no such unit"]
    assert table.bad_rows == {1}
    assert table.rows[0][:4] == ("Lee-50", "PyTorch eager", "fp32", "Pearson")


def test_wordsim_is_read() -> None:
    corpus = corpora.wordsim353("# remark\nlove\tsex\t6.77\ntiger\tcat\t7.35\ntiger\ttiger\t10.00\n\n")
    assert corpus.texts == ["love", "sex", "tiger", "cat"]
    assert corpus.pairs.tolist() == [[0, 1], [2, 3], [2, 2]]
    assert corpus.ratings.tolist() == [6.77, 7.35, 10.0]
    with pytest.raises(ValueError, match="two words and a rating"):
        corpora.wordsim353("love\tsex\n")


def test_lee_is_read() -> None:
    # \x85 ends a line for str.splitlines, but not here.
    corpus = corpora.lee("one\ntwo \x85 words\nthree\n", "1\t.5\t.3\n0\t1\t.2\n0\t0\t1\n")
    assert corpus.texts == ["one", "two \x85 words", "three"]
    assert corpus.pairs.tolist() == [[0, 1], [0, 2], [1, 2]]
    assert corpus.ratings.tolist() == [0.5, 0.3, 0.2]
    with pytest.raises(ValueError, match=r"expected 2 x 2 ratings, got \(3, 3\)"):
        corpora.lee("one\ntwo\n", "1 0 0\n0 1 0\n0 0 1\n")


def test_batches_hold_every_text_once_and_like_lengths_together() -> None:
    texts = ["word"] * 700 + ["word " * 200] * 5 + ["word " * 5000]
    batches = corpora.batches(texts)
    assert sorted(row for batch in batches for row in batch) == list(range(len(texts)))
    assert batches[0] == [705]  # one that is too long for a batch is a batch of its own
    lengths = [[len(texts[row].split()) for row in batch] for batch in batches]
    assert all(max(found) * len(found) <= corpora.BATCH_TOKENS for found in lengths[1:])


class DoublingEngine:
    """Its hidden state says which token stood where, so that a mixed-up order shows."""

    def prepare(self, case: dict[str, np.ndarray]) -> np.ndarray:
        return case["input_ids"]

    def run(self, ids: np.ndarray) -> np.ndarray:
        return np.stack([ids, np.ones_like(ids)], axis=-1).astype(np.float32)

    def output(self, answer: np.ndarray) -> np.ndarray:
        return answer


def test_embeddings_come_back_in_the_order_of_the_texts(tmp_path: Path) -> None:
    arrays = {}
    for number, rows in enumerate(([2, 0], [1])):
        arrays[f"lee50-{number}-rows"] = np.array(rows)
        arrays[f"lee50-{number}-input_ids"] = np.array([[row] * 3 for row in rows])
        arrays[f"lee50-{number}-attention_mask"] = np.ones((len(rows), 3), np.int64)
    np.savez(tmp_path / "accuracy.npz", **arrays)
    worker = EngineWorker("none", "fp32", tmp_path, tmp_path, 1)
    worker._engine = DoublingEngine()
    assert worker.embed({"corpus": "lee50", "file": str(tmp_path / "out.npy")}) == {"texts": 3}
    expected = np.array([[row, 1.0] / np.hypot(row, 1.0) for row in range(3)])
    assert np.load(tmp_path / "out.npy") == pytest.approx(expected)


def test_embeddings_must_be_numbers(tmp_path: Path) -> None:
    ids = {"lee50-0-input_ids": np.array([[np.nan]]), "lee50-0-attention_mask": np.ones((1, 1), np.int64)}
    np.savez(tmp_path / "accuracy.npz", **ids, **{"lee50-0-rows": np.array([0])})
    worker = EngineWorker("none", "fp32", tmp_path, tmp_path, 1)
    worker._engine = DoublingEngine()
    with pytest.raises(ValueError, match="finite"):
        worker.embed({"corpus": "lee50", "file": str(tmp_path / "out.npy")})


@pytest.mark.parametrize(("lost", "code"), [(0.0, 0), (0.02, 1)])
def test_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], lost: float, code: int
) -> None:
    row = accuracy.AccuracyRow("lee50", "thresher-int8", "Thresher", "int8", 0.6, lost, 0.01, 0.1, 0.1)
    environment = {"cpu_model": "Test CPU", "cpu_family_model": "1/2", "cores": 2, "isa": ["avx2"]}
    environment |= {"python": "3.11", "system": "Linux", "versions": {}}
    engines = {"eager": {**ENGINES["eager"], "environment": environment}}

    def measure(
        settings: Settings, places: Places, revision: str
    ) -> tuple[dict[str, object], list[accuracy.AccuracyRow]]:
        return {"engines": engines, "revision": revision}, [row]

    monkeypatch.setattr(run, "export", lambda *_, **__: None)
    monkeypatch.setattr(accuracy, "measure", measure)
    arguments = ["--python-thresher", "p", "--python-peers", "q", "--output", str(tmp_path), "--accuracy"]
    assert run.main(arguments) == code
    assert ("loses 0.0200 on Lee-50" in capsys.readouterr().err) is bool(code)
    rows = json.loads((tmp_path / "accuracy.json").read_text(encoding="utf-8"))["rows"]
    assert [(found["loss"], found["broken"]) for found in rows] == [(lost, bool(code))]
    assert "| Lee-50 | Thresher | int8 |" in (tmp_path / "accuracy.md").read_text(encoding="utf-8")

"""The page of architectures of bench/run.py: what it calls bad, its table, and one real row."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
sys.path.insert(0, str(ROOT / "bench"))

import architecture_page  # noqa: E402
import options  # noqa: E402
from architectures import ARCHITECTURES, SMALL  # noqa: E402

ROW: dict[str, Any] = {
    "architecture": "bert",
    "kind": "encoder",
    "precision": "fp32",
    "error": 3e-7,
    "eager_error": 3e-7,
    "same_shape": True,
    "parts": 2,
    "nodes": 10,
    "nodes_in_engine": 7,
    "left": {"aten.convolution.default": 2, "transformers.grouped_mm_fallback.default": 1},
    "eager_ms": 12.0,
    "thresher_ms": 10.0,
    "ratio": 1.2,
    "ratio_p10": 1.1,
    "ratio_p90": 1.3,
    "times_fp32": None,
}


def test_what_is_bad() -> None:
    assert not architecture_page.is_bad(ROW)
    assert architecture_page.is_bad(ROW | {"ratio": 0.9})
    assert architecture_page.is_bad(ROW | {"same_shape": False})
    assert architecture_page.is_bad(ROW | {"error": 1e-4})
    assert not architecture_page.is_bad(ROW | {"error": 1e-2, "eager_error": 8e-3, "precision": "bf16"})
    assert architecture_page.is_bad({"architecture": "bert", "kind": "encoder", "precision": "fp32", "failed": "no"})


def test_table() -> None:
    failed = {"architecture": "t5", "kind": "encoder", "precision": "bf16", "failed": "t5 bf16: died\n  | trace"}
    table = architecture_page.table_of([ROW, failed], 2)
    assert (
        architecture_page.table_of([ROW | {"left": {f"aten.op{i}.default": 1 for i in range(9)}}], 2)
        .rows[0][7]
        .endswith("4 more")
    )
    text = table.text()
    assert "convolution x2, grouped_mm_fallback" in text and "7/10" in text and "1.20 (1.10..1.30)" in text
    bf16 = architecture_page.table_of([ROW | {"precision": "bf16", "times_fp32": 0.987}], 2)
    assert bf16.rows[0][-1] == "0.99" and table.rows[0][-1] == ""
    assert "t5 bf16: died" in text and "trace" not in text
    assert table.bad_rows == {1}


def test_options() -> None:
    needed = ["--python-thresher", "p", "--python-peers", "q"]
    assert options.parse([*needed, "--architectures"]).architectures == SMALL
    assert options.parse([*needed, "--architectures", "bert,mlp"]).architectures == ("bert", "mlp")
    for wrong in (["--architectures", "bart"], ["--architectures", "bert", "--precision", "int8"]):
        with pytest.raises(SystemExit):
            options.parse([*needed, *wrong])


def test_every_kind_of_model_is_there() -> None:
    assert len(ARCHITECTURES) >= 20
    kinds = {one.kind for one in ARCHITECTURES.values()}
    assert {"encoder", "decoder", "vision", "speech", "experts", "state space"} <= kinds


def test_a_row(compiler: Any) -> None:
    pytest.importorskip("transformers")
    from architecture_worker import ArchitectureWorker

    worker = ArchitectureWorker("mlp", "fp32")
    row = worker.create({})
    assert row["engines"] == ["eager", "thresher"]
    assert row["same_shape"] and not architecture_page.wrong(row)
    assert row["nodes"] >= 8 and 0 < row["nodes_in_engine"] <= row["nodes"]
    assert all(worker.turn({"engine": engine})["ms"] > 0 for engine in row["engines"])
    bf16 = ArchitectureWorker("mlp", "bf16").create({})
    assert bf16["engines"] == ["eager", "thresher", "thresher-fp32"]

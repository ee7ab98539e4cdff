"""The arithmetic, the table and the picture of bench/run.py, on figures made up here."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import comparison
import run
from bars import svg
from comparison import ENGINES, REFERENCE, Settings
from report import environment_lines, profiler_cost, rows_of, table_of

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {
    "cpu_model": "Test CPU",
    "cpu_family_model": "1/2",
    "cores": 2,
    "isa": ["avx2"],
    "python": "3.11",
    "system": "Linux",
    "versions": {"torch": "2.13.0", "openvino": None},
}


def result_of(rounds: dict[str, list[list[float]]]) -> dict[str, Any]:
    titles = {spec.key: spec.title for spec in ENGINES}
    return {
        "revision": "abc",
        "flops": {"1-128": 2_000_000_000},
        "engines": {key: {"title": titles[key], "environment": ENVIRONMENT} for key in rounds},
        "cases": [
            {
                "threads": 1,
                "batch": 1,
                "sequence": 128,
                "engines": {
                    key: {"rounds_ms": blocks, "create_ms": 100.0, "first_ms": 50.0, "error": 1e-6}
                    for key, blocks in rounds.items()
                },
            }
        ],
    }


def test_ratios_are_taken_round_by_round() -> None:
    # The host becomes four times slower in the last round; the ratio of every round is 2.
    rows = rows_of(result_of({"eager": [[40.0, 40.0], [44.0, 44.0], [160.0]], "thresher": [[20.0], [22.0], [80.0]]}))
    eager, thresher = rows
    assert eager.ratio == 1.0
    assert (thresher.ratio_low, thresher.ratio, thresher.ratio_high) == (2.0, 2.0, 2.0)
    assert thresher.median == 22.0
    assert thresher.gflops == pytest.approx(2e9 / 22e-3 / 1e9)
    assert (thresher.create_ms, thresher.first_ms) == (100.0, 50.0 - 22.0)


def test_table_has_every_engine() -> None:
    text = table_of(rows_of(result_of({"eager": [[40.0]], "openvino": [[30.0]], "thresher": [[20.0]]}))).text()
    line = next(row for row in text.splitlines() if "OpenVINO" in row)
    assert line.split()[3:] == [
        "OpenVINO",
        "30.00",
        "30.00",
        "30.00",
        "1.33",
        "1.33..1.33",
        "67",
        "1.0e-06",
        "0.10",
        "0.02",
    ]


def test_profiler_cost() -> None:
    lines = profiler_cost(result_of({"eager": [[40.0]], "thresher": [[20.0]], "thresher-profiled": [[20.5]]}))
    assert len(lines) == 1
    assert "+2.5%" in lines[0]
    assert profiler_cost(result_of({"eager": [[40.0]], "thresher": [[20.0]]})) == []


def test_environment_lines_leave_out_what_is_not_installed() -> None:
    text = "\n".join(environment_lines(result_of({"eager": [[40.0]]})))
    assert "torch 2.13.0" in text
    assert "openvino" not in text


def test_svg_is_well_formed_and_fits() -> None:
    rounds = {"eager": [[40.0]], "onnxruntime": [[37.0]], "thresher": [[20.0]], "thresher-profiled": [[20.1]]}
    document = ElementTree.fromstring(svg(rows_of(result_of(rounds)), "A < B & C"))
    space = "{http://www.w3.org/2000/svg}"
    width, height = float(document.attrib["width"]), float(document.attrib["height"])
    bars = document.findall(f"{space}rect")
    assert len(bars) == 4
    assert [bar.attrib["class"] for bar in bars] == ["peer", "peer", "ours", "ours"]
    lengths = [float(bar.attrib["width"]) for bar in bars]
    assert lengths[2] / lengths[0] == pytest.approx(0.5, abs=0.01)
    for bar in bars:
        assert float(bar.attrib["x"]) + float(bar.attrib["width"]) < width
        assert float(bar.attrib["y"]) + float(bar.attrib["height"]) < height
    style = document.find(f"{space}style")
    assert style is not None
    assert "prefers-color-scheme: dark" in (style.text or "")


def test_reference_is_always_measured_and_every_engine_has_a_file() -> None:
    keys = [spec.key for spec in ENGINES]
    assert REFERENCE in keys
    assert len(set(keys)) == len(keys)
    for spec in ENGINES:
        assert (ROOT / "bench" / "engines" / f"{spec.module}.py").is_file()


def test_calls_of_a_turn() -> None:
    settings = Settings((1,), (1, 8), (128,), 4, (REFERENCE,))
    assert settings.calls(1) > settings.calls(8) >= 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--threads", "0"], "at least 1"),
        (["--batches", "two"], "invalid"),
        (["--sequences", "129"], "128 tokens"),
        (["--rounds", "0"], "--rounds must be at least 1"),
        (["--only", "fastest"], "invalid choice"),
    ],
)
def test_command_line_refuses_nonsense(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run.main(["--python-thresher", "p", "--python-peers", "q", *arguments])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_missing_python(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    absent = str(tmp_path / "absent")
    assert run.main(["--python-thresher", absent, "--python-peers", absent, "--output", str(tmp_path / "out")]) == 2
    assert absent in capsys.readouterr().err


def test_failing_export_shows_its_last_words(tmp_path: Path) -> None:
    # An interpreter that sees none of the packages, as an environment that was never filled.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "empty")], check=True)
    settings = Settings((1,), (1,), (128,), 1, (REFERENCE,))
    with pytest.raises(comparison.WorkerError, match="No module named"):
        comparison.export(tmp_path / "empty" / "bin" / "python", tmp_path / "out", settings)


def test_the_whole_program_with_made_up_engines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result = result_of({"eager": [[40.0]], "thresher": [[20.0]], "thresher-profiled": [[21.0]]})

    def export(python: Path, folder: Path, settings: Settings) -> None:
        folder.mkdir(parents=True)
        (folder / "model.json").write_text(json.dumps({"flops": result["flops"]}), encoding="utf-8")

    monkeypatch.setattr(run, "export", export)
    monkeypatch.setattr(run, "measure", lambda *_: result)
    output = tmp_path / "bench"
    assert run.main(["--python-thresher", "p", "--python-peers", "q", "--output", str(output)]) == 0
    assert "times eager" in capsys.readouterr().out
    assert "| Thresher |" in (output / "bench.md").read_text(encoding="utf-8")
    summary = json.loads((output / "bench.json").read_text(encoding="utf-8"))["summary"]
    assert [row["key"] for row in summary] == ["eager", "thresher", "thresher-profiled"]
    ElementTree.fromstring((output / "bench.svg").read_text(encoding="utf-8"))

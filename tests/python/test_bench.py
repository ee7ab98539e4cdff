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
import options
import run
from bars import svg
from comparison import ENGINES, PRECISIONS, REFERENCE, Places, Settings
from engines import Unavailable, unavailable_reason
from models import MODELS
from report import environment_lines, profiler_cost, rows_of, table_of, unavailable_of

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
    specs = {spec.key: spec for spec in ENGINES}
    return {
        "revision": "abc",
        "flops": {"1-128": 2_000_000_000},
        "engines": {
            key: {"title": specs[key].title, "precision": specs[key].precision, "environment": ENVIRONMENT}
            for key in rounds
        },
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
    rows = rows_of(result_of({"eager": [[40.0]], "openvino-bf16": [[30.0]], "thresher": [[20.0]]}))
    text = table_of(rows, "Model", {}).text()
    assert "remark" not in text
    line = next(row for row in text.splitlines() if "OpenVINO" in row)
    assert line.split()[3:] == [
        "OpenVINO",
        "bf16",
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


def test_what_is_not_available_has_a_row_with_the_reason() -> None:
    result = result_of({"eager": [[40.0]], "thresher": [[20.0]]})
    result["engines"]["openvino-bf16"] = {"title": "OpenVINO", "precision": "bf16", "unavailable": "no such unit"}
    rows, unavailable = rows_of(result), unavailable_of(result)
    assert unavailable == {"openvino-bf16": ("OpenVINO", "bf16", "no such unit")}
    table = table_of(rows, "Model", unavailable)
    assert [row[3] for row in table.rows] == ["PyTorch eager", "Thresher", "OpenVINO"]
    assert table.rows[2][4:6] == ("bf16", "-")
    assert table.rows[2][-1] == "not available: no such unit"
    assert "| not available: no such unit |" in table.markdown()
    # Such an engine has no environment, and the lines do without it.
    assert "Test CPU" in environment_lines(result)[0]
    assert "Not available here: OpenVINO bf16<" in svg(rows, "Model", ["OpenVINO bf16"])


def test_long_list_of_what_is_not_available_is_broken_into_lines() -> None:
    rows = rows_of(result_of({"eager": [[40.0]]}))
    names = [f"Engine{number:02} bf16" for number in range(20)]
    picture = ElementTree.fromstring(svg(rows, "Model", names))
    texts = picture.findall("{http://www.w3.org/2000/svg}text")
    start = next(i for i, text in enumerate(texts) if (text.text or "").startswith("Not available here"))
    assert " ".join(text.text or "" for text in texts[start:]) == f"Not available here: {', '.join(names)}"
    assert len(texts[start:]) >= 3
    assert all(8 * len(text.text or "") < 800 for text in texts[start:])
    places = [float(text.attrib["y"]) for text in texts[start:]]
    assert places == sorted(set(places))
    assert places[-1] < float(picture.attrib["height"])
    assert ElementTree.fromstring(svg(rows, "Model")).attrib["height"] < picture.attrib["height"]


def test_profiler_cost() -> None:
    lines = profiler_cost(result_of({"eager": [[40.0]], "thresher": [[20.0]], "thresher-profiled": [[20.5]]}))
    assert len(lines) == 1
    assert "+2.5%" in lines[0]
    assert profiler_cost(result_of({"eager": [[40.0]], "thresher": [[20.0]]})) == []


def test_environment_lines_leave_out_what_is_not_installed() -> None:
    text = "\n".join(environment_lines(result_of({"eager": [[40.0]]})))
    assert "torch 2.13.0" in text
    assert "openvino" not in text


def test_what_an_engine_says_about_itself_is_a_line() -> None:
    result = result_of({"eager": [[40.0]], "onnxruntime-int8": [[9.0]]})
    result["engines"]["onnxruntime-int8"]["note"] = "seven bits"
    assert environment_lines(result)[-1] == "ONNX Runtime int8: seven bits"


def test_svg_is_well_formed_and_fits() -> None:
    rounds = {"eager": [[40.0]], "onnxruntime": [[37.0]], "thresher": [[20.0]], "thresher-profiled": [[20.1]]}
    document = ElementTree.fromstring(svg(rows_of(result_of(rounds)), "A < B & C"))
    space = "{http://www.w3.org/2000/svg}"
    width, height = float(document.attrib["width"]), float(document.attrib["height"])
    paper, *bars = document.findall(f"{space}rect")
    assert paper.attrib["class"] == "paper"
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
        assert spec.precision in PRECISIONS
        assert spec.environment in ("peers", "thresher", "zentorch")
    assert {spec.precision for spec in ENGINES if spec.environment == "thresher"} == set(PRECISIONS)


def test_calls_of_a_turn() -> None:
    settings = Settings((1,), (1, 8), (128,), 4, (REFERENCE,))
    assert settings.calls(1, 128) > settings.calls(8, 128) >= 2
    assert settings.calls(1, 128) < settings.calls(1, 32) == settings.calls(1, 1)


def chosen(*arguments: str) -> Settings:
    return options.settings_of(options.parse(["--python-thresher", "p", "--python-peers", "q", *arguments]))


def test_usual_choice_has_every_precision_of_thresher_and_nothing_slow() -> None:
    settings = chosen()
    assert (settings.threads, settings.batches, settings.sequences) == ((1, 2), (1, 8), (128,))
    assert {"eager", "openvino", "openvino-bf16", "ctranslate2-int8", "thresher-profiled"} <= set(settings.engines)
    assert {"thresher", "thresher-bf16", "thresher-int8"} <= set(settings.engines)
    assert not {"eager-bf16", "inductor", "zentorch", "thresher-fp16"} & set(settings.engines)


@pytest.mark.parametrize(
    ("arguments", "engines"),
    [
        (["--precision", "int8"], ["eager", "onnxruntime-int8", "ctranslate2-int8", "thresher-int8"]),
        (["--precision", "bf16"], ["eager", "eager-bf16", "openvino-bf16", "thresher-bf16"]),
        (["--precision", "fp16"], ["eager", "thresher-fp16"]),
        (["--precision", "fp16", "--inductor"], ["eager", "thresher-fp16"]),
        (
            ["--precision", "bf16", "--inductor"],
            ["eager", "eager-bf16", "inductor-bf16", "openvino-bf16", "thresher-bf16"],
        ),
        (["--only", "thresher-int8"], ["eager", "thresher-int8"]),
        (["--only", "zentorch", "--only", "inductor"], ["eager", "inductor", "zentorch"]),
        (["--only", "thresher-int8", "--only", "thresher", "--precision", "fp32"], ["eager", "thresher"]),
    ],
)
def test_chosen_engines(arguments: list[str], engines: list[str]) -> None:
    assert list(chosen(*arguments).engines) == engines


def test_zentorch_is_measured_on_request() -> None:
    assert {"zentorch", "zentorch-bf16"} <= set(chosen("--zentorch").engines)


def test_sizes_are_different_and_reach_the_largest() -> None:
    sizes = pytest.importorskip("sizes")
    found = sizes.choose_sizes(1000, (32, 512))
    assert len(set(found)) == len(found) == 1000 and (32, 512) in found
    assert min(found) >= (1, 1) and max(s for _, s in found) <= 512 and max(b for b, _ in found) <= 32
    with pytest.raises(ValueError, match="at most 50"):
        sizes.choose_sizes(60, (10, 10))
    needed = ["--python-thresher", "p", "--python-peers", "q"]
    parsed = options.parse([*needed, "--sizes"])
    assert parsed.sizes == 1000 and options.parse([*needed, "--sizes", "40"]).sizes == 40


def test_the_way_into_a_model_is_a_page_of_its_own() -> None:
    needed = ["--python-thresher", "p", "--python-peers", "q"]
    assert options.parse([*needed, "--door"]).door and not options.parse(needed).door
    with pytest.raises(SystemExit):
        options.parse([*needed, "--door", "--sizes"])


def test_a_file_is_loaded_in_a_process_of_its_own(tmp_path: Path) -> None:
    loading = pytest.importorskip("loading")
    needed = ["--python-thresher", "p", "--python-peers", "q"]
    assert options.parse([*needed, "--loading"]).loading and not options.parse(needed).loading
    torch = pytest.importorskip("torch")
    import thresher

    model, x = torch.nn.Linear(64, 64).eval(), torch.zeros(4, 64)
    sizes = {"input": {0: torch.export.Dim("batch", max=16)}}
    thresher.export(model, (x,), tmp_path / "one")
    thresher.export(model, (x,), tmp_path / "many", dynamic_shapes=sizes)
    for name in ("one", "many"):
        found = loading.load_apart(tmp_path / name, "fp32")
        assert set(found) == {"load", "processor", "peak", "first call", "second call"}
        assert all(value > 0 for key, value in found.items() if key != "peak"), found


def test_numbers_of_threads_reach_all_cores() -> None:
    scaling = pytest.importorskip("scaling")
    assert [scaling.thread_counts(cores) for cores in (1, 2, 3, 16, 24)] == [
        [1],
        [1, 2],
        [1, 2, 3],
        [1, 2, 4, 8, 16],
        [1, 2, 4, 8, 16, 24],
    ]
    cases = [
        {
            "precision": "fp32",
            "batch": 1,
            "threads": n,
            "median_ms": 8 / n,
            "least_ms": 8 / n,
            "p99_ms": 9,
            "speedup": n,
        }
        for n in (1, 2, 4)
    ]
    picture = scaling.picture_of({"model": "minilm", "cases": cases})
    assert ">threads</text>" in picture and ">batch 1</text>" in picture and "Thresher, 2 ms" in picture


def test_latency_has_its_own_cases() -> None:
    settings = chosen("--latency")
    assert (settings.threads, settings.batches) == ((1,), (1,))
    assert settings.sequences == (8, 16, 32, 64, 128, 256)
    assert "thresher" in settings.engines
    assert "thresher-profiled" not in settings.engines
    assert chosen("--latency", "--sequences", "8,512", "--threads", "2").sequences == (8, 512)


def test_accuracy_takes_every_precision() -> None:
    engines = set(chosen("--accuracy").engines)
    assert {f"thresher-{precision}" for precision in ("bf16", "fp16", "int8")} <= engines
    assert {"eager", "eager-bf16", "thresher", "ctranslate2"} <= engines
    assert "thresher-profiled" not in engines


def test_larger_models_get_fewer_rounds() -> None:
    assert chosen("--model", "bert-base").rounds == MODELS["bert-base"].rounds < chosen().rounds
    assert chosen("--model", "bert-base", "--quick").rounds == options.QUICK_ROUNDS == chosen("--quick").rounds
    assert chosen("--quick", "--rounds", "9").rounds == 9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--threads", "0"], "at least 1"),
        (["--batches", "two"], "invalid"),
        (["--sequences", "513"], "512 positions"),
        (["--precision", "int8,int4"], "got 'int4'"),
        (["--model", "gpt"], "invalid choice"),
        (["--latency", "--accuracy"], "not allowed with"),
        (["--latency", "--sequences", "32"], "two sequence lengths"),
        (["--accuracy", "--model", "bert-base"], "--model minilm"),
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


def places_of(folder: Path, python: Path, zentorch: Path | None = None) -> Places:
    pythons = {"peers": python, "thresher": python, "zentorch": zentorch}
    return Places(pythons, folder / "models", folder)


def test_failing_export_shows_its_last_words(tmp_path: Path) -> None:
    # An interpreter that sees none of the packages, as an environment that was never filled.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "empty")], check=True)
    settings = Settings((1,), (1,), (128,), 1, (REFERENCE,))
    with pytest.raises(comparison.WorkerError, match="No module named"):
        comparison.export(places_of(tmp_path / "out", tmp_path / "empty" / "bin" / "python"), settings)


def test_reasons_are_told_from_failures() -> None:
    class UnavailableError(RuntimeError):
        pass

    assert unavailable_reason(Unavailable("needs\n  more")) == "needs more"
    assert unavailable_reason(ModuleNotFoundError("No module named 'x'")) == "No module named 'x'"
    assert unavailable_reason(ValueError("wrong shape")) is None
    wrapped = RuntimeError("the back end failed")
    wrapped.__cause__ = UnavailableError("int8 is not available in this build")
    assert unavailable_reason(wrapped) == "int8 is not available in this build"


# Stands in for engine_worker.py: the command line says which engine it is to be.
WORKER = """
import os, sys
sys.path.insert(0, {scripts!r})
from measure import service
_, module, precision, *_ = sys.argv[1:]
BAD = {bad!r}
def create(_):
    if BAD.get(module + "-" + precision) == "reason":
        return {{"unavailable": "no such unit"}}
    if BAD.get(module + "-" + precision) == "death":
        os.kill(os.getpid(), 4)
    if BAD.get(module + "-" + precision) == "failure":
        raise ValueError("wrong shape")
    return {{"create_ms": 1.0, "note": "", "environment": {environment!r}}}
def first(_):
    if BAD.get(module + "-" + precision) == "first":
        return {{"unavailable": "not this shape"}}
    return {{"first_ms": 9.0, "error": 0.0}}
def block(command):
    return {{"settle_ms": 1.0, "samples_ms": [2.0] * command["calls"]}}
sys.exit(service.serve({{"create": create, "first": first, "block": block}}))
"""


def stand_in(folder: Path, bad: dict[str, str]) -> Path:
    worker = folder / "worker.py"
    values = {"scripts": str(ROOT / "scripts"), "bad": bad, "environment": ENVIRONMENT}
    worker.write_text(WORKER.format(**values), encoding="utf-8")
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{worker}" "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    return python


def test_engines_that_are_not_available_leave_the_others_alone(tmp_path: Path) -> None:
    bad = {
        "openvino-bf16": "reason",
        "ctranslate2-int8": "death",
        "onnxruntime-fp32": "failure",
        "thresher-int8": "first",
    }
    engines = ("eager", "zentorch", "onnxruntime", "openvino-bf16", "ctranslate2-int8", "thresher", "thresher-int8")
    settings = Settings((1, 2), (1,), (32, 64), 2, engines)
    result = comparison.measure(settings, places_of(tmp_path, stand_in(tmp_path, bad)), "abc")
    reasons = {key: reason for key, (_, _, reason) in unavailable_of(result).items()}
    assert reasons["openvino-bf16"] == "no such unit"
    assert reasons["thresher-int8"] == "not this shape"
    assert "requirements/bench-zentorch.txt" in reasons["zentorch"]
    assert "ended by signal 4" in reasons["ctranslate2-int8"]
    assert "wrong shape" in reasons["onnxruntime"]
    assert all("\n" not in reason for reason in reasons.values())
    assert len(result["cases"]) == 4
    for case in result["cases"]:
        assert list(case["engines"]) == ["eager", "thresher"]
        assert [len(block) for block in case["engines"]["thresher"]["rounds_ms"]] == [
            settings.calls(1, case["sequence"])
        ] * 2


@pytest.mark.parametrize(
    ("key", "bad", "message"),
    [
        ("thresher", {"thresher-fp32": "reason"}, "Thresher is not available: no such unit"),
        ("thresher-int8", {"thresher-int8": "failure"}, "wrong shape"),
        ("eager", {"eager-fp32": "failure"}, "wrong shape"),
    ],
)
def test_without_reference_or_thresher_there_is_no_result(
    tmp_path: Path, key: str, bad: dict[str, str], message: str
) -> None:
    settings = Settings((1,), (1,), (32,), 1, tuple({REFERENCE, key}))
    with pytest.raises(comparison.WorkerError, match=message):
        comparison.measure(settings, places_of(tmp_path, stand_in(tmp_path, bad)), "abc")


def test_the_whole_program_with_made_up_engines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def export(places: Places, settings: Settings, *, accuracy: bool) -> None:
        work = {f"{b}-{s}": 1000 for b in settings.batches for s in settings.sequences}
        (places.output / "model.json").write_text(json.dumps({"flops": work}), encoding="utf-8")

    monkeypatch.setattr(run, "export", export)
    python = str(stand_in(tmp_path, {"openvino-bf16": "reason"}))
    arguments = ["--python-thresher", python, "--python-peers", python, "--output", str(tmp_path), "--quick"]
    keys = ["eager", "openvino-bf16", "thresher", "thresher-profiled"]
    assert run.main([*arguments, *(f"--only={key}" for key in keys), "--batches=1"]) == 0
    shown = capsys.readouterr().out
    assert "times eager" in shown
    assert "not available: no such unit" in shown
    assert "| Thresher | fp32 |" in (tmp_path / "bench.md").read_text(encoding="utf-8")
    result = json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))
    assert [row["key"] for row in result["summary"]] == ["eager", "thresher", "thresher-profiled"] * 2
    assert [row["precision"] for row in result["summary"]] == ["fp32"] * 6
    assert result["engines"]["openvino-bf16"]["unavailable"] == "no such unit"
    ElementTree.fromstring((tmp_path / "bench.svg").read_text(encoding="utf-8"))

    assert run.main([*arguments, "--only=thresher", "--latency", "--model=bert-base", "--sequences=8,16"]) == 0
    assert "BERT-base" in (tmp_path / "latency-bert-base.md").read_text(encoding="utf-8")
    picture = ElementTree.fromstring((tmp_path / "latency-bert-base.svg").read_text(encoding="utf-8"))
    assert len(picture.findall("{http://www.w3.org/2000/svg}polyline")) == 2

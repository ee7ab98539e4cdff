"""bench/run.py conv: what it measures, its arithmetic, and one small convolution through the whole program."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import conv_page
import options

ROOT = Path(__file__).resolve().parents[2]


def row(
    name: str, kind: str, precision: str, times: dict[str, list[float]], roof_ms: float | None = None
) -> dict[str, Any]:
    engines: dict[str, Any] = {key: {"unavailable": "not here"} for key, *_ in conv_page.ENGINES}
    for key, samples in times.items():
        engines[key] = {"median_ms": sorted(samples)[len(samples) // 2]}
    case = {"name": name, "kind": kind, "batch": 1, "threads": 2, "precision": precision, "engines": engines}
    return case | conv_page._compared(times, roof_ms)


ROWS = [
    row("a", "dense", "fp32", {"thresher": [2, 1, 4], "torch": [9, 9, 9], "torch-last": [4, 4, 4]}, 0.5),
    row("b & c", "grouped", "fp32", {"thresher": [2, 2, 2], "torch": [1, 1, 1]}),
    row("d", "dense", "bf16", {"thresher": [1, 1, 1]}),
]


def test_the_fastest_peer_counts() -> None:
    assert (ROWS[0]["best"], ROWS[0]["ratio"]) == ("torch-last", 2)  # the median of 2, 4 and 1
    assert (ROWS[1]["best"], ROWS[1]["ratio"]) == ("torch", 0.5)
    assert "ratio" not in ROWS[2]
    assert ROWS[0]["ratio_at_roof"] == 8 and "ratio_at_roof" not in ROWS[1]
    assert conv_page.means_of(ROWS, "ratio_at_roof") == [("fp32, all", pytest.approx(8), 1)]
    assert conv_page.means_of(ROWS) == [
        ("fp32, all", pytest.approx(1.0), 2),
        ("fp32, dense", pytest.approx(2.0), 1),
        ("fp32, grouped", pytest.approx(0.5), 1),
    ]


def test_table_picture_and_csv() -> None:
    table = conv_page.table_of(ROWS, "title")
    assert table.bad_rows == {1}
    assert table.rows[0][4:] == ("2.000", "9.000", "4.000", "", "", "25%", "2.00", "8.00")
    assert table.rows[1][-3:] == ("", "0.50", "")
    assert table.rows[2][-2:] == ("", "")
    assert table.rows[3][-2:] == ("1.00", "8.00")
    picture = conv_page.svg_of(ROWS, "title")
    assert picture.count("<rect") == 2 and "b &amp; c" in picture and 'class="peer"' in picture
    lines = conv_page.csv_of(ROWS).splitlines()
    assert lines[0].startswith("name,kind,batch,threads,precision,thresher_ms,torch_ms")
    assert lines[2].endswith(",,torch,0.5")


def test_every_shape_of_the_files_can_be_made() -> None:
    torch = pytest.importorskip("torch")
    import conv_cases

    for name in options.CONVOLUTIONS:
        found = conv_cases.layers(ROOT / "bench" / name, [1, 2])
        assert {case["batch"] for case in found} == {1, 2}
        assert {"dense", "pointwise", "depthwise", "grouped"} <= {case["kind"] for case in found}
    small = [case for case in found if case["transposed"] or len(case["kernel"]) != 4 or max(case["input"]) < 20]
    for case in small:
        model, x = conv_cases.make(case)
        with torch.no_grad():
            assert model(x).shape[:2] == (case["batch"], int(case["name"].split("-> ")[1].split(",")[0]))


def test_gradients_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    import conv_cases

    file = tmp_path / "commands.txt"
    file.write_text("conv -n 1 -c 8 -H 4 -W 4 -k 8 -F 2\n")
    with pytest.raises(ValueError, match="expected convolutions that go forward, got 'conv -n 1"):
        conv_cases.layers(file, [1])


def test_networks_are_chosen_by_the_beginning_of_their_names() -> None:
    pytest.importorskip("torch")
    import conv_cases

    assert conv_cases.networks([]) == list(conv_cases.NETWORKS)
    assert conv_cases.networks(["vit", "ResNet"]) == ["ResNet-50", "ViT-B/16"]
    with pytest.raises(ValueError, match=r"expected beginnings of EfficientNet-Lite0, .*, got 'vgg'"):
        conv_cases.networks(["vit", "vgg"])
    given = ["--python-thresher", "p", "--python-peers", "q", "conv"]
    assert options.parse(given).networks is None
    assert options.parse([*given, "--networks"]).networks == ()
    assert options.parse([*given, "--networks", "vit,resnet", "--threads", "1"]).networks == ("vit", "resnet")


WRONG = [["--networks"], ["conv", "--commands-file", "none.txt"], ["conv", "--networks", "--commands-file", __file__]]


@pytest.mark.parametrize("wrong", WRONG)
def test_options_that_do_not_fit(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        options.parse(["--python-thresher", "p", "--python-peers", "q", *wrong])
    assert ended.value.code == 2
    assert "--commands-file" in capsys.readouterr().err


def run_on_a_small_convolution(folder: Path, peers: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """The whole program, whose results lie in `folder`."""
    file = folder / "small.txt"
    file.write_text("conv -n 1 -c 16 -H 6 -W 6 -k 16 --in_layout NHWC --fil_layout NHWC --out_layout NHWC\n")
    pythons = ["--python-thresher", sys.executable, "--python-peers", str(peers)]
    command = [sys.executable, str(ROOT / "bench" / "run.py"), *pythons, "--output", str(folder), "conv"]
    command += ["--commands-file", str(file), "--rounds", "3", "--batches", "2", *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.thorough
def test_a_peer_that_dies_takes_no_measured_case_with_it(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    peers = tmp_path / "python"
    peers.write_text(f'#!/bin/sh\n[ "$3" = 2 ] && exit 7\nexec {sys.executable} "$@"\n')  # its third word: threads
    peers.chmod(0o755)
    done = run_on_a_small_convolution(tmp_path, peers, "--threads", "1,2", "--precision", "fp32")
    assert done.returncode == 2
    told = "16x6x6 -> 16, 3x3, batch 2, 2 threads, fp32: ONNX Runtime: the process ended with status 7"
    assert told in done.stderr
    found = json.loads((tmp_path / "conv-small.json").read_text())
    assert [row["threads"] for row in found["rows"]] == [1] and "status 7" in found["failed"]


@pytest.mark.thorough
def test_the_whole_program_on_a_small_convolution(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    done = run_on_a_small_convolution(tmp_path, Path(sys.executable), "--threads", "1")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "conv-small.json").read_text())
    assert [row["precision"] for row in found["rows"]] == ["fp32", "bf16", "int8"]
    case = found["rows"][0]
    assert len(case["engines"]["thresher"]["samples_ms"]) == 3
    assert case["engines"]["torch-last"]["error"] < 1e-5
    assert 0 < case["roof_ms"] < case["engines"]["thresher"]["median_ms"]
    assert {"conv-small.csv", "conv-small.svg", "conv-small.md"} <= {path.name for path in tmp_path.iterdir()}

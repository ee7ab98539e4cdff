"""The picture of latency by sequence length, on figures made up here."""

from __future__ import annotations

import itertools
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import lines
from comparison import ENGINES, PRECISIONS
from report import Row

SVG = "{http://www.w3.org/2000/svg}"
SPECS = {spec.key: spec for spec in ENGINES}


def row(key: str, sequence: int, median: float, threads: int = 1) -> Row:
    spec = SPECS[key]
    return Row(
        threads=threads,
        batch=1,
        sequence=sequence,
        key=key,
        title=spec.title,
        precision=spec.precision,
        median=median,
        p10=median,
        p90=median,
        ratio=1.0,
        ratio_low=1.0,
        ratio_high=1.0,
        error=0.0,
        gflops=1.0,
        create_ms=0.0,
        first_ms=0.0,
    )


def points_of(line: ElementTree.Element) -> list[tuple[float, float]]:
    pairs = [point.split(",") for point in line.attrib["points"].split()]
    return [(float(x), float(y)) for x, y in pairs]


def test_equal_factors_are_equal_distances() -> None:
    rows = [row("eager", 8 * 2**i, 3.0 * 2**i) for i in range(4)] + [
        row("thresher", 8 * 2**i, 1.5 * 2**i) for i in range(4)
    ]
    picture = ElementTree.fromstring(lines.svg(rows, "A < B & C"))
    eager, ours = picture.findall(f"{SVG}polyline")
    upper, lower = points_of(eager), points_of(ours)
    steps = [b[0] - a[0] for a, b in itertools.pairwise(upper)]
    assert steps == pytest.approx([steps[0]] * 3, abs=0.11)
    falls = [b[1] - a[1] for a, b in itertools.pairwise(upper)]
    assert falls == pytest.approx([falls[0]] * 3, abs=0.11)
    assert falls[0] < 0  # a longer call is higher up
    # Half the time of the next shorter sequence: eager at 8 stands as high as Thresher at 16.
    assert lower[1][1] == pytest.approx(upper[0][1], abs=0.11)
    assert eager.attrib["stroke-dasharray"] == "none"
    assert "ours" in ours.attrib["class"]


def test_precisions_differ_in_their_dash_and_engines_in_their_hue() -> None:
    keys = ["thresher", "thresher-bf16", "thresher-fp16", "thresher-int8", "openvino"]
    rows = [row(key, length, length * (i + 1)) for i, key in enumerate(keys) for length in (8, 16)]
    drawn = ElementTree.fromstring(lines.svg(rows, "Model")).findall(f"{SVG}polyline")
    assert len({line.attrib["stroke-dasharray"] for line in drawn[:4]}) == 4
    assert len({line.attrib["class"] for line in drawn[:4]}) == 1
    assert drawn[4].attrib["class"] != drawn[0].attrib["class"]


def test_every_engine_has_a_colour_and_every_precision_a_dash() -> None:
    assert {spec.key.partition("-")[0] for spec in ENGINES} == set(lines.COLOURS)
    assert set(lines.DASHES) == set(PRECISIONS)


def test_everything_lies_in_the_picture_and_no_label_covers_another() -> None:
    # All engines nearly alike, the worst case for the labels; two panels.
    rows = [
        row(spec.key, length, length * (1 + i / 100), threads)
        for threads in (1, 2)
        for i, spec in enumerate(ENGINES)
        for length in (8, 64, 512)
    ]
    text = lines.svg(rows, "Model", ["PyTorch inductor"])
    picture = ElementTree.fromstring(text)
    width, height = float(picture.attrib["width"]), float(picture.attrib["height"])
    for line in picture.findall(f"{SVG}polyline"):
        for x, y in points_of(line):
            assert 0 < x < width
            assert 0 < y < height
    labels = [label for label in picture.findall(f"{SVG}text") if label.attrib.get("class", "").startswith("end")]
    assert len(labels) == 2 * len(ENGINES)
    for panel in (labels[: len(ENGINES)], labels[len(ENGINES) :]):
        places = sorted(float(label.attrib["y"]) for label in panel)
        assert min(b - a for a, b in itertools.pairwise(places)) >= lines.LABEL_GAP - 0.2
    # 13 pixels of a common sans serif are below 8 pixels a letter on average.
    assert all(float(label.attrib["x"]) + 8 * len(label.text or "") < width for label in labels)
    assert "Not available here: PyTorch inductor<" in text
    assert "prefers-color-scheme: dark" in text
    names = [label.text for label in picture.findall(f"{SVG}text")]
    assert "1 thread, batch 1" in names
    assert "2 threads, batch 1" in names


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (1.0, 10.0, [1, 2, 5, 10]),
        (3.0, 30.0, [2, 5, 10, 20, 50]),
        (0.15, 0.4, [0.1, 0.2, 0.5]),
        (4.0, 4.0, [2, 5]),
        (100.0, 100.0, [100]),
    ],
)
def test_ticks(low: float, high: float, expected: list[float]) -> None:
    assert lines.ticks(low, high) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ([10.0, 50.0], [10.0, 50.0]),
        ([50.0, 50.0], [45.0, 55.0]),
        ([52.0, 50.0, 51.0], [61.0, 41.0, 51.0]),
        ([0.0, 1.0], [0.0, 10.0]),
        ([99.0, 100.0], [90.0, 100.0]),
        ([], []),
    ],
)
def test_spread(wanted: list[float], expected: list[float]) -> None:
    assert lines.spread(wanted, 0.0, 100.0, 10.0) == pytest.approx(expected)


def test_spread_keeps_the_gap_where_the_bounds_are_too_narrow() -> None:
    assert lines.spread([3.0, 2.0, 1.0], 0.0, 10.0, 10.0) == pytest.approx([20.0, 10.0, 0.0])

"""Drawings of graphs: what is in them, where it lies, and how large they may get."""

from __future__ import annotations

import itertools
import random
import re
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from thresher.draw import GraphTextError, draw, parse
from thresher.draw.dump import Dump
from thresher.draw.layout import place
from thresher.draw.page import changes, new_nodes

TEXT = """graph 1
# by hand
input %0 "ids <&>" : f32[2, 8]
input %unused : i64[3]
weight %2 "encoder.layer.0.fc.weight" : f32[4, 8] digest 00000000000000000000000000000000
const %1 "scale" : f32[] = [0.5]
%3 = mul(%0, %1) : f32[2, 8] @ "fc: m.py:3 in f, act \\"quoted\\" {x}"
%4 = linear(%3, %2, _, %3) {activation = "relu", layout = "nk"} : f32[2, 4] in "encoder.fc" # by hand
%a, %b = split(%4) : f32[1, 4], f32[1, 4]
return %b, %4
"""
SVG = "{http://www.w3.org/2000/svg}"


def boxes(svg: str) -> list[ET.Element]:
    """The boxes, less the one of the legend."""
    return [group for group in ET.fromstring(svg).iter(f"{SVG}g") if group.find(f"{SVG}title") is not None]


def chain(count: int) -> str:
    lines = [f"%{i + 1} = relu(%{i}) : f32[2]" for i in range(count)]
    return "\n".join(["graph 1", "input %0 : f32[2]", *lines, f"return %{count}"]) + "\n"


def test_parse() -> None:
    graph = parse(TEXT)
    assert graph.inputs == (("0", "ids <&>", "f32[2, 8]"), ("unused", "unused", "i64[3]"))
    assert graph.constants["2"].kind == "weight" and graph.constants["1"].type == "f32[]"
    mul, linear, split = graph.nodes
    assert (mul.op, mul.inputs, mul.types) == ("mul", ("0", "1"), ("f32[2, 8]",))
    assert mul.source == 'fc: m.py:3 in f, act "quoted" {x}'
    assert (mul.module, linear.source, linear.module) == ("", "", "encoder.fc")
    assert linear.inputs == ("3", "2", "_", "3") and linear.attrs == 'activation = "relu", layout = "nk"'
    assert split.outputs == ("a", "b") and len(split.types) == 2
    assert graph.outputs == ("b", "4")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "return"),
        ("hello\n", "line 1: expected 'graph 1'"),
        ("graph 1\nreturn %0\n", "line 2: expected a value defined above, got %0"),
        ("graph 1\n%1 = relu(%0)\nreturn %1\n", "line 2: expected a value defined above"),
        ("graph 1\ninput %0\nreturn %0\n", "line 2: expected input, const"),
        ("graph 1\ninput %0 : f32[1]\n", "cut off"),
        ("graph 1\nreturn\nreturn\n", "line 3: expected nothing after return"),
    ],
)
def test_what_is_no_graph(text: str, message: str) -> None:
    with pytest.raises(GraphTextError, match=re.escape(message)):
        parse(text)


def test_the_engine_s_own_text_is_read() -> None:
    engine = pytest.importorskip("thresher._engine")
    graph = engine.Graph()
    x = graph.input('a "name"', "f32", [2, 3])
    (y,) = graph.add("full", [], {"shape": [2, 3], "value": float("-inf"), "dtype": "f32"}, 'm: "f.py" {1}, n')
    graph.set_outputs(graph.add("add", [x, y]))
    found = parse(graph.text())
    assert found.inputs[0][1] == 'a "name"' and [node.op for node in found.nodes] == ["full", "add"]
    assert found.nodes[0].source == 'm: "f.py" {1}, n'


def test_drawing() -> None:
    svg = draw(parse(TEXT), title="<title>", sections={"mul": "reshape"}, new=[1])
    drawn = boxes(svg)
    assert [box.get("class") for box in drawn] == ["input", "reshape", "forward new", "forward", "output", "output"]
    words = [["".join(text.itertext()) for text in box.findall(f"{SVG}text")] for box in drawn]
    assert words[0] == ["ids <&>", "f32[2, 8]"]
    assert words[2] == ["linear + relu + add", "f32[2, 4]", "fc.weight f32[4, 8]"]
    tip = drawn[2].findtext(f"{SVG}title")
    assert tip is not None and "encoder.layer.0.fc.weight" in tip and "in encoder.fc" in tip and "layout" in tip
    root = ET.fromstring(svg)
    assert len([path for path in root.iter(f"{SVG}path") if path.get("class") == "e"]) == 6
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|<script|<image|@import", svg)
    assert "prefers-color-scheme:dark" in svg


def test_control_characters_do_not_break_the_file() -> None:
    svg = draw(parse('graph 1\ninput %0 "a\x01b\x1f" : f32[1]\nreturn %0\n'))
    assert "a?b?" in "".join(ET.fromstring(svg).itertext())


def test_boxes_do_not_touch_and_operands_stand_above() -> None:
    random.seed(5)
    for _ in range(20):
        count = random.randint(1, 60)
        sizes = [(random.uniform(20, 200), random.uniform(20, 70)) for _ in range(count)]
        edges = sorted({(random.randrange(end), end) for end in range(1, count) for _ in range(random.randint(0, 3))})
        layout = place(sizes, edges)
        for start, end in edges:
            assert layout.boxes[start][1] + sizes[start][1] < layout.boxes[end][1]
        for (i, (x, y)), (j, (u, v)) in itertools.combinations(enumerate(layout.boxes), 2):
            beside = abs(x - u) >= (sizes[i][0] + sizes[j][0]) / 2
            assert beside or y + sizes[i][1] <= v or v + sizes[j][1] <= y
        for (x, y), (w, h) in zip(layout.boxes, sizes, strict=True):
            assert x - w / 2 >= -1e-6 and x + w / 2 <= layout.width + 1e-6 and y >= 0 and y + h <= layout.height + 1e-6
        for (start, end), points in zip(edges, layout.edges, strict=True):
            assert points[0][1] == layout.boxes[start][1] + sizes[start][1] and points[-1][1] == layout.boxes[end][1]
            assert all(a[1] <= b[1] for a, b in itertools.pairwise(points))


def test_a_chain_is_a_straight_line() -> None:
    layout = place([(50.0, 20.0), (80.0, 20.0), (30.0, 20.0)], [(0, 1), (1, 2)])
    assert max(x for x, _ in layout.boxes) - min(x for x, _ in layout.boxes) < 0.5


def test_large_graphs_are_cut_with_a_note() -> None:
    svg = draw(parse(chain(3000)))
    assert "cut: the first 2,000 of 3,000 nodes" in svg
    assert len(boxes(svg)) == 2001 and len(svg) < 2_000_000
    assert "cut" not in draw(parse(chain(10)))


@pytest.mark.release_build
def test_a_graph_of_300_nodes_is_drawn_in_a_second() -> None:
    lines = ["graph 1", "input %0 : f32[8]", "input %mask : f32[8]"]
    last, number = 0, 1
    for _ in range(42):  # a block: three branches that meet, a mask, a residual
        q, k, v, s, o, r, n = range(number, number + 7)
        lines += [f"%{branch} = neg(%{last}) : f32[8]" for branch in (q, k, v)]
        lines += [f"%{s} = where(%{q}, %{k}, %mask)", f"%{o} = mul(%{s}, %{v})", f"%{r} = add(%{o}, %{last})"]
        lines += [f"%{n} = relu(%{r})"]
        last, number = n, number + 7
    graph = parse("\n".join([*lines, f"return %{last}"]))
    times = []
    for _ in range(3):
        start = time.perf_counter()
        draw(graph)
        times.append(time.perf_counter() - start)
    assert len(graph.nodes) == 294 and min(times) < 1


def test_what_a_pass_changed() -> None:
    before = parse("graph 1\ninput %0 : f32[2]\n%1 = relu(%0)\n%2 = neg(%1)\n%3 = neg(%2)\nreturn %3\n")
    after = parse("graph 1\ninput %0 : f32[2]\n%1 = exp(%0)\n%2 = relu(%1)\n%3 = neg(%2)\nreturn %3\n")
    assert new_nodes(before, after) == [0] and new_nodes(before, before) == []
    assert changes(before, after) == [("exp", 1), ("neg", -1)]


def test_dump_never_overwrites(tmp_path: Path) -> None:
    for _ in range(3):
        dump = Dump(tmp_path / "new", "graph_0_plan_0", {})
        for name in ("input", "dead_code", "relu_removal", "dead_code"):
            dump(name, chain(2 if name == "relu_removal" else 3))
        dump.close()
    folders = sorted(path.name for path in (tmp_path / "new").iterdir())
    assert folders == ["graph_0_plan_0", "graph_0_plan_0_2", "graph_0_plan_0_3"]
    names = sorted(path.name for path in (tmp_path / "new" / folders[0]).iterdir())
    assert names[:4] == ["00_input.svg", "00_input.txt", "01_dead_code.svg", "01_dead_code.txt"]
    assert names[-3:] == ["03_dead_code.svg", "03_dead_code.txt", "index.html"]
    page = (tmp_path / "new" / folders[0] / "index.html").read_text()
    assert page.count("<figure") == 3  # the second stage shows the drawing of the first
    assert page.count("changed nothing") == 1 and "3 → 2" in page and "&minus;1</span> relu" in page
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|<script|src=|<link", page)


def test_names_of_parameters_and_arguments() -> None:
    pytest.importorskip("torch")
    from thresher.compiler.origin import argument_name, module_path

    assert module_path("L['fn']._modules['0']._parameters['weight']") == "0.weight"
    assert module_path("L['self']._orig_mod.fc") == "fc" and module_path("L['self']") == ""
    assert argument_name("L['kwargs']['ids']") == argument_name("L['ids']") == "ids"
    assert argument_name("L['args'][0]") == "args.0"


def test_dump_of_a_model(compiler: Any, tmp_path: Path) -> None:
    import torch
    from torch import nn

    from thresher import _engine

    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)).eval()
    with torch.no_grad():
        config = compiler.CompilerConfig(dump_dir=tmp_path)
        compiled = compiler.compile(model, dynamic=True, config=config)
        compiled(torch.randn(5, 8))
        compiled(torch.randn(6, 8))
    folders = sorted(tmp_path.iterdir())
    # The second combination of shapes makes a plan for many.
    assert [re.sub(r"graph_\d+", "graph", folder.name) for folder in folders] == ["graph_many_sizes_0", "graph_plan_0"]
    for folder in folders:
        texts = sorted(folder.glob("*.txt"))
        last = texts[-1]
        text = last.read_text()
        assert re.search(r'weight %\d+ "0.weight"', text) and re.search(r'input %\d+ "\w', text)
        assert re.search(r'linear\(.* in "0"', text) and re.search(r'linear\(.* in "2"', text)
        assert "linear + gelu" in last.with_suffix(".svg").read_text()
        assert len(list(folder.glob("*.svg"))) == len(texts) == 1 + len(_engine.passes("O2"))
        assert (folder / "index.html").is_file()

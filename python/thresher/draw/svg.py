"""A graph as one SVG file: boxes by layers, coloured by section, light or dark as the viewer is."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Collection, Mapping
from html import escape

from thresher.draw.layout import Point, place
from thresher.draw.text import ConstantText, GraphText, NodeText

MAX_NODES = 2000

_MARGIN = 24.0
_HEAD = 70.0
_LINE = 15.0
_PAD = 8.0
_CHARACTER = 6.65  # width of one at 11 px
_TITLE_CHARACTER = 7.9  # and in a title
_MAX_LABEL = 44
_MAX_CONSTANTS = 4
_MAX_TIP = 1200

SECTIONS = ("forward", "reshape", "alloc")

STYLE = """
.tg{--ink:#1b2733;--dim:#5b6b7a;--edge:#8a99a8;--paper:#fff;--new:#c2410c;
--forward:#dbeafe;--forward-line:#3b73c4;--reshape:#eef0f3;--reshape-line:#98a3af;--alloc:#e7f5e4;--alloc-line:#5a9a4e;
--input:#fff3d6;--input-line:#c08a1a;--output:#f3e3fb;--output-line:#9455b8}
@media (prefers-color-scheme:dark){.tg{--ink:#e6ebf0;--dim:#9fb0c0;--edge:#66788a;--paper:#14191f;--new:#fb923c;
--forward:#1d3557;--forward-line:#5b93dd;--reshape:#262d35;--reshape-line:#5f6c79;--alloc:#1f3a22;--alloc-line:#67ab5a;
--input:#443617;--input-line:#cfa043;--output:#3a2547;--output-line:#b07bd0}}
.tg{background:var(--paper);font:11px ui-monospace,"DejaVu Sans Mono",Menlo,Consolas,monospace}
.tg text{fill:var(--ink)}.tg .t{font-weight:700;font-size:13px}.tg .d{fill:var(--dim)}
.tg .h{font-size:15px;font-weight:700}.tg .note{fill:var(--new);font-weight:700}
.tg .e{fill:none;stroke:var(--edge);stroke-width:1.3}.tg marker path{fill:var(--edge)}
.tg rect{rx:5px;stroke-width:1.2}
"""
STYLE += "".join(
    f".tg .{name} rect,.tg rect.{name}{{fill:var(--{name});stroke:var(--{name}-line)}}\n"
    for name in (*SECTIONS, "input", "output")
)
STYLE += ".tg .new rect{stroke:var(--new);stroke-width:3}\n"


@dataclasses.dataclass(slots=True)
class _Box:
    kind: str
    title: str
    lines: list[str]
    tip: str
    new: bool = False

    def size(self) -> tuple[float, float]:
        widest = max([len(self.title) * _TITLE_CHARACTER, *(len(line) * _CHARACTER for line in self.lines)])
        return widest + 2 * _PAD, 20 + _LINE * len(self.lines) + _PAD


def draw(
    graph: GraphText,
    *,
    title: str = "",
    sections: Mapping[str, str] | None = None,
    new: Collection[int] = (),
    max_nodes: int = MAX_NODES,
) -> str:
    """Draws a graph.

    Args:
      graph: what parse() read.
      title: the heading.
      sections: "forward", "reshape" or "alloc" by operator, as `thresher ops` lists them; others count as "forward".
      new: numbers of nodes to mark.
      max_nodes: of a larger graph only the first so many nodes are drawn, under a note that says so.

    Returns:
      A whole SVG document without references to anything outside.
    """
    nodes = graph.nodes[:max_nodes]
    boxes, edges = _boxes(graph, nodes, sections or {}, frozenset(new))
    layout = place([box.size() for box in boxes], edges)
    note = "" if len(nodes) == len(graph.nodes) else f"cut: the first {len(nodes):,} of {len(graph.nodes):,} nodes"
    heading = title or "graph"
    facts = f"{len(graph.nodes)} nodes, {len(graph.inputs)} inputs, {len(graph.constants)} constants"
    legend = [*(("input",) if graph.inputs else ()), *SECTIONS, "output", *(("new",) if new else ())]
    width = max(
        layout.width,
        len(heading) * 9.2,
        (len(facts) + len(note) + 2) * _CHARACTER,
        sum(len(name) * _CHARACTER + 34 for name in legend),
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="tg" role="img" aria-label="{_text(heading)}" '
        f'viewBox="0 0 {width + 2 * _MARGIN:.0f} {layout.height + _HEAD + 2 * _MARGIN:.0f}" '
        f'width="{width + 2 * _MARGIN:.0f}" height="{layout.height + _HEAD + 2 * _MARGIN:.0f}">\n',
        f"<style>{STYLE}</style>\n",
        '<rect width="100%" height="100%" style="fill:var(--paper);rx:0;stroke:none"/>\n',
        '<marker id="a" viewBox="0 0 6 6" refX="5.4" refY="3" markerWidth="6" markerHeight="6" orient="auto">'
        '<path d="M0 0 6 3 0 6z"/></marker>\n',
        f'<text class="h" x="{_MARGIN:.0f}" y="{_MARGIN + 8:.0f}">{_text(heading)}</text>\n',
        f'<text class="d" x="{_MARGIN:.0f}" y="{_MARGIN + 27:.0f}">{facts}</text>\n',
    ]
    if note:
        x = _MARGIN + (len(facts) + 2) * _CHARACTER
        parts.append(f'<text class="note" x="{x:.0f}" y="{_MARGIN + 27:.0f}">{note}</text>\n')
    parts.append(_legend(legend))
    parts.append(f'<g transform="translate({_MARGIN + (width - layout.width) / 2:.1f} {_MARGIN + _HEAD:.1f})">\n')
    parts += [f'<path class="e" marker-end="url(#a)" d="{_curve(points)}"/>\n' for points in layout.edges]
    for box, (x, y) in zip(boxes, layout.boxes, strict=True):
        parts.append(_box(box, x, y))
    parts.append("</g>\n</svg>\n")
    return "".join(parts)


def _boxes(
    graph: GraphText, nodes: tuple[NodeText, ...], sections: Mapping[str, str], new: frozenset[int]
) -> tuple[list[_Box], list[tuple[int, int]]]:
    boxes: list[_Box] = []
    edges: list[tuple[int, int]] = []
    made: dict[str, int] = {}
    used = {name for node in nodes for name in node.inputs} | set(graph.outputs)
    for value, name, type_ in graph.inputs:
        if value in used:
            made[value] = len(boxes)
            boxes.append(_Box("input", _short(name), [_short(type_)], f"input {name}\n{type_}"))
    for number, node in enumerate(nodes):
        constants = [graph.constants[name] for name in node.inputs if name in graph.constants]
        section = sections.get(node.op, "forward")
        kind = section if section in SECTIONS else "forward"
        edges += [(made[name], len(boxes)) for name in node.inputs if name in made]
        made.update(dict.fromkeys(node.outputs, len(boxes)))
        lines = [_short(", ".join(node.types))] if node.types else []
        lines += [_constant(constant) for constant in constants[:_MAX_CONSTANTS]]
        if len(constants) > _MAX_CONSTANTS:
            lines.append(f"and {len(constants) - _MAX_CONSTANTS} more constants")
        boxes.append(_Box(kind, _title(node), lines, _tip(node, constants), number in new))
    for number, name in enumerate(graph.outputs):
        if name in made:
            edges.append((made[name], len(boxes)))
            boxes.append(_Box("output", f"output {number}", [], f"output {number}: %{name}"))
    return boxes, edges


def _title(node: NodeText) -> str:
    activation = re.search(r'activation = "(\w+)"', node.attrs)
    fused = [activation[1]] if activation and activation[1] != "none" else []
    if node.op == "linear" and len(node.inputs) > 3 and node.inputs[3] != "_":
        fused.append("add")
    return " + ".join([node.op, *fused])


def _tip(node: NodeText, constants: list[ConstantText]) -> str:
    results = ", ".join(f"%{name}" for name in node.outputs)
    operands = ", ".join("_" if name == "_" else f"%{name}" for name in node.inputs)
    lines = [f"{results} = {node.op}({operands})", ", ".join(node.types), node.attrs]
    lines += [f"{constant.kind} {constant.name}: {constant.type}" for constant in constants]
    lines += [f"in {node.module}" if node.module else "", *node.source.split(", ")]
    return "\n".join(line for line in lines if line)[:_MAX_TIP]


def _constant(constant: ConstantText) -> str:
    # The last two parts of a path tell "query.weight" from "key.weight"; the tooltip has the whole.
    name = ".".join(constant.name.split(".")[-2:])
    return _short(f"{name} {constant.type}")


def _short(text: str) -> str:
    return text if len(text) <= _MAX_LABEL else text[: _MAX_LABEL - 1] + "…"


def _text(text: str) -> str:
    """Text for XML, which knows no control characters."""
    return escape(re.sub(r"[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "?", text))


def _legend(names: list[str]) -> str:
    x, y = _MARGIN, _MARGIN + 40
    parts = []
    for name in names:
        if name == "new":
            parts.append(
                f'<g class="new"><rect class="forward" x="{x:.0f}" y="{y:.0f}" width="12" height="12"/></g>'
                f'<text class="d" x="{x + 17:.0f}" y="{y + 10:.0f}">made by this pass</text>\n'
            )
            continue
        parts.append(
            f'<rect class="{name}" x="{x:.0f}" y="{y:.0f}" width="12" height="12"/>'
            f'<text class="d" x="{x + 17:.0f}" y="{y + 10:.0f}">{name}</text>\n'
        )
        x += len(name) * _CHARACTER + 34
    return "".join(parts)


def _curve(points: list[Point]) -> str:
    path = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        if abs(x1 - x0) < 0.5:
            path.append(f"V{y1:.1f}" if x0 == x1 else f"L{x1:.1f} {y1:.1f}")
        else:
            middle = (y0 + y1) / 2
            path.append(f"C{x0:.1f} {middle:.1f} {x1:.1f} {middle:.1f} {x1:.1f} {y1:.1f}")
    return "".join(path)


def _box(box: _Box, x: float, y: float) -> str:
    width, height = box.size()
    kind = f"{box.kind} new" if box.new else box.kind
    texts = [f'<text class="t" x="{width / 2:.1f}" y="18" text-anchor="middle">{_text(box.title)}</text>']
    for i, line in enumerate(box.lines):
        style = ' class="d"' if i else ""
        texts.append(
            f'<text{style} x="{width / 2:.1f}" y="{33 + i * _LINE:.1f}" text-anchor="middle">{_text(line)}</text>'
        )
    return (
        f'<g class="{kind}" transform="translate({x - width / 2:.1f} {y:.1f})"><title>{_text(box.tip)}</title>'
        f'<rect width="{width:.1f}" height="{height:.1f}"/>{"".join(texts)}</g>\n'
    )

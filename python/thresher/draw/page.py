"""One page that shows what every pass did to a graph."""

from __future__ import annotations

import dataclasses
from collections import Counter
from html import escape

from thresher.draw.text import GraphText, NodeText


@dataclasses.dataclass(frozen=True, slots=True)
class Stage:
    """A graph after a pass.

    Attributes:
      name: the pass, or "input".
      graph: what it made.
      svg: its drawing.
    """

    name: str
    graph: GraphText
    svg: str


def new_nodes(before: GraphText, after: GraphText) -> list[int]:
    """Numbers of the nodes of `after` that `before` has no equal of."""
    left = Counter(_identity(node) for node in before.nodes)
    found = []
    for number, node in enumerate(after.nodes):
        key = _identity(node)
        if left[key]:
            left[key] -= 1
        else:
            found.append(number)
    return found


def _identity(node: NodeText) -> tuple[object, ...]:
    # Values are numbered anew in every graph, so they cannot tell nodes apart; which operands are absent can.
    return node.op, node.types, node.attrs, node.source, node.module, tuple(name == "_" for name in node.inputs)


def changes(before: GraphText, after: GraphText) -> list[tuple[str, int]]:
    """Operators whose number changed and by how many, the largest changes first."""
    counts = Counter(node.op for node in after.nodes)
    counts.subtract(node.op for node in before.nodes)
    return sorted(((op, n) for op, n in counts.items() if n), key=lambda item: (-abs(item[1]), item[0]))


_STYLE = """
:root{color-scheme:light dark;--paper:#fff;--ink:#1b2733;--dim:#5b6b7a;--line:#d5dbe1;--less:#2f7d3b;--more:#c2410c;
--here:#e8f0fb}
@media (prefers-color-scheme:dark){:root{--paper:#14191f;--ink:#e6ebf0;--dim:#9fb0c0;--line:#333d47;--less:#7bc487;
--more:#fb923c;--here:#1d3048}}
*{box-sizing:border-box}body{margin:0;display:flex;height:100vh;background:var(--paper);color:var(--ink);
font:14px/1.4 system-ui,sans-serif}
nav{flex:0 0 27rem;overflow:auto;border-right:1px solid var(--line);padding:1rem}main{flex:1;overflow:auto}
h1{font-size:1.15rem;margin:0 0 .2rem}p{margin:.2rem 0 .8rem;color:var(--dim)}
label{display:block;padding:.45rem .6rem;border-top:1px solid var(--line);cursor:pointer}
label:hover{background:var(--here)}label .n{float:right;font-variant-numeric:tabular-nums}
label small{display:block;color:var(--dim)}.same{color:var(--dim)}.less{color:var(--less)}.more{color:var(--more)}
input{position:absolute;opacity:0}main figure{display:none;margin:0}input:focus-visible+label{outline:2px solid}
"""


def render_page(title: str, stages: list[Stage]) -> str:
    """The page: a list of the passes with node counts on the left, the drawing of the chosen one on the right.

    Args:
      title: the heading.
      stages: the graph as it came and after every pass. A drawing that several share stands in the page once.
    """
    rows, figures, rules = [], [], []
    shown: dict[str, int] = {}
    first = next((i for i, stage in enumerate(stages) if stage.graph.nodes), 0)
    for i, stage in enumerate(stages):
        before = stages[i - 1].graph if i else None
        count = len(stage.graph.nodes)
        if before is None:
            facts, number, kind = "as it came", str(count), ""
        elif before == stage.graph:
            facts, number, kind = "changed nothing", str(count), " class=same"
        else:
            facts = ", ".join(_change(op, n) for op, n in changes(before, stage.graph)) or "the same operators"
            number, kind = f"{len(before.nodes)} → {count}", ""
        figure = shown.setdefault(stage.svg, i)
        if figure == i:
            figures.append(f'<figure id="f{i}">{stage.svg}</figure>')
        checked = " checked" if i == first else ""
        rows.append(
            f'<input type=radio name=p id="p{i}"{checked}><label for="p{i}"{kind}><span class=n>{number}</span>'
            f"<b>{i:02d} {escape(stage.name)}</b><small>{facts}</small></label>"
        )
        rules.append(f"body:has(#p{i}:checked) #f{figure}{{display:block}}")
        rules.append(f"#p{i}:checked+label{{background:var(--here)}}")
    summary = ""
    if stages:
        start, end = len(stages[0].graph.nodes), len(stages[-1].graph.nodes)
        summary = f"{len(stages) - 1} passes, {start} → {end} nodes. Marked boxes are what the pass made."
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        f"<style>{_STYLE}{''.join(rules)}</style></head>\n<body><nav><h1>{escape(title)}</h1><p>{summary}</p>\n"
        + "\n".join(rows)
        + "</nav>\n<main>"
        + "\n".join(figures)
        + "</main></body></html>\n"
    )


def _change(op: str, count: int) -> str:
    kind, sign = ("more", "+") if count > 0 else ("less", "&minus;")
    return f"<span class={kind}>{sign}{abs(count)}</span> {escape(op)}"

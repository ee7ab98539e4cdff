"""Reads the text form of a graph as far as a drawing needs it: contents of constants may be missing."""

from __future__ import annotations

import dataclasses
import re

MAX_TEXT = 64 << 20  # characters; the engine's own reader has the same limit

_STRING = r'"(?:[^"\\]|\\.)*"'
_TYPE = r"\w+\[[^\]]*\]"
_END = r"\s*(?:#.*)?"
_DECLARATION = re.compile(rf"(input|const|weight)\s+%(\S+)\s*({_STRING})?\s*:\s*({_TYPE})(.*)")
_NODE = re.compile(
    rf"(%[^=(]+?)\s*=\s*(\w+)\(([^)]*)\)\s*(?:\{{((?:[^\"}}]|{_STRING})*)\}})?\s*(?::\s*({_TYPE}(?:\s*,\s*{_TYPE})*))?\s*"
    rf"(?:@\s*({_STRING}))?\s*(?:in\s*({_STRING}))?{_END}"
)
_RETURN = re.compile(rf"return\b([^#]*){_END}")


class GraphTextError(ValueError):
    """The text is no graph. The message gives the line."""


@dataclasses.dataclass(frozen=True, slots=True)
class ConstantText:
    """A constant: "const" or "weight", its name and type."""

    kind: str
    name: str
    type: str


@dataclasses.dataclass(frozen=True, slots=True)
class NodeText:
    """An operation as the text has it.

    Attributes:
      op: the operator's name.
      inputs: names of the operands without "%"; "_" is an absent one.
      outputs: names of the results.
      types: of the results, such as "f32[2, 3]"; empty where the text leaves them out.
      attrs: what stands between the braces.
      source: the lines it comes from.
      module: the module of the model it belongs to.
    """

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    types: tuple[str, ...]
    attrs: str
    source: str
    module: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class GraphText:
    """A graph as its text has it.

    Attributes:
      inputs: (value, name, type) of the inputs.
      constants: constants by the names of their values.
      nodes: the operations, in order.
      outputs: names of the values that the graph returns.
    """

    inputs: tuple[tuple[str, str, str], ...]
    constants: dict[str, ConstantText]
    nodes: tuple[NodeText, ...]
    outputs: tuple[str, ...]


def parse(text: str) -> GraphText:
    """Reads a graph.

    Raises:
      GraphTextError: a line that the text form does not have, or a value that is not defined.
    """
    if len(text) > MAX_TEXT:
        raise GraphTextError(f"wanted a text of at most {MAX_TEXT} characters, found {len(text)}")
    inputs: list[tuple[str, str, str]] = []
    constants: dict[str, ConstantText] = {}
    nodes: list[NodeText] = []
    outputs: tuple[str, ...] | None = None
    known: set[str] = set()

    def use(names: tuple[str, ...], number: int) -> tuple[str, ...]:
        for name in names:
            if name != "_" and name not in known:
                raise GraphTextError(f"line {number}: wanted a value defined above, found %{name}")
        return names

    started = False
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        if not started:
            if not re.fullmatch(rf"graph \d+{_END}", line):
                raise GraphTextError(f"line {number}: wanted 'graph 1', found {_shown(line)}; this is no graph's text")
            started = True
        elif outputs is not None:
            raise GraphTextError(f"line {number}: wanted nothing after return, found {_shown(line)}")
        elif declared := _DECLARATION.fullmatch(line):
            kind, value, name, type_, _ = declared.groups()
            known.add(value)
            label = _unquoted(name) if name else value
            if kind == "input":
                inputs.append((value, label, type_))
            else:
                constants[value] = ConstantText(kind, label, type_)
        elif node := _NODE.fullmatch(line):
            results, op, operands, attrs, types, source, module = node.groups()
            made = _names(results)
            listed = tuple(re.findall(_TYPE, types or ""))
            origin = [_unquoted(part or '""') for part in (source, module)]
            nodes.append(NodeText(op, use(_names(operands), number), made, listed, attrs or "", *origin))
            known.update(made)
        elif returned := _RETURN.fullmatch(line):
            outputs = use(_names(returned[1]), number)
        else:
            raise GraphTextError(
                f"line {number}: wanted input, const, weight, return or '%y = op(%x)', found {_shown(line)}"
            )
    if outputs is None:
        raise GraphTextError("wanted a line 'return ...' at the end, found none; the text was cut off")
    return GraphText(tuple(inputs), constants, tuple(nodes), outputs)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip().removeprefix("%") for name in text.split(",") if name.strip())


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1])


def _shown(line: str) -> str:
    return repr(line if len(line) <= 60 else line[:57] + "...")

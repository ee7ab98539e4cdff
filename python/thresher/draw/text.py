"""Reads the text form of a graph as far as a drawing needs it: contents of constants may be missing."""

from __future__ import annotations

import dataclasses
import re

MAX_TEXT = 64 << 20  # characters; the engine's own reader has the same limit

# A line is read part by part, and no part can match in two ways: the time it takes grows with its length only.
_STRING = r'"(?:[^"\\]|\\.)*"'
_TYPE = r"\w+\[[^\]]*\]"
_HEAD = re.compile(r"graph \d+\s*(?:#.*)?")
_END = re.compile(r"\s*(?:#.*)?")
_DECLARED = re.compile(r"(input|const|weight)\s+%([\w.+-]+)")
_NAME = re.compile(rf"\s*({_STRING})")
_COLON_TYPE = re.compile(rf"\s*:\s*({_TYPE})")
_MORE_TYPES = re.compile(rf"\s*,\s*({_TYPE})")
_OPERATION = re.compile(r"(%[^=(]+)=\s*(\w+)\(([^)]*)\)")
_ATTRIBUTES = re.compile(rf"\s*\{{((?:[^\"}}]|{_STRING})*)\}}")
_SOURCE = re.compile(rf"\s*@\s*({_STRING})")
_MODULE = re.compile(rf"\s*in\s*({_STRING})")
_RETURN = re.compile(r"return\b([^#]*)(?:#.*)?")


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
        raise GraphTextError(f"expected a text of at most {MAX_TEXT} characters, got {len(text)}")
    inputs: list[tuple[str, str, str]] = []
    constants: dict[str, ConstantText] = {}
    nodes: list[NodeText] = []
    outputs: tuple[str, ...] | None = None
    known: set[str] = set()

    def use(names: tuple[str, ...], number: int) -> tuple[str, ...]:
        for name in names:
            if name != "_" and name not in known:
                raise GraphTextError(f"line {number}: expected a value defined above, got %{name}")
        return names

    started = False
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        if not started:
            if not _HEAD.fullmatch(line):
                raise GraphTextError(f"line {number}: expected 'graph 1', got {_shown(line)}; this is no graph's text")
            started = True
        elif outputs is not None:
            raise GraphTextError(f"line {number}: expected nothing after return, got {_shown(line)}")
        elif declared := _declaration(line):
            kind, value, label, type_ = declared
            known.add(value)
            if kind == "input":
                inputs.append((value, label, type_))
            else:
                constants[value] = ConstantText(kind, label, type_)
        elif node := _node(line):
            use(node.inputs, number)
            nodes.append(node)
            known.update(node.outputs)
        elif returned := _RETURN.fullmatch(line):
            outputs = use(_names(returned[1]), number)
        else:
            raise GraphTextError(
                f"line {number}: expected input, const, weight, return or '%y = op(%x)', got {_shown(line)}"
            )
    if outputs is None:
        raise GraphTextError("expected a line 'return ...' at the end, got none; the text was cut off")
    return GraphText(tuple(inputs), constants, tuple(nodes), outputs)


def _declaration(line: str) -> tuple[str, str, str, str] | None:
    """Kind, value, name and type of an input or constant; None if the line is none. What follows is left alone."""
    parts = _Parts(line)
    declared = parts.take(_DECLARED)
    name = parts.take(_NAME)
    type_ = parts.take(_COLON_TYPE)
    if declared is None or type_ is None:
        return None
    return declared[1], declared[2], _unquoted(name[1]) if name else declared[2], type_[1]


def _node(line: str) -> NodeText | None:
    """The operation of a line; None if it has none."""
    parts = _Parts(line)
    operation = parts.take(_OPERATION)
    if operation is None:
        return None
    attrs = parts.take(_ATTRIBUTES)
    types = []
    following = parts.take(_COLON_TYPE)
    while following is not None:
        types.append(following[1])
        following = parts.take(_MORE_TYPES)
    origin = [_unquoted(found[1]) if found else "" for found in (parts.take(_SOURCE), parts.take(_MODULE))]
    if not _END.fullmatch(line, parts.position):
        return None
    results, op, operands = operation.groups()
    return NodeText(op, _names(operands), _names(results), tuple(types), attrs[1] if attrs else "", *origin)


class _Parts:
    """A line, taken apart from its beginning."""

    def __init__(self, line: str) -> None:
        self._line = line
        self.position = 0

    def take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """What matches next, which is then behind; None if it does not match."""
        match = pattern.match(self._line, self.position)
        if match is not None:
            self.position = match.end()
        return match


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip().removeprefix("%") for name in text.split(",") if name.strip())


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1])


def _shown(line: str) -> str:
    return repr(line if len(line) <= 60 else line[:57] + "...")

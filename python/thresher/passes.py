r"""Passes of your own: functions from graph to graph that run among those of the engine.

A pass that computes every gelu in its cheaper tanh form, so early that the engine can still fuse the result:

    >>> from thresher import passes
    >>> def use_tanh(new, node, inputs):
    ...     if node.op == "gelu":
    ...         return new.add("gelu_tanh", inputs, of=node)
    ...     return None
    ...
    >>> fast_gelu = passes.Pass("fast_gelu", passes.rewriting(use_tanh), after="input")
    >>> graph = passes.Graph.parse('graph 1\ninput %x : f32[2]\n%y = gelu(%x) @ "m.py:3" in "act"\nreturn %y\n')
    >>> print(fast_gelu(graph).text(), end="")
    graph 1
    input %0 "x" : f32[2]
    %1 = gelu_tanh(%0) : f32[2] @ "m.py:3" in "act"
    return %1

It goes into a compilation by its configuration, where a plain function stands for a pass after all others:

    thresher.compile(model, config=thresher.CompilerConfig(extra_passes=(fast_gelu,)))

A pass may use the whole of Graph: ``add`` nodes, read ``contents`` of constants, ``copy`` the graph and change its
outputs. It keeps the number, order and types of inputs and outputs, which the engine checks. Graphs share the memory of
constants; no pass copies weights. ``thresher ops`` lists the operators, ``thresher passes`` the engine's passes.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from thresher._engine import Graph

__all__ = ["INPUT", "Graph", "Node", "Pass", "Rewriter", "Rule", "nodes", "rewrite", "rewriting"]

# Where a pass goes that sees the graph as the importer made it.
INPUT = "input"

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


@dataclasses.dataclass(frozen=True)
class Pass:
    """A pass with its name and its place.

    Attributes:
      name: of letters, digits and "_"; it names the pass in messages and dumps.
      function: gets a graph of its own to read or change, returns the graph to go on with.
      after: the engine pass, or earlier pass of one's own, behind whose first run this one goes; "input" for the very
        beginning, None for the end.
    """

    name: str
    function: Callable[[Graph], Graph]
    after: str | None = None

    def __post_init__(self) -> None:
        name: object = self.name
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(
                f"expected a name of at most 64 letters, digits and '_' for a pass, got {name!r}; "
                "write thresher.Pass('my_pass', function)"
            )
        if not callable(self.function):
            raise TypeError(f"pass {name}: expected a function from graph to graph, got {self.function!r}")
        if self.after is not None and not isinstance(self.after, str):
            raise TypeError(f"pass {name}: expected the name of a pass or None for after, got {self.after!r}")

    def __call__(self, graph: Graph) -> Graph:
        """Applies the pass."""
        return self.function(graph)

    @staticmethod
    def of(entry: Pass | Callable[[Graph], Graph]) -> Pass:
        """A pass as it is, or a function as a pass of its name."""
        if isinstance(entry, Pass):
            return entry
        return Pass(getattr(entry, "__name__", type(entry).__name__), entry)


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """An operation of a graph.

    Attributes:
      op: the operator's name.
      inputs: ids of its operands; None where an optional one is absent.
      outputs: ids of its results.
      attrs: its attributes that were given.
      source: the lines of the model it comes from, separated by ", ".
      module: the module of the model it belongs to, such as "encoder.layer.0.dense".
    """

    op: str
    inputs: tuple[int | None, ...]
    outputs: tuple[int, ...]
    attrs: dict[str, Any]
    source: str = ""
    module: str = ""


def nodes(graph: Graph) -> Iterator[Node]:
    """The nodes of a graph, operands before what uses them."""
    for entry in graph.nodes():
        found: Any = entry
        inputs = tuple(None if i < 0 else i for i in found["inputs"])
        yield Node(found["op"], inputs, tuple(found["outputs"]), dict(found["attrs"]), found["source"], found["module"])


class Rewriter:
    """Copies a graph node by node, so that some can be replaced. Ids of the two graphs differ; map() translates.

    Attributes:
      source: the graph being read.
      graph: the graph being made. Its inputs are there from the start; constants come when first mapped.
    """

    def __init__(self, source: Graph) -> None:
        self.source = source
        self.graph = Graph()
        self._map: dict[int, int] = {
            i: self.graph.input(source.name(i), source.dtype(i), source.shape(i)) for i in source.inputs
        }

    def map(self, value: int | None) -> int | None:
        """The new id for an id of the source. Nodes must have been copied or replaced before their results."""
        if value is None:
            return None
        found = self._map.get(value)
        if found is None:
            found = self._map[value] = self.graph.adopt(self.source, value)
        return found

    def add(
        self,
        op: str,
        inputs: Sequence[int | None],
        attrs: Mapping[str, object] | None = None,
        *,
        of: Node | None = None,
    ) -> int:
        """Adds an operator with one result on operands of the new graph and returns its id.

        Args:
          op: the operator.
          inputs: ids in the new graph; None for an optional operand that is absent.
          attrs: attributes by name.
          of: the node it stands for, whose source and module it takes over.

        Raises:
          ValueError: the operator refuses these operands or attributes; the message says what it wanted.
          NotImplementedError: the engine has no such operator.
        """
        source, module = ("", "") if of is None else (of.source, of.module)
        (made,) = self.graph.add(op, inputs, attrs or {}, source, module)
        return made

    def copy(self, node: Node) -> None:
        """Adds a node of the source as it is."""
        inputs = [self.map(i) for i in node.inputs]
        for old, new in zip(
            node.outputs, self.graph.add(node.op, inputs, node.attrs, node.source, node.module), strict=True
        ):
            self._map[old] = new

    def replace(self, value: int, by: int) -> None:
        """Lets `by`, an id of the new graph, stand for `value`, an id of the source."""
        self._map[value] = by

    def finish(self) -> Graph:
        """The new graph with the outputs of the source."""
        outputs = [self.map(i) for i in self.source.outputs]
        self.graph.set_outputs([i for i in outputs if i is not None])
        return self.graph


# Gets the rewriter, a node of the source and its operands in the new graph. Returns the id that replaces the node's
# only result, a sequence of ids for several results, or None to keep the node.
Rule = Callable[[Rewriter, Node, "list[int | None]"], "int | Sequence[int] | None"]


def rewrite(graph: Graph, rule: Rule) -> Graph:
    """Offers every node to a rule and returns the graph of what it made. Nodes that lost their use stay for the engine.

    Raises:
      ValueError: the rule returns another number of results than the node has, or results of another type.
    """
    new = Rewriter(graph)
    for node in nodes(graph):
        made = rule(new, node, [new.map(i) for i in node.inputs])
        if made is None:
            new.copy(node)
            continue
        results = [made] if isinstance(made, int) else list(made)
        if len(results) != len(node.outputs):
            raise ValueError(
                f"the rule gave {len(results)} results for {node.op}, expected {len(node.outputs)}; "
                "return None to keep a node"
            )
        for old, result in zip(node.outputs, results, strict=True):
            wanted = f"{graph.dtype(old)}{list(graph.shape(old))}"
            found = f"{new.graph.dtype(result)}{list(new.graph.shape(result))}"
            if wanted != found:
                raise ValueError(f"the rule gave {found} for {node.op}, expected {wanted}; reshape or cast the result")
            new.replace(old, result)
    return new.finish()


def rewriting(rule: Rule) -> Callable[[Graph], Graph]:
    """The pass function that applies a rule to every node."""

    def run(graph: Graph) -> Graph:
        return rewrite(graph, rule)

    run.__name__ = getattr(rule, "__name__", "rewrite")
    return run

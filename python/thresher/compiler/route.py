"""From the arguments of a model to the inputs of its graph, and from the graph's outputs to the model's result."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch.utils import _pytree as pytree

from thresher.compiler.backend import Boxed, Whole
from thresher.compiler.runtime import Build, CompiledGraph, Preparation, Prepared
from thresher.torch_shim import tensors as shim

_CONSTANTS = (type(None), bool, int, float, str, torch.dtype, torch.device)
_ARGUMENTS = ("L['args']", "L['kwargs']")
_MODEL = "L['self']"


_set_item, _set_attribute = OrderedDict.__setitem__, object.__setattr__  # not what classes made of them do


class NotDirectError(Exception):
    """Why a call has to go through TorchDynamo's guards."""


class Holder(Protocol):
    """What knows the tensors of a model: a Watch."""

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether the model holds this very tensor."""


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """One run of a captured graph.

    Attributes:
      boxed: the graph.
      sources: where its inputs come from, by TorchDynamo's names.
      obstacle: why it may run in TorchDynamo's code only; None where it computes its outputs and does nothing else.
      args: what it was given.
      outputs: what it gave.
    """

    boxed: Boxed
    sources: tuple[str, ...]
    obstacle: str | None
    args: tuple[Any, ...]
    outputs: tuple[Any, ...]


class Route:
    """One way from arguments to a graph and back, for arguments of certain types, shapes and values.

    Use Route.of().
    """

    __slots__ = ("_args", "_boxed", "_build", "_chosen", "_held", "_places", "_result", "prepared")

    def __init__(
        self,
        boxed: Boxed,
        args: list[Any],
        chosen: list[tuple[int, int]],
        held: list[torch.Tensor],
        build: Build,
        result: int,
        like: Route | None,
    ) -> None:
        if isinstance(boxed, Whole):  # its graph is given its own arguments at once
            leaf_of, order = dict(chosen), boxed.chosen
            boxed, args = boxed.graph, [args[place] for place in order]
            chosen = [(i, leaf_of[place]) for i, place in enumerate(order) if place in leaf_of]
        self._boxed = boxed
        self._args = args  # what is the same in every call
        self._chosen = chosen  # places among these, and the leaves that belong there
        self._held: list[torch.Tensor] = held
        self._places = shim.places(held)
        if like is not None and _are(held, like._held) and like._places == self._places:
            self._held, self._places = like._held, like._places
        self._build, self._result = build, result
        self.prepared: Prepared | None = None  # CompiledGraph.prepare()

    @staticmethod
    def of(runs: Sequence[Run], leaves: list[Any], result: Any, holder: Holder, like: Route | None = None) -> Route:
        """The way that a call took.

        Args:
          runs: the graphs that ran.
          leaves: the leaves of the call's arguments.
          result: what it returned.
          holder: knows the model's tensors.
          like: another route, to share with it what is the same.

        Raises:
          NotDirectError: what the graph was given or what was made of its outputs cannot be told.
        """
        if len(runs) != 1:
            raise NotDirectError("it computes nothing" if not runs else "it runs more than one graph")
        run = runs[0]
        if run.obstacle:
            raise NotDirectError(run.obstacle)
        leaf_of = {id(leaf): i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)}
        if any(holder.holds(leaves[i]) for i in leaf_of.values()):
            raise NotDirectError("it is given one of its own tensors as an argument")
        args: list[Any] = []
        chosen: list[tuple[int, int]] = []
        held: list[torch.Tensor] = []
        for arg, source in zip(run.args, run.sources, strict=True):
            args.append(arg)
            if not isinstance(arg, torch.Tensor):
                # Of the arguments, whose sizes and numbers are part of the key, or of the model, which is watched.
                if type(arg) not in (int, float, bool) or not source.startswith((*_ARGUMENTS, _MODEL)):
                    raise NotDirectError(f"its graph takes {source or 'a number'} that neither call nor model holds")
            elif id(arg) in leaf_of:
                chosen.append((len(args) - 1, leaf_of[id(arg)]))
                args[-1] = None
            elif source.startswith(_MODEL) and holder.holds(arg):
                held.append(arg)
            else:
                raise NotDirectError(f"its graph takes {source or 'a tensor'}, that neither call nor model holds")
        return Route(run.boxed, args, chosen, held, *_builder(result, run, leaf_of), like)

    def fits(self) -> bool:
        """Whether the model's tensors lie where they lay, and are of the same types and shapes."""
        return shim.places(self._held) == self._places

    def run(self, leaves: list[Any]) -> Any:
        """Runs the graph and makes the model's result, where the route fits; prepares the calls to come.

        Args:
          leaves: of the call's arguments.
        """
        args = self._args.copy()
        for place, leaf in self._chosen:
            args[place] = leaves[leaf]
        outputs = self._boxed(args)
        if isinstance(self._boxed, CompiledGraph):
            preparation = Preparation(self._held, self._args, self._chosen, self._build, self._result)
            prepared = self._boxed.prepare(args, preparation)
            if self.fits():  # as it did when it was prepared
                self.prepared = prepared
        return self._build(outputs, leaves)


def _builder(result: Any, run: Run, leaf_of: dict[int, int]) -> tuple[Build, int]:
    """A function that makes the model's result of the graph's outputs and the call's leaves.

    And the number of the output that is the result, or -1.

    Raises:
      NotDirectError: the result holds something else.
    """
    outputs = {id(output): i for i, output in enumerate(run.outputs) if isinstance(output, torch.Tensor)}
    held = {id(arg): arg for arg in run.args if isinstance(arg, torch.Tensor) and id(arg) not in leaf_of}
    parts: list[tuple[int, int, Any]] = []  # (output or -1, leaf or -1, anything else)
    values, spec = pytree.tree_flatten(result)
    for value in values:
        if not isinstance(value, torch.Tensor):
            if type(value) not in _CONSTANTS:
                raise NotDirectError(f"it returns {type(value).__name__}, which PyTorch's pytree does not know")
            parts.append((-1, -1, value))
        elif id(value) in outputs:
            parts.append((outputs[id(value)], -1, None))
        elif id(value) in leaf_of:
            parts.append((-1, leaf_of[id(value)], None))
        elif id(value) in held:
            parts.append((-1, -1, value))
        else:
            raise NotDirectError("it returns a tensor that its graph does not compute")
    if spec.is_leaf():
        return functools.partial(_part, parts[0]), parts[0][0]
    make = _maker(result, spec)
    if not _same(result, make(values)):
        raise NotDirectError(f"PyTorch's pytree does not rebuild the {type(result).__name__} that it returns")
    if [output for output, _, _ in parts] == list(range(len(run.outputs))):
        return lambda outputs, leaves: make(outputs), -1
    return lambda outputs, leaves: make([_part(part, outputs, leaves) for part in parts]), -1


def _part(part: tuple[int, int, Any], outputs: Sequence[Any], leaves: list[Any]) -> Any:
    output, leaf, value = part
    return outputs[output] if output >= 0 else leaves[leaf] if leaf >= 0 else value


def _maker(result: Any, spec: pytree.TreeSpec) -> Callable[[Sequence[Any]], Any]:
    """A function that puts the leaves into the structure."""
    values = pytree.tree_leaves(result)
    attributes = getattr(result, "__dict__", None)
    if isinstance(result, OrderedDict) and attributes is not None and _are(list(result.values()), values):
        # The classes of transformers: a tenth of what their own constructors take, which look at every field.
        kind, names = type(result), list(result)
        sources = {name: names.index(name) for name in attributes if name in result}
        rest = {name: value for name, value in attributes.items() if name not in result}
        if all(isinstance(value, _CONSTANTS) for value in rest.values()):
            return functools.partial(_restored, kind, names, sources, rest)
    if all(child.is_leaf() for child in spec.children()):
        unflatten, context = pytree.SUPPORTED_NODES[spec.type].unflatten_fn, spec.context
        return lambda values: unflatten(values, context)
    return lambda values: pytree.tree_unflatten(values, spec)


def _restored(
    kind: type[OrderedDict[Any, Any]],
    names: list[str],
    sources: dict[str, int],
    rest: dict[str, Any],
    values: Sequence[Any],
) -> Any:
    made = kind.__new__(kind)
    attributes = rest.copy()
    for name, value in zip(names, values, strict=True):
        _set_item(made, name, value)
    for name, source in sources.items():
        attributes[name] = values[source]
    _set_attribute(made, "__dict__", attributes)
    return made


def _are(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(some) == len(others) and all(map(operator.is_, some, others))


def _same(one: Any, other: Any) -> bool:
    """Whether both are made of the same leaves in the same structure, and have the same attributes."""
    (mine, spec), (others, other_spec) = pytree.tree_flatten(one), pytree.tree_flatten(other)
    if type(one) is not type(other) or spec != other_spec or not _are(mine, others):
        return False
    attributes, other_attributes = (getattr(value, "__dict__", {}) for value in (one, other))
    return attributes.keys() == other_attributes.keys() and all(
        value is other_attributes[name] for name, value in attributes.items()
    )

"""From the arguments of a model to the inputs of its graph, and from the graph's outputs to the model's result."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch.utils import _pytree as pytree

from thresher.compiler.backend import Boxed

_CONSTANTS = (type(None), bool, int, float, str, torch.dtype, torch.device)
_ARGUMENTS = ("L['args']", "L['kwargs']")
_MODEL = "L['self']"


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
      plain: whether it is one trace for inference: without gradients and changes in place.
      args: what it was given.
      outputs: what it gave.
    """

    boxed: Boxed
    sources: tuple[str, ...]
    plain: bool
    args: tuple[Any, ...]
    outputs: tuple[Any, ...]


class Route:
    """One way from arguments to a graph and back, for arguments of certain types, shapes and values.

    Use Route.of().
    """

    __slots__ = ("_addresses", "_args", "_boxed", "_build", "_chosen", "_grad", "_held")

    def __init__(
        self,
        boxed: Boxed,
        args: list[Any],
        chosen: list[tuple[int, int]],
        held: list[torch.Tensor],
        build: Callable[[Sequence[Any], list[Any]], Any],
    ) -> None:
        self._boxed = boxed
        self._args = args  # what is the same in every call
        self._chosen = chosen  # places among these, and the leaves that belong there
        self._held = held
        self._addresses = _addresses(held)
        self._build = build
        self._grad = torch.is_grad_enabled()

    @staticmethod
    def of(runs: Sequence[Run], leaves: list[Any], result: Any, holder: Holder) -> Route:
        """The way that a call took.

        Args:
          runs: the graphs that ran.
          leaves: the leaves of the call's arguments.
          result: what it returned.
          holder: knows the model's tensors.

        Raises:
          NotDirectError: what the graph was given or what was made of its outputs cannot be told.
        """
        if len(runs) != 1:
            raise NotDirectError("it computes nothing" if not runs else "it runs more than one graph")
        run = runs[0]
        if not run.plain:
            raise NotDirectError("it changes tensors in place, or its graph needs AOTAutograd for another reason")
        places = {id(leaf): i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)}
        args: list[Any] = []
        chosen: list[tuple[int, int]] = []
        held: list[torch.Tensor] = []
        for arg, source in zip(run.args, run.sources, strict=True):
            args.append(arg)
            if not isinstance(arg, torch.Tensor):
                # A size or a number among the arguments, which are part of the key, and nothing else.
                if type(arg) not in (int, float, bool) or not source.startswith(_ARGUMENTS):
                    raise NotDirectError(f"its graph takes {source or 'a number'} that is not among its arguments")
            elif id(arg) in places:
                chosen.append((len(args) - 1, places[id(arg)]))
                args[-1] = None
            elif source.startswith(_MODEL) and holder.holds(arg):
                held.append(arg)
            else:
                raise NotDirectError(f"its graph takes {source or 'a tensor'}, which belongs to neither call nor model")
        return Route(run.boxed, args, chosen, held, _builder(result, run, places))

    def fits(self, leaves: list[Any]) -> bool:
        """Whether the model's tensors are where they were, and no gradients are wanted of them."""
        held = self._held
        if self._addresses != list(map(_address, held)):
            return False
        return not (self._grad and any(tensor.requires_grad for tensor in held))

    def run(self, leaves: list[Any]) -> Any:
        """Runs the graph and makes the model's result."""
        args = self._args.copy()
        for place, leaf in self._chosen:
            args[place] = leaves[leaf]
        return self._build(self._boxed(args), leaves)


_address = torch.Tensor.data_ptr


def _addresses(tensors: Sequence[torch.Tensor]) -> list[int]:
    return list(map(_address, tensors))


def _builder(result: Any, run: Run, places: dict[int, int]) -> Callable[[Sequence[Any], list[Any]], Any]:
    """A function that makes the model's result of the graph's outputs and the call's leaves.

    Raises:
      NotDirectError: the result holds something else.
    """
    outputs = {id(output): i for i, output in enumerate(run.outputs) if isinstance(output, torch.Tensor)}
    held = {id(arg): arg for arg in run.args if isinstance(arg, torch.Tensor) and id(arg) not in places}
    parts: list[tuple[int, int, Any]] = []  # (output or -1, leaf or -1, anything else)
    values, spec = pytree.tree_flatten(result)
    for value in values:
        if not isinstance(value, torch.Tensor):
            if type(value) not in _CONSTANTS:
                raise NotDirectError(f"it returns {type(value).__name__}, which PyTorch's pytree does not know")
            parts.append((-1, -1, value))
        elif id(value) in outputs:
            parts.append((outputs[id(value)], -1, None))
        elif id(value) in places:
            parts.append((-1, places[id(value)], None))
        elif id(value) in held:
            parts.append((-1, -1, value))
        else:
            raise NotDirectError("it returns a tensor that its graph does not compute")
    if spec.is_leaf():
        return lambda outputs, leaves: _part(parts[0], outputs, leaves)
    make = _maker(spec)
    if not _same(result, make(values)):
        raise NotDirectError(f"PyTorch's pytree does not rebuild the {type(result).__name__} that it returns")
    if [output for output, _, _ in parts] == list(range(len(run.outputs))):
        return lambda outputs, leaves: make(outputs)
    return lambda outputs, leaves: make([_part(part, outputs, leaves) for part in parts])


def _part(part: tuple[int, int, Any], outputs: Sequence[Any], leaves: list[Any]) -> Any:
    output, leaf, value = part
    return outputs[output] if output >= 0 else leaves[leaf] if leaf >= 0 else value


def _maker(spec: pytree.TreeSpec) -> Callable[[Sequence[Any]], Any]:
    if all(child.is_leaf() for child in spec.children()):
        unflatten, context = pytree.SUPPORTED_NODES[spec.type].unflatten_fn, spec.context
        return lambda values: unflatten(values, context)
    return lambda values: pytree.tree_unflatten(values, spec)


def _same(one: Any, other: Any) -> bool:
    """Whether both are made of the same leaves in the same structure, and have the same attributes."""
    (mine, spec), (others, other_spec) = pytree.tree_flatten(one), pytree.tree_flatten(other)
    alike = type(one) is type(other) and spec == other_spec and _attributes(one) == _attributes(other)
    return alike and all(map(operator.is_, mine, others))


def _attributes(value: Any) -> list[str]:
    return list(getattr(value, "__dict__", ()))

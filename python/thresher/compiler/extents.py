"""Which sizes of a call are symbols of an aten graph, and the program at other sizes than those of the call."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from thresher import _engine
from thresher.compiler.errors import UnsupportedNode
from thresher.compiler.importer import EmptyTensor, Imported, import_graph
from thresher.compiler.placement import Placement
from thresher.compiler.weights import Store

log = logging.getLogger("thresher.compiler")

MAX_SIZES = 3
# A plan's capacity is a power of two, so that sizes that grow step by step do not want a new plan each time.
LEAST_CAPACITY = 32
# A model that takes no more than this is given room for all of it.
NEAR_BOUND = 1024
UNBOUNDED = 1 << 20

# Primes: sizes of a model are rarely prime, so that no two sizes of a sample are equal by chance.
_LEVELS = ((3, 11, 19), (5, 13, 23), (7, 17, 29))


class NoExtent(Exception):
    """Internal: one plan cannot serve many sizes here; the text says why."""


class TooManySizes(NoExtent):
    """Internal: more than a plan can be for."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Place:
    """Where a size comes from: an argument that is a number, or a dimension of one that is a tensor."""

    argument: int
    dimension: int = -1

    def read(self, args: Sequence[Any]) -> int:
        arg = args[self.argument]
        return int(arg if self.dimension < 0 else arg.shape[self.dimension])


class Sizes:
    """The symbolic sizes among the arguments of an aten graph.

    Symbols may be tied: those that are equal in a call count as one size, as the lengths of a cache's layers, of which
    TorchDynamo does not know that they grow together.

    Args:
      module: the graph, with symbols in meta["val"].
      args: those of a call, which say what to tie; by default every symbol is a size.
      before: ties as earlier calls had them; what is not tied there is not here.

    Raises:
      TooManySizes: there are more than a plan can be for.
      NoExtent: there are none, or the graph does more with them than adding and multiplying.
    """

    def __init__(self, module: fx.GraphModule, args: Sequence[Any] | None = None, before: Sizes | None = None) -> None:
        self._found: dict[tuple[int, int], Any] = {}  # by argument and dimension (-1: a number): the expression
        placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
        for position, node in enumerate(placeholders):
            val = node.meta.get("val")
            if isinstance(val, torch.SymInt):
                self._found[position, -1] = val.node.expr
            elif isinstance(val, torch.Tensor):
                sizes: Any = val.shape
                for dimension, size in enumerate(sizes):
                    if isinstance(size, torch.SymInt):
                        self._found[position, dimension] = size.node.expr
        _check_polynomials(module)
        # Symbols that stand alone somewhere come first; what can be computed from them is no size of its own.
        places: dict[str, _Place] = {}
        self._symbols: list[Any] = []
        for alone in (True, False):
            for (argument, dimension), expression in sorted(self._found.items(), key=lambda found: found[0][1] < 0):
                known = expression.is_number or expression in self._symbols
                derived = not expression.is_Symbol and expression.free_symbols <= set(self._symbols)
                if not known and not derived and expression.is_Symbol == alone:
                    self._symbols.append(expression)
                    name = placeholders[argument].meta.get("thresher_name", placeholders[argument].name)
                    places[name if dimension < 0 else f"{name}[{dimension}]"] = _Place(argument, dimension)
        self._all_places = list(places.values())
        self._size_of = self._sizes_of_symbols(args, before)
        count = len(set(self._size_of))
        if not 1 <= count <= MAX_SIZES:
            kind = TooManySizes if count else NoExtent
            raise kind(f"expected 1 to {MAX_SIZES} sizes that change, got {count}")
        # Each size by the first of its symbols.
        first = [self._size_of.index(i) for i in range(count)]
        self.places = {name: place for i, (name, place) in enumerate(places.items()) if i in first}
        guards, ranges = _guards_of(module)
        own = [guard for guard in guards if guard.free_symbols and guard.free_symbols <= set(self._symbols)]
        # A plain bound, such as PyTorch sets where it chooses a kernel, says what calls come, not what the graph is.
        self._guards = [guard for guard in own if _bound_of(guard) is None]
        uppers = [(symbol, _upper(ranges.get(symbol))) for symbol in self._symbols]
        self._bounds = [UNBOUNDED] * count
        for symbol, upper in [*uppers, *filter(None, map(_bound_of, own))]:
            at = self._size_of[self._symbols.index(symbol)]
            self._bounds[at] = min(self._bounds[at], upper)

    def _sizes_of_symbols(self, args: Sequence[Any] | None, before: Sizes | None) -> list[int]:
        """The number of each symbol's size."""
        if args is None:
            return list(range(len(self._symbols)))
        known: dict[object, int] = {}
        values = (place.read(args) for place in self._all_places)
        earlier = [0] * len(self._symbols) if before is None else before._size_of
        return [known.setdefault(key, len(known)) for key in zip(earlier, values, strict=True)]

    @property
    def bounds(self) -> list[int]:
        """The largest value of each size that the graph is for."""
        return self._bounds

    def of(self, args: Sequence[Any]) -> tuple[int, ...] | None:
        """The sizes of a call; None where some are not equal that were."""
        found = tuple(place.read(args) for place in self.places.values())
        if len(found) < len(self._all_places):
            symbols = zip(self._size_of, self._all_places, strict=True)
            if any(place.read(args) != found[size] for size, place in symbols):
                return None
        return found

    def can_be_tied(self, args: Sequence[Any]) -> bool:
        """Whether some sizes are equal in a call."""
        found = self.of(args)
        return found is not None and len(set(found)) < len(found)

    def capacity(self, own: Sequence[int], ones: frozenset[int], *, roomy: bool = True) -> tuple[int, ...]:
        """What a plan should have room for that must have it for `own`, the sizes but for `ones`."""
        bounds = [bound for i, bound in enumerate(self._bounds) if i not in ones]
        made = []
        for size, bound in zip(own, bounds, strict=True):
            if roomy and bound <= NEAR_BOUND:
                made.append(bound)
            else:
                made.append(min(bound, max(LEAST_CAPACITY, 1 << (size - 1).bit_length() if roomy else size)))
        return tuple(made)

    def arguments(self, args: Sequence[Any], sizes: Sequence[int]) -> list[Any]:
        """Stand-ins for arguments of a call at other sizes: tensors without data, and numbers.

        Raises:
          NoExtent: the graph is not for these sizes.
        """
        values = dict(zip(self._symbols, map(sizes.__getitem__, self._size_of), strict=True))
        for guard in self._guards:
            if guard.xreplace(values) == False:  # noqa: E712 (a sympy object)
                raise NoExtent(f"the graph is only for sizes with {guard}")
        made = list(args)
        shapes: dict[int, list[int]] = {}
        for (argument, dimension), expression in self._found.items():
            size = int(expression.xreplace(values))
            if dimension < 0:
                made[argument] = size
            else:
                shapes.setdefault(argument, list(args[argument].shape))[dimension] = size
        for argument, shape in shapes.items():
            if min(shape) < 0:
                raise NoExtent(f"a tensor would be {shape}")
            made[argument] = torch.empty(shape, dtype=args[argument].dtype, device="meta")
        return made


def fit_family(
    module: fx.GraphModule,
    sizes: Sizes,
    ones: frozenset[int],
    args: Sequence[Any],
    frozen: frozenset[int],
    *,
    names: Sequence[str] | None = None,
    whole: bool = False,
    placement: Placement = Placement(),  # noqa: B008 (frozen)
    store: Store | None = None,
) -> tuple[_engine.GraphFamily, Imported]:
    """Imports the graph at a few sizes and tells from them what it is at all.

    Args:
      module: as import_graph wants it.
      sizes: its sizes.
      ones: which of them, by position, are always 1; they are no sizes of the family.
      args: of a call, constants in the place of `frozen` ones.
      frozen: positions of tensors that become constants.
      names: of the sizes that are not always 1; by default those of their places.
      whole: as import_graph wants it.
      placement: likewise.
      store: likewise.

    Returns:
      The family, and the graph at one sample for what all have in common.

    Raises:
      NoExtent: there is no such family.
    """
    names = names or [name for i, name in enumerate(sizes.places) if i not in ones]
    count = len(names)
    imported: dict[tuple[int, ...], Imported] = {}

    def sample(point: Sequence[int]) -> tuple[list[int], _engine.Graph]:
        key = tuple(point)
        if key not in imported:
            rest = iter(key)
            full = [1 if i in ones else next(rest) for i in range(len(sizes.places))]
            try:
                imported[key] = import_graph(
                    module, sizes.arguments(args, full), frozen, whole=whole, placement=placement, store=store
                )
            except EmptyTensor:
                raise NoExtent(f"a tensor would be empty at {key}") from None
            except (UnsupportedNode, ValueError, NotImplementedError) as error:
                raise NoExtent(f"at {key}: {error}") from error
        return list(key), imported[key].builder.graph

    reason = ""
    for degree in (1, 2):
        # All combinations of as many values of each size as the degree needs, and two samples more as a check.
        points = [
            [_LEVELS[i][number // (degree + 1) ** i % (degree + 1)] for i in range(count)]
            for number in range((degree + 1) ** count)
        ]
        points += [[_LEVELS[i][2] + 2 * i + 8 for i in range(count)], [_LEVELS[i][2] * 5 + 6 * i for i in range(count)]]
        try:
            family = _engine.GraphFamily.fit(names, degree, [sample(point) for point in points])
        except (NotImplementedError, ValueError) as error:
            reason = str(error)
            continue
        graphs = list(imported.values())
        if any(_fixed(other) != _fixed(graphs[0]) for other in graphs):
            raise NoExtent("the graph returns numbers that follow the sizes")
        return family, graphs[0]
    raise NoExtent(reason)


def memory_bytes() -> int:
    """The machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _fixed(imported: Imported) -> object:
    """What an import says besides shapes."""
    outputs = [dataclasses.replace(output, shape=()) for output in imported.outputs]
    return imported.arguments, imported.orders, outputs


def _check_polynomials(module: fx.GraphModule) -> None:
    """Refuses a graph in which a size comes from the sizes of a call by division, a minimum or the like.

    A formula that holds at some sizes need not hold between them then.
    """
    seen = set()
    tested = set()
    for node in module.graph.nodes:
        val = node.meta.get("val")
        for part in val if isinstance(val, (tuple, list)) else (val,):
            if isinstance(part, (torch.SymBool, torch.SymFloat)):
                tested.add(part.node.expr)
            for size in part.shape if isinstance(part, torch.Tensor) else (part,):
                if isinstance(size, torch.SymInt):
                    seen.add(size.node.expr)
    symbols = {symbol for expression in seen for symbol in expression.free_symbols}
    for expression in tested:
        if not symbols.isdisjoint(expression.free_symbols):
            raise NoExtent(f"the graph asks for {expression}")
    for expression in seen:
        if not expression.is_polynomial(*expression.free_symbols):
            raise NoExtent(f"a size is {expression}")


def _guards_of(module: fx.GraphModule) -> tuple[list[Any], Mapping[Any, Any]]:
    """What must hold for the graph to be the program, and the ranges of its symbols."""
    for node in module.graph.nodes:
        val = node.meta.get("val")
        for size in val.shape if isinstance(val, torch.Tensor) else (val,):
            if isinstance(size, torch.SymInt):
                environment = size.node.shape_env
                return [guard.expr for guard in environment.guards], environment.var_to_range
    return [], {}


def _bound_of(guard: Any) -> tuple[Any, int] | None:
    """Of a symbol compared with a number: the symbol and its upper end, UNBOUNDED for a lower one."""
    if not getattr(guard, "is_Relational", False) or guard.rel_op not in ("<", "<=", ">", ">="):
        return None
    less = guard if guard.rel_op in ("<", "<=") else guard.reversed
    strict = less.rel_op == "<"
    if less.lhs.is_Symbol and less.rhs.is_Integer:
        return less.lhs, int(less.rhs) - strict
    return (less.rhs, UNBOUNDED) if less.rhs.is_Symbol and less.lhs.is_Integer else None


def _upper(found: Any) -> int:
    """The upper end of a symbol's range."""
    if found is None:
        return UNBOUNDED
    try:
        upper = float(found.upper)
    except (TypeError, OverflowError, ValueError):
        return UNBOUNDED
    return UNBOUNDED if not math.isfinite(upper) or upper > UNBOUNDED else int(upper)

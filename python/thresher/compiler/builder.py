"""What importer rules see: values of the engine's graph with PyTorch's dtypes, and the few steps they share."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import fx

from thresher import _engine
from thresher.compiler.errors import UnsupportedNode
from thresher.compiler.placement import Placement
from thresher.compiler.weights import Store

ENGINE_DTYPES: dict[torch.dtype, str] = {
    torch.float32: "f32",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.bool: "bool",
}
TORCH_DTYPES = {name: dtype for dtype, name in ENGINE_DTYPES.items()}

Scalar = bool | int | float
# A rule gets the builder and the node's arguments by the names of the operator's schema, defaults filled in. It
# returns a Value, a plain Python value, or a tuple of those for an operator with several outputs (None: not offered).
Rule = Callable[["Builder", SimpleNamespace], Any]
RULES: dict[Any, Rule] = {}


def rule(*targets: Any) -> Callable[[Rule], Rule]:
    """Registers the rule for these operator overloads, or names of such as another library may register later."""

    def register(function: Rule) -> Rule:
        for target in targets:
            if target in RULES:
                raise ValueError(f"expected an operator that has no rule yet, got {target}; take the one that it has")
            RULES[target] = function
        return function

    return register


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A tensor of the engine's graph.

    Attributes:
      id: the engine's number.
      dtype: one of ENGINE_DTYPES.
      shape: concrete sizes.
      argument: position of the compiled function's argument this is, or -1.
      transposed: for the transpose of a matrix or of a batch of them, that matrix or batch.
      scalar: the number every element equals, where known.
      padded: for a tensor with zeros around it, that tensor, and how many there are before and after each dimension.
    """

    id: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    argument: int = -1
    transposed: Value | None = None
    scalar: Scalar | None = None
    padded: tuple[Value, tuple[tuple[int, int], ...]] | None = None

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def numel(self) -> int:
        """Number of elements."""
        count = 1
        for size in self.shape:
            count *= size
        return count


class Builder:
    """Adds nodes to an engine graph. Equal nodes are made once."""

    def __init__(
        self,
        placement: Placement = Placement(),  # noqa: B008 (frozen)
        store: Store | None = None,
    ) -> None:
        """Starts a graph.

        Args:
          placement: where its tensors lie.
          store: of the weights, where these lie on the placement's device.
        """
        self.graph = _engine.Graph()
        self.placement = placement
        self.store = store
        self.source = ""
        self.module = ""
        self.node: fx.Node | None = None
        self._seen: dict[object, tuple[Value, ...]] = {}

    # ---- nodes ----

    def emit(self, op: str, inputs: Sequence[Value | None], **attrs: Any) -> Value:
        """Adds an operator with one output.

        Raises:
          UnsupportedNode: the engine refuses; the text is its message.
        """
        return self.emit_all(op, inputs, **attrs)[0]

    def emit_all(self, op: str, inputs: Sequence[Value | None], **attrs: Any) -> tuple[Value, ...]:
        """Adds an operator with any number of outputs.

        Raises:
          UnsupportedNode: the engine refuses; the text is its message.
        """
        key = (op, tuple(-1 if v is None else v.id for v in inputs), _freeze(attrs))
        found = self._seen.get(key)
        if found is None:
            try:
                ids = self.graph.add(op, [None if v is None else v.id for v in inputs], attrs, self.source, self.module)
            except (ValueError, NotImplementedError, IndexError, RuntimeError) as error:
                raise UnsupportedNode(str(error)) from error
            found = tuple(self.wrap(i) for i in ids)
            self._seen[key] = found
        return found

    def wrap(self, value_id: int, argument: int = -1) -> Value:
        """The Value of an id of the engine's graph."""
        dtype = TORCH_DTYPES[self.graph.dtype(value_id)]
        return Value(value_id, dtype, tuple(self.graph.shape(value_id)), argument)

    def input(self, name: str, dtype: torch.dtype, shape: Sequence[int], argument: int) -> Value:
        """A new graph input."""
        return self.wrap(self.graph.input(name, engine_dtype(dtype), list(shape)), argument)

    def constant(self, name: str, tensor: torch.Tensor, *, weight: bool, argument: int = -1) -> Value:
        """A constant, row-major or a matrix that is the transpose of such.

        With `weight` the engine keeps a reference instead of a copy.
        """
        engine_dtype(tensor.dtype)
        tensor = tensor.detach()
        if tensor.is_contiguous():
            return self.wrap(self._constant(name, tensor, weight), argument)
        stored = self.wrap(self._constant(name, tensor.t(), weight))
        return dataclasses.replace(self.permute(stored, (1, 0)), argument=argument)

    def _constant(self, name: str, tensor: torch.Tensor, weight: bool) -> int:
        if self.store is None:
            return self.graph.constant(name, tensor, weight)
        # Passes look at the numbers of what is small or counts; the floats of weights are the kernels' alone.
        if weight and tensor.is_floating_point() and self.placement.engine is not None:
            constant = self.store.placed(tensor, self.placement.engine)
            return self.graph.placed(name, engine_dtype(tensor.dtype), list(tensor.shape), constant)
        return self.graph.constant(name, self.store.on_host(tensor), weight)

    def full(self, shape: Sequence[int], value: Scalar, dtype: torch.dtype) -> Value:
        """A tensor of equal elements. A number beside a tensor of 16 bits stays exact, as it does in PyTorch."""
        if isinstance(value, complex):
            raise UnsupportedNode("complex numbers are not supported")
        if dtype == torch.bool:
            value = bool(value)
        elif not dtype.is_floating_point:
            value = int(value)
        name = engine_dtype(dtype)
        if abs(value) > 2**53 and not dtype.is_floating_point:  # a float would round it
            made = self.emit("full", [], shape=list(shape), value_int=value, dtype=name)
        else:
            made = self.emit("full", [], shape=list(shape), value=float(value), dtype=name)
        return dataclasses.replace(made, scalar=value)

    # ---- types ----

    def cast(self, value: Value, dtype: torch.dtype) -> Value:
        """`value` as `dtype`, by PyTorch's conversion rules."""
        if value.dtype == dtype:
            return value
        if value.scalar is not None:
            return self.full(value.shape, stored(value.scalar, dtype), dtype)
        return self.emit("cast", [value], dtype=engine_dtype(dtype))

    def out_dtype(self) -> torch.dtype:
        """The dtype PyTorch found for the node being imported (its first output)."""
        assert self.node is not None
        val = self.node.meta["val"]
        if isinstance(val, (tuple, list)):
            val = val[0]
        if not isinstance(val, torch.Tensor):
            raise UnsupportedNode(f"the result is a {type(val).__name__}, not a tensor")
        return val.dtype

    def out_used(self, index: int) -> bool:
        """Whether output `index` of the node being imported is used."""
        assert self.node is not None
        return any(user.args[1] == index and user.users for user in self.node.users if user.op == "call_function")

    def promote(self, *operands: Value | Scalar) -> torch.dtype:
        """torch.result_type of the operands."""
        return _result_type(tuple(_type_key(operand) for operand in operands))

    def operand(self, operand: Value | Scalar, dtype: torch.dtype) -> Value:
        """`operand` as a tensor of `dtype`; numbers become 0-dim tensors."""
        if isinstance(operand, Value):
            return self.cast(operand, dtype)
        if isinstance(operand, complex):
            raise UnsupportedNode("complex numbers are not supported")
        return self.full((), operand, dtype)

    # ---- shared steps ----

    def unary(self, op: str, x: Value, dtype: torch.dtype | None = None) -> Value:
        """A unary operator computed in `dtype`, by default x's own."""
        return self.emit(op, [self.cast(x, dtype or x.dtype)])

    def binary(self, op: str, a: Value | Scalar, b: Value | Scalar, dtype: torch.dtype | None = None) -> Value:
        """A binary operator computed in `dtype`, by default the promoted one."""
        common = dtype or self.promote(a, b)
        return self.emit(op, [self.operand(a, common), self.operand(b, common)])

    def where(self, condition: Value, a: Value | Scalar, b: Value | Scalar, dtype: torch.dtype | None = None) -> Value:
        """Elements of `a` where `condition` holds, else of `b`."""
        common = dtype or self.promote(a, b)
        test = condition if condition.dtype == torch.bool else self.cast(condition, torch.bool)
        return self.emit("where", [test, self.operand(a, common), self.operand(b, common)])

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        """x with another shape; one size may be -1."""
        sizes = [int(size) for size in shape]
        if tuple(sizes) == x.shape:
            return x
        return self.emit("reshape", [x], shape=sizes)

    def permute(self, x: Value, dims: Sequence[int]) -> Value:
        """x with its dimensions in another order."""
        order = [dim(d, x.rank) for d in dims]
        if order == list(range(x.rank)):
            return x
        swap = order in ([1, 0], [0, 2, 1])
        if swap and x.transposed is not None:
            return x.transposed
        made = self.emit("permute", [x], dims=order)
        return dataclasses.replace(made, transposed=x) if swap else made

    def expand(self, x: Value, shape: Sequence[int]) -> Value:
        """x broadcast to `shape`; -1 keeps a size."""
        offset = len(shape) - x.rank
        sizes = [x.shape[i - offset] if size == -1 else int(size) for i, size in enumerate(shape)]
        return x if tuple(sizes) == x.shape else self.emit("expand", [x], shape=sizes)

    def slice(self, x: Value, axis: int, start: int | None, end: int | None, step: int = 1) -> Value:
        """Elements start, start + step, ... before end of one dimension; Python's rules for indices."""
        axis = dim(axis, x.rank)
        begin, stop, step = slice(start, end, step).indices(x.shape[axis])
        stop = max(begin, stop)
        if (begin, stop, step) == (0, x.shape[axis], 1):
            return x
        return self.emit("slice", [x], dim=axis, start=begin, end=stop, step=step)

    def index_rows(self, x: Value, axis: int, index: Value) -> Value:
        """Elements of one dimension, of a float type, by numbers; negative ones are errors when it runs."""
        # The embedding operator on rows: like index_select, and unlike index, it refuses negative indices.
        order = [axis, *(i for i in range(x.rank) if i != axis)]
        rows = self.permute(x, order)
        picked = self.emit("embedding", [self.reshape(rows, (rows.shape[0], math.prod(rows.shape[1:]))), index])
        back = self.reshape(picked, (index.shape[0], *rows.shape[1:]))
        return self.permute(back, [order.index(i) for i in range(x.rank)])

    def reduce(self, op: str, x: Value, dims: Iterable[int] | None, keepdim: bool) -> Value:
        """sum, mean, amax or amin over some dimensions; None or an empty list means all."""
        axes = sorted({dim(d, x.rank) for d in dims or ()}) or list(range(x.rank))
        if x.rank == 0:
            return x
        return self.emit(op, [x], dims=axes, keepdim=bool(keepdim))


def engine_dtype(dtype: torch.dtype) -> str:
    """The engine's name of a dtype.

    Raises:
      UnsupportedNode: the engine has no such dtype.
    """
    name = ENGINE_DTYPES.get(dtype)
    if name is None:
        raise UnsupportedNode(f"dtype {str(dtype).removeprefix('torch.')} is not supported")
    return name


def stored(value: Scalar, dtype: torch.dtype) -> Scalar:
    """What is left of a number in a tensor of 16 bits; other dtypes leave it as it is."""
    return float(torch.tensor(value, dtype=dtype)) if dtype in (torch.bfloat16, torch.float16) else value


def dim(axis: int, rank: int) -> int:
    """A dimension counted from the front."""
    return axis + max(rank, 1) if axis < 0 else axis


def _freeze(attrs: dict[str, Any]) -> tuple[object, ...]:
    # repr keeps 0.0 and -0.0 apart, and makes nan equal to itself.
    return tuple((name, repr(value)) for name, value in sorted(attrs.items()))


def _type_key(operand: Value | Scalar) -> object:
    if isinstance(operand, Value):
        return (operand.dtype, operand.rank > 0)
    return type(operand)


@functools.cache
def _result_type(keys: tuple[Any, ...]) -> torch.dtype:
    samples: list[Any] = [
        torch.empty((1,) if key[1] else (), dtype=key[0]) if isinstance(key, tuple) else key(1) for key in keys
    ]
    if len(samples) == 1:
        return torch.result_type(samples[0], samples[0])
    if not any(isinstance(sample, torch.Tensor) for sample in samples):
        return torch.result_type(torch.tensor(samples[0]), samples[1])
    found = torch.result_type(samples[0], samples[1])
    for sample in samples[2:]:
        found = torch.result_type(torch.empty((1,), dtype=found), sample)
    return found

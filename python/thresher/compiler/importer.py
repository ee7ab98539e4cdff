"""Turns an aten graph into a graph of the engine, for concrete shapes.

Sizes are plain numbers here: symbolic ones come in as arguments, and arithmetic on them is carried out. One aten graph
with symbolic shapes thus serves any number of engine graphs.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily

from thresher import packages
from thresher.compiler import rules_conv, rules_index, rules_linear, rules_pointwise, rules_shape, rules_sym
from thresher.compiler.builder import ENGINE_DTYPES, RULES, Builder, Rule, Value, engine_dtype
from thresher.compiler.errors import UnsupportedNode
from thresher.compiler.origin import module_of, source_of
from thresher.compiler.placement import Placement
from thresher.compiler.weights import Store

BATCH_NORMS = {
    torch.ops.aten._native_batch_norm_legit_no_training.default,
    torch.ops.aten.native_batch_norm.default,
}
TRANSPOSES = {torch.ops.aten.t.default, torch.ops.aten.transpose.int, torch.ops.aten.permute.default}
PRODUCTS = {torch.ops.aten.mm.default, torch.ops.aten.addmm.default}  # by the last of their operands
FAMILIES = (rules_linear, rules_conv, rules_pointwise, rules_shape, rules_index, rules_sym)

# Constants of at most this many elements are copied into the graph, where passes may compute with them.
SMALL_CONSTANT = 4096


@dataclasses.dataclass(frozen=True, slots=True)
class Foreign:
    """A value the engine cannot hold: another dtype, device or layout."""

    reason: str


class EmptyTensor(Exception):
    """Internal: a tensor of the graph has no elements at these shapes."""

    def __str__(self) -> str:
        return "a tensor of the graph has no elements"


@dataclasses.dataclass(frozen=True, slots=True)
class Output:
    """Where one output of the compiled function comes from.

    Attributes:
      engine: number of the engine's output, or -1.
      argument: position of the argument that is returned as a copy, or -1.
      value: what to return when neither is given: None or a number.
      order: dimensions to permute the engine's output by, so that its strides are those PyTorch would give, or None.
      shape: what the engine writes, before `order`.
      dtype: the tensor's dtype.
    """

    engine: int = -1
    argument: int = -1
    value: object = None
    order: tuple[int, ...] | None = None
    shape: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float32


@dataclasses.dataclass(frozen=True, slots=True)
class Imported:
    """An engine graph and how it hangs together with the function's arguments.

    Attributes:
      builder: holds the graph; its outputs are set.
      arguments: for each input of the graph, the position of the argument.
      outputs: for each output of the function.
      orders: inputs of the graph that are the argument as it lies in memory, with its dimensions permuted: number of
        the input, and order.
    """

    builder: Builder
    arguments: tuple[int, ...]
    outputs: tuple[Output, ...]
    orders: tuple[tuple[int, tuple[int, ...]], ...] = ()


def import_graph(
    module: fx.GraphModule,
    args: Sequence[object],
    frozen: frozenset[int],
    *,
    whole: bool = False,
    placement: Placement = Placement(),  # noqa: B008 (frozen)
    store: Store | None = None,
) -> Imported:
    """Imports a graph whose operators are all supported.

    Args:
      module: aten graph; every node carries meta["val"].
      args: one for each placeholder: tensors (only their shape and dtype matter, but for `frozen` ones) and numbers.
      frozen: positions of tensors that become constants.
      whole: the graph will stand alone: inputs that nothing uses stay inputs, and every tensor among the results is
        an output of the engine, row-major, even where it is an argument.
      placement: where the graph's tensors lie.
      store: of the weights, where `frozen` tensors lie on the placement's device; else they are the host's.

    Raises:
      UnsupportedNode: something cannot be imported at these shapes; the text names the operator.
      EmptyTensor: a tensor of the graph has no elements, and more is done with it than joining it to others.
    """
    builder = Builder(placement, store)
    values: dict[fx.Node, Any] = {}
    used: list[int] = []
    orders: list[tuple[int, tuple[int, ...]]] = []
    position = 0
    for node in module.graph.nodes:
        if node.op == "placeholder":
            arg = args[position]
            if isinstance(arg, torch.Tensor) and (node.users or (whole and position not in frozen)):
                if arg.numel() == 0:
                    raise EmptyTensor
                if position in frozen:
                    weight = arg.numel() > SMALL_CONSTANT or (arg.is_floating_point() and not _is_statistic(node))
                    name = node.meta.get("thresher_name", node.name)
                    values[node] = builder.constant(name, stored(node, arg), weight=weight, argument=position)
                else:
                    order = None if whole else _stride_order(node, arg.dim())
                    if order is not None:
                        orders.append((len(used), order))
                    values[node] = _input(builder, node, arg, position, order)
                    used.append(position)
            else:
                values[node] = arg
            position += 1
        elif node.op == "get_attr":
            tensor = attribute(module, node)
            if tensor.numel() == 0 and not _is_joined(node):
                raise EmptyTensor
            weight = tensor.numel() > SMALL_CONSTANT
            with unset_fake_temporarily():  # copying is no part of the program
                stored_there = tensor.contiguous().cpu()
            values[node] = builder.wrap(builder.graph.constant(node.name, stored_there, weight))
        elif node.op == "output":
            outputs, engine = _outputs(builder, node, values, whole)
            builder.graph.set_outputs(engine)
            return Imported(builder, tuple(used), outputs, tuple(orders))
        else:
            value = import_node(builder, node, values)
            if isinstance(value, Value) and value.numel == 0 and not _is_joined(node):
                raise EmptyTensor
            values[node] = value
    raise AssertionError("a graph ends with its outputs")


def _input(
    builder: Builder, node: fx.Node, tensor: torch.Tensor, position: int, order: tuple[int, ...] | None
) -> Value:
    """An argument: the graph's input as it lies in memory, so that one in channels_last is not copied."""
    name = node.meta.get("thresher_name", node.name)
    if order is None:
        return builder.input(name, tensor.dtype, tensor.shape, position)
    lying = builder.input(name, tensor.dtype, [tensor.shape[i] for i in order], -1)
    return dataclasses.replace(builder.permute(lying, _inverse(order)), argument=position)


def _is_joined(node: fx.Node) -> bool:
    """Whether a tensor or a copy of it is only joined to others: without elements it adds nothing, as cat knows."""
    return all(
        user.target is torch.ops.aten.cat.default or (user.target in rules_pointwise.COPIES and _is_joined(user))
        for user in node.users
    )


def stored(node: fx.Node, tensor: torch.Tensor) -> torch.Tensor:
    """A parameter as a graph is to hold it: as it lies where only products read it, else row-major.

    Args:
      node: its placeholder.
      tensor: the parameter.
    """
    tensor = tensor.detach()
    turned = tensor.dim() == 2 and tensor.t().is_contiguous()
    return tensor if turned and all(_is_product(user, node) for user in node.users) else tensor.contiguous()


def _is_product(user: fx.Node, matrix: fx.Node) -> bool:
    """Whether `user` turns the matrix or multiplies by it: its layout is all the same to either."""
    if user.target in TRANSPOSES:
        return True
    return user.target in PRODUCTS and user.args[-1] is matrix and matrix not in user.args[:-1]


def _is_statistic(node: fx.Node) -> bool:
    """Whether only batch norms read the tensor: what they compute of it can be computed once."""
    return all(user.target in BATCH_NORMS for user in node.users)


def import_node(builder: Builder, node: fx.Node, values: dict[fx.Node, Any]) -> Any:
    """What a call_function node gives: a Value, a number, a tuple of those.

    Raises:
      UnsupportedNode: there is no rule, or the rule or the engine refuses these arguments.
    """
    builder.node = node
    builder.source = source_of(node)
    builder.module = module_of(node)
    args = [_resolve(arg, values) for arg in node.args]
    kwargs = {name: _resolve(arg, values) for name, arg in node.kwargs.items()}
    target = node.target
    if target is operator.getitem:
        container, index = args
        if isinstance(container, Foreign):
            raise UnsupportedNode(container.reason)
        item = container[index]
        if item is None:
            raise UnsupportedNode(f"output {index} is not offered")
        return item
    if target in rules_sym.NUMBER_FUNCTIONS:
        if any(isinstance(arg, (Value, Foreign)) for arg in args):
            raise UnsupportedNode("arithmetic on a tensor as if it were a number")
        return target(*args, **kwargs)  # type: ignore[operator]
    function = _rule_of(target)
    if function is None:
        raise UnsupportedNode("the engine has no such operator")
    bound = _bind(target, args, kwargs)
    for name, arg in vars(bound).items():
        for item in arg if isinstance(arg, (list, tuple)) else (arg,):
            if isinstance(item, Foreign):
                raise UnsupportedNode(f"{name} {item.reason}")
    _check_placement(bound, builder.placement)
    return function(builder, bound)


def _rule_of(target: Any) -> Rule | None:
    found = RULES.get(target) or RULES.get(str(target))
    if found is None:
        with unset_fake_temporarily():  # what modules do when they are imported is no part of the program
            packages.load_rules()
        found = RULES.get(target)
    return found


def supported_operators() -> list[str]:
    """Names of the aten operators that have an importer rule; some only for certain arguments."""
    packages.load_rules()
    return sorted(str(target) for target in RULES)


def attribute(module: fx.GraphModule, node: fx.Node) -> torch.Tensor:
    """The tensor that a get_attr node names."""
    found: Any = module
    for part in str(node.target).split("."):
        found = getattr(found, part)
    if not isinstance(found, torch.Tensor):
        raise UnsupportedNode(f"the attribute {node.target} is a {type(found).__name__}, not a tensor")
    return found


def foreign_reason(tensor: torch.Tensor, placement: Placement) -> str | None:
    """Why the engine cannot hold a tensor, or None."""
    if tensor.layout != torch.strided:
        return f"has layout {str(tensor.layout).removeprefix('torch.')}, expected strided"
    if tensor.device != placement.tensors:
        return f"is on {tensor.device}, expected {placement.tensors}{placement.obstacle}"
    if tensor.dtype not in ENGINE_DTYPES:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in ENGINE_DTYPES)
        return f"has dtype {str(tensor.dtype).removeprefix('torch.')}, expected one of {known}"
    if tensor.dim() > 8:
        return f"has {tensor.dim()} dimensions, at most 8 are supported"
    return None


def _resolve(arg: Any, values: dict[fx.Node, Any]) -> Any:
    if isinstance(arg, fx.Node):
        return values[arg]
    if isinstance(arg, (list, tuple)):
        return [_resolve(item, values) for item in arg]
    if isinstance(arg, slice):
        return slice(*(_resolve(item, values) for item in (arg.start, arg.stop, arg.step)))
    return arg


def _bind(target: Any, args: list[Any], kwargs: dict[str, Any]) -> SimpleNamespace:
    """Arguments by the names of the operator's schema."""
    bound = SimpleNamespace()
    for index, argument in enumerate(target._schema.arguments):
        name = argument.name
        if index < len(args):
            value = args[index]
        elif name in kwargs:
            value = kwargs[name]
        else:
            value = argument.default_value
        setattr(bound, name, value)
    return bound


def _check_placement(bound: SimpleNamespace, placement: Placement) -> None:
    """Refuses an explicit device, layout or memory format that is not the plain one."""
    device = getattr(bound, "device", None)
    if device is not None and torch.device(device) != placement.tensors:
        raise UnsupportedNode(f"the result is on {device}, expected {placement.tensors}{placement.obstacle}")
    layout = getattr(bound, "layout", None)
    if layout not in (None, torch.strided):
        raise UnsupportedNode(f"the result has layout {layout}, expected strided")


def _outputs(
    builder: Builder, node: fx.Node, values: dict[fx.Node, Any], whole: bool
) -> tuple[tuple[Output, ...], list[int]]:
    outputs: list[Output] = []
    engine: list[int] = []
    seen: dict[tuple[int, object], int] = {}
    results = node.args[0]
    assert isinstance(results, (list, tuple))
    for result in results:
        value = values[result] if isinstance(result, fx.Node) else result
        if isinstance(value, torch.Tensor):
            raise AssertionError("a tensor argument without a use inside the graph is not its output")
        if not isinstance(value, Value):
            outputs.append(Output(value=value))
        elif whole:
            outputs.append(Output(engine=len(engine), shape=value.shape, dtype=value.dtype))
            engine.append(value.id)
        elif value.argument >= 0:
            outputs.append(Output(argument=value.argument))
        else:
            assert isinstance(result, fx.Node)
            order = _stride_order(result, value.rank)
            written = value
            if order is not None:
                written = builder.permute(value, order)
            key = (written.id, order)
            if key not in seen:
                seen[key] = len(engine)
                engine.append(written.id)
            back = None if order is None else _inverse(order)
            outputs.append(Output(seen[key], -1, None, back, written.shape, value.dtype))
    return tuple(outputs), engine


def _inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(order.index(i) for i in range(len(order)))


def _stride_order(node: fx.Node, rank: int) -> tuple[int, ...] | None:
    """Dimensions from the largest stride to the smallest, where PyTorch's tensor is dense but not row-major."""
    val = node.meta.get("val")
    if not isinstance(val, torch.Tensor) or val.dim() != rank or rank < 2:
        return None
    strides = [hint(stride) for stride in val.stride()]
    sizes = [hint(size) for size in val.shape]
    order = sorted(range(rank), key=lambda i: (-strides[i], sizes[i] == 1, i))
    expected = 1
    for i in reversed(order):
        if sizes[i] != 1:
            if strides[i] != expected:
                return None
            expected *= sizes[i]
    kept = [i for i in order if sizes[i] != 1]
    return None if kept == sorted(kept) else tuple(order)


def hint(size: Any) -> int:
    """A concrete number for a size: its value at the shapes the graph was traced with where it is symbolic."""
    if isinstance(size, int):
        return size
    found = getattr(size.node, "hint", None)
    return 1 if found is None else int(found)


def hint_value(val: Any) -> Any:
    """A stand-in for a traced value: numbers become concrete, tensors become (dtype, shape) holders."""
    if isinstance(val, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        found = getattr(val.node, "hint", None)
        return (1 if isinstance(val, torch.SymInt) else 1.0) if found is None else found
    return val


__all__ = [
    "EmptyTensor",
    "Foreign",
    "Imported",
    "Output",
    "attribute",
    "engine_dtype",
    "foreign_reason",
    "hint",
    "hint_value",
    "import_graph",
    "import_node",
    "module_of",
    "source_of",
    "stored",
    "supported_operators",
]

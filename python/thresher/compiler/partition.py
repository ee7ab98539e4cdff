"""Finds what the engine lacks, and cuts a graph into the largest parts that it has."""

from __future__ import annotations

import dataclasses
import math
import operator
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily

from thresher import _engine
from thresher.compiler import importer, rules_sym
from thresher.compiler.attention import ATTENTION
from thresher.compiler.builder import Builder, Value
from thresher.compiler.errors import UnsupportedNode
from thresher.compiler.importer import Foreign, foreign_reason, hint, hint_value, import_node, source_of
from thresher.compiler.placement import Placement, obstacle_of
from thresher.compiler.stats import UnsupportedOperator

aten: Any = torch.ops.aten

# Views of their first operand.
VIEWS = {
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten.unsqueeze.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.permute.default,
    aten.transpose.int,
    aten.t.default,
    aten.expand.default,
    aten.slice.Tensor,
    aten.select.int,
    aten.split.Tensor,
    aten.split_with_sizes.default,
    aten.unbind.int,
    aten.detach.default,
    aten.alias.default,
    operator.getitem,
}
# Made from numbers alone.
CREATIONS = {
    aten.full.default,
    aten.full_like.default,
    aten.new_full.default,
    aten.ones.default,
    aten.ones_like.default,
    aten.new_ones.default,
    aten.zeros.default,
    aten.zeros_like.default,
    aten.new_zeros.default,
    aten.scalar_tensor.default,
    aten.empty.memory_format,
    aten.empty_like.default,
    aten.new_empty.default,
    aten.arange.default,
    aten.arange.start,
    aten.arange.start_step,
}
NUMBERS = {aten.sym_size.int, aten.sym_size.default, aten.sym_numel.default} | rules_sym.NUMBER_FUNCTIONS
# What needs no kernel of a device, or no other than a copy.
NEVER_KERNELS = VIEWS | NUMBERS
LIGHT = VIEWS | CREATIONS | NUMBERS | {aten.clone.default, aten.copy.default, aten.lift_fresh_copy.default}
# One of these is worth a call of the engine: packed weights, fused steps, no copies of rows.
HEAVY = {
    aten.linear.default,
    aten.convolution.default,
    aten.addmm.default,
    aten.mm.default,
    aten.bmm.default,
    aten.baddbmm.default,
    aten.matmul.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten.scaled_dot_product_attention.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
    ATTENTION,
    aten.native_layer_norm.default,
    aten.layer_norm.default,
    aten._fused_rms_norm.default,
    aten._softmax.default,
    aten._log_softmax.default,
    aten.embedding.default,
    aten.gelu.default,
    aten._grouped_mm.default,
}
# A convolution of several groups fills vectors where as many output channels are whole groups of no more inputs than
# outputs, or lie in one group. PyTorch, which has kernels for all, is sooner elsewhere; in one dimension only with
# windows of fewer numbers than this.
VECTOR_CHANNELS = 16
LEAST_WINDOW = 400
# Operators of ours (thresher.ops) run in the engine wherever they stand.
OWN_NAMESPACE = "thresher"
# What decides about the other operators, as measured with one thread and two: a call into the engine and back, a call
# of one operator in PyTorch, and what passes through a thread's cache in a microsecond.
CROSSING_US = 80.0
DISPATCH_US = 4.0
BYTES_PER_US = 40e3
# The same where tensors stay on their device: nothing waits for it, and an operator costs PyTorch a launch.
DEVICE_CROSSING_US = 30.0
DEVICE_DISPATCH_US = 8.0
DEVICE_BYTES_PER_US = 1e6


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """A subgraph for the engine.

    Attributes:
      name: of the submodule that calls it.
      module: its aten graph.
      inputs: the outer graph's nodes that are its arguments.
    """

    name: str
    module: fx.GraphModule
    inputs: tuple[fx.Node, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Split:
    """A graph cut into parts.

    Attributes:
      outer: calls the parts as submodules and runs everything else in PyTorch. Its placeholders are those of the
        original graph.
      parts: in the order of the calls.
      inside: how many operators of the original graph the engine runs.
    """

    outer: fx.GraphModule
    parts: tuple[Part, ...]
    inside: int


def find_unsupported(
    module: fx.GraphModule,
    placement: Placement = Placement(),  # noqa: B008 (frozen)
    static: frozenset[int] = frozenset(),
    level: str = "O2",
) -> dict[fx.Node, UnsupportedOperator | None]:
    """Tries the import of every node at the shapes the graph was traced with, and asks the device for its kernels.

    Args:
      module: aten graph; every node carries meta["val"].
      placement: where its tensors lie and what runs its parts.
      static: positions of inputs that will be constants.
      level: optimisation level.

    Returns:
      The nodes that cannot be imported, described; None for those that only unpack or feed such a node.
    """
    builder = Builder(placement)
    values: dict[fx.Node, Any] = {}
    constants: set[fx.Node] = set()
    failed: dict[fx.Node, UnsupportedOperator | None] = {}
    for node in module.graph.nodes:
        if node.op == "output":
            break
        val = node.meta.get("val")
        if node.op == "placeholder":
            if len(values) in static:
                constants.add(node)
            values[node] = _stand_in(builder, node, val)
            continue
        if node.op == "get_attr":
            try:
                values[node] = _stand_in(builder, node, importer.attribute(module, node))
            except UnsupportedNode as error:
                values[node] = Foreign(str(error))
                failed[node] = None
            continue
        if node.target is operator.getitem and node.args[0] in failed:
            # A tuple cannot cross over, so it is unpacked where it is made.
            failed[node] = None
            values[node] = _stand_in(builder, node, val)
            continue
        try:
            value = import_node(builder, node, values)
            _want_engine_types(val, placement)
            if placement.engine is not None and node.target not in NEVER_KERNELS:
                _want_kernels(placement, node, values, constants, level)
            values[node] = value
            if node.target in VIEWS and constants.issuperset(node.all_input_nodes):
                constants.add(node)
        except UnsupportedNode as error:
            failed[node] = _describe(node, str(error))
            values[node] = _stand_in(builder, node, val)
    return failed


def find_slow(module: fx.GraphModule) -> dict[fx.Node, UnsupportedOperator | None]:
    """Nodes that the engine can run, and PyTorch runs sooner; described as by `find_unsupported`."""
    found: dict[fx.Node, UnsupportedOperator | None] = {}
    for node in module.graph.nodes:
        if node.target is aten.convolution.default:
            weight, transposed, groups = node.args[1], node.args[6], node.args[8]
        elif node.target is aten.convolution_backward.default and node.args[10][0]:
            # The gradient of the input is a transposed convolution, that of a transposed one's a convolution.
            weight, transposed, groups = node.args[2], not node.args[7], node.args[9]
        else:
            continue
        if groups == 1:
            continue
        outputs, channels, *window = weight.meta["val"].shape
        if transposed:  # weights are [input channels, outputs of a group, window...]
            outputs, channels = channels, outputs // groups
        else:
            outputs //= groups
        fills = outputs >= VECTOR_CHANNELS or (VECTOR_CHANNELS % outputs == 0 and channels <= outputs)
        if not fills and (len(window) > 1 or channels * window[0] < LEAST_WINDOW):
            reason = f"groups of {channels} input and {outputs} output channels, which PyTorch runs sooner"
            found[node] = _describe(node, reason)
    return found


def merge_descriptions(failed: dict[fx.Node, UnsupportedOperator | None]) -> tuple[UnsupportedOperator, ...]:
    """Equal entries become one with a count; the order of the graph is kept."""
    counts: dict[UnsupportedOperator, int] = {}
    for entry in failed.values():
        if entry is not None:
            counts[entry] = counts.get(entry, 0) + 1
    return tuple(dataclasses.replace(entry, count=count) for entry, count in counts.items())


def split(
    module: fx.GraphModule,
    failed: set[fx.Node],
    placement: Placement = Placement(),  # noqa: B008 (frozen)
) -> Split:
    """Cuts a graph so that the engine's parts are few and large.

    A node's level counts how often a path from the inputs enters the engine. Supported nodes of one level form one
    part: a path out of a part and back raises the level, so parts cannot depend on each other in a circle. Views and
    constants that need nothing but the graph's inputs are repeated wherever they are used instead of crossing over.
    """
    nodes = [node for node in module.graph.nodes if node.op in ("call_function", "get_attr", "call_module")]
    free = _repeatable(nodes, failed)
    outside = set(failed)
    while True:
        levels = _levels(nodes, free, outside)
        parts: dict[int, list[fx.Node]] = {}
        for node in nodes:
            if node not in free and node not in outside:
                parts.setdefault(levels[node], []).append(node)
        everything = len(parts) == 1 and not failed
        dropped = [members for members in parts.values() if not _worth(members, everything, placement)]
        if not dropped:
            break
        outside.update(node for members in dropped for node in members)
    for level, members in parts.items():
        parts[level] = _trim(members, outside)
    return _build(module, nodes, free, outside, levels, parts)


def _stand_in(builder: Builder, node: fx.Node, val: Any) -> Any:
    if isinstance(val, torch.Tensor):
        reason = foreign_reason(val, builder.placement)
        if reason is not None:
            return Foreign(reason)
        return builder.input(node.name, val.dtype, [hint(size) for size in val.shape], -1)
    if isinstance(val, (tuple, list)):
        return tuple(_stand_in(builder, node, item) for item in val)
    return hint_value(val)


def _want_kernels(
    placement: Placement, node: fx.Node, values: dict[fx.Node, Any], constants: set[fx.Node], level: str
) -> None:
    """Asks the device whether it can run one operator alone."""
    assert placement.engine is not None
    arguments = node.all_input_nodes
    number = {arg: f"%{i}" for i, arg in enumerate(arguments)}
    described = tuple(_description(values[arg], arg in constants) for arg in arguments)
    key = (str(node.target), repr(fx.map_arg((node.args, node.kwargs), number.__getitem__)), described)
    used = tuple(sorted(str(user.args[1]) for user in node.users if user.target is operator.getitem))

    def build() -> _engine.Graph:
        builder = Builder(placement)
        own = {arg: _alone(builder, values[arg], arg in constants) for arg in arguments}
        found = import_node(builder, node, own)
        results = [one for one in (found if isinstance(found, tuple) else (found,)) if isinstance(one, Value)]
        builder.graph.set_outputs([one.id for one in results])
        return builder.graph

    with unset_fake_temporarily():  # stand-ins for constants are real
        reason = obstacle_of(placement.engine, (*key, used), level, build)
    if reason:
        raise UnsupportedNode(reason)


def _description(value: Any, constant: bool) -> object:
    """What decides about how an operator takes an argument."""
    if isinstance(value, Value):
        transposed = value.transposed is not None
        return str(value.dtype), value.shape, transposed, constant
    if isinstance(value, (tuple, list)):
        return tuple(_description(item, constant) for item in value)
    return repr(value)


def _alone(builder: Builder, value: Any, constant: bool) -> Any:
    """A stand-in for an argument in a graph of one operator, which may be in another part than what makes it."""
    if isinstance(value, (tuple, list)):
        return tuple(_alone(builder, item, constant) for item in value)
    if not isinstance(value, Value):
        return value
    if value.transposed is not None:
        turned = _alone(builder, value.transposed, constant)
        return builder.permute(turned, (*range(value.rank - 2), value.rank - 1, value.rank - 2))
    if constant:  # whose numbers nobody looks at
        return builder.constant("w", torch.empty(value.shape, dtype=value.dtype), weight=True)
    return builder.input("x", value.dtype, value.shape, -1)


def _want_engine_types(val: Any, placement: Placement) -> None:
    if isinstance(val, torch.Tensor):
        reason = foreign_reason(val, placement)
        if reason is not None:
            raise UnsupportedNode(f"the result {reason}")


def _describe(node: fx.Node, reason: str) -> UnsupportedOperator:
    inputs = [
        f"{arg.meta.get('thresher_name', arg.name)}: {_type_text(arg.meta.get('val'))}" for arg in node.all_input_nodes
    ]
    val = node.meta.get("val")
    outputs = [_type_text(item) for item in (val if isinstance(val, (tuple, list)) else (val,))]
    return UnsupportedOperator(str(node.target), tuple(inputs), tuple(outputs), source_of(node), reason)


def _type_text(val: Any) -> str:
    if isinstance(val, torch.Tensor):
        shape = ", ".join(str(size) for size in val.shape)
        return f"{str(val.dtype).removeprefix('torch.')}[{shape}]"
    if isinstance(val, (tuple, list)):
        return f"({', '.join(_type_text(item) for item in val)})"
    return type(val).__name__


def _repeatable(nodes: list[fx.Node], failed: set[fx.Node]) -> set[fx.Node]:
    free: set[fx.Node] = set()
    for node in nodes:
        if node in failed:
            continue
        if node.op == "get_attr" or (
            node.op == "call_function"
            and (node.target in VIEWS or node.target in CREATIONS or node.target in NUMBERS)
            and all(arg.op == "placeholder" or arg in free for arg in node.all_input_nodes)
        ):
            free.add(node)
    return free


def _levels(nodes: list[fx.Node], free: set[fx.Node], outside: set[fx.Node]) -> dict[fx.Node, int]:
    levels: dict[fx.Node, int] = {}
    last_ordered = 0
    for node in nodes:
        if node in free:
            continue
        level = 0
        for arg in node.all_input_nodes:
            if arg in levels:
                enters = arg in outside and node not in outside
                level = max(level, levels[arg] + enters)
        if node in outside and _ordered(node):
            # Random numbers and side effects keep the order they have in the user's program.
            level = last_ordered = max(level, last_ordered)
        levels[node] = level
    return levels


def _ordered(node: fx.Node) -> bool:
    if node.op != "call_function":
        return True
    tags = getattr(node.target, "tags", ())
    return torch.Tag.nondeterministic_seeded in tags or node.is_impure()


def _worth(members: list[fx.Node], everything: bool, placement: Placement) -> bool:
    """Whether the engine gains more by a part than the crossing costs.

    PyTorch calls every operator and moves its operands and result through the caches; the engine fuses element-wise
    operators, and moves what enters and leaves the part.
    """
    inside = set(members)
    entering: set[fx.Node] = set()
    if placement.in_place:
        crossing, dispatch, rate = DEVICE_CROSSING_US, DEVICE_DISPATCH_US, DEVICE_BYTES_PER_US
    else:
        crossing, dispatch, rate = CROSSING_US, DISPATCH_US, BYTES_PER_US * _engine.num_threads()
    gain = computed = 0.0
    for node in members:
        if node.target in HEAVY or getattr(node.target, "namespace", "") == OWN_NAMESPACE:
            return True
        if node.target in LIGHT:
            continue
        value = _first_tensor(node)
        if value is None or not (everything or value.dtype.is_floating_point):
            continue
        computed += 1
        gain += dispatch + (_bytes(node) + sum(_bytes(arg) for arg in node.all_input_nodes)) / rate
        entering.update(arg for arg in node.all_input_nodes if arg not in inside)
        if any(user not in inside for user in node.users):
            gain -= _bytes(node) / rate
    if everything:
        return computed > 0
    return gain - sum(_bytes(node) for node in entering) / rate > crossing


def _first_tensor(node: fx.Node) -> torch.Tensor | None:
    val = node.meta.get("val")
    if isinstance(val, (tuple, list)) and val:
        val = val[0]
    return val if isinstance(val, torch.Tensor) else None


def _bytes(node: fx.Node) -> float:
    value = _first_tensor(node)
    return 0.0 if value is None else float(math.prod(hint(size) for size in value.shape) * value.element_size())


def _trim(members: list[fx.Node], outside: set[fx.Node]) -> list[fx.Node]:
    """Leaves to PyTorch the views that nobody inside needs and whose base is handed out as well."""
    inside = set(members)
    for node in reversed(members):
        if node.target not in VIEWS or node.target is operator.getitem:
            continue
        base = node.args[0]
        if (
            isinstance(base, fx.Node)
            and base in inside
            and isinstance(base.meta.get("val"), torch.Tensor)
            and not any(user in inside for user in node.users)
            and any(user not in inside for user in base.users)
            and all(arg is base or arg.op == "placeholder" for arg in node.all_input_nodes)
        ):
            inside.discard(node)
            outside.add(node)
    return [node for node in members if node in inside]


def _build(
    module: fx.GraphModule,
    nodes: list[fx.Node],
    free: set[fx.Node],
    outside: set[fx.Node],
    levels: dict[fx.Node, int],
    parts: dict[int, list[fx.Node]],
) -> Split:
    graph = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}

    def outer(node: fx.Node) -> fx.Node:
        """The outer graph's node; repeatable ones are made when first needed."""
        if node not in env:
            assert node in free
            for arg in node.all_input_nodes:
                outer(arg)
            env[node] = graph.node_copy(node, env.__getitem__)
        return env[node]

    for node in module.graph.nodes:
        if node.op == "placeholder":
            env[node] = graph.node_copy(node)
    made: list[Part] = []
    modules: dict[str, fx.GraphModule] = {}
    for level in sorted(set(levels.values()) | set(parts)):
        if members := parts.get(level):
            name = f"thresher_{len(made)}"
            sub, inputs, outputs = _extract(module, members, free)
            call = graph.call_module(name, tuple(outer(node) for node in inputs))
            for index, node in enumerate(outputs):
                item = graph.call_function(operator.getitem, (call, index))
                item.meta = dict(node.meta)
                env[node] = item
            modules[name] = sub
            made.append(Part(name, sub, tuple(env[node] for node in inputs)))
        for node in nodes:
            if node in outside and levels.get(node) == level:
                for arg in node.all_input_nodes:
                    outer(arg)
                env[node] = graph.node_copy(node, env.__getitem__)
    result = next(iter(reversed(module.graph.nodes)))
    for arg in result.all_input_nodes:
        outer(arg)
    graph.node_copy(result, env.__getitem__)

    root: dict[str, Any] = dict(modules)
    for node in graph.nodes:
        if node.op == "get_attr":
            root[str(node.target)] = _attribute_or_module(module, str(node.target))
    inside = sum(node.op == "call_function" and node not in outside for node in nodes) if made else 0
    return Split(fx.GraphModule(root, graph), tuple(made), inside)


def _attribute_or_module(module: fx.GraphModule, path: str) -> Any:
    found: Any = module
    for name in path.split("."):
        found = getattr(found, name)
    return found


def _extract(
    module: fx.GraphModule, members: list[fx.Node], free: set[fx.Node]
) -> tuple[fx.GraphModule, list[fx.Node], list[fx.Node]]:
    """A part's own graph, the nodes it takes and the nodes it gives."""
    inside = set(members)
    wanted: list[fx.Node] = []  # members and the repeatable nodes they need, in order
    inputs: dict[fx.Node, None] = {}
    done: set[fx.Node] = set()

    def need(node: fx.Node) -> None:
        if node in done:
            return
        done.add(node)
        if node not in inside and node not in free:
            inputs[node] = None
            return
        for arg in node.all_input_nodes:
            need(arg)
        wanted.append(node)

    for node in members:
        need(node)
    graph = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    for node in inputs:
        env[node] = graph.placeholder(node.name)
        env[node].meta = dict(node.meta)
    for node in wanted:
        env[node] = graph.node_copy(node, env.__getitem__)
    outputs = [node for node in members if any(user not in inside for user in node.users)]
    graph.output(tuple(env[node] for node in outputs))
    root = {
        str(node.target): _attribute_or_module(module, str(node.target)) for node in wanted if node.op == "get_attr"
    }
    return fx.GraphModule(root, graph), list(inputs), outputs

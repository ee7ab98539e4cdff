"""The operators of torch.ops.thresher: schema, kernel, result without data, gradient."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from operator import getitem
from typing import Any

import torch
from torch import fx

from thresher import _engine, startup
from thresher.compiler.builder import ENGINE_DTYPES
from thresher.compiler.config import CompilerConfig
from thresher.compiler.openmp import borrow_threads, give_back
from thresher.compiler.runtime import CompiledGraph
from thresher.fork_lock import ForkLock
from thresher.ops import gradients, reference, shapes

# One plan each, for an operator with its attributes and the shapes of its operands.
CAPACITY = 256

_library: Any = torch.library.Library("thresher", "FRAGMENT")  # type: ignore[no-untyped-call]
_graphs: OrderedDict[object, CompiledGraph] = OrderedDict()
_lock = ForkLock()


def held(tensor: torch.Tensor) -> bool:
    """Whether the engine can hold a tensor and computes anything with it."""
    return (
        tensor.dtype in ENGINE_DTYPES
        and tensor.layout == torch.strided
        and tensor.device.type == "cpu"
        and tensor.dim() <= 8
        and tensor.numel() > 0
        and type(tensor) in (torch.Tensor, torch.nn.Parameter)
    )


def run_alone(operator: Any, args: tuple[Any, ...]) -> list[torch.Tensor]:
    """Runs one operator in the engine, as a graph of its own; gives its results."""
    key = (operator, *((a.dtype, a.shape) if isinstance(a, torch.Tensor) else _plain(a) for a in args))
    with _lock:
        graph = _graphs.get(key)
        if graph is None:
            startup.initialize()
            graph = _graphs[key] = CompiledGraph(_module(operator, args), frozenset(), _CONFIG)
            while len(_graphs) > CAPACITY:
                _graphs.popitem(last=False)
        else:
            _graphs.move_to_end(key)
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    # PyTorch's threads have just run another operator as a rule, and spin on the cores.
    if _engine.num_threads() == 1 or not borrow_threads():
        return graph(tensors)
    try:
        return graph(tensors)
    finally:
        give_back()


_CONFIG = CompilerConfig(fallback="error", plan_sizes="one")


def _plain(value: Any) -> object:
    # 1 and True are one key otherwise, 0.0 and -0.0 too
    return tuple(value) if isinstance(value, (list, tuple)) else (type(value), repr(value))


def _module(operator: Any, args: tuple[Any, ...]) -> fx.GraphModule:
    """The graph of one call of an operator."""
    graph = fx.Graph()
    given: list[Any] = []
    for i, arg in enumerate(args):
        if isinstance(arg, torch.Tensor):
            node = graph.placeholder(f"x{i}")
            node.meta["val"] = torch.empty(arg.shape, dtype=arg.dtype, device="meta")
            given.append(node)
        else:
            given.append(arg)
    call = graph.call_function(operator, tuple(given))
    made = call.meta["val"] = operator(*(a.meta["val"] if isinstance(a, fx.Node) else a for a in given))
    results = [call]
    if isinstance(made, (tuple, list)):
        results = [graph.call_function(getitem, (call, i)) for i in range(len(made))]
        for result, val in zip(results, made, strict=True):
            result.meta["val"] = val
    graph.output(tuple(results))
    return fx.GraphModule({}, graph)


def _define(
    name: str,
    signature: str,
    shape: Callable[..., Sequence[int]],
    compute: Callable[..., torch.Tensor],
    save: Callable[[Any, tuple[Any, ...], torch.Tensor], None],
    backward: Callable[[Any, torch.Tensor], tuple[Any, ...]],
) -> Any:
    """Makes one operator.

    Args:
      name: in torch.ops.thresher.
      signature: its arguments, in PyTorch's schema language.
      shape: checks the arguments and gives the shape of the result, which has the dtype of the first.
      compute: the operator in PyTorch.
      save: keeps for the gradient what it needs.
      backward: the gradient.

    Returns:
      The operator.
    """
    _library.define(f"{name}({signature}) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
    operator = getattr(torch.ops.thresher, name).default
    defaults = [argument.default_value for argument in operator._schema.arguments]

    def kernel(*args: Any) -> torch.Tensor:
        args = (*args, *defaults[len(args) :])  # PyTorch leaves out what equals the default
        shape(*args)
        if all(held(arg) for arg in args if isinstance(arg, torch.Tensor)):
            return run_alone(operator, args)[0]
        made = compute(*args).contiguous()
        return made.clone() if any(made is arg for arg in args) else made

    def fake(*args: Any) -> torch.Tensor:
        return args[0].new_empty(shape(*args, *defaults[len(args) :]))  # type: ignore[no-any-return]

    def setup(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        save(ctx, inputs, output)

    _library.impl(name, kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"thresher::{name}", fake, lib=_library)
    torch.library.register_autograd(f"thresher::{name}", backward, setup_context=setup, lib=_library)
    return operator


def _save_all(count: int) -> Callable[[Any, tuple[Any, ...], torch.Tensor], None]:
    def save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        ctx.save_for_backward(*inputs[:count])

    return save


def _save_attention(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs[:4])
    ctx.causal, ctx.scale = inputs[4:]


def _save_norm(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(inputs[0], inputs[2])
    ctx.shape, ctx.eps = tuple(inputs[1]), inputs[-1]


def _save_softmax(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(output)
    ctx.dim = inputs[1]


def _save_gelu(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.approximate = inputs[1]


def _save_rotary(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs[:3])
    ctx.interleaved = inputs[3]


def _turn(*args: Any) -> torch.Tensor:
    result: torch.Tensor = ROTARY(*args)
    return result


MATMUL = _define("matmul", "Tensor a, Tensor b", shapes.matmul, reference.matmul, _save_all(2), gradients.matmul)
LINEAR = _define(
    "linear",
    "Tensor x, Tensor weight, Tensor? bias=None",
    shapes.linear,
    reference.linear,
    _save_all(2),
    gradients.linear,
)
ATTENTION = _define(
    "attention",
    "Tensor query, Tensor key, Tensor value, Tensor? mask=None, bool causal=False, float? scale=None",
    lambda query, key, value, mask, causal, scale: shapes.attention(query, key, value, mask, causal),
    reference.attention,
    _save_attention,
    gradients.attention,
)
LAYER_NORM = _define(
    "layer_norm",
    "Tensor x, SymInt[] normalized_shape, Tensor? weight=None, Tensor? bias=None, float eps=1e-05",
    lambda x, shape, weight, bias, eps: shapes.norm("layer_norm", x, shape, weight, bias, eps),
    reference.layer_norm,
    _save_norm,
    gradients.layer_norm,
)
RMS_NORM = _define(
    "rms_norm",
    "Tensor x, SymInt[] normalized_shape, Tensor? weight=None, float eps=1e-06",
    lambda x, shape, weight, eps: shapes.norm("rms_norm", x, shape, weight, None, eps),
    reference.rms_norm,
    _save_norm,
    gradients.rms_norm,
)
SOFTMAX = _define(
    "softmax", "Tensor x, int dim=-1", shapes.softmax, reference.softmax, _save_softmax, gradients.softmax
)
GELU = _define("gelu", 'Tensor x, str approximate="none"', shapes.gelu, reference.gelu, _save_gelu, gradients.gelu)
SILU = _define("silu", "Tensor x", shapes.silu, reference.silu, _save_all(1), gradients.silu)
ROTARY = _define(
    "rotary",
    "Tensor x, Tensor cos, Tensor sin, bool interleaved=False",
    lambda x, cos, sin, interleaved: shapes.rotary(x, cos, sin),
    reference.rotary,
    _save_rotary,
    gradients.rotary(_turn),
)

"""A short way from TorchDynamo's graph to an aten graph, for the inference of graphs that change nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from thresher.compiler.attention import Interpreter
from thresher.compiler.decompositions import for_inference
from thresher.compiler.origin import argument_name, module_path
from thresher.compiler.resizing import kept_whole

log = logging.getLogger("thresher.compiler")


def capture_inference(
    gm: fx.GraphModule, example_inputs: Sequence[object]
) -> tuple[fx.GraphModule, frozenset[int]] | None:
    """Traces a graph once, where AOTAutograd would trace it twice and prepare for gradients and changes.

    Args:
      gm: a graph as TorchDynamo captured it.
      example_inputs: what it is called with.

    Returns:
      The aten graph, its placeholders being those of gm, and the positions of parameters and buffers. None where the
      graph needs AOTAutograd: gradients, autocast and other contexts, tensor subclasses, changes of inputs,
      data-dependent sizes.
    """
    context = TracingContext.try_get()
    if context is None or context.fake_mode is None or not _is_plain(gm, example_inputs):
        return None
    inputs = [_fake(value, context) for value in example_inputs]
    run: Callable[..., Any] = Interpreter(gm).run
    traced = _trace(run, inputs, context.fake_mode)
    if traced is not None and not is_pure(traced):
        # Changes of what it has computed itself become values of their own; those of its inputs stay changes.
        traced = _trace(torch.func.functionalize(run, remove="mutations"), inputs, context.fake_mode)
    if traced is None or not is_pure(traced):
        return None
    originals = gm.graph.find_nodes(op="placeholder")
    for node, original in zip(traced.graph.find_nodes(op="placeholder"), originals, strict=True):
        node.meta["thresher_name"] = _name(original)
    return traced, frozenset(i for i, node in enumerate(originals) if _is_static(node))


def _trace(run: Callable[..., Any], inputs: list[object], mode: FakeTensorMode) -> fx.GraphModule | None:
    """The aten graph of the function, without what nothing reads; None where it cannot be traced."""
    try:
        # The order is AOTAutograd's: nodes keep the lines of the model, symbolic sizes their names.
        with torch.no_grad(), fx.traceback.preserve_node_meta(), enable_python_dispatcher(), mode, kept_whole():
            traced = make_fx(run, decomposition_table=for_inference())(*inputs)
    except Exception:  # AOTAutograd meets the same, and says it in the words that users of PyTorch know
        log.debug("a graph goes through AOTAutograd after all", exc_info=True)
        return None
    _drop_new_strides(traced)
    traced.graph.eliminate_dead_code()
    return traced


def _drop_new_strides(traced: fx.GraphModule) -> None:
    """Leaves out changes of strides that change no element's place, as average pooling to one position has them."""
    for node in traced.graph.find_nodes(op="call_function", target=torch.ops.aten.as_strided_.default):
        x, size, stride, *offset = node.args
        val = x.meta["val"]
        same = len(size) == val.dim() and not any(offset)
        for new, to, old, by in zip(size, stride, val.shape, val.stride(), strict=same):
            same &= statically_known_true(new == old)
            same &= statically_known_true(old == 1) or statically_known_true(to == by)
        if same:
            node.replace_all_uses_with(x)
            traced.graph.erase_node(node)


def _fake(value: object, context: TracingContext) -> object:
    """The tensor as one without data, its sizes being symbols where TorchDynamo made them so."""
    if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor):
        return value
    assert context.fake_mode is not None
    contexts: Any = context.tensor_to_context
    known = contexts.get(value)
    source = known.tensor_source if known is not None else None
    return context.fake_mode.from_tensor(value, symbolic_context=known, source=source, trace=known is None)


def _name(placeholder: fx.Node) -> str:
    """The user's name of an input: "input_ids", or "encoder.layer.0.dense.weight" for a parameter."""
    argument = placeholder.meta.get("grapharg")
    source = getattr(argument, "source", None)
    if source is None:
        return placeholder.name
    return (module_path(source.name) if _is_static(placeholder) else argument_name(source.name)) or placeholder.name


def _is_static(placeholder: fx.Node) -> bool:
    """Whether TorchDynamo lifted a parameter or buffer of the model to this input."""
    return placeholder.meta.get("tensor_dict", {}).get("_dynamo_static_input_type") is not None


def _is_plain(gm: fx.GraphModule, inputs: Sequence[object]) -> bool:
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        return False
    grad = torch.is_grad_enabled()
    for value in inputs:
        if isinstance(value, torch.Tensor):
            if (
                type(value) not in (torch.Tensor, torch.nn.Parameter, FakeTensor)
                or value.layout != torch.strided
                or (grad and value.requires_grad)
            ):
                return False
        elif not isinstance(value, torch.SymInt):
            return False
    # Tensors that belong to the graph (get_attr) would have to become inputs.
    return all(
        node.op in ("placeholder", "call_method", "output")
        or (node.op == "call_function" and not _sets_context(node.target) and "unbacked_bindings" not in node.meta)
        for node in gm.graph.nodes
    )


# Their functions set a context (autocast, gradients, inference mode, hooks) or stand for a higher-order operator.
_CONTEXT_MODULES = ("torch.amp", "torch.autograd", "torch._C._autograd", "torch._functorch", "torch._higher_order_ops")


def _sets_context(function: Any) -> bool:
    if isinstance(function, torch._ops.HigherOrderOperator) or function is torch._C._set_grad_enabled:
        return True
    return (getattr(function, "__module__", None) or "").startswith(_CONTEXT_MODULES)


def is_pure(traced: fx.GraphModule) -> bool:
    """Whether nothing is changed in place."""
    schemas = (node.target._schema for node in traced.graph.nodes if isinstance(node.target, torch._ops.OpOverload))
    return not any(schema.is_mutable or not schema.returns for schema in schemas)

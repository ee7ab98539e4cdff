"""The back end that torch.compile calls."""

from __future__ import annotations

import contextlib
import gc
import logging
import operator
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._guards import TracingContext

from thresher import startup
from thresher.compiler import recheck, tracing
from thresher.compiler.capture import capture_inference
from thresher.compiler.config import CompilerConfig, check_device_precision, config_from_options, with_mode
from thresher.compiler.decompositions import DECOMPOSITIONS
from thresher.compiler.errors import ThresherError, UnavailableError, UnsupportedOperatorError
from thresher.compiler.origin import module_path
from thresher.compiler.partition import Split, find_slow, find_unsupported, merge_descriptions, split
from thresher.compiler.placement import placement_of
from thresher.compiler.precision import MODEL_PRECISION, warn_unmatched
from thresher.compiler.runtime import CompiledGraph, Mixed
from thresher.compiler.stats import RECORDER, UnsupportedOperator, count_of, lacking, list_of

log = logging.getLogger("thresher.compiler")

# A key in the options: the patterns of the configuration were compared with the whole model already.
MODEL_CHECKED = "model_checked"

# Another: a function of the graph, what was compiled of it, and whether it took the short way; gives what TorchDynamo
# is to call.
OBSERVER = "observer"

Boxed = Callable[[list[Any]], Sequence[Any]]


def thresher_backend(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compiles one graph of torch.compile.

    Args:
      gm: the graph as TorchDynamo captured it.
      example_inputs: its inputs, possibly fake.
      options: settings by the names of CompilerConfig, or {"config": CompilerConfig}.
      mode: as in ``thresher.compile``.

    Raises:
      ConfigError: an unknown or unusable setting.
    """
    startup.initialize()
    tracing.traced()
    rest = dict(options or {})
    checked = rest.pop(MODEL_CHECKED, False)
    observe = rest.pop(OBSERVER, None)
    if observe is None:  # else it is called behind a lock
        recheck.look_again()
    config = with_mode(config_from_options(rest), mode)
    if not checked:  # this graph may be one of several of the model: its modules are all there is to compare with
        warn_unmatched(config.precision_exclude, _modules(gm))

    parts: list[int] = []  # of each graph of inference

    def compile_graph(module: fx.GraphModule, inputs: Sequence[Any]) -> Boxed:
        return compile_aten(module, _static_inputs(len(inputs)), config)

    def compile_inference(module: fx.GraphModule, inputs: Sequence[Any]) -> Boxed:
        return compile_aten(module, _static_inputs(len(inputs)), config, parts)

    def compile_backward(module: fx.GraphModule, inputs: Sequence[Any]) -> Boxed:
        # Gradients of rounded layers are those of the layers themselves.
        return compile_aten(module, frozenset(), config.replace(precision=MODEL_PRECISION))

    compiled: Callable[..., Any]
    with _without_garbage_collection(), tracing.importing():
        captured = capture_inference(gm, example_inputs)
        if captured is not None:
            boxed = compile_aten(*captured, config, parts)
            if parts == [0]:
                boxed = _whole_in_pytorch(gm)
            compiled = observe(gm, boxed, True) if observe else lambda *args: boxed(list(args))
        else:
            through_aot = aot_autograd(
                fw_compiler=compile_graph,
                bw_compiler=compile_backward,
                inference_compiler=compile_inference,
                decompositions=DECOMPOSITIONS,
            )(gm, example_inputs)
            if parts == [0]:
                in_pytorch = _whole_in_pytorch(gm)
                through_aot = lambda *args: in_pytorch(list(args))  # noqa: E731
            compiled = observe(gm, lambda args: through_aot(*args), False) if observe else through_aot
    return tracing.until_called(compiled)


def _modules(gm: fx.GraphModule) -> set[str]:
    """Paths of the modules that a graph of TorchDynamo runs."""
    stacks = [node.meta.get("nn_module_stack") or {} for node in gm.graph.nodes]
    return {module_path(str(entry[0])) for stack in stacks for entry in stack.values()}


@contextlib.contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Tracing makes many objects that live on, over which the collector would go again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def compile_aten(
    module: fx.GraphModule, static: frozenset[int], config: CompilerConfig, parts: list[int] | None = None
) -> Boxed:
    """Compiles an aten graph whose placeholders carry traced values in meta["val"].

    Args:
      module: the graph.
      static: positions of inputs that are parameters or buffers.
      config: settings.
      parts: is given the number of parts that run in the engine.

    Returns:
      A function of one list of arguments, which it empties.
    """
    start = time.perf_counter()
    placement = placement_of(module, config.target)
    if placement.engine is not None:
        try:
            check_device_precision(config.precision)
        except UnavailableError as error:
            return _raising(partial(UnavailableError, str(error)))
    frozen = static if config.freeze_parameters else frozenset()
    failed = find_unsupported(module, placement, frozen, config.optimization_level)
    if config.fallback == "split" and placement.engine is None:
        failed = find_slow(module) | failed
    listed = merge_descriptions(failed)
    total = sum(node.op == "call_function" for node in module.graph.nodes)
    if listed and config.fallback == "error":
        RECORDER.graph(0, 0, listed, time.perf_counter() - start)
        message = lacking(listed, 'Change the model, or use fallback="split" to run them in PyTorch.')
        return _raising(partial(UnsupportedOperatorError, message, listed))
    if listed:
        _announce(listed, total)
    cut = split(module, set(failed), placement)
    if parts is not None:
        parts.append(len(cut.parts))
    placeholders = {node: i for i, node in enumerate(n for n in cut.outer.graph.nodes if n.op == "placeholder")}
    graphs = {}
    for part in cut.parts:
        own = frozenset(i for i, node in enumerate(part.inputs) if placeholders.get(node, -1) in static)
        graphs[part.name] = CompiledGraph(part.module, own, config, placement)
    boxed = _direct(cut, placeholders, graphs) or _mixed(cut, graphs)
    RECORDER.graph(len(cut.parts), cut.inside, listed, time.perf_counter() - start)
    return boxed


def _whole_in_pytorch(gm: fx.GraphModule) -> Boxed:
    """Runs TorchDynamo's graph, whose changes in place save copies, where no part is worth a call of the engine."""
    mixed = Mixed()

    def run(args: list[Any]) -> Sequence[Any]:
        results = mixed.call(gm.forward, args)
        args.clear()
        return results

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _static_inputs(count: int) -> frozenset[int]:
    """Positions of the parameters and buffers among the inputs of the graph being compiled."""
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    if metadata is None:
        return frozenset()
    return frozenset(i for i in metadata.static_input_indices or () if i < count)


def _raising(make: Callable[[], ThresherError]) -> Boxed:
    """A function that raises when called, so that the user sees the error itself and not TorchDynamo's wrapping."""

    def refuse(args: list[Any]) -> Sequence[Any]:
        raise make()

    refuse._boxed_call = True  # type: ignore[attr-defined]
    return refuse


def _announce(listed: tuple[UnsupportedOperator, ...], total: int) -> None:
    text = f"{count_of(listed)} of {total} nodes run in PyTorch, the rest in the engine:\n{list_of(listed)}"
    log.info("%s", text)
    warnings.warn(f"thresher: {text}", stacklevel=2)


def _direct(cut: Split, placeholders: dict[fx.Node, int], graphs: dict[str, CompiledGraph]) -> Boxed | None:
    """Calls the engine without a graph in between, where one part is all there is."""
    if len(cut.parts) != 1:
        return None
    part = cut.parts[0]
    graph = graphs[part.name]
    sources: list[tuple[bool, Any]] = []  # per result: (of the part, index), or (not, argument or plain value)
    for node in cut.outer.graph.nodes:
        if node.op not in ("placeholder", "call_module", "output") and node.target is not operator.getitem:
            return None
    result = next(iter(reversed(cut.outer.graph.nodes)))
    for value in result.args[0]:
        if not isinstance(value, fx.Node):
            sources.append((False, (None, value)))
        elif value.op == "placeholder":
            sources.append((False, (placeholders[value], None)))
        elif isinstance(value.args[0], fx.Node) and value.args[0].op == "call_module":
            sources.append((True, value.args[1]))
        else:
            return None
    chosen = [placeholders[node] for node in part.inputs]
    if [index for own, index in sources if own] == list(range(len(sources))):
        return Whole(graph, chosen)

    def run(args: list[Any]) -> Sequence[Any]:
        outputs = graph([args[i] for i in chosen])
        results = [
            outputs[source] if own else (source[1] if source[0] is None else args[source[0]]) for own, source in sources
        ]
        args.clear()
        return results

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


class Whole:
    """A graph that one part in the engine computes whole.

    Attributes:
      graph: the part.
      chosen: which of the whole's arguments it takes, in its order.
    """

    def __init__(self, graph: CompiledGraph, chosen: list[int]) -> None:
        self.graph = graph
        self.chosen = chosen
        # Of the object, not of its class: TorchDynamo wraps what runs a backward graph, and hands on the former alone.
        self._boxed_call = True

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        """Runs it and empties the list."""
        picked = [args[i] for i in self.chosen]
        args.clear()
        return self.graph(picked)


def _mixed(cut: Split, graphs: dict[str, CompiledGraph]) -> Boxed:
    """Calls the parts from the outer graph's generated code."""
    mixed = Mixed()
    for name, graph in graphs.items():
        graph.mixed = mixed
        delattr(cut.outer, name)
        setattr(cut.outer, name, _Call(graph))
    cut.outer.recompile()
    forward = cut.outer.forward

    def run(args: list[Any]) -> Sequence[Any]:
        results = mixed.call(forward, args)
        args.clear()
        return results

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


class _Call(torch.nn.Module):
    """A part as the submodule that the outer graph calls."""

    def __init__(self, graph: CompiledGraph) -> None:
        super().__init__()
        self.graph = graph

    def forward(self, *args: Any) -> Sequence[Any]:
        return self.graph(args)

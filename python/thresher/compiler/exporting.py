"""thresher.export: a model as one file that runs without PyTorch."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import itertools
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import detect_fake_mode
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import TreeSpec

from thresher import _engine, startup
from thresher.compiler.capture import is_pure
from thresher.compiler.config import CompilerConfig
from thresher.compiler.decompositions import for_inference
from thresher.compiler.errors import ExportError, UnsupportedNode, UnsupportedOperatorError
from thresher.compiler.extents import UNBOUNDED, NoExtent, Sizes, fit_family
from thresher.compiler.importer import EmptyTensor, Imported, import_graph
from thresher.compiler.origin import module_path
from thresher.compiler.partition import find_unsupported, merge_descriptions
from thresher.compiler.precision import MODEL_PRECISION, Precision, warn_unmatched
from thresher.compiler.resizing import kept_whole
from thresher.compiler.stats import lacking

log = logging.getLogger("thresher.compiler")

# Largest sizes below leave too few for one plan.
LEAST_BOUND = 8

# Checks of what the import knows already: dtype, device and layout of a tensor.
_ASSERTIONS = frozenset({torch.ops.aten._assert_tensor_metadata.default})

_MUTATIONS = {
    OutputKind.BUFFER_MUTATION: "its buffer",
    OutputKind.PARAMETER_MUTATION: "its parameter",
    OutputKind.USER_INPUT_MUTATION: "its input",
}


def export(
    model: torch.nn.Module,
    args: tuple[Any, ...] | Sequence[tuple[Any, ...]],
    path: str | os.PathLike[str],
    *,
    kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    dynamic_shapes: Mapping[str, Any] | Sequence[Any] | None = None,
    precision: Precision = MODEL_PRECISION,
    precision_exclude: tuple[str, ...] = (),
    max_weight_error: float | None = None,
) -> Path:
    """Writes a model to one file, which ``thresher.load`` and C++ programs run without PyTorch.

    The file holds the graph as it was imported and the weights in full precision: whoever loads it chooses
    optimisation level and precision, and it is compiled for the machine that loads it. It holds the shapes of the
    example arguments and, with `dynamic_shapes`, all others up to a largest one.

    Args:
      model: the model, in the mode it will run in: call ``model.eval()`` first.
      args: example arguments, a tuple; or a list of tuples, one for each combination of shapes the file is to hold.
        The values of tensors do not matter; everything else becomes part of the file.
      path: the file; the usual ending is .thrmodel. One that exists is replaced once the new one is whole.
      kwargs: example arguments by name; a list of mappings where `args` is a list.
      dynamic_shapes: which dimensions of the arguments change, as torch.export.export takes it: a mapping from the
        names of `forward`'s parameters, or a sequence in their order, to {dimension: torch.export.Dim(name, max=...)}.
        The example arguments then have sizes of at least 2 there, and there is one combination of them. Sizes of 1 are
        captured, too, each apart.
      precision: how layers with weights compute unless the one who loads the file chooses, as in thresher.compile.
      precision_exclude: the same, for the modules that stay in fp32.
      max_weight_error: the same, for the change of weights beyond which a layer stays as the model has it.

    Returns:
      The path.

    Raises:
      UnsupportedOperatorError: the engine lacks operators of the model; lists all of them. No file is written.
      ExportError: PyTorch cannot capture the model, it changes its buffers or inputs, or the file cannot be written.
      ConfigError: an unknown precision, or one that cannot work.
    """
    if not isinstance(model, torch.nn.Module):
        raise ExportError(f"model: expected a torch.nn.Module, got {type(model).__name__}; wrap functions in a module")
    config = CompilerConfig(precision=precision, precision_exclude=precision_exclude, max_weight_error=max_weight_error)
    startup.initialize()
    warn_unmatched(config.precision_exclude, (name for name, _ in model.named_modules()))
    calls = _calls(args, kwargs)
    graphs: list[tuple[_engine.Graph, list[str]]] = []
    families: list[tuple[_engine.GraphFamily, list[int], list[str]]] = []
    if dynamic_shapes is None:
        graphs = [_import(model, *call) for call in calls]
    else:
        families, graphs = _import_sizes(model, calls, dynamic_shapes)
    target = Path(path)
    try:
        _engine.write_model(
            os.fspath(target),
            target.stem,
            graphs,
            families,
            precision=config.precision,
            exclude=list(config.precision_exclude),
            max_weight_error=config.max_weight_error,
        )
    except ValueError as error:
        raise ExportError(str(error)) from error
    return target


def _calls(args: Any, kwargs: Any) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """One pair of positional and named arguments for each combination of shapes."""
    if isinstance(args, tuple) and (kwargs is None or isinstance(kwargs, Mapping)):
        return [(args, dict(kwargs or {}))]
    several_args = [args] * len(kwargs or ()) if args == () else args
    several_kwargs = [{}] * len(several_args) if kwargs is None else kwargs
    if (
        not isinstance(several_args, (list, tuple))
        or not isinstance(several_kwargs, (list, tuple))
        or not all(isinstance(entry, tuple) for entry in several_args)
        or not all(isinstance(entry, Mapping) for entry in several_kwargs)
        or len(several_args) != len(several_kwargs)
        or not several_args
    ):
        raise ExportError(
            "args, kwargs: expected a tuple and a mapping, or two lists of them of equal length for several shapes; "
            f"got {type(args).__name__} and {type(kwargs).__name__}; write (x,) for one argument"
        )
    return [(entry, dict(named)) for entry, named in zip(several_args, several_kwargs, strict=True)]


@dataclasses.dataclass(frozen=True, slots=True)
class _Program:
    """A captured model: its aten graph, what stands for each placeholder, and which of them are constants."""

    module: fx.GraphModule
    values: list[Any]
    frozen: frozenset[int]
    out_spec: TreeSpec

    def names(self, imported: Imported) -> list[str]:
        """The names of the outputs.

        Raises:
          ExportError: a result is no tensor, or none is one.
        """
        names = []
        for name, output in zip(_output_names(self.out_spec), imported.outputs, strict=True):
            if output.engine >= 0:
                names.append(name)
            elif output.value is not None:
                raise ExportError(
                    f"{name}: expected tensors as results, got {output.value!r}; return it as a tensor or not at all"
                )
        if not names:
            raise ExportError("expected a model that returns tensors, got none among its results")
        return names


def _import(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[_engine.Graph, list[str]]:
    """The engine's graph of a model at the shapes of these arguments, and the names of its outputs."""
    program = _program(model, args, kwargs)
    try:
        imported = import_graph(program.module, program.values, program.frozen, whole=True)
    except UnsupportedNode as error:
        raise UnsupportedOperatorError(f"the engine cannot hold this model: {error}") from error
    except EmptyTensor:
        raise ExportError("expected tensors with elements, got one without at these shapes") from None
    return imported.builder.graph, program.names(imported)


def _import_sizes(
    model: torch.nn.Module, calls: list[tuple[tuple[Any, ...], dict[str, Any]]], dynamic_shapes: Any
) -> tuple[list[tuple[_engine.GraphFamily, list[int], list[str]]], list[tuple[_engine.Graph, list[str]]]]:
    """The model for many sizes, and apart from that for those of them that are 1."""
    if len(calls) != 1:
        raise ExportError(f"dynamic_shapes: expected one combination of arguments, got {len(calls)}; give the largest")
    args, kwargs = calls[0]
    bound = inspect.signature(model.forward).bind(*args, **kwargs)
    changing = _changing(dynamic_shapes, bound.arguments)
    names = sorted({dim.__name__ for dims in changing.values() for dim in dims.values()})
    families, graphs = [], []
    for count in range(len(names) + 1):
        for ones in itertools.combinations(names, count):
            small = {name: _with_ones(value, changing.get(name, {}), ones) for name, value in bound.arguments.items()}
            left = {
                name: {at: dim for at, dim in dims.items() if dim.__name__ not in ones}
                for name, dims in changing.items()
            }
            own = inspect.BoundArguments(bound.signature, small)
            try:
                if count == len(names):
                    graphs.append(_import(model, own.args, own.kwargs))
                else:
                    families.append(_import_family(model, own.args, own.kwargs, left))
            except (ExportError, UnsupportedOperatorError) as error:
                if count == 0:
                    raise
                log.warning("the file will not hold %s = 1: %s", " = ".join(ones), error)
    return families, graphs


def _changing(dynamic_shapes: Any, arguments: Mapping[str, Any]) -> dict[str, dict[int, Any]]:
    """By argument and dimension the torch.export.Dim there."""
    given = (
        dynamic_shapes if isinstance(dynamic_shapes, Mapping) else dict(zip(arguments, dynamic_shapes, strict=False))
    )
    changing: dict[str, dict[int, Any]] = {}
    for name, dims in given.items():
        if dims is None:
            continue
        found = dict(dims) if isinstance(dims, Mapping) else dict(enumerate(dims))
        found = {at: dim for at, dim in found.items() if dim is not None}
        if not isinstance(arguments.get(name), torch.Tensor) or not all(
            isinstance(at, int) and isinstance(dim, type(torch.export.Dim("example"))) for at, dim in found.items()
        ):
            raise ExportError(
                f"dynamic_shapes: expected {{dimension: torch.export.Dim(name, max=...)}} for an argument of forward "
                f"that is a tensor, got {dims!r} for {name!r}; name the dimensions with torch.export.Dim"
            )
        changing[name] = found
    if not any(changing.values()):
        raise ExportError("dynamic_shapes: expected a dimension that changes, got none; leave it out")
    return changing


def _with_ones(value: Any, dims: Mapping[int, Any], ones: tuple[str, ...]) -> Any:
    """The argument with sizes of 1 in the place of those."""
    for at, dim in dims.items():
        if dim.__name__ in ones:
            value = value.narrow(at, 0, 1)
    return value.contiguous() if isinstance(value, torch.Tensor) else value


def _import_family(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], changing: dict[str, dict[int, Any]]
) -> tuple[_engine.GraphFamily, list[int], list[str]]:
    """The model for all sizes up to the largest, these, and the names of its outputs."""
    parameters = inspect.signature(model.forward).bind(*args, **kwargs).arguments
    program = _program(model, args, kwargs, {name: changing.get(name) or None for name in parameters})
    dims = {f"{name}[{at}]": dim for name, found in changing.items() for at, dim in found.items()}
    try:
        sizes = Sizes(program.module)
        names = [dims[place].__name__ if place in dims else place for place in sizes.places]
        largest = sizes.bounds
        for name, bound in zip(names, largest, strict=True):
            if not LEAST_BOUND <= bound < UNBOUNDED:
                found = "none" if bound >= UNBOUNDED else str(bound)
                raise ExportError(
                    f"dynamic_shapes: expected a largest size of at least {LEAST_BOUND} for {name}, got {found}; "
                    f'write torch.export.Dim("{name}", max=...)'
                )
        family, imported = fit_family(
            program.module, sizes, frozenset(), program.values, program.frozen, names=names, whole=True
        )
        # Whoever loads the file finds a plan as this does.
        _engine.Plan.build_extent(family, _engine.WeightStore(), [size // 2 for size in largest], largest)
    except (NoExtent, NotImplementedError, ValueError) as error:
        raise ExportError(
            f"dynamic_shapes: expected a model whose sizes are sums and products of those that change, got: {error}; "
            "export each combination of shapes instead"
        ) from error
    return family, list(largest), program.names(imported)


def _program(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any = None
) -> _Program:
    """The model as aten operators, all of which the engine has."""
    program = _capture(model, args, kwargs, dynamic_shapes)
    specs = program.graph_signature.input_specs
    module = _aten(program)
    tensors = {**program.state_dict, **program.constants}
    values: list[Any] = []
    frozen = set()
    for i, (node, spec) in enumerate(zip(module.graph.find_nodes(op="placeholder"), specs, strict=True)):
        if spec.kind == InputKind.USER_INPUT:
            values.append(spec.arg.value if isinstance(spec.arg, ConstantArgument) else node.meta["val"])
            node.meta["thresher_name"] = spec.arg.name
        else:
            assert spec.target is not None
            values.append(tensors[spec.target].detach())
            node.meta["thresher_name"] = module_path(spec.target)
            frozen.add(i)
    failed = merge_descriptions(find_unsupported(module))
    if failed:
        mode = " or call model.eval() first" if model.training else ""
        raise UnsupportedOperatorError(
            lacking(failed, f"A model file holds what runs in the engine: change the model{mode}."), failed
        )
    out_spec = program.call_spec.out_spec
    assert out_spec is not None
    return _Program(module, values, frozenset(frozen), out_spec)


def _capture(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any
) -> ExportedProgram:
    """The model as PyTorch exports it, without changes in place."""
    try:
        with torch.no_grad():
            program = torch.export.export(model, args, kwargs, dynamic_shapes=dynamic_shapes)
            _drop_assertions(program.graph_module)
            if not is_pure(program.graph_module):
                program = program.run_decompositions({})
    except Exception as error:
        raise ExportError(
            f"torch.export cannot capture this model at these arguments: {type(error).__name__}: {error}"
        ) from error
    changed = [
        f"{_MUTATIONS[spec.kind]} {spec.target}"
        for spec in program.graph_signature.output_specs
        if spec.kind in _MUTATIONS
    ]
    if changed:
        mode = "call model.eval() first" if model.training else "return what changes as a result instead"
        raise ExportError(f"expected a model that changes nothing, got that it changes {', '.join(changed)}; {mode}")
    return program


def _aten(program: ExportedProgram) -> fx.GraphModule:
    """The operators that the importer has rules for; placeholders are those of the program."""
    graph = program.graph_module
    inputs = [node.meta.get("val") for node in graph.graph.find_nodes(op="placeholder")]
    mode = detect_fake_mode(inputs)
    with (
        torch.no_grad(),
        fx.traceback.preserve_node_meta(),
        enable_python_dispatcher(),
        mode or contextlib.nullcontext(),
        kept_whole(),
    ):
        traced = make_fx(fx.Interpreter(graph).run, decomposition_table=for_inference())(*inputs)
    _drop_assertions(traced)
    return traced


def _drop_assertions(module: fx.GraphModule) -> None:
    for node in reversed(module.graph.nodes):
        if node.target in _ASSERTIONS:
            module.graph.erase_node(node)
    module.graph.eliminate_dead_code()
    module.recompile()


def _output_names(spec: TreeSpec, prefix: str = "") -> list[str]:
    """Names of the tensors in what a model returns: "last_hidden_state", "output", "output_1", "states.0.key"."""
    if spec.is_leaf():
        return [prefix or "output"]
    children = spec.children()
    names = []
    for key, child in zip(_keys(spec), children, strict=True):
        first = key if isinstance(key, str) else f"output_{key}"
        names += _output_names(child, f"{prefix}.{key}" if prefix else first)
    return names


def _keys(spec: TreeSpec) -> list[Any]:
    count = spec.num_children
    fields = getattr(spec.context, "_fields", None)  # of a named tuple
    for known in (
        fields,
        spec.context,
        spec.context[0] if isinstance(spec.context, (list, tuple)) and spec.context else None,
    ):
        if isinstance(known, (list, tuple)) and len(known) == count and all(isinstance(key, str) for key in known):
            return list(known)
    return list(range(count))

"""Kernels ready to run, made from signatures: a launchable is the plan of a graph of one operator."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from thresher import _engine, cache, startup, threads, tuning
from thresher.compiler.decompositions import DECOMPOSITIONS
from thresher.compiler.errors import ThresherError, UnsupportedNode, UnsupportedOperatorError
from thresher.compiler.importer import EmptyTensor, import_graph
from thresher.compiler.partition import find_unsupported, merge_descriptions
from thresher.fork_lock import ForkLock
from thresher.signatures.signature import DTYPE_NAMES, Signature
from thresher.torch_shim import tensors as shim
from thresher.tuning import collect

log = logging.getLogger("thresher.signatures")

KIND = "launchable"
LEVEL = "O2"
# Launchables kept in a process. Without packed weights one is some kilobytes.
MOST_KEPT = 1024

_lock = ForkLock()
_kept: OrderedDict[tuple[str, int], Launchable] = OrderedDict()


class NotCachedError(ThresherError, LookupError):
    """A launchable was asked for without being made, and is not in the cache."""


class Launchable:
    """A kernel: call it with the tensors that its signature names.

    Calls from several threads may overlap.

    Attributes:
        signature: What it computes.
        plan: The engine's plan.
        origin: Where its graph came from: "import" or "file".
    """

    __slots__ = ("_arguments", "_outputs", "origin", "plan", "signature")

    def __init__(self, signature: Signature, plan: _engine.Plan, origin: str) -> None:
        self.signature = signature
        self.plan = plan
        self.origin = origin
        self._arguments = [(torch.Size(one.shape), one.dtype) for one in signature.arguments]
        output = torch.empty(signature.output_shape, dtype=signature.dtype, device="meta")
        self._outputs = shim.on_device(shim.places([output]), -1)

    def __call__(self, *args: torch.Tensor) -> torch.Tensor:
        """Computes the result.

        Args:
            *args: CPU tensors of the signature's shapes and types; any strides.

        Returns:
            A new tensor, row-major in the order of its layout, without a gradient.

        Raises:
            ValueError: Arguments are not those of the signature, lie elsewhere, or need a gradient.
            IndexError: An index in the data is out of range.
        """
        if len(args) != len(self._arguments) or not all(map(_is_plain, args, self._arguments)):
            self._refuse(args)
        return self.run(list(args))

    def run(self, args: list[torch.Tensor]) -> torch.Tensor:
        """As a call, of arguments that are known to be the signature's."""
        ready = shim.ready(args, self._outputs, False)
        if ready is None:  # memory holds the opposite of a tensor's elements
            args = list(map(torch.Tensor.resolve_neg, args))
            ready = *shim.empty(self._outputs), shim.places(args)
        outputs, places, given = ready
        self.plan.run_at(given, places)
        return outputs[0]

    def __repr__(self) -> str:
        return f"<thresher.Launchable {self.signature.func_name}>"

    def _refuse(self, args: tuple[torch.Tensor, ...]) -> None:
        name = self.signature.func_name
        self.signature.check(args)
        for tensor in args:
            if tensor.device.type != "cpu" or tensor.layout != torch.strided:
                raise ValueError(
                    f"{name}: expected strided tensors on the CPU, got one of {tensor.layout} on {tensor.device}; "
                    "move it there with .cpu()"
                )
        raise ValueError(
            f"{name}: expected tensors that need no gradient, got one that requires it; a launchable computes none: "
            "call thresher.conv, or call it under torch.no_grad()"
        )


def _is_plain(tensor: torch.Tensor, wanted: tuple[torch.Size, torch.dtype]) -> bool:
    """Whether a tensor is what an argument is to be, and no gradient is asked of it."""
    return (
        isinstance(tensor, torch.Tensor)
        and tensor.shape == wanted[0]
        and tensor.dtype is wanted[1]
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and not (tensor.requires_grad and torch.is_grad_enabled())
    )


def get_launchable(signature: Signature, *, cache_only: bool = False) -> Launchable:
    """The kernel of a signature: the process's, else from the cache's file, else imported and kept there.

        >>> import torch, thresher
        >>> signature = thresher.signatures.GemmSignature((2, 3), (3, 4))
        >>> thresher.signatures.get_launchable(signature)(torch.ones(2, 3), torch.ones(3, 4)).sum()
        tensor(24.)

    Args:
        signature: What is to be computed.
        cache_only: Whether to do without what is neither in the process nor in the cache.

    Raises:
        UnsupportedOperatorError: The engine cannot compute it; says why.
        NotCachedError: With `cache_only`, it is not in the cache; says why.
    """
    startup.initialize()
    count = threads.reserve(None)
    key = (signature.func_name, count)
    found = _kept.get(key)
    if found is None:
        # Tuning measures when it is told to, never here: `apply` reads what was measured.
        tuning.apply(count)
        found = _load(signature, count) or (None if cache_only else _make(signature, count))
        if found is None:
            why = explain(signature)
            raise NotCachedError(
                f"{signature.func_name}: expected it in the cache, got none: {why.reason}; "
                "run thresher preload, or leave out cache_only"
            )
        collect.note(found.plan)
    with _lock:
        found = _kept.setdefault(key, found)  # another thread may have been faster
        _kept.move_to_end(key)
        while len(_kept) > MOST_KEPT:
            _kept.popitem(last=False)
    return found


def forget() -> None:
    """Drops the launchables of this process; files stay."""
    with _lock:
        _kept.clear()


threads.follow(forget)


def cache_key(signature: Signature) -> dict[str, str]:
    """What a kept graph belongs to, beside the machine and the engine's version."""
    return {"signature": signature.func_name, "torch": torch.__version__}


def explain(signature: Signature) -> cache.Explanation:
    """Why a signature's graph is in the cache, or is not."""
    return cache.explain(KIND, cache_key(signature), about=("signature",))


def import_signature(signature: Signature) -> _engine.Graph:
    """The graph of one operator, with its layouts as permutations around it.

    Raises:
        UnsupportedOperatorError: The engine lacks it, or refuses it at these shapes; says why.
    """
    with torch.no_grad(), FakeTensorMode(), enable_python_dispatcher():
        args = [torch.empty(one.shape, dtype=one.dtype) for one in signature.arguments]
        module = make_fx(_listed(signature.call), decomposition_table=DECOMPOSITIONS)(*args)
    module.graph.eliminate_dead_code()
    module.recompile()
    for node, argument in zip(module.graph.find_nodes(op="placeholder"), signature.arguments, strict=True):
        node.meta["thresher_name"] = argument.name
    if failed := merge_descriptions(find_unsupported(module)):
        reasons = "; ".join(f"{one.op}: {one.reason}" for one in failed)
        raise UnsupportedOperatorError(f"{signature.func_name}: the engine cannot compute it: {reasons}", failed)
    try:
        return import_graph(module, args, frozenset(), whole=True).builder.graph
    except (UnsupportedNode, EmptyTensor) as error:
        raise UnsupportedOperatorError(f"{signature.func_name}: the engine cannot compute it: {error}") from error


def _listed(call: Callable[..., torch.Tensor]) -> Callable[..., list[torch.Tensor]]:
    return lambda *args: [call(*args)]


def _load(signature: Signature, count: int) -> Launchable | None:
    kept = cache.load(KIND, cache_key(signature))
    if kept is None:
        return None
    try:
        graph = _engine.Graph.parse(kept["graph"])
        ports = [(graph.dtype(i), graph.shape(i)) for i in (*graph.inputs, *graph.outputs)]
        if ports != _ports(signature):
            return None  # another build of this version gave the name to something else
        return Launchable(signature, _plan(signature, graph, count), "file")
    except (ValueError, KeyError, TypeError, NotImplementedError) as error:
        log.info("%s: what is kept cannot be used: %s", signature.func_name, error)
        return None


def _make(signature: Signature, count: int) -> Launchable:
    graph = import_signature(signature)
    if [(graph.dtype(i), graph.shape(i)) for i in (*graph.inputs, *graph.outputs)] != _ports(signature):
        raise AssertionError(f"{signature.func_name}: the graph's inputs and outputs are not the signature's")
    try:
        plan = _plan(signature, graph, count)
    except (NotImplementedError, ValueError) as error:
        raise UnsupportedOperatorError(f"{signature.func_name}: the engine cannot compute it: {error}") from error
    cache.store(KIND, cache_key(signature), {"graph": graph.text()})
    return Launchable(signature, plan, "import")


def _ports(signature: Signature) -> list[tuple[str, tuple[int, ...]]]:
    inputs = [(DTYPE_NAMES[one.dtype], one.shape) for one in signature.arguments]
    return [*inputs, (DTYPE_NAMES[signature.dtype], signature.output_shape)]


def _plan(signature: Signature, graph: _engine.Graph, count: int) -> _engine.Plan:
    options: dict[str, Any] = {"level": LEVEL, "num_threads": count, "name": signature.func_name}
    return _engine.Plan.build(graph, _engine.WeightStore(), **options)

"""What the compiler has done so far in this process."""

from __future__ import annotations

import dataclasses
import weakref
from typing import TYPE_CHECKING, Protocol

from thresher import _engine
from thresher.compiler.precision import PrecisionDecision, decisions_of, merge, summarize
from thresher.fork_lock import ForkLock
from thresher.profiler.events import number_of

if TYPE_CHECKING:
    from thresher.compiler.weights import Store


class Holder(Protocol):
    """What holds plans and packed weights: a compiled graph."""

    def plans(self) -> list[_engine.Plan]:
        """The plans built and not dropped."""

    def weight_stores(self) -> list[Store]:
        """The packed weights; several holders may share one."""

    def copies(self) -> dict[int, int]:
        """Addresses and sizes of copies of parameters."""

    def clear(self) -> None:
        """Drops them all; the next call builds them again."""


@dataclasses.dataclass(frozen=True, slots=True)
class UnsupportedOperator:
    """An operator of a user's graph that runs in PyTorch.

    Attributes:
      op: its name, such as "aten.cumprod.default".
      inputs: its tensor operands as "name: dtype[shape]"; symbolic sizes by their names.
      outputs: its results as "dtype[shape]".
      source: the user's line, "file.py:12 in forward", or "".
      reason: why the engine cannot run it.
      count: how many nodes of the graph this describes.
    """

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    source: str
    reason: str
    count: int = 1

    def __str__(self) -> str:
        times = f" (x{self.count})" if self.count > 1 else ""
        where = f", at {self.source}" if self.source else ""
        return f"{self.op}({', '.join(self.inputs)}) -> {', '.join(self.outputs)}{times}: {self.reason}{where}"


def describe(plan: _engine.Plan) -> str:
    """The sizes that a plan is for: "input_ids[0] 2 to 32, input_ids[1] 2 to 512"."""
    return ", ".join(f"{name} {least} to {most}" for name, (least, most) in (plan.extent or {}).items())


def count_of(listed: tuple[UnsupportedOperator, ...]) -> str:
    """Returns how many nodes the entries describe, as in "3 operators"."""
    return _count(sum(entry.count for entry in listed), "operator")


def list_of(listed: tuple[UnsupportedOperator, ...]) -> str:
    """One line an entry."""
    return "\n".join(f"  {entry}" for entry in listed)


def lacking(listed: tuple[UnsupportedOperator, ...], cure: str) -> str:
    """The message that refuses a model with these operators."""
    return f"the engine lacks {count_of(listed)} of this model:\n{list_of(listed)}\n{cure}"


@dataclasses.dataclass(frozen=True, slots=True)
class WeightsHeld:
    """Bytes of weights and constants.

    Attributes:
      packed: rearranged for the kernels.
      original: weights that plans read as the model has them, such as the tables of embeddings. They are the model's
        own memory, not a copy.
      engine: constants that the engine copied or computed.
      copied: row-major copies of parameters that are not row-major themselves, kept for plans at further shapes.
        Transposed matrices that only products read have none.
    """

    packed: int = 0
    original: int = 0
    engine: int = 0
    copied: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class CompilationStats:
    """A snapshot; counts are of this process since the start or the last clear_cache().

    Attributes:
      graphs: aten graphs compiled.
      partitions: parts of them that the engine runs.
      plans: plans alive now.
      plan_extents: of each plan alive that is for many sizes, its graph and the sizes that it is for.
      plans_built: plans ever built.
      nodes_supported: nodes of the graphs that the engine runs.
      nodes_unsupported: nodes that run in PyTorch because the engine lacks them.
      unsupported: those, described.
      eager_shapes: shapes that run in PyTorch because a tensor has no elements or the engine refused them, with the
        reason.
      guarded: models of thresher.compile some of whose calls go through TorchDynamo's guards, with the reason.
      repacks: how often packed parameters were thrown away because the parameters had changed.
      compile_seconds: time spent checking, splitting, importing and planning; without torch.compile's own tracing.
      peak_arena_bytes: working memory of the largest plan alive. A plan for many sizes reserves what its largest
        sizes want; memory is taken as far as sizes have needed it.
      weight_bytes: packed weights alive.
      peak_memory_bytes: what running the largest plan takes beside the model itself and its inputs and outputs:
        peak_arena_bytes, the packed weights, the constants that the engine made, and copies of weights.
      weights_held: memory of the model's weights and constants, counted once however many plans read it.
      precision_decisions: how the layers of the plans alive compute, each layer of a graph once.
      products: matrix products with weights in the plans alive.
      tuned_products: those whose blocking was measured by ``thresher tune``, for their number of rows or one near it.
    """

    graphs: int
    partitions: int
    plans: int
    plan_extents: tuple[str, ...]
    plans_built: int
    nodes_supported: int
    nodes_unsupported: int
    unsupported: tuple[UnsupportedOperator, ...]
    eager_shapes: tuple[str, ...]
    guarded: tuple[str, ...]
    repacks: int
    compile_seconds: float
    peak_arena_bytes: int
    weight_bytes: int
    peak_memory_bytes: int
    weights_held: WeightsHeld
    precision_decisions: tuple[PrecisionDecision, ...]
    products: int
    tuned_products: int

    def summary(self) -> str:
        """A few lines for people."""
        nodes = self.nodes_supported + self.nodes_unsupported
        held = self.weights_held
        lines = [
            f"{_count(self.graphs, 'graph')}, {_count(self.partitions, 'part')} in the engine, "
            f"{_count(self.plans, 'plan')} alive; {self.nodes_supported} of {nodes} nodes in the engine; "
            f"compiled in {self.compile_seconds:.2f} s",
            f"memory: {_megabytes(self.peak_memory_bytes)} = {_megabytes(self.peak_arena_bytes)} working, "
            f"{_megabytes(held.packed)} packed weights, {_megabytes(held.engine + held.copied)} constants and copies; "
            f"{_megabytes(held.original)} of the model's own are read in place",
        ]
        lines += [f"one plan for many sizes, {extent}" for extent in self.plan_extents]
        lines += [f"runs in PyTorch: {entry}" for entry in self.unsupported]
        lines += [f"runs in PyTorch: {reason}" for reason in self.eager_shapes]
        lines += [f"guarded by TorchDynamo: {reason}" for reason in self.guarded]
        lines += [text] if (text := summarize(self.precision_decisions)) else []
        if self.tuned_products:
            lines.append(f"{self.tuned_products} of {_count(self.products, 'matrix product')} blocked as measured")
        return "\n".join(lines)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


class Recorder:
    """Collects the counts. Thread safe."""

    def __init__(self) -> None:
        self._lock = ForkLock()
        self.graphs_alive: weakref.WeakSet[Holder] = weakref.WeakSet()
        self._reset()

    def _reset(self) -> None:
        self._graphs = 0
        self._partitions = 0
        self._plans_built = 0
        self._supported = 0
        self._unsupported_nodes = 0
        self._unsupported: list[UnsupportedOperator] = []
        self._eager_shapes: list[str] = []
        self._guarded: list[str] = []
        self._repacks = 0
        self._seconds = 0.0

    def graph(
        self, partitions: int, supported: int, unsupported: tuple[UnsupportedOperator, ...], seconds: float
    ) -> None:
        """One aten graph was compiled."""
        with self._lock:
            self._graphs += 1
            self._partitions += partitions
            self._supported += supported
            self._unsupported_nodes += sum(entry.count for entry in unsupported)
            self._unsupported.extend(unsupported)
            self._seconds += seconds

    def plan(self, seconds: float) -> None:
        """One plan was built."""
        with self._lock:
            self._plans_built += 1
            self._seconds += seconds

    def eager_shape(self, reason: str) -> None:
        """Some shapes run in PyTorch."""
        with self._lock:
            if reason not in self._eager_shapes:
                self._eager_shapes.append(reason)

    def guarded(self, reason: str) -> bool:
        """Some calls go through TorchDynamo's guards. Returns whether that is news."""
        with self._lock:
            if reason in self._guarded:
                return False
            self._guarded.append(reason)
            return True

    def repack(self, times: int) -> None:
        """Packed parameters were thrown away."""
        with self._lock:
            self._repacks += times

    def alive(self) -> list[Holder]:
        """The compiled graphs that still exist."""
        with self._lock:
            return list(self.graphs_alive)

    def register(self, graph: Holder) -> None:
        """Notes a compiled graph without keeping it alive."""
        with self._lock:
            self.graphs_alive.add(graph)

    def snapshot(self) -> CompilationStats:
        """The counts now."""
        alive = self.alive()
        plans = [plan for graph in alive for plan in graph.plans()]
        stores = {id(store): store for graph in alive for store in graph.weight_stores()}
        packed = sum(store.bytes for store in stores.values())
        copies = {address: size for graph in alive for address, size in graph.copies().items()}
        read: dict[str, dict[int, int]] = {"caller": {}, "engine": {}, "packed": {}}
        for plan in plans:
            for address, size, origin in plan.constants():
                if address not in copies:
                    read[origin][address] = max(size, read[origin].get(address, 0))
        held = WeightsHeld(packed, sum(read["caller"].values()), sum(read["engine"].values()), sum(copies.values()))
        arena = max((plan.arena_bytes for plan in plans), default=0)
        decisions = [merge(decisions_of(plan) for plan in graph.plans()) for graph in alive]
        products = [product for plan in plans for product in plan.products()]
        with self._lock:
            return CompilationStats(
                graphs=self._graphs,
                partitions=self._partitions,
                plans=len(plans),
                plan_extents=tuple(f"{plan.name}: {describe(plan)}" for plan in plans if plan.extent is not None),
                plans_built=self._plans_built,
                nodes_supported=self._supported,
                nodes_unsupported=self._unsupported_nodes,
                unsupported=tuple(self._unsupported),
                eager_shapes=tuple(self._eager_shapes),
                guarded=tuple(self._guarded),
                repacks=self._repacks,
                compile_seconds=self._seconds,
                peak_arena_bytes=arena,
                weight_bytes=packed,
                peak_memory_bytes=arena + packed + held.engine + held.copied,
                weights_held=held,
                precision_decisions=tuple(decision for own in decisions for decision in own),
                products=len(products),
                tuned_products=sum(product["tuned_m"] > 0 for product in products),
            )

    def clear(self) -> None:
        """Drops every plan and packed weight and sets the counts to zero."""
        for graph in self.alive():
            graph.clear()
        with self._lock:
            self._reset()


RECORDER = Recorder()


def compilation_stats() -> CompilationStats:
    """What the compiler has done in this process since the start or the last clear_cache()."""
    return RECORDER.snapshot()


def clear_cache() -> None:
    """Drops every plan, every packed weight and the memory kept for results.

    Compiled models build them again at their next call.
    """
    start_ns = _engine.profile_now_ns()
    RECORDER.clear()
    _engine.forget_results()
    if _engine.profile_enabled():
        _engine.profile_event(number_of("thresherClearCache"), _engine.profile_site("plans"), start_ns)

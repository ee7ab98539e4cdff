"""A compiled part of a graph: picks or builds the plan for the shapes of a call and runs it."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import threading
import time
import weakref
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from thresher import _engine, threads, tuning
from thresher.compiler import tracing
from thresher.compiler.config import CompilerConfig
from thresher.compiler.errors import PassError, UnsupportedNode, UnsupportedOperatorError
from thresher.compiler.extents import NoExtent, Sizes, TooManySizes, fit_family, memory_bytes
from thresher.compiler.generations import Generation, Generations
from thresher.compiler.importer import EmptyTensor, Imported, Output, import_graph, stored
from thresher.compiler.openmp import borrow_threads, give_back
from thresher.compiler.placement import Placement
from thresher.compiler.stats import RECORDER, describe
from thresher.compiler.weights import Store
from thresher.fork_lock import ForkLock
from thresher.profiler import hooks
from thresher.profiler.events import number_of
from thresher.torch_shim import tensors as shim
from thresher.tuning import collect

if TYPE_CHECKING:
    from thresher.draw.dump import Dump

log = logging.getLogger("thresher.compiler")

# Makes a model's result of its graph's outputs and the leaves of a call's arguments.
Build = Callable[[Sequence[Any], list[Any]], Any]

_CALL = number_of("thresherCall")
_SUBGRAPH = number_of("thresherSubgraphExecution")
_LAUNCH = number_of("thresherLaunchSubgraph")
_MALLOC = number_of("thresherMalloc")
_FALLBACK = number_of("thresherFallback")
_OUTPUTS = _engine.profile_site("outputs", "alloc")
_PYTORCH = _engine.profile_site("PyTorch operators", "forward")

_serial = itertools.count()
_clock = array("q", [0])  # of all runs

# Sizes of which a graph keeps what it needs to run them without a look at the plan.
KEPT_SIZES = 4096
# What a run may take for sizes that are larger than any it met: a part of the machine's memory.
MEMORY_SHARE = 8
# At how many sizes of one capacity a plan for many is looked for in vain, before no more are tried.
ATTEMPTS = 4


class Entry:
    """What one combination of shapes runs: a plan, one for many sizes at some, or the aten graph in PyTorch."""

    __slots__ = (
        "__weakref__",
        "_arguments",
        "_at",
        "_graph",
        "_in_place",
        "_orders",
        "_outputs",
        "_placement",
        "_plain",
        "_results",
        "_turns",
        "plan",
        "used",
    )

    def __init__(
        self, imported: Imported | None, plan: _engine.Plan | _engine.PlanAtSizes | None, graph: CompiledGraph
    ) -> None:
        self.plan = plan
        self.used = array("q", [0])  # when it ran last, by the clock
        self.note_use()
        self._graph = graph
        if imported is not None:
            self._arguments = imported.arguments
            self._orders = imported.orders
            self._results = imported.outputs
            made: dict[int, torch.Tensor] = {}
            for output in imported.outputs:
                if output.engine >= 0:
                    made[output.engine] = torch.empty(output.shape, dtype=output.dtype, device="meta")
            self._outputs = shim.on_device(shim.places([made[i] for i in range(len(made))]), graph.placement.index)
            self._placement = graph.placement
            self._in_place = graph.placement.in_place
            # For calls without Python.
            self._at = plan.at(()) if isinstance(plan, _engine.Plan) else plan
            # Whether the plan's outputs are the graph's, some of them permuted.
            self._plain = all(found.engine == i for i, found in enumerate(self._results))
            self._turns = [(i, found.order) for i, found in enumerate(self._results) if found.order is not None]

    @property
    def whole_plan(self) -> _engine.Plan | None:
        """The plan, be it for one size or for many."""
        return self.plan.plan if isinstance(self.plan, _engine.PlanAtSizes) else self.plan

    def note_use(self) -> None:
        """Says that it is used now."""
        _clock[0] += 1
        self.used[0] = _clock[0]

    def without_python(
        self, slow: Prepared, watch: Any, threads: int, prepared: Preparation, calls: array[int]
    ) -> Prepared:
        """The same as `slow`, which is what it falls back to, without a line of Python; `slow` where that cannot be.

        Args:
          slow: a call that has been prepared.
          watch: a TensorWatch that has to be unchanged.
          threads: that PyTorch has to have.
          prepared: where the arguments come from.
          calls: where calls are counted, and the count at which `slow` is called.
        """
        if shim.PreparedCall is None or self.plan is None or self._in_place or not self._plain:
            return slow
        assert self._at is not None
        leaf_of, orders = dict(prepared.chosen), dict(self._orders)
        sources = (leaf_of.get(place, prepared.fixed[place]) for place in self._arguments)
        inputs = [(source, orders.get(i)) for i, source in enumerate(sources)]
        turned = [found.order for found in self._results]
        call: Prepared = shim.PreparedCall(
            slow,
            watch,
            weakref.ref(self),
            self._at.door(),
            threads,
            inputs,
            self._outputs,
            turned,
            prepared.result,
            prepared.build,
            (_clock, self.used, calls),
        ).call
        return call

    def run(self, args: Sequence[Any]) -> list[Any]:
        """Runs it with the graph's arguments."""
        if self.plan is None:
            return self._graph.run_eager(args)
        inputs = self._inputs(args)
        ready = shim.ready(inputs, self._outputs, self._in_place)
        if ready is None:
            inputs = self._as_in_memory(inputs)
            ready = *shim.empty(self._outputs), shim.places(inputs)
        outputs, places, given = ready
        return self._run(args, given, outputs, places)

    def run_profiled(self, args: Sequence[Any], start: int) -> list[Any]:
        """The same with events for a trace; the call began at `start`, nanoseconds of its clock."""
        if self.plan is None:
            begin = _engine.profile_now_ns()
            results = self._graph.run_eager(args)
            _engine.profile_event(_FALLBACK, _PYTORCH, begin)
            return results
        begin = _engine.profile_now_ns()
        outputs, places = shim.empty(self._outputs)
        _engine.profile_event(_MALLOC, _OUTPUTS, begin)
        _engine.profile_event(_LAUNCH, self._graph.site, start)
        inputs = self._as_in_memory(self._inputs(args))
        return self._run(args, shim.places(inputs), outputs, places)

    def _inputs(self, args: Sequence[Any]) -> list[torch.Tensor]:
        """What the plan reads of the graph's arguments."""
        inputs = list(map(args.__getitem__, self._arguments))
        for i, order in self._orders:
            inputs[i] = inputs[i].permute(order)
        return inputs

    def _as_in_memory(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """The same as memory holds it, which is all that the engine sees."""
        if any(map(torch.Tensor.is_neg, inputs)):  # memory holds the opposite of such a tensor's elements
            inputs = list(map(torch.Tensor.resolve_neg, inputs))
        return list(map(torch.Tensor.contiguous, inputs)) if self._in_place else inputs

    def _run(self, args: Sequence[Any], given: bytes, outputs: list[torch.Tensor], places: bytes) -> list[Any]:
        """Runs the plan on what lies at these places; the tensors are alive until it has been asked for."""
        assert self.plan is not None
        # The plan was built for these types; naming the memory itself takes a tenth of what DLPack does.
        if self._in_place:
            self.plan.run_at(given, places, stream=self._placement.stream())
        else:
            self.plan.run_at(given, places)
        if not self._plain:
            return [_result(output, outputs, args) for output in self._results]
        for i, order in self._turns:
            outputs[i] = outputs[i].permute(order)
        return outputs


# What a prepared call gives where it is not to be made.
MISSED = object()

# A function of the leaves of a call's arguments.
Prepared = Callable[[list[Any]], Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Preparation:
    """What calls of the same sizes and with the same parameters have in common.

    Attributes:
      held: tensors, parameters among them, which have to lie where they lie.
      fixed: the graph's arguments that are the same in every call, None for the others.
      chosen: places of the others, and the leaves of a call's arguments that belong there.
      build: makes the result of the graph's outputs and the leaves.
      result: the number of the output that `build` returns as it is; -1 where it does more.
    """

    held: Sequence[torch.Tensor]
    fixed: list[Any]
    chosen: Sequence[tuple[int, int]]
    build: Build
    result: int


def _make_room(entries: dict[object, Entry], entry: Entry, plans: int) -> None:
    """Drops the least recently used of those like `entry`, if there are too many."""
    many = isinstance(entry.plan, _engine.PlanAtSizes)
    limit = KEPT_SIZES if many else plans
    if len(entries) < limit:
        return
    alike = [key for key, old in entries.items() if isinstance(old.plan, _engine.PlanAtSizes) == many]
    if len(alike) < limit:
        return
    alike.sort(key=lambda key: entries[key].used[0])
    for key in alike[: len(alike) - limit + max(1, limit // 8 if many else 1)]:
        entries.pop(key)


def _result(output: Output, outputs: list[torch.Tensor], args: Sequence[Any]) -> Any:
    if output.engine >= 0:
        tensor = outputs[output.engine]
        return tensor if output.order is None else tensor.permute(output.order)
    if output.argument >= 0:
        return args[output.argument].detach().clone()
    return output.value


@dataclasses.dataclass(slots=True, eq=False)
class Family:
    """Plans for many sizes: calls with equal numbers, and the same sizes being 1."""

    ones: frozenset[int]  # positions of the sizes that are 1
    met: bool = False  # a call had these sizes
    program: _engine.GraphFamily | None = None
    imported: Imported | None = None  # at some sizes
    plans: list[tuple[_engine.Plan, tuple[int, ...]]] = dataclasses.field(
        default_factory=list
    )  # with sizes they ran at
    failures: Counter[tuple[int, ...]] = dataclasses.field(default_factory=Counter)  # by capacity
    closed: bool = False  # there will be no plan for many sizes

    def own(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """Those of the sizes that are not always 1."""
        return tuple(size for i, size in enumerate(sizes) if i not in self.ones)

    def plan(self, own: Sequence[int]) -> _engine.Plan | None:
        """The plan for these sizes."""
        return next((plan for plan, _ in self.plans if plan.admits(own)), None)

    def add(self, plan: _engine.Plan, own: tuple[int, ...]) -> None:
        """Takes a plan in, and drops those that it can stand for."""
        assert plan.extent is not None
        ends = list(plan.extent.values())

        def stands_for(old: _engine.Plan, sizes: tuple[int, ...]) -> bool:
            assert old.extent is not None
            within = all(a >= c and b <= d for (a, b), (c, d) in zip(old.extent.values(), ends, strict=True))
            return within and plan.admits(sizes)

        self.plans = [(old, sizes) for old, sizes in self.plans if not stands_for(old, sizes)] + [(plan, own)]


class Mixed:
    """Calls of a graph of which parts run in the engine and the rest in PyTorch: records both, and the whole."""

    def __init__(self) -> None:
        self._site = _engine.profile_site(f"model_{next(_serial)}")
        self._since = threading.local()

    def call(self, forward: Callable[..., Sequence[Any]], args: Sequence[Any]) -> Sequence[Any]:
        """Runs the whole; its parts in the engine call the two methods below."""
        if not _engine.profile_enabled():
            return forward(*args)
        start = _engine.profile_now_ns()
        self.enter_pytorch()
        try:
            return forward(*args)
        finally:
            self.leave_pytorch()
            _engine.profile_event(_CALL, self._site, start)

    def enter_pytorch(self) -> None:
        """From here on the calling thread runs operators of PyTorch."""
        self._since.ns = _engine.profile_now_ns()

    def leave_pytorch(self) -> None:
        """Until here it did."""
        since = getattr(self._since, "ns", None)
        if since is not None:
            _engine.profile_event(_FALLBACK, _PYTORCH, since)
            self._since.ns = None


class CompiledGraph:
    """Runs one aten graph in the engine. Call it with the graph's arguments; it may be called from many threads.

    Args:
      module: aten graph in which every operator is supported.
      static: positions of arguments that are parameters or buffers.
      config: settings.
      placement: where its tensors lie and what runs it.
    """

    def __init__(
        self,
        module: fx.GraphModule,
        static: frozenset[int],
        config: CompilerConfig,
        placement: Placement = Placement(),  # noqa: B008 (frozen)
    ) -> None:
        self.config = config
        self.placement = placement
        self.name = f"graph_{next(_serial)}"
        self.site = _engine.profile_site(self.name)
        self.mixed: Mixed | None = None  # the call it is a part of
        self._module = module
        self._placeholders = placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
        vals = [node.meta.get("val") for node in placeholders]
        self._static = tuple(
            i
            for i in sorted(static)
            if config.freeze_parameters and isinstance(vals[i], torch.Tensor) and placeholders[i].users
        )
        # What tells the shapes of two calls apart: numbers, and tensors with symbolic sizes.
        self._numbers = tuple(i for i, val in enumerate(vals) if not isinstance(val, torch.Tensor))
        self._symbolic = tuple(
            i
            for i, val in enumerate(vals)
            if isinstance(val, torch.Tensor) and any(not isinstance(size, int) for size in val.shape)
        )
        self._tensors = tuple(i for i, val in enumerate(vals) if isinstance(val, torch.Tensor))
        self._sizes: Sizes | None = None  # found when a second combination of shapes is met
        self._ties = 0  # of sizes, that were tried
        self._plain_numbers = tuple(i for i in self._numbers if not isinstance(vals[i], torch.SymInt))
        fixed = not self._symbolic and len(self._plain_numbers) == len(self._numbers)
        self._one_plan_a_shape = fixed or config.plan_sizes == "one"
        self._lock = ForkLock()
        self._generations = Generations(self._static, lambda i, tensor: stored(placeholders[i], tensor))
        RECORDER.register(self)

    def __call__(self, args: Sequence[Any], entry: Entry | None = None) -> list[Any]:
        """Runs the graph.

        Args:
          args: tensors and numbers, one for each placeholder of the graph.
          entry: what these run, where that is known; by default it is looked for.

        Returns:
          The graph's outputs.

        Raises:
          IndexError: an index in the data is out of range.
          UnsupportedOperatorError: the engine refuses these shapes and the configuration forbids PyTorch.
        """
        if self.mixed is None or _engine.num_threads() == 1 or self.placement.engine is not None:
            return self._run(args, entry)
        if not borrow_threads():
            return self._run(args, entry)
        try:
            return self._run(args, entry)
        finally:
            give_back()

    def prepare(self, args: Sequence[Any], preparation: Preparation) -> Prepared | None:
        """What makes calls of these sizes and with these very parameters faster than a call that looks for them.

        Args:
          args: of a call that has just been made.
          preparation: what the calls to come have in common with it.

        Returns:
          A function of the leaves, which gives MISSED where one of the tensors has changed, or what it ran was dropped;
          None where that is so already.
        """
        generation = self.generation
        if generation is None:
            return None
        frozen = [args[i] for i in generation.frozen]
        entry: Entry | None = generation.entries.get(self._key(args))
        if entry is None or not generation.snapshot.unchanged(frozen):
            return None
        known = set(map(id, frozen))
        fixed, chosen, build = preparation.fixed, preparation.chosen, preparation.build
        watch = generation.snapshot.watch(frozen, [one for one in preparation.held if id(one) not in known])
        unchanged = watch.unchanged
        entry_of = weakref.ref(entry)  # plans may be dropped while the function stays
        threads = torch.get_num_threads()
        calls, partial, lasting = generation.calls, not generation.whole, self._generations.lasting

        # One function, and no more: where kernels fill the caches, each one costs microseconds.
        def call(leaves: list[Any]) -> Any:
            if (entry := entry_of()) is None or torch.get_num_threads() != threads or not unchanged():
                return MISSED
            args = fixed.copy()
            for place, leaf in chosen:
                args[place] = leaves[leaf]
            if partial and lasting(args, calls):
                return MISSED
            calls[0] += 1
            entry.note_use()
            alone = self.mixed is None and not _engine.profile_enabled()
            return build(entry.run(args) if alone else self(args, entry), leaves)

        if self.mixed is not None:
            return call
        return entry.without_python(call, watch, threads, preparation, calls)

    def _run(self, args: Sequence[Any], entry: Entry | None) -> list[Any]:
        if not _engine.profile_enabled():
            return (entry or self._entry(args)).run(args)
        if self.mixed is None:
            return self._run_profiled(args)
        self.mixed.leave_pytorch()
        try:
            return self._run_profiled(args)
        finally:
            self.mixed.enter_pytorch()

    def _run_profiled(self, args: Sequence[Any]) -> list[Any]:
        around = hooks.call_range()
        with contextlib.nullcontext() if around is None else around(self.name, args):
            start = _engine.profile_now_ns()
            outputs = self._entry(args).run_profiled(args, start)
            _engine.profile_event(_CALL if self.mixed is None else _SUBGRAPH, self.site, start)
            return outputs

    def run_eager(self, args: Sequence[Any]) -> list[Any]:
        """Runs the aten graph in PyTorch."""
        return list(self._module(*args))

    @property
    def generation(self) -> Generation | None:
        """What the last call ran, if its parameters are alive."""
        return self._generations.current

    def plans(self) -> list[_engine.Plan]:
        """The plans alive."""
        found: dict[int, _engine.Plan] = {}
        for generation in self._generations.all():
            found |= {id(plan): plan for family in list(generation.families.values()) for plan, _ in family.plans}
            whole = [entry.whole_plan for entry in list(generation.entries.values())]
            found |= {id(plan): plan for plan in whole if plan is not None}
        return list(found.values())

    def weight_stores(self) -> list[Store]:
        """The packed weights in use."""
        return [generation.store for generation in self._generations.all()]

    def copies(self) -> dict[int, int]:
        """Addresses and sizes of row-major copies of parameters."""
        found: dict[int, int] = {}
        for generation in self._generations.all():
            owners = dict(zip(generation.frozen, generation.snapshot.pointers, strict=True))
            copied = (t for i, t in generation.constants.items() if t.data_ptr() != owners[i])
            found |= {tensor.data_ptr(): tensor.nbytes for tensor in copied}
        return found

    def clear(self) -> None:
        """Drops all plans and packed weights."""
        with self._lock:
            self._generations.clear()

    # ---- picking a plan ----

    def _entry(self, args: Sequence[Any]) -> Entry:
        generation = self._generations.find(args)
        lasting = generation is not None and not generation.whole and self._generations.lasting(args, generation.calls)
        if generation is None or lasting:
            generation = self._renew(args, lasting)
        generation.calls[0] += 1
        key = self._key(args)
        entry: Entry | None = generation.entries.get(key)
        if entry is None:
            entry = self._build(generation, key, args)
        entry.note_use()
        return entry

    def _key(self, args: Sequence[Any]) -> object:
        return (
            torch.get_num_threads(),  # a program may change it at any time, and plans are for a number of threads
            tuple(args[i] for i in self._numbers),
            tuple(args[i].shape for i in self._symbolic),
        )

    def _renew(self, args: Sequence[Any], lasting: bool) -> Generation:
        """Starts a generation of plans for parameters that are new, have changed, or have long been the same."""
        with self._lock:
            found = self._generations.find(args)  # by another thread, meanwhile
            if found is not None and (found.whole or not lasting):
                return found
            if self.placement.in_place:  # the engine reads them on a stream of its own
                torch.cuda.synchronize(self.placement.tensors)
            made, useless = self._generations.make(args, lasting=lasting)
            if useless:
                RECORDER.repack(useless)
                log.info("%s: parameters changed, packing them again", self.name)
            return made

    def _build(self, generation: Generation, key: object, args: Sequence[Any]) -> Entry:
        with self._lock:
            entry: Entry | None = generation.entries.get(key)
            if entry is not None:
                return entry
            if self.config.use_tuning:
                tuning.apply(threads.reserve(self.config.threads))
            entry = self._for_many(generation, args)
            if entry is None:
                start = time.perf_counter()
                entry = self._compile(generation, args)
                RECORDER.plan(time.perf_counter() - start)
            _make_room(generation.entries, entry, self.config.plan_cache_size)
            generation.entries[key] = entry
            return entry

    def _for_many(self, generation: Generation, args: Sequence[Any]) -> Entry | None:
        """The plan for many sizes at those of the call; None where it is to have a plan of its own."""
        sizes = self._find_sizes(args)
        if sizes is None:
            return None
        family = self._family(generation, args, sizes)
        if family.closed:
            return None
        own = family.own(sizes)
        plan = family.plan(own)
        if plan is None:
            if not family.met:  # the first call waits for no more than it needs
                family.met = True
                return None
            plan = self._extend(generation, family, args, sizes)
        if plan is None:
            return None
        at = plan.at(own)
        shapes = at.outputs
        assert family.imported is not None
        outputs = tuple(
            output if output.engine < 0 else dataclasses.replace(output, shape=shapes[output.engine][1])
            for output in family.imported.outputs
        )
        return Entry(dataclasses.replace(family.imported, outputs=outputs), at, self)

    def _find_sizes(self, args: Sequence[Any]) -> tuple[int, ...] | None:
        """The sizes of the call, where plans for many sizes may serve this graph."""
        if self._one_plan_a_shape or collect.active():
            return None
        sizes = None if self._sizes is None else self._sizes.of(args)
        if sizes is None:
            try:
                if self.config.user_passes():
                    raise NoExtent("passes of your own see sizes as plain numbers")
                self._sizes = self._tie(args)
            except NoExtent as reason:
                self._one_plan_a_shape = True
                log.info("%s: one plan for each combination of shapes: %s", self.name, reason)
                return None
            sizes = self._sizes.of(args)
            assert sizes is not None
        return None if min(sizes) == 0 or max(sizes) == 1 else sizes

    def _tie(self, args: Sequence[Any]) -> Sizes:
        """The sizes to begin with; with fewer ties, where a call has shown that they are no sizes of it."""
        if self._sizes is not None:
            return Sizes(self._module, args, self._sizes)
        try:
            return Sizes(self._module)
        except TooManySizes:
            return Sizes(self._module, args)

    def _family(self, generation: Generation, args: Sequence[Any], sizes: Sequence[int]) -> Family:
        ones = frozenset(i for i, size in enumerate(sizes) if size == 1)
        # Other sizes may have been told apart meanwhile.
        key = (torch.get_num_threads(), self._sizes, ones, *(args[i] for i in self._plain_numbers))
        families: dict[object, Family] = generation.families
        if key not in families:
            while len(families) >= self.config.plan_cache_size:
                families.pop(next(iter(families)))
            families[key] = Family(ones)
        return families[key]

    def _extend(
        self, generation: Generation, family: Family, args: Sequence[Any], sizes: tuple[int, ...]
    ) -> _engine.Plan | None:
        """A plan for many sizes, those of the call among them; it takes the place of plans for fewer."""
        assert self._sizes is not None
        start = time.perf_counter()
        own = family.own(sizes)
        ends = [own, *([end for _, end in plan.extent.values()] for plan, _ in family.plans if plan.extent)]
        wanted = [max(end) for end in zip(*ends, strict=True)]
        roomy = self._sizes.capacity(wanted, family.ones)
        if family.failures[roomy] >= ATTEMPTS:
            return None
        try:
            if family.program is None:
                known = [generation.constants.get(i, arg) for i, arg in enumerate(args)]
                frozen = frozenset(generation.frozen)
                with tracing.importing(self.site):
                    family.program, family.imported = fit_family(
                        self._module,
                        self._sizes,
                        family.ones,
                        known,
                        frozen,
                        placement=self.placement,
                        store=generation.store if self.placement.in_place else None,
                    )
            plan = self._build_extent(generation, family.program, own, roomy)
            if plan.arena_bytes > memory_bytes() // MEMORY_SHARE:
                capacity = self._sizes.capacity(wanted, family.ones, roomy=False)
                plan = self._build_extent(generation, family.program, own, capacity)
        except (NoExtent, NotImplementedError, ValueError, RuntimeError, MemoryError) as error:
            family.failures[roomy] += 1
            family.closed = family.program is None
            log.info("%s: a plan for the sizes %s alone: %s", self.name, list(sizes), error)
            if family.closed and self._sizes.can_be_tied(args) and self._ties < ATTEMPTS:
                self._ties += 1  # perhaps what is equal here is equal in all calls
                self._sizes = Sizes(self._module, args)
            return None
        seconds = time.perf_counter() - start
        RECORDER.plan(seconds)
        what = "a larger plan for many sizes" if family.plans else "one plan for many sizes"
        log.info("%s: %s in %.2f s, %s", self.name, what, seconds, describe(plan))
        family.add(plan, own)
        # What it stands for is asked for again at the next call.
        for key, entry in list(generation.entries.items()):
            old = entry.whole_plan
            if old is not None and not any(old is kept for kept, _ in family.plans):
                generation.entries.pop(key)
        return plan

    def _build_extent(
        self, generation: Generation, program: _engine.GraphFamily, own: tuple[int, ...], capacity: tuple[int, ...]
    ) -> _engine.Plan:
        dump = self._dump(sum(len(family.plans) for family in generation.families.values()), "many_sizes")
        try:
            return _engine.Plan.build_extent(
                program,
                generation.store.engine,
                own,
                capacity,
                passes=self.config.pass_names(),
                dump=dump,
                **self._build_options(),
            )
        finally:
            if dump is not None:
                dump.close()

    def _build_options(self) -> dict[str, Any]:
        """What plans of every kind are built with."""
        return {
            "level": self.config.optimization_level,
            "share_memory": self.config.memory_planning,
            "num_threads": threads.reserve(self.config.threads),
            "use_tuning": self.config.use_tuning,
            "name": self.name,
            "device": self.placement.engine,
            "graphs": self.config.cuda_graphs,
            **self.config.precision_arguments(),
        }

    def _compile(self, generation: Generation, args: Sequence[Any]) -> Entry:
        try:
            known = [generation.constants.get(i, arg) for i, arg in enumerate(args)]
            with tracing.importing(self.site):
                imported = import_graph(
                    self._module,
                    known,
                    frozenset(generation.frozen),
                    placement=self.placement,
                    store=generation.store if self.placement.in_place else None,
                )
            dump = self._dump(len(generation.entries), "plan")
            try:
                plan = _engine.Plan.build(
                    imported.builder.graph,
                    generation.store.engine,
                    passes=self.config.engine_passes(),
                    dump=dump,
                    **self._build_options(),
                )
            finally:
                if dump is not None:
                    dump.close()
            collect.note(plan)
            return Entry(imported, plan, self)
        except (EmptyTensor, UnsupportedNode, NotImplementedError, ValueError) as error:
            if any(str(error).startswith(f"pass {own.name}: ") for own in self.config.user_passes()):
                raise PassError(str(error)) from error
            shapes = ", ".join(str(list(args[i].shape)) for i in self._tensors if i not in generation.frozen)
            reason = f"inputs {shapes}: {error}"
            if any(args[i].numel() == 0 for i in self._tensors):  # there is nothing to compute
                RECORDER.eager_shape(reason)
                log.info("%s runs in PyTorch at these shapes: %s", self.name, reason)
                return Entry(None, None, self)
            if self.config.fallback == "error":
                raise UnsupportedOperatorError(
                    f"the engine cannot run this graph at these shapes: {reason}; "
                    'use fallback="split" to run them in PyTorch'
                ) from error
            RECORDER.eager_shape(reason)
            log.warning("%s runs in PyTorch at these shapes: %s", self.name, reason)
            return Entry(None, None, self)

    def _dump(self, number: int, what: str) -> Dump | None:
        if self.config.dump_dir is None:
            return None
        from thresher.draw.dump import Dump

        sections = {str(row["name"]): str(row["section"]) for row in _engine.ops()}
        return Dump(self.config.dump_dir, f"{self.name}_{what}_{number}", sections)


def _plan_anew() -> None:
    """Drops the plans that are for another number of threads than models now have unless they were given their own."""
    for graph in RECORDER.alive():
        if isinstance(graph, CompiledGraph) and graph.config.threads is None:
            graph.clear()


threads.follow(_plan_anew)

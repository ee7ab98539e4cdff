"""The way of a call into a model of thresher.compile: straight to the graph, where the model allows it."""

from __future__ import annotations

import builtins
import contextlib
import functools
import inspect
import itertools
import logging
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch._dynamo.eval_frame import remove_from_cache
from torch._dynamo.exc import TorchDynamoException
from torch._dynamo.mutation_guard import install_generation_tagging_init
from torch._dynamo.side_effects import SideEffects
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._dynamo.variables.base import AttributeMutationNew, ValueMutationNew
from torch._dynamo.variables.user_defined import UserDefinedObjectVariable
from torch.fx.experimental import _config as fx_config
from torch.utils import _pytree as pytree

from thresher.compiler.backend import MODEL_CHECKED, OBSERVER, Boxed, thresher_backend
from thresher.compiler.config import CompilerConfig
from thresher.compiler.route import NotDirectError, Route, Run
from thresher.compiler.runtime import MISSED
from thresher.compiler.stats import RECORDER
from thresher.compiler.watch import TooManyItemsError, Watch
from thresher.fork_lock import ForkLock
from thresher.torch_shim import tensors as shim

log = logging.getLogger("thresher.compiler")

# Routes kept for one state of a model; one more drops them all, and they are found again at a call each.
MOST_ROUTES = 4096

# Graphs of one model, for modes, dtypes, structures of arguments and sizes of 1, beyond which TorchDynamo gives up.
MOST_CAPTURES = 64

# The argument of torch.compile that sets the limit of one function; before PyTorch 2.13 there is that of the process.
_RECOMPILE_LIMIT: dict[str, Any] = (
    {"recompile_limit": MOST_CAPTURES} if "recompile_limit" in inspect.signature(torch.compile).parameters else {}
)

# A model whose objects change this often, each time within as many calls, is left to TorchDynamo's guards.
MOST_CHANGES = 16

_TENSORS = (torch.Tensor, torch.nn.Parameter)
_VALUES = (type(None), bool, str, torch.dtype, torch.device, torch.memory_format)
_NUMBERS = (int, float)
_transform = torch._C._functorch.peek_interpreter_stack

Call = Callable[..., Any]


class _State:
    """The routes that hold while a model's objects stay as they are."""

    __slots__ = ("calls", "last", "routes", "unchanged", "watch")

    def __init__(self) -> None:
        self.watch: Watch | None = None
        self.unchanged: Callable[[], bool] = bool  # of the watch
        self.routes: dict[object, Route | Call] = {}
        self.last: Route | None = None
        self.calls = 0


class Door:
    """Calls a model in the engine.

    The first call with some arguments runs under a lock in a function that TorchDynamo captured whole. It tells which
    graph belongs to these arguments, where each of the graph's inputs comes from and what is made of its results. Later
    calls with arguments of the same types, shapes and values go to the graph itself, as long as the model's objects
    are unchanged (watch.py). A model that cannot be captured whole is called as torch.compile calls it.

    Args:
      model: the model.
      config: settings.
      dynamic: None for fixed sizes in the first capture and symbolic ones in all others, True for symbolic ones, False
        for fixed ones.
      road: the model as torch.compile calls it.
    """

    def __init__(self, model: torch.nn.Module, config: CompilerConfig, dynamic: bool | None, road: Call) -> None:
        self._model = model
        self._config = config
        self._dynamic = dynamic
        self._road = road
        self._lock = ForkLock()
        self._local = _Local()
        self._state = _State()
        self._changes = 0
        self._fixed: Call | None = None
        self._symbolic: Call | None = None
        self._first: dict[object, object] = {}  # by kind of arguments: the sizes that its capture has
        self._failed: set[object] = set()  # kinds of arguments that a call was not captured whole with, yet
        self._refused: dict[object, str] = {}  # by kind of arguments: why they take torch.compile's road

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the model."""
        # is_compiling() tells of other threads, too; the other is of vmap and the like.
        if torch.compiler.is_dynamo_compiling() or _transform() is not None:
            return self._road(*args, **kwargs)
        leaves = [*args, *kwargs.values()]
        form = shim.forms(leaves)
        key: object
        if form is not None:
            key = (form, len(args), *kwargs)
        elif _in_a_mode():
            return self._road(*args, **kwargs)
        else:
            described = _describe(args, kwargs)
            if described is None:
                self._guarded("arguments that are neither tensors nor plain values")
                return self._road(*args, **kwargs)
            key, leaves = described
        state = self._state
        route = state.routes.get(key)
        if isinstance(route, Route):
            if state.unchanged():
                if (prepared := route.prepared) is not None:
                    if (result := prepared(leaves)) is not MISSED:
                        state.calls += 1
                        return result
                    route.prepared = None
                if route.fits():
                    state.calls += 1
                    return route.run(leaves)
        elif route is not None:
            return route(*args, **kwargs)
        return self._find(key, leaves, args, kwargs)

    def recapture(self) -> None:
        """Forgets every capture: the next call looks at the model anew."""
        with self._lock:
            self._fixed = self._symbolic = None
            self._first.clear()
            self._failed.clear()
            self._refused.clear()
            self._changes = 0
            self._state = _State()

    # ---- the first call with some arguments ----

    def _find(self, key: object, leaves: list[Any], args: Any, kwargs: Any) -> Any:
        if self._local.runs is not None:  # the model calls itself
            return self._road(*args, **kwargs)
        with self._lock:
            state = self._renewed()
            route = state.routes.get(key)
            if route is None or (isinstance(route, Route) and not route.fits()):
                if len(state.routes) >= MOST_ROUTES:
                    state.routes.clear()
                return self._capture(state, key, leaves, args, kwargs)
        return route.run(leaves) if isinstance(route, Route) else route(*args, **kwargs)

    def _renewed(self) -> _State:
        """The state, or a new one where the model's objects have changed."""
        state = self._state
        if state.watch is not None and not state.watch.unchanged():
            self._changes = self._changes + 1 if state.calls < MOST_CHANGES else 0
            if not state.watch.same_code():
                self._fixed = self._symbolic = None
            state = self._state = _State()
            log.info("%s: its attributes, parameters or classes have changed", type(self._model).__name__)
        return state

    def _capture(self, state: _State, key: object, leaves: list[Any], args: Any, kwargs: Any) -> Any:
        """Calls the model as TorchDynamo does and remembers the way that the call took."""
        described = _describe(args, kwargs)
        assert described is not None
        kind, sizes = described[0]
        reason = self._refused.get(kind) or self._obstacle(leaves)
        if reason:
            self._local.runs = []
            try:
                result = self._road(*args, **kwargs)
            finally:
                self._local.runs = None
            state.routes[key] = self._road
            self._guarded(reason)
            return result
        if state.watch is None and self._changes < MOST_CHANGES:
            install_generation_tagging_init()  # TorchDynamo would change nn.Module so, once, in the call below
            try:
                state.watch = Watch(self._model)
                state.unchanged = state.watch.unchanged
            except TooManyItemsError as error:
                self._changes = MOST_CHANGES
                self._guarded(str(error))
        whole = self._whole(kind, sizes)
        runs = self._local.runs = []
        try:
            with _capture_settings():
                result = whole(self._model, *args, **kwargs)
        except (TorchDynamoException, RuntimeError) as error:
            if not _is_captures(error):
                raise
            self._local.runs = None
            result = self._road(*args, **kwargs)  # what the model itself gets wrong is raised here
            if kind not in self._failed:  # what the first call made, which TorchDynamo did not follow, is there now
                self._failed.add(kind)
                return result
            self._refused[kind] = f"TorchDynamo cannot capture it whole: {_first_line(error)}"
            self._guarded(self._refused[kind])
            state.routes[key] = self._road
            return result
        finally:
            self._local.runs = None
        try:
            if state.watch is None:
                raise NotDirectError("its objects change between calls")
            if not state.watch.unchanged():
                self._changes += 1
                self._state = _State()
                if self._changes < MOST_CHANGES:
                    return result  # what is made once, in the first call, is no obstacle in the second
                raise NotDirectError("it changes its own attributes when it is called")
            state.last = state.routes[key] = Route.of(runs, leaves, result, state.watch, state.last)
        except NotDirectError as error:
            self._guarded(str(error))
            state.routes[key] = functools.partial(self._call_guarded, whole)
        return result

    def _call_guarded(self, whole: Call, *args: Any, **kwargs: Any) -> Any:
        try:
            with _capture_settings():
                return whole(self._model, *args, **kwargs)
        except TorchDynamoException:
            return self._road(*args, **kwargs)

    def _obstacle(self, leaves: list[Any]) -> str | None:
        """Why a call with these arguments needs TorchDynamo's guards."""
        if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
            return "autocast"
        if not torch.is_grad_enabled():
            return None
        tensors = (leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
        if any(t.requires_grad for t in tensors) or any(p.requires_grad for p in self._model.parameters()):
            return "gradients are needed; call it inside torch.no_grad() or torch.inference_mode()"
        return None

    def _whole(self, kind: object, sizes: object) -> Call:
        """The function that captures the model for these arguments."""
        fixed = self._dynamic is False or (self._dynamic is None and self._first.setdefault(kind, sizes) == sizes)
        found = self._fixed if fixed else self._symbolic
        if found is None:
            found = self._compile(dynamic=not fixed)
            if fixed:
                self._fixed = found
            else:
                self._symbolic = found
        return found

    def _compile(self, *, dynamic: bool) -> Call:
        # TorchDynamo keeps what it captured with the code, so code of our own shares nothing with other models.
        # So do global variables of our own: it puts what it compiled among those of the function.
        code = _call.__code__.replace(co_name=_call.__name__)
        function = types.FunctionType(code, {"__name__": __name__, "__builtins__": builtins})
        observer = functools.partial(_observe, self._local)
        options: dict[str, Any] = {"config": self._config, MODEL_CHECKED: True, OBSERVER: observer}
        compiled: Call = torch.compile(
            function, backend=thresher_backend, fullgraph=True, dynamic=dynamic, options=options, **_RECOMPILE_LIMIT
        )
        # What is kept with the code leads back to the code, and the garbage collector does not look through code.
        weakref.finalize(compiled, remove_from_cache, function).atexit = False
        if _RECOMPILE_LIMIT:
            return compiled

        def limited(*args: Any, **kwargs: Any) -> Any:
            with torch._dynamo.config.patch(recompile_limit=MOST_CAPTURES):
                return compiled(*args, **kwargs)

        return limited

    def _guarded(self, reason: str) -> None:
        name = type(self._model).__name__
        if RECORDER.guarded(f"{name}: {reason}"):
            log.info("calls of %s go through TorchDynamo's guards: %s", name, reason)


class _Local(threading.local):
    """What the calling thread sees of the graphs that run while it captures a model."""

    runs: list[Run] | None = None


def _observe(local: _Local, gm: fx.GraphModule, boxed: Boxed, plain: bool) -> Call:
    """The compiled graph as TorchDynamo is to call it, so that its calls are seen.

    TorchDynamo keeps this function as long as the process lives: it must not hold the door, nor so the model.
    """
    sources = []
    for node in gm.graph.find_nodes(op="placeholder"):
        source = getattr(node.meta.get("grapharg"), "source", None)
        sources.append("" if source is None else source.name)
    obstacle = None if plain else "it changes tensors in place, or its graph needs AOTAutograd for another reason"
    if _has_side_effects():
        obstacle = "it changes objects of the program when it is called"

    def run(*args: Any) -> Sequence[Any]:
        if local.runs is None:
            return boxed(list(args))
        outputs = boxed(list(args))
        local.runs.append(Run(boxed, tuple(sources), obstacle, args, tuple(outputs)))
        return outputs

    return run


def _call(self: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
    return self(*args, **kwargs)


@contextlib.contextmanager
def _capture_settings() -> Iterator[None]:
    """The numbers of a model are constants even where sizes are symbols, and sizes that are equal by chance are two."""
    with torch._dynamo.config.patch(specialize_float=True), fx_config.patch(use_duck_shape=False):  # type: ignore[attr-defined]
        yield


def _has_side_effects() -> bool:
    """Whether the program that TorchDynamo captures here leaves objects which existed before other than they were."""
    effects = InstructionTranslator.current_tx().output.side_effects
    if effects.tensor_hooks or effects.save_for_backward:
        return True
    made = AttributeMutationNew, ValueMutationNew
    changed = [var for var in effects._get_modified_vars() if not isinstance(var.mutation_type, made)]
    return not all(map(_is_restored, changed, itertools.repeat(effects)))


def _is_restored(var: Any, effects: SideEffects) -> bool:
    """Whether all that was changed of an object are attributes that have their old values in the end."""
    attributes = effects.store_attr_mutations.get(var)
    if not isinstance(var, UserDefinedObjectVariable) or not attributes:
        return False
    base_modified = getattr(var, "is_base_vt_modified", None)
    # Before PyTorch 2.13: objects that are neither list nor dict have nothing but attributes.
    if type(var) is not UserDefinedObjectVariable if base_modified is None else base_modified(effects):
        return False
    return all(
        new.is_python_constant() and getattr(var.value, name, effects) is new.as_python_constant()
        for name, new in attributes.items()
    )


def _in_a_mode() -> bool:
    """Whether a mode stands between the program and PyTorch's operators, or it is traced."""
    return (
        torch._C._len_torch_dispatch_stack() > 0 or torch._C._len_torch_function_stack() > 0 or torch._C._is_tracing()
    )


def _describe(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[object, object], list[Any]] | None:
    """What tells the captures for two calls apart, with what else tells their routes apart; and the arguments' leaves.

    None where an argument is something whose content cannot be told.
    """
    leaves = [*args, *kwargs.values()]
    structure: object = (len(args), *kwargs)
    kinds: list[object] = []
    sizes: list[object] = []
    if not _add(leaves, kinds, sizes):
        leaves, spec = pytree.tree_flatten((args, kwargs))
        structure, kinds, sizes = (spec, *kwargs), [], []
        if not _add(leaves, kinds, sizes):
            return None
    return ((structure, _mode(), tuple(kinds)), tuple(sizes)), leaves


def _mode() -> tuple[object, ...]:
    """The settings of PyTorch that a capture depends on."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.is_autocast_enabled("cuda"),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
    )


def _add(leaves: list[Any], kinds: list[object], sizes: list[object]) -> bool:
    tensors = []
    for leaf in leaves:
        kind = type(leaf)
        if kind in _TENSORS:
            if leaf.layout is not torch.strided or leaf.is_nested:
                return False
            kinds.append((kind, leaf.dtype, leaf.device, leaf.requires_grad, leaf.is_neg(), leaf.is_conj()))
            sizes.append((leaf.shape, leaf.stride()))
            tensors.append(id(leaf))
        elif kind in _VALUES:
            kinds.append((kind, leaf))
        elif kind in _NUMBERS:
            kinds.append(kind)
            sizes.append(leaf)
        else:
            return False
    if len(set(tensors)) != len(tensors):  # TorchDynamo makes one input of a tensor that is given twice
        kinds.append(tuple(tensors.index(tensor) for tensor in tensors))
    return True


def _is_captures(error: Exception) -> bool:
    """Whether TorchDynamo raised it, rather than the model."""
    return isinstance(error, TorchDynamoException) or "fullgraph=True" in str(error)


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)

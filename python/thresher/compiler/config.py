"""What a user can choose about a compilation."""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

from thresher import threads
from thresher.compiler.errors import ConfigError, PassError, UnavailableError
from thresher.compiler.precision import CPU_PRECISIONS, MODEL_PRECISION, PRECISIONS, Precision, available
from thresher.machine import Backend, backends
from thresher.passes import INPUT, Graph, Pass

EnginePass: TypeAlias = "str | tuple[str, Callable[[Graph], Graph]]"

LEVELS = ("O0", "O1", "O2", "O3")
FALLBACKS = ("split", "error")
PLAN_SIZES = ("many", "one")
# Modes of torch.compile: those that are what plans are anyway, and those that ask for measurements.
MODES = ("default", "reduce-overhead")
TUNING_MODES = ("max-autotune", "max-autotune-no-cudagraphs")

# The pass that gives layers another precision than the model has.
PRECISION_PASS = "precision_assignment"

# Which passes a switch turns off, by the engine's names.
PASS_SWITCHES: dict[str, tuple[str, ...]] = {
    "fusion": (
        "linear_recognition",
        "epilogue_fusion",
        "attention_recognition",
        "norm_recognition",
        "rotary_recognition",
        "norm_fusion",
        "product_motion",
        "projection_merge",
        "pointwise_fusion",
    ),
    "constant_folding": ("constant_folding",),
    "layout": ("layout_motion",),
    "dead_code": ("dead_code",),
}


@dataclasses.dataclass(frozen=True)
class CompilerConfig:
    """Settings of one compilation. Checked when made; changes nothing outside itself.

    Attributes:
      target: what runs the model: "cpu", "cuda" (an NVIDIA GPU; tensors of the host are copied to the first one and
        back), or None for the device where its tensors are.
      optimization_level: "O0" (no passes) to "O3" (all of them).
      fusion: join linear, bias, activation and residual, projections of one tensor, products of products, norms,
        element-wise operators; recognise attention and rotary positions.
      constant_folding: compute once what depends on constants only.
      layout: move reshapes and permutes so that they meet and cancel.
      dead_code: drop what no output needs.
      memory_planning: let tensors that are not needed at the same time share memory.
      extra_passes: further passes, in order: names of engine passes, ``thresher.Pass`` objects, or functions from
        graph to graph. They go behind those of the level unless a Pass says otherwise. See ``thresher.passes``.
      freeze_parameters: keep packed copies of parameters and buffers. They are checked at every call and packed again
        when they changed. False passes them to the engine like any other input.
      fallback: "split" runs what the engine lacks in PyTorch, after listing all of it; "error" raises
        UnsupportedOperatorError with the same list.
      precision: how weights are stored and multiplied: "model" (as the model stores them), "fp32", "bf16", "fp16",
        "int8" (weights and inputs), "int8_weight" or "int4_weight" (weights only). ``thresher.compile`` says what each
        costs.
      precision_exclude: paths of modules that stay as the model has them, with all below them, as patterns:
        "encoder.layer.0".
      max_weight_error: a layer stays as the model has it where rounding would change its weights by more than this,
        relative to their norm; None for 0.04, and 0.12 with "int4_weight"; 0 for no limit.
      threads: how many threads share one operator's work, 1 to 1024; None for ``thresher.get_num_threads()``.
      use_tuning: choose the blocking of matrix products by what ``thresher tune`` measured on this machine.
      plan_sizes: "many" lets one plan serve many sizes of the inputs, wherever the graph allows for it; "one" makes a
        plan for each combination of input shapes.
      plan_cache_size: how many plans for one combination of input shapes a graph keeps; the least recently used one
        goes first.
      cuda_graphs: on an NVIDIA GPU, launch what a plan does as one CUDA graph from the second call with some sizes on,
        where that is faster.
      dump_dir: a folder that receives the text and a drawing of every graph after every pass, or None.

    Raises:
      ConfigError: a value is not usable; the message says what was wanted, what was found and what to do.
      UnavailableError: a precision that this build lacks.
    """

    target: Literal["cpu", "cuda"] | None = None
    optimization_level: Literal["O0", "O1", "O2", "O3"] = "O2"
    fusion: bool = True
    constant_folding: bool = True
    layout: bool = True
    dead_code: bool = True
    memory_planning: bool = True
    extra_passes: tuple[str | Pass | Callable[[Graph], Graph], ...] = ()
    freeze_parameters: bool = True
    fallback: Literal["split", "error"] = "split"
    precision: Precision = MODEL_PRECISION
    precision_exclude: tuple[str, ...] = ()
    max_weight_error: float | None = None
    threads: int | None = None
    use_tuning: bool = True
    plan_sizes: Literal["many", "one"] = "many"
    plan_cache_size: int = 32
    cuda_graphs: bool = True
    dump_dir: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        self._check_target()
        _want_choice("optimization_level", self.optimization_level, LEVELS)
        _want_choice("fallback", self.fallback, FALLBACKS)
        _want_choice("plan_sizes", self.plan_sizes, PLAN_SIZES)
        for name in (
            "fusion",
            "constant_folding",
            "layout",
            "dead_code",
            "memory_planning",
            "freeze_parameters",
            "use_tuning",
            "cuda_graphs",
        ):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise ConfigError(f"{name}: expected True or False, got {value!r}; pass a bool")
        size = self.plan_cache_size
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ConfigError(f"plan_cache_size: expected an integer of at least 1, got {size!r}; the default is 32")
        if self.threads is not None:
            try:
                threads.checked("threads", self.threads)
            except ValueError as error:
                raise ConfigError(str(error)) from None
        self._check_extra_passes()
        self._check_precision()
        if self.dump_dir is not None:
            if not isinstance(self.dump_dir, (str, os.PathLike)):
                raise ConfigError(f"dump_dir: expected a path or None, got {self.dump_dir!r}")
            path = Path(self.dump_dir)
            if path.exists() and not path.is_dir():
                raise ConfigError(f"dump_dir: expected a folder, got the file {path}; name another path")

    def replace(self, **changes: Any) -> CompilerConfig:
        """A copy with some settings changed.

        Raises:
          ConfigError: an unknown name or an unusable value.
        """
        check_names(changes)
        return dataclasses.replace(self, **changes)

    def pass_names(self) -> list[str] | None:
        """Names of the passes to run, in order, or None for just those of the optimisation level."""
        dropped = {name for switch, names in PASS_SWITCHES.items() if not getattr(self, switch) for name in names}
        if not dropped and not self.extra_passes:
            return None
        from thresher import _engine

        names = [name for name in _engine.passes(self.optimization_level) if name not in dropped]
        behind: dict[str, int] = {}  # how many passes were put behind the same one: they keep their order
        for entry in self.extra_passes:
            own = entry if isinstance(entry, str) else Pass.of(entry)
            if isinstance(own, str) or own.after is None:
                names.append(own if isinstance(own, str) else own.name)
                continue
            if own.after != INPUT and own.after not in names:
                raise ConfigError(
                    f"extra_passes: {own.name!r} wants to run after {own.after!r}, got no such pass among those that "
                    f"these settings run{_nearest(own.after, [INPUT, *dict.fromkeys(names)])}"
                )
            place = 0 if own.after == INPUT else names.index(own.after) + 1
            names.insert(place + behind.get(own.after, 0), own.name)
            behind[own.after] = behind.get(own.after, 0) + 1
        return names

    def engine_passes(self) -> list[EnginePass] | None:
        """pass_names() as the engine takes them: passes of the user's with their functions."""
        names = self.pass_names()
        if names is None:
            return None
        own = {entry.name: entry for entry in self.user_passes()}
        return [(name, _guarded(own[name])) if name in own else name for name in names]

    def user_passes(self) -> list[Pass]:
        """The passes that are not the engine's."""
        return [Pass.of(entry) for entry in self.extra_passes if not isinstance(entry, str)]

    def precision_arguments(self) -> dict[str, Any]:
        """What Plan.build has to know; nothing where the model decides, for then there are no layers to exclude."""
        if self.precision == MODEL_PRECISION:
            return {}
        return {
            "precision": self.precision,
            "exclude": list(self.precision_exclude),
            "max_weight_error": self.max_weight_error,
        }

    def _check_target(self) -> None:
        if self.target is None:
            return
        known = tuple(backend.name for backend in backends())
        _want_choice("target", self.target, known)
        obstacle = Backend(self.target).obstacle()
        if obstacle is not None:
            usable = "cpu" if Backend("cpu").available() else "none"
            raise UnavailableError(f"target={self.target!r} is not available: {obstacle}; available: {usable}")

    def _check_precision(self) -> None:
        _want_choice("precision", self.precision, (MODEL_PRECISION, *PRECISIONS))
        if self.target == "cuda":
            check_device_precision(self.precision)
        if self.precision not in (MODEL_PRECISION, "fp32"):
            _want_available("precision", self.precision, available())
            from thresher import _engine

            if PRECISION_PASS not in _engine.passes(self.optimization_level):
                raise ConfigError(
                    f"precision: expected optimization_level 'O2' or 'O3' for {self.precision!r}, got "
                    f"{self.optimization_level!r}, which multiplies weights as they are stored; raise the level"
                )
        exclude: object = self.precision_exclude
        if not isinstance(exclude, (tuple, list)) or not all(isinstance(p, str) and p for p in exclude):
            raise ConfigError(
                f"precision_exclude: expected a tuple of patterns on module paths, got {exclude!r}; "
                "write ('encoder.layer.0',) for one"
            )
        object.__setattr__(self, "precision_exclude", tuple(exclude))
        limit: object = self.max_weight_error
        if limit is not None:
            if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not 0 <= limit < math.inf:
                raise ConfigError(
                    f"max_weight_error: expected a number of at least 0 or None, got {limit!r}; 0.01 allows 1 %"
                )
            object.__setattr__(self, "max_weight_error", float(limit))

    def _check_extra_passes(self) -> None:
        extra: object = self.extra_passes
        if not isinstance(extra, (tuple, list)) or not all(isinstance(e, str) or callable(e) for e in extra):
            raise ConfigError(
                "extra_passes: expected a tuple of pass names, functions of graphs and thresher.Pass objects, "
                f"got {extra!r}; write ('name',) or (function,) for one pass"
            )
        object.__setattr__(self, "extra_passes", tuple(extra))
        if not extra:
            return
        known = known_passes()
        for entry in extra:
            if isinstance(entry, str) and entry not in known:
                raise ConfigError(f"extra_passes: {entry!r} is not a pass of this engine{_nearest(entry, known)}")
        try:
            names = [own.name for own in self.user_passes()]
        except (ValueError, TypeError) as error:
            raise ConfigError(f"extra_passes: {error}") from error
        for name in names:
            if name in known or name == INPUT:
                raise ConfigError(
                    f"extra_passes: a pass of your own is called {name!r}, which the engine uses already; "
                    "write thresher.Pass('another_name', function)"
                )
            if names.count(name) > 1:
                raise ConfigError(
                    f"extra_passes: expected one pass called {name!r}, got {names.count(name)}; "
                    "tell them apart with thresher.Pass('another_name', function)"
                )
        self.pass_names()


def with_mode(config: CompilerConfig, mode: object) -> CompilerConfig:
    """The configuration with what a mode of torch.compile asks for. Warns of modes that mean less here.

    Raises:
      ConfigError: an unknown mode.
    """
    if mode not in (None, *MODES, *TUNING_MODES):
        raise ConfigError(
            f"mode: expected None or one of {', '.join((*MODES, *TUNING_MODES))}, got {mode!r}; "
            "settings of Thresher go into thresher.compile(...) or options={...}"
        )
    if mode in TUNING_MODES:
        warnings.warn(
            f"thresher: mode={mode!r} is taken for 'default': nothing is measured while a model is compiled; "
            "thresher.tune(model, *inputs) measures once and is used from then on",
            stacklevel=3,
        )
    if mode == "reduce-overhead":
        return config.replace(cuda_graphs=True)
    return config.replace(cuda_graphs=False) if mode == "max-autotune-no-cudagraphs" else config


def check_device_precision(precision: str) -> None:
    """Compares a precision with those that GPUs have kernels for.

    Raises:
      UnavailableError: it is none of them.
    """
    if precision in CPU_PRECISIONS:
        raise UnavailableError(
            f"precision: expected 'model', 'fp32', 'bf16' or 'fp16' on a GPU, got {precision!r}, which only the CPU "
            "has; do: leave it out, or target='cpu'"
        )


def check_names(names: Mapping[str, object]) -> None:
    """Raises ConfigError for the first name that is no setting."""
    known = [field.name for field in dataclasses.fields(CompilerConfig)]
    for name in names:
        if name not in known:
            raise ConfigError(f"{name!r} is not a compiler setting{_nearest(name, known)}")


def config_from_options(options: Mapping[str, Any] | None) -> CompilerConfig:
    """The configuration that ``torch.compile(..., options=...)`` asks for.

    Args:
      options: names of settings, or the single key "config" with a CompilerConfig; None for the defaults.

    Raises:
      ConfigError: an unknown name or an unusable value.
    """
    rest = dict(options or {})
    config = rest.pop("config", None)
    if config is None:
        config = CompilerConfig()
    if not isinstance(config, CompilerConfig):
        raise ConfigError(f"config: expected a thresher.CompilerConfig or None, got {type(config).__name__}")
    return config.replace(**rest) if rest else config


def known_passes() -> list[str]:
    """Names of all passes of the engine."""
    from thresher import _engine

    return [row["name"] for row in _engine.all_passes()]


def _guarded(own: Pass) -> Callable[[Graph], Graph]:
    """The pass with errors that name it."""

    def run(graph: Graph) -> Graph:
        try:
            made: object = own.function(graph)
        except Exception as error:
            raise PassError(f"pass {own.name}: {type(error).__name__}: {error}") from error
        if not isinstance(made, Graph):
            raise PassError(
                f"pass {own.name}: expected a Graph as its result, got {type(made).__name__}; "
                "return the graph, changed or not"
            )
        return made

    return run


def _want_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        near = _nearest(value, choices) if isinstance(value, str) else f"; known: {', '.join(choices)}"
        raise ConfigError(f"{name}: expected one of {', '.join(choices)}, got {value!r}{near}")


def _want_available(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UnavailableError(f"{name}={value!r} is not available in this build; available: {', '.join(choices)}")


def _nearest(name: str, known: tuple[str, ...] | list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(known)}"

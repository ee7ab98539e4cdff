"""Thresher: a C++ inference engine for PyTorch models.

    model = torch.compile(model, backend="thresher")

Importing this package loads neither PyTorch nor the compiler; names below load what they need when first used.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from thresher import cache, llm, model, passes, profiler, tuning
    from thresher.compiler import (
        CompilationStats,
        CompilerConfig,
        ConfigError,
        ExportError,
        PassError,
        ThresherError,
        UnavailableError,
        UnsupportedOperatorError,
        clear_cache,
        compilation_stats,
        compile,
        export,
        tune,
    )
    from thresher.machine import Backend, Peaks, backends, peaks
    from thresher.model import Model, load
    from thresher.passes import Pass
    from thresher.threads import get_num_threads, set_num_threads
    from thresher.tuning import TuningReport

    __version__: str

__all__ = [
    "Backend",
    "CompilationStats",
    "CompilerConfig",
    "ConfigError",
    "ExportError",
    "Model",
    "Pass",
    "PassError",
    "Peaks",
    "ThresherError",
    "TuningReport",
    "UnavailableError",
    "UnsupportedOperatorError",
    "__version__",
    "backends",
    "cache",
    "clear_cache",
    "compilation_stats",
    "compile",
    "export",
    "get_num_threads",
    "llm",
    "load",
    "model",
    "passes",
    "peaks",
    "profiler",
    "set_num_threads",
    "tune",
    "tuning",
]

_MODULES = ("cache", "compiler", "llm", "machine", "model", "passes", "profiler", "tuning")
_FROM_MACHINE = frozenset({"Backend", "Peaks", "backends", "peaks"})
_FROM_MODEL = frozenset({"Model", "load"})
_FROM_THREADS = frozenset({"get_num_threads", "set_num_threads"})
_ELSEWHERE = {"Pass", "TuningReport", "__version__", *_FROM_MACHINE, *_FROM_MODEL, *_FROM_THREADS, *_MODULES}
_FROM_COMPILER = frozenset(__all__) - _ELSEWHERE


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"thresher.{name}")
    if name in _FROM_MACHINE:
        return getattr(importlib.import_module("thresher.machine"), name)
    if name in _FROM_MODEL:
        return getattr(importlib.import_module("thresher.model"), name)
    if name in _FROM_THREADS:
        return getattr(importlib.import_module("thresher.threads"), name)
    if name == "TuningReport":
        return importlib.import_module("thresher.tuning").TuningReport
    if name == "Pass":
        return importlib.import_module("thresher.passes").Pass
    if name in _FROM_COMPILER:
        try:
            compiler = importlib.import_module("thresher.compiler")
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise ImportError(
                f"thresher.{name} wants PyTorch, got none in this environment; install torch 2.13 beside thresher "
                "(the engine itself, thresher.load, thresher.profiler and the command line work without)"
            ) from error
        return getattr(compiler, name)
    if name == "__version__":
        from thresher import _engine

        return _engine.version()
    raise AttributeError(f"module 'thresher' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if any(os.environ.get(f"THRESHER_PROFILE{suffix}") for suffix in ("", "_OUTPUT", "_PORT", "_TRACE")):
    # What a process does before its first import of the compiler belongs into the profile, too.
    from thresher import startup

    try:
        startup.initialize()
    except (ImportError, ValueError) as error:
        # Compiling raises the same; the import must succeed, or `thresher doctor` could not say what is wrong.
        import warnings

        warnings.warn(f"the profiler is off: {error}", stacklevel=2)

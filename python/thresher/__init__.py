"""Thresher: a C++ inference engine for PyTorch models.

    model = torch.compile(model, backend="thresher")

Importing this package loads neither PyTorch nor the compiler; names below load what they need when first used.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from thresher import cache, dashboard, llm, model, ops, packages, passes, profiler, signatures, tuning, zoo
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
    from thresher.measure.benchmark import BenchmarkResult, BenchmarkRow, benchmark
    from thresher.measure.bottlenecks import Bottleneck, PerformanceProfiler
    from thresher.measure.latency import Latency
    from thresher.measure.memory import MemoryProfiler, MemoryReport
    from thresher.measure.profiling import profile
    from thresher.model import Model, load
    from thresher.ops import fuse_ops, optimize_layout
    from thresher.passes import Pass
    from thresher.signatures import conv
    from thresher.threads import get_num_threads, set_num_threads
    from thresher.tuning import TuningReport

    __version__: str

__all__ = [
    "Backend",
    "BenchmarkResult",
    "BenchmarkRow",
    "Bottleneck",
    "CompilationStats",
    "CompilerConfig",
    "ConfigError",
    "ExportError",
    "Latency",
    "MemoryProfiler",
    "MemoryReport",
    "Model",
    "Pass",
    "PassError",
    "Peaks",
    "PerformanceProfiler",
    "ThresherError",
    "TuningReport",
    "UnavailableError",
    "UnsupportedOperatorError",
    "__version__",
    "backends",
    "benchmark",
    "cache",
    "clear_cache",
    "compilation_stats",
    "compile",
    "conv",
    "dashboard",
    "export",
    "fuse_ops",
    "get_num_threads",
    "llm",
    "load",
    "model",
    "ops",
    "optimize_layout",
    "packages",
    "passes",
    "peaks",
    "profile",
    "profiler",
    "set_num_threads",
    "signatures",
    "tune",
    "tuning",
    "zoo",
]

_MODULES = (
    *(
        "cache",
        "compiler",
        "dashboard",
        "llm",
        "machine",
        "model",
        "ops",
        "packages",
        "passes",
        "profiler",
        "signatures",
    ),
    *("tuning", "zoo"),
)
_FROM_MACHINE = frozenset({"Backend", "Peaks", "backends", "peaks"})
_FROM_MODEL = frozenset({"Model", "load"})
_FROM_MEASURE = {
    **dict.fromkeys(("BenchmarkResult", "BenchmarkRow", "benchmark"), "benchmark"),
    **dict.fromkeys(("Bottleneck", "PerformanceProfiler"), "bottlenecks"),
    **dict.fromkeys(("MemoryProfiler", "MemoryReport"), "memory"),
    "Latency": "latency",
    "profile": "profiling",
}
_FROM_OPS = frozenset({"fuse_ops", "optimize_layout"})
_FROM_THREADS = frozenset({"get_num_threads", "set_num_threads"})
_FROM_SIGNATURES = frozenset({"conv"})
_ELSEWHERE = {
    "Pass",
    "TuningReport",
    "__version__",
    *_FROM_MACHINE,
    *_FROM_MEASURE,
    *_FROM_MODEL,
    *_FROM_OPS,
    *_FROM_SIGNATURES,
    *_FROM_THREADS,
    *_MODULES,
}
_FROM_COMPILER = frozenset(__all__) - _ELSEWHERE


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return _with_torch(name, f"thresher.{name}")
    if name in _FROM_MACHINE:
        return getattr(importlib.import_module("thresher.machine"), name)
    if name in _FROM_MEASURE:
        return getattr(_with_torch(name, f"thresher.measure.{_FROM_MEASURE[name]}"), name)
    if name in _FROM_OPS:
        return getattr(_with_torch(name, "thresher.ops"), name)
    if name in _FROM_SIGNATURES:
        return getattr(_with_torch(name, "thresher.signatures"), name)
    if name in _FROM_MODEL:
        return getattr(importlib.import_module("thresher.model"), name)
    if name in _FROM_THREADS:
        return getattr(importlib.import_module("thresher.threads"), name)
    if name == "TuningReport":
        return importlib.import_module("thresher.tuning").TuningReport
    if name == "Pass":
        return importlib.import_module("thresher.passes").Pass
    if name in _FROM_COMPILER:
        return getattr(_with_torch(name, "thresher.compiler"), name)
    if name == "__version__":
        from thresher import _engine

        return _engine.version()
    raise AttributeError(f"module 'thresher' has no attribute {name!r}")


def _with_torch(name: str, module: str) -> Any:
    """The module that a name comes from, or an error that says what is missing."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError(
            f"thresher.{name} wants PyTorch, got none in this environment; install torch 2.13 beside thresher "
            "(the engine itself, thresher.load, thresher.profiler and the command line work without)"
        ) from error


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

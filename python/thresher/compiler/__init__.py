"""From PyTorch models to plans of the engine."""

import thresher.compiler.torch_check  # noqa: F401  # first: the others may not bear the PyTorch that it warns of
from thresher.compiler.api import compile
from thresher.compiler.backend import thresher_backend
from thresher.compiler.config import CompilerConfig
from thresher.compiler.errors import (
    ConfigError,
    ExportError,
    PassError,
    ThresherError,
    UnavailableError,
    UnsupportedOperatorError,
)
from thresher.compiler.exporting import export
from thresher.compiler.importer import supported_operators
from thresher.compiler.precision import PrecisionDecision
from thresher.compiler.stats import CompilationStats, UnsupportedOperator, WeightsHeld, clear_cache, compilation_stats
from thresher.compiler.tuning import tune

__all__ = [
    "CompilationStats",
    "CompilerConfig",
    "ConfigError",
    "ExportError",
    "PassError",
    "PrecisionDecision",
    "ThresherError",
    "UnavailableError",
    "UnsupportedOperator",
    "UnsupportedOperatorError",
    "WeightsHeld",
    "clear_cache",
    "compilation_stats",
    "compile",
    "export",
    "supported_operators",
    "thresher_backend",
    "tune",
]

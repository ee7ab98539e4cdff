"""From PyTorch models to plans of the engine."""

from thresher.compiler.api import compile
from thresher.compiler.backend import thresher_backend
from thresher.compiler.config import CompilerConfig
from thresher.compiler.errors import ConfigError, PassError, ThresherError, UnavailableError, UnsupportedOperatorError
from thresher.compiler.importer import supported_operators
from thresher.compiler.stats import CompilationStats, UnsupportedOperator, clear_cache, compilation_stats

__all__ = [
    "CompilationStats",
    "CompilerConfig",
    "ConfigError",
    "PassError",
    "ThresherError",
    "UnavailableError",
    "UnsupportedOperator",
    "UnsupportedOperatorError",
    "clear_cache",
    "compilation_stats",
    "compile",
    "supported_operators",
    "thresher_backend",
]

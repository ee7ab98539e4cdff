"""Exceptions of the compiler. Every message says what was expected, what was found and what to do."""

from __future__ import annotations


class ThresherError(Exception):
    """Base class of what the compiler raises on purpose."""


class ConfigError(ThresherError, ValueError):
    """A setting has a value that cannot work."""


class UnavailableError(ThresherError, RuntimeError):
    """A target or a precision is known but not usable in this build or on this machine."""


class UnsupportedOperatorError(ThresherError, NotImplementedError):
    """A graph holds operators the engine lacks and the configuration forbids running them in PyTorch.

    Attributes:
      operators: every such operator, as in ``compilation_stats().unsupported``.
    """

    def __init__(self, message: str, operators: tuple[object, ...] = ()) -> None:
        super().__init__(message)
        self.operators = operators


class ExportError(ThresherError, RuntimeError):
    """A model cannot be written to a file: PyTorch cannot capture it, or it does what a file cannot hold."""


class PassError(ThresherError, RuntimeError):
    """A pass of the user's failed or returned a graph that cannot stand for the one it got. Names the pass."""


class UnsupportedNode(Exception):
    """One node of a graph cannot be imported. The text is the reason shown to the user."""

"""Operators that other packages bring to the engine.

An installed package names its library of C++ operators in the entry point group ``thresher.operators``, and the module
that says how PyTorch's operators become these in ``thresher.rules``. Both are found where they are needed:
models that use them import nothing. docs/operators.md is the guide.
"""

from __future__ import annotations

import dataclasses
import os
import threading
import warnings
from collections.abc import Iterable
from typing import Any

__all__ = ["OperatorPackage", "installed", "load"]

OPERATORS, RULES = "thresher.operators", "thresher.rules"


@dataclasses.dataclass(frozen=True, slots=True)
class OperatorPackage:
    """A package of operators.

    Attributes:
      name: of the package, in front of the dot in its operators' names; of one that could not be loaded that of its
        entry point.
      version: its own.
      operators: their names, "package.operator".
      path: the library; "" where it is not known.
      problem: why it could not be loaded, with the cure; None where it was.
    """

    name: str
    version: str
    operators: tuple[str, ...]
    path: str
    problem: str | None = None


_state: dict[str, tuple[OperatorPackage, ...]] = {}
_rules: dict[str, bool] = {}
_rules_lock = threading.RLock()


def load(path: str | os.PathLike[str]) -> OperatorPackage:
    """Opens a library of operators, which all graphs of the process have from then on.

    Installed packages need no call: their entry points are found.

    >>> import thresher
    >>> thresher.packages.load("no_such.so")
    Traceback (most recent call last):
    ...
    FileNotFoundError: expected a library of operators, got no no_such.so; build its package first

    Args:
      path: the shared library. One that is open already is described again.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: it is no library of operators, or one of its rows cannot be used.
      NotImplementedError: it was built for another release of Thresher.
    """
    from thresher import _engine

    name = os.path.abspath(os.fspath(path))
    if not os.path.exists(name):
        raise FileNotFoundError(f"expected a library of operators, got no {os.fspath(path)}; build its package first")
    found: Any = _engine.load_operators(name)
    return OperatorPackage(found["name"], found["version"], tuple(found["operators"]), name)


def installed() -> tuple[OperatorPackage, ...]:
    """The packages of operators that are installed, loaded at the first call.

    One that cannot be loaded is told once, as a warning: models then run without its operators.

    >>> import thresher
    >>> [package.problem for package in thresher.packages.installed()]
    []
    """
    if "installed" not in _state:
        # Opening a library twice is as good as once, so that no lock is held while a package is imported.
        _state["installed"] = tuple(_opened(point) for point in _points(OPERATORS))
    return _state["installed"]


def load_installed() -> bool:
    """Loads what ``installed`` lists; whether this call did so and there were any."""
    return "installed" not in _state and bool(installed())


def load_rules() -> bool:
    """Imports the modules of installed packages that say how PyTorch's operators become theirs.

    Returns:
      Whether this call did so and there were any; further calls do nothing.
    """
    if _rules:
        return False
    with _rules_lock:  # a module that compiles something when it is imported gets in again
        if _rules:
            return False
        points = _points(RULES)
        if points:
            installed()
        for point in points:
            try:
                point.load()
            except Exception as error:  # whatever a package does, models run without it
                _tell(f"{_origin(point)}: expected {point.value}, which has its rules, to be imported, got: {error}")
        _rules["loaded"] = True
    return bool(points)


def _points(group: str) -> list[Any]:
    from importlib import metadata  # takes as long to import as a small model to load

    found: Iterable[Any] = metadata.entry_points(group=group)
    return sorted(found, key=lambda point: (point.name, point.value))


def _opened(point: Any) -> OperatorPackage:
    path = ""
    try:
        path = os.fspath(point.load())
        return load(path)
    except Exception as error:  # whatever a package does, models run without it
        problem = f"{_origin(point)}: {error}"
        _tell(problem)
        return OperatorPackage(point.name, "", (), path, problem)


def _origin(point: Any) -> str:
    dist = getattr(point, "dist", None)
    return f"the package {dist.name} {dist.version}" if dist is not None else f"the entry point {point.name}"


def _tell(problem: str) -> None:
    warnings.warn(f"operators are left out: {problem}", stacklevel=2)

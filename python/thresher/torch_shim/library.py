"""The libraries that know PyTorch's classes: one for each minor version of PyTorch."""

from __future__ import annotations

import importlib
import importlib.machinery
import re
import sys
from pathlib import Path
from types import ModuleType

_loaded: list[ModuleType] = []


class ShimError(RuntimeError):
    """There is no library for this PyTorch, or it does not load. Says what was expected and found, and the cure."""


def minor_of(version: str) -> str:
    """The part of a version of PyTorch that decides about binary compatibility: "2.13" of "2.13.0+cpu"."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return f"{found[1]}.{found[2]}" if found else version


def available() -> list[str]:
    """The minor versions of PyTorch that this installation has a library for, ascending."""
    suffixes = importlib.machinery.EXTENSION_SUFFIXES
    found = set()
    for folder in sys.modules["thresher"].__path__:  # an import of it would lead back here
        for path in Path(folder).glob("_torch_shim_*"):
            match = re.match(r"_torch_shim_(\d+)_(\d+)\.", path.name)
            if match and any(path.name == f"_torch_shim_{match[1]}_{match[2]}{suffix}" for suffix in suffixes):
                found.add((int(match[1]), int(match[2])))
    return [f"{major}.{minor}" for major, minor in sorted(found)]


def load(torch_version: str, *, cxx11_abi: bool) -> ModuleType:
    """Loads the library to connect the profiler with it; as find()."""
    module = find(torch_version, cxx11_abi=cxx11_abi)
    _loaded[:] = [module]
    return module


def find(torch_version: str, *, cxx11_abi: bool) -> ModuleType:
    """Imports the library made for exactly this minor version: another one would crash.

    Args:
        torch_version: version of the PyTorch that is imported.
        cxx11_abi: whether it uses the newer classes of the C++ library, as all its wheels do.

    Raises:
        ShimError: there is none, or it does not load.
    """
    minor, found = minor_of(torch_version), available()
    if not found:
        raise ShimError(
            f"expected the connection to the profiler of PyTorch {minor}; this build of Thresher has none for any "
            "PyTorch. Install the wheel, or build it with `nox -s build`"
        )
    if minor not in found:
        raise ShimError(
            f"expected the connection to the profiler of PyTorch {minor}; this wheel has those for "
            f"{', '.join(found)}. Install one: pip install 'torch=={found[-1]}.*'"
        )
    if not cxx11_abi:
        raise ShimError(
            f"expected a PyTorch {minor} with the C++11 ABI, got one without. Install the wheel that PyTorch's "
            "project publishes"
        )
    name = f"thresher._torch_shim_{minor.replace('.', '_')}"
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        raise ShimError(
            f"expected to load {name} into PyTorch {torch_version}; {error}. Install the wheels of Thresher and of "
            "PyTorch again"
        ) from error
    return module


def loaded() -> ModuleType | None:
    """The library that the profiler is connected with, None before `load`."""
    return _loaded[0] if _loaded else None

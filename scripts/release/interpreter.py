"""The versions of Python that wheels are made for, and where this machine has them."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from toolchain.process import ToolchainError, output

VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
ASK = (
    "import sys, sysconfig; v = sys.version_info; "
    "print(v[0], v[1], sys.implementation.name, sysconfig.get_config_var('Py_GIL_DISABLED') or 0)"
)


@dataclass(frozen=True)
class Interpreter:
    """A CPython on this machine."""

    version: str
    path: Path

    @property
    def tag(self) -> str:
        """As wheel tags call it."""
        return f"cp{self.version.replace('.', '')}"


def requested(text: str) -> tuple[list[str], bool]:
    """Reads --python.

    Returns:
        The versions, and whether each was asked for by name, so that a missing one is a fault.

    Raises:
        ToolchainError: a version is not one of VERSIONS.
    """
    if text == "all":
        return list(VERSIONS), False
    chosen = [part.strip() for part in text.split(",")]
    odd = [part for part in chosen if part not in VERSIONS]
    if odd:
        raise ToolchainError(f"--python: expected `all` or some of {', '.join(VERSIONS)}; got {', '.join(odd)!r}.")
    return list(dict.fromkeys(chosen)), True


def find(version: str) -> Interpreter | None:
    """Looks for a CPython of a version: the one that runs this, pythonX.Y on the path, those that pyenv has made."""
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    candidates = [Path(sys.executable)] if version == here else []
    # A shim of pyenv answers only for the versions that are switched on.
    candidates += [
        Path(folder) / f"python{version}" for folder in os.environ.get("PATH", "").split(os.pathsep) if folder
    ]
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    made = [p for p in pyenv.glob(f"{version}.*") if p.name.removeprefix(f"{version}.").isdecimal()]
    candidates += [p / "bin" / f"python{version}" for p in sorted(made, key=lambda p: -int(p.name.rpartition(".")[2]))]
    for path in candidates:
        if shutil.which(path) and answers(path, version):
            return Interpreter(version, path)
    return None


def answers(path: Path, version: str) -> bool:
    """Says whether a program is a CPython of a version, with the interpreter lock that our wheels are built for."""
    return output([path, "-I", "-c", ASK]) == f"{version.replace('.', ' ')} cpython 0"

"""Wheels kept under build/wheels, so that what was built once with a network can be built again without one."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import tempfile
from pathlib import Path

from . import environments
from .archives import sha256_of
from .environments import MODEL, TOOLS, Environment
from .layout import BUILD, PYTHON_TAG, REQUIREMENTS, ROOT
from .process import ToolchainError, note, run

WHEELS = BUILD / "wheels"
STAMP = "thresher.json"


def runtime_requirements() -> list[str]:
    """Returns what the wheel asks for at run time, as pyproject.toml says it."""
    match = re.search(r"^dependencies = \[(.*?)\]$", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M | re.S)
    if not match:
        raise ToolchainError("pyproject.toml: wanted `dependencies = [...]` under [project]; found none.")
    return re.findall(r'"([^"]+)"', match.group(1))


def _of_environment(environment: Environment) -> list[list[str]]:
    """Returns the arguments of the pip calls that fill an environment."""
    files = [part for name in environment.requirements for part in ("-r", str(REQUIREMENTS / name))]
    alone = [part for name in environment.without_dependencies for part in ("-r", str(REQUIREMENTS / name))]
    return [files, *([["--no-deps", *alone]] if alone else [])]


def calls(name: str) -> list[list[str]]:
    """Returns the arguments of the pip calls that collect a set of wheels.

    Args:
        name: "runtime" (what the wheel asks for), "tools" and "model" (the environments), or "nox".
    """
    if name == "runtime":
        pins = [part for file in ("runtime.txt", "model.txt") for part in ("-c", str(REQUIREMENTS / file))]
        return [[*pins, *runtime_requirements()]]
    if name == "nox":
        return [[f"nox=={importlib.metadata.version('nox')}"]]
    return _of_environment({"tools": TOOLS, "model": MODEL}[name])


def digest(name: str) -> str:
    """Returns a hash of everything that decides which wheels a set holds."""
    result = hashlib.sha256(f"{PYTHON_TAG} {name}".encode())
    for argument in (part for call in calls(name) for part in call):
        path = Path(argument)
        result.update(path.read_bytes() if path.suffix == ".txt" else argument.encode())
    return result.hexdigest()


def is_kept(name: str) -> bool:
    """Says whether a set is there, complete and undamaged."""
    folder = WHEELS / name
    try:
        stamp = json.loads((folder / STAMP).read_text(encoding="utf-8"))
        return stamp["digest"] == digest(name) and all(
            sha256_of(folder / file) == sha256 for file, sha256 in stamp["files"].items()
        )
    except (OSError, ValueError, KeyError):
        return False


def keep(name: str) -> Path:
    """Collects a set of wheels once; a set that does not fit the requirement files any more is collected anew.

    Returns:
        The folder of the set.

    Raises:
        ToolchainError: the package index cannot be reached or lacks a version.
    """
    folder = WHEELS / name
    if is_kept(name):
        return folder
    environments.ensure(TOOLS)
    note(f"keeping the wheels of the set {name} in {folder}")
    WHEELS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=WHEELS) as scratch:
        for call in calls(name):
            # `pip wheel`, not `pip download`: a source archive would need its build requirements when it is installed.
            run(
                [
                    *(TOOLS.python, "-m", "pip", "wheel", "--disable-pip-version-check", "--quiet"),
                    *("--progress-bar", "off", "--wheel-dir", scratch, *call),
                ],
                hint=environments.PIP_HINT,
            )
        files = {path.name: sha256_of(path) for path in sorted(Path(scratch).iterdir())}
        stamp = json.dumps({"digest": digest(name), "files": files}, indent=1)
        (Path(scratch) / STAMP).write_text(stamp, encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(scratch, folder)
    return folder


def install_arguments(name: str) -> list[str | Path]:
    """Returns the options with which pip installs from a set and from nowhere else."""
    return ["--no-index", "--find-links", keep(name)]


def offer() -> None:
    """Lets pip take the sets that are here before it asks an index."""
    links = [path.parent.as_uri() for path in sorted(WHEELS.glob(f"*/{STAMP}"))]
    before = os.environ.get("PIP_FIND_LINKS", "").split()
    os.environ["PIP_FIND_LINKS"] = " ".join([*before, *(link for link in links if link not in before)])

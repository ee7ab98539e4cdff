"""Wheels kept under build/wheels, so that what was built once with a network can be built again without one."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from email.parser import Parser
from pathlib import Path

from . import environments
from .archives import sha256_of
from .environments import MODEL, NOX, PROOF, PYTORCH, TOOLS
from .layout import BUILD, PYTHON_TAG, ROOT
from .process import ToolchainError, note

WHEELS = BUILD / "wheels"
STAMP = "thresher.json"
# What the wheel asks for, the environments of the same name, and nox.
SETS = {"runtime": PROOF, "tools": TOOLS, "model": MODEL, "nox": NOX}


def runtime_requirements() -> list[str]:
    """Returns what the wheel asks for at run time, as pyproject.toml says it."""
    match = re.search(r"^dependencies = \[(.*?)\]$", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M | re.S)
    if not match:
        raise ToolchainError("pyproject.toml: expected `dependencies = [...]` under [project]; got none.")
    return re.findall(r'"([^"]+)"', match.group(1))


def calls(name: str) -> list[list[str | Path]]:
    """Returns the arguments of the pip calls that collect a set: those that fill an environment.

    Args:
        name: of the set.
    """
    return environments.installation(SETS[name])


def _additions(name: str, folder: Path) -> list[list[str | Path]]:
    """Returns the arguments of one more pip call for the build of PyTorch that a set got, if it is one for GPUs."""
    if PYTORCH not in SETS[name].requirements:
        return []
    for path in folder.glob("torch-*.whl"):
        with zipfile.ZipFile(path) as archive:
            file = next(
                entry for entry in archive.namelist() if re.fullmatch(r"torch-[^/]+\.dist-info/METADATA", entry)
            )
            metadata = Parser().parsestr(archive.read(file).decode("utf-8"))
        return environments.additions(metadata.get_all("Requires-Dist") or [])
    raise ToolchainError(f"Expected a wheel of PyTorch in the set {name}; got {[p.name for p in folder.iterdir()]}.")


def digest(name: str) -> str:
    """Returns a hash of everything that decides which wheels a set holds."""
    result = hashlib.sha256(f"{PYTHON_TAG} {name}".encode())
    for argument in (part for call in calls(name) for part in call):
        result.update(argument.read_bytes() if isinstance(argument, Path) else argument.encode())
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
    with _new_set(name) as scratch:
        # `pip download`, not `pip wheel`: the locks have the hashes of the files that were published.
        for call in calls(name):
            environments.run_pip(TOOLS.python, "download", ["--quiet", "--dest", scratch, *call])
        for call in _additions(name, scratch):
            environments.run_pip(TOOLS.python, "download", ["--quiet", "--dest", scratch, *call])
        files = {path.name: sha256_of(path) for path in sorted(scratch.iterdir())}
        stamp = json.dumps({"digest": digest(name), "files": files}, indent=1)
        (scratch / STAMP).write_text(stamp, encoding="utf-8")
    return folder


@contextmanager
def _new_set(name: str) -> Iterator[Path]:
    """Makes a folder that takes the place of a set when the block ends well: pip is offered whole sets only."""
    final, partial, old = WHEELS / name, WHEELS / f".{name}.partial", WHEELS / f".{name}.old"
    for left in (partial, old):
        shutil.rmtree(left, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        if final.exists():
            final.replace(old)
        partial.replace(final)
    finally:
        for left in (partial, old):
            shutil.rmtree(left, ignore_errors=True)


def adopt(folder: Path) -> None:
    """Copies a folder of wheels that was kept elsewhere, in place of the set of its name."""
    with _new_set(folder.name) as partial:
        shutil.copytree(folder, partial, dirs_exist_ok=True)


def install_arguments(name: str) -> list[str | Path]:
    """Returns the options with which pip installs from a set and from nowhere else."""
    return ["--no-index", "--find-links", keep(name)]


def offer() -> None:
    """Lets pip take the sets that are here before it asks an index."""
    links = [path.parent.as_uri() for path in sorted(WHEELS.glob(f"[!.]*/{STAMP}"))]
    before = os.environ.get("PIP_FIND_LINKS", "").split()
    os.environ["PIP_FIND_LINKS"] = " ".join([*before, *(link for link in links if link not in before)])

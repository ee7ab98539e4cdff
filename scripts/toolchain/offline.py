"""Working without a network: nothing is tried there, and what is missing is listed before anything is built."""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from . import archives, environments, lock, native, wheel, wheelhouse
from .environments import TOOLS, Environment
from .home import conan_home_lock
from .layout import BUILD, CONAN, REQUIREMENTS
from .native import Flavour
from .platforms import Platform
from .process import ToolchainError, is_offline, output

CURE = (
    "On a machine with a network and the same Python version and architecture, `nox -s deps -- --bundle FILE` packs "
    "all of it; `nox -s deps -- --restore FILE` unpacks it here (docs/building.md, Offline)."
)


def add_option(parser: argparse.ArgumentParser) -> None:
    """Adds --offline."""
    parser.add_argument(
        "--offline",
        action="store_true",
        default=is_offline(),
        help="never try the network; list what is missing before anything is built (default: $THRESHER_OFFLINE)",
    )


def switch_on() -> None:
    """Keeps this process and all that it starts off the network; pip then takes the wheels under build/wheels."""
    os.environ["THRESHER_OFFLINE"] = "1"
    os.environ["PIP_NO_INDEX"] = "1"
    wheelhouse.offer()


def require(flavour: Flavour, chosen: Sequence[Environment], *, for_wheel: bool) -> None:
    """Stops with a list of all that is missing, if anything is.

    Args:
        flavour: whose native dependencies are needed.
        chosen: the environments that are needed besides the tools.
        for_wheel: whether a wheel will be built, and proven if it is for this machine.

    Raises:
        ToolchainError: the list, and how to bring what is on it.
    """
    lacking = [found for environment in (TOOLS, *chosen) if (found := _lacking_environment(environment))]
    lacking += _lacking_sources(flavour)
    if for_wheel and flavour.platform.cross:
        lacking += _lacking_headers(flavour.platform)
    elif for_wheel and not wheelhouse.is_kept("runtime"):
        lacking.append(f"wheels to prove the wheel with: {', '.join(wheelhouse.runtime_requirements())}")
    if lacking:
        items = "".join(f"  - {line}\n" for line in lacking)
        raise ToolchainError(f"Without a network these are wanted and not here:\n{items}  {CURE}")


def _lacking_environment(environment: Environment) -> str | None:
    """Returns what an environment wants, unless it is made or pip can make it from the wheels that are here."""
    if environments.is_made(environment):
        return None
    names = [*environment.requirements, *environment.without_dependencies]
    pins = sorted({line for name in names for line in _pins(REQUIREMENTS / name)})
    with tempfile.TemporaryDirectory(dir=BUILD) as scratch:
        python = Path(sys.executable)
        if output([python, "-m", "pip", "--version"]) is None:
            environments.create(Path(scratch) / "venv")
            python = Path(scratch) / "venv" / "bin" / "python"
        # Only the packages named: a set that holds them was collected with all that they ask for.
        pip: list[str | Path] = [python, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-deps"]
        if all(output([*pip, "-r", REQUIREMENTS / name]) is not None for name in names):
            return None
    return f"environment {environment.name}: wheels of {', '.join(pins)}"


def _lacking_headers(platform: Platform) -> list[str]:
    folder = wheel.headers_folder(platform)
    if folder.is_dir() or os.environ.get("THRESHER_PYTHON_HEADERS"):
        return []
    return [f"headers of this Python for {platform.machine}: {folder}, or a folder in THRESHER_PYTHON_HEADERS"]


def _pins(path: Path) -> set[str]:
    lines = (line.partition("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines())
    return {line for line in lines if line}


def _lacking_sources(flavour: Flavour) -> list[str]:
    if environments.is_made(TOOLS):
        with conan_home_lock():
            native.prepare(flavour)
            wanted = archives.missing(lock.references())
            if wanted:
                wanted = archives.missing(native.to_build(flavour))
        lacking = [(archive.dependency, archive.filename, archive.sha256) for archive in wanted]
    else:
        lacking = _unread_sources()
    return [
        f"source archive of {dependency}: {filename} (sha256 {sha256}), in {archives.cache() / sha256}"
        for dependency, filename, sha256 in lacking
    ]


def _unread_sources() -> list[tuple[str, str, str]]:
    """Lists the recipes without any archive in the cache; read by pattern, since PyYAML comes with the tools."""
    found = []
    for path in sorted((CONAN / "recipes").glob("*/*/conandata.yml")):
        text = path.read_text(encoding="utf-8")
        entries = re.findall(r'filename: "?([^"\s]+)"?\s+sha256: "?([0-9a-f]{64})', text)
        if entries and not any((archives.cache() / sha256).is_file() for _, sha256 in entries):
            found.append((path.parent.parent.name, *entries[0]))
    return found

"""Working without a network: nothing is tried there, and what is missing is listed before anything is built."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from packaging.utils import canonicalize_name

from . import archives, environments, lock, native, python_lock, wheel, wheelhouse
from .environments import PYTORCH, TOOLS, Environment
from .home import conan_home_lock
from .layout import CONAN
from .native import Flavour
from .platforms import Platform
from .process import ToolchainError, is_offline

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
        raise ToolchainError(f"Without a network these are needed and not here:\n{items}  {CURE}")


def _lacking_environment(environment: Environment) -> str | None:
    """Returns what an environment wants, unless it is made or the files that its lock names are here."""
    if environments.is_made(environment):
        return None
    here = python_lock.this_target()
    wanted = [entry for entry in python_lock.read(environment.lock) if entry.is_for(here)]
    files = _offered_files()
    lacking = [str(entry) for entry in wanted if not _is_offered(entry, files)]
    if PYTORCH in environment.requirements and not any(path.name.startswith("torch-") for path in files):
        lacking.append(python_lock.PYTORCH)
    return f"environment {environment.name}: wheels of {', '.join(sorted(lacking))}" if lacking else None


def _offered_files() -> list[Path]:
    """Lists the packages in the folders that pip may take them from without a network."""
    places = os.environ.get("PIP_FIND_LINKS", "").split()
    folders = [Path(unquote(urlsplit(place).path) if place.startswith("file:") else place) for place in places]
    return [path for folder in folders if folder.is_dir() for path in folder.iterdir() if path.is_file()]


def _is_offered(entry: python_lock.Entry, files: Sequence[Path]) -> bool:
    """Says whether one of the files is a locked one; only those of the right name are read."""
    names = [path for path in files if canonicalize_name(path.name).startswith(f"{entry.name}-")]
    return any(archives.sha256_of(path) in entry.sha256 for path in names)


def _lacking_headers(platform: Platform) -> list[str]:
    folder = wheel.headers_folder(platform)
    if folder.is_dir() or os.environ.get("THRESHER_PYTHON_HEADERS"):
        return []
    return [f"headers of this Python for {platform.machine}: {folder}, or a folder in THRESHER_PYTHON_HEADERS"]


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

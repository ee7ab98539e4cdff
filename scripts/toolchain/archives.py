"""The source archives of the native dependencies: what the recipes name and what lies in Conan's download cache."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from . import environments
from .environments import TOOLS
from .layout import SCRIPTS, conan_home
from .process import captured, run

FETCH = SCRIPTS / "fetch_sources.py"


@dataclass(frozen=True)
class Archive:
    """An archive that may stand for a version of a dependency.

    Attributes:
        dependency: name/version.
        filename: its name on a mirror.
        sha256: its name in the cache.
    """

    dependency: str
    filename: str
    sha256: str

    @property
    def path(self) -> Path:
        """Where Conan's download cache keeps it."""
        return cache() / self.sha256


def cache() -> Path:
    """Returns the folder of Conan's download cache."""
    return conan_home() / "sources" / "s"


def named() -> list[Archive]:
    """Lists the archives that the recipes name, best first within a dependency.

    Raises:
        ToolchainError: a recipe is malformed; says where.
    """
    environments.ensure(TOOLS)
    return [
        Archive(f"{dependency['name']}/{dependency['version']}", archive["filename"], archive["sha256"])
        for dependency in json.loads(captured([TOOLS.python, FETCH, "--list", cache().parent]))
        for archive in dependency["archives"]
    ]


def sha256_of(path: Path) -> str:
    """Returns the SHA-256 of a file in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def missing(dependencies: Iterable[str]) -> list[Archive]:
    """Lists the dependencies (name/version) of which no archive is in the cache, each by its best archive."""
    archives = named()
    here = {archive.dependency for archive in archives if archive.path.is_file()}
    wanted = set(dependencies) - here
    best: dict[str, Archive] = {}
    for archive in archives:
        if archive.dependency in wanted:
            best.setdefault(archive.dependency, archive)
    return list(best.values())


def fetch(dependencies: Iterable[str]) -> None:
    """Brings an archive of each dependency (name/version) into the cache.

    Raises:
        ToolchainError: one cannot be had; the lines before say where it was looked for.
    """
    only = [f"--only={dependency}" for dependency in sorted(dependencies)]
    if only:
        run(
            [TOOLS.python, FETCH, *only, cache().parent],
            hint="The lines above say which archive is missing and where it was looked for.",
        )

"""conan/conan.lock: what it says, what the recipes give, and the difference of the two.

Conan takes a recipe from its home when the locked revision lies there, whatever the recipe in this repository has
become since. So the recipes are resolved in a new and empty home and compared with the lock before Conan installs.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import environments, platforms
from .environments import TOOLS, script
from .layout import BUILD, CONAN, ROOT, scratch_folder
from .process import ToolchainError, captured

LOCK = CONAN / "conan.lock"
SECTIONS = ("requires", "build_requires", "python_requires", "config_requires")
UPDATE = "nox -s deps -- --update conan"

# Version and recipe revision by name of the dependency.
Entries = dict[str, str]


@dataclass(frozen=True)
class Change:
    """One dependency that is not the same on both sides.

    Attributes:
        name: the dependency.
        old: its version and recipe revision in the lock, None where it is not there.
        new: the same as the recipes give it, None where nothing requires it.
    """

    name: str
    old: str | None
    new: str | None

    @property
    def kind(self) -> str:
        """What happened, in one word."""
        if self.old is None or self.new is None:
            return "added" if self.old is None else "removed"
        return "recipe" if self.old.partition("#")[0] == self.new.partition("#")[0] else "version"


@dataclass(frozen=True)
class Package:
    """A dependency as Conan resolves it."""

    name: str
    version: str
    licence: str
    test_only: bool


@dataclass(frozen=True)
class Resolution:
    """What the recipes give for some profiles.

    Attributes:
        lock: the content of a lock file that fits them, without time stamps.
        packages: the dependencies.
    """

    lock: dict[str, Any]
    packages: tuple[Package, ...]


def entries_of(lock: Mapping[str, Any]) -> Entries:
    """Returns versions and recipe revisions; time stamps are left out, since each machine exports at its own time.

    Raises:
        ToolchainError: an entry has no recipe revision.
    """
    found: dict[str, list[str]] = {}
    for section in SECTIONS:
        for entry in lock.get(section, []):
            name, _, rest = str(entry).partition("%")[0].partition("/")
            if "#" not in rest:
                raise ToolchainError(
                    f"{LOCK}: expected NAME/VERSION#REVISION; got {entry!r}. `{UPDATE}` writes it anew."
                )
            found.setdefault(name, []).append(rest)
    return {name: ", ".join(sorted(values)) for name, values in sorted(found.items())}


def read_lock() -> dict[str, Any]:
    """Returns the content of conan/conan.lock.

    Raises:
        ToolchainError: it is not there or is not a lock file.
    """
    try:
        content = json.loads(LOCK.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ToolchainError(f"Expected the lock file {LOCK}; {error}. `{UPDATE}` writes it anew.") from error
    if not isinstance(content, dict):
        raise ToolchainError(f"{LOCK}: expected a lock file of Conan; got {content!r}. `{UPDATE}` writes it anew.")
    return content


def references() -> list[str]:
    """Lists the locked dependencies as name/version."""
    return [
        f"{name}/{value.partition('#')[0]}"
        for name, values in entries_of(read_lock()).items()
        for value in values.split(", ")
    ]


def profiles() -> list[str]:
    """Lists the committed profiles."""
    return sorted(path.name for path in (CONAN / "config" / "profiles").iterdir())


def resolve(names: Sequence[str]) -> Resolution:
    """Lets Conan resolve conan/conanfile.py from the recipes of this repository alone, without lock and network.

    Raises:
        ToolchainError: a required version has no recipe, or a recipe or profile cannot be read.
    """
    environments.ensure(TOOLS)
    conan = script(TOOLS, "conan")
    building = platforms.of_this_machine().profile
    lock: dict[str, Any] = {}
    packages: dict[str, Package] = {}
    with scratch_folder() as scratch:
        home = Path(scratch) / "home"
        shutil.copytree(CONAN / "config", home)
        environment = {"CONAN_HOME": str(home)}
        captured([conan, "remote", "add", "thresher", CONAN, "-t", "local-recipes-index"], environment=environment)
        for name in names:
            out = Path(scratch) / f"{name}.lock"
            graph = captured(
                [
                    *(conan, "graph", "info", CONAN, "-pr:h", name, "-pr:b", building, "-r", "thresher"),
                    *("--lockfile", "", "--lockfile-out", out, "--format", "json"),
                ],
                environment=environment,
                hint=f"conan/conanfile.py, a recipe or the profile {name} is at fault.",
            )
            for node in json.loads(graph)["graph"]["nodes"].values():
                if node.get("rrev"):
                    test_only = (
                        bool(node.get("test")) and packages.get(node["name"], Package("", "", "", True)).test_only
                    )
                    packages[node["name"]] = Package(node["name"], node["version"], str(node["license"]), test_only)
            for key, value in json.loads(out.read_text(encoding="utf-8")).items():
                if key not in SECTIONS:
                    lock[key] = value
                    continue
                known = lock.setdefault(key, [])
                known += [entry for entry in (v.partition("%")[0] for v in value) if entry not in known]
    return Resolution(lock, tuple(sorted(packages.values(), key=lambda package: package.name)))


def differences(old: Entries, new: Entries) -> list[Change]:
    """Lists the dependencies that differ, by name."""
    return [
        Change(name, old.get(name), new.get(name))
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]


def table(changes: Iterable[Change]) -> str:
    """Returns the changes as lines, old -> new."""
    rows = [(change.name, change.kind, change.old or "-", "->", change.new or "-") for change in changes]
    widths = [max(len(row[i]) for row in rows) for i in range(5)] if rows else []
    return "\n".join("  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _digest(name: str) -> str:
    digest = hashlib.sha256(name.encode())
    for path in sorted(p for p in CONAN.rglob("*") if p.is_file() and p.suffix != ".pyc"):
        digest.update(f"{path.relative_to(CONAN)}\0".encode() + path.read_bytes() + b"\0")
    digest.update(TOOLS.lock.read_bytes())
    return digest.hexdigest()


def enforce(name: str) -> None:
    """Stops if the recipes do not give what the lock says for a profile.

    The verdict is kept until a file under conan/ changes.

    Raises:
        ToolchainError: names what differs and the cure.
    """
    stamp = BUILD / "dependencies" / f"{name}.locked"
    digest = _digest(name)
    if stamp.is_file() and stamp.read_text() == digest:
        return
    locked = entries_of(read_lock())
    # What only other profiles need is no fault here; `--verify` looks at all of them.
    changes = [
        change
        for change in differences(locked, entries_of(resolve([name]).lock))
        if change.new is not None and change.new not in (change.old or "").split(", ")
    ]
    if changes:
        raise ToolchainError(mismatch(changes))
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.write_text(digest)


def mismatch(changes: Sequence[Change]) -> str:
    """Returns the message for a lock that does not fit the recipes."""
    return (
        f"{LOCK.relative_to(ROOT)} does not fit the recipes (lock -> recipes):\n{table(changes)}\n"
        f"  If the change is meant, `{UPDATE}` writes the lock anew; if not, `git checkout -- conan` takes it back."
    )


def update() -> list[Change]:
    """Writes conan/conan.lock anew from the recipes, for every committed profile.

    Returns:
        What changed.
    """
    resolved = resolve(profiles()).lock
    try:
        before = entries_of(read_lock())
    except ToolchainError:
        before = {}
    partial = LOCK.with_name(f"{LOCK.name}.{os.getpid()}")
    partial.write_text(json.dumps(resolved, indent=4) + "\n", encoding="utf-8")
    partial.replace(LOCK)
    return differences(before, entries_of(resolved))

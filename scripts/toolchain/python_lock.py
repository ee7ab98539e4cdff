"""requirements/locks: the exact packages of an environment, with the SHA-256 of every file that may be installed.

A lock holds for every supported version of Python and both architectures; where they differ, a line has a marker. It is
in the form that pip reads. A comment before a line says for which targets there is no wheel, only a source archive.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.markers import Marker, default_environment
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from .process import ToolchainError

PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
MACHINES = ("x86_64", "aarch64")
UPDATE = "nox -s deps -- --update python"
# Not in any lock: which build of it is right depends on the machine (docs/building.md).
PYTORCH = "torch"
SOURCE = "# source archive: "


@dataclass(frozen=True, order=True)
class Target:
    """A version of Python on an architecture, both as markers name them."""

    python: str
    machine: str

    def __str__(self) -> str:
        return f"{self.python} {self.machine}"

    def satisfies(self, marker: Marker | None) -> bool:
        """Says whether a marker holds here, for the first or the last patch release of this Python."""
        return marker is None or any(
            marker.evaluate(
                {
                    "python_version": self.python,
                    "python_full_version": f"{self.python}.{patch}",
                    "implementation_version": f"{self.python}.{patch}",
                    "implementation_name": "cpython",
                    "platform_python_implementation": "CPython",
                    "platform_machine": self.machine,
                    "platform_system": "Linux",
                    "sys_platform": "linux",
                    "os_name": "posix",
                    "extra": "",
                }
            )
            for patch in ("0", "99")
        )


TARGETS = tuple(Target(python, machine) for python in PYTHONS for machine in MACHINES)


def this_target() -> Target:
    """Returns the target of the interpreter that runs nox."""
    here: Mapping[str, object] = dict(default_environment())
    return Target(str(here["python_version"]), str(here["platform_machine"]))


@dataclass(frozen=True)
class Entry:
    """One line of a lock.

    Attributes:
        name: the package, in normal form.
        version: its version.
        sha256: the digests of the files that may be installed.
        marker: where it is needed; empty: everywhere.
        sources: the targets without a wheel, as text.
    """

    name: str
    version: str
    sha256: tuple[str, ...]
    marker: str = ""
    sources: tuple[str, ...] = ()

    def is_for(self, target: Target) -> bool:
        """Says whether the package is needed on a target."""
        return target.satisfies(Marker(self.marker) if self.marker else None)

    def __str__(self) -> str:
        return f"{self.name}=={self.version}" + (f" ; {self.marker}" if self.marker else "")


def to_text(entries: Iterable[Entry], inputs: Sequence[str]) -> str:
    """Returns the text of a lock that was made from some requirement files."""
    lines = [f"# Written by `{UPDATE}` from {', '.join(inputs)}. Not to be edited: docs/building.md says more."]
    for entry in sorted(entries, key=lambda e: (e.name, e.marker)):
        if entry.sources:
            lines.append(SOURCE + ", ".join(entry.sources))
        lines += [f"{entry} \\", *(f"    --hash=sha256:{digest} \\" for digest in sorted(entry.sha256))]
        lines[-1] = lines[-1].removesuffix(" \\")
    return "\n".join(lines) + "\n"


def read(path: Path) -> list[Entry]:
    """Reads a lock.

    Raises:
        ToolchainError: it is not there, or a line is not NAME==VERSION with at least one SHA-256.
    """
    try:
        lines = path.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    except (OSError, ValueError) as error:
        raise ToolchainError(
            f"Expected the lock {path}; {error}. `git checkout` or `{UPDATE}` brings it back."
        ) from None
    entries = []
    sources: tuple[str, ...] = ()
    for line in filter(None, map(str.strip, lines)):
        if line.startswith("#"):
            sources = tuple(line.removeprefix(SOURCE).split(", ")) if line.startswith(SOURCE) else ()
            continue
        text, *hashes = line.split("--hash=sha256:")
        digests = tuple(digest.strip() for digest in hashes)
        try:
            wanted = Requirement(text.strip())
        except InvalidRequirement as error:
            raise ToolchainError(f"{path}: {error}. `{UPDATE}` writes it anew.") from None
        version = re.fullmatch(r"==([^,*\s]+)", str(wanted.specifier))
        if not version or not digests or any(not re.fullmatch(r"[0-9a-f]{64}", digest) for digest in digests):
            raise ToolchainError(
                f"{path}: expected NAME==VERSION and at least one --hash=sha256: of 64 digits; got {line[:120]!r}. "
                f"`{UPDATE}` writes it anew."
            )
        marker = str(wanted.marker) if wanted.marker else ""
        entries.append(Entry(canonicalize_name(wanted.name), version[1], digests, marker, sources))
        sources = ()
    return entries


def inputs(path: Path) -> list[Requirement]:
    """Reads a requirement file that people write.

    Raises:
        ToolchainError: it is not there or has a line that is no requirement.
    """
    try:
        lines = [line.partition("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines()]
        return [Requirement(line) for line in lines if line]
    except (OSError, InvalidRequirement) as error:
        raise ToolchainError(f"{path}: expected requirements, one a line; {error}.") from None


def versions_on(target: Target, entries: Iterable[Entry]) -> dict[str, set[str]]:
    """Returns the locked versions by package for a target; more than one is a fault."""
    found: dict[str, set[str]] = {}
    for entry in entries:
        if entry.is_for(target):
            found.setdefault(entry.name, set()).add(entry.version)
    return found


def disagreements(name: str, wanted: Sequence[tuple[str, Requirement]], entries: Sequence[Entry]) -> list[str]:
    """Compares requirements with the lock made from them.

    Args:
        name: of the lock, for the messages.
        wanted: the requirements, each with the name of its file.
        entries: the lines of the lock.

    Returns:
        A sentence for each requirement that is not in the lock, or in another version, and for each package that is
        there in two versions; the targets are named where it does not hold for all.
    """
    faults: dict[str, list[Target]] = {}
    for target in TARGETS:
        locked = versions_on(target, entries)
        for package, versions in locked.items():
            if len(versions) > 1:
                sentence = f"{name}: {package} is there in the versions {' and '.join(sorted(versions))}."
                faults.setdefault(sentence, []).append(target)
        for file, requirement in wanted:
            package = canonicalize_name(requirement.name)
            if package == PYTORCH or not target.satisfies(requirement.marker):
                continue
            found = locked.get(package, set())
            if not found or not all(requirement.specifier.contains(version, prereleases=True) for version in found):
                has = f"has {', '.join(sorted(found))}" if found else "lacks it"
                sentence = f"{name}: {file} wants {requirement.name}{requirement.specifier}, the lock {has}."
                faults.setdefault(sentence, []).append(target)
    return [
        sentence
        if len(targets) == len(TARGETS)
        else f"{sentence.removesuffix('.')}, for {', '.join(map(str, targets))}."
        for sentence, targets in faults.items()
    ]


def asks_for(entries: Iterable[Entry], requires: Iterable[str]) -> bool:
    """Says whether a package with these Requires-Dist lines needs any of some locked packages on this machine."""
    names = {entry.name for entry in entries}
    asked = [Requirement(line) for line in requires]
    return any(
        canonicalize_name(one.name) in names and (one.marker is None or one.marker.evaluate({"extra": ""}))
        for one in asked
    )

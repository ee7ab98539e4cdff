"""The native dependencies (Conan) and the C++ build (CMake)."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import archives, environments, lock, platforms
from .environments import TOOLS, script
from .home import conan_home_lock
from .layout import BUILD, CONAN, PYTHON_TAG, ROOT, conan_home
from .platforms import Platform
from .process import ToolchainError, captured, cores, is_offline, note, run
from .system import ensure_system_packages

BUILD_TYPES = ("Release", "RelWithDebInfo", "Debug")
PROFILES = {
    "x86": "Release",
    "armv8": "Release",
    "armv8-native": "Release",
    "address": "RelWithDebInfo",
    "thread": "RelWithDebInfo",
    "undefined": "RelWithDebInfo",
    "coverage": "Debug",
}


@dataclass(frozen=True)
class Flavour:
    """One way to build: a Conan profile and a build type.

    Attributes:
        profile: a file of conan/config/profiles; default: the one of this machine's platform.
        build_type: Release, RelWithDebInfo or Debug.
    """

    profile: str = field(default_factory=lambda: platforms.of_this_machine().profile)
    build_type: str = "Release"

    @property
    def platform(self) -> Platform:
        """The platform that the profile builds for."""
        return platforms.of_profile(self.profile)

    @property
    def name(self) -> str:
        """Name of the flavour's folders and of its preset in CMakePresets.json."""
        return f"{self.profile}-{self.build_type.lower()}"

    @property
    def dependencies(self) -> Path:
        """Where Conan leaves its CMake files."""
        return BUILD / "dependencies" / self.name

    @property
    def toolchain_file(self) -> Path:
        """The CMake toolchain file that Conan writes."""
        return self.dependencies / "conan_toolchain.cmake"

    @property
    def objects(self) -> Path:
        """The CMake build folder that the wheel and the tests share."""
        return BUILD / f"{self.name}-{PYTHON_TAG}"


def tool_environment() -> dict[str, str]:
    """Returns the variables under which CMake, Ninja and Conan run: the pinned tools first on the path."""
    path = f"{TOOLS.folder / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return {"PATH": path, "CONAN_HOME": str(conan_home()), "CMAKE_BUILD_PARALLEL_LEVEL": str(cores())}


def tool(command: list[str | Path], hint: str = "", environment: Mapping[str, str] | None = None) -> None:
    """Runs a program of the tools environment, with these variables besides `tool_environment`."""
    variables = {**tool_environment(), **(environment or {})}
    run([script(TOOLS, str(command[0])), *command[1:]], hint=hint, cwd=ROOT, environment=variables)


def parse_remotes(text: str) -> dict[str, str | None]:
    """Reads THRESHER_CONAN_REMOTES: names, or names with addresses, between commas.

    Returns:
        Address by name, None for a remote that Conan knows already, in the order given.

    Raises:
        ToolchainError: an entry is empty or has an empty name or address.
    """
    remotes: dict[str, str | None] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, equals, url = entry.partition("=")
        if not name or (equals and not url):
            raise ToolchainError(f"THRESHER_CONAN_REMOTES: expected NAME or NAME=ADDRESS,...; got {entry!r}.")
        remotes[name] = url or None
    return remotes


def _configure_conan(remotes: Mapping[str, str | None]) -> None:
    """Gives our Conan home the committed profiles and the recipes index of this very clone."""
    home = conan_home()
    digest = hashlib.sha256(str(ROOT).encode())
    for path in sorted(p for p in (CONAN / "config").rglob("*") if p.is_file()):
        digest.update(f"{path.relative_to(CONAN)}\0".encode() + path.read_bytes())
    stamp = home / "thresher-configuration"
    if not stamp.is_file() or stamp.read_text() != digest.hexdigest():
        tool(["conan", "config", "install", CONAN / "config"])
        tool(["conan", "remote", "add", "thresher", CONAN, "-t", "local-recipes-index", "--force"])
        stamp.write_text(digest.hexdigest())
    for name, url in remotes.items():
        if url:
            tool(["conan", "remote", "add", name, url, "--force"])


def _servers() -> list[str]:
    """Returns the options that name the Conan servers to ask: the recipes here first, and offline nobody else."""
    configured = {} if is_offline() else configured_remotes()
    return [part for name in ("thresher", *configured) for part in ("-r", name)]


def configured_remotes() -> dict[str, str | None]:
    """Returns the servers that THRESHER_CONAN_REMOTES names."""
    return parse_remotes(os.environ.get("THRESHER_CONAN_REMOTES", ""))


def _resolution(flavour: Flavour) -> list[str | Path]:
    """Returns the arguments with which Conan resolves a flavour's dependencies."""
    building = platforms.of_this_machine().profile
    profiles = ["-pr:h", flavour.profile, "-pr:b", building, "-s:h", f"build_type={flavour.build_type}"]
    return [CONAN, *profiles, *_servers(), "--lockfile", lock.LOCK, "--build=missing"]


def prepare(flavour: Flavour) -> None:
    """Configures Conan's home and compares the lock with the recipes; builds nothing.

    Raises:
        ToolchainError: there is no such profile, or the lock does not fit the recipes.
    """
    if flavour.profile not in PROFILES:
        raise ToolchainError(f"Unknown Conan profile {flavour.profile!r}; known: {', '.join(PROFILES)}.")
    environments.ensure(TOOLS)
    _configure_conan(configured_remotes())
    lock.enforce(flavour.profile)


def graph(flavour: Flavour) -> dict[str, Any]:
    """Returns Conan's graph of a prepared flavour; each node says whether its package is there or has to be built."""
    command = [script(TOOLS, "conan"), "graph", "info", *_resolution(flavour), "--format", "json"]
    content: dict[str, Any] = json.loads(captured(command, environment=tool_environment()))
    return content


def to_build(flavour: Flavour) -> list[str]:
    """Lists the dependencies (name/version) of a prepared flavour of which neither home nor server has a package."""
    nodes = graph(flavour)["graph"]["nodes"].values()
    return sorted(f"{node['name']}/{node['version']}" for node in nodes if node.get("binary") == "Build")


def install_dependencies(flavour: Flavour) -> None:
    """Builds or finds the native dependencies and writes their CMake files.

    Only the recipes of this repository are asked, unless THRESHER_CONAN_REMOTES names servers that hold packages built
    from them.

    Raises:
        ToolchainError: the lock does not fit the recipes, a source archive cannot be had, or a dependency does not
            build.
    """
    note(f"native dependencies of {flavour.name}; Conan home: {conan_home()}")
    with conan_home_lock():
        prepare(flavour)
        wanted = lock.references()
        if archives.missing(wanted):
            # A package that is there, from a server or a bundle, needs no sources.
            wanted = to_build(flavour)
        archives.fetch(wanted)
        tool(
            [
                *("conan", "install", *_resolution(flavour), "--output-folder", flavour.dependencies),
                *("-c", f"tools.build:jobs={cores()}"),
            ],
            hint=f"A damaged Conan home is cured by removing {conan_home()}.",
        )


def build_target(flavour: Flavour, *targets: str) -> None:
    """Compiles CMake targets in the build folder of a flavour."""
    build_in(flavour.objects, *targets, environment=object_sharing(flavour))


def build_in(folder: Path, *targets: str, environment: Mapping[str, str] | None = None) -> None:
    """Compiles CMake targets in a build folder, with these variables besides the usual ones."""
    tool(["cmake", "--build", folder, *(f"--target={target}" for target in targets)], environment=environment)


def object_sharing(flavour: Flavour, source: Path = ROOT) -> dict[str, str]:
    """Returns the variables with which ccache takes objects that another copy of the sources has compiled.

    Empty where the paths of the sources are in the objects, which they are for debuggers and sanitizers, and where
    $CCACHE_BASEDIR has been chosen.
    """
    if flavour.build_type != "Release" or "CCACHE_BASEDIR" in os.environ:
        return {}
    return {"CCACHE_BASEDIR": str(source), "CCACHE_NOHASHDIR": "true"}


def configure(flavour: Flavour, **options: bool) -> None:
    """Sets options of a build folder that was configured before; keeps all others."""
    tool(["cmake", *_defines(options), flavour.objects])


def configure_alone(flavour: Flavour, folder: Path | None = None, source: Path = ROOT, **options: bool) -> None:
    """Prepares a build without Python: the dependencies, and a configured build folder. No wheel, no PyTorch.

    Args:
        flavour: what to build.
        folder: the build folder; None: that of the flavour. One that a wheel was built in goes on building wheels.
        source: what to build: this clone or a copy of it.
        options: CMake options to set besides.

    Raises:
        ToolchainError: a dependency does not build, or CMake fails.
    """
    ensure_system_packages(flavour.platform.name)
    install_dependencies(flavour)
    folder = folder or flavour.objects
    command: list[str | Path] = ["cmake", "-S", source, "-B", folder, "-G", "Ninja"]
    if not (folder / "CMakeCache.txt").is_file():
        command += [f"-DCMAKE_TOOLCHAIN_FILE={flavour.toolchain_file}", f"-DCMAKE_BUILD_TYPE={flavour.build_type}"]
        command.append("-DTHRESHER_BUILD_PYTHON=OFF")
    tool([*command, *_defines(options)], hint=f"Removing {folder} starts afresh.")


def _defines(options: Mapping[str, bool]) -> list[str]:
    return [f"-D{name}={'ON' if value else 'OFF'}" for name, value in options.items()]


def run_ctest(flavour: Flavour, arguments: list[str], environment: Mapping[str, str] | None = None) -> None:
    """Runs the C++ tests of a build folder, with these variables besides the usual ones."""
    base: list[str | Path] = ["ctest", "--test-dir", flavour.objects, "--output-on-failure", "--no-tests=error"]
    tool([*base, "-j", str(cores()), *arguments], environment=environment)

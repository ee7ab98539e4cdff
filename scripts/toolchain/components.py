"""Whose code is inside a wheel: read from what Ninja linked and what the compilers opened, not kept by hand.

A header counts, since inline functions and templates of it are compiled in. What only describes an interface, the
headers of Python, of the C library and of the kernel, does not.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from . import archives, lock
from .environments import TOOLS, script
from .layout import REQUIREMENTS, ROOT
from .process import ToolchainError, captured, output

SYSTEM_FOLDERS = ("/usr/", "/opt/rh/", "/lib/")
# The folders below PyTorch's include/ that are PyTorch's own; the others are of third parties that it carries.
PYTORCH_FOLDERS = ("ATen", "c10", "caffe2", "torch")
EMPTY_ARCHIVE = b"!<arch>\n"
# Interfaces and our own sources: nothing to list.
NOBODY = ""


@dataclass(frozen=True)
class Licence:
    """The terms of a component.

    Attributes:
        expression: as SPDX writes it, or the name of a licence that SPDX does not know.
        text: the file in licenses/.
    """

    expression: str
    text: str


KNOWN = {
    "highway": Licence("Apache-2.0 OR BSD-3-Clause", "highway.txt"),
    "nanobind": Licence("BSD-3-Clause", "nanobind.txt"),
    "robin_map": Licence("MIT", "robin_map.txt"),
    "libstdc++": Licence("GPL-3.0-or-later WITH GCC-exception-3.1", "gcc-runtime-exception.txt"),
    "pytorch": Licence("BSD-3-Clause", "pytorch.txt"),
    "kineto": Licence("BSD-3-Clause", "kineto.txt"),
    "fmt": Licence("MIT", "fmt.txt"),
    "cuda-runtime": Licence("NVIDIA Software License Agreement", "nvidia-cuda-runtime.txt"),
}


@dataclass(frozen=True)
class Component:
    """Something by somebody else of which code is inside a wheel.

    Attributes:
        name: one of KNOWN.
        version: of it.
        purl: its package URL.
        linked: whether an archive of it is linked; else only its headers are compiled in.
        sha256: of the pinned archive it is built from, where there is one.
    """

    name: str
    version: str
    purl: str
    linked: bool
    sha256: str | None = None

    @property
    def licence(self) -> Licence:
        """Its terms."""
        return KNOWN[self.name]


@dataclass
class Evidence:
    """What a build opened and linked.

    Attributes:
        linked: static libraries, and sources that are compiled.
        headers: every file that a compiler opened.
        compiler: what linked.
        static_runtime: whether libstdc++ is linked in.
    """

    linked: set[Path] = field(default_factory=set)
    headers: set[Path] = field(default_factory=set)
    compiler: str = "g++"
    static_runtime: bool = False


def evidence(objects: Path, targets: Sequence[str]) -> Evidence:
    """Asks Ninja what the targets of a build folder are made of.

    Raises:
        ToolchainError: the folder holds no finished build of them.
    """
    ninja: list[str | Path] = [script(TOOLS, "ninja"), "-C", objects, "--quiet", "-t"]
    hint = f"Removing {objects} and building again cures it."
    found = Evidence()
    inputs = set(captured([*ninja, "inputs", *targets], hint=hint).splitlines())
    linked = {_absolute(objects, name) for name in inputs if name.endswith((".a", ".cpp", ".cc", ".cu", ".c"))}
    found.linked = {path for path in linked if not is_empty_archive(path)}
    compiled = False
    for line in captured([*ninja, "deps"], hint=hint).splitlines():
        if not line.startswith(" "):
            compiled = line.partition(": #deps")[0] in inputs
        elif compiled:
            found.headers.add(_absolute(objects, line.strip()))
    if not found.headers:
        raise ToolchainError(f"Expected the headers that {', '.join(targets)} were compiled with; got none. {hint}")
    for target in targets:
        last = captured([*ninja, "commands", target], hint=hint).splitlines()[-1:]
        parts = shlex.split(last[0]) if last else []
        found.static_runtime |= "-static-libstdc++" in parts
        found.compiler = next((p for p in parts if re.search(r"(g|clang)\+\+[-.\d]*$", p)), found.compiler)
    return found


def is_empty_archive(path: Path) -> bool:
    """Says whether there is nothing in a static library, as in librt.a since it is part of the C library."""
    try:
        return path.suffix == ".a" and path.stat().st_size == len(EMPTY_ARCHIVE) and path.read_bytes() == EMPTY_ARCHIVE
    except OSError:
        return False


def _absolute(folder: Path, name: str) -> Path:
    return Path(os.path.normpath(folder / name))


def conan_packages(dependencies: Path) -> dict[str, Path]:
    """Returns the folders of the packages that Conan installed for a flavour, by name."""
    found = {}
    for path in sorted(dependencies.glob("*-data.cmake")):
        text = path.read_text(encoding="utf-8")
        for name, folder in re.findall(r'^set\((\w+?)_PACKAGE_FOLDER_\w+ "([^"]+)"\)', text, re.MULTILINE):
            found[name] = Path(folder)
    return found


def owners(found: Evidence, objects: Path, dependencies: Path) -> list[tuple[Path, str]]:
    """Lists the folders whose owner is known, innermost first: a name of KNOWN, or NOBODY."""
    known = [(folder, name) for name, folder in conan_packages(dependencies).items()]
    known += [(ROOT / "src", NOBODY), (ROOT / "cuda", NOBODY), (objects, NOBODY)]
    for path in found.headers:
        if path.name == "Python.h":
            known.append((path.parent, NOBODY))
        elif path.name == "cuda_runtime_api.h":
            known.append((path.parent, "cuda-runtime"))
        elif path.parts[-3:] == ("include", "nanobind", "nanobind.h"):
            package = path.parents[2]
            known.append((package, "nanobind"))
            known += [(folder, folder.name) for folder in (package / "ext").glob("*")]
        elif "/torch/include/" in str(path):
            include = Path(str(path).partition("/torch/include/")[0]) / "torch" / "include"
            known += [(include / name, "pytorch") for name in PYTORCH_FOLDERS]
            known += [(include / name, name) for name in ("kineto", "fmt")]
    return sorted(set(known), key=lambda entry: -len(entry[0].parts))


def owner(path: Path, known: Sequence[tuple[Path, str]]) -> str | None:
    """Says whose a file is; None where nobody knows."""
    for folder, name in known:
        if path.is_relative_to(folder):
            return name if name in KNOWN or name == NOBODY else None
    if path.name.startswith(("libcudart_static", "libcudadevrt")):
        return "cuda-runtime"
    if str(path).startswith(SYSTEM_FOLDERS) and path.suffix != ".a":
        return "libstdc++" if re.search(r"/c\+\+/\d", str(path)) else NOBODY
    return None


@dataclass(frozen=True)
class Contents:
    """What is inside a wheel.

    Attributes:
        components: sorted by name.
        unknown: files of which nobody knows whose they are.
    """

    components: tuple[Component, ...]
    unknown: tuple[str, ...]


def contents(objects: Path, dependencies: Path, targets: Sequence[str]) -> Contents:
    """Finds out whose code the targets of a build folder contain.

    Args:
        objects: CMake's build folder, after the build.
        dependencies: where Conan left its CMake files.
        targets: what goes into the wheel.

    Raises:
        ToolchainError: the folder holds no finished build, or a version cannot be found.
    """
    found = evidence(objects, targets)
    known = owners(found, objects, dependencies)
    linked = {owner(path, known) for path in found.linked}
    opened: dict[str | None, list[Path]] = {}
    for path in sorted(found.headers | found.linked):
        opened.setdefault(owner(path, known), []).append(path)
    unknown = tuple(str(path) for path in opened.pop(None, []))
    opened.pop(NOBODY, None)
    if found.static_runtime:
        linked.add("libstdc++")
        opened.setdefault("libstdc++", [])
    components = [_component(str(name), name in linked, files, found) for name, files in opened.items()]
    return Contents(tuple(sorted(components, key=lambda component: component.name)), unknown)


def _component(name: str, linked: bool, files: Sequence[Path], found: Evidence) -> Component:
    locked = dict(reference.split("/") for reference in lock.references())
    if name in locked:
        named = [a.sha256 for a in archives.named() if a.dependency == f"{name}/{locked[name]}"]
        # Two archives of one version may hold the same sources; which one was taken is not kept.
        sha256 = named[0] if len(named) == 1 else None
        return Component(name, locked[name], f"pkg:conan/{name}@{locked[name]}", linked, sha256)
    if name == "nanobind":
        version = _search(REQUIREMENTS / "build.txt", r"^nanobind==([\w.]+)")
        return Component(name, version, f"pkg:pypi/nanobind@{version}", linked)
    if name == "libstdc++":
        version = output([found.compiler, "-dumpfullversion", "-dumpversion"]) or "unknown"
        return Component(name, version, f"pkg:generic/gcc@{version}", linked)
    if name == "robin_map":
        version = _macros(files, "robin_growth_policy.h", "TSL_RH_VERSION_", ("MAJOR", "MINOR", "PATCH"))
        return Component(name, version, f"pkg:github/tessil/robin-map@v{version}", linked)
    if name == "fmt":
        number = int(_macros(files, "base.h", "FMT_", ("VERSION",)))
        version = f"{number // 10000}.{number // 100 % 100}.{number % 100}"
        return Component(name, version, f"pkg:github/fmtlib/fmt@{version}", linked)
    if name == "cuda-runtime":
        number = int(_macros(files, "cuda_runtime_api.h", "CUDART_", ("VERSION",)))
        version = f"{number // 1000}.{number % 1000 // 10}"
        return Component(name, version, f"pkg:generic/cuda-cudart@{version}", linked)
    version = _torch_version(found)
    if name == "kineto":
        # It has no version of its own there.
        return Component(name, f"as in PyTorch {version}", "pkg:github/pytorch/kineto", linked)
    return Component(name, version, f"pkg:pypi/torch@{version}", linked)


def _torch_version(found: Evidence) -> str:
    """Returns the version of the PyTorch whose headers were opened."""
    names = ("TORCH_VERSION_MAJOR", "TORCH_VERSION_MINOR", "TORCH_VERSION_PATCH")
    versions = set()
    for include in {str(p).partition("/torch/include/")[0] for p in found.headers if "/torch/include/" in str(p)}:
        header = Path(include) / "torch" / "include" / "torch" / "headeronly" / "version.h"
        versions.add(".".join(_search(header, rf"#define {name} (\d+)") for name in names))
    return ", ".join(sorted(versions))


def _macros(files: Sequence[Path], header: str, prefix: str, names: Sequence[str]) -> str:
    path = next((path for path in files if path.name == header), Path(header))
    return ".".join(_search(path, rf"#define {prefix}{name} +(\d+)") for name in names)


def _search(path: Path, pattern: str) -> str:
    try:
        match = re.search(pattern, path.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError as error:
        raise ToolchainError(f"Expected to read a version from {path}; {error}.") from error
    if not match:
        raise ToolchainError(f"Expected a version of the form {pattern} in {path}; got none. Mend {__name__}.")
    return match[1]

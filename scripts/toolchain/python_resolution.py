"""The locks of all environments: whether they agree with the requirement files, and writing them anew with uv."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.markers import Marker
from packaging.utils import canonicalize_name, parse_wheel_filename

from . import environments, python_lock
from .environments import ALL, LOCKER, MODEL, SETUPTOOLS, TORCH_CUDA, Environment
from .layout import BUILD, REQUIREMENTS, ROOT, scratch_folder
from .lock import Change
from .process import ToolchainError, note, output
from .python_lock import MACHINES, PYTHONS, TARGETS, Entry, Target

# What only builds of PyTorch for NVIDIA GPUs ask for.
FOR_CUDA = re.compile(r"(nvidia|cuda)-.*|triton")
PROJECT = f"""\
[project]
name = "locks"
version = "0"
requires-python = ">={PYTHONS[0]}"

[tool.uv]
environments = [
{"".join(f'''  "sys_platform == 'linux' and platform_machine == '{machine}'",{chr(10)}''' for machine in MACHINES)}]
"""


def faults() -> list[str]:
    """Returns what is wrong with the locks, as sentences; looks at files only.

    Every requirement has to be in its lock in the version it names. No target may get a package in two versions, not
    even one from the lock of an environment that this one stands on. Every lock has to be of an environment.
    """
    found: list[str] = []
    for environment in ALL:
        try:
            wanted = environments.requirements_of(environment)
            entries = environments.locked_for(environment)
        except ToolchainError as error:
            found.append(str(error))
            continue
        found += python_lock.disagreements(environment.lock.name, wanted, entries)
        for file, requirement in wanted:
            if [specifier.operator for specifier in requirement.specifier] != ["=="]:
                found.append(f"{file}: expected NAME==VERSION; got {requirement}.")
    names = {environment.lock.name for environment in ALL} | {environments.lock_file(TORCH_CUDA).name}
    locks = REQUIREMENTS / "locks"
    found += [f"{path}: no environment has this lock; remove it." for path in locks.glob("*") if path.name not in names]
    files = {path for environment in ALL for path in environment.files}
    found += [f"{path}: no environment uses it; remove it." for path in REQUIREMENTS.glob("*.txt") if path not in files]
    return sorted(set(found))


def check() -> str:
    """Carries out the check of `nox -s deps -- --verify`.

    Raises:
        ToolchainError: locks and requirement files do not agree.
    """
    if wrong := faults():
        raise ToolchainError("\n".join([*wrong, f"`{python_lock.UPDATE}` locks what the requirement files say."]))
    locks = sorted((REQUIREMENTS / "locks").glob("*.txt"))
    entries = [entry for path in locks for entry in python_lock.read(path)]
    files = {digest for entry in entries for digest in entry.sha256}
    packages = {(entry.name, entry.version) for entry in entries}
    pythons = f"Python {PYTHONS[0]} to {PYTHONS[-1]}, {' and '.join(MACHINES)}"
    return f"{len(locks)} locks: {len(packages)} packages, {len(files)} files with their sha256, for {pythons}"


def update(*, keep: bool) -> list[Change]:
    """Writes all locks anew.

    Args:
        keep: stay with every locked version that fits the requirement files, instead of taking the newest.

    Returns:
        What changed; names are LOCK:PACKAGE.

    Raises:
        ToolchainError: the requirements exclude each other, or the package index cannot be reached.
    """
    uv, index = _uv(), _index()
    written: dict[Path, str] = {}
    resolved: dict[str, list[Entry]] = {}
    changes: list[Change] = []
    for environment in ALL:
        if environment.locked_as:
            continue
        note(f"resolving {environment.lock.name}")
        below = resolved[environment.base.name] if environment.base else []
        before = _present(environment.lock) if keep else []
        entries = _resolve(uv, index, environment, below, before)
        parts = {environment.lock: entries}
        if environment is MODEL:
            parts = {environment.lock: [entry for entry in entries if not FOR_CUDA.fullmatch(entry.name)]}
            parts[environments.lock_file(TORCH_CUDA)] = [entry for entry in entries if FOR_CUDA.fullmatch(entry.name)]
        resolved[environment.name] = [*below, *entries]
        for path, own in parts.items():
            changes += differences(path, _present(path), own)
            written[path] = python_lock.to_text(own, [file.name for file in environment.files])
    # All or nothing: locks of environments that stand on one another belong together.
    for path, text in written.items():
        path.parent.mkdir(exist_ok=True)
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    return changes


def differences(path: Path, old: Iterable[Entry], new: Iterable[Entry]) -> list[Change]:
    """Lists the packages of one lock that differ, by name."""

    def versions(entries: Iterable[Entry]) -> dict[str, str]:
        lines: dict[str, list[str]] = {}
        for entry in entries:
            lines.setdefault(entry.name, []).append(entry.version + (f" ({entry.marker})" if entry.marker else ""))
        return {name: ", ".join(sorted(set(found))) for name, found in lines.items()}

    def files(entries: Iterable[Entry]) -> dict[str, set[str]]:
        digests: dict[str, set[str]] = {}
        for entry in entries:
            digests.setdefault(entry.name, set()).update(entry.sha256)
        return digests

    before, after, old_files, new_files = versions(old), versions(new), files(old), files(new)
    changes = []
    for name in sorted({*before, *after}):
        was, becomes = before.get(name), after.get(name)
        if was and was == becomes and (more := new_files[name] ^ old_files[name]):
            becomes = f"{was} with {len(more)} other files"
        if was != becomes:
            changes.append(Change(f"{path.stem}:{name}", was, becomes))
    return changes


def _present(path: Path) -> list[Entry]:
    return python_lock.read(path) if path.is_file() else []


def _uv() -> Path:
    """Returns uv; where its own lock does not fit, as after a new pin, one that was installed without it."""
    try:
        environments.ensure(LOCKER)
        return environments.script(LOCKER, "uv")
    except ToolchainError as error:
        note(f"uv is installed without its lock, which is about to be written: {error}")
    folder = BUILD / "locker"
    environments.create(folder)
    arguments: list[str | Path] = ["-r", REQUIREMENTS / "uv.txt"]
    environments.run_pip(folder / "bin" / "python", "install", arguments)
    return folder / "bin" / "uv"


def _index() -> dict[str, str]:
    """Returns the variables that show uv the package index that pip asks.

    Only the main index counts: others, and folders of wheels, hold some files of a release, and a lock needs all.
    """
    python: Sequence[str | Path] = [sys.executable, "-m", "pip", "config", "get"]
    variables = {"UV_CACHE_DIR": str(BUILD / "uv")}
    if index := os.environ.get("PIP_INDEX_URL") or output([*python, "global.index-url"]):
        variables["UV_DEFAULT_INDEX"] = index
    if "SSL_CERT_FILE" not in os.environ and (
        certificates := os.environ.get("PIP_CERT") or output([*python, "global.cert"])
    ):
        variables["SSL_CERT_FILE"] = certificates
    return variables


def _resolve(
    uv: Path, index: Mapping[str, str], environment: Environment, below: Sequence[Entry], before: Sequence[Entry]
) -> list[Entry]:
    """Returns the packages of an environment, less those that the ones below it have, as good as uv can find them."""
    fixed = [str(one) for one in below]
    if environment.base:
        fixed += (REQUIREMENTS / environments.PYTORCH).read_text(encoding="utf-8").splitlines()
    if environment is not SETUPTOOLS:
        fixed += SETUPTOOLS.files[0].read_text(encoding="utf-8").splitlines()
    direct = {canonicalize_name(one.name) for _, one in environments.requirements_of(environment)}
    fixed += [str(one) for one in before if one.name not in direct]
    files = [REQUIREMENTS / name for name in environment.requirements]
    alone = [REQUIREMENTS / name for name in environment.without_dependencies]
    packages = _compile(uv, index, files, fixed)
    if alone:
        packages += _compile(uv, index, alone, [], "--no-deps")
    entries = [_entry(package) for package in packages if package["name"] != python_lock.PYTORCH]
    covered = {(entry.name, entry.version, target) for entry in below for target in TARGETS if entry.is_for(target)}
    return [
        entry
        for entry in entries
        if any(entry.is_for(target) and (entry.name, entry.version, target) not in covered for target in TARGETS)
    ]


def _compile(
    uv: Path, index: Mapping[str, str], files: Sequence[Path], constraints: Sequence[str], *options: str
) -> list[dict[str, Any]]:
    """Lets uv resolve requirement files; returns the packages as PEP 751 describes them."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    with scratch_folder() as scratch:
        folder = Path(scratch)
        (folder / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
        (folder / "constraints.txt").write_text("\n".join(constraints) + "\n", encoding="utf-8")
        command: list[str | Path] = [uv, "pip", "compile", "--quiet", "--universal", "--no-header", *options]
        command += ["--python", sys.executable, "--python-version", PYTHONS[0], "--format", "pylock.toml"]
        command += ["--constraint", "constraints.txt", "--output-file", "pylock.toml", *files]
        done = subprocess.run(command, cwd=folder, env={**os.environ, **index}, capture_output=True, text=True)
        if done.returncode != 0:
            names = ", ".join(str(path.relative_to(ROOT)) for path in files)
            raise ToolchainError(f"uv found no versions that fit {names}:\n{done.stderr.strip()}")
        content = tomllib.loads((folder / "pylock.toml").read_text(encoding="utf-8"))
    packages: list[dict[str, Any]] = content.get("packages", [])
    return packages


def _entry(package: Mapping[str, Any]) -> Entry:
    """Makes a line of a lock: the files that one of the targets can install, and a short marker."""
    name, version = str(package["name"]), str(package["version"])
    marker = Marker(package["marker"]) if package.get("marker") else None
    targets = [target for target in TARGETS if target.satisfies(marker)]
    if not targets:
        raise ToolchainError(f"{name} {version}: uv wants it for none of {', '.join(map(str, TARGETS))}.")
    digests: set[str] = set()
    without = set(targets)
    for wheel in package.get("wheels", []):
        served = {target for target in targets if fits(wheel_name(wheel), target)}
        if served:
            digests.add(wheel["hashes"]["sha256"])
        without -= served
    sources: tuple[str, ...] = ()
    if without:
        if "sdist" not in package:
            raise ToolchainError(
                f"{name} {version} has neither wheel nor source archive for {', '.join(map(str, sorted(without)))}. "
                "Choose another version, or give its line in requirements/ a marker."
            )
        digests.add(package["sdist"]["hashes"]["sha256"])
        sources = ("everywhere",) if len(without) == len(targets) else tuple(str(t) for t in TARGETS if t in without)
    return Entry(canonicalize_name(name), version, tuple(sorted(digests)), marker_for(targets), sources)


def wheel_name(wheel: Mapping[str, Any]) -> str:
    """Returns the file name of a wheel of a PEP 751 file."""
    return str(wheel.get("name") or str(wheel["url"]).partition("#")[0].rpartition("/")[2])


def fits(name: str, target: Target) -> bool:
    """Says whether a wheel can be installed on a target, with glibc; how new glibc has to be is left to pip."""
    minor = int(target.python.partition(".")[2])
    for tag in parse_wheel_filename(name)[3]:
        linux = tag.platform.startswith(("manylinux", "linux")) and tag.platform.endswith(f"_{target.machine}")
        if tag.platform != "any" and not linux:
            continue
        kind, digits = tag.interpreter[:2], tag.interpreter[2:]
        if kind == "py" and tag.abi == "none":
            python = digits == "3" or (digits.startswith("3") and int(digits[1:]) <= minor)
        elif kind == "cp" and tag.abi == "abi3":
            python = digits == "3" or int(digits[1:]) <= minor
        else:
            python = kind == "cp" and digits == f"3{minor}" and tag.abi in (f"cp3{minor}", "none")
        if python:
            return True
    return False


def marker_for(targets: Sequence[Target]) -> str:
    """Returns the shortest marker that holds on some targets and on no other one; empty for all of them."""
    by_machine = {machine: [t.python for t in TARGETS if t.machine == machine and t in targets] for machine in MACHINES}
    if len({tuple(pythons) for pythons in by_machine.values()}) == 1:
        return _python_marker(next(iter(by_machine.values())))
    parts = []
    for machine, pythons in by_machine.items():
        if pythons:
            python = _python_marker(pythons)
            parts.append(f'platform_machine == "{machine}"' + (f" and {python}" if python else ""))
    return parts[0] if len(parts) == 1 else " or ".join(f"({part})" for part in parts)


def _python_marker(pythons: Sequence[str]) -> str:
    first, last = PYTHONS.index(pythons[0]), PYTHONS.index(pythons[-1])
    if tuple(pythons) != PYTHONS[first : last + 1]:
        return "(" + " or ".join(f'python_version == "{python}"' for python in pythons) + ")"
    bounds = [f'python_version >= "{pythons[0]}"'] if first else []
    bounds += [f'python_version < "{PYTHONS[last + 1]}"'] if last + 1 < len(PYTHONS) else []
    return " and ".join(bounds)

"""All that a build needs, in one file, for machines without a network.

A bundle is a plain tar file. Its first member, manifest.json, names the others with their SHA-256:

    conan.tgz               the built packages and their recipes, as `conan cache save` writes them
    sources/SHA256          source archives, for a compiler that the packages do not fit
    wheels/SET/*.whl        the wheels of the sets of toolchain/wheelhouse.py
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Any

from . import archives, lock, native, wheelhouse
from .environments import TOOLS, ensure, script
from .home import conan_home_lock
from .layout import PYTHON_TAG, scratch_folder
from .native import Flavour
from .process import ToolchainError, captured, note

FORMAT = 1
WITHOUT_TORCH = ("nox", "tools", "runtime")
WITH_TORCH = (*WITHOUT_TORCH, "model")
MANIFEST = "manifest.json"
PACKAGES = "conan.tgz"


def pack(target: Path, flavour: Flavour, sets: Sequence[str]) -> None:
    """Packs what `nox -s build -- --offline` needs.

    Args:
        target: the file to write.
        flavour: whose native packages go in; they are built where they are missing.
        sets: the sets of wheels that go in; a build without profiler shim can do without the set "model".

    Raises:
        ToolchainError: something cannot be had here either, or the file cannot be written.
    """
    native.install_dependencies(flavour)
    files = {f"wheels/{name}/{path.name}": path for name in sets for path in sorted(wheelhouse.keep(name).iterdir())}
    with conan_home_lock(), scratch_folder() as scratch:
        # Packages from a server came without sources; a bundle has both.
        archives.fetch(lock.references())
        for archive in archives.named():
            if archive.dependency in lock.references() and archive.path.is_file():
                files[f"sources/{archive.sha256}"] = archive.path
        files[PACKAGES] = _save_packages(flavour, Path(scratch))
        partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
        try:
            _write(partial, files)
            partial.replace(target)
        except OSError as error:
            raise ToolchainError(
                f"Expected to write {target}; {error}. Free some space or name another file."
            ) from error
        finally:
            partial.unlink(missing_ok=True)
    parts = ", ".join([*sets, "packages", "sources"])
    note(f"bundle: {target} ({target.stat().st_size / 2**20:.0f} MiB, {len(files)} files: {parts})")


def _save_packages(flavour: Flavour, scratch: Path) -> Path:
    graph, chosen, saved = scratch / "graph.json", scratch / "packages.json", scratch / PACKAGES
    graph.write_text(json.dumps(native.graph(flavour)), encoding="utf-8")
    conan, environment = script(TOOLS, "conan"), native.tool_environment()
    listing = captured([conan, "list", "--graph", graph, "--format", "json"], environment=environment)
    chosen.write_text(listing, encoding="utf-8")
    captured([conan, "cache", "save", "--list", chosen, "--file", saved], environment=environment)
    return saved


def _write(path: Path, files: dict[str, Path]) -> None:
    manifest = {
        "format": FORMAT,
        "python": PYTHON_TAG,
        "machine": platform.machine(),
        "lock": lock.entries_of(lock.read_lock()),
        "files": {name: archives.sha256_of(source) for name, source in sorted(files.items())},
    }
    content = json.dumps(manifest, indent=1).encode()
    with tarfile.open(path, "w") as tar:
        info = tarfile.TarInfo(MANIFEST)
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
        for name, source in sorted(files.items()):
            info = tarfile.TarInfo(name)
            info.size = source.stat().st_size
            with source.open("rb") as data:
                tar.addfile(info, data)


def unpack(source: Path) -> None:
    """Puts the content of a bundle where the build looks for it; what is there already stays.

    Raises:
        ToolchainError: the bundle is damaged or made for another Python, machine or set of recipes.
    """
    try:
        with tarfile.open(source, "r:") as tar, scratch_folder() as scratch:
            manifest = _manifest(source, tar)
            for name, sha256 in manifest["files"].items():
                _extract(source, tar, name, sha256, Path(scratch))
            _place(Path(scratch))
    except (OSError, tarfile.TarError) as error:
        raise ToolchainError(f"Expected to unpack the bundle {source}; {error}.") from error
    note(f"restored {len(manifest['files'])} files from {source}; `nox -s build -- --offline` builds with them")


def _manifest(source: Path, tar: tarfile.TarFile) -> dict[str, Any]:
    """Reads the manifest and compares it with this machine and clone."""
    try:
        manifest: dict[str, Any] = json.loads(_member(tar, MANIFEST).read())
        found = (manifest["format"], manifest["python"], manifest["machine"], manifest["lock"])
        manifest["files"].items()
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise ToolchainError(
            f"{source}: expected a bundle of `nox -s deps -- --bundle`; got none ({error})."
        ) from error
    wanted = (FORMAT, PYTHON_TAG, platform.machine(), lock.entries_of(lock.read_lock()))
    for what, here, there in zip(("format", "Python", "machine", "lock file"), wanted, found, strict=True):
        if here != there:
            raise ToolchainError(
                f"{source}: expected a bundle for {what} {here}; got {there}. Pack it from this commit on a machine "
                "with the same Python version and architecture."
            )
    return manifest


def _member(tar: tarfile.TarFile, name: str) -> IO[bytes]:
    member = tar.extractfile(name)
    if member is None:
        raise KeyError(f"{name} is no file")
    return member


def _extract(source: Path, tar: tarfile.TarFile, name: str, sha256: str, folder: Path) -> None:
    """Copies one member into a folder.

    Raises:
        ToolchainError: its name leads out of the folder, it is missing or its hash is another.
    """
    parts = PurePosixPath(name).parts
    if ".." in parts or name.startswith("/") or parts[0] not in ("wheels", "sources", PACKAGES):
        raise ToolchainError(f"{source}: {name!r} does not belong into a bundle.")
    target = folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    try:
        with _member(tar, name) as data, target.open("wb") as out:
            while block := data.read(1 << 20):
                digest.update(block)
                out.write(block)
    except KeyError as error:
        raise ToolchainError(f"{source} is cut off: {error}. Copy it again.") from error
    if digest.hexdigest() != sha256:
        raise ToolchainError(f"{source}: {name}: expected sha256 {sha256}, got {digest.hexdigest()}. Copy it again.")


def _place(scratch: Path) -> None:
    for folder in sorted((scratch / "wheels").glob("*")):
        wheelhouse.adopt(folder)
    with conan_home_lock():
        archives.cache().mkdir(parents=True, exist_ok=True)
        for file in sorted((scratch / "sources").iterdir()):
            partial = archives.cache() / f".{file.name}.{os.getpid()}"
            shutil.copyfile(file, partial)
            partial.replace(archives.cache() / file.name)
        wheelhouse.offer()
        ensure(TOOLS)
        captured(
            [script(TOOLS, "conan"), "cache", "restore", scratch / PACKAGES], environment=native.tool_environment()
        )

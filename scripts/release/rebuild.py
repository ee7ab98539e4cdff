"""Wheels built from a commit and nothing else, in folders of their own."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from toolchain import cuda, environments
from toolchain.environments import MODEL, NOX
from toolchain.layout import BUILD, DIST, conan_home
from toolchain.platforms import CUDA, PLATFORMS, Platform, of_this_machine
from toolchain.process import ToolchainError, captured, cores, note, run

from .interpreter import Interpreter

FOLDER = BUILD / "release"
# The user's shell may neither change what is compiled nor let the compiler's cache take objects of other folders.
UNSET = ("CCACHE_NOHASHDIR", "PYTHONPATH", "CXXFLAGS", "CFLAGS", "LDFLAGS")
NO_SHARING = {"CCACHE_BASEDIR": ""}


@dataclass(frozen=True)
class Place:
    """Where and how a wheel is built. Two places differ in all that must not matter.

    Attributes:
        folder: the sources are unpacked below it.
        umask: of all that runs there, and of the sources.
        variables: of the build.
        own_conan_home: whether the native dependencies are built there, too, from the archives that are here.
    """

    folder: Path
    umask: str
    variables: Mapping[str, str]
    own_conan_home: bool = False

    @property
    def source(self) -> Path:
        """The unpacked commit."""
        return self.folder / "thresher"

    @property
    def build(self) -> Path:
        """Stands for build/."""
        return self.folder / "build"


FIRST = Place(FOLDER / "first", "022", {"TZ": "UTC", "CMAKE_BUILD_PARALLEL_LEVEL": str(cores())})
SECOND = Place(
    FOLDER / "second" / "and-in-a-folder-with-a-longer-name",
    "077",
    {
        "TZ": "Asia/Kathmandu",
        "LC_ALL": "C",
        "CMAKE_BUILD_PARALLEL_LEVEL": str(cores() + 1),
        # A cache would hand out the objects of the first build.
        "CCACHE_DISABLE": "1",
    },
    own_conan_home=True,
)


def epoch(root: Path) -> str:
    """Returns the time of the commit, in seconds since 1970."""
    return captured(["git", "-C", root, "log", "-1", "--format=%ct"]).strip()


def unpack(root: Path, place: Place) -> None:
    """Unpacks the commit that is checked out, into a place that is empty before."""
    shutil.rmtree(place.folder, ignore_errors=True)
    place.source.mkdir(parents=True)
    command = ["git", "-C", str(root), "-c", f"tar.umask={place.umask}", "archive", "--format=tar", "HEAD"]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode != 0:
        raise ToolchainError(f"git archive failed: {done.stderr.decode(errors='replace').strip()}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        # Python before 3.11.4 has no filters; what git archives has no names that lead elsewhere.
        archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, path: member)
        for member in archive:
            # Each place has its own times.
            member.mtime = time.time()
            archive.extract(member, place.source)
    if place.own_conan_home:
        kept = conan_home() / "sources"
        if kept.is_dir():
            shutil.copytree(kept, place.build / "conan" / "sources")


def torch_folder(place: Place) -> Path:
    """Returns a folder of the pinned PyTorch, by another name in each place."""
    environments.ensure(MODEL)
    link = place.folder / "site-packages" / "torch"
    if not link.exists():
        link.parent.mkdir(parents=True)
        link.symlink_to(MODEL.site_packages / "torch", target_is_directory=True)
    return link


def python_with_nox(interpreter: Interpreter) -> Path:
    """Returns an interpreter of a version that has nox; the one that runs this where it is of that version."""
    if Path(sys.executable) == interpreter.path:
        return interpreter.path
    folder = FOLDER / f"nox-{interpreter.tag}"
    python = folder / "bin" / "python"
    if not (folder / "bin" / "nox").exists():
        shutil.rmtree(folder, ignore_errors=True)
        create(folder, interpreter)
        environments.run_pip(python, "install", ["--quiet", "--require-hashes", "-r", environments.lock_file(NOX.name)])
    return python


def create(folder: Path, interpreter: Interpreter) -> None:
    """Makes an empty environment of an interpreter."""
    command: list[str | Path] = [sys.executable, "-m", "virtualenv", "--quiet", "--no-download"]
    command += ["--app-data", BUILD / "virtualenv", "-p", interpreter.path, folder]
    run(command, hint="virtualenv comes with nox; `pip install virtualenv` mends it.")


def build(root: Path, place: Place, interpreter: Interpreter, platform: Platform | None = None) -> Path:
    """Builds a wheel in a place and leaves it there, proven in an empty environment.

    Args:
        root: the clone, for the time of its commit.
        place: where the commit lies unpacked.
        interpreter: whose wheel.
        platform: CUDA, or None for this machine's.

    Returns:
        The wheel.

    Raises:
        ToolchainError: a step failed.
    """
    platform = platform or of_this_machine()
    out = place.folder / f"dist-{platform.name}-{interpreter.tag}"
    shutil.rmtree(out, ignore_errors=True)
    variables = {
        **place.variables,
        **NO_SHARING,
        "SOURCE_DATE_EPOCH": epoch(root),
        "THRESHER_BUILD_DIR": str(place.build),
        "THRESHER_DIST_DIR": str(out),
        "THRESHER_CONAN_HOME": str(place.build / "conan" if place.own_conan_home else conan_home()),
    }
    options: Sequence[str | Path]
    if platform is CUDA:
        variables["CUDACXX"] = str(cuda.compiler())
        options = ["--platform", CUDA.name]
    else:
        options = ["--torch-shim", torch_folder(place)]
    note(f"building for Python {interpreter.version} in {place.folder}")
    run(
        [
            *("sh", "-c", 'umask "$0" && exec "$@"', place.umask, "env", *(f"--unset={name}" for name in UNSET)),
            *(f"{name}={value}" for name, value in variables.items()),
            *(python_with_nox(interpreter), "-m", "nox", "-f", place.source / "noxfile.py", "-s", "build", "--"),
            *options,
        ],
        cwd=place.source,
        name=f"the build for Python {interpreter.version} in {place.folder}",
        hint="Its own message is above.",
    )
    wheels = sorted(out.glob("*.whl"))
    if len(wheels) != 1:
        raise ToolchainError(f"Expected one wheel in {out}; got {[path.name for path in wheels]}.")
    return wheels[0]


def publish(wheel: Path) -> Path:
    """Moves a copy of a wheel into dist/, in place of older ones for the same Python and architecture."""
    DIST.mkdir(parents=True, exist_ok=True)
    name, _, *tags = wheel.stem.split("-")
    machine = next(p.machine for p in PLATFORMS.values() if wheel.stem.endswith(f"_{p.machine}"))
    for old in DIST.glob(f"{name}-*-{tags[0]}-{tags[1]}-*_{machine}.whl"):
        old.unlink()
        old.with_suffix(".cdx.json").unlink(missing_ok=True)
    partial = DIST / f".{wheel.name}.partial"
    shutil.copyfile(wheel, partial)
    return partial.replace(DIST / wheel.name)

"""Virtual environments under build/venv, reused until what they are made of changes.

An environment may stand on another one: it then sees the packages of that one through a .pth file and adds its own. The
stage and the benchmarks compare environments that share one PyTorch, byte for byte, and it is installed once.

What is installed stands in requirements/locks, with hashes (python_lock.py). PyTorch alone is pinned without a hash:
the package index, PyTorch's own index and a folder of wheels have different builds of one version.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

from . import python_lock
from .layout import BUILD, PYTHON_TAG, REQUIREMENTS
from .process import ToolchainError, captured, note, output, run, watched

PIP_HINT = (
    "No network, or no package index with these versions? `pip config debug` shows which index pip asks; "
    "PIP_INDEX_URL, PIP_EXTRA_INDEX_URL and PIP_FIND_LINKS choose another (docs/building.md)."
)
HASH_HINT = (
    "What the package index, or a folder in PIP_FIND_LINKS, holds is not the file that was locked; it was not "
    "installed. `pip config debug` shows where pip looks: remove a damaged download (`pip cache purge`, build/wheels) "
    f"or name the right index. Only if the new file is known to be good, `{python_lock.UPDATE}` locks it."
)
# No package of a lock may bring another along, and a source archive is built with what the lock setuptools.txt holds.
HASHED = ("--require-hashes", "--no-deps", "--no-build-isolation", "--use-pep517")
PYTORCH = f"{python_lock.PYTORCH}.txt"
STAMP = "thresher.json"


@dataclass(frozen=True)
class Environment:
    """What an environment is made of.

    Attributes:
        name: folder under build/venv, without the tag of the Python version.
        requirements: names of files in requirements/, the input of the lock.
        without_dependencies: names of files whose packages are locked without what they ask for.
        base: the environment this one stands on; its lock holds for this one, too.
        locked_as: name of the environment whose lock this one shares; default: it has its own.
    """

    name: str
    requirements: tuple[str, ...] = ()
    without_dependencies: tuple[str, ...] = ()
    base: Environment | None = None
    locked_as: str = ""

    @property
    def lock(self) -> Path:
        """The file that says what is installed."""
        return lock_file(self.locked_as or self.name)

    @property
    def files(self) -> list[Path]:
        """The requirement files that the lock is made from."""
        return [REQUIREMENTS / name for name in (*self.requirements, *self.without_dependencies)]

    @property
    def folder(self) -> Path:
        """Where the environment lies."""
        return BUILD / "venv" / f"{self.name}-{PYTHON_TAG}"

    @property
    def python(self) -> Path:
        """The interpreter of the environment."""
        return self.folder / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        """Where its packages are installed."""
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        return self.folder / "lib" / version / "site-packages"

    def fingerprint(self) -> str:
        """Returns a hash of everything that decides what gets installed."""
        digest = hashlib.sha256(f"{sys.version} {sys.base_prefix} {self.folder}".encode())
        for call in installation(self):
            for argument in call:
                digest.update(argument.read_bytes() if isinstance(argument, Path) else argument.encode())
        if self.base:
            digest.update(self.base.fingerprint().encode())
        return digest.hexdigest()


TOOLS = Environment("tools", ("build.txt",))
CHECKS = Environment("checks", ("check.txt",))
DOCS = Environment("docs", ("docs.txt",))
MODEL = Environment("model", (PYTORCH, "numpy.txt", "model.txt", "tokenizers.txt"), ("model-weights.txt",))
RUNTIME = Environment("runtime", ("runtime.txt",), base=MODEL)
TESTS = Environment(
    "tests",
    ("runtime.txt", "serve.txt", "pytest.txt", "tests.txt", "nox.txt", "browser.txt"),
    ("test-weights.txt",),
    base=MODEL,
)
# Like TESTS, for wheels of builds that watch themselves, so that one build does not displace the other.
SANITIZED = Environment("sanitized", TESTS.requirements, TESTS.without_dependencies, base=MODEL, locked_as="tests")
# With the kernels for NVIDIA GPUs beside the engine.
CUDA_TESTS = Environment("cuda-tests", TESTS.requirements, TESTS.without_dependencies, base=MODEL, locked_as="tests")
COVERAGE = Environment("coverage", (*TESTS.requirements, "coverage.txt"), base=MODEL)
FUZZ = Environment("fuzz", ("runtime.txt", "serve.txt", "fuzz.txt"), base=MODEL)
LINT = Environment("lint", (*(r for r in TESTS.requirements if r != "browser.txt"), "lint.txt"), base=MODEL)
RELEASE = Environment("release", ("release.txt",))
PEERS = Environment("peers", ("bench-peers.txt",), ("bench-data.txt",), base=MODEL)
CUDA_COMPILER = Environment("cuda-compiler", ("cuda.txt",))
ZENTORCH = Environment("zentorch", ("bench-zentorch.txt",), base=MODEL)
LOCKER = Environment("locker", ("uv.txt",))
# Locks that are never an environment under build/venv: what proves a wheel, here and on other machines, what the image
# `serve` holds, nox, and what builds source archives.
PROOF = Environment("proof", ("numpy.txt", "runtime.txt"))
SERVE = Environment("serve", (*PROOF.requirements, "serve.txt", "tokenizers.txt"))
WHEEL_TEST = Environment("wheel-test", ("numpy.txt", "runtime.txt", "pytest.txt"))
NOX = Environment("nox", ("nox.txt",))
SETUPTOOLS = Environment("setuptools", ("setuptools.txt",))
# An environment comes after the one it stands on.
ALL = (
    *(SETUPTOOLS, LOCKER, TOOLS, CHECKS, DOCS, NOX, PROOF, SERVE, WHEEL_TEST, CUDA_COMPILER),
    *(MODEL, RUNTIME, TESTS, SANITIZED, CUDA_TESTS, COVERAGE, FUZZ, LINT, RELEASE, PEERS, ZENTORCH),
)
# What a build of PyTorch for NVIDIA GPUs asks for, of the lock of MODEL.
TORCH_CUDA = "torch-cuda"


def lock_file(name: str) -> Path:
    """Returns the path of a lock."""
    return REQUIREMENTS / "locks" / f"{name}.txt"


def requirements_of(environment: Environment) -> list[tuple[str, Requirement]]:
    """Returns what people wrote for an environment, each with the name of its file."""
    return [(path.name, one) for path in environment.files for one in python_lock.inputs(path)]


def locked_for(environment: Environment) -> list[python_lock.Entry]:
    """Returns what is locked for an environment and for those it stands on."""
    below = locked_for(environment.base) if environment.base else []
    return [*below, *python_lock.read(environment.lock)]


def installation(environment: Environment) -> list[list[str | Path]]:
    """Returns the arguments of the pip calls that fill an environment; the same fill a folder with `pip download`."""
    entries = python_lock.read(environment.lock)
    here = python_lock.this_target()
    calls: list[list[str | Path]] = []
    if PYTORCH in environment.requirements:
        calls.append(["--no-deps", "-r", REQUIREMENTS / PYTORCH])
    if any(entry.is_for(here) and {"everywhere", str(here)} & set(entry.sources) for entry in entries):
        calls.append([*HASHED, "-r", SETUPTOOLS.lock])
    return [*calls, [*HASHED, "-r", environment.lock]]


def additions(requires: Sequence[str]) -> list[list[str | Path]]:
    """Returns the arguments of one more pip call, if PyTorch's Requires-Dist lines show a build for NVIDIA GPUs."""
    path = lock_file(TORCH_CUDA)
    return [[*HASHED, "-r", path]] if python_lock.asks_for(python_lock.read(path), requires) else []


def read_stamp(environment: Environment) -> dict[str, str]:
    """Returns what the environment says it holds; empty if it is not there or was left half made."""
    try:
        found = json.loads((environment.folder / STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_stamp(environment: Environment, content: dict[str, str]) -> None:
    """Records what the environment holds, all or nothing."""
    partial = environment.folder / f"{STAMP}.partial"
    partial.write_text(json.dumps(content, indent=1), encoding="utf-8")
    partial.replace(environment.folder / STAMP)


def is_made(environment: Environment) -> bool:
    """Says whether an environment is there and nothing it is made of has changed."""
    fits = read_stamp(environment).get("fingerprint") == environment.fingerprint()
    return fits and output([environment.python, "-c", ""]) is not None


def ensure(environment: Environment) -> Path:
    """Makes the environment, or reuses it when nothing it is made of has changed.

    Returns:
        Its interpreter.

    Raises:
        ToolchainError: the lock does not fit the requirement files, or a package could not be installed.
    """
    if environment.base:
        ensure(environment.base)
    if is_made(environment):
        return environment.python
    if faults := python_lock.disagreements(
        environment.lock.name, requirements_of(environment), locked_for(environment)
    ):
        raise ToolchainError("\n".join([*faults, f"`{python_lock.UPDATE}` locks what the requirement files say."]))
    note(f"environment {environment.name}: making {environment.folder}")
    if environment.folder.exists():
        # First: else one whose removal was cut short would seem whole to a session that wants what it was made of.
        (environment.folder / STAMP).unlink(missing_ok=True)
        shutil.rmtree(environment.folder)
    create(environment.folder)
    if environment.base:
        (environment.site_packages / "base_environment.pth").write_text(f"{environment.base.site_packages}\n")
    for call in installation(environment):
        pip_install(environment, pytorch_call(environment.python) if REQUIREMENTS / PYTORCH in call else call)
    if PYTORCH in environment.requirements:
        command: list[str | Path] = [environment.python, "-I", "-c", "import importlib.metadata as m, json; "]
        command[-1] = f"{command[-1]}print(json.dumps(m.requires({python_lock.PYTORCH!r}) or []))"
        for call in additions(json.loads(captured(command))):
            pip_install(environment, call)
    write_stamp(environment, {"fingerprint": environment.fingerprint()})
    return environment.python


def pytorch_call(python: Path) -> list[str | Path]:
    """Returns the arguments of the pip call that installs PyTorch: the build for CPUs where pip can see one.

    An index with builds for CPUs and for NVIDIA GPUs would give the latter, whose local version is the higher one.
    """
    (pinned,) = python_lock.inputs(REQUIREMENTS / PYTORCH)
    (specifier,) = pinned.specifier
    cpu = f"{specifier.version}+cpu"
    listed = output([python, "-m", "pip", "index", "versions", "--disable-pip-version-check", pinned.name]) or ""
    if cpu in re.split(r"[\s,()]+", listed):
        note(f"PyTorch: the build for CPUs, {pinned.name} {cpu}; pip says how large it is")
        return ["--no-deps", f"{pinned.name}=={cpu}"]
    if sys.platform == "linux" and platform.machine() == "x86_64":
        note(
            f"PyTorch: pip sees no build for CPUs ({pinned.name} {cpu}). The one for NVIDIA GPUs works, too, but it is "
            "a download of several GB with its libraries; pip says how large each file is. PIP_EXTRA_INDEX_URL or "
            "PIP_FIND_LINKS names a place with the other (docs/building.md)."
        )
    return ["--no-deps", "-r", REQUIREMENTS / PYTORCH]


def create(folder: Path) -> None:
    """Makes an empty environment with pip, for the interpreter that runs nox."""
    # virtualenv would keep its copy of pip in the home folder.
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "virtualenv",
        "--quiet",
        "--no-download",
        "--app-data",
        BUILD / "virtualenv",
    ]
    run([*command, "-p", sys.executable, folder], hint="virtualenv comes with nox; `pip install virtualenv` mends it.")


def pip_install(environment: Environment, arguments: Sequence[str | Path]) -> None:
    """Runs pip install in an environment; pip's own configuration and PIP_* variables hold.

    Nothing is compiled to bytecode: Python does that with what is imported, a small part of PyTorch and transformers.

    Raises:
        ToolchainError: pip fails; says what to do, which is another thing where a hash does not fit.
    """
    run_pip(environment.python, "install", ["--no-compile", *arguments])


def run_pip(python: Path, verb: str, arguments: Sequence[str | Path]) -> None:
    """Runs a command of pip that fetches packages; like `pip_install`."""
    bar = "on" if sys.stdout.isatty() else "off"
    command: list[str | Path] = [python, "-m", "pip", verb, "--disable-pip-version-check", "--progress-bar", bar]
    code, errors = watched([*command, *arguments])
    if code != 0:
        hint = HASH_HINT if "DO NOT MATCH THE HASHES" in errors else PIP_HINT
        raise ToolchainError(f"`pip {verb} {' '.join(map(str, arguments))}` ended with code {code}. {hint}")


def install_wheel(environment: Environment, *wheels: Path) -> Path:
    """Puts wheels of Thresher into an environment, unless these very bytes are there already.

    The environment must hold the wheels' dependencies: they are pinned, so pip may not choose any.

    Returns:
        The interpreter of the environment.
    """
    python = ensure(environment)
    stamp = read_stamp(environment)
    digest = hashlib.sha256(b"".join(wheel.read_bytes() for wheel in wheels)).hexdigest()
    if stamp.get("wheel") != digest:
        # Until it is there, no wheel is.
        write_stamp(environment, {name: value for name, value in stamp.items() if name != "wheel"})
        pip_install(environment, ["--force-reinstall", "--no-deps", *wheels])
        write_stamp(environment, {**stamp, "wheel": digest})
    return python


def script(environment: Environment, name: str) -> Path:
    """Returns the path of a program that a package of the environment brought along.

    Raises:
        ToolchainError: there is no such program.
    """
    path = environment.folder / "bin" / name
    if not path.exists():
        raise ToolchainError(f"Expected {path}; it is not there. Remove {environment.folder} and run this again.")
    return path

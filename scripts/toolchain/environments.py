"""Virtual environments under build/venv, reused until what they are made of changes.

An environment may stand on another one: it then sees the packages of that one through a .pth file and adds its own. The
stage and the benchmarks compare environments that share one PyTorch, byte for byte, and it is installed once.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from .layout import BUILD, PYTHON_TAG, REQUIREMENTS
from .process import ToolchainError, note, output, run

PIP_HINT = (
    "No network, or no package index with these versions? `pip config debug` shows which index pip asks; "
    "PIP_INDEX_URL, PIP_EXTRA_INDEX_URL and PIP_FIND_LINKS choose another (docs/building.md)."
)
STAMP = "thresher.json"


@dataclass(frozen=True)
class Environment:
    """What an environment is made of.

    Attributes:
        name: folder under build/venv, without the tag of the Python version.
        requirements: names of files in requirements/, installed in this order.
        without_dependencies: names of files whose packages are installed with --no-deps, after all others.
        base: the environment this one stands on.
    """

    name: str
    requirements: tuple[str, ...] = ()
    without_dependencies: tuple[str, ...] = ()
    base: Environment | None = None

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
        for name in self.requirements + self.without_dependencies:
            digest.update((REQUIREMENTS / name).read_bytes())
        if self.base:
            digest.update(self.base.fingerprint().encode())
        return digest.hexdigest()


TOOLS = Environment("tools", ("build.txt",))
CHECKS = Environment("checks", ("check.txt",))
MODEL = Environment("model", ("torch.txt", "model.txt"), ("model-weights.txt",))
RUNTIME = Environment("runtime", ("runtime.txt",), base=MODEL)
TESTS = Environment("tests", ("runtime.txt", "tests.txt", "browser.txt"), base=MODEL)
# Like TESTS, for wheels of builds that watch themselves, so that one build does not displace the other.
SANITIZED = Environment("sanitized", TESTS.requirements, base=MODEL)
COVERAGE = Environment("coverage", (*TESTS.requirements, "coverage.txt"), base=MODEL)
LINT = Environment("lint", ("runtime.txt", "tests.txt", "lint.txt"), base=MODEL)
PEERS = Environment("peers", ("bench-peers.txt",), ("bench-data.txt",), base=MODEL)
CUDA_COMPILER = Environment("cuda-compiler", ("cuda.txt",))
ZENTORCH = Environment("zentorch", ("bench-zentorch.txt",), base=MODEL)


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
        ToolchainError: a package could not be installed.
    """
    if environment.base:
        ensure(environment.base)
    if is_made(environment):
        return environment.python
    note(f"environment {environment.name}: making {environment.folder}")
    if environment.folder.exists():
        shutil.rmtree(environment.folder)
    create(environment.folder)
    if environment.base:
        (environment.site_packages / "base_environment.pth").write_text(f"{environment.base.site_packages}\n")
    for name in environment.requirements:
        pip_install(environment, ["-r", REQUIREMENTS / name])
    for name in environment.without_dependencies:
        pip_install(environment, ["--no-deps", "-r", REQUIREMENTS / name])
    write_stamp(environment, {"fingerprint": environment.fingerprint()})
    return environment.python


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


def pip_install(environment: Environment, arguments: list[str | Path]) -> None:
    """Runs pip install in an environment; pip's own configuration and PIP_* variables hold."""
    command: list[str | Path] = [environment.python, "-m", "pip", "install", "--disable-pip-version-check"]
    if environment.base:
        # Whatever a package asks for, PyTorch stays the version that everything here is measured with.
        command += ["-c", REQUIREMENTS / "torch.txt"]
    run([*command, "--progress-bar", "off", *arguments], hint=PIP_HINT)


def install_wheel(environment: Environment, wheel: Path) -> Path:
    """Puts a wheel of Thresher into an environment, unless these very bytes are there already.

    The environment must hold the wheel's dependencies: they are pinned, so pip may not choose any.

    Returns:
        The interpreter of the environment.
    """
    python = ensure(environment)
    stamp = read_stamp(environment)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if stamp.get("wheel") != digest:
        pip_install(environment, ["--force-reinstall", "--no-deps", wheel])
        write_stamp(environment, {**stamp, "wheel": digest})
    return python


def script(environment: Environment, name: str) -> Path:
    """Returns the path of a program that a package of the environment brought along.

    Raises:
        ToolchainError: there is no such program.
    """
    path = environment.folder / "bin" / name
    if not path.exists():
        raise ToolchainError(f"Wanted {path}; it is not there. Remove {environment.folder} and run this again.")
    return path

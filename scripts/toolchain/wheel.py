"""The wheel: built by scikit-build-core, tagged by auditwheel, proven in an empty environment."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from . import environments, native
from .environments import MODEL, TOOLS, script
from .layout import BUILD, DIST, ROOT, SCRIPTS
from .native import Flavour
from .process import ToolchainError, note, output, run
from .system import ensure_system_packages

# 1 January 2020: an archive without git history still gives the same bytes each time.
FALLBACK_EPOCH = "1577836800"

# Come with PyTorch, which is imported before the shim that uses them.
PYTORCH_LIBRARIES = ("libtorch*.so*", "libc10*.so*")


def source_date_epoch() -> str:
    """Returns the time that goes into the wheel: $SOURCE_DATE_EPOCH, the last commit's, or a constant; in seconds."""
    return (
        os.environ.get("SOURCE_DATE_EPOCH")
        or output(["git", "-C", ROOT, "log", "-1", "--format=%ct"])
        or FALLBACK_EPOCH
    )


def build_wheel(flavour: Flavour, torch_shims: Sequence[str] | None = None) -> Path:
    """Builds the wheel and leaves it in dist/, in place of older ones.

    Objects are kept in the flavour's build folder, so that a second call compiles only what changed.

    Args:
        flavour: what to build.
        torch_shims: interpreters or folders of PyTorch to build the profiler shim for; None: the pinned PyTorch of the
            environments, which is installed where it is missing.

    Returns:
        The repaired wheel.

    Raises:
        ToolchainError: a step failed.
    """
    ensure_system_packages("x86")
    native.install_dependencies(flavour)
    if torch_shims is None:
        torch_shims = [str(environments.ensure(MODEL))]
    raw = BUILD / "wheel"
    shutil.rmtree(raw, ignore_errors=True)
    settings = {
        "build-dir": flavour.objects,
        "cmake.build-type": flavour.build_type,
        "cmake.define.CMAKE_TOOLCHAIN_FILE": flavour.toolchain_file,
        "cmake.define.THRESHER_TORCH_SHIMS": ";".join(torch_shims),
        "install.strip": "true" if flavour.build_type == "Release" else "false",
    }
    run(
        [
            *(TOOLS.python, "-m", "pip", "wheel", "--disable-pip-version-check", "--no-deps", "--no-build-isolation"),
            *("--no-index", "-v", "--wheel-dir", raw),
            *(f"--config-settings={key}={value}" for key, value in settings.items()),
            ROOT,
        ],
        hint=f"The compiler's or CMake's message is above. Removing {flavour.objects} starts afresh.",
        environment={**native.tool_environment(), "SOURCE_DATE_EPOCH": source_date_epoch()},
    )
    wheel = _repair(_only_wheel(raw))
    note(f"connects to the profiler of PyTorch {', '.join(shims_in(wheel)) or 'not at all'}")
    return wheel


def shims_in(wheel: Path) -> list[str]:
    """Returns the minor versions of PyTorch whose profiler a wheel connects to."""
    with zipfile.ZipFile(wheel) as archive:
        found = [re.fullmatch(r"thresher/_torch_shim_(\d+)_(\d+)\..*", name) for name in archive.namelist()]
    return [f"{match[1]}.{match[2]}" for match in found if match]


def _only_wheel(folder: Path) -> Path:
    wheels = sorted(folder.glob("thresher-*.whl"))
    if len(wheels) != 1:
        raise ToolchainError(f"Wanted one wheel in {folder}, found {[wheel.name for wheel in wheels]}.")
    return wheels[0]


def _repair(wheel: Path) -> Path:
    """Lets auditwheel find the tag that is true for the wheel's symbols; the result appears in dist/ in one step."""
    DIST.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD) as scratch:
        run(
            [
                *(script(TOOLS, "auditwheel"), "repair", "--plat", "auto", "--wheel-dir", scratch),
                *(f"--exclude={name}" for name in PYTORCH_LIBRARIES),
                wheel,
            ],
            hint="auditwheel shows which symbol or library fits no manylinux tag.",
            environment=native.tool_environment(),
        )
        repaired = _only_wheel(Path(scratch))
        for old in DIST.glob("thresher-*.whl"):
            if old.name != repaired.name:
                old.unlink()
        final = DIST / repaired.name
        shutil.move(repaired, final)
    note(f"wheel: {final} ({final.stat().st_size / 2**20:.2f} MiB)")
    return final


def verify(wheel: Path) -> None:
    """Installs the wheel into a new empty environment, imports it and lets `thresher doctor` judge.

    The import is tried twice, without and with the packages that the wheel asks for.

    Raises:
        ToolchainError: the wheel does not install, import or work there.
    """
    with tempfile.TemporaryDirectory(dir=BUILD) as scratch:
        environment = Path(scratch) / "venv"
        environments.create(environment)
        python = environment / "bin" / "python"
        install: list[str | Path] = [python, "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
        check: list[str | Path] = [python, "-I", SCRIPTS / "check_wheel.py"]
        run([*install, "--no-deps", wheel])
        run(check, cwd=environment, hint="The import must work even where the wheel's dependencies are missing.")
        run([*install, wheel], hint=environments.PIP_HINT)
        run(check, cwd=environment)
        run([environment / "bin" / "thresher", "doctor"], cwd=environment)

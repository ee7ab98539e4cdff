"""Trying a wheel in a container that has nothing but Python, in the architecture of the wheel."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from toolchain.layout import BUILD, DIST
from toolchain.platforms import PLATFORMS, Platform, of_this_machine
from toolchain.process import ToolchainError, note

from .container_session import ContainerSession
from .engine import Mount
from .project import BUILD_INSIDE, DIST_INSIDE, PROJECT, build_volume, run_in_project, run_nox

REFERENCE_INSIDE = "/work/reference"
RESULTS_INSIDE = "/work/results"


def newest_wheel(platform: Platform, folder: Path = DIST) -> Path:
    """Returns the wheel for a platform that was built last.

    Raises:
        ToolchainError: there is none.
    """
    wheels = list(folder.glob(f"{platform.distribution.replace('-', '_')}-*_{platform.machine}.whl"))
    if not wheels:
        raise ToolchainError(
            f"Expected a wheel for {platform.machine} in {folder}; got none. "
            f"`nox -s build -- --platform {platform.name}` makes one."
        )
    return max(wheels, key=lambda path: path.stat().st_mtime)


def test_wheel(options: argparse.Namespace, name: str, arguments: Sequence[str]) -> None:
    """Builds the wheel of a platform and its tests in containers, then runs them in a clean one.

    Args:
        options: those of `add_container_options`.
        name: the platform.
        arguments: more arguments for scripts/wheel_test.py.

    Raises:
        ToolchainError: an image, the build or a test fails.
    """
    place = ContainerSession(options)
    platform, here = PLATFORMS[name], of_this_machine()
    run_nox(place.engine, place.image(name, "build"), "tests", ["--build-only", f"--platform={name}"], place.host)
    if platform is not here:
        # The reference model is exported where PyTorch runs at full speed.
        note(f"the reference model comes from the build for {here.name}")
        build = place.image(here.name, "build")
        run_nox(place.engine, build, "tests", ["--build-only", f"--platform={here.name}"], place.host)
    test = place.image(name, "test")
    results = BUILD / "container_tests" / name
    results.mkdir(parents=True, exist_ok=True)
    proof = f"{BUILD_INSIDE}/container_test"
    run_in_project(
        place.engine,
        test,
        [
            *("python3", f"{PROJECT}/scripts/wheel_test.py"),
            f"--wheel={DIST_INSIDE}/{newest_wheel(platform).name}",
            f"--tests={PROJECT}/tests",
            f"--cpp-tests={proof}/thresher_tests",
            f"--model-file={REFERENCE_INSIDE}/container_test/minilm.thrmodel",
            f"--expected={REFERENCE_INSIDE}/container_test/minilm.npz",
            f"--work={BUILD_INSIDE}/wheel_test",
            f"--json={RESULTS_INSIDE}/result.json",
            *arguments,
        ],
        place.host,
        mounts=[
            Mount(build_volume(here.name), REFERENCE_INSIDE, read_only=True),
            Mount(str(results), RESULTS_INSIDE),
        ],
    )
    note(f"results: {results / 'result.json'}")

"""Running commands in a container that sees this clone."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from toolchain.layout import BUILD, DIST, ROOT
from toolchain.process import ToolchainError
from toolchain.wheel import source_date_epoch

from .engine import Engine, Mount, RunRequest
from .host import HostConfiguration
from .images import ImageSpec

PROJECT = "/thresher"
BUILD_INSIDE = "/work/build"
DIST_INSIDE = "/work/dist"
VOLUMES = "thresher-"
# Variables of this machine that hold inside too.
PASSED_ON = ("CMAKE_BUILD_PARALLEL_LEVEL", "THRESHER_CONAN_REMOTES", "THRESHER_SOURCE_MIRROR", "TERM", "NO_COLOR")


def build_volume(platform: str, root: Path = ROOT) -> str:
    """Returns the name of the volume that stands for build/: one for each clone and platform."""
    return f"{VOLUMES}{platform}-{hashlib.sha256(str(root).encode()).hexdigest()[:8]}"


def project_mounts(platform: str, *, writable: bool = False) -> list[Mount]:
    """Returns the clone, its dist/, and volumes for what is worth keeping: build/, ccache, pip's downloads."""
    return [
        Mount(str(ROOT), PROJECT, read_only=not writable),
        Mount(str(DIST), DIST_INSIDE),
        Mount(build_volume(platform), BUILD_INSIDE),
        Mount(f"{VOLUMES}ccache", "/work/ccache"),
        Mount(f"{VOLUMES}pip", "/work/pip"),
    ]


def project_environment(host: HostConfiguration) -> dict[str, str]:
    """Returns the variables of a container that sees the clone."""
    passed = {name: os.environ[name] for name in PASSED_ON if os.environ.get(name)}
    return {
        **passed,
        **host.environment,
        # Git is not asked inside: it refuses a clone that belongs to somebody else.
        "SOURCE_DATE_EPOCH": source_date_epoch(),
        "HOME": f"{BUILD_INSIDE}/home",
        "THRESHER_BUILD_DIR": BUILD_INSIDE,
        "THRESHER_DIST_DIR": DIST_INSIDE,
        "PYTHONDONTWRITEBYTECODE": "1",
        "CCACHE_NOHASHDIR": "1",
    }


def run_in_project(
    engine: Engine,
    spec: ImageSpec,
    command: Sequence[str],
    host: HostConfiguration,
    *,
    writable: bool = False,
    network: str | None = None,
    capabilities: Sequence[str] = (),
    gpus: bool = False,
    mounts: Sequence[Mount] = (),
    environment: Mapping[str, str] | None = None,
) -> None:
    """Runs a command in a new container of an image, with the clone at /thresher.

    Args:
        engine: runs it.
        spec: the image, which must be there.
        command: program and arguments; none is a shell.
        host: certificates, wheels and package index.
        writable: whether the clone may be changed from inside.
        network: "none" cuts the container off.
        capabilities: Linux capabilities to add.
        gpus: whether to hand in the GPUs.
        mounts: more of the host.
        environment: more variables.

    Raises:
        ToolchainError: the command fails.
    """
    for folder in (BUILD, DIST):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ToolchainError(f"Expected to write into {folder}; {error}. Make the folder writable.") from error
    interactive = not command and sys.stdin.isatty()
    engine.run(
        RunRequest(
            image=spec.tag,
            command=list(command) or ["/bin/bash"],
            mounts=[*project_mounts(spec.platform, writable=writable), *host.mounts, *mounts],
            environment={**project_environment(host), **(environment or {})},
            workdir=PROJECT,
            network=network,
            platform=f"linux/{spec.machine.debian}",
            capabilities=capabilities,
            gpus=gpus,
            interactive=interactive,
        )
    )


def run_nox(engine: Engine, spec: ImageSpec, session: str, arguments: Sequence[str], host: HostConfiguration) -> None:
    """Runs a nox session of the clone inside a container, out of tree.

    Raises:
        ToolchainError: the session fails.
    """
    nox = ["nox", "--noxfile", f"{PROJECT}/noxfile.py", "--envdir", f"{BUILD_INSIDE}/nox", "--session", session]
    run_in_project(engine, spec, [*nox, "--", *arguments], host)

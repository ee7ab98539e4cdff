"""What the nox sessions image and dev do, and build and tests with --container."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from toolchain.platforms import PLATFORMS, of_this_machine
from toolchain.process import ToolchainError, note

from . import image_pins
from .base import ORIGINS
from .container_session import ContainerSession, find_engine
from .container_test import test_wheel
from .engine import ENGINES, Engine
from .images import LABEL, TARGETS
from .project import VOLUMES, run_in_project, run_nox

# gdb and perf trace processes; libnuma moves pages between nodes.
DEVELOPER_CAPABILITIES = ("SYS_PTRACE", "SYS_NICE")


def add_container_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of every session that uses a container."""
    parser.add_argument(
        "--engine",
        choices=ENGINES,
        help="container engine (default: $THRESHER_CONTAINER_ENGINE, else the first of these that works)",
    )
    parser.add_argument(
        "--base",
        choices=ORIGINS,
        default="auto",
        help="base image: from the registry, from a root file system made here, or whichever can be had (default)",
    )
    parser.add_argument(
        "--ca",
        type=Path,
        metavar="FILE",
        help="CA certificates for downloads inside (default: $THRESHER_CA_FILE, else those pip uses on this machine)",
    )


def containerised(options: argparse.Namespace, platform: str, session: str, arguments: Sequence[str]) -> None:
    """Runs a nox session in the build image of a platform.

    Raises:
        ToolchainError: the image or the session fails.
    """
    place = ContainerSession(options)
    run_nox(place.engine, place.image(platform, "build"), session, arguments, place.host)


def develop(options: argparse.Namespace, command: Sequence[str]) -> None:
    """Opens a shell, or runs a command, in the dev image with the clone mounted for writing.

    Raises:
        ToolchainError: the image cannot be built, or the command fails.
    """
    name = options.platform or of_this_machine().name
    place = ContainerSession(options)
    spec = place.image(name, "dev", rebuild=options.rebuild)
    run_in_project(
        place.engine,
        spec,
        command,
        place.host,
        writable=True,
        capabilities=DEVELOPER_CAPABILITIES,
        gpus=name == "cuda" and Path("/dev/nvidiactl").exists(),
    )


def build_images(options: argparse.Namespace) -> None:
    """Builds, lists or removes images.

    Raises:
        ToolchainError: an image cannot be built.
    """
    if options.list or options.remove:
        engine = find_engine(options.engine)
        names = engine.images(LABEL)
        if options.remove:
            for name in names:
                engine.remove_image(name)
            for name in engine.volumes(VOLUMES):
                engine.remove_volume(name)
                note(f"removed volume {name}")
            note(f"removed {len(names)} images")
            return
        _list_images(engine, names, as_json=options.json)
        return
    if options.platform is None:
        raise ToolchainError(f"Expected a platform: {', '.join(PLATFORMS)}; got none. Example: nox -s image -- x86")
    place = ContainerSession(options)
    place.image(options.platform, options.target, rebuild=options.rebuild)


def _list_images(engine: Engine, names: Sequence[str], *, as_json: bool) -> None:
    rows = []
    for name in names:
        if image := engine.image(name):
            revision = image.labels.get("org.opencontainers.image.revision", "")
            key = image.labels.get("thresher.pins", "")
            rows.append(
                {
                    "name": name,
                    "architecture": image.architecture,
                    "size_bytes": image.size,
                    "revision": revision,
                    "pins": key,
                    "current_pins": key == image_pins.read_pins().key,
                }
            )
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    print(f"{'image':<36} {'arch':<6} {'MiB':>6}  {'pins':<8}  revision")
    for row in rows:
        mebibytes = float(str(row["size_bytes"])) / 2**20
        print(
            f"{row['name']:<36} {row['architecture']:<6} {mebibytes:>6.0f}  {row['pins']:<8}  "
            f"{str(row['revision'])[:12]}{'' if row['current_pins'] else '  (older pins)'}"
        )
    for name in engine.volumes(VOLUMES):
        print(f"volume {name}")


__all__ = ["TARGETS", "add_container_options", "build_images", "containerised", "develop", "test_wheel"]

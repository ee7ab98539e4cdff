"""A container engine that works here, and the images that are up to date in it."""

from __future__ import annotations

import argparse
import os

from toolchain.layout import BUILD, SCRIPTS
from toolchain.process import ToolchainError, note, output, run

from .engine import Engine, choose_engine
from .host import HostConfiguration, host_configuration
from .images import ImageSpec, build_image


def find_engine(wanted: str | None) -> Engine:
    """Returns a container engine; where none works and this process may install one, installs podman.

    Raises:
        ToolchainError: none works; the message says what each one lacks and what to do.
    """
    engine, reasons = choose_engine(wanted)
    if engine is None and os.geteuid() == 0 and output(["apt-get", "--version"]) is not None and wanted != "docker":
        for name, reason in reasons.items():
            note(f"{name} {reason}")
        run(["bash", SCRIPTS / "install_build_deps.sh", "-y", "--containers"])
        engine, reasons = choose_engine(wanted)
    if engine is None:
        lines = "".join(f"\n  {name}: {reason}" for name, reason in reasons.items())
        raise ToolchainError(
            f"Expected a container engine; none works here:{lines}\nInstall one (sudo bash "
            f"{SCRIPTS / 'install_build_deps.sh'} -y --containers), or build without a container: --host.\n"
        )
    how = ", rootless" if engine.rootless else ""
    note(f"container engine: {engine.name} {engine.version}{how}")
    return engine


class ContainerSession:
    """A container engine and this machine's configuration, ready to build images and run in them.

    Attributes:
        engine: the engine.
        host: certificates, wheels and package index.
        origin: where base images come from.

    Raises:
        ToolchainError: no engine works, build/ cannot be written, or the named certificates are not there.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        try:
            BUILD.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ToolchainError(f"Expected to write into {BUILD}; {error}. Make the folder writable.") from error
        self.engine = find_engine(options.engine)
        self.host: HostConfiguration = host_configuration(options.ca)
        self.origin: str = options.base

    def image(self, platform: str, target: str, *, rebuild: bool = False) -> ImageSpec:
        """Makes sure that an image is there and up to date; returns it."""
        spec = ImageSpec(platform, target)
        build_image(self.engine, spec, self.host, origin=self.origin, rebuild=rebuild)
        return spec

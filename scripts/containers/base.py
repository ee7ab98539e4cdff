"""The base image: pulled by digest, or made of a root file system where no registry can be reached."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from toolchain.layout import BUILD, ROOT
from toolchain.process import ToolchainError, note, run

from .archive import write_image_archive
from .engine import Engine
from .image_pins import Pins

ORIGINS = ("auto", "pull", "rootfs")
SCRIPT = ROOT / "docker" / "root_filesystem.sh"


def rootfs_tag(pins: Pins, architecture: str) -> str:
    """Returns the name of the image that is made of a root file system."""
    return f"localhost/thresher-rootfs:{pins.suite}-{architecture}"


def ensure_base(engine: Engine, pins: Pins, architecture: str, origin: str = "auto") -> str:
    """Makes sure that the base image is here.

    Args:
        engine: where it has to be.
        pins: which image it is.
        architecture: amd64 or arm64.
        origin: "pull" asks the registry, "rootfs" makes a root file system, "auto" takes what is here, then asks the
            registry, then makes one.

    Returns:
        The name to build on.

    Raises:
        ToolchainError: it cannot be had.
    """
    tag = rootfs_tag(pins, architecture)
    reasons = []
    if origin != "rootfs":
        if (here := engine.image(pins.reference)) and here.architecture == architecture:
            return pins.reference
        if origin == "auto" and engine.image(tag):
            return tag
        try:
            engine.pull(pins.reference, f"linux/{architecture}")
            return pins.reference
        except ToolchainError as error:
            if origin == "pull":
                raise
            reasons.append(str(error))
            note("no registry has the base image for us; making a root file system instead (once)")
    elif engine.image(tag):
        return tag
    _make_rootfs_image(engine, pins, architecture, tag)
    return tag


def _make_rootfs_image(engine: Engine, pins: Pins, architecture: str, tag: str) -> None:
    if shutil.which("mmdebstrap") is None:
        raise ToolchainError(
            f"Expected a base image for {architecture}: no registry gave one, and mmdebstrap, which makes one, is not "
            "installed. Run this line, then try again:\n  sudo apt-get install mmdebstrap\n"
        )
    with tempfile.TemporaryDirectory(dir=BUILD, prefix="rootfs-") as scratch:
        # mmdebstrap without root enters the folder as another user.
        Path(scratch).chmod(0o755)
        root, packed = Path(scratch) / "root.tar", Path(scratch) / "image.tar"
        run([SCRIPT, pins.suite, architecture, root], hint="It needs a Debian mirror; the message is above.")
        write_image_archive(root, packed, tag, architecture, {"thresher.suite": pins.suite})
        root.unlink()
        engine.load(packed)
    if engine.image(tag) is None:
        raise ToolchainError(f"Expected the image {tag} after loading it into {engine.name}; it is not there.")

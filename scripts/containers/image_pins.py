"""docker/pins.toml: the base of the images, by digest. Their Python packages are in requirements/locks/nox.txt."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from toolchain.layout import ROOT
from toolchain.lock import Change
from toolchain.process import ToolchainError

DOCKER = ROOT / "docker"
FILE = DOCKER / "pins.toml"


@dataclass(frozen=True)
class Pins:
    """The content of pins.toml.

    Attributes:
        image: name of the base image on a registry.
        tag: its tag; the digest decides, the tag is for people.
        digest: "sha256:..." of the list of images for all architectures.
        suite: Debian suite of the root file system that stands in where no registry can be reached.
    """

    image: str
    tag: str
    digest: str
    suite: str

    @property
    def reference(self) -> str:
        """The base image as a Dockerfile names it."""
        # Without the tag: some engines refuse a name that has both.
        return f"{self.image}@{self.digest}"

    @property
    def key(self) -> str:
        """Eight digits that change with any pin."""
        return hashlib.sha256(f"{self.reference} {self.suite}".encode()).hexdigest()[:8]


def read_pins(path: Path = FILE) -> Pins:
    """Reads pins.toml.

    Raises:
        ToolchainError: it is missing, is not TOML, or lacks a field or has one of the wrong form.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib  # comes with nox
    try:
        base = tomllib.loads(path.read_text(encoding="utf-8"))["base"]
        pins = Pins(**{name: str(base[name]) for name in ("image", "tag", "digest", "suite")})
    except (OSError, ValueError) as error:
        raise ToolchainError(
            f"expected the base of the images in {path}, got: {error}; `git checkout {path.name}` mends it."
        ) from None
    except (KeyError, TypeError) as error:
        raise ToolchainError(f"{path}: expected [base] with image, tag, digest and suite, got no {error}.") from None
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", pins.digest):
        raise ToolchainError(f"{path}: expected a SHA-256 of 64 hexadecimal digits, got {pins.digest!r}.")
    return pins


def resolve_base(image: str, tag: str) -> str:
    """Asks the registry for the digest that a tag has now.

    Uses skopeo, or docker with buildx; both follow the registry settings of this machine.

    Raises:
        ToolchainError: neither is there, or no registry answers.
    """
    reasons = []
    for command in (
        ["skopeo", "inspect", "--raw", f"docker://{image}:{tag}"],
        ["docker", "buildx", "imagetools", "inspect", "--raw", f"{image}:{tag}"],
    ):
        try:
            done = subprocess.run(command, capture_output=True, check=False, timeout=120)
        except (OSError, subprocess.TimeoutExpired) as error:
            reasons.append(f"{command[0]}: {error}")
            continue
        if done.returncode == 0:
            return f"sha256:{hashlib.sha256(done.stdout).hexdigest()}"
        words = done.stderr.decode(errors="replace").strip().splitlines()
        reasons.append(f"{command[0]}: {words[-1] if words else done.returncode}")
    raise ToolchainError(f"No registry told the digest of {image}:{tag}. " + "; ".join(reasons))


def update(folder: Path = DOCKER) -> list[Change]:
    """Writes the digest that the tag has now into pins.toml and, as the default base, into the Dockerfiles.

    Returns:
        What changed.

    Raises:
        ToolchainError: the present pins cannot be read, or no registry answers.
    """
    path = folder / FILE.name
    old = read_pins(path)
    new = replace(old, digest=resolve_base(old.image, old.tag))
    if new == old:
        return []
    for file in (path, *sorted(folder.glob("*Dockerfile"))):
        file.write_text(file.read_text(encoding="utf-8").replace(old.digest, new.digest), encoding="utf-8")
    return [Change(old.image, f"{old.tag}@{old.digest}", f"{new.tag}@{new.digest}")]

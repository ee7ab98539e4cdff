"""The images: which there are, what they are made of, and building them only when that has changed."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from toolchain.layout import BUILD, ROOT
from toolchain.platforms import PLATFORMS, Platform, of_this_machine
from toolchain.process import ToolchainError, note, output

from .base import ensure_base
from .emulation import ensure_emulation
from .engine import BuildRequest, Engine, Image
from .host import HostConfiguration
from .image_pins import Pins, read_pins

TARGETS = ("base", "build", "dev", "test", "runtime", "serve")
# The images of the architecture that a wheel is for, whatever that of this machine is.
OF_THE_WHEEL = ("test", "runtime", "serve")
NAME = "localhost/thresher"
LABEL = "thresher.image"
DOCKERFILE = ROOT / "docker" / "Dockerfile"
# What decides the content of the images, beside the base.
INPUTS = (
    ".dockerignore",
    "docker/Dockerfile",
    "docker/pins.toml",
    "requirements/locks/nox.txt",
    "scripts/install_build_deps.sh",
)
# What only the images of a platform are made of.
PLATFORM_INPUTS = {"cuda": ("requirements/locks/cuda-compiler.txt",)}
# What only the images that run and serve models are made of, beside the wheels in dist/.
WHEEL_INPUTS = {
    "runtime": ("requirements/locks/proof.txt",),
    "serve": ("requirements/locks/proof.txt", "requirements/locks/serve.txt"),
}
# What the images of a platform take at most while they are built, in GiB.
SPACE_GIB = {"x86": 4, "arm": 4, "cuda": 8}


@dataclass(frozen=True)
class ImageSpec:
    """One image.

    Attributes:
        platform: x86, arm or cuda: what is built or tested in it.
        target: one of TARGETS: a stage of the Dockerfile.
    """

    platform: str
    target: str

    @property
    def tag(self) -> str:
        """Its name."""
        return f"{NAME}:{self.platform}-{self.target}"

    @property
    def machine(self) -> Platform:
        """The platform of the machine that its programs run on.

        An image that runs the wheel has its architecture; all others that of this machine, which may cross-compile.

        Raises:
            ToolchainError: this platform cannot be built on this machine.
        """
        wanted = PLATFORMS[self.platform]
        here = of_this_machine()
        _ = wanted.host_profile
        return wanted if self.target in OF_THE_WHEEL else here


def inputs_key(spec: ImageSpec, base: str, base_identity: str, files: Mapping[str, bytes]) -> str:
    """Returns a digest of everything that decides what an image holds."""
    digest = hashlib.sha256(f"{spec.platform} {spec.target} {base} {base_identity}\0".encode())
    for name, content in sorted(files.items()):
        digest.update(f"{name} {len(content)}\0".encode() + content)
    return digest.hexdigest()[:16]


def revision() -> str:
    """Returns the git revision of the clone, with a mark where files differ from it; "unknown" outside of git."""
    commit = output(["git", "-C", ROOT, "rev-parse", "HEAD"])
    if commit is None:
        return "unknown"
    return f"{commit}-dirty" if output(["git", "-C", ROOT, "status", "--porcelain"]) else commit


def check_space(engine: Engine, platform_name: str) -> None:
    """Stops before a build that would fill the disk of the engine.

    Raises:
        ToolchainError: too little is free.
    """
    folder = engine.folder
    if folder is None or not folder.exists():
        return
    free = shutil.disk_usage(folder).free / 2**30
    if free < SPACE_GIB[platform_name]:
        raise ToolchainError(
            f"Expected {SPACE_GIB[platform_name]} GiB for images of {platform_name} in {folder}; got {free:.1f} GiB. "
            f"`{engine.name} system prune` and `nox -s image -- --remove` free some."
        )


def build_image(
    engine: Engine, spec: ImageSpec, host: HostConfiguration, *, origin: str = "auto", rebuild: bool = False
) -> Image:
    """Builds an image, unless the one that is here was made of the same things.

    Args:
        engine: builds it.
        spec: which one.
        host: certificates and package index for the steps that download.
        origin: where the base image comes from; see `ensure_base`.
        rebuild: build even if nothing has changed.

    Raises:
        ToolchainError: it cannot be built here; the message says why.
    """
    pins = read_pins()
    machine = spec.machine
    if machine.cross:
        ensure_emulation(machine.machine)
    base = ensure_base(engine, pins, machine.debian, origin)
    found = engine.image(base)
    key = inputs_key(spec, base, found.identity if found else "", _inputs(spec))
    if not rebuild and (here := engine.image(spec.tag)) and here.labels.get("thresher.inputs") == key:
        note(f"image {spec.tag} is up to date")
        return here
    check_space(engine, spec.platform)
    with tempfile.TemporaryDirectory(dir=BUILD, prefix="image-") as scratch:
        engine.build(
            BuildRequest(
                tag=spec.tag,
                dockerfile=DOCKERFILE,
                context=ROOT,
                target=spec.target,
                arguments={"BASE": base, "PLATFORM": spec.platform},
                labels=_labels(spec, pins, key),
                secrets=_secrets(host, Path(scratch)),
                platform=f"linux/{machine.debian}",
            )
        )
    made = engine.image(spec.tag)
    if made is None:
        raise ToolchainError(f"Expected the image {spec.tag} after building it with {engine.name}; it is not there.")
    size = f", {made.size / 2**20:.0f} MiB" if made.size else ""
    note(f"image {spec.tag} ({made.architecture}{size})")
    return made


def _inputs(spec: ImageSpec) -> dict[str, bytes]:
    """Returns the files that decide what an image holds, by name.

    Raises:
        ToolchainError: the image is to hold a wheel, and there is none for its architecture.
    """
    names = [*INPUTS, *PLATFORM_INPUTS.get(spec.platform, ()), *WHEEL_INPUTS.get(spec.target, ())]
    files = {name: (ROOT / name).read_bytes() for name in names}
    if spec.target in WHEEL_INPUTS:
        wheels = sorted((ROOT / "dist").glob(f"thresher-*_{spec.machine.machine}.whl"))
        if not wheels:
            raise ToolchainError(
                f"Expected a wheel for {spec.machine.machine} in {ROOT / 'dist'}; got none. "
                f"Run `nox -s build -- --platform {spec.platform} --container`: it makes one for the image's Python."
            )
        files |= {wheel.name: wheel.read_bytes() for wheel in wheels}
    return files


def _labels(spec: ImageSpec, pins: Pins, key: str) -> dict[str, str]:
    return {
        LABEL: f"{spec.platform}-{spec.target}",
        "thresher.inputs": key,
        "thresher.pins": pins.key,
        "org.opencontainers.image.title": f"Thresher, {spec.target} image of platform {spec.platform}",
        "org.opencontainers.image.revision": revision(),
        "org.opencontainers.image.licenses": "Apache-2.0",
    }


def _secrets(host: HostConfiguration, scratch: Path) -> dict[str, Path]:
    """Returns the files that steps may mount: certificates, and pip's configuration where an index is set."""
    secrets = {"certificates": host.certificates} if host.certificates else {}
    places = {"PIP_INDEX_URL": "index-url", "PIP_EXTRA_INDEX_URL": "extra-index-url"}
    lines = [
        f"{option} = {value}"
        for variable, option in places.items()
        if (value := host.environment.get(variable, "")) and "file:" not in value
    ]
    if lines:
        path = scratch / "pip.conf"
        path.write_text("\n".join(["[global]", *lines, ""]), encoding="utf-8")
        os.chmod(path, 0o600)
        secrets["pip"] = path
    return secrets

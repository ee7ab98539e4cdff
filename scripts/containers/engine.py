"""Container engines behind one class: docker, podman or buildah, whichever works on this machine."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolchain.process import ToolchainError, run

from .limits import Host, limit_options, this_host

ENGINES = ("docker", "podman", "buildah")
PROBE_TIMEOUT_S = 60


@dataclass(frozen=True)
class Mount:
    """A folder of the host, or a named volume, inside a container.

    Attributes:
        source: an absolute path on the host, or the name of a volume.
        target: absolute path inside.
        read_only: whether the container may not write there.
    """

    source: str
    target: str
    read_only: bool = False

    @property
    def is_volume(self) -> bool:
        """Whether the source is a named volume."""
        return not self.source.startswith("/")


@dataclass(frozen=True)
class Image:
    """What an engine says about an image it has.

    Attributes:
        name: the name it was asked for by.
        identity: the engine's id of the content.
        architecture: amd64 or arm64.
        size: bytes of all layers.
        labels: its labels.
    """

    name: str
    identity: str
    architecture: str
    size: int
    labels: Mapping[str, str]


@dataclass(frozen=True)
class BuildRequest:
    """One image to build.

    Attributes:
        tag: name of the result.
        dockerfile: the Dockerfile.
        context: the folder whose files it may copy.
        target: the stage to build.
        arguments: values of its ARGs.
        labels: labels of the result.
        secrets: files by the id under which a RUN step may mount them; they enter no layer.
        platform: "linux/amd64" or "linux/arm64".
        network: network of the RUN steps; None is the engine's default.
    """

    tag: str
    dockerfile: Path
    context: Path
    target: str
    arguments: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, Path] = field(default_factory=dict)
    platform: str = "linux/amd64"
    network: str | None = None


@dataclass(frozen=True)
class RunRequest:
    """One command to run in a new container, which is removed afterwards.

    Attributes:
        image: name of the image.
        command: program and arguments.
        mounts: what it sees of the host.
        environment: its variables.
        workdir: where it starts.
        network: "none" cuts it off; None is the engine's default.
        platform: "linux/amd64" or "linux/arm64".
        capabilities: Linux capabilities to add, without CAP_.
        gpus: whether to hand in the GPUs of the host.
        interactive: whether it gets this terminal.
    """

    image: str
    command: Sequence[str]
    mounts: Sequence[Mount] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    workdir: str | None = None
    network: str | None = None
    platform: str = "linux/amd64"
    capabilities: Sequence[str] = ()
    gpus: bool = False
    interactive: bool = False


class Engine:
    """What docker and podman have in common; both take nearly the same options.

    Attributes:
        program: path of the program.
        version: its version.
        rootless: whether root inside a container is the caller outside.
        folder: where it keeps images, if it tells.
    """

    name = ""

    def __init__(self, program: str, host: Host | None = None) -> None:
        self.program = program
        self.host = host or this_host()
        self.version = ""
        self.rootless = False
        self.folder: Path | None = None

    # What differs from engine to engine.

    def probe(self) -> None:
        """Finds out whether the engine works here and fills in the attributes.

        Raises:
            ToolchainError: it does not; the message says why and what to do.
        """
        raise NotImplementedError

    def global_options(self) -> list[str]:
        """Options between the program and its command."""
        return []

    def limits(self) -> list[str]:
        """Options that keep a build or a run within the limits of this host."""
        return []

    # What they share.

    def query(self, *arguments: str) -> str:
        """Returns what a command of the engine prints.

        Raises:
            ToolchainError: it fails; the message holds its last line.
        """
        command = [self.program, *self.global_options(), *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PROBE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise ToolchainError(f"`{shlex.join(command)}` did not answer within {PROBE_TIMEOUT_S} s") from None
        if done.returncode != 0:
            words = done.stderr.strip().splitlines()
            raise ToolchainError(words[-1] if words else f"`{shlex.join(command)}` ended with code {done.returncode}")
        return done.stdout

    def execute(
        self,
        arguments: Sequence[str | Path],
        *,
        name: str | None = None,
        hint: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Runs a command of the engine with its output on the terminal; see `toolchain.process.run`."""
        run([self.program, *self.global_options(), *arguments], name=name, hint=hint, environment=environment)

    def user(self) -> str | None:
        """Returns the "uid:gid" whose files belong to the caller; None where that is root inside."""
        if self.rootless:
            return None
        return f"{os.environ.get('SUDO_UID', os.getuid())}:{os.environ.get('SUDO_GID', os.getgid())}"

    def image(self, name: str) -> Image | None:
        """Returns what is known of an image, or None if it is not here."""
        try:
            found = json.loads(self.query("image", "inspect", name))
        except (ToolchainError, ValueError):
            return None
        return _image(name, found[0]) if found else None

    def build(self, request: BuildRequest) -> None:
        """Builds an image; layers whose instructions and files are the same as before are reused.

        Raises:
            ToolchainError: a step fails.
        """
        self.execute(
            self.build_command(request),
            name=f"Building {request.tag}",
            hint=_BUILD_HINT,
            environment=self.build_environment(),
        )

    def build_environment(self) -> dict[str, str]:
        """Returns the variables a build needs."""
        return {}

    def build_command(self, request: BuildRequest) -> list[str]:
        """Returns the arguments that build an image."""
        command = ["build", f"--tag={request.tag}", f"--file={request.dockerfile}", f"--target={request.target}"]
        command += [f"--platform={request.platform}", *self.limits()]
        if request.network:
            command.append(f"--network={request.network}")
        command += [f"--build-arg={name}={value}" for name, value in sorted(request.arguments.items())]
        command += [f"--label={name}={value}" for name, value in sorted(request.labels.items())]
        command += [f"--secret=id={name},src={path}" for name, path in sorted(request.secrets.items())]
        return [*command, str(request.context)]

    def run(self, request: RunRequest) -> None:
        """Runs a command in a container.

        Raises:
            ToolchainError: it cannot be started, or ends with another code than 0.
        """
        self.execute(self.run_command(request), name=f"`{shlex.join(request.command)}` in {request.image}")

    def run_command(self, request: RunRequest) -> list[str]:
        """Returns the arguments that run a command in a container."""
        command = ["run", "--rm", "--init", f"--platform={request.platform}", *self.limits()]
        if user := self.user():
            command.append(f"--user={user}")
        if request.interactive:
            command += ["--interactive", "--tty"]
        if request.network:
            command.append(f"--network={request.network}")
        if request.workdir:
            command.append(f"--workdir={request.workdir}")
        command += [f"--cap-add={capability}" for capability in request.capabilities]
        if request.gpus:
            command += self.gpu_options()
        command += [f"--volume={m.source}:{m.target}{':ro' if m.read_only else ''}" for m in request.mounts]
        command += [f"--env={name}={value}" for name, value in sorted(request.environment.items())]
        return [*command, request.image, *request.command]

    def gpu_options(self) -> list[str]:
        """Options that hand in the GPUs of the host."""
        return ["--gpus=all"]

    def pull(self, reference: str, platform: str) -> None:
        """Brings an image from its registry.

        Raises:
            ToolchainError: it cannot be had.
        """
        self.execute(["pull", f"--platform={platform}", reference])

    def load(self, archive: Path) -> None:
        """Takes in an image archive as `docker save` writes them.

        Raises:
            ToolchainError: the engine refuses it.
        """
        self.execute(["load", f"--input={archive}"])

    def remove_image(self, name: str) -> None:
        """Removes an image, or one of its names."""
        self.query("image", "rm", name)

    def images(self, label: str) -> list[str]:
        """Lists the names of the images that carry a label."""
        lines = self.query("images", f"--filter=label={label}", "--format={{.Repository}}:{{.Tag}}").splitlines()
        return sorted({line.strip() for line in lines if line.strip() and "<none>" not in line})

    def volumes(self, prefix: str) -> list[str]:
        """Lists the named volumes whose names begin with a prefix."""
        return sorted(n for n in self.query("volume", "ls", "--format={{.Name}}").split() if n.startswith(prefix))

    def remove_volume(self, name: str) -> None:
        """Removes a named volume and what it holds."""
        self.query("volume", "rm", name)


_BUILD_HINT = (
    "The message of the failing step is above. Without a network, or behind a proxy with certificates of its own, see "
    "docs/containers.md."
)


def _image(name: str, found: Mapping[str, Any]) -> Image:
    """Reads an entry of `image inspect`."""
    labels = (found.get("Config") or {}).get("Labels") or found.get("Labels") or {}
    return Image(name, found.get("Id", ""), found.get("Architecture", ""), int(found.get("Size", 0)), labels)


class Docker(Engine):
    """Docker with BuildKit."""

    name = "docker"

    def probe(self) -> None:
        """See Engine.probe."""
        information = json.loads(self.query("info", "--format={{json .}}"))
        if errors := information.get("ServerErrors"):
            raise ToolchainError(f"no daemon answers ({errors[0]}); start it: sudo systemctl start docker")
        self.version = information.get("ServerVersion", "")
        self.rootless = any("rootless" in option for option in information.get("SecurityOptions") or ())
        self.folder = Path(information["DockerRootDir"]) if information.get("DockerRootDir") else None
        if not self.version:
            raise ToolchainError("no daemon answers; start it: sudo systemctl start docker")

    def build_environment(self) -> dict[str, str]:
        """BuildKit is the default only since Docker 23; the older builder cannot mount secrets."""
        return {"DOCKER_BUILDKIT": "1"}


class Podman(Engine):
    """Podman 4 or newer, with or without root."""

    name = "podman"

    def probe(self) -> None:
        """See Engine.probe."""
        information = json.loads(self.query("info", "--format=json"))
        self.version = information["version"]["Version"]
        self.rootless = bool(information["host"]["security"]["rootless"])
        self.folder = Path(information["store"]["graphRoot"])

    def global_options(self) -> list[str]:
        """Crun stops where version 1 and 2 control groups are mixed; runc does not."""
        return ["--runtime=runc"] if self.host.hybrid_cgroups and shutil.which("runc") else []

    def limits(self) -> list[str]:
        """See Engine.limits."""
        return limit_options(self.host)

    def build_command(self, request: BuildRequest) -> list[str]:
        """A name that is here already is not asked for on a registry; Docker's format keeps health checks."""
        own = ["--layers", "--pull=never", "--format=docker"]
        return [*super().build_command(request)[:1], *own, *super().build_command(request)[1:]]

    def run_command(self, request: RunRequest) -> list[str]:
        """See Engine.run_command."""
        return ["run", "--pull=never", *super().run_command(request)[1:]]

    def gpu_options(self) -> list[str]:
        """Podman takes GPUs as CDI devices."""
        return ["--device=nvidia.com/gpu=all"]


class Buildah(Podman):
    """Buildah alone: it builds images and runs commands in working containers; volumes are folders of its own."""

    name = "buildah"

    def probe(self) -> None:
        """See Engine.probe."""
        self.version = json.loads(self.query("version", "--json"))["version"]
        information = json.loads(self.query("info"))
        self.rootless = bool(information["host"]["rootless"])
        self.folder = Path(information["store"]["GraphRoot"])

    def global_options(self) -> list[str]:
        """Buildah names the runtime at the command, not before it."""
        return []

    def runtime(self) -> list[str]:
        """The options that choose the runtime of a build or a run."""
        return super().global_options()

    def image(self, name: str) -> Image | None:
        """See Engine.image."""
        try:
            found = json.loads(self.query("inspect", "--type=image", name))
        except (ToolchainError, ValueError):
            return None
        oci = found.get("OCIv1", {})
        labels = (oci.get("config") or {}).get("Labels") or {}
        return Image(name, found.get("FromImageID", ""), oci.get("architecture", ""), 0, labels)

    def build_command(self, request: BuildRequest) -> list[str]:
        """See Engine.build_command."""
        return [*super().build_command(request)[:1], *self.runtime(), *super().build_command(request)[1:]]

    def run(self, request: RunRequest) -> None:
        """Buildah runs commands in a working container, which has to be made and removed."""
        container = self.query("from", "--pull-never", f"--platform={request.platform}", *self.limits(), request.image)
        try:
            name = f"`{shlex.join(request.command)}` in {request.image}"
            self.execute(self.run_command(request, container.strip()), name=name)
        finally:
            self.query("rm", container.strip())

    def run_command(self, request: RunRequest, container: str = "") -> list[str]:
        """Returns the arguments that run a command in a working container."""
        command = ["run", *self.runtime()]
        if user := self.user():
            command.append(f"--user={user}")
        if request.interactive:
            command.append("--terminal")
        if request.network == "none":
            command += ["--network=none"]
        if request.workdir:
            command.append(f"--workingdir={request.workdir}")
        command += [f"--cap-add=CAP_{capability}" for capability in request.capabilities]
        for mount in request.mounts:
            source = self.volume_folder(mount.source) if mount.is_volume else mount.source
            command.append(f"--volume={source}:{mount.target}{':ro' if mount.read_only else ''}")
        command += [f"--env={name}={value}" for name, value in sorted(request.environment.items())]
        return [*command, container, "--", *request.command]

    def volume_folder(self, name: str) -> Path:
        """Returns the folder that stands for a named volume, and makes it."""
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = cache / "thresher" / "volumes" / name
        folder.mkdir(parents=True, exist_ok=True)
        if not self.rootless and (user := self.user()):
            uid, gid = user.split(":")
            os.chown(folder, int(uid), int(gid))
        return folder

    def volumes(self, prefix: str) -> list[str]:
        """See Engine.volumes."""
        folder = self.volume_folder("").parent / "volumes"
        return sorted(p.name for p in folder.iterdir() if p.name.startswith(prefix))

    def remove_volume(self, name: str) -> None:
        """See Engine.remove_volume."""
        shutil.rmtree(self.volume_folder(name))

    def remove_image(self, name: str) -> None:
        """See Engine.remove_image."""
        self.query("rmi", name)

    def images(self, label: str) -> list[str]:
        """See Engine.images."""
        lines = self.query("images", f"--filter=label={label}", "--format={{.Name}}:{{.Tag}}").splitlines()
        return sorted({line.strip() for line in lines if line.strip() and "<none>" not in line})

    def load(self, archive: Path) -> None:
        """See Engine.load."""
        self.execute(["pull", f"docker-archive:{archive}"])


_CLASSES: Mapping[str, type[Engine]] = {"docker": Docker, "podman": Podman, "buildah": Buildah}


def open_engine(name: str) -> Engine:
    """Returns an engine that works here.

    Raises:
        ToolchainError: it is not installed or does not work; the message says why.
    """
    program = shutil.which(name)
    if program is None:
        raise ToolchainError("is not installed")
    engine = _CLASSES[name](program)
    try:
        engine.probe()
    except (ValueError, KeyError, TypeError) as error:
        raise ToolchainError(f"its answer is not understood ({error!r}); is it of version 4 or newer?") from error
    return engine


def choose_engine(wanted: str | None = None) -> tuple[Engine | None, dict[str, str]]:
    """Picks the first engine that works, in the order docker, podman, buildah.

    Args:
        wanted: only this one; default: $THRESHER_CONTAINER_ENGINE, else any.

    Returns:
        The engine, or None if none works, and for each one passed over the reason.

    Raises:
        ToolchainError: `wanted` is no known engine.
    """
    wanted = wanted or os.environ.get("THRESHER_CONTAINER_ENGINE") or None
    if wanted and wanted not in ENGINES:
        raise ToolchainError(f"Expected one of {', '.join(ENGINES)} as the container engine; got {wanted!r}.")
    reasons: dict[str, str] = {}
    for name in (wanted,) if wanted else ENGINES:
        try:
            return open_engine(name), reasons
        except ToolchainError as error:
            reasons[name] = str(error)
    return None, reasons

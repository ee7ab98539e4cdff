"""The platforms a wheel can be built for: the one place that knows what each of them needs."""

from __future__ import annotations

import platform as host
import sys
from dataclasses import dataclass

from .process import ToolchainError


@dataclass(frozen=True)
class Platform:
    """What `--platform` chooses.

    Attributes:
        name: what `--platform` takes, here and in scripts/install_build_deps.sh.
        machine: the architecture that the wheel runs on, as uname, CMake and wheel tags call it.
        debian: the same architecture as Debian calls it.
        elf_machine: the same architecture in the header of an ELF file (e_machine).
        profile: the Conan profile on a machine of that architecture.
        cross_profile: the Conan profile on any other machine; None where it takes the architecture itself to build.
        distribution: name of the wheel's package.
        available: whether `nox -s build` can build it by now.
    """

    name: str
    machine: str
    debian: str
    elf_machine: int
    profile: str
    cross_profile: str | None = None
    distribution: str = "thresher"
    available: bool = True

    @property
    def cross(self) -> bool:
        """Whether this machine has another architecture, so that what is built cannot run on it."""
        return host.machine() != self.machine

    @property
    def triplet(self) -> str:
        """The GNU name of the system, which cross compilers and extension modules carry."""
        return f"{self.machine}-linux-gnu"

    @property
    def host_profile(self) -> str:
        """The Conan profile that builds for this platform on this machine.

        Raises:
            ToolchainError: it cannot be built on a machine of this architecture.
        """
        if not self.cross:
            return self.profile
        if self.cross_profile is None:
            raise ToolchainError(
                f"Platform {self.name} is built on {self.machine} machines; this one is {host.machine()}. Run this on "
                f"such a machine, or build what this one can: {', '.join(buildable())}."
            )
        return self.cross_profile

    @property
    def platform_tag(self) -> str:
        """The tag of a wheel for this platform before auditwheel has judged it."""
        return f"linux_{self.machine}"

    @property
    def extension_suffix(self) -> str:
        """How file names of extension modules end for this platform and the minor version of this interpreter."""
        flags = getattr(sys, "abiflags", "")
        return f".cpython-{sys.version_info.major}{sys.version_info.minor}{flags}-{self.triplet}.so"


X86 = Platform("x86", "x86_64", "amd64", 62, profile="x86")
ARM = Platform("arm", "aarch64", "arm64", 183, profile="armv8-native", cross_profile="armv8")
CUDA = Platform("cuda", "x86_64", "amd64", 62, profile="x86", distribution="thresher-cuda")
PLATFORMS = {platform.name: platform for platform in (X86, ARM, CUDA)}


def available() -> list[str]:
    """Lists the names of the platforms that can be built by now."""
    return [platform.name for platform in PLATFORMS.values() if platform.available]


def planned() -> list[str]:
    """Lists the names of the platforms that cannot be built yet."""
    return [platform.name for platform in PLATFORMS.values() if not platform.available]


def buildable() -> list[str]:
    """Lists the names of the available platforms that this machine can build for."""
    return [p.name for p in PLATFORMS.values() if p.available and (p.cross_profile or not p.cross)]


def select(name: str) -> Platform:
    """Returns the platform that `--platform` names.

    Raises:
        ToolchainError: it is unknown, not yet available, or not for machines of this architecture.
    """
    platform = PLATFORMS.get(name)
    if platform is None or not platform.available:
        what = "is unknown" if platform is None else "is not yet available"
        raise ToolchainError(f"Platform {name} {what}; available: {', '.join(available())}.")
    _ = platform.host_profile
    return platform


def of_this_machine() -> Platform:
    """Returns the platform that runs on this machine without an accelerator.

    Raises:
        ToolchainError: Thresher has no platform for this architecture.
    """
    for platform in (X86, ARM):
        if not platform.cross:
            return platform
    raise ToolchainError(f"Expected an x86_64 or aarch64 machine; this one is {host.machine()}.")


def of_profile(profile: str) -> Platform:
    """Returns the platform that a Conan profile builds for; the sanitizers build for this machine."""
    for platform in PLATFORMS.values():
        if profile in (platform.profile, platform.cross_profile):
            return platform
    return of_this_machine()

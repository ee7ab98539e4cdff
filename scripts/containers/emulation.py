"""Running programs of another architecture: QEMU through the kernel's binfmt_misc."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from toolchain.process import ToolchainError, note, output, run

REGISTRY = Path("/proc/sys/fs/binfmt_misc")
NAMES = {"aarch64": "qemu-aarch64"}


def registered(machine: str, registry: Path = REGISTRY) -> bool:
    """Tells whether the kernel hands programs of an architecture to an emulator that containers can use too.

    The flag F means that the kernel holds the emulator open, so that a container needs no copy of it.
    """
    try:
        text = (registry / NAMES[machine]).read_text(encoding="utf-8")
    except (OSError, KeyError):
        return False
    flags = next((line for line in text.splitlines() if line.startswith("flags:")), "")
    return text.startswith("enabled") and "F" in flags


def ensure_emulation(machine: str) -> None:
    """Makes sure that programs of an architecture run here, natively or emulated.

    Where this process is root, what is missing is mounted and registered.

    Raises:
        ToolchainError: they do not run and this process may not change that.
    """
    if platform.machine() == machine or registered(machine):
        return
    commands = [["update-binfmts", "--enable", NAMES[machine]]]
    if not (REGISTRY / "register").exists():
        commands.insert(0, ["mount", "-t", "binfmt_misc", "binfmt_misc", str(REGISTRY)])
    if os.geteuid() == 0 and output(["update-binfmts", "--version"]) is not None:
        note(f"programs for {machine} do not run here yet: registering the emulator with the kernel")
        for command in commands:
            run(command)
    if not registered(machine):
        lines = "\n".join(f"  sudo {' '.join(command)}" for command in commands)
        raise ToolchainError(
            f"Expected to run programs for {machine} on this {platform.machine()} machine; the kernel knows no "
            "emulator "
            "for them (binfmt_misc). Run this, then try again:\n"
            f"  sudo apt-get install qemu-user-static binfmt-support\n{lines}\n"
        )

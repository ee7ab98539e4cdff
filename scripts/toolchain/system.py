"""The system packages a build needs: finds out what is missing and installs it, or says how to."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from .layout import SCRIPTS
from .platforms import of_this_machine
from .process import ToolchainError, is_offline, note, output, run

INSTALLER = SCRIPTS / "install_build_deps.sh"
OLDEST_COMPILER = 11


def ensure_system_packages(platform: str) -> None:
    """Checks compiler and headers; installs what is missing where this process is root.

    Raises:
        ToolchainError: something is missing and this process may not install it, or the compiler is too old.
    """
    missing = _missing(platform)
    if missing:
        note(f"missing on this machine: {', '.join(missing)}")
        if os.geteuid() != 0 or is_offline():
            line = f"sudo bash {INSTALLER} -y --platform {platform}"
            raise ToolchainError(f"Expected {', '.join(missing)}; got none. Run this line, then try again:\n  {line}\n")
        run(["bash", INSTALLER, "-y", "--platform", platform])
        missing = _missing(platform)
    if missing:
        raise ToolchainError(
            f"Expected {', '.join(missing)}; got none, not even after {INSTALLER.name} ran. If {sys.executable} is not "
            "the distribution's Python, install its development files, or run nox with /usr/bin/python3."
        )
    version = output([os.environ.get("CXX", "g++"), "-dumpfullversion", "-dumpversion"]) or ""
    major = re.match(r"\d+", version)
    if major and int(major.group()) < OLDEST_COMPILER:
        raise ToolchainError(
            f"Expected g++ {OLDEST_COMPILER} or newer for C++20, got {version}. Install a newer one and set CXX to it."
        )


def offer_test_packages() -> None:
    """Installs what only tests use, where this process is root; elsewhere says how, and that they will be skipped."""
    platform = of_this_machine().name
    missing = _missing(platform, "--tests")
    if not missing:
        return
    note(f"missing on this machine: {', '.join(missing)}")
    if os.geteuid() == 0 and not is_offline():
        try:
            run(["bash", INSTALLER, "-y", "--tests", "--platform", platform])
        except ToolchainError as error:
            note(f"not installed ({error})")
    if missing := _missing(platform, "--tests"):
        note(
            f"tests that need {', '.join(missing)} are skipped; this line installs it: sudo bash {INSTALLER} -y --tests"
        )


def offer_fuzz_packages() -> None:
    """Installs what the fuzz targets in C++ need, where this process is root.

    Raises:
        ToolchainError: the installation failed.
    """
    platform = of_this_machine().name
    missing = _missing(platform, "--fuzz")
    if missing and os.geteuid() == 0 and not is_offline():
        note(f"missing on this machine: {', '.join(missing)}")
        run(["bash", INSTALLER, "-y", "--fuzz", "--platform", platform])


def _missing(platform: str, *options: str) -> list[str]:
    command = ["bash", str(INSTALLER), "--check", "--platform", platform, "--python", sys.executable, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise ToolchainError(done.stderr.strip())
    return done.stdout.splitlines()

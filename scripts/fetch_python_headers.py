#!/usr/bin/env python3
"""Brings the headers of Python for another architecture, of the minor version of the Python that runs this script.

They are the ones of Debian's package libpython3.X-dev, downloaded from the mirror that apt knows and checked by apt as
any package is, with private apt state: nothing under /etc, /var or /usr changes and no root is needed. A folder of
headers may be named instead. What arrives is one flat folder with Python.h and the architecture's own pyconfig.h.

    python scripts/fetch_python_headers.py build/python-headers/cp311-aarch64
    python scripts/fetch_python_headers.py --from ~/arm-root/usr/include/python3.11 build/python-headers/cp311-aarch64
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from fetch_sources import KEYRING, apt_index_targets, debian_mirror
from toolchain.platforms import PLATFORMS, Platform

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
OS_RELEASE = Path("/etc/os-release")
CURE = (
    f"Run nox with the distribution's own python3, or name a folder with the headers of Python {VERSION} in "
    "THRESHER_PYTHON_HEADERS (docs/building.md)."
)


class HeadersError(Exception):
    """The headers cannot be had; the message says what was expected, what was found and what to do."""


def fault(folder: Path, platform: Platform) -> str | None:
    """Returns what is wrong with a flat folder of headers, or None.

    Another architecture's pyconfig.h compiles without a word and gives a module that breaks at run time, so what it
    says about x86's assembler is read too.
    """
    for name in ("Python.h", "patchlevel.h", "pyconfig.h"):
        if not (folder / name).is_file():
            return f"{folder} has no {name}"
    version = re.search(r'^#define\s+PY_VERSION\s+"(\d+\.\d+)', (folder / "patchlevel.h").read_text(), re.MULTILINE)
    if not version or version[1] != VERSION:
        return f"{folder} holds the headers of Python {version[1] if version else 'of no known version'}"
    text = (folder / "pyconfig.h").read_text()
    if not re.search(r"^#define\s+SIZEOF_VOID_P\s+8$", text, re.MULTILINE):
        return f"{folder / 'pyconfig.h'} is not of a 64-bit Python, or only includes another file"
    x86 = re.search(r"^#define\s+HAVE_GCC_ASM_FOR_X64\s+1$", text, re.MULTILINE) is not None
    if x86 != (platform.machine == "x86_64"):
        return f"{folder / 'pyconfig.h'} is of {'an x86_64' if x86 else 'another'} Python"
    return None


def collect(include: Path, platform: Platform, target: Path) -> None:
    """Copies the headers of one architecture into a flat folder.

    Args:
        include: the folder with Python.h. Debian keeps a pyconfig.h for each architecture beside it, under
            <triplet>/pythonX.Y, and there that one counts.
        platform: what they are for.
        target: replaced in one step.

    Raises:
        HeadersError: they are not there, or of another version or architecture.
    """
    scratch = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        if include.is_dir():
            shutil.copytree(include, scratch)
        own = include.parent / platform.triplet / include.name / "pyconfig.h"
        if own.is_file():
            shutil.copyfile(own, scratch / "pyconfig.h")
        if wrong := fault(scratch, platform):
            found = wrong.replace(str(scratch), str(include))
            raise HeadersError(f"Expected the headers of Python {VERSION} for {platform.machine}; {found}. {CURE}")
        shutil.rmtree(target, ignore_errors=True)
        scratch.replace(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def suite(os_release: str) -> str:
    """Reads the name of the Debian release from the text of os-release.

    Raises:
        HeadersError: this is no Debian.
    """
    entries = dict(line.partition("=")[::2] for line in os_release.splitlines())
    name, codename = (entries.get(key, "").strip('"') for key in ("ID", "VERSION_CODENAME"))
    if name != "debian" or not codename:
        raise HeadersError(f"Expected Debian, whose packages hold the headers; got '{name or 'unknown'}'. {CURE}")
    return codename


def download(platform: Platform, scratch: Path) -> Path:
    """Downloads Debian's headers and unpacks them.

    Returns:
        The folder with Python.h.

    Raises:
        HeadersError: there is no apt, no mirror, or no such package in this release.
    """
    release = suite(OS_RELEASE.read_text() if OS_RELEASE.is_file() else "")
    package = f"libpython{VERSION}-dev"
    wanted = f"Expected the package {package} for {platform.debian} from Debian {release}"
    if not shutil.which("apt-get") or not KEYRING.is_file():
        raise HeadersError(f"{wanted}; got no apt-get, or no {KEYRING} (package debian-archive-keyring). {CURE}")
    mirror = debian_mirror(apt_index_targets())
    if mirror is None:
        raise HeadersError(f"{wanted}; apt on this machine has no Debian mirror. {CURE}")
    # apt drops its privileges while it downloads, so other users must be able to enter the folder.
    scratch.chmod(0o755)
    for folder in ("lists/partial", "cache/archives/partial", "out"):
        (scratch / folder).mkdir(parents=True)
    listing = scratch / "debian.sources"
    listing.write_text(f"Types: deb\nURIs: {mirror}\nSuites: {release}\nComponents: main\nSigned-By: {KEYRING}\n")
    options = {
        "APT::Architecture": platform.debian,
        "APT::Architectures": platform.debian,
        "APT::Sandbox::User": "root" if os.geteuid() == 0 else "",
        "Acquire::Languages": "none",
        "Dir::Cache": scratch / "cache",
        "Dir::Etc::sourcelist": listing,
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State::lists": scratch / "lists",
        "Dir::State::status": "/dev/null",
    }
    apt = ["apt-get", "-qq", *(f"-o{key}={value}" for key, value in options.items())]
    for command in ([*apt, "update"], [*apt, "download", package]):
        done = subprocess.run(command, cwd=scratch / "out", capture_output=True, text=True, check=False)
        if done.returncode != 0:
            reason = (done.stderr.strip().splitlines() or [f"apt-get ended with {done.returncode}"])[0]
            raise HeadersError(f"{wanted}; apt says: {reason}. This script runs in Python {VERSION}. {CURE}")
    archive = next((scratch / "out").glob("*.deb"))
    subprocess.run(["dpkg-deb", "-x", archive, scratch / "root"], check=True)
    return scratch / "root" / "usr" / "include" / f"python{VERSION}"


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the headers go; kept as it is when they are there already")
    parser.add_argument("--platform", choices=tuple(PLATFORMS), default="arm", help="default: arm")
    parser.add_argument(
        "--from",
        dest="source",
        type=Path,
        default=os.environ.get("THRESHER_PYTHON_HEADERS") or None,
        metavar="INCLUDE",
        help="a folder with Python.h, in place of Debian's package; default $THRESHER_PYTHON_HEADERS",
    )
    options = parser.parse_args(argv)
    platform = PLATFORMS[options.platform]
    folder: Path = options.folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        if options.source:
            collect(Path(options.source).expanduser(), platform, folder)
            print(f"headers of Python {VERSION} for {platform.machine}: from {options.source}")
        elif fault(folder, platform):
            with tempfile.TemporaryDirectory() as scratch:
                collect(download(platform, Path(scratch)), platform, folder)
            print(f"headers of Python {VERSION} for {platform.machine}: from Debian")
        return 0
    except HeadersError as error:
        print(error, file=sys.stderr)
    except OSError as error:
        print(f"{folder} cannot be filled: {error}\n  Make it writable or free some space there.", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())

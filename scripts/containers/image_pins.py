"""docker/pins.toml: everything the images are made of, by version and digest.

    python scripts/containers/image_pins.py requirements     # the Python packages, as pip wants them
    python scripts/containers/image_pins.py update           # newer packages, a newer base image; prints what changes

The first is what the Dockerfiles call; it needs nothing but this file, pins.toml and Python 3.11.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DOCKER = Path(__file__).resolve().parent.parent.parent / "docker"
FILE = DOCKER / "pins.toml"


class PinsError(Exception):
    """pins.toml does not say what is needed, or new pins cannot be had."""


@dataclass(frozen=True)
class Package:
    """A Python package of the images.

    Attributes:
        version: its version.
        sha256: the digests of its files that may be installed.
    """

    version: str
    sha256: tuple[str, ...]


@dataclass(frozen=True)
class Pins:
    """The content of pins.toml.

    Attributes:
        image: name of the base image on a registry.
        tag: its tag; the digest decides, the tag is for people.
        digest: "sha256:..." of the list of images for all architectures.
        suite: Debian suite of the root file system that stands in where no registry can be reached.
        packages: Python packages by name.
    """

    image: str
    tag: str
    digest: str
    suite: str
    packages: Mapping[str, Package]

    @property
    def reference(self) -> str:
        """The base image as a Dockerfile names it."""
        # Without the tag: some engines refuse a name that has both.
        return f"{self.image}@{self.digest}"

    @property
    def key(self) -> str:
        """Eight digits that change with any pin."""
        packages = {name: [p.version, sorted(p.sha256)] for name, p in sorted(self.packages.items())}
        content = json.dumps([self.reference, self.suite, packages])
        return hashlib.sha256(content.encode()).hexdigest()[:8]


def read_pins(path: Path = FILE) -> Pins:
    """Reads pins.toml.

    Raises:
        PinsError: it is missing, is not TOML, or lacks a field or has one of the wrong form.
    """
    try:
        import tomllib
    except ImportError:
        raise PinsError("Wanted Python 3.11 or newer to read TOML; run nox with one for this session.") from None
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PinsError(
            f"Wanted the pins of the images in {path}; {error}. `git checkout {path.name}` mends it."
        ) from None
    try:
        base, packages = content["base"], content["python"]
        pins = Pins(
            base["image"],
            base["tag"],
            base["digest"],
            base["suite"],
            {name: Package(entry["version"], tuple(entry["sha256"])) for name, entry in packages.items()},
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise PinsError(
            f"{path}: wanted [base] with image, tag, digest, suite and [python] with a version and sha256 each; "
            f"found no {error}."
        ) from None
    digests = [pins.digest.removeprefix("sha256:"), *(d for package in pins.packages.values() for d in package.sha256)]
    for digest in digests:
        if not re.fullmatch(r"[0-9a-f]{64}", digest):
            raise PinsError(f"{path}: wanted a SHA-256 of 64 hexadecimal digits; found {digest!r}.")
    return pins


def requirements(pins: Pins) -> str:
    """Returns the Python packages in pip's form, with hashes."""
    lines = []
    for name, package in sorted(pins.packages.items()):
        hashes = "".join(f" \\\n    --hash=sha256:{digest}" for digest in sorted(package.sha256))
        lines.append(f"{name}=={package.version}{hashes}\n")
    return "".join(lines)


def to_toml(pins: Pins) -> str:
    """Returns the text of pins.toml."""
    lines = [
        "# What the images are made of. `nox -s image -- --update-pins` writes this file and prints what changes.",
        "",
        "[base]",
        f'image = "{pins.image}"',
        f'tag = "{pins.tag}"',
        f'digest = "{pins.digest}"',
        "# Where no registry can be reached, a root file system of this Debian suite stands in.",
        f'suite = "{pins.suite}"',
        "",
        "# nox and what it needs: the only Python packages inside the images.",
    ]
    for name, package in sorted(pins.packages.items()):
        hashes = "".join(f'\n  "{digest}",' for digest in sorted(package.sha256))
        lines += [f"[python.{name}]", f'version = "{package.version}"', f"sha256 = [{hashes}\n]", ""]
    return "\n".join(lines)


def differences(old: Pins, new: Pins) -> list[dict[str, str]]:
    """Returns what changed from one set of pins to another: name, old and new version."""
    changes = []
    if old.reference != new.reference:
        changes.append({"name": old.image, "old": f"{old.tag}@{old.digest}", "new": f"{new.tag}@{new.digest}"})
    for name in sorted({*old.packages, *new.packages}):
        before, after = old.packages.get(name), new.packages.get(name)
        if before != after:
            versions = {
                "old": before.version if before else "none",
                "new": after.version if after else "none",
            }
            changes.append({"name": name, **versions})
    return changes


def resolve_packages(roots: tuple[str, ...] = ("nox",)) -> dict[str, Package]:
    """Asks pip for the newest versions of packages and all they need, with the digests of their wheels.

    Raises:
        PinsError: pip cannot answer.
    """
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
        command += ["--only-binary=:all:", "--report", str(report), *roots]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise PinsError(f"pip could not name new versions: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
        return read_pip_report(json.loads(report.read_text(encoding="utf-8")))


def read_pip_report(report: Mapping[str, Any]) -> dict[str, Package]:
    """Reads the installation report of pip (format 1).

    Raises:
        PinsError: a package comes without a digest.
    """
    packages = {}
    for entry in report.get("install", []):
        name = re.sub(r"[-_.]+", "-", entry["metadata"]["name"]).lower()
        digest = entry.get("download_info", {}).get("archive_info", {}).get("hashes", {}).get("sha256")
        if not digest:
            raise PinsError(f"Wanted the SHA-256 of {name}; pip's report has none.")
        packages[name] = Package(entry["metadata"]["version"], (digest,))
    return packages


def resolve_base(image: str, tag: str) -> str:
    """Asks the registry for the digest that a tag has now.

    Uses skopeo, or docker with buildx; both follow the registry settings of this machine.

    Raises:
        PinsError: neither is there, or no registry answers.
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
    raise PinsError(f"No registry told the digest of {image}:{tag}. " + "; ".join(reasons))


def updated(pins: Pins, tag: str | None) -> tuple[Pins, list[str]]:
    """Returns newer pins, and a sentence for each part that could not be renewed.

    Args:
        pins: the present ones.
        tag: another tag of the base image, None for the present one.
    """
    notes = []
    packages: Mapping[str, Package] = pins.packages
    digest, chosen = pins.digest, tag or pins.tag
    try:
        packages = resolve_packages()
    except PinsError as error:
        notes.append(f"Python packages stay: {error}")
    try:
        digest = resolve_base(pins.image, chosen)
    except PinsError as error:
        notes.append(f"base image stays: {error}")
        chosen = pins.tag
    return Pins(pins.image, chosen, digest, pins.suite, packages), notes


def write_pins(pins: Pins, folder: Path = DOCKER) -> None:
    """Writes pins.toml and the default base image of the Dockerfiles."""
    (folder / "pins.toml").write_text(to_toml(pins), encoding="utf-8")
    for path in sorted(folder.glob("*Dockerfile")):
        text = path.read_text(encoding="utf-8")
        path.write_text(re.sub(r"(?m)^ARG BASE=\S*$", f"ARG BASE={pins.reference}", text), encoding="utf-8")


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("requirements", "update"))
    parser.add_argument("--file", type=Path, default=FILE, help="default: docker/pins.toml")
    parser.add_argument("--tag", help="update: take this tag of the base image")
    parser.add_argument("--json", action="store_true", help="update: print the changes as JSON")
    options = parser.parse_args(argv)
    try:
        pins = read_pins(options.file)
        if options.action == "requirements":
            sys.stdout.write(requirements(pins))
            return 0
        new, notes = updated(pins, options.tag)
    except PinsError as error:
        print(error, file=sys.stderr)
        return 2
    changes = differences(pins, new)
    if changes:
        write_pins(new, options.file.parent)
    if options.json:
        print(json.dumps({"changes": changes, "notes": notes}, indent=2))
    else:
        for change in changes:
            print(f"{change['name']}: {change['old']} -> {change['new']}")
        print("\n".join(notes) if notes else f"{len(changes)} changes in {options.file.name}")
    return 1 if notes else 0


if __name__ == "__main__":
    sys.exit(main())

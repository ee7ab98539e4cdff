#!/usr/bin/env python3
"""Fills Conan's download cache with the source archives that the recipes under conan/recipes name.

Each archive is looked for, in this order, in the cache, on a mirror of yours, at its upstream address and in Debian's
source packages (with private apt state: nothing under /etc or /var changes). Whatever its origin, a file is kept only
if its sha256 is the one the recipe names, so every origin gives the same bytes. Conan then finds every archive in its
cache and opens no connection. Needs PyYAML, which Conan brings along.

    python scripts/fetch_sources.py build/conan/sources
    python scripts/fetch_sources.py --mirror file:///srv/sources build/conan/sources
    python scripts/fetch_sources.py --offline --only highway/1.2.0 build/conan/sources
    python scripts/fetch_sources.py --list build/conan/sources
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

RECIPES = Path(__file__).resolve().parent.parent / "conan" / "recipes"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
TIMEOUT_S = 15


class RecipeError(Exception):
    """A conandata.yml that does not say what this script needs."""


@dataclass(frozen=True)
class Archive:
    """One archive of one version of a dependency.

    Attributes:
        filename: name that Conan unpacks it under; the ending names the compression.
        sha256: 64 hexadecimal digits.
        url: upstream address, or None where upstream's archive has other bytes.
        debian: source package and suite that hold the same bytes, or None.
    """

    filename: str
    sha256: str
    url: str | None
    debian: tuple[str, str] | None


@dataclass(frozen=True)
class Dependency:
    """A version of a dependency and the archives that may stand for it, best first."""

    name: str
    version: str
    archives: tuple[Archive, ...]

    def cached(self, folder: Path) -> Archive | None:
        """Returns the archive that lies in the cache folder already, if any; a damaged file there is removed."""
        for archive in self.archives:
            file = folder / archive.sha256
            if not file.is_file():
                continue
            if sha256_of(file) == archive.sha256:
                return archive
            print(f"{self.name} {self.version}: {file} is cut off or damaged; fetching it again", file=sys.stderr)
            file.unlink()
        return None


def parse_archive(where: str, entry: Any) -> Archive:
    """Reads one entry of a version's list.

    Raises:
        RecipeError: a key is missing, unknown or malformed.
    """
    if not isinstance(entry, dict):
        raise RecipeError(f"{where}: expected a mapping with filename, sha256 and url or debian; got {entry!r}.")
    unknown = set(entry) - {"filename", "sha256", "url", "debian"}
    if unknown:
        raise RecipeError(f"{where}: unknown key {sorted(unknown)[0]!r}; known: filename, sha256, url, debian.")
    sha256 = str(entry.get("sha256", ""))
    if len(sha256) != 64 or set(sha256) - set("0123456789abcdef"):
        raise RecipeError(f"{where}: sha256 must be 64 lower-case hexadecimal digits; found {sha256!r}.")
    if not entry.get("filename"):
        raise RecipeError(f"{where}: filename is missing; Conan needs its ending to unpack the archive.")
    debian = entry.get("debian")
    if debian is not None and set(debian) != {"source", "suite"}:
        raise RecipeError(f"{where}: debian must hold source and suite; found {debian!r}.")
    if debian is None and not entry.get("url"):
        raise RecipeError(f"{where}: neither url nor debian says where the archive comes from.")
    origin = (debian["source"], debian["suite"]) if debian else None
    return Archive(entry["filename"], sha256, entry.get("url"), origin)


def read_recipes(recipes: Path) -> list[Dependency]:
    """Lists every version of every recipe under a recipes folder.

    Raises:
        RecipeError: a conandata.yml is malformed or there is none at all.
    """
    found = []
    for path in sorted(recipes.glob("*/*/conandata.yml")):
        name = path.parent.parent.name
        check_versions(path)
        sources = (yaml.safe_load(path.read_text(encoding="utf-8")) or {}).get("sources") or {}
        for version, entries in sources.items():
            where = f"{path}, version {version}"
            if not isinstance(entries, list) or not entries:
                raise RecipeError(f"{where}: expected a list of archives; got {entries!r}.")
            found.append(Dependency(name, str(version), tuple(parse_archive(where, entry) for entry in entries)))
    if not found:
        raise RecipeError(f"No conandata.yml with sources under {recipes}.")
    return found


def check_versions(conandata: Path) -> None:
    """Compares a recipe's config.yml, from which Conan learns its versions, with the archives of its conandata.yml.

    Raises:
        RecipeError: they list different versions.
    """
    config = conandata.parent.parent / "config.yml"
    if not config.is_file():
        raise RecipeError(f"{config} is missing; Conan learns the versions of a recipe from it.")
    versions = (yaml.safe_load(config.read_text(encoding="utf-8")) or {}).get("versions") or {}
    listed = {str(version) for version, at in versions.items() if at.get("folder") == conandata.parent.name}
    sources = (yaml.safe_load(conandata.read_text(encoding="utf-8")) or {}).get("sources") or {}
    if listed != (found := {str(version) for version in sources}):
        raise RecipeError(f"{config} lists the versions {sorted(listed)}, {conandata.name} beside it {sorted(found)}.")


def sha256_of(path: Path) -> str:
    """Returns the SHA-256 of a file in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


class Fetcher:
    """Tries the origins of an archive and remembers which ones do not answer.

    Attributes:
        folder: where archives are kept, each under its sha256.
        attempts: one line for each failed attempt since the last `fetch`, for the error message.
    """

    def __init__(self, folder: Path, mirror: str | None, *, offline: bool = False) -> None:
        self.folder = folder
        self.attempts: list[str] = []
        self._mirror = mirror.rstrip("/") if mirror else None
        self._offline = offline
        self._dead_hosts: set[str] = set()

    def fetch(self, dependency: Dependency) -> str | None:
        """Brings one archive of a dependency into the cache.

        Returns:
            Where it came from, or None if every origin failed.
        """
        self.attempts = []
        for archive in dependency.archives:
            if self._mirror and self._download(f"{self._mirror}/{archive.filename}", archive):
                return "mirror"
            if archive.url and self._download(archive.url, archive):
                return "upstream"
        for archive in dependency.archives:
            if archive.debian and not self._offline and self._debian(*archive.debian, archive):
                return f"Debian {archive.debian[1]}"
        return None

    def _keep(self, file: Path, archive: Archive, origin: str) -> bool:
        found = sha256_of(file)
        if found != archive.sha256:
            self.attempts.append(f"{origin}: expected sha256 {archive.sha256}, got {found}")
            return False
        # A download that Conan gave up leaves a .dirty mark, and Conan deletes a marked file however good it is.
        (self.folder / f"{archive.sha256}.dirty").unlink(missing_ok=True)
        partial = self.folder / f".{archive.sha256}.{os.getpid()}"
        shutil.copyfile(file, partial)
        partial.replace(self.folder / archive.sha256)
        return True

    def _download(self, url: str, archive: Archive) -> bool:
        host = urllib.parse.urlsplit(url).netloc
        if self._offline and urllib.parse.urlsplit(url).scheme != "file":
            self.attempts.append(f"{url}: left out, since this is to work offline")
            return False
        if host and host in self._dead_hosts:
            self.attempts.append(f"{url}: {host} did not answer before")
            return False
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch) / "archive"
            try:
                # A mirror may be a folder: any scheme is meant, and the hash decides.
                with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response, file.open("wb") as out:  # noqa: S310
                    shutil.copyfileobj(response, out)
            except (OSError, urllib.error.URLError) as error:
                self.attempts.append(f"{url}: {error}")
                if not isinstance(error, urllib.error.HTTPError):
                    self._dead_hosts.add(host)
                return False
            return self._keep(file, archive, url)

    def _debian(self, source: str, suite: str, archive: Archive) -> bool:
        origin = f"Debian source package {source}/{suite}"
        if not shutil.which("apt-get") or not KEYRING.is_file():
            self.attempts.append(f"{origin}: needs apt-get and {KEYRING} (package debian-archive-keyring)")
            return False
        uri = debian_mirror(apt_index_targets())
        if uri is None:
            self.attempts.append(f"{origin}: apt on this machine has no Debian mirror")
            return False
        with tempfile.TemporaryDirectory() as scratch:
            # apt drops its privileges while it downloads, so other users must be able to enter the folder.
            os.chmod(scratch, 0o755)
            out, failure = apt_source(Path(scratch), uri, source, suite)
            for file in out:
                if self._keep(file, archive, f"{origin}, {file.name}"):
                    return True
            if failure:
                self.attempts.append(f"{origin}: {failure}")
            return False


def apt_index_targets() -> str:
    """Asks apt which repositories it knows: one line each, origin and address separated by a bar."""
    command = ["apt-get", "indextargets", "--format", "$(ORIGIN)|$(REPO_URI)", "Created-By: Packages"]
    known = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    if known:
        return known
    # Before `apt-get update`, as in a container image, apt names its repositories only where no origin is asked for.
    command = ["apt-get", "indextargets", "--no-release-info", "--format", "|$(REPO_URI)", "Created-By: Packages"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def debian_mirror(targets: str) -> str | None:
    """Picks the main Debian archive out of `apt_index_targets`.

    The origin is known only after `apt-get update`; before that the address has to end in /debian.
    """
    for line in targets.splitlines():
        origin, _, uri = line.partition("|")
        name = urllib.parse.urlsplit(uri).path.rstrip("/").rpartition("/")[2]
        if origin in ("Debian", "") and name == "debian":
            return uri
    return None


def apt_source(scratch: Path, uri: str, source: str, suite: str) -> tuple[Iterable[Path], str]:
    """Downloads the tar archives of a Debian source package.

    Returns:
        The downloaded files, and apt's last words if it failed.
    """
    for folder in ("lists/partial", "cache/archives/partial", "out"):
        (scratch / folder).mkdir(parents=True)
    listing = scratch / "debian.sources"
    listing.write_text(f"Types: deb-src\nURIs: {uri}\nSuites: {suite}\nComponents: main\nSigned-By: {KEYRING}\n")
    options = {
        "Dir::Etc::sourcelist": listing,
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State::lists": scratch / "lists",
        "Dir::Cache": scratch / "cache",
        "APT::Sandbox::User": "root" if os.geteuid() == 0 else "",
    }
    apt = ["apt-get", "-qq", *(f"-o{key}={value}" for key, value in options.items())]
    for command in (
        [*apt, "update"],
        [*apt, "source", "--download-only", "--tar-only", f"{source}/{suite}"],
    ):
        done = subprocess.run(command, cwd=scratch / "out", capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return [], (done.stderr.strip().splitlines() or [f"apt-get ended with {done.returncode}"])[-1]
    return sorted((scratch / "out").iterdir()), ""


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cache", type=Path, help="Conan's core.sources:download_cache")
    parser.add_argument(
        "--mirror",
        default=os.environ.get("THRESHER_SOURCE_MIRROR"),
        help="address of a folder that holds the archives by file name; default $THRESHER_SOURCE_MIRROR",
    )
    parser.add_argument("--recipes", type=Path, default=RECIPES, help="recipes folder (default: conan/recipes)")
    parser.add_argument(
        "--offline",
        action="store_true",
        default=os.environ.get("THRESHER_OFFLINE") == "1",
        help="look only where no network is needed: the cache and file:// addresses; default $THRESHER_OFFLINE",
    )
    parser.add_argument("--only", action="append", metavar="NAME/VERSION", help="leave the others alone; repeatable")
    parser.add_argument("--list", action="store_true", help="fetch nothing; print as JSON what the recipes name")
    options = parser.parse_args(argv)
    folder: Path = options.cache / "s"
    try:
        dependencies = read_recipes(options.recipes)
        if options.list:
            print(json.dumps([asdict(dependency) for dependency in dependencies], indent=1))
            return 0
        wanted = set(options.only or (f"{d.name}/{d.version}" for d in dependencies))
        chosen = [d for d in dependencies if f"{d.name}/{d.version}" in wanted]
        unknown = wanted - {f"{d.name}/{d.version}" for d in chosen}
        if unknown:
            raise RecipeError(f"No recipe of {', '.join(sorted(unknown))} under {options.recipes}.")
        folder.mkdir(parents=True, exist_ok=True)
        return fetch_all(chosen, Fetcher(folder, options.mirror, offline=options.offline))
    except RecipeError as error:
        print(error, file=sys.stderr)
    except OSError as error:
        print(
            f"{folder} cannot be filled: {error}\n"
            "  Make it writable or free some space there, or name another Conan home with THRESHER_CONAN_HOME.",
            file=sys.stderr,
        )
    return 2


def fetch_all(dependencies: Iterable[Dependency], fetcher: Fetcher) -> int:
    """Fetches what the cache lacks; returns the exit code: 1 when an archive cannot be had."""
    missing = 0
    folder = fetcher.folder
    for dependency in dependencies:
        if dependency.cached(folder):
            continue
        origin = fetcher.fetch(dependency)
        if origin:
            print(f"{dependency.name} {dependency.version}: from {origin}")
            continue
        missing += 1
        print(f"{dependency.name} {dependency.version}: no origin has its source archive.", file=sys.stderr)
        for attempt in fetcher.attempts:
            print(f"  tried {attempt}", file=sys.stderr)
        best = dependency.archives[0]
        print(
            f"  Connect this machine, name a folder that holds {best.filename} with --mirror or "
            f"THRESHER_SOURCE_MIRROR, or copy that file to {folder / best.sha256}",
            file=sys.stderr,
        )
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())

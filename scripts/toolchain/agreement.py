"""Whether locks, recipes, archives, profiles, licences, documentation and Conan's home agree; builds nothing."""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from . import archives, lock, native, python_resolution
from .archives import Archive
from .environments import TOOLS, script
from .home import conan_home_lock
from .layout import CONAN, ROOT, conan_home
from .lock import Package
from .process import ToolchainError, captured, write_json

LICENCES = ROOT / "licenses"
PAGE = ROOT / "docs" / "building.md"


@dataclass(frozen=True)
class Finding:
    """The verdict of one check.

    Attributes:
        check: what was looked at.
        ok: whether all agrees.
        detail: what was found; where something is wrong, also the cure.
    """

    check: str
    ok: bool
    detail: str


def verify() -> list[Finding]:
    """Carries out every check; one that fails does not keep the others from running."""
    packages: list[Package] = []
    named: list[Archive] = []

    def locked() -> str:
        names = lock.profiles()
        resolution = lock.resolve(names)
        packages.extend(resolution.packages)
        resolved = lock.entries_of(resolution.lock)
        changes = lock.differences(lock.entries_of(lock.read_lock()), resolved)
        if changes:
            raise ToolchainError(lock.mismatch(changes))
        return f"{len(resolved)} dependencies, the same as from the recipes, for {', '.join(names)}"

    def recipes() -> str:
        named.extend(archives.named())
        return check_recipes(named, packages)

    checks: dict[str, Callable[[], str]] = {
        "lock": locked,
        "recipes": recipes,
        "archives": lambda: check_archives(named),
        "profiles": check_profiles,
        "licences": lambda: check_licences(packages, named),
        "documentation": lambda: check_documentation(packages),
        "Conan home": check_home,
        "Python locks": python_resolution.check,
    }
    return [_finding(name, check) for name, check in checks.items()]


def _finding(name: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding(name, True, check())
    except ToolchainError as error:
        return Finding(name, False, str(error))


def _judge(faults: Sequence[str], praise: str) -> str:
    if faults:
        raise ToolchainError("\n".join(faults))
    return praise


def check_recipes(named: Sequence[Archive], packages: Sequence[Package]) -> str:
    """Compares the versions that have archives with those that are required.

    Raises:
        ToolchainError: a version has archives and nobody requires it, or the other way round.
    """
    required = {f"{package.name}/{package.version}" for package in packages}
    known = {archive.dependency for archive in named}
    faults = [
        f"{name}: has a recipe, but conan/conanfile.py does not require it; remove it." for name in known - required
    ]
    faults += [f"{name}: is required and has no archive in conan/recipes." for name in required - known]
    return _judge(sorted(faults), f"{len(known)} versions with {len(named)} archives, each with a sha256")


def check_archives(named: Sequence[Archive]) -> str:
    """Hashes the archives in Conan's download cache.

    Raises:
        ToolchainError: one has other bytes than its recipe says.
    """
    here = [archive for archive in named if archive.path.is_file()]
    faults = [
        f"{archive.path}: expected sha256 {archive.sha256}, got {found}; remove it, the next build fetches it again."
        for archive in here
        if (found := archives.sha256_of(archive.path)) != archive.sha256
    ]
    return _judge(faults, f"{len(here)} of {len(named)} in {archives.cache()}, each with its sha256")


def check_profiles() -> str:
    """Compares the committed profiles with those the sessions know, with the presets, and with themselves.

    Raises:
        ToolchainError: a profile is unknown, has no preset, or sanitizes without saying so in its settings.
    """
    known, committed = set(native.PROFILES), set(lock.profiles())
    faults = [f"conan/config/profiles/{name}: no session knows it; see native.PROFILES." for name in committed - known]
    faults += [f"conan/config/profiles/{name} is missing; native.PROFILES names it." for name in known - committed]
    presets = json.loads((ROOT / "CMakePresets.json").read_text(encoding="utf-8"))
    names = {preset["name"] for preset in presets["configurePresets"]}
    for name in sorted(committed & known):
        preset = native.Flavour(name, native.PROFILES[name]).name
        if preset not in names:
            faults.append(f"CMakePresets.json: expected the preset {preset} for the profile {name}; got none.")
        text = (CONAN / "config" / "profiles" / name).read_text(encoding="utf-8")
        flags = set(re.findall(r"-fsanitize=(\w+)", text))
        settings = set(re.findall(r"^compiler\.sanitizer=(\w+)$", text, re.M))
        if flags != settings:
            # Flags are no part of Conan's package ids: sanitized and plain packages would be mistaken for each other.
            faults.append(
                f"conan/config/profiles/{name}: -fsanitize={'|'.join(sorted(flags)) or 'none'}, but "
                f"compiler.sanitizer={'|'.join(sorted(settings)) or 'none'}; both have to say the same."
            )
    return _judge(faults, f"{', '.join(sorted(committed))}: known, with presets")


def check_licences(packages: Sequence[Package], named: Sequence[Archive]) -> str:
    """Looks for the licence text of all that goes into the wheel, and compares it with the one in the archive.

    Raises:
        ToolchainError: a text is missing, not listed, or not the one that the archive holds.
    """
    listing = (LICENCES / "README.md").read_text(encoding="utf-8")
    faults = [
        f"licenses/{name}: licenses/README.md names it; it is not there."
        for name in re.findall(r"\| (\S+\.txt) \|$", listing, re.M)
        if not (LICENCES / name).is_file()
    ]
    shipped = [package for package in packages if not package.test_only]
    compared = 0
    for package in shipped:
        path = LICENCES / f"{package.name}.txt"
        if not path.is_file() or f"| {path.name} |" not in listing:
            faults.append(
                f"{package.name} ({package.licence}): expected its licence in licenses/{path.name} and a row in "
                "licenses/README.md; it goes into the wheel."
            )
            continue
        for archive in named:
            if archive.dependency != f"{package.name}/{package.version}" or not archive.path.is_file():
                continue
            compared += 1
            if path.read_bytes().split() not in [text.split() for text in licence_texts(archive.path)]:
                faults.append(f"licenses/{path.name}: no licence in {archive.filename} has this text; copy it again.")
    only_tests = [package.name for package in packages if package.test_only]
    return _judge(
        faults,
        f"{len(shipped)} in the wheel, {compared} compared with the archive; only for tests: {', '.join(only_tests)}",
    )


def licence_texts(archive: Path) -> list[bytes]:
    """Returns the licence files of a source archive.

    Raises:
        ToolchainError: the archive cannot be read.
    """
    try:
        with tarfile.open(archive) as tar:
            members = [m for m in tar if m.isfile() and re.match(r"(LICEN[CS]E|COPYING)", Path(m.name).name)]
            return [file.read() for member in members if (file := tar.extractfile(member))]
    except (OSError, EOFError, tarfile.TarError) as error:
        raise ToolchainError(f"{archive}: cannot be read ({error}); remove it.") from error


def check_documentation(packages: Sequence[Package]) -> str:
    """Compares the table of dependencies in docs/building.md with what Conan resolves.

    Raises:
        ToolchainError: a row is missing, names another version or licence, or is of no dependency.
    """
    text = PAGE.read_text(encoding="utf-8").partition("## Native dependencies")[2].partition("\n## ")[0]
    rows = {f"{n}/{v}": licence for n, v, licence in re.findall(r"^\| (\S+) \| (\d\S*) \| ([^|]+) \|", text, re.M)}
    wanted = {f"{package.name}/{package.version}": package.licence for package in packages}
    faults = [
        f"docs/building.md: expected the row `| {name.replace('/', ' | ')} | {licence} | ... |` under Native "
        "dependencies" + (f"; found the licence {rows[name]}." if name in rows else "; found none.")
        for name, licence in wanted.items()
        if rows.get(name) != licence
    ]
    faults += [f"docs/building.md: {name} is no dependency; remove its row." for name in rows if name not in wanted]
    return _judge(sorted(faults), f"docs/building.md names {', '.join(sorted(wanted))}")


def check_home() -> str:
    """Lets Conan compare what is in its home with the hashes it took.

    Raises:
        ToolchainError: a recipe or a package there is damaged.
    """
    home = conan_home()
    if not (home / "p").is_dir():
        return f"{home} is empty"
    command: list[str | Path] = [script(TOOLS, "conan"), "cache", "check-integrity", "*:*"]
    with conan_home_lock():
        try:
            captured(command, environment=native.tool_environment())
        except ToolchainError as error:
            raise ToolchainError(f"{error}\nRemoving {home} cures it; the next build fills it again.") from error
    return f"{home}: recipes and packages are undamaged"


def table(findings: Sequence[Finding]) -> str:
    """Returns the findings as lines."""
    width = max(len(finding.check) for finding in findings)
    lines = []
    for finding in findings:
        first, *rest = finding.detail.splitlines()
        lines.append(f"{'ok   ' if finding.ok else 'FAULT'}  {finding.check:{width}}  {first}")
        lines += [" " * (width + 9) + line for line in rest]
    return "\n".join(lines)


def run_verification(json_file: Path | None) -> None:
    """Prints the findings and the verdict.

    Args:
        json_file: where to write them as JSON too.

    Raises:
        ToolchainError: something does not agree.
    """
    findings = verify()
    faulty = [finding.check for finding in findings if not finding.ok]
    write_json(json_file, {"ok": not faulty, "findings": [asdict(finding) for finding in findings]})
    print(table(findings), flush=True)
    if faulty:
        raise ToolchainError(f"verdict: FAULT in {', '.join(faulty)}; the reasons and the cures are above.")
    print("verdict: all agree", flush=True)

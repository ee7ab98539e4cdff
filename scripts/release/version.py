"""The version: written in pyproject.toml, and said again by CMake, the changelog and the tag."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from toolchain.process import ToolchainError, output

from .finding import Problem, Verdict

# https://semver.org, without build metadata, which a package index does not take.
SEMVER = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-((0|[1-9]\d*|\d*[a-z-][0-9a-z-]*)\.?)+(?<!\.))?", re.I)
UNRELEASED = "Unreleased"


@dataclass(frozen=True)
class Section:
    """A section of the changelog: `## Unreleased`, or `## 1.2.3 - 2026-11-22`."""

    name: str
    date: str
    empty: bool


def project_version(root: Path) -> str:
    """Returns the version in pyproject.toml.

    Raises:
        ToolchainError: there is none.
    """
    text = (root / "pyproject.toml").read_text(encoding="utf-8")
    match = re.search(r'^version = "([^"]+)"$', text, re.MULTILINE)
    if not match:
        raise ToolchainError(f'{root / "pyproject.toml"}: expected a line of the form version = "1.2.3"; got none.')
    return match[1]


def cmake_version(root: Path, cmake: str | Path, scratch: Path) -> str:
    """Returns the version that CMake makes of it, by running cmake/version.cmake.

    Raises:
        ToolchainError: CMake refuses it.
    """
    script = scratch / "version.cmake"
    line = 'execute_process(COMMAND "${CMAKE_COMMAND}" -E echo "${THRESHER_VERSION_STRING}")'
    script.write_text(f'include("{root.as_posix()}/cmake/version.cmake")\n{line}\n', encoding="utf-8")
    found = output([cmake, "-P", script])
    if found is None:
        raise ToolchainError(
            f"Expected CMake to read the version; `{cmake} -P {script}` fails. Mend cmake/version.cmake."
        )
    return found


def sections(changelog: str) -> list[Section]:
    """Lists the sections of a changelog, newest first."""
    parts = re.split(r"^## +(.+?) *$", changelog, flags=re.MULTILINE)[1:]
    found = []
    for heading, body in zip(parts[::2], parts[1::2], strict=True):
        match = re.fullmatch(r"\[?([^\]\s]+)\]?(?: +- +(.*))?", heading)
        name, date = (match[1], match[2] or "") if match else (heading, "")
        found.append(Section(name, date, not re.search(r"^- ", body, re.MULTILINE)))
    return found


def tag_at_head(root: Path) -> str | None:
    """Returns the version tag of the commit that is checked out."""
    tags = (output(["git", "-C", root, "tag", "--points-at", "HEAD", "--list", "v*"]) or "").split()
    return tags[-1] if tags else None


def check(root: Path, tag: str | None, cmake: str | Path, scratch: Path) -> Verdict:
    """Compares the version with CMake's, the changelog's and the tag's.

    Args:
        root: the clone.
        tag: the tag to release as; None: the one at HEAD, if there is one.
        cmake: the program.
        scratch: a folder for a file.
    """
    version = project_version(root)
    problems = []
    if not SEMVER.fullmatch(version):
        problems.append(Problem("a SemVer version, such as 1.2.3 or 1.2.3-rc.1", version, "mend pyproject.toml"))
    elif "-" in version:
        problems.append(
            Problem("a version that Python and SemVer read alike", version, "release without a suffix: 1.2.3")
        )
    if (built := cmake_version(root, cmake, scratch)) != version:
        problems.append(Problem(f"CMake to say {version}", built, "mend cmake/version.cmake"))
    tag = tag or tag_at_head(root)
    if tag and tag != f"v{version}":
        cure = f'move the tag, or set version = "{tag.removeprefix("v")}" in pyproject.toml'
        problems.append(Problem(f"the tag v{version}, for version {version} of pyproject.toml", tag, cure))
    newest, words = _newest(root, version, tag, problems)
    said = f"{version}: pyproject.toml, CMake, CHANGELOG.md ({newest}{words})"
    return Verdict(f"{said}, {f'tag {tag}' if tag else 'no tag at HEAD, none given'}", problems)


def _newest(root: Path, version: str, tag: str | None, problems: list[Problem]) -> tuple[str, str]:
    """Judges the newest section of the changelog; returns its name and what there is to say of it."""
    listed = sections((root / "CHANGELOG.md").read_text(encoding="utf-8"))
    heading = f"## {version} - YYYY-MM-DD"
    if not listed:
        problems.append(Problem(f"the section `{heading}` in CHANGELOG.md", "no section at all", "write it"))
        return "nothing", ""
    newest = listed[0]
    if newest.name == UNRELEASED and (tag or newest.empty):
        cure = f"rename the section to `{heading}`" if not newest.empty else "remove the empty section"
        problems.append(Problem(f"the newest section of CHANGELOG.md to be `{heading}`", "Unreleased", cure))
    elif newest.name == UNRELEASED:
        released = [section.name for section in listed[1:]]
        if version in released:
            cure = "raise version in pyproject.toml: what is unreleased needs a new number"
            problems.append(Problem(f"{version} not to be released already", "a section of that name", cure))
        return newest.name, ", not released yet"
    else:
        if newest.name != version:
            cure = f'write `{heading}`, or set version = "{newest.name}" in pyproject.toml'
            problems.append(Problem(f"the newest section of CHANGELOG.md to be {version}", newest.name, cure))
        if not re.fullmatch(r"\d{4}-\d\d-\d\d", newest.date):
            problems.append(Problem(f"`{heading}` in CHANGELOG.md", newest.date or "no date", "add the date"))
        if newest.empty:
            problems.append(Problem(f"entries under {newest.name} in CHANGELOG.md", "none", "write what changed"))
    return newest.name, f", {newest.date}" if newest.date else ""

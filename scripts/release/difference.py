"""What two wheels that should be the same differ in: which members, and in which ELF sections of a library."""

from __future__ import annotations

import zipfile
from pathlib import Path

from toolchain import elf
from toolchain.archives import sha256_of

from .finding import Problem, Verdict

SHOWN = 12


def differences(one: Path, two: Path) -> list[str]:
    """Lists the differences of two wheels, one a line; empty if their bytes are equal."""
    if sha256_of(one) == sha256_of(two):
        return []
    found = []
    if one.name != two.name:
        found.append(f"names: {one.name} and {two.name}")
    with zipfile.ZipFile(one) as first, zipfile.ZipFile(two) as second:
        names = [first.namelist(), second.namelist()]
        found += [f"{name}: only in the first" for name in names[0] if name not in names[1]]
        found += [f"{name}: only in the second" for name in names[1] if name not in names[0]]
        if not found and names[0] != names[1]:
            found.append("order of the members")
        for name in names[0]:
            if name not in names[1]:
                continue
            infos = [first.getinfo(name), second.getinfo(name)]
            contents = [first.read(name), second.read(name)]
            if contents[0] != contents[1]:
                found.append(f"{name}: {_content(*contents)}")
            facts = [
                {
                    "time": str(info.date_time),
                    "mode": oct(info.external_attr >> 16),
                    "method": str(info.compress_type),
                    "packed size": str(info.compress_size) if contents[0] == contents[1] else "",
                }
                for info in infos
            ]
            found += [
                f"{name}: {label} {value} and {facts[1][label]}"
                for label, value in facts[0].items()
                if value != facts[1][label]
            ]
    return found or ["the bytes of the archive around equal members"]


def _content(one: bytes, two: bytes) -> str:
    """Says how two contents differ."""
    try:
        sections = [elf.sections(one), elf.sections(two)]
    except ValueError:
        shorter = min(len(one), len(two))
        at = next((i for i in range(shorter) if one[i] != two[i]), shorter)
        return f"{len(one)} and {len(two)} bytes, first different at {at}"
    names = [*sections[0], *(name for name in sections[1] if name not in sections[0])]
    parts = [
        f"{name} ({len(sections[0].get(name, b''))} and {len(sections[1].get(name, b''))} bytes)"
        for name in names
        if sections[0].get(name) != sections[1].get(name)
    ]
    return f"ELF sections {', '.join(parts)}" if parts else "ELF headers"


def compare(one: Path, two: Path) -> Verdict:
    """Judges two builds of one wheel."""
    found = differences(one, two)
    digests = [sha256_of(path) for path in (one, two)]
    if not found:
        return Verdict(f"{one.name}: sha256 {digests[0]} twice")
    more = [f"and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
    cure = "see what of the builder's folder, time or order goes in; docs/releasing.md lists what did before"
    return Verdict(
        f"{one.name}: sha256 {digests[0]} and {digests[1]}",
        [Problem(f"the same bytes from two builds of {one.name}", "\n".join([*found[:SHOWN], *more]), cure)],
    )

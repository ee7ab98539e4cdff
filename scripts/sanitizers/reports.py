"""What the sanitizers wrote while Python ran: which of it is about Thresher."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from toolchain.layout import ROOT

FRAME = re.compile(r"^\s+#\d+ 0x[0-9a-f]+(?: in (?P<function>.+?))?(?: (?P<place>/\S+|\(\S+\)|<null>.*))?$")
# Where memory is taken on behalf of somebody else: the sanitizer's own functions and the templates of the C++ library.
RUNTIME = re.compile(r"libsanitizer|lib[atu]b?san\.so|/include/c\+\+/|libstdc\+\+|^<null>")
HEAD = re.compile(r"(ERROR|WARNING|FATAL): \w+Sanitizer|runtime error: ")
OWN_FOLDERS = ("src", "tests")


@dataclass(frozen=True)
class Report:
    """One finding.

    Attributes:
        what: its first line.
        text: all of it.
        file: the log it stands in.
    """

    what: str
    text: str
    file: Path


def places(text: str) -> list[str]:
    """Returns the places in the first stack of a report: source file and line, or library and offset."""
    found = []
    for line in text.splitlines():
        match = FRAME.match(line)
        if match:
            found.append((match["place"] or "") or (match["function"] or ""))
        elif found:
            break
    return found


def is_own(place: str) -> bool:
    """Says whether a place lies in Thresher's own sources."""
    return any(place.startswith(f"{ROOT / folder}/") for folder in OWN_FOLDERS)


def taken_by_us(text: str) -> bool:
    """Says whether the innermost frame of the first stack that answers for itself is one of ours.

    Python and PyTorch keep memory until the process ends, and every call of ours is below a frame of theirs; so only
    who asked for the memory counts, not who stands further down.
    """
    for place in places(text):
        if not RUNTIME.search(place):
            return is_own(place)
    return False


def involves_us(text: str) -> bool:
    """Says whether any frame of a report is one of ours."""
    return any(is_own(place) for place in re.findall(r" (/\S+?)(?::\d+)*(?= |$)", text, re.MULTILINE))


def blocks(text: str) -> Iterator[str]:
    """Yields the reports in a log, each from the line that says what it is."""
    block: list[str] = []
    for line in text.splitlines():
        if HEAD.search(line):
            if block:
                yield "\n".join(block)
            block = [line]
        elif block:
            block.append(line)
    if block:
        yield "\n".join(block)


def findings(text: str) -> Iterator[str]:
    """Yields the reports in a log that are about Thresher.

    A leak counts when we took the memory, a race when we are in one of its stacks; every other error counts always.
    """
    for block in blocks(text):
        if "ERROR: LeakSanitizer" in block.splitlines()[0]:
            for leak in re.split(r"(?m)^(?=(?:Direct|Indirect) leak of )", block)[1:]:
                if leak.startswith("Direct") and taken_by_us(leak):
                    yield leak.strip()
        elif "WARNING: ThreadSanitizer" not in block.splitlines()[0] or involves_us(block):
            yield block.strip()


def read(folder: Path) -> list[Report]:
    """Returns the findings in the logs of a folder, one for each different first stack."""
    seen: dict[tuple[str, ...], Report] = {}
    for file in sorted(folder.glob("*")):
        for text in findings(file.read_text(encoding="utf-8", errors="replace")):
            kind = re.sub(r"\d+", "", text.splitlines()[0])
            seen.setdefault((kind, *places(text)), Report(text.splitlines()[0], text, file))
    return list(seen.values())

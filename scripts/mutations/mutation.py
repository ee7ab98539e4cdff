"""A fault as a patch, whose head says what a user would get and which tests have to fail."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from toolchain.layout import ROOT
from toolchain.process import ToolchainError

FOLDER = ROOT / "tests" / "mutations"
PYTEST = re.compile(r"tests/\S+\.py::\S+")
GOOGLE_TEST = re.compile(r"(\w+/)?\w+\.\w+(/\w+)?")


@dataclass(frozen=True)
class Mutation:
    """A planted fault.

    Attributes:
        name: of its file.
        effect: what a user would get.
        tests: names of the tests that have to fail, each of them: of pytest (FILE::TEST, with all its parameters) or
            of GoogleTest (Suite.Name, with a parameter All/Suite.Name/Parameter).
        files: what it changes.
        patch: where it lies.
    """

    name: str
    effect: str
    tests: tuple[str, ...]
    files: tuple[str, ...]
    patch: Path

    @property
    def is_cpp(self) -> bool:
        """Whether the C++ tests have to be built with it."""
        return GOOGLE_TEST.fullmatch(self.tests[0]) is not None


def read(path: Path) -> Mutation:
    """Reads a patch.

    Raises:
        ToolchainError: its head is not as it should be.
    """
    head, _, rest = path.read_text(encoding="utf-8").partition("\n--- ")
    effects = re.findall(r"^Effect: (.+)$", head, re.MULTILINE)
    tests = re.findall(r"^Fails: (.+)$", head, re.MULTILINE)
    files = re.findall(r"^\+\+\+ b/(.+)$", rest, re.MULTILINE)
    if len(effects) != 1 or not tests or not files:
        raise ToolchainError(
            f"{path}: expected a head of one line `Effect: ...`, lines `Fails: TEST` and a patch, got {len(effects)}, "
            f"{len(tests)} and {len(files)} files; write it as the others are."
        )
    wanted = GOOGLE_TEST if any(file.startswith("src/") for file in files) else PYTEST
    for test in tests:
        if not wanted.fullmatch(test):
            kind = "Suite.Name of GoogleTest, as src/ is changed" if wanted is GOOGLE_TEST else "tests/FILE.py::TEST"
            raise ToolchainError(f"{path}: expected {kind}, got {test!r}; name the tests that have to fail.")
    return Mutation(path.stem, effects[0], tuple(tests), tuple(files), path)


def choose(names: list[str], only: str | None = None) -> list[Mutation]:
    """Returns the mutations of these names, or all, in C++ or Python alone if `only` says so.

    Raises:
        ToolchainError: there is none of a name.
    """
    known = {path.stem: path for path in sorted(FOLDER.glob("*.patch"))}
    if unknown := set(names) - set(known):
        raise ToolchainError(
            f"expected names of patches in tests/mutations, got {', '.join(sorted(unknown))}; `--list` prints them."
        )
    found = [read(path) for name, path in known.items() if not names or name in names]
    return [mutation for mutation in found if only is None or mutation.is_cpp == (only == "cpp")]

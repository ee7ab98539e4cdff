"""The fuzz targets: what there is, and where their inputs lie."""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from toolchain.layout import BUILD, ROOT
from toolchain.process import ToolchainError

SOURCES = ROOT / "tests" / "fuzz"
RESULTS = BUILD / "fuzz"
CPP, PYTHON = "C++", "Python"
# A dictionary of another target that reads the same text.
SHARED_DICTIONARIES = {"compiled_graph": "graph_text", "graph_drawing": "graph_text", "model_file": "graph_text"}


@dataclass(frozen=True)
class Target:
    """A program that gives any bytes to a parser.

    Attributes:
        name: of the target, of its source and of the folders with its inputs.
        language: CPP, run by libFuzzer, or PYTHON, run by atheris.
        source: the file it is written in.
    """

    name: str
    language: str
    source: Path

    @property
    def about(self) -> str:
        """What it reads: the first sentence of its source."""
        text = self.source.read_text(encoding="utf-8")
        if self.language == PYTHON:
            text = ast.get_docstring(ast.parse(text)) or ""
        else:
            lines = re.match(r"(?://.*\n)*", text)
            text = lines[0].replace("//", "") if lines else ""
        return re.split(r"(?<=\.)\s", " ".join(text.split()), maxsplit=1)[0].rstrip(".")

    @property
    def corpus(self) -> Path:
        """Where inputs that lead further are kept from run to run."""
        return RESULTS / "corpus" / self.name

    @property
    def findings(self) -> Path:
        """Where inputs that break something are left."""
        return RESULTS / "findings" / self.name

    @property
    def log(self) -> Path:
        """What the program printed."""
        return RESULTS / "logs" / f"{self.name}.log"

    @property
    def dictionary(self) -> Path | None:
        """Words that its inputs are made of, in libFuzzer's form."""
        path = SOURCES / "dictionaries" / f"{SHARED_DICTIONARIES.get(self.name, self.name)}.dict"
        return path if path.exists() else None

    def kept(self, kind: str) -> list[Path]:
        """Inputs of the repository: `kind` is "corpus" (seeds) or "regressions" (findings of earlier runs)."""
        return sorted((SOURCES / kind / self.name).glob("*"))

    def make_seeds(self) -> Path:
        """Lays out the inputs of the repository as the program reads them, and gives their folder."""
        folder = RESULTS / "seeds" / self.name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for kind in ("corpus", "regressions"):
            for path in self.kept(kind):
                (folder / f"{kind}-{path.stem}").write_bytes(contents(path))
        return folder


def contents(path: Path) -> bytes:
    """The bytes of an input of the repository; one that ends in .hex holds them as digits.

    Raises:
        ToolchainError: it does not.
    """
    data = path.read_bytes()
    if path.suffix != ".hex":
        return data
    try:
        return bytes.fromhex(data.decode())
    except ValueError as error:
        raise ToolchainError(f"{path}: expected hexadecimal digits and white space; {error}.") from error


def targets() -> list[Target]:
    """Lists the targets, those in C++ first."""
    cpp = [Target(path.stem, CPP, path) for path in sorted(SOURCES.glob("*.cc"))]
    return cpp + [Target(path.stem, PYTHON, path) for path in sorted((SOURCES / "python").glob("*.py"))]


def planted() -> list[Target]:
    """Lists what the self-check must find."""
    folder = SOURCES / "planted"
    cpp = [Target(f"planted_{path.stem}", CPP, path) for path in sorted(folder.glob("*.cc"))]
    return cpp + [Target(f"planted_{path.stem}", PYTHON, path) for path in sorted(folder.glob("*.py"))]


def select(names: Sequence[str]) -> list[Target]:
    """Returns the targets of these names, all for none.

    Raises:
        ToolchainError: there is no target of a name.
    """
    known = {target.name: target for target in targets()}
    for name in names:
        if name not in known:
            raise ToolchainError(f"--target: expected one of {', '.join(known)}; got {name!r}.")
    return [known[name] for name in dict.fromkeys(names)] if names else list(known.values())

"""A copy of the tree, in which faults are planted and tests run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from toolchain.layout import ROOT
from toolchain.process import ToolchainError, captured

from .mutation import Mutation

# A fault may make a test hang; that is seen as well as a failure.
LIMIT_S = 600
PACKAGE = "import importlib.util as u; print(u.find_spec('thresher').submodule_search_locations[0])"


class Tree:
    """A copy of what git knows and of new files that it does not ignore, changes that are not committed included.

    Args:
        folder: where it lies, or is to lie. What has not changed since is left alone, so that it is not compiled again;
            so is what was built in its own folder build/.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        listed = captured(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT)
        wanted = {name for name in listed.split("\0") if name and (ROOT / name).is_file()}
        for path in folder.rglob("*"):
            known = path.relative_to(folder)
            if known.parts[0] != "build" and str(known) not in wanted and (path.is_file() or path.is_symlink()):
                path.unlink()
        for name in sorted(wanted):
            source, target = ROOT / name, folder / name
            if target.is_file() and target.read_bytes() == source.read_bytes():
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)

    def link_engine(self, python: Path) -> None:
        """Puts the compiled parts of the thresher that an interpreter has beside the copy's Python files."""
        package = Path(captured([python, "-c", PACKAGE], cwd=self.folder.parent).strip())
        for library in package.glob("*.so"):
            (self.folder / "python" / "thresher" / library.name).symlink_to(library.resolve())

    @contextmanager
    def planted(self, mutation: Mutation) -> Iterator[None]:
        """Within the block the fault is there.

        Raises:
            ToolchainError: the patch does not apply.
        """
        self._apply(mutation)
        try:
            yield
        finally:
            self._apply(mutation, "--reverse")

    def _apply(self, mutation: Mutation, *options: str) -> None:
        # Below another repository git would look for the files in that one, and apply nothing.
        alone = {"GIT_CEILING_DIRECTORIES": str(self.folder.parent)}
        captured(
            ["git", "apply", *options, mutation.patch],
            cwd=self.folder,
            environment=alone,
            hint=f"{mutation.patch.name} does not fit the sources any more: plant the fault again, by hand, and write "
            "the patch anew with `git diff`.",
        )

    def passing(self, python: Path, tests: Sequence[str]) -> list[str]:
        """Runs tests of pytest; returns those that do not fail.

        Raises:
            ToolchainError: a test is not there, or pytest itself fails.
        """
        command: list[str | Path] = [
            python,
            "-m",
            "pytest",
            "-q",
            "--tb=no",
            "-rf",
            "-p",
            "no:cacheprovider",
            "-m",
            "",
            *tests,
        ]
        code, said = self._said(command, {"PYTHONPATH": str(self.folder / "python"), "PYTHONDONTWRITEBYTECODE": "1"})
        if code not in (0, 1, None):
            raise ToolchainError(f"expected tests that pass or fail, got code {code} of pytest:\n{said[-2000:]}")
        failed = re.findall(r"^FAILED (\S+?)(?:\[| |$)", said, re.MULTILINE)
        return [] if code is None else [test for test in tests if test not in failed]

    def passing_cpp(self, program: Path, tests: Sequence[str]) -> list[str]:
        """Runs tests of GoogleTest, each in a process of its own; returns those that do not fail.

        Raises:
            ToolchainError: a test is not there.
        """
        found = []
        for test in tests:
            code, said = self._said([program, f"--gtest_filter={test}", "--gtest_brief=0"])
            if code is not None and "Running 0 tests" in said:
                raise ToolchainError(f"expected a test {test} in {program}, got none; name one that is there.")
            if code == 0:
                found.append(test)
        return found

    def _said(self, command: Sequence[str | Path], variables: dict[str, str] | None = None) -> tuple[int | None, str]:
        """The code that a command ends with, and what it prints; None where it does not end in time."""
        try:
            done = subprocess.run(
                [str(part) for part in command],
                cwd=self.folder,
                env={**os.environ, **(variables or {})},
                capture_output=True,
                text=True,
                errors="replace",
                timeout=LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return None, ""
        return done.returncode, done.stdout + done.stderr

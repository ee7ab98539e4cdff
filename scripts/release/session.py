"""The release check: every check in order, one table, one verdict."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from toolchain import environments, lock
from toolchain.archives import sha256_of
from toolchain.environments import RELEASE, TOOLS, script
from toolchain.layout import BUILD, DIST, PYTHON_TAG, ROOT
from toolchain.platforms import CUDA, of_this_machine
from toolchain.process import ToolchainError, output, write_json

from . import audit, content, difference, history, install, interpreter, rebuild, version
from .content import WheelFile
from .finding import FAULT, Finding, Problem, Verdict, carry_out, table
from .pace import Pace

# In this order; the first three need nothing but the clone.
CHECKS = (
    *("version", "tree", "commits", "build", "reproducible", "python", "auditwheel", "twine"),
    *("check-wheel-contents", "leftovers", "size", "metadata", "licences", "sbom"),
)
SOURCE_CHECKS = CHECKS[:3]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the session."""
    parser.add_argument("--check", action="store_true", help="carry out the checks; releasing itself is the workflow's")
    parser.add_argument("--tag", metavar="vX.Y.Z", help="the tag to release as (default: the one at HEAD, if any)")
    parser.add_argument(
        "--python",
        default="all",
        metavar="LIST",
        help=f"versions to build for, such as 3.10,3.12; a missing one is then a fault. Default: all of "
        f"{', '.join(interpreter.VERSIONS)} that are here; the others are reported as not here",
    )
    parser.add_argument("--no-rebuild", action="store_true", help="build nothing; check the wheels in dist/")
    parser.add_argument("--cuda", action="store_true", help="also the wheel thresher-cuda")
    parser.add_argument(
        "--only", metavar="LIST", help=f"only these checks, between commas: {', '.join(CHECKS)}; builds what they need"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="the findings as JSON, too")


def selected(text: str | None) -> set[str]:
    """Reads --only.

    Raises:
        ToolchainError: there is no such check.
    """
    if text is None:
        return set(CHECKS)
    chosen = {part.strip() for part in text.split(",")}
    if odd := sorted(chosen - set(CHECKS)):
        raise ToolchainError(f"--only: expected some of {', '.join(CHECKS)}; got {', '.join(odd)!r}.")
    return chosen


class Check:
    """One run of the release check.

    Attributes:
        findings: the rows so far.
        wheels: what is checked, once it is built.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.chosen = selected(options.only)
        self.findings: list[Finding] = []
        self.wheels: list[WheelFile] = []
        self.versions, self.strict = interpreter.requested(options.python)
        found = {name: interpreter.find(name) for name in self.versions}
        self.interpreters = [python for python in found.values() if python]
        self.missing = [name for name, python in found.items() if not python]
        self.first: Path | None = None
        self.first_cuda: Path | None = None
        # What looks at wheels needs them built.
        steps = self.chosen | ({"build"} if self.chosen - set(SOURCE_CHECKS) else set())
        self.pace = Pace(rebuild.FOLDER / "seconds.json", [name for name in CHECKS if name in steps])

    def run(self) -> None:
        """Carries out the checks that were chosen."""
        with tempfile.TemporaryDirectory() as scratch:
            self._add("version", lambda: version.check(ROOT, self.options.tag, cmake(), Path(scratch)))
        self._add("tree", lambda: history.check_clean(ROOT))
        self._add("commits", lambda: history.check_commits(ROOT, self.options.tag or version.tag_at_head(ROOT)))
        if not self.chosen - set(SOURCE_CHECKS):
            return
        # What follows needs wheels, whether or not their building is a row of the table.
        with self.pace.measured("build"):
            building = carry_out("build", self._collect)
        if "build" in self.chosen or building.outcome == FAULT:
            self._take(building)
        self._add("reproducible", self._reproducible)
        if not self.wheels:
            return
        wheels = self.wheels
        own = [wheel for wheel in wheels if not wheel.name.startswith("thresher_cuda-")]
        self._add("python", lambda: install.check(own, self.interpreters, self.missing, strict=self.strict))
        self._add("auditwheel", lambda: audit.check_tags(wheels), TOOLS)
        self._add("twine", lambda: audit.check_twine(wheels), RELEASE)
        self._add("check-wheel-contents", lambda: audit.check_contents(wheels), RELEASE)
        self._add("leftovers", lambda: content.check_leftovers(wheels))
        self._add("size", lambda: content.check_size(wheels))
        self._add("metadata", lambda: content.check_metadata(wheels, version.project_version(ROOT)))
        self._add("licences", lambda: content.check_licences(wheels, ROOT / "licenses", self._conan()), TOOLS)
        self._add("sbom", lambda: audit.check_sboms(wheels), RELEASE)

    def _add(
        self, name: str, action: Callable[[], Verdict], environment: environments.Environment | None = None
    ) -> None:
        if name not in self.chosen:
            return

        def prepared() -> Verdict:
            if environment:
                environments.ensure(environment)
            return action()

        with self.pace.measured(name):
            finding = carry_out(name, prepared)
        self._take(finding)

    def _take(self, finding: Finding) -> None:
        self.findings.append(finding)
        # Builds take long; what is wrong should be seen when it is found.
        print(table([finding]).splitlines()[2], flush=True)

    def _collect(self) -> Verdict:
        """Builds the wheels into dist/, or takes those that are there."""
        if self.options.no_rebuild:
            names = ["thresher-*.whl", *(["thresher_cuda-*.whl"] if self.options.cuda else [])]
            paths = sorted(path for name in names for path in DIST.glob(name))
            asked = {f"cp{name.replace('.', '')}" for name in self.versions}
            self.wheels = [w for w in map(WheelFile, paths) if not self.strict or w.tags[0] in {*asked, "py3"}]
            if not self.wheels:
                wanted = " and ".join(names) + (f" for {self.options.python}" if self.strict else "")
                return Verdict(str(DIST), [Problem(f"{wanted} in {DIST}", "none", "leave out --no-rebuild")])
            return Verdict(f"not rebuilt; from {DIST}: " + ", ".join(wheel.name for wheel in self.wheels))
        # The one that runs this comes first: it is the one to be built twice.
        order = sorted(self.interpreters, key=lambda python: python.tag != PYTHON_TAG)
        if not order:
            return Verdict("nothing", [Problem(f"a CPython of {self.options.python}", "none", "install one")])
        rebuild.unpack(ROOT, rebuild.FIRST)
        problems: list[Problem] = []
        built: list[Path] = []
        for python in order:
            try:
                path = rebuild.build(ROOT, rebuild.FIRST, python)
                self.first = self.first or path
                built.append(rebuild.publish(path))
            except ToolchainError as error:
                problems.append(Problem(f"a wheel for Python {python.version}", str(error), "its messages are above"))
        if self.options.cuda:
            try:
                self.first_cuda = rebuild.build(ROOT, rebuild.FIRST, order[0], CUDA)
                built.append(rebuild.publish(self.first_cuda))
            except ToolchainError as error:
                problems.append(Problem("a wheel for CUDA", str(error), "its messages are above"))
        self.wheels = [WheelFile(path) for path in built]
        absent = [f"an interpreter for {name}" for name in self.missing]
        return Verdict("from the commit alone: " + ", ".join(path.name for path in built), problems, absent)

    def _reproducible(self) -> Verdict:
        """Builds once more, elsewhere, and compares."""
        if self.options.no_rebuild:
            return Verdict("", skipped="--no-rebuild")
        if self.first is None:
            return Verdict("nothing", [Problem("a wheel to build a second time", "none", "see the check `build`")])
        built = min(self.interpreters, key=lambda python: python.tag != PYTHON_TAG)
        rebuild.unpack(ROOT, rebuild.SECOND)
        verdicts = [difference.compare(self.first, rebuild.build(ROOT, rebuild.SECOND, built))]
        if self.first_cuda:
            second = rebuild.build(ROOT, rebuild.SECOND, built, CUDA)
            verdicts.append(difference.compare(self.first_cuda, second))
        found = "\n".join(verdict.found for verdict in verdicts)
        return Verdict(found, [problem for verdict in verdicts for problem in verdict.problems])

    def _conan(self) -> list[str]:
        """Lists what Conan resolves for the wheel from the recipes, tests left out."""
        packages = lock.resolve([of_this_machine().profile]).packages
        return [package.name for package in packages if not package.test_only]


def cmake() -> str | Path:
    """Returns a CMake; for reading the version any will do."""
    if found := shutil.which("cmake"):
        return found
    environments.ensure(TOOLS)
    return script(TOOLS, "cmake")


def summary(findings: Sequence[Finding]) -> str:
    """Returns the verdict on findings without faults: what is proven, and what is not."""
    absent = [text for finding in findings for text in finding.absent]
    skipped = [finding.check for finding in findings if finding.outcome == "left out"]
    words = f"verdict: {sum(finding.outcome == 'ok' for finding in findings)} checks are ok"
    words += f"; not here, so not proven: {', '.join(dict.fromkeys(absent))}" if absent else ""
    return words + (f"; left out: {', '.join(skipped)}" if skipped else "")


def carry_out_session(options: argparse.Namespace) -> None:
    """Carries out the checks, prints the table and the verdict.

    Raises:
        ToolchainError: a check failed, or none was asked for.
    """
    if not options.check:
        raise ToolchainError("Expected --check; releasing itself is the workflow's (docs/releasing.md).")
    BUILD.mkdir(parents=True, exist_ok=True)
    check = Check(options)
    check.run()
    faulty = [finding.check for finding in check.findings if finding.outcome == FAULT]
    content_of = {
        "ok": not faulty,
        "version": version.project_version(ROOT),
        "revision": output(["git", "-C", ROOT, "rev-parse", "HEAD"]),
        "findings": [asdict(finding) for finding in check.findings],
        "wheels": [
            {"file": wheel.name, "bytes": wheel.path.stat().st_size, "sha256": sha256_of(wheel.path)}
            for wheel in check.wheels
        ],
    }
    write_json(options.json, content_of)
    print(f"\n{table(check.findings)}\n", flush=True)
    if faulty:
        raise ToolchainError(f"verdict: FAULT in {', '.join(faulty)}; what was expected and found is above.")
    print(summary(check.findings), flush=True)

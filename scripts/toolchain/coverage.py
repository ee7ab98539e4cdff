"""`nox -s coverage`: which lines of C++ and Python the tests run, in one page."""

from __future__ import annotations

import json
import os
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

from . import environments, native, wheel
from .environments import COVERAGE, script
from .layout import BUILD, ROOT
from .native import PROFILES, Flavour
from .process import ToolchainError, cores, note, run, write_json
from .tests import EMULATOR, OFFLINE, PYTHON_TESTS, emulated_device, watched_tests

OUTPUT = BUILD / "coverage"
PAGE = OUTPUT / "index.html"
SUMMARY = OUTPUT / "coverage.json"
# How many of the least covered files the table names.
WORST = 15


def run_coverage(*, only: str | None, ctest: list[str], pytest: list[str], json_file: Path | None) -> None:
    """Builds with counters, runs the tests, draws the page and prints a table.

    Args:
        only: "cpp" or "python" to run just these tests; the page shows the lines of both languages either way.
        ctest: more arguments for ctest.
        pytest: more arguments for pytest.
        json_file: where to copy the figures by file to.

    Raises:
        ToolchainError: the build or a test failed. A failed test does not keep the page from being drawn.
    """
    flavour = Flavour("coverage", PROFILES["coverage"])
    built = wheel.build_raw(flavour)
    native.configure(flavour, THRESHER_BUILD_TESTS=True)
    native.build_target(flavour, "thresher_tests", EMULATOR)
    python = environments.install_wheel(COVERAGE, built)
    shutil.rmtree(OUTPUT, ignore_errors=True)
    OUTPUT.mkdir(parents=True)
    for counters in flavour.objects.rglob("*.gcda"):
        counters.unlink()
    failed = []
    if only != "python":
        failed += _attempt(lambda: native.run_ctest(flavour, ctest))
    if only != "cpp":
        failed += _attempt(lambda: _run_pytest(flavour, python, pytest))
    summary = draw(flavour)
    print_table(summary)
    write_json(json_file, summary)
    note(f"page: {PAGE}; figures: {SUMMARY}")
    if failed:
        raise ToolchainError(f"The page is drawn, but {' and '.join(failed)}")


def _attempt(action: Any) -> list[str]:
    try:
        action()
    except ToolchainError as error:
        return [str(error)]
    return []


def _run_pytest(flavour: Flavour, python: Path, arguments: list[str]) -> None:
    folders = [folder for folder in PYTHON_TESTS if (ROOT / folder).is_dir()]
    run(
        [
            *(python, "-m", "coverage", "run", "-m", "pytest", *watched_tests()),
            *(*folders, emulated_device(flavour), *arguments),
        ],
        cwd=ROOT,
        name="the Python tests",
        environment={**OFFLINE, "COVERAGE_FILE": str(OUTPUT / ".coverage")},
    )


def draw(flavour: Flavour) -> dict[str, Any]:
    """Merges the counts of both languages and draws the page.

    Returns:
        gcovr's summary: totals and figures by file.
    """
    cpp = OUTPUT / "cpp.json"
    gcovr: list[str | Path] = [script(COVERAGE, "gcovr"), "--root", ROOT]
    run(
        [
            *(*gcovr, "--object-directory", flavour.objects, "--filter", f"{ROOT}/src/", "--json", cpp),
            *("--merge-mode-functions", "separate", "--exclude-throw-branches", "-j", str(cores())),
            # CMake's own trial of the compiler leaves counters, too.
            *("--exclude-directory", ".*/CompilerIdCXX"),
            flavour.objects,
        ],
        cwd=ROOT,
        environment={"GCOV": os.environ.get("GCOV", "gcov")},
    )
    traces: list[str | Path] = ["--add-tracefile", cpp]
    if list(OUTPUT.glob(".coverage*")):
        coverage: list[str | Path] = [COVERAGE.python, "-m", "coverage"]
        variables = {"COVERAGE_FILE": str(OUTPUT / ".coverage")}
        if list(OUTPUT.glob(".coverage.*")):
            run([*coverage, "combine", "--quiet", OUTPUT], cwd=ROOT, environment=variables)
        python = OUTPUT / "python.xml"
        run([*coverage, "xml", "--quiet", "-o", python], cwd=ROOT, environment=variables)
        traces += ["--cobertura-add-tracefile", python]
    run(
        [
            # Highway compiles a kernel's file once for each instruction set; a line has run when any of them has.
            *(*gcovr, *traces, "--merge-mode-functions", "separate", "--merge-lines"),
            *("--html-details", PAGE, "--html-single-page"),
            *("--html-title", "Thresher: lines that the tests run", "--json-summary", SUMMARY),
        ],
        cwd=ROOT,
    )
    content: dict[str, Any] = json.loads(SUMMARY.read_text(encoding="utf-8"))
    return content


def print_table(summary: dict[str, Any]) -> None:
    """Prints lines and percentages by folder, and the files with the most lines that never ran."""
    folders: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for file in summary["files"]:
        figures = folders[str(Path(file["filename"]).parent)]
        figures[0] += file["line_total"]
        figures[1] += file["line_covered"]
    print(f"\n{'folder':44} {'lines':>7} {'run':>7} {'%':>6}")
    for name, (total, covered) in sorted(folders.items()):
        print(f"{name:44} {total:7} {covered:7} {_percent(covered, total):>6}")
    total, covered = summary["line_total"], summary["line_covered"]
    print(f"{'all':44} {total:7} {covered:7} {_percent(covered, total):>6}\n\nmost lines that never ran")
    for file in sorted(summary["files"], key=lambda file: file["line_covered"] - file["line_total"])[:WORST]:
        print(f"{file['filename']:60} {file['line_total'] - file['line_covered']:5} of {file['line_total']}")
    print(flush=True)


def _percent(covered: int, total: int) -> str:
    return f"{100 * covered / total:.1f}" if total else "-"

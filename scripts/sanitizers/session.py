"""`nox -s sanitize`: build, self-check, C++ tests, Python tests through the extension."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from toolchain import environments, native, wheel
from toolchain.environments import SANITIZED, TOOLS
from toolchain.layout import BUILD, ROOT
from toolchain.process import ToolchainError, note, run, write_json
from toolchain.tests import DEVICE_TESTS, EMULATOR, OFFLINE, emulated_device, named_tests, of_the_device, watched_tests

from . import reports, selfcheck
from .sanitizer import SANITIZERS, Sanitizer, launcher

OUTPUT = BUILD / "sanitize"
PLANTED = (selfcheck.PROGRAM, "planted_faults_library")
TARGETS = ("thresher_tests", EMULATOR, *PLANTED)
TEST_FOLDERS = ("tests/python", "tests/faults")
# The C++ tests on the emulated device.
EMULATED_CPP = r"^(\w+Kernel|DeviceGraph|DevicePlan|Divisor|Emulator|RowShape)\."
# These test the toolchain, or reports and traces that Python alone reads and writes. Any other file is taken.
WITHOUT_CPP = re.compile(
    r"test_(analysis_|bad_cases|bench|build_sessions|cli_compare|compare_reports|containers|dependencies|draw|energy"
    r"|engine_stub|export_trace|format|fuzz_regressions|lint|locks|package|python_locks|release|sanitizers|stage"
    r"|toolchain|trace_chrome|trace_damage|workflows)"
)


def extension_tests(*, emulator: bool) -> list[Path]:
    """Lists the test files that reach the C++ code through Python."""
    folders = [*TEST_FOLDERS, *([DEVICE_TESTS] if emulator else ())]
    files = [file for folder in folders for file in sorted((ROOT / folder).glob("test_*.py"))]
    return [file.relative_to(ROOT) for file in files if not WITHOUT_CPP.match(file.name)]


def run_sanitizer(
    name: str,
    *,
    only: str | None,
    selfcheck_only: bool,
    ctest: list[str],
    pytest: list[str],
    json_file: Path | None,
) -> None:
    """Builds everything with a sanitizer and runs the tests.

    Args:
        name: address (with leaks), thread or undefined.
        only: "cpp" or "python" to run just these tests.
        selfcheck_only: whether to build the planted faults alone, and to stop after the self-check.
        ctest: more arguments for ctest.
        pytest: more arguments for pytest.
        json_file: where to write what was run and found.

    Raises:
        ToolchainError: a planted fault was not found, a test failed, or the sanitizer found something of ours.
    """
    sanitizer = SANITIZERS[name]
    flavour = sanitizer.flavour
    if selfcheck_only:
        native.configure_alone(flavour, THRESHER_BUILD_TESTS=True)
        native.build_target(flavour, *PLANTED)
        write_json(json_file, {"sanitizer": name, "selfcheck": selfcheck.run(sanitizer, flavour.objects, TOOLS.python)})
        note(f"{name}: the planted faults were found")
        return
    # Exceptions pass between libstdc++ and the sanitizer's library, so there may be only one libstdc++.
    built = wheel.build_raw(flavour, THRESHER_STATIC_RUNTIME="OFF")
    native.configure(flavour, THRESHER_BUILD_TESTS=True)
    native.build_target(flavour, *TARGETS)
    python = environments.install_wheel(SANITIZED, built)
    for binary in (flavour.objects / "thresher_tests", *SANITIZED.site_packages.glob("thresher/_*.so")):
        if not sanitizer.is_in(binary):
            raise ToolchainError(f"{binary} was built without the {name} sanitizer: expected {sanitizer.symbol} in it.")
    result: dict[str, object] = {"sanitizer": name, "selfcheck": selfcheck.run(sanitizer, flavour.objects, python)}
    if only != "python":
        left_out = [] if sanitizer.emulator else ["--exclude-regex", EMULATED_CPP]
        native.run_ctest(flavour, [*left_out, *ctest], sanitizer.environment())
        result["cpp"] = "passed"
    if only != "cpp":
        found = run_pytest(sanitizer, python, pytest)
        result["python"] = [report.text for report in found]
        if found:
            write_json(json_file, result)
            raise ToolchainError(_message(name, found))
        result["python"] = "passed"
    write_json(json_file, result)
    note(f"{name}: the planted faults were found, and nothing else")


def pytest_options(sanitizer: Sanitizer, arguments: list[str]) -> list[str | Path]:
    """Returns what pytest is called with: the user's arguments and, where they name no tests, all that matter."""
    named = named_tests(arguments)
    files = [] if named else extension_tests(emulator=sanitizer.emulator)
    options: list[str | Path] = [*watched_tests(*sanitizer.left_out)]
    if sanitizer.emulator and of_the_device(named or files):
        options.append(emulated_device(sanitizer.flavour))
    return [*options, *files, *arguments]


def run_pytest(sanitizer: Sanitizer, python: Path, arguments: list[str]) -> list[reports.Report]:
    """Runs the Python tests that reach the extension.

    Returns:
        What the sanitizer found in them, in whatever process.

    Raises:
        ToolchainError: a test failed; what the sanitizer found is named as well.
    """
    folder = OUTPUT / sanitizer.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    command: list[str | Path] = [python, "-X", "faulthandler", "-m", "pytest"]
    try:
        run(
            [*launcher(), *command, *pytest_options(sanitizer, arguments)],
            cwd=ROOT,
            name="the Python tests",
            environment={
                **OFFLINE,
                **sanitizer.environment(folder / "report"),
                **sanitizer.preload(),
                # Its own arenas would hide what happens at the ends of Python's objects.
                "PYTHONMALLOC": "malloc",
            },
        )
    except ToolchainError as error:
        found = reports.read(folder)
        raise ToolchainError(f"{error} {_message(sanitizer.name, found)}" if found else str(error)) from error
    return reports.read(folder)


def _message(name: str, found: list[reports.Report]) -> str:
    for report in found:
        print(f"\n{report.file}:\n{report.text}", flush=True)
    return f"The {name} sanitizer found {len(found)} faults, printed above; all reports are in {OUTPUT / name}."

#!/usr/bin/env python3
"""Tests an installed wheel where it is to run: on another machine, or in a container of another architecture.

Needs nothing but Python with the module venv. Makes an environment, installs the wheel and what it asks for, imports
it without and with its dependencies, asks `thresher doctor`, runs the C++ tests, a model file and the Python tests that
need no PyTorch. Under qemu all that depends on the processor is done for several emulated ones; elsewhere for every
instruction set that the machine has. Prints a table; exit code 1 if anything failed or was left undone.

    python3 scripts/wheel_test.py --wheel dist --work /tmp/wheel_test
    python3 scripts/wheel_test.py --wheel dist --work /tmp/wheel_test --cpp-tests thresher_tests --tests tests
    python3 scripts/wheel_test.py --wheel dist --work /tmp/wheel_test --cpu cortex-a57 --json results.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any

REQUIREMENTS = Path(__file__).resolve().parent.parent / "requirements"
# What is installed beside the wheel, with hashes; used where it is there.
LOCK = REQUIREMENTS / "locks" / "wheel-test.txt"
# Folders of tests/cpp whose tests run on every processor; the others compute nothing that depends on it.
KERNEL_FOLDERS = ("kernels", "ops")
# Tests of kernels that take most of the time under qemu: large products in every blocking. They run on one processor.
LARGE_KERNEL_TESTS = ("*.EveryBlockingComputesTheSame", "*.DepthBlocks", "*.SeveralBlocksOfKeys")
# Python tests that start many processes or read large texts, and no result of which depends on the processor. Emulated,
# they would take longer than everything else together.
SLOW_EMULATED = (
    "test_analysis*.py",
    "test_cache.py",
    "test_cli*.py",
    "test_compare*.py",
    "test_draw.py",
    "test_terminal.py",
    "test_trace_chrome.py",
    "test_trace_memory.py",
)
SLOWEST_STEP_S = 1800
NO_ANSWER = "no answer"

PROBE = """
import ctypes, json
import thresher
from thresher import _engine
_engine.initialize()  # takes THRESHER_ISA into account
vector_bytes = ctypes.CDLL(None).prctl(51, 0, 0, 0, 0)  # PR_SVE_GET_VL
print(json.dumps({"version": thresher.__version__, "isa": _engine.isa(), "isas": _engine.isas(),
                  "vector_bytes": vector_bytes & 0xFFFF if vector_bytes > 0 else None}))
"""

MODEL = """
import json, sys
import numpy, thresher
file, expected, tolerance = sys.argv[1], numpy.load(sys.argv[2]), float(sys.argv[3])
inputs = {name[len("input_"):]: expected[name] for name in expected.files if name.startswith("input_")}
numbers = sorted(int(name[len("output_"):]) for name in expected.files if name.startswith("output_"))
wanted = [expected[f"output_{number}"] for number in numbers]
found = list(thresher.load(file)(**inputs).values())
if not wanted or [array.shape for array in found] != [array.shape for array in wanted]:
    sys.exit(f"expected outputs of shapes {[a.shape for a in wanted]}; got {[a.shape for a in found]}")
if not all(numpy.isfinite(array).all() for array in found):
    sys.exit("expected finite values; got others")
error = max(float(abs(a - b).max() / max(1.0, abs(b).max())) for a, b in zip(found, wanted))
print(json.dumps({"isa": thresher._engine.isa(), "error": error}))
if error > tolerance:
    sys.exit(f"expected an error of at most {tolerance}; got {error}")
"""


class Outcome(Enum):
    """How a step ended."""

    PASSED = "passed"
    FAILED = "failed"
    BLOCKED = "blocked"  # an earlier step that it needs has failed


class StepError(Exception):
    """A step failed; the message is the short reason."""


@dataclass(frozen=True)
class Processor:
    """What a step runs on.

    Attributes:
        name: for people.
        environment: variables that choose it.
        isa: the instruction set that the engine must choose; None: any.
        vector_bytes: the length of its SVE vectors; None: not checked.
    """

    name: str
    environment: Mapping[str, str] = field(default_factory=dict)
    isa: str | None = None
    vector_bytes: int | None = None


def emulated(model: str, isa: str | None = None, vector_bytes: int | None = None) -> Processor:
    """Returns a processor that qemu's user mode emulates."""
    return Processor(model, {"QEMU_CPU": model}, isa, vector_bytes)


# From the oldest 64-bit core without SVE to SVE2 with vectors of different lengths. Enabling one length of `max` leaves
# the longer ones out.
EMULATED = (
    emulated("max,sve256=on", "sve2", 32),
    emulated("cortex-a57", "neon"),
    emulated("a64fx", "sve", 64),
    emulated("max,sve128=on", "sve2", 16),
    emulated("max,sve512=on", "sve2", 64),
)


@dataclass(frozen=True)
class Step:
    """One line of the table.

    Attributes:
        name: what was done.
        processor: on what.
        outcome: how it ended.
        detail: counts, or the reason of a failure.
        seconds: how long it took.
        log: file with everything that it printed; empty where nothing was run.
    """

    name: str
    processor: str
    outcome: Outcome
    detail: str
    seconds: float = 0.0
    log: str = ""


def plan_cpp_tests(
    processors: Sequence[Processor], under_qemu: bool, kernels: str, others: str
) -> list[tuple[str, Processor, str]]:
    """Decides which C++ tests run where; each entry has a name, a processor and a filter.

    The tests of the kernels go through every instruction set of the processor by themselves, unless THRESHER_ISA names
    one: of the emulated processors the first does so, the others test the best of theirs, since they would only repeat
    what the first one did. The large ones run once. The other tests compute little.
    """
    first = processors[0]
    if not under_qemu:
        return [("C++ kernels", first, kernels), *(("C++ others", processor, others) for processor in processors)]
    best = [replace(p, environment={**p.environment, "THRESHER_ISA": p.isa}) if p.isa else p for p in processors]
    large = ":".join(LARGE_KERNEL_TESTS)
    return [
        ("C++ large kernels", best[0], large),
        *(("C++ kernels", processor, f"{kernels}-{large}") for processor in (first, *best[1:])),
        ("C++ others", first, others),
    ]


def is_emulated() -> bool:
    """Whether qemu's user mode runs this process: only it looks at QEMU_CPU, and refuses an unknown model."""
    environment = {**os.environ, "QEMU_CPU": "no-such-model"}
    return subprocess.run([sys.executable, "-c", ""], env=environment, capture_output=True, check=False).returncode != 0


def choose_processors(models: Sequence[str], under_qemu: bool) -> list[Processor]:
    """Returns the processors to test; empty where the engine's own instruction sets take their place.

    Raises:
        StepError: models are named, but nothing emulates them.
    """
    if models and not under_qemu:
        raise StepError(f"--cpu {models[0]}: expected a process under qemu; got a real {platform.machine()}.")
    known = {processor.name: processor for processor in EMULATED}
    if models:
        return [known.get(model, emulated(model)) for model in models]
    return list(EMULATED) if under_qemu else []


def slow_ones_left_out(folder: Path) -> list[str]:
    """Returns the options of pytest that leave out what is slow under qemu; it wants whole paths."""
    return [f"--ignore-glob={folder / name}" for name in SLOW_EMULATED]


def find_wheel(place: Path) -> Path:
    """Returns the wheel that `place` is or, in a folder, the one for this machine and Python.

    Raises:
        StepError: there is none, or more than one.
    """
    if place.is_file():
        return place
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    found = sorted(place.glob(f"thresher-*-{tag}-*_{platform.machine()}.whl"))
    if len(found) != 1:
        raise StepError(
            f"Expected one wheel for {tag} and {platform.machine()} in {place}; got {[path.name for path in found]}. "
            "Name the file."
        )
    return found[0]


def answer(text: str) -> dict[str, Any]:
    """Reads the JSON object that a program printed among other lines.

    Raises:
        StepError: there is none.
    """
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                found = json.loads(line)
            except ValueError:
                continue
            if isinstance(found, dict):
                return found
    raise StepError(NO_ANSWER)


def count_gtest(report: Path) -> str:
    """Reads GoogleTest's JSON report.

    Raises:
        StepError: it is not there, a test failed, or none ran.
    """
    try:
        data = json.loads(report.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StepError(f"no report: {error}") from error
    cases = [case for suite in data["testsuites"] for case in suite["testsuite"]]
    failed = [f"{case['classname']}.{case['name']}" for case in cases if case.get("failures")]
    skipped = sum(case["result"] == "SKIPPED" for case in cases)
    ran = sum(case["result"] == "COMPLETED" for case in cases)
    if failed:
        raise StepError(f"{len(failed)} of {ran} failed: {', '.join(failed[:5])}")
    if not ran:
        raise StepError("no test ran")
    return f"{ran} passed" + (f", {skipped} skipped" if skipped else "")


def count_pytest(report: Path) -> str:
    """Reads the JUnit report of pytest.

    Raises:
        StepError: it is not there, a test failed, or none ran.
    """
    try:
        root = ElementTree.parse(report).getroot()
    except (OSError, ElementTree.ParseError) as error:
        raise StepError(f"no report: {error}") from error
    cases = list(root.iter("testcase"))
    bad = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = sum(case.find("skipped") is not None for case in cases)
    if bad:
        names = [f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}" for case in bad]
        raise StepError(f"{len(bad)} of {len(cases)} failed: {', '.join(names[:5])}")
    if len(cases) == skipped:
        raise StepError(f"no test ran, {skipped} skipped")
    return f"{len(cases) - skipped} passed" + (f", {skipped} skipped" if skipped else "")


def kernel_filters(listing: Path) -> tuple[str, str]:
    """Splits the C++ tests by the folder that they stand in, from GoogleTest's list of them.

    Returns:
        Filters for the tests of the kernels and for all others.

    Raises:
        StepError: there is no such list, or no test of a kernel in it.
    """
    try:
        suites = json.loads(listing.read_text(encoding="utf-8"))["testsuites"]
    except (OSError, ValueError, KeyError) as error:
        raise StepError(f"no list of the C++ tests: {error}") from error
    kernels = set()
    for suite in suites:
        if any(Path(case["file"]).parent.name in KERNEL_FOLDERS for case in suite["testsuite"]):
            kernels.add(f"{suite['name']}.*")
    if not kernels:
        raise StepError("the C++ tests have none of a kernel")
    names = ":".join(sorted(kernels))
    return names, f"-{names}"


def judge(steps: Sequence[Step]) -> list[str]:
    """Returns the reasons why the wheel has failed; none if it has passed."""
    if not steps:
        return ["nothing was tested"]
    return [
        f"{step.name} on {step.processor}: {step.outcome.value}, {step.detail}"
        for step in steps
        if step.outcome is not Outcome.PASSED
    ]


def table(steps: Sequence[Step]) -> str:
    """Formats the steps for a terminal."""
    head = ("step", "processor", "outcome", "seconds", "detail")
    rows = [(s.name, s.processor, s.outcome.value, f"{s.seconds:.0f}", s.detail) for s in steps]
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(4)]
    lines = []
    for row in (head, *rows):
        cells = [row[i].rjust(widths[i]) if i == 3 else row[i].ljust(widths[i]) for i in range(4)]
        lines.append("  ".join((*cells, row[4])).rstrip())
    return "\n".join(lines)


class WheelTest:
    """The steps and what they share.

    Attributes:
        steps: those done so far, in the order they began.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.steps: list[Step] = []
        self._options = options
        self._work: Path = options.work.resolve()
        self._python = self._work / "venv" / "bin" / "python"
        # Nothing of the user's may reach the tests, nor the other way round.
        self._environment = {
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith(("THRESHER_", "PYTHON", "QEMU_"))
            },
            "HOME": str(self._work / "home"),
            "THRESHER_CACHE_DIR": str(self._work / "cache"),
            "PYTHONDONTWRITEBYTECODE": "1",
            # Else what a failing program says last would stand before what it printed first.
            "PYTHONUNBUFFERED": "1",
        }

    def _execute(self, name: str, processor: Processor, command: Sequence[str | Path]) -> tuple[int | None, str, float]:
        """Runs a command; returns its exit code, None if it took too long, the log file and the seconds."""
        label = "".join(c if c.isalnum() else "-" for c in f"{name}-{processor.name}")
        log = self._work / "logs" / f"{label}.txt"
        start = time.monotonic()
        environment = {**self._environment, **processor.environment}
        with log.open("w", encoding="utf-8") as out:
            child = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=self._work,
                env=environment,
                start_new_session=True,
            )
            try:
                code: int | None = child.wait(timeout=self._options.timeout)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                if child.poll() is None:
                    os.killpg(child.pid, signal.SIGKILL)
                    child.wait()
        return code, str(log), time.monotonic() - start

    def step(
        self,
        name: str,
        processor: Processor,
        command: Sequence[str | Path],
        read: Callable[[str], str] = lambda text: "",
    ) -> Step:
        """Runs one step.

        Args:
            name: what it does.
            processor: what it runs on.
            command: program and arguments.
            read: turns what was printed into the detail, or raises StepError. Also called where the command failed,
                since it may know the reason.
        """
        code, log, seconds = self._execute(name, processor, command)
        printed = Path(log).read_text(encoding="utf-8", errors="replace")
        reason = None
        try:
            detail = read(printed)
        except StepError as error:
            reason = str(error)
        except (ValueError, KeyError) as error:
            reason = f"unexpected output ({error})"
        if code is None:
            reason = f"took more than {self._options.timeout} s"
        elif code != 0:
            last = (printed.strip().splitlines() or [""])[-1].strip()
            reason = f"ended with code {code}: {last if reason in (None, NO_ANSWER) else reason}"
        outcome = Outcome.FAILED if reason is not None else Outcome.PASSED
        done = Step(name, processor.name, outcome, detail if reason is None else reason, round(seconds, 1), log)
        print(f"-- {name} on {processor.name}: {done.outcome.value} in {seconds:.0f} s  {done.detail}", flush=True)
        if reason is not None:
            print("\n".join(f"   | {line}" for line in printed.splitlines()[-30:]), flush=True)
        return done

    def _add(
        self,
        name: str,
        processor: Processor,
        command: Sequence[str | Path],
        read: Callable[[str], str] = lambda text: "",
    ) -> bool:
        """Runs a step and keeps it; returns whether it passed."""
        self.steps.append(self.step(name, processor, command, read))
        return self.steps[-1].outcome is Outcome.PASSED

    def _block(self, name: str, processor: Processor, why: str) -> None:
        self.steps.append(Step(name, processor.name, Outcome.BLOCKED, why))

    def run(self) -> None:
        """Runs all steps; those that need one that has failed are blocked."""
        for folder in ("logs", "home", "cache"):
            shutil.rmtree(self._work / folder, ignore_errors=True)
            (self._work / folder).mkdir(parents=True)
        shutil.rmtree(self._work / "venv", ignore_errors=True)
        here = Processor("this machine")
        under_qemu = is_emulated()
        processors = choose_processors(self._options.cpu, under_qemu)
        main = processors[0] if processors else here
        if not self._install(main):
            self._block("all other steps", main, "the wheel is not installed")
            return
        processors = processors or [here, *self._instruction_sets(here)]
        for processor in processors:
            self._imports(processor)
        self._cpp_tests(processors, under_qemu)
        self._models(processors)
        self._python_tests(main, under_qemu)

    def _install(self, processor: Processor) -> bool:
        options = self._options
        wheel = find_wheel(options.wheel)
        pip: list[str | Path] = [self._python, "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
        pip += [f"--find-links={folder}" for folder in options.find_links]
        pip += ["--no-index"] if options.no_index else []
        others: list[str | Path] = [*pip, wheel, "pytest"]
        if LOCK.is_file():
            others = [*pip, "--require-hashes", "--no-deps", "-r", LOCK]
        return (
            self._add("make environment", processor, [sys.executable, "-m", "venv", self._work / "venv"])
            and self._add("install alone", processor, [*pip, "--no-deps", wheel], lambda _: wheel.name)
            and self._add("import alone", processor, [self._python, "-I", "-c", PROBE], self._read_probe(processor))
            and self._add("install", processor, others)
            and self._add("its requirements are met", processor, [self._python, "-m", "pip", "check"])
        )

    def _read_probe(self, processor: Processor) -> Callable[[str], str]:
        def read(text: str) -> str:
            found = answer(text)
            if processor.isa and found["isa"] != processor.isa:
                raise StepError(f"expected instruction set {processor.isa}; the engine chose {found['isa']}")
            if processor.vector_bytes and found["vector_bytes"] != processor.vector_bytes:
                raise StepError(f"expected vectors of {processor.vector_bytes} bytes; got {found['vector_bytes']}")
            length = f", vectors of {found['vector_bytes']} bytes" if found["vector_bytes"] else ""
            return f"{found['version']}, {found['isa']} of {' '.join(found['isas'])}{length}"

        return read

    def _instruction_sets(self, processor: Processor) -> list[Processor]:
        """Asks the engine for the instruction sets of this machine, so that each can be forced."""
        names: list[str] = []

        def read(text: str) -> str:
            names.extend(answer(text)["isas"])
            return " ".join(names)

        self._add("instruction sets", processor, [self._python, "-I", "-c", PROBE], read)
        return [Processor(f"THRESHER_ISA={name}", {"THRESHER_ISA": name}, name) for name in names]

    def _imports(self, processor: Processor) -> None:
        self._add("import", processor, [self._python, "-I", "-c", PROBE], self._read_probe(processor))
        self._add("doctor", processor, [self._python.with_name("thresher"), "doctor"])

    def _cpp_tests(self, processors: Sequence[Processor], under_qemu: bool) -> None:
        binary: Path | None = self._options.cpp_tests
        if not binary:
            return
        main = processors[0]
        listing = self._work / "logs" / "cpp.json"
        filters = ("", "")

        def read(_: str) -> str:
            nonlocal filters
            filters = kernel_filters(listing)
            return ""

        arguments = ["--gtest_color=no", "--gtest_brief=1"]
        if not self._add(
            "list C++ tests", main, [binary, "--gtest_list_tests", f"--gtest_output=json:{listing}"], read
        ):
            self._block("C++ tests", main, "they cannot be listed")
            return
        plan = plan_cpp_tests(processors, under_qemu, *filters)

        def one(item: tuple[str, Processor, str]) -> Step:
            name, processor, chosen = item
            report = self._work / "logs" / f"{name}-{plan.index(item)}.json"
            command: list[str | Path] = [
                binary,
                *arguments,
                f"--gtest_filter={chosen}",
                f"--gtest_output=json:{report}",
            ]
            return self.step(name, processor, command, lambda _: count_gtest(report))

        with ThreadPoolExecutor(max_workers=self._options.jobs) as pool:
            self.steps.extend(pool.map(one, plan))

    def _models(self, processors: Sequence[Processor]) -> None:
        options = self._options
        if not options.model_file:
            return
        command = [self._python, "-I", "-c", MODEL, options.model_file, options.expected, str(options.tolerance)]

        def read(text: str) -> str:
            found = answer(text)
            return f"error {found['error']:.2g} with {found['isa']}"

        for processor in processors:
            self._add("model file", processor, command, read)

    def _python_tests(self, processor: Processor, under_qemu: bool) -> None:
        tests: Path | None = self._options.tests
        if not tests:
            return
        report = self._work / "logs" / "python.xml"
        command: list[str | Path] = [self._python, "-m", "pytest", tests / "python", "-q", "-p", "no:cacheprovider"]
        command += [f"--junitxml={report}", f"--basetemp={self._work / 'pytest'}"]
        if under_qemu:
            # numpy's matrix products raise floating-point flags there that no real processor raises.
            command.append("-Wignore::RuntimeWarning")
            if not self._options.all_python_tests:
                command += slow_ones_left_out(tests / "python")
        if self._options.pytest_filter:
            command += ["-k", self._options.pytest_filter]
        self._add("Python tests", processor, command, lambda _: count_pytest(report))


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheel", type=Path, required=True, help="the wheel, or a folder with one for this machine")
    parser.add_argument("--work", type=Path, required=True, help="folder for the environment and the logs")
    parser.add_argument("--tests", type=Path, metavar="FOLDER", help="the repository's tests; may be read-only")
    parser.add_argument("--cpp-tests", type=Path, metavar="BINARY", help="thresher_tests, built for this machine")
    parser.add_argument("--model-file", type=Path, metavar="FILE", help="what thresher.export wrote; with --expected")
    parser.add_argument(
        "--expected", type=Path, metavar="FILE", help=".npz with input_NAME and output_NUMBER of the model file"
    )
    parser.add_argument(
        "--tolerance", type=float, default=1e-4, help="largest error of an output over its largest value (1e-4)"
    )
    parser.add_argument("--json", type=Path, metavar="OUT", help="write all steps and the verdict there")
    parser.add_argument(
        "--cpu", action="append", default=[], help="model that qemu emulates; may be given several times"
    )
    parser.add_argument("--find-links", action="append", default=[], metavar="FOLDER", help="wheels to install from")
    parser.add_argument("--no-index", action="store_true", help="install from --find-links only")
    parser.add_argument("--pytest-filter", metavar="EXPRESSION", help="run only these Python tests (pytest -k)")
    parser.add_argument(
        "--all-python-tests",
        action="store_true",
        help="also those that take long under qemu and depend on no processor",
    )
    parser.add_argument("--timeout", type=float, default=SLOWEST_STEP_S, help=f"seconds a step ({SLOWEST_STEP_S})")
    parser.add_argument(
        "--jobs", type=int, default=len(os.sched_getaffinity(0)), help="C++ test runs at once (the usable cores)"
    )
    options = parser.parse_args(argv)
    if bool(options.model_file) != bool(options.expected):
        parser.error("--model-file and --expected go together")
    for name in ("wheel", "tests", "cpp_tests", "model_file", "expected"):
        path: Path | None = getattr(options, name)
        if path is not None:
            if not path.exists():
                parser.error(f"--{name.replace('_', '-')}: expected {path}; it is not there")
            setattr(options, name, path.resolve())
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit code."""
    options = parse(argv)
    test = WheelTest(options)
    start = time.monotonic()
    reasons = []
    try:
        test.run()
    except StepError as error:
        reasons.append(str(error))
    reasons += judge(test.steps)
    seconds = time.monotonic() - start
    print(f"\n{table(test.steps)}\n")
    for reason in reasons:
        print(f"failed: {reason}")
    print(f"{'FAILED' if reasons else 'PASSED'} in {seconds:.0f} s: {options.wheel.name} on {platform.machine()}")
    if options.json:
        content = {
            "wheel": options.wheel.name,
            "machine": platform.machine(),
            "python": platform.python_version(),
            "libc": " ".join(platform.libc_ver()),
            "seconds": round(seconds, 1),
            "steps": [{**asdict(step), "outcome": step.outcome.value} for step in test.steps],
            "verdict": "failed" if reasons else "passed",
            "reasons": reasons,
        }
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return 1 if reasons else 0


if __name__ == "__main__":
    sys.exit(main())

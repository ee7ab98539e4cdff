"""Running the tests, the stage and the benchmarks against a freshly built wheel."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from . import environments, native, package, wheel
from .environments import CHECKS, LINT, MODEL, PEERS, RUNTIME, TESTS, ZENTORCH
from .layout import BUILD, ROOT, SCRIPTS
from .meanwhile import beside
from .native import Flavour
from .process import ToolchainError, cores, note, run
from .system import offer_test_packages

CONTAINER_TEST = BUILD / "container_test"
DEVICE_TESTS = "tests/cuda"
PYTHON_TESTS = ("tests/python", "tests/browser", DEVICE_TESTS, "tests/faults")
# The table of docs/serving.md#what-is-tested, the tests that take minutes included.
SERVE_TESTS = (
    "tests/browser/test_serve_page.py",
    "tests/python/test_llm_ranks.py",
    *(
        f"tests/python/test_serve_{name}.py"
        for name in (
            "agents",
            "answer_text",
            "bench",
            "embeddings",
            "http",
            "life",
            "load",
            "openai",
            "processes",
            "ray",
        )
    ),
)
# What DEVICE_TESTS run on where there is no GPU.
EMULATOR = "thresher_emulated_device"
# Nothing here may reach for a model hub: the weights come with a package.
OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
# Processes of pytest share the cores: a thread of PyTorch that spins until the next loop keeps the others from
# running. A quarter of the processor time of a sample of them went there.
SHARED_CORES = {"OMP_WAIT_POLICY": "passive"}
# Each process of pytest holds a PyTorch and a model of its own.
MOST_WORKERS = 4
UNWATCHED_MARKS = ("thorough", "release_build")


def watched_tests(*marks: str) -> tuple[str, str]:
    """Returns the options of pytest that leave out what a build that watches itself does not bear, and more marks."""
    return "-m", " and ".join(f"not {mark}" for mark in (*UNWATCHED_MARKS, *marks))


def named_tests(arguments: Sequence[str | Path]) -> list[Path]:
    """Returns the files and folders of tests that arguments of pytest name.

    Others may be names of folders, too: `-k docs` names no tests.
    """
    paths = [ROOT / str(argument).partition("::")[0] for argument in arguments]
    return [path for path in paths if path.is_relative_to(ROOT / "tests") and path.exists()]


def of_the_device(places: Sequence[str | Path]) -> bool:
    """Returns whether some of these tests know the option of `emulated_device`; others refuse it."""
    return any((ROOT / place).is_relative_to(ROOT / DEVICE_TESTS) for place in places)


def emulated_device(flavour: Flavour) -> str:
    """Returns the option of pytest that names the device which a build made for tests/cuda."""
    return f"--device-library={flavour.objects / f'lib{EMULATOR}.so'}"


def run_tests(
    flavour: Flavour,
    *,
    only: str | None,
    ctest: list[str],
    pytest: list[str],
    places: Sequence[str] = PYTHON_TESTS,
) -> None:
    """Builds and runs the C++ tests (ctest), then the wheel's Python tests (pytest).

    The environments of the latter are made while the former compile.

    Args:
        flavour: what to build.
        only: "cpp" or "python" to run just these.
        ctest: more arguments for ctest.
        pytest: more arguments for pytest; without any, the tests share the cores.
        places: folders and files of the Python tests, where the arguments name none.

    Raises:
        ToolchainError: the build or a test failed.
    """
    if only == "cpp":
        run_cpp_tests(flavour, ctest)
        return
    with beside(*(partial(environments.ensure, one) for one in (MODEL, TESTS)), make_checking_environments):
        if only is None:
            run_cpp_tests(flavour, ctest)
    built = wheel.build_wheel(flavour)
    native.configure(flavour, THRESHER_BUILD_TESTS=True)
    offer_test_packages()
    native.build_target(flavour, EMULATOR)
    python = environments.install_wheel(TESTS, built)
    made = {"CPP_PACKAGE": str(package.build_package(flavour))}
    run(
        [python, "-m", "pytest", *pytest_options(flavour, pytest, places)],
        cwd=ROOT,
        environment={**OFFLINE, **SHARED_CORES, **made},
    )


def run_cpp_tests(flavour: Flavour, ctest: list[str]) -> None:
    """Builds and runs the C++ tests, which need neither a wheel nor PyTorch.

    Raises:
        ToolchainError: the build or a test failed.
    """
    native.configure_alone(flavour, THRESHER_BUILD_TESTS=True)
    native.build_target(flavour, "thresher_tests")
    native.run_ctest(flavour, ctest)


def make_checking_environments() -> None:
    """Makes what tests of format and lint use, or says that they will be skipped."""
    for environment in (CHECKS, LINT):
        try:
            environments.ensure(environment)
        except ToolchainError as error:
            note(f"tests of format and lint will be skipped: {error}")


def pytest_options(flavour: Flavour, arguments: list[str], places: Sequence[str] = PYTHON_TESTS) -> list[str | Path]:
    """Returns what pytest is called with by `run_tests`: without arguments all tests, on all cores."""
    named = named_tests(arguments)
    device = [emulated_device(flavour)] if of_the_device(named or places) else []
    workers = [] if arguments or cores() == 1 else ["-n", str(min(cores(), MOST_WORKERS)), "--dist", "loadfile"]
    return [*(() if named else places), *device, *workers, *arguments]


def build_container_test(flavour: Flavour) -> None:
    """Builds what proves a wheel on another machine: the C++ tests and a reference model, in build/container_test.

    The model is exported with the wheel itself, so only where it can run.

    Raises:
        ToolchainError: the build or the export failed.
    """
    built = wheel.build_wheel(flavour)
    native.configure(flavour, THRESHER_BUILD_TESTS=True)
    native.build_target(flavour, "thresher_tests")
    CONTAINER_TEST.mkdir(exist_ok=True)
    shutil.copy2(flavour.objects / "thresher_tests", CONTAINER_TEST / "thresher_tests")
    if not flavour.platform.cross:
        python = environments.install_wheel(RUNTIME, built)
        run([python, SCRIPTS / "export_reference.py", CONTAINER_TEST], environment=OFFLINE)
    note(f"{CONTAINER_TEST}: {', '.join(sorted(path.name for path in CONTAINER_TEST.iterdir()))}")


def run_stage(flavour: Flavour, arguments: list[str]) -> None:
    """Runs scripts/stage_test.py over two environments that differ in nothing but the wheel.

    Raises:
        ToolchainError: the build failed, or the verdict is a failure.
    """
    built = wheel.build_wheel(flavour)
    _run_script(
        [
            *(SCRIPTS / "stage_test.py", "--python-base", environments.ensure(MODEL)),
            *("--python-thresher", environments.install_wheel(RUNTIME, built), "--output", BUILD / "stage_test"),
            *("--python-serve", environments.install_wheel(TESTS, built)),
            *arguments,
        ]
    )


def run_bench(flavour: Flavour, arguments: list[str], *, zentorch: bool) -> None:
    """Runs bench/run.py: Thresher beside PyTorch and the engines of requirements/bench-peers.txt.

    Args:
        flavour: what to build.
        arguments: more arguments for bench/run.py.
        zentorch: whether to measure zentorch; where it cannot be installed, the table says that it is not there.

    Raises:
        ToolchainError: the build or the benchmark failed.
    """
    built = wheel.build_wheel(flavour)
    command: list[str | Path] = [
        *(ROOT / "bench" / "run.py", "--python-thresher", environments.install_wheel(RUNTIME, built)),
        *("--python-peers", environments.ensure(PEERS), "--output", BUILD / "bench"),
    ]
    if zentorch:
        command.append("--zentorch")
        try:
            command += ["--python-zentorch", environments.ensure(ZENTORCH)]
        except ToolchainError as error:
            note(f"zentorch is left out: {error}")
    _run_script([*command, *arguments])


def run_kernel_bench(flavour: Flavour, arguments: list[str]) -> None:
    """Builds and runs every program of bench/kernels; needs neither a wheel nor PyTorch.

    Raises:
        ToolchainError: the build or a program failed.
    """
    native.configure_alone(flavour, THRESHER_BUILD_BENCHMARKS=True)
    native.build_target(flavour, "thresher_benchmarks")
    for program in sorted((ROOT / "bench" / "kernels").glob("*_bench.cc")):
        run([flavour.objects / "bench" / program.stem, *arguments])


def _run_script(command: list[str | Path]) -> None:
    """Runs a script in the runtime environment, whose interpreter has rich for the tables."""
    run([RUNTIME.python, *command], cwd=ROOT, environment=OFFLINE)

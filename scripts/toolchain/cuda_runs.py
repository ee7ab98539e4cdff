"""What takes a machine with an NVIDIA GPU: the tests of tests/cuda and the benchmarks of bench/cuda."""

from __future__ import annotations

import argparse
import ctypes
from collections.abc import Callable
from pathlib import Path

from . import cuda, environments, wheel
from .environments import CUDA_TESTS
from .layout import BUILD, ROOT
from .native import Flavour
from .process import ToolchainError, run
from .tests import OFFLINE

RESULTS = BUILD / "bench" / "cuda"
# Programs of bench/cuda, and what makes each of them quick.
BENCHMARKS = {"device": ["--quick"], "attention": ["--rounds=3"], "models": ["--quick"]}


def obstacle(open_library: Callable[[str], ctypes.CDLL] = ctypes.CDLL) -> str | None:
    """Returns why no GPU of this machine can be used, as far as the driver tells; None where one can."""
    try:
        driver = open_library("libcuda.so.1")
    except OSError as error:
        return f"no driver: {error}"
    count = ctypes.c_int(0)
    result = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if result:
        return f"the driver answers with error {result}; look at nvidia-smi"
    return None if count.value else "the driver shows none; look at nvidia-smi and at CUDA_VISIBLE_DEVICES"


def run_tests(flavour: Flavour, pytest: list[str]) -> None:
    """Builds both wheels and runs tests/cuda on the GPU.

    Args:
        flavour: how the wheel thresher is built.
        pytest: more arguments for pytest.

    Raises:
        ToolchainError: there is no GPU, the build or a test failed.
    """
    python = _python_with_both(flavour, "`nox -s tests` runs the same tests on the emulated device.")
    run([python, "-m", "pytest", "tests/cuda", "-m", "gpu", *pytest], cwd=ROOT, environment=OFFLINE)


def run_bench(flavour: Flavour, arguments: list[str]) -> None:
    """Builds both wheels and runs bench/cuda: kernels, attention, whole models, beside PyTorch in the same process.

    The tables are printed, and lie as JSON in build/bench/cuda.

    Args:
        flavour: how the wheel thresher is built.
        arguments: `--quick`, and names of benchmarks where not all of them are wanted.

    Raises:
        ToolchainError: there is no GPU, an argument is wrong, or the build or a benchmark failed.
    """
    parser = argparse.ArgumentParser(prog="nox -s bench -- --cuda", exit_on_error=False, add_help=False)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("names", nargs="*")
    options, others = parser.parse_known_args(arguments)
    if unknown := [*others, *(name for name in options.names if name not in BENCHMARKS)]:
        raise ToolchainError(f"--cuda: expected --quick or some of {', '.join(BENCHMARKS)}, got {unknown[0]!r}.")
    python = _python_with_both(flavour, "bench/cuda measures GPUs alone; `nox -s bench` measures this machine's CPU.")
    for name in options.names or BENCHMARKS:
        program = ROOT / "bench" / "cuda" / f"{name}_bench.py"
        quick = BENCHMARKS[name] if options.quick else []
        run([python, program, *quick, f"--json={RESULTS / f'{name}.json'}"], cwd=ROOT, environment=OFFLINE)


def _python_with_both(flavour: Flavour, instead: str) -> Path:
    """Returns the interpreter of an environment with both wheels, once it is known that they can be used."""
    if reason := obstacle():
        raise ToolchainError(f"Expected a machine with an NVIDIA GPU, got one without: {reason}. {instead}")
    built = [wheel.build_wheel(flavour), cuda.build_wheel()]
    return environments.install_wheel(CUDA_TESTS, *built)

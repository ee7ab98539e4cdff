"""Processes that share the tests (pytest-xdist) must find the same ones under the same names, in the same order."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

# ruff: noqa: E402 - the scripts are found after their folder is on the path
from toolchain.native import Flavour
from toolchain.tests import PYTHON_TESTS, pytest_options


def collected(*places: str | Path, seed: int) -> list[str]:
    """Returns the names of the tests that a new process finds, in which sets of text are ordered by `seed`."""
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", *places],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": str(seed)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    return [line for line in result.stdout.splitlines() if "::" in line]


def differing(first: list[str], second: list[str]) -> list[tuple[str, str]]:
    return [pair for pair in zip(first, second, strict=True) if pair[0] != pair[1]]


@pytest.mark.thorough
def test_every_process_finds_the_same_tests() -> None:
    # One after the other: a name that holds the time of day differs too.
    first, second = collected(*PYTHON_TESTS, seed=1), collected(*PYTHON_TESTS, seed=2)
    assert len(first) > 1000
    assert differing(first, second) == []


def test_a_name_that_changes_is_found(tmp_path: Path) -> None:
    changing = tmp_path / "test_changing.py"
    changing.write_text(
        "import pytest, time\n"
        "@pytest.mark.parametrize('x', {'a', 'b', 'c', 'd', 'e', 'f', 'g'})\n"
        "def test_set(x): pass\n"
        "@pytest.mark.parametrize('x', [str(time.time_ns())])\n"
        "def test_time(x): pass\n"
    )
    changed = " ".join(first for first, _ in differing(collected(changing, seed=1), collected(changing, seed=2)))
    assert "test_set" in changed and "test_time" in changed


def test_named_tests_run_alone_and_know_their_options() -> None:
    def called(*arguments: str) -> str:
        return " ".join(str(option) for option in pytest_options(Flavour(), list(arguments)))

    everything = called("-k", "docs")
    assert everything.startswith(" ".join(PYTHON_TESTS)) and "--device-library=" in everything
    assert called("tests/python/test_toolchain.py", "-x") == "tests/python/test_toolchain.py -x"
    one = called("tests/cuda/test_gemm.py::test_gemm")
    assert one.startswith("--device-library=") and one.count("tests/") == 1

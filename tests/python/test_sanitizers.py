"""The sanitizers find what is planted, and their silence is noticed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

# ruff: noqa: E402 - the scripts are found after their folder is on the path
from sanitizers import reports, selfcheck, session
from sanitizers.sanitizer import ADDRESS, SANITIZERS, THREAD, Sanitizer
from toolchain.process import ToolchainError

SOURCE = ROOT / "tests" / "sanitizers" / "planted_faults.cc"


def compile_faults(folder: Path, *flags: str) -> Path:
    """Compiles the planted faults as a program and as a library."""
    compiler = [os.environ.get("CXX", "g++"), "-std=c++20", "-O2", "-g", "-fno-omit-frame-pointer", *flags]
    program = [*compiler, "-DTHRESHER_PLANTED_PROGRAM", SOURCE, "-o", folder / selfcheck.PROGRAM, "-pthread"]
    library = [*compiler, "-fPIC", "-shared", SOURCE, "-o", folder / selfcheck.LIBRARY, "-pthread"]
    for command in (program, library):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return folder


# The others' own sessions begin with the same.
@pytest.mark.parametrize(
    "sanitizer",
    [
        pytest.param(sanitizer, id=name, marks=[] if name == "address" else [pytest.mark.thorough])
        for name, sanitizer in SANITIZERS.items()
    ],
)
def test_every_planted_fault_is_found_in_a_program_and_in_python(sanitizer: Sanitizer, tmp_path: Path) -> None:
    objects = compile_faults(tmp_path, f"-fsanitize={sanitizer.name}")
    lines = selfcheck.run(sanitizer, objects, Path(sys.executable))
    assert len(lines) == 2 * len(sanitizer.planted)
    assert sanitizer.is_in(objects / selfcheck.LIBRARY)


def test_a_silent_sanitizer_is_noticed(tmp_path: Path) -> None:
    objects = compile_faults(tmp_path)
    assert not any(sanitizer.is_in(objects / selfcheck.PROGRAM) for sanitizer in SANITIZERS.values())
    for sanitizer in (THREAD, ADDRESS):
        with pytest.raises(ToolchainError, match="silent or wrong") as caught:
            selfcheck.run(sanitizer, objects, Path(sys.executable))
        missed = {line.partition(":")[0] for line in str(caught.value).splitlines() if ": expected a report" in line}
        # The C library notices a few by itself, which is no report of the sanitizer.
        assert missed >= {f"{fault} in a program" for fault in sanitizer.planted}


def test_a_report_without_a_fault_is_noticed() -> None:
    said = f"==1==ERROR: AddressSanitizer: heap-buffer-overflow\n    #0 0x1 in f {ROOT}/src/thresher/a.cc:1"
    assert "nothing is planted" in (selfcheck.judge(ADDRESS, selfcheck.CONTROL, said) or "")
    assert selfcheck.judge(ADDRESS, selfcheck.CONTROL, "") is None


LEAK = """=================================================================
==7==ERROR: LeakSanitizer: detected memory leaks

Direct leak of 40 byte(s) in 1 object(s) allocated from:
    #0 0x7f01 in operator new(unsigned long) ../../../../src/libsanitizer/asan/asan_new_delete.cpp:95
    #1 0x7f02 in __gnu_cxx::new_allocator<int>::allocate(unsigned long) /usr/include/c++/12/bits/new_allocator.h:137
    #2 0x7f03 in {place}
    #3 0x7f04 in {further}

Indirect leak of 8 byte(s) in 1 object(s) allocated from:
    #0 0x7f01 in malloc ../../../../src/libsanitizer/asan/asan_malloc_linux.cpp:69
    #1 0x7f05 in thresher::Make() {root}/src/thresher/plan/builder.cc:3

SUMMARY: AddressSanitizer: 48 byte(s) leaked in 2 allocation(s).
"""
OURS = f"thresher::Plan() {ROOT}/src/thresher/plan/plan.cc:12"
PYTHONS = "_PyObject_New (/usr/bin/python3.11+0x1234)"


def test_a_leak_is_of_whoever_took_the_memory() -> None:
    ours = list(reports.findings(LEAK.format(place=OURS, further=PYTHONS, root=ROOT)))
    assert len(ours) == 1
    assert ours[0].startswith("Direct leak of 40 byte(s)")
    assert not list(reports.findings(LEAK.format(place=PYTHONS, further=OURS, root=ROOT)))


def test_a_race_counts_where_we_take_part() -> None:
    race = "=====\nWARNING: ThreadSanitizer: data race (pid=3)\n  Write of size 8 by thread T1:\n    #0 f {}\n"
    assert list(reports.findings(race.format(f"{ROOT}/src/thresher/base/arena.cc:4:2 (_engine.so+0x12)")))
    assert not list(reports.findings(race.format("/opt/torch/c10/core.cc:4 (libc10.so+0x12)")))


def test_other_errors_always_count() -> None:
    assert list(
        reports.findings("==3==ERROR: AddressSanitizer: SEGV on unknown address\n    #0 0x1 in f (libc.so.6+0x1)")
    )
    assert list(reports.findings("/x/y.h:3:4: runtime error: signed integer overflow"))
    assert not list(reports.findings("an ordinary line\n"))


def test_equal_findings_are_told_once(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"report.{number}").write_text(LEAK.format(place=OURS, further=PYTHONS, root=ROOT))
    found = reports.read(tmp_path)
    assert [report.what for report in found] == ["Direct leak of 40 byte(s) in 1 object(s) allocated from:"]


def test_the_tests_of_the_extension_are_found_and_those_of_the_toolchain_left_out() -> None:
    names = {file.name for file in session.extension_tests(emulator=False)}
    assert {"test_backend.py", "test_cache.py", "test_model_files.py", "test_fork.py"} <= names
    assert not {"test_toolchain.py", "test_containers.py", "test_sanitizers.py", "test_bad_cases.py"} & names
    emulated = {file.name for file in session.extension_tests(emulator=True)} - names
    assert emulated == {file.name for file in (ROOT / "tests" / "cuda").glob("test_*.py")}


def test_pytest_gets_what_the_sanitizer_bears_and_the_named_tests_know() -> None:
    def called(sanitizer: Sanitizer, *arguments: str) -> str:
        return " ".join(str(option) for option in session.pytest_options(sanitizer, list(arguments)))

    everything = called(ADDRESS, "-k", "cache")
    assert everything.endswith("-k cache") and "tests/faults/test_fork.py" in everything
    assert "--device-library=" in everything and "tests/cuda/test_gemm.py" in everything
    assert "threads_after_fork" not in everything
    one = called(ADDRESS, "tests/faults/test_fork.py::test_fork")
    assert "--device-library=" not in one and one.count("tests/") == 1
    assert "--device-library=" in called(ADDRESS, "tests/cuda/test_gemm.py", "-x")
    assert "not threads_after_fork" in called(THREAD) and "tests/cuda" not in called(THREAD)


def test_every_suite_on_the_emulated_device_can_be_left_out() -> None:
    suites = set()
    for file in (ROOT / "tests" / "cpp" / "cuda").glob("*.cc"):
        text = file.read_text()
        if "emulator.h" in text:
            suites |= set(re.findall(r"^TEST\w*\((\w+)", text, re.M))
    assert suites
    for suite in suites:
        assert re.match(session.EMULATED_CPP, f"{suite}.Name"), suite


def test_suppressions_have_reasons() -> None:
    for file in (ROOT / "tests" / "sanitizers").glob("*.supp"):
        groups = [group.splitlines() for group in file.read_text().split("\n\n")]
        for group in groups:
            assert group[0].startswith("# "), f"{file.name}: {group[0]} has no reason above it"

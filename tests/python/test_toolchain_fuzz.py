"""The session fuzz: what it lists, what it makes of a fuzzer's output, and that neither findings nor silence pass."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

# ruff: noqa: E402 - the scripts are found after their folder is on the path
from fuzzing import campaign, outcome, program, selfcheck, session, target
from fuzzing.campaign import Runner
from fuzzing.outcome import Outcome
from fuzzing.target import CPP, PYTHON, Target
from toolchain.process import ToolchainError

# What libFuzzer prints, by a program that only says so; its last argument in front of the options is what to do.
FUZZER = """
import sys, time
what, options = sys.argv[1], sys.argv[2:]
value = lambda name: next(o.split("=", 1)[1] for o in options if o.startswith(f"-{name}="))
folders = [o for o in options if not o.startswith("-")]
print("INFO: Running with entropic power schedule (0xFF, 100).", file=sys.stderr)
if what == "broken":
    sys.exit("cannot start")
if what == "merge":
    if not any(o == "-merge=1" for o in options):
        sys.exit(3)
    open(f"{folders[0]}/kept", "w").write("ab")
    sys.exit(0)
if what == "silent":
    sys.exit(0)
print("#2\\tINITED cov: 3 ft: 4 corp: 1/1b exec/s: 0 rss: 30Mb", file=sys.stderr)
print("#4096\\tpulse  cov: 12 ft: 34 corp: 5/60b lim: 4 exec/s: 2048 rss: 31Mb", file=sys.stderr)
if what == "crash":
    path = value("artifact_prefix") + "crash-00"
    open(path, "wb").write(b"chaff!")
    print("==7==ERROR: AddressSanitizer: heap-buffer-overflow on address 0x1", file=sys.stderr)
    print("SUMMARY: AddressSanitizer: heap-buffer-overflow x.cc:3 in f", file=sys.stderr)
    print(f"artifact_prefix='x'; Test unit written to {path}", file=sys.stderr)
    sys.exit(77)
open(f"{folders[0]}/new", "w").write("ab")
print("#5000\\tDONE   cov: 13 ft: 35 corp: 6/60b lim: 4 exec/s: 2500 rss: 31Mb", file=sys.stderr)
print("stat::number_of_executed_units: 5000", file=sys.stderr)
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone with three targets and its own build folder."""
    sources = tmp_path / "fuzz"
    for name in ("python", "planted", "corpus/good", "regressions/good"):
        (sources / name).mkdir(parents=True)
    (sources / "good.cc").write_text("// Texts of all sorts. And more.\nint x;\n")
    (sources / "crash.cc").write_text("// Texts that\n// break.\n")
    (sources / "python" / "snake.py").write_text('"""Files."""\n')
    (sources / "corpus" / "good" / "plain.txt").write_bytes(b"abc")
    (sources / "regressions" / "good" / "bytes.hex").write_text("00 ff\n10")
    (tmp_path / "fuzzer.py").write_text(FUZZER)
    monkeypatch.setattr(target, "SOURCES", sources)
    for module in (target, session):
        monkeypatch.setattr(module, "RESULTS", tmp_path / "build")
    return tmp_path


def runner(folder: Path, what: str | None = None) -> Runner:
    return Runner(
        lambda chosen: [sys.executable, str(folder / "fuzzer.py"), what or chosen.name],
        dict(os.environ),
        lambda _: None,
    )


def one(name: str) -> Target:
    return target.select([name])[0]


def test_targets_of_the_repository() -> None:
    found = target.targets()
    assert {item.language for item in found} == {CPP, PYTHON}
    assert len({item.name for item in found}) == len(found)
    for item in found:
        assert item.kept("corpus"), item.name
        assert len(item.about) > 10, item.name
        assert item.dictionary is None or item.dictionary.is_file()
    assert {item.name for item in target.planted()} == set(selfcheck.EXPECTED)
    with pytest.raises(ToolchainError, match=r"expected one of .*graph_text.*got 'graph'"):
        target.select(["graph"])


def test_list(fake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    session.run_fuzz(
        [], seconds=1, jobs=1, list_only=True, minimize=False, self_check=False, json_file=fake / "list.json"
    )
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed] == ["crash", "good", "snake"]
    assert "Texts of all sorts" in printed[1] and "And more" not in printed[1]
    rows = json.loads((fake / "list.json").read_text())["targets"]
    assert [(row["seeds"], row["regressions"]) for row in rows] == [(0, 0), (1, 1), (0, 0)]


def test_seeds_are_bytes(fake: Path) -> None:
    folder = one("good").make_seeds()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        "corpus-plain": b"abc",
        "regressions-bytes": b"\x00\xff\x10",
    }
    (fake / "fuzz" / "corpus" / "good" / "bad.hex").write_text("0g")
    with pytest.raises(ToolchainError, match="expected hexadecimal digits"):
        one("good").make_seeds()


def test_a_run_without_findings(fake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = runner(fake).run(one("good"), 1)
    assert result.ok
    assert (result.runs, result.coverage, result.features, result.corpus) == (5000, 13, 35, 6)
    assert (fake / "build" / "corpus" / "good" / "new").exists()
    session.report([result], fake / "out" / "run.json", "run")
    session.conclude([result])
    printed = capsys.readouterr().out
    assert printed.split("\n")[1].split() == [
        "target", "language", "seconds", "runs", "runs/s", "cov", "ft", "corpus", "findings",
    ]  # fmt: skip
    assert printed.split("\n")[2].split()[:2] == ["good", "C++"]
    for path in (fake / "out" / "run.json", fake / "build" / "run.json"):
        (row,) = json.loads(path.read_text())["targets"]
        assert row["runs"] == 5000 and row["ok"] is True and row["findings"] == []


def test_a_finding_fails_and_says_how_to_replay_it(fake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = runner(fake).run_all([one("good"), one("crash")], 1, 2)
    assert [result.ok for result in results] == [True, False]
    crash = results[1]
    path = fake / "build" / "findings" / "crash" / "crash-00"
    assert crash.findings == [str(path)] and path.read_bytes() == b"chaff!"
    session.report(results, None, "run")
    printed = capsys.readouterr().out
    assert "heap-buffer-overflow" in printed
    assert f"{fake / 'fuzzer.py'} crash {path}" in printed
    with pytest.raises(ToolchainError, match="Found by crash:"):
        session.conclude(results)


@pytest.mark.parametrize(("what", "problem"), [("broken", "ended with code 1"), ("silent", "read no input")])
def test_a_fuzzer_that_does_nothing_fails(fake: Path, what: str, problem: str) -> None:
    result = runner(fake, what).run(one("good"), 1)
    assert not result.ok and problem in result.problem
    with pytest.raises(ToolchainError, match="good"):
        session.conclude([result])


def test_a_program_that_is_missing_fails(fake: Path) -> None:
    gone = Runner(lambda _: [str(fake / "none")], dict(os.environ), lambda _: None)
    assert "ended with code 127" in gone.run(one("good"), 1).problem


def test_one_that_hangs_is_ended(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "GRACE_S", 1)
    monkeypatch.setattr(campaign, "PROGRESS_S", 0.2)
    (fake / "fuzzer.py").write_text("import time; time.sleep(60)")
    lines: list[str] = []
    stuck = Runner(lambda _: [sys.executable, str(fake / "fuzzer.py")], dict(os.environ), lines.append)
    assert "ended with code -9" in stuck.run(one("good"), 1).problem
    assert any("good: " in line and "runs" in line for line in lines)


def test_minimize(fake: Path) -> None:
    good = one("good")
    good.corpus.mkdir(parents=True)
    for number in range(3):
        (good.corpus / str(number)).write_bytes(b"abcd")
    assert runner(fake, "merge").minimize(good, 1) == ((3, 12), (1, 2))
    with pytest.raises(ToolchainError, match="ended with code 1"):
        runner(fake, "broken").minimize(good, 1)
    assert [path.name for path in good.corpus.iterdir()] == ["kept"]


class TestSelfCheck:
    overflow = Target("planted_overflow", CPP, ROOT / "tests" / "fuzz" / "planted" / "overflow.cc")

    def test_what_is_found_passes(self, fake: Path) -> None:
        result = runner(fake, "crash").run(self.overflow, 1)
        assert selfcheck.judge(self.overflow, result) == ""

    def test_silence_fails(self, fake: Path) -> None:
        result = runner(fake, "good").run(self.overflow, 1)
        assert "got nothing" in selfcheck.judge(self.overflow, result)
        with pytest.raises(ToolchainError, match="self-check failed"):
            selfcheck.check(runner(fake, "good"), [self.overflow], 1)

    def test_another_finding_fails(self, fake: Path) -> None:
        other = Target("planted_allocation", CPP, self.overflow.source)
        assert "begins with b'grain'" in selfcheck.judge(other, runner(fake, "crash").run(other, 1))
        result = runner(fake, "crash").run(self.overflow, 1)
        result.reasons = ["something else"]
        assert "expected a message with 'heap-buffer-overflow'" in selfcheck.judge(self.overflow, result)

    def test_nothing_planted_fails(self, fake: Path) -> None:
        with pytest.raises(ToolchainError, match="no planted target could be run"):
            selfcheck.check(runner(fake), [], 1)


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (
            "x\nmemory: expected at most 9 bytes, got 99\nSUMMARY: libFuzzer: deadly signal",
            "memory: expected at most 9",
        ),
        ("a.cc:3: expected again.ok(), got: no\n==1== ERROR: libFuzzer", "a.cc:3: expected again.ok()"),
        ("a.h:9:4: runtime error: overflow\nSUMMARY: UndefinedBehaviorSanitizer", "a.h:9:4: runtime error"),
        (" === Uncaught Python exception: ===\nLookupError: planted\nTraceback", "LookupError: planted"),
        ("==3== ERROR: libFuzzer: timeout after 10 s\nSUMMARY: libFuzzer: timeout", "libFuzzer: timeout"),
        ("nothing of note", "see the log"),
    ],
)
def test_reasons(log: str, reason: str) -> None:
    assert outcome.reason_in(log).startswith(reason)


def test_skipped_targets_are_in_the_table() -> None:
    skipped = Outcome("snake", PYTHON, skipped="skipped: no atheris for Python 3.14")
    assert skipped.ok
    assert "skipped: no atheris for Python 3.14" in outcome.table([skipped, Outcome("good", CPP, seconds=2, runs=10)])


def test_a_clang_without_libfuzzer_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, code in (("clang++-18", 1), ("clang++-9", 0), ("clang++", 0)):
        (tmp_path / name).write_text(f"#!/bin/sh\ncat >/dev/null\nexit {code}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CXX", raising=False)
    mine = [path for path in program._candidates() if path.parent == tmp_path]
    assert [path.name for path in mine] == ["clang++-18", "clang++-9", "clang++"]
    assert [program.has_libfuzzer(path) for path in mine] == [False, True, True]
    for name in ("clang++-9", "clang++"):
        (tmp_path / name).unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(program, "offer_fuzz_packages", lambda: None)
    with pytest.raises(ToolchainError, match=r"install_build_deps\.sh -y --fuzz"):
        program.find_clang()


def test_bad_numbers_and_combinations_stop() -> None:
    for names, seconds, check in (([], 0, False), (["graph_text"], 1, True)):
        with pytest.raises(ToolchainError, match="--"):
            session.run_fuzz(
                names, seconds=seconds, jobs=1, list_only=False, minimize=False, self_check=check, json_file=None
            )


def test_the_option_needs_clang(tmp_path: Path) -> None:
    tools = next((ROOT / "build" / "venv").glob("tools-*/bin"), None)
    cmake, ninja = (shutil.which(name, path=str(tools) if tools else None) for name in ("cmake", "ninja"))
    if cmake is None or ninja is None:
        pytest.skip("no CMake, or no Ninja")
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(compiler_only LANGUAGES NONE)\n"
        f'set(CMAKE_CXX_COMPILER_ID GNU)\ninclude("{ROOT}/cmake/compiler.cmake")\n'
    )
    generator = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
    command = [cmake, *generator, "-S", str(tmp_path), "-B", str(tmp_path / "b"), "-DTHRESHER_BUILD_FUZZERS=ON"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    message = " ".join(done.stderr.split())
    assert "expected Clang" in message and "install_build_deps.sh --fuzz" in message

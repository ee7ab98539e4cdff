"""scripts/wheel_test.py: what it runs, what it reads from reports, and when it says no."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
TAG = f"cp{sys.version_info.major}{sys.version_info.minor}"


@pytest.fixture
def wheel_test(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import wheel_test as module

    yield module


class TestProcessors:
    def test_qemu_is_told_from_a_real_machine(self, wheel_test: ModuleType, tmp_path: Path, monkeypatch: Any) -> None:
        assert not wheel_test.is_emulated()
        fake = tmp_path / "python"
        fake.write_text('#!/bin/sh\n[ "$QEMU_CPU" != no-such-model ]\n')
        fake.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(fake))
        assert wheel_test.is_emulated()

    def test_the_emulated_ones_reach_from_neon_to_long_vectors(self, wheel_test: ModuleType) -> None:
        processors = wheel_test.choose_processors([], under_qemu=True)
        assert {processor.isa for processor in processors} == {"neon", "sve", "sve2"}
        assert {processor.vector_bytes for processor in processors} == {None, 16, 32, 64}
        for processor in processors:
            assert processor.environment == {"QEMU_CPU": processor.name}

    def test_named_models_replace_them(self, wheel_test: ModuleType) -> None:
        chosen = wheel_test.choose_processors(["cortex-a57", "neoverse-n1"], under_qemu=True)
        assert [(processor.name, processor.isa) for processor in chosen] == [
            ("cortex-a57", "neon"),
            ("neoverse-n1", None),
        ]
        with pytest.raises(wheel_test.StepError, match="--cpu cortex-a57: expected a process under qemu"):
            wheel_test.choose_processors(["cortex-a57"], under_qemu=False)

    def test_kernels_run_on_all_and_other_tests_on_one(self, wheel_test: ModuleType) -> None:
        plan = wheel_test.plan_cpp_tests(wheel_test.EMULATED, True, "K", "-K")
        large = ":".join(wheel_test.LARGE_KERNEL_TESTS)
        assert [(name, chosen) for name, _, chosen in plan] == [
            ("C++ large kernels", large),
            *[("C++ kernels", f"K-{large}")] * 5,
            ("C++ others", "-K"),
        ]
        forced = [processor.environment.get("THRESHER_ISA") for _, processor, _ in plan]
        assert forced == ["sve2", None, "neon", "sve", "sve2", "sve2", None]
        models = [processor.environment["QEMU_CPU"] for _, processor, _ in plan[1:6]]
        assert models == [processor.name for processor in wheel_test.EMULATED]

    def test_every_large_test_is_there(self, wheel_test: ModuleType) -> None:
        sources = "".join(path.read_text() for path in (ROOT / "tests" / "cpp" / "kernels").glob("*.cc"))
        for pattern in wheel_test.LARGE_KERNEL_TESTS:
            assert f", {pattern.removeprefix('*.')})" in sources

    def test_a_real_machine_forces_each_instruction_set(self, wheel_test: ModuleType) -> None:
        machine = [wheel_test.Processor("this machine"), wheel_test.Processor("avx2", {"THRESHER_ISA": "avx2"}, "avx2")]
        plan = wheel_test.plan_cpp_tests(machine, False, "K", "-K")
        assert [(name, processor.name) for name, processor, _ in plan] == [
            ("C++ kernels", "this machine"),
            ("C++ others", "this machine"),
            ("C++ others", "avx2"),
        ]

    def test_a_real_machine_has_none(self, wheel_test: ModuleType) -> None:
        assert wheel_test.choose_processors([], under_qemu=False) == []


def gtest_report(path: Path, *cases: dict[str, Any]) -> Path:
    rows = [{"classname": "Suite", "result": "COMPLETED", **case} for case in cases]
    path.write_text(json.dumps({"testsuites": [{"name": "Suite", "testsuite": rows}]}))
    return path


class TestReports:
    def test_gtest_is_counted(self, wheel_test: ModuleType, tmp_path: Path) -> None:
        report = gtest_report(tmp_path / "r", {"name": "a"}, {"name": "b"}, {"name": "c", "result": "SKIPPED"})
        assert wheel_test.count_gtest(report) == "2 passed, 1 skipped"

    def test_gtest_that_fails_or_runs_nothing_is_a_failure(self, wheel_test: ModuleType, tmp_path: Path) -> None:
        report = gtest_report(tmp_path / "r", {"name": "a"}, {"name": "b", "failures": [{"failure": "x"}]})
        with pytest.raises(wheel_test.StepError, match=r"1 of 2 failed: Suite\.b"):
            wheel_test.count_gtest(report)
        with pytest.raises(wheel_test.StepError, match="no test ran"):
            wheel_test.count_gtest(gtest_report(tmp_path / "r", {"name": "a", "result": "SUPPRESSED"}))
        with pytest.raises(wheel_test.StepError, match="no report"):
            wheel_test.count_gtest(tmp_path / "none")

    def test_pytest_is_counted(self, wheel_test: ModuleType, tmp_path: Path) -> None:
        report = tmp_path / "r.xml"
        case = '<testcase classname="tests.python.test_a" name="{0}">{1}</testcase>'
        good, skipped = case.format("good", ""), case.format("other", '<skipped message="x"/>')
        report.write_text(f"<testsuites><testsuite>{good}{skipped}</testsuite></testsuites>")
        assert wheel_test.count_pytest(report) == "1 passed, 1 skipped"
        for bad in ("failure", "error"):
            report.write_text(f"<testsuite>{good}{case.format('bad', f'<{bad}/>')}</testsuite>")
            with pytest.raises(wheel_test.StepError, match="1 of 2 failed: test_a::bad"):
                wheel_test.count_pytest(report)
        report.write_text(f"<testsuite>{skipped}</testsuite>")
        with pytest.raises(wheel_test.StepError, match="no test ran, 1 skipped"):
            wheel_test.count_pytest(report)
        report.write_text("<testsuite>")
        with pytest.raises(wheel_test.StepError, match="no report"):
            wheel_test.count_pytest(report)

    def test_kernels_are_told_by_their_folder(self, wheel_test: ModuleType, tmp_path: Path) -> None:
        def suite(name: str, folder: str) -> dict[str, Any]:
            return {"name": name, "testsuite": [{"name": "x", "file": f"/a/tests/cpp/{folder}/x_test.cc"}]}

        listing = tmp_path / "list"
        suites = [suite("Gemm", "kernels"), suite("Parser", "graph"), suite("All/Ops", "ops")]
        listing.write_text(json.dumps({"testsuites": suites}))
        assert wheel_test.kernel_filters(listing) == ("All/Ops.*:Gemm.*", "-All/Ops.*:Gemm.*")
        listing.write_text(json.dumps({"testsuites": suites[1:2]}))
        with pytest.raises(wheel_test.StepError, match="none of a kernel"):
            wheel_test.kernel_filters(listing)
        with pytest.raises(wheel_test.StepError, match="no list of the C"):
            wheel_test.kernel_filters(tmp_path / "none")


def test_the_wheel_of_this_machine_is_found(wheel_test: ModuleType, tmp_path: Path) -> None:
    for machine in ("x86_64", "aarch64"):
        (tmp_path / f"thresher-0.1.0-{TAG}-{TAG}-manylinux_2_34_{machine}.whl").write_text("")
    (tmp_path / f"thresher-0.1.0-cp39-cp39-manylinux_2_34_{platform.machine()}.whl").write_text("")
    found = wheel_test.find_wheel(tmp_path)
    assert found.name == f"thresher-0.1.0-{TAG}-{TAG}-manylinux_2_34_{platform.machine()}.whl"
    assert wheel_test.find_wheel(found) == found
    (tmp_path / f"thresher-0.2.0-{TAG}-{TAG}-manylinux_2_34_{platform.machine()}.whl").write_text("")
    with pytest.raises(wheel_test.StepError, match="Expected one wheel"):
        wheel_test.find_wheel(tmp_path)


def test_what_is_left_out_under_emulation_is_there(wheel_test: ModuleType) -> None:
    for pattern in wheel_test.SLOW_EMULATED:
        assert list((ROOT / "tests" / "python").glob(pattern)), pattern


def test_what_is_left_out_is_not_collected(wheel_test: ModuleType, tmp_path: Path) -> None:
    folder = tmp_path / "tests" / "python"
    folder.mkdir(parents=True)
    for name in ("test_cli.py", "test_cli_other.py", "test_doctor.py"):
        (folder / name).write_text("def test_x() -> None: ...\n")
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", str(folder), "-p", "no:cacheprovider"]
    command += wheel_test.slow_ones_left_out(folder)
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
    assert "test_doctor" in done.stdout
    assert "test_cli" not in done.stdout


def test_only_passed_steps_pass(wheel_test: ModuleType) -> None:
    Step, Outcome = wheel_test.Step, wheel_test.Outcome
    good = Step("import", "a", Outcome.PASSED, "")
    assert wheel_test.judge([good]) == []
    assert wheel_test.judge([]) == ["nothing was tested"]
    bad = [Step("doctor", "b", Outcome.FAILED, "code 1"), Step("kernels", "b", Outcome.BLOCKED, "no binary")]
    assert wheel_test.judge([good, *bad]) == ["doctor on b: failed, code 1", "kernels on b: blocked, no binary"]
    lines = [line.split() for line in wheel_test.table([good, *bad]).splitlines()]
    assert lines[2] == ["doctor", "b", "failed", "0", "code", "1"]


class TestSteps:
    @pytest.fixture
    def run(self, wheel_test: ModuleType, tmp_path: Path) -> Callable[..., Any]:
        (tmp_path / "logs").mkdir()
        arguments = ["--wheel", str(tmp_path), "--work", str(tmp_path), "--timeout", "20"]
        test = wheel_test.WheelTest(wheel_test.parse(arguments))

        def step(code: str, *more: Any, **environment: str) -> Any:
            command = [sys.executable, "-c", code]
            return test.step("try", wheel_test.Processor("here", environment), command, *more)

        return step

    def test_output_is_read_and_kept(self, wheel_test: ModuleType, run: Callable[..., Any]) -> None:
        done = run(
            "import os; print(os.environ['QEMU_CPU'], os.environ['HOME'])", lambda text: text.split()[0], QEMU_CPU="x"
        )
        assert (done.outcome, done.detail) == (wheel_test.Outcome.PASSED, "x")
        assert Path(done.log).read_text().split()[1].endswith("/home")

    def test_a_code_says_its_last_line(self, wheel_test: ModuleType, run: Callable[..., Any]) -> None:
        done = run("raise SystemExit('no such thing')")
        assert done.outcome is wheel_test.Outcome.FAILED
        assert done.detail == "ended with code 1: no such thing"

    def test_a_signal_is_a_failure(self, wheel_test: ModuleType, run: Callable[..., Any]) -> None:
        done = run("import os, signal; os.kill(os.getpid(), signal.SIGILL)")
        assert done.outcome is wheel_test.Outcome.FAILED
        assert "code -4" in done.detail

    def test_an_answer_that_cannot_be_read_is_a_failure(self, wheel_test: ModuleType, run: Callable[..., Any]) -> None:
        for code in ("print('{')", "print('[1]')", "pass"):
            done = run(code, lambda text: str(wheel_test.answer(text)))
            assert (done.outcome, done.detail) == (wheel_test.Outcome.FAILED, "no answer")
        done = run("print('{'); raise SystemExit('the cause')", lambda text: str(wheel_test.answer(text)))
        assert done.detail == "ended with code 1: the cause"
        assert (
            run("print('note'); print('{\"a\": 1}'); print('bye')", lambda t: str(wheel_test.answer(t))).detail
            == "{'a': 1}"
        )

    def test_what_takes_too_long_is_ended(self, wheel_test: ModuleType, tmp_path: Path) -> None:
        (tmp_path / "logs").mkdir()
        arguments = ["--wheel", str(tmp_path), "--work", str(tmp_path), "--timeout", "0.5"]
        test = wheel_test.WheelTest(wheel_test.parse(arguments))
        here = wheel_test.Processor("here")
        done = test.step("wait", here, [sys.executable, "-c", "import time; time.sleep(60)"])
        assert done.outcome is wheel_test.Outcome.FAILED
        assert done.detail == "took more than 0.5 s"
        assert done.seconds < 30

    @pytest.mark.parametrize(
        ("found", "message"),
        [
            ({"isa": "neon", "vector_bytes": 32}, "expected instruction set sve2; the engine chose neon"),
            ({"isa": "sve2", "vector_bytes": 16}, "expected vectors of 32 bytes; got 16"),
        ],
    )
    def test_the_engine_must_choose_what_the_processor_has(
        self, wheel_test: ModuleType, tmp_path: Path, found: dict[str, Any], message: str
    ) -> None:
        test = wheel_test.WheelTest(wheel_test.parse(["--wheel", str(tmp_path), "--work", str(tmp_path)]))
        read = test._read_probe(wheel_test.emulated("max,sve256=on", "sve2", 32))
        answer = {"version": "1", "isas": ["neon", "sve2"]}
        assert read(json.dumps({**answer, "isa": "sve2", "vector_bytes": 32})).startswith("1, sve2 of neon sve2")
        with pytest.raises(wheel_test.StepError, match=message):
            read(json.dumps({**answer, **found}))


@pytest.mark.thorough
def test_a_wheel_that_does_not_install_blocks_the_rest(
    wheel_test: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel = tmp_path / f"thresher-0.1.0-{TAG}-{TAG}-linux_vax.whl"
    wheel.write_text("no wheel at all")
    out = tmp_path / "out" / "result.json"
    arguments = ["--wheel", str(wheel), "--work", str(tmp_path / "work"), "--no-index", "--json", str(out)]
    assert wheel_test.main(arguments) == 1
    result = json.loads(out.read_text())
    assert result["verdict"] == "failed"
    outcomes = {step["name"]: step["outcome"] for step in result["steps"]}
    assert outcomes == {"make environment": "passed", "install alone": "failed", "all other steps": "blocked"}
    assert len(result["reasons"]) == 2
    assert "FAILED in" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("factor", "reason"),
    [
        (2.0, None),
        (2.001, "expected an error of at most 0.0001"),
        (float("nan"), "expected finite values"),
        (None, "expected outputs of shapes"),
    ],
)
def test_a_model_file_is_judged_by_its_outputs(
    wheel_test: ModuleType, tmp_path: Path, factor: float | None, reason: str | None
) -> None:
    numpy = pytest.importorskip("numpy")
    x = numpy.linspace(-3, 3, 24, dtype=numpy.float32).reshape(2, 12)
    answers = {f"output_{i}": x * 2 + i for i in range(11)}
    numpy.savez(tmp_path / "expected.npz", input_x=x, **answers)
    outputs = "{}" if factor is None else f"{{f'y{{i}}': x * {factor!r} + i for i in range(11)}}"
    (tmp_path / "thresher.py").write_text(
        "from types import SimpleNamespace\nnan = float('nan')\n_engine = SimpleNamespace(isa=lambda: 'neon')\n"
        f"def load(path):\n    return lambda x: {outputs}\n"
    )
    command = [sys.executable, "-c", wheel_test.MODEL, "model", str(tmp_path / "expected.npz"), "1e-4"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, reason in done.stderr if reason else True) == (1 if reason else 0, True), done.stderr


def test_paths_that_are_not_there_are_named(wheel_test: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        wheel_test.main(["--wheel", "/no/such/wheel", "--work", "/tmp"])
    assert "--wheel: expected /no/such/wheel" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        wheel_test.main(["--wheel", "/tmp", "--work", "/tmp", "--model-file", "/tmp"])
    assert "go together" in capsys.readouterr().err

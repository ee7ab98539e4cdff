"""The verdict of stage_test on recorded measurements, good and bad; and the plan and the processes behind it.

The folders tests/golden/stage_* are recorded runs of scripts/stage_test.py; in stage_loaded, stage_backend,
stage_profiler and stage_torch the scenarios of that name had really been slowed down while they were measured.
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from measure import worker as measured
from measure.statistics import median, percentile, summarise
from measure.table import Table
from measure.worker import Worker, WorkerError, clean_environment
from stage_test import render
from stage_test.main import main
from stage_test.plan import FIRST_SCENARIOS, SCENARIOS, WITHOUT_SERVE, Plan
from stage_test.verdict import ResultError, judge

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
Edit = Callable[[dict[str, Any]], None]


@pytest.fixture
def good(tmp_path: Path) -> Path:
    """A copy of the good recording, to be damaged."""
    return Path(shutil.copytree(GOLDEN / "stage_good", tmp_path / "stage"))


@pytest.fixture
def with_bf16(good: Path) -> Path:
    """The good recording with a (4), which is younger: as fast as (3), and half as far off as PyTorch."""
    folder = good / "attempt-1"
    scenarios = list(WITHOUT_SERVE)
    bf16 = json.loads((folder / "3-off.json").read_text(encoding="utf-8"))
    bf16["scenario"]["id"] = "4-off"
    (folder / "4-off.json").write_text(json.dumps(bf16), encoding="utf-8")
    for name in scenarios:
        edit(folder / f"{name}.json", lambda run: run["plan"].update(scenarios=scenarios))
    errors = {"last_hidden_state_error": 0.01, "last_hidden_state_error_of_pytorch": 0.02}
    edit(good / "agreement.json", lambda value: value["scenarios"].update({"4-off": errors}))
    return good


@pytest.fixture
def with_serve(with_bf16: Path) -> Path:
    """The same with a (5): the server takes 2 ms more."""
    folder = with_bf16 / "attempt-1"
    for name, milliseconds in (("5-off", 80.0), ("5-http", 82.0)):
        run = json.loads((folder / "3-off.json").read_text(encoding="utf-8"))
        run["scenario"]["id"] = name
        run["samples_ms"] = [milliseconds] * len(run["samples_ms"])
        (folder / f"{name}.json").write_text(json.dumps(run), encoding="utf-8")
    same = {"answers_that_differ": 0}
    edit(with_bf16 / "agreement.json", lambda value: value["scenarios"].update({"5-off": same, "5-http": same}))
    return with_bf16


def edit(path: Path, change: Edit) -> None:
    value = json.loads(path.read_text(encoding="utf-8"))
    change(value)
    path.write_text(json.dumps(value), encoding="utf-8")


def scale(folder: Path, scenario: str, factor: float) -> None:
    def change(run: dict[str, Any]) -> None:
        run["samples_ms"] = [factor * value for value in run["samples_ms"]]

    edit(folder / "attempt-1" / f"{scenario}.json", change)


def run_verdict(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main(["verdict", str(folder)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_good_recording_passes(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run_verdict(GOLDEN / "stage_good", capsys)
    assert code == 0
    assert out.splitlines()[-1] == "stage_test: PASS"
    assert "FAIL" not in out
    assert "*** forward ***" in out
    assert "Speed-up of Thresher over PyTorch eager" in out
    assert "NOISY" not in out


@pytest.mark.parametrize(
    ("recording", "titles"),
    [
        ("stage_loaded", {"(2) vs (1), profiler off", "(2) vs (1), profiler on"}),
        ("stage_backend", {"(3) vs (1), profiler off"}),
        ("stage_profiler", {"(3) operator records on vs off"}),
        ("stage_torch", {"(3) torch.profiler, over its cost in (1)"}),
    ],
)
def test_recorded_regressions_fail(recording: str, titles: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    verdict = judge(GOLDEN / recording)
    assert {outcome.title for outcome in verdict.failures} == titles
    assert {outcome.statistic for outcome in verdict.failures} == {"median", "mean"}
    code, out, _ = run_verdict(GOLDEN / recording, capsys)
    assert code == 1
    assert out.splitlines()[-1] == "stage_test: FAIL"
    for outcome in verdict.failures:
        line = next(row for row in out.splitlines() if row == outcome.message())
        assert f"{outcome.measured:.3f} ms" in line
        assert f"{outcome.reference:.3f} ms" in line
        assert f"limit {outcome.limit:.3f}" in line


def test_bf16_is_judged_where_it_was_measured(with_bf16: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run_verdict(with_bf16, capsys)
    assert code == 0
    assert "(4) bfloat16 vs (3) float32" in out and "error_over_pytorchs" in out
    scale(with_bf16, "4-off", 1.3)
    assert {outcome.title for outcome in judge(with_bf16).failures} == {"(4) bfloat16 vs (3) float32"}


def test_the_server_is_judged_where_it_was_measured(with_serve: Path, capsys: pytest.CaptureFixture[str]) -> None:
    everything = [scenario.id for scenario in SCENARIOS]
    for name in everything:
        edit(with_serve / "attempt-1" / f"{name}.json", lambda run: run["plan"].update(scenarios=everything))
    code, out, _ = run_verdict(with_serve, capsys)
    assert code == 0
    assert "(5) over HTTP vs in process" in out and "answers_that_differ" in out
    edit(with_serve / "agreement.json", lambda value: value["scenarios"]["5-http"].update(answers_that_differ=1))
    assert [outcome.statistic for outcome in judge(with_serve).failures] == ["answers_that_differ"]
    scale(with_serve, "5-http", 1.1)
    assert {outcome.title for outcome in judge(with_serve).failures} >= {"(5) over HTTP vs in process"}


@pytest.mark.parametrize("error", [0.021, math.nan])
def test_bf16_may_not_be_further_off_than_pytorch(with_bf16: Path, error: float) -> None:
    def change(value: dict[str, Any]) -> None:
        value["scenarios"]["4-off"]["last_hidden_state_error"] = error

    edit(with_bf16 / "agreement.json", change)
    assert [outcome.statistic for outcome in judge(with_bf16).failures] == ["error_over_pytorchs"]


def test_a_scenario_of_the_plan_must_be_there(with_bf16: Path) -> None:
    (with_bf16 / "attempt-1" / "4-off.json").unlink()
    with pytest.raises(ResultError, match="4-off"):
        judge(with_bf16)
    edit(with_bf16 / "attempt-1" / "1-off.json", lambda run: run["plan"].update(scenarios=["1-off"]))
    with pytest.raises(ResultError, match="leaves out scenarios"):
        judge(with_bf16)


def test_noise_is_said_and_the_second_attempt_decides(capsys: pytest.CaptureFixture[str]) -> None:
    verdict = judge(GOLDEN / "stage_noisy")
    assert len(verdict.attempts) == 2
    assert verdict.attempts[0].noise
    assert verdict.deciding is verdict.attempts[1]
    code, out, _ = run_verdict(GOLDEN / "stage_noisy", capsys)
    assert code == (0 if verdict.passed else 1)
    assert "NOISY HOST in attempt 1 (measured once more)" in out
    assert "bound 1.30" in out
    assert "attempt 1" in out
    assert "attempt 2" in out


@pytest.mark.parametrize(
    ("scenario", "factor", "code"),
    [
        ("2-off", 1.099, 0),
        ("2-off", 1.101, 1),
        ("3-on", 1.029, 0),
        ("3-on", 1.031, 1),
        ("3-torch", 1.049, 0),
        ("3-torch", 1.051, 1),
    ],
)
def test_the_limit_is_where_it_is_said(good: Path, scenario: str, factor: float, code: int) -> None:
    def same(run: dict[str, Any]) -> None:
        run["samples_ms"] = [40.0] * len(run["samples_ms"])

    for each in FIRST_SCENARIOS:
        edit(good / "attempt-1" / f"{each}.json", same)
    scale(good, scenario, factor)
    assert main(["verdict", str(good)]) == code


@pytest.mark.parametrize(("eager", "factor", "code"), [(1.0, 1.2, 1), (1.2, 1.2, 0), (0.8, 1.04, 0), (0.8, 1.06, 1)])
def test_the_limit_of_torch_profiler_is_beyond_its_cost_to_eager(
    good: Path, eager: float, factor: float, code: int
) -> None:
    """Nor is it smaller where eager was faster with the profiler, by chance."""

    def same(run: dict[str, Any]) -> None:
        run["samples_ms"] = [40.0] * len(run["samples_ms"])

    for each in FIRST_SCENARIOS:
        edit(good / "attempt-1" / f"{each}.json", same)
    scale(good, "1-on", eager)
    scale(good, "2-on", eager)
    scale(good, "3-torch", factor)
    assert main(["verdict", str(good)]) == code


def alternate(run: dict[str, Any]) -> None:
    """Every second round takes longer."""
    block = run["plan"]["block"]
    run["samples_ms"] = [40.0 * (0.9 if i // block % 2 else 1.18) for i in range(len(run["samples_ms"]))]


def test_a_ratio_above_its_limit_by_chance_passes_and_shows_its_error(good: Path) -> None:
    for each in FIRST_SCENARIOS:
        edit(good / "attempt-1" / f"{each}.json", lambda run: run.update(samples_ms=[40.0] * len(run["samples_ms"])))
    edit(good / "attempt-1" / "3-on.json", alternate)
    outcome = next(
        o for o in judge(good).outcomes if o.title.startswith("(3) operator records") and o.statistic == "mean"
    )
    assert outcome.value > outcome.limit
    assert outcome.error > 0.02
    assert outcome.passed


def test_the_chance_in_what_is_allowed_is_part_of_the_error(good: Path) -> None:
    for each in FIRST_SCENARIOS:
        edit(good / "attempt-1" / f"{each}.json", lambda run: run.update(samples_ms=[40.0] * len(run["samples_ms"])))
    edit(good / "attempt-1" / "1-on.json", alternate)
    outcome = next(
        o for o in judge(good).outcomes if o.title.startswith("(3) torch.profiler") and o.statistic == "mean"
    )
    assert outcome.value == 1.0
    assert outcome.error > 0.02


def test_median_alone_does_not_hide_a_bad_mean(good: Path) -> None:
    def stall(run: dict[str, Any]) -> None:
        samples = run["samples_ms"]
        samples[:: run["plan"]["block"]] = [3 * value for value in samples[:: run["plan"]["block"]]]  # once a round

    edit(good / "attempt-1" / "2-off.json", stall)
    verdict = judge(good)
    assert [outcome.statistic for outcome in verdict.failures] == ["mean"]
    assert any("standard error" in line for line in verdict.deciding.noise)


def test_truncated_file(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = good / "attempt-1" / "3-on.json"
    path.write_text(path.read_text(encoding="utf-8")[:-400], encoding="utf-8")
    code, out, err = run_verdict(good, capsys)
    assert code == 2
    assert "3-on.json" in err
    assert "not complete JSON" in err
    assert "PASS" not in out


@pytest.mark.parametrize("name", ["attempt-1/2-on.json", "agreement.json"])
def test_missing_file(good: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    (good / name).unlink()
    code, out, err = run_verdict(good, capsys)
    assert code == 2
    assert name in err
    assert "PASS" not in out


def test_empty_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run_verdict(tmp_path, capsys)
    assert code == 2
    assert "attempt-1" in err


def drop_sample(run: dict[str, Any]) -> None:
    run["samples_ms"].pop()


def spoil_sample(run: dict[str, Any]) -> None:
    run["samples_ms"][3] = math.nan


def other_torch(run: dict[str, Any]) -> None:
    run["environment"]["versions"]["torch"] = "1.0"


def other_threads(run: dict[str, Any]) -> None:
    run["plan"]["threads"] += 1


def other_scenario(run: dict[str, Any]) -> None:
    run["scenario"]["id"] = "1-on"


def other_format(run: dict[str, Any]) -> None:
    run["format"] = "something else"


def no_samples(run: dict[str, Any]) -> None:
    del run["samples_ms"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop_sample, "samples, got"),
        (spoil_sample, "sample 3 must be a positive number"),
        (other_torch, "torch is"),
        (other_threads, "plan is"),
        (other_scenario, "expected the run of scenario 3-off, got that of 1-on"),
        (other_format, "something else"),
        (no_samples, "samples_ms"),
    ],
)
def test_files_that_cannot_be_judged(good: Path, change: Edit, message: str) -> None:
    edit(good / "attempt-1" / "3-off.json", change)
    with pytest.raises(ResultError, match="3-off") as caught:
        judge(good)
    assert message in str(caught.value)
    assert main(["verdict", str(good)]) == 2


@pytest.mark.parametrize("error", [2e-4, math.nan])
@pytest.mark.parametrize("quantity", ["last_hidden_state_max_abs", "pooled_max_abs"])
def test_wrong_output_fails(good: Path, quantity: str, error: float) -> None:
    def change(value: dict[str, Any]) -> None:
        value["scenarios"]["3-off"][quantity] = error

    edit(good / "agreement.json", change)
    verdict = judge(good)
    assert [outcome.statistic for outcome in verdict.failures] == [quantity]
    assert main(["verdict", str(good)]) == 1


@pytest.mark.parametrize("error", [1e-3, -1e-3, math.nan])
@pytest.mark.parametrize("pair", [0, 1, -1])
def test_wrong_similarity_fails(good: Path, pair: int, error: float) -> None:
    """Also where the NaN is not the first of them, so that max() would not see it."""

    def change(value: dict[str, Any]) -> None:
        value["scenarios"]["3-on"]["similarities"][pair]["cosine"] += error

    edit(good / "agreement.json", change)
    assert [outcome.statistic for outcome in judge(good).failures] == ["similarity_max_abs"]


def one_operator_left(compilation: dict[str, Any]) -> None:
    compilation["nodes_unsupported"] = 1


def one_shape_left(compilation: dict[str, Any]) -> None:
    compilation["eager_shapes"] = ["a reason"]


def nothing_compiled(compilation: dict[str, Any]) -> None:
    compilation["partitions"] = 0


@pytest.mark.parametrize("change", [one_operator_left, one_shape_left, nothing_compiled])
def test_work_left_to_pytorch_fails(good: Path, change: Edit) -> None:
    edit(good / "attempt-1" / "3-off.json", lambda run: change(run["engine"]["compilation"]))
    assert [outcome.statistic for outcome in judge(good).failures] == ["operators_left_to_pytorch"]


@pytest.mark.parametrize(("attempt", "failures"), [("attempt-1", []), ("attempt-2", ["operators_left_to_pytorch"])])
def test_work_left_to_pytorch_counts_in_the_attempt_that_decides(
    tmp_path: Path, attempt: str, failures: list[str]
) -> None:
    folder = Path(shutil.copytree(GOLDEN / "stage_noisy", tmp_path / "stage"))
    before = [outcome.statistic for outcome in judge(folder).failures]
    edit(folder / attempt / "3-off.json", lambda run: one_operator_left(run["engine"]["compilation"]))
    assert [outcome.statistic for outcome in judge(folder).failures] == before + failures


def test_markdown_and_json(tmp_path: Path) -> None:
    verdict = judge(GOLDEN / "stage_backend")
    page, data = render.write(verdict, tmp_path)
    text = page.read_text(encoding="utf-8")
    assert text.startswith("# stage_test: FAIL")
    for outcome in verdict.failures:
        assert outcome.message() in text
    value = json.loads(data.read_text(encoding="utf-8"))
    assert value["passed"] is False
    assert len(value["attempts"][0]["outcomes"]) == 10
    assert value["speedup"]["median"] == pytest.approx(verdict.speedup("median"))


def test_plan_gives_every_scenario_the_same_share() -> None:
    plan = Plan(requests=10 * len(SCENARIOS), block=5)
    counts: Counter[str] = Counter()
    first: Counter[str] = Counter()
    rounds: dict[int, list[str]] = {}
    for number, scenario, requests in plan.turns():
        counts[scenario.id] += requests
        rounds.setdefault(number, []).append(scenario.id)
    assert counts == {scenario.id: 10 * len(SCENARIOS) for scenario in SCENARIOS}
    for order in rounds.values():
        assert sorted(order) == sorted(scenario.id for scenario in SCENARIOS)
        first[order[0]] += 1
    assert set(first.values()) == {2}


def test_plan_keeps_a_remainder() -> None:
    assert Plan(requests=25, block=10).blocks() == [10, 10, 5]


@pytest.mark.parametrize("change", [{"requests": 0}, {"threads": 0}, {"sequence": 129}, {"block": -1}])
def test_plan_refuses_nonsense(change: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        Plan(**change)


def test_statistics() -> None:
    assert median([3.0, 1.0, 2.0]) == 2.0
    assert percentile([0.0, 10.0], 0.9) == 9.0
    summary = summarise([1.0, 2.0, 3.0, 4.0])
    assert summary.mean == 2.5
    assert summary.mean_error == pytest.approx(math.sqrt(5 / 3 / 4) / 2.5)
    with pytest.raises(ValueError, match="got none"):
        percentile([], 0.5)
    with pytest.raises(ValueError, match=r"got 1\.5"):
        percentile([1.0], 1.5)


def test_table_text_and_markdown() -> None:
    table = Table("Title", ("<name", "value"))
    table.add("a|b", "1.0")
    table.add("c", "10.0", bad=True)
    assert table.text().splitlines()[2:6] == ["name  value", "-----------", "a|b     1.0", "c      10.0"]
    assert table.markdown().splitlines()[2:] == [
        "| name | value |",
        "| --- | ---: |",
        "| a\\|b | 1.0 |",
        "| c | 10.0 |",
    ]
    with pytest.raises(ValueError, match="needs 2 cells, got 1"):
        table.add("alone")


WORKER = """
import os, sys, threading, time
sys.path.insert(0, {scripts!r})
from measure import service

def crash(command):
    print("about to crash", file=sys.stderr, flush=True)
    os._exit(9)

def fail(command):
    raise RuntimeError("refused")

def hang(command):
    time.sleep(60)

def echo(command):
    print("a library that prints")
    return command

def spin(command):
    end = time.monotonic() + command["seconds"]
    def loop():
        while time.monotonic() < end:
            pass
    threading.Thread(target=loop, daemon=True).start()
    return dict(end=end)

sys.exit(service.serve(dict(crash=crash, fail=fail, hang=hang, echo=echo, spin=spin)))
"""


@pytest.fixture
def worker(tmp_path: Path) -> Any:
    script = tmp_path / "script.py"
    script.write_text(WORKER.format(scripts=str(ROOT / "scripts")), encoding="utf-8")
    environment = clean_environment(1, {})
    with Worker("scenario X", [sys.executable, str(script)], environment, tmp_path / "logs" / "x.txt") as running:
        yield running


def test_worker_answers_and_survives_an_error(worker: Worker) -> None:
    assert worker.call("echo", 30, value=[1, "zwei"]) == {"value": [1, "zwei"]}
    with pytest.raises(WorkerError, match="RuntimeError: refused"):
        worker.call("fail", 30)
    with pytest.raises(WorkerError, match="unknown command 'nothing'; this worker knows crash, echo, fail, hang, spin"):
        worker.call("nothing", 30)
    assert worker.call("echo", 30) == {}


def test_a_call_ends_when_the_threads_that_it_left_spinning_sleep(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = worker.call("spin", 30, seconds=0.2)["end"]
    assert time.monotonic() >= end
    assert not measured.runs(worker._process.pid)
    monkeypatch.setattr(measured, "REST_LIMIT_S", 0.1)
    end = worker.call("spin", 30, seconds=20)["end"]
    assert time.monotonic() < end - 10
    assert measured.runs(worker._process.pid)


def test_worker_that_crashes_shows_its_last_words(worker: Worker) -> None:
    with pytest.raises(WorkerError, match=r"scenario X: the process ended with status 9 .*'crash'") as caught:
        worker.call("crash", 30)
    assert "about to crash" in str(caught.value)


def test_worker_that_hangs_is_stopped(worker: Worker) -> None:
    with pytest.raises(WorkerError, match=r"no answer to 'hang' within 0\.5 s"):
        worker.call("hang", 0.5)


def test_missing_python(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    absent = str(tmp_path / "absent" / "python")
    code = main(["--python-base", absent, "--python-thresher", absent, "--output", str(tmp_path / "out")])
    captured = capsys.readouterr()
    assert code == 2
    assert absent in captured.err
    assert "give the python of an existing environment" in captured.err
    assert "PASS" not in captured.out


def test_environment_of_a_worker_is_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    monkeypatch.setenv("THRESHER_ISA", "sse2")
    monkeypatch.setenv("THRESHER_LOG", "1")
    environment = clean_environment(3, {"THRESHER_PROFILE": "ON"})
    assert "PYTHONPATH" not in environment
    assert "THRESHER_LOG" not in environment
    assert environment["THRESHER_ISA"] == "sse2"
    assert environment["THRESHER_PROFILE"] == "ON"
    assert environment["OMP_NUM_THREADS"] == "3"


def test_the_program_runs_as_a_script() -> None:
    script = ROOT / "scripts" / "stage_test.py"
    done = subprocess.run(
        [sys.executable, str(script), "verdict", str(GOLDEN / "stage_profiler")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "stage_test: FAIL"
    usage = subprocess.run([sys.executable, str(script), "--help"], capture_output=True, text=True, check=True)
    assert "exit codes:" in usage.stdout
    assert "examples:" in usage.stdout

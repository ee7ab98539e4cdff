"""`thresher report` of traces, `thresher diff` and `thresher check`, each in a process of its own."""

from __future__ import annotations

import csv
import gzip
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
import synthetic_trace
from page_data import page_data
from processes import run_command as thresher

pytest.importorskip("typer")
pytest.importorskip("rich")

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return synthetic_trace.write(tmp_path / "run.thrtrace")


def test_report_of_a_trace_fits_100_columns(trace: Path) -> None:
    done = thresher("report", trace)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 100
    assert all(line == line.rstrip() for line in lines)
    for text in (
        "Test CPU @ 2 GHz, avx2, 2 threads",
        "Where the time went, in ms",
        "Findings",
        "Operators: forward",
        "Kernels: forward",
        "linear fp32 avx2",
        "not modelled",
        "Health: good",
    ):
        assert text in done.stdout
    (linear,) = [line.split() for line in lines if line.startswith("linear  ")]
    assert linear == ["linear", "3", "1.20", "88.89", "400.0", "47.2", "6.2", "23.6", "compute"]
    assert any(line.split() == ["wall", "clock", "3.00", "100.0", "1.00", "1.00", "1.00"] for line in lines)


def test_report_by_shape_and_module(trace: Path) -> None:
    assert "intermediate" not in thresher("report", trace).stdout, "a deep module"
    done = thresher("report", trace, "--by-shape", "--module")
    assert "1x16x384, 384x1536" in done.stdout
    assert "modeling_bert.py:412 in forward" in done.stdout
    rich = thresher("report", trace, "--rich", "--top", "1")
    assert "━" in rich.stdout and "and 1 more" in rich.stdout


def test_report_as_json_and_csv(trace: Path, tmp_path: Path) -> None:
    from thresher.profiler.analysis import build_report
    from thresher.profiler.trace import read_trace

    data = json.loads(thresher("report", trace, "--json").stdout)
    assert data == json.loads(json.dumps(build_report(read_trace(trace))))
    (tmp_path / "report.json").write_text(json.dumps(data))
    again = thresher("report", tmp_path / "report.json")
    assert again.returncode == 0, again.stderr
    assert again.stdout == thresher("report", trace).stdout
    rows = list(csv.DictReader(io.StringIO(thresher("report", trace, "--csv").stdout)))
    assert [row["name"] for row in rows] == [row["name"] for row in data["operators"]]
    assert rows[0]["total_ns"] == "1200000" and rows[1]["flops"] == ""
    modules = list(csv.DictReader(io.StringIO(thresher("report", trace, "--csv", "--module").stdout)))
    assert modules[0]["name"] == "encoder.layer.0.intermediate.dense"


def test_report_writes_traces_for_other_tools(trace: Path, tmp_path: Path) -> None:
    chrome, perfetto = tmp_path / "out" / "run.json.gz", tmp_path / "out" / "run.pftrace"
    done = thresher("report", trace, "--chrome", chrome, "--perfetto", perfetto)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"wrote {chrome}\nwrote {perfetto}\n"
    assert len(json.loads(gzip.decompress(chrome.read_bytes()))["traceEvents"]) > 30
    assert perfetto.stat().st_size > 500
    again = thresher("report", trace, "--chrome", chrome)
    assert again.returncode == 1 and "got one that exists" in again.stderr and "--force" in again.stderr
    assert thresher("report", trace, "--chrome", chrome, "--force").returncode == 0
    from_chrome = thresher("report", chrome)
    assert from_chrome.returncode == 0, from_chrome.stderr
    assert "linear fp32 avx2" in from_chrome.stdout


def test_report_as_a_page(trace: Path, tmp_path: Path) -> None:
    done = thresher("report", trace, "--html", tmp_path / "run.html")
    assert done.returncode == 0, done.stderr
    report = page_data(tmp_path / "run.html")["report"]
    assert report["kernels"][0]["name"] == "linear fp32 avx2"


def test_page_without_its_module_is_refused_before_anything_is_written(trace: Path, tmp_path: Path) -> None:
    code = f"""
import sys
sys.modules["thresher.profiler.html"] = None
sys.argv = ["thresher", "report", {str(trace)!r}, "--html", {str(tmp_path / "x.html")!r}]
from thresher.cli import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "expected the module that makes pages" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "x.html").exists()


def test_report_of_a_run_that_was_killed(tmp_path: Path) -> None:
    path = synthetic_trace.write(tmp_path / "killed.thrtrace", finished=False)
    content = path.read_bytes()
    done = thresher("report", path)
    assert done.returncode == 0, done.stderr
    assert "never stopped" in done.stdout and "linear" in done.stdout
    path.write_bytes(content[:-100])
    cut = thresher("report", path)
    assert cut.returncode == 0, cut.stderr
    assert "ends too early" in cut.stdout


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("x.thrtrace", b"THRTRACE", "expected"),
        ("x.thrtrace", b"", "empty"),
        ("x.json", b'{"traceEvents": []}', "traceEvents"),
        ("x.json", b'{"hello": 1}', "traceEvents"),
        ("x.json.gz", b"\x1f\x8b\x08\x00broken", "expected"),
        ("x.pftrace", b"\x0a\x10binary", "expected"),
    ],
)
def test_report_of_what_is_no_trace(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(content)
    done = thresher("report", tmp_path / name)
    assert done.returncode == 1
    assert done.stderr.startswith("thresher: ") and said in done.stderr, done.stderr
    assert str(tmp_path / name) in done.stderr and "Traceback" not in done.stderr


def test_report_bad_outputs(trace: Path, tmp_path: Path) -> None:
    suffix = thresher("report", trace, "--chrome", tmp_path / "x.pftrace")
    assert suffix.returncode == 1 and "expected a name that ends in .json or .json.gz" in suffix.stderr
    full = tmp_path / "full.json"
    full.symlink_to("/dev/full")
    disk = thresher("report", trace, "--chrome", full)
    assert disk.returncode == 1 and "No space left on device" in disk.stderr and "Traceback" not in disk.stderr
    folder = thresher("report", trace, "--perfetto", tmp_path)
    assert folder.returncode == 1 and "got a folder" in folder.stderr
    of_sums = thresher("report", GOLDEN / "op_report.json", "--chrome", tmp_path / "x.json")
    assert of_sums.returncode == 1 and "only sums" in of_sums.stderr and "--trace" in of_sums.stderr
    command = [sys.executable, "-m", "thresher", "report", str(trace), "--chrome", "/dev/stdout"]
    pipe = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert '"traceEvents"' in pipe.stdout, pipe.stderr


def test_diff(tmp_path: Path) -> None:
    a = synthetic_trace.write(tmp_path / "a.thrtrace")
    b = synthetic_trace.write(tmp_path / "b.thrtrace", speed=0.8)
    done = thresher("diff", a, b)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["linear", "1x16x384,", "384x1536", "3", "3", "1.20", "1.50", "+0.30", "1.250"] in lines
    assert ["kernel", "1.35", "1.65", "+0.30", "1.222"] in lines
    found = json.loads(thresher("diff", a, b, "--json").stdout)
    assert found["rows"][0]["delta_ns"] == 300_000
    one = thresher("diff", a, b, "--top", "1").stdout
    assert "linear" in one and "and 2 more" in one


def test_diff_as_a_page(tmp_path: Path) -> None:
    a, b = (synthetic_trace.write(tmp_path / name) for name in ("a.thrtrace", "b.thrtrace"))
    done = thresher("diff", a, b, "--html", tmp_path / "diff.html")
    assert done.returncode == 0, done.stderr
    data = page_data(tmp_path / "diff.html")
    assert data["diff"]["a"]["file"] == "a.thrtrace" and data["report"]["source"]["file"] == "b.thrtrace"
    assert thresher("diff", a, b, "--html", tmp_path / "diff.html").returncode == 1


def test_diff_of_different_machines(tmp_path: Path) -> None:
    a = synthetic_trace.write(tmp_path / "a.thrtrace")
    b = synthetic_trace.write(tmp_path / "b.thrtrace", cpu="Other", data={"torch": "2.14.0"})
    refused = thresher("diff", a, b)
    assert refused.returncode == 2
    assert "processor: Test CPU @ 2 GHz and Other; version of PyTorch: 2.13.0 and 2.14.0" in refused.stderr
    assert "--accept" in refused.stderr and "--force" in refused.stderr
    assert thresher("diff", a, b, "--accept", "cpu").returncode == 2
    assert thresher("diff", a, b, "--accept", "cpu", "--accept", "torch").returncode == 0
    forced = thresher("diff", a, b, "--force")
    assert forced.returncode == 0 and "not alike: processor" in forced.stdout
    wrong = thresher("diff", a, b, "--accept", "gpu")
    assert wrong.returncode == 2 and "expected one of cpu, isa" in wrong.stderr


def test_diff_of_a_missing_file(tmp_path: Path) -> None:
    done = thresher("diff", tmp_path / "none", GOLDEN / "op_report.json")
    assert done.returncode == 2 and "No such file" in done.stderr


def runs(tmp_path: Path, name: str, speeds: list[float]) -> list[Path]:
    return [
        synthetic_trace.write(tmp_path / f"{name}-{number}.thrtrace", 5, speed=speed)
        for number, speed in enumerate(speeds)
    ]


def test_check_passes_and_fails(tmp_path: Path) -> None:
    old = runs(tmp_path, "old", [1.0, 1.01, 0.99])
    new = runs(tmp_path, "new", [1.0, 1.02, 0.99])
    slow = runs(tmp_path, "slow", [0.8, 0.81, 0.79])
    good = thresher("check", *old, "--against", *new)
    assert good.returncode == 0, good.stdout + good.stderr
    assert good.stdout.splitlines()[-1] == "verdict: pass"
    assert max(map(len, good.stdout.splitlines())) <= 100
    bad = thresher("check", *old, "--against", *slow, f"--json={tmp_path / 'verdict.json'}")
    assert bad.returncode == 1
    assert "verdict: regression: linear" in bad.stdout
    verdict = json.loads((tmp_path / "verdict.json").read_text())
    assert (verdict["verdict"], verdict["exit_code"]) == ("regression", 1)
    assert len(verdict["base"]) == len(verdict["new"]) == 3
    assert verdict["wall"]["status"] == "pass", "the steps of these traces last a millisecond in any case"
    lenient = thresher("check", *old, "--limit", "linear=40%", "--against", *slow, "--max-slowdown", "1%")
    assert lenient.returncode == 0, lenient.stdout
    only = thresher("check", *old, "--json", "--against", *slow, "--max-operator-slowdown", "50")
    assert only.returncode == 0
    assert json.loads(only.stdout)["limits"]["operator_percent"] == 50


def test_check_refuses_other_machines(tmp_path: Path) -> None:
    (old,) = runs(tmp_path, "old", [1.0])
    other = synthetic_trace.write(tmp_path / "other.thrtrace", 5, isa="avx512", engine_version="0.2.0")
    refused = thresher("check", old, "--against", other, f"--json={tmp_path / 'v.json'}")
    assert refused.returncode == 2
    said = " ".join(refused.stdout.split())
    assert "instruction set: avx2 and avx512; version of Thresher: 0.1.0 and 0.2.0" in said and "--force" in said
    assert json.loads((tmp_path / "v.json").read_text())["verdict"] == "cannot compare"
    assert thresher("check", old, "--against", other, "--accept", "thresher").returncode == 2
    assert thresher("check", old, "--against", other, "--accept", "thresher", "--accept", "isa").returncode == 0
    forced = thresher("check", old, "--against", other, "--force")
    assert forced.returncode == 0 and "not alike: version of Thresher: 0.1.0 and 0.2.0" in forced.stdout


def test_check_reads_operator_reports() -> None:
    report = GOLDEN / "op_report.json"
    done = thresher("check", report, "--against", report)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "give several of each" in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["{old}"], "--against"),
        (["{old}", "--against"], "requires an argument"),
        (["{old}", "--against", "{old}", "--max-slowdown", "fast"], "expected a percentage such as 5%, got 'fast'"),
        (["{old}", "--against", "{old}", "--max-slowdown", "-3"], "--max-slowdown"),
        (["{old}", "--against", "{old}", "--limit", "linear"], "such as linear=3%"),
        (["{old}", "--against", "{old}", "--limit", "liner=3%"], "no run has such an operator"),
        (["{old}", "--against", "none.thrtrace"], "No such file"),
        (["{old}", "--against", "{old}", "--json={old}"], "got one that exists"),
        (["{old}", "--against", "{old}", "--json={full}"], "No space left on device"),
    ],
)
def test_check_bad_input(tmp_path: Path, arguments: list[str], said: str) -> None:
    (old,) = runs(tmp_path, "old", [1.0])
    full = tmp_path / "full.json"
    full.symlink_to("/dev/full")
    done = thresher("check", *(text.format(old=old, full=full) for text in arguments), COLUMNS="200")
    assert done.returncode == 2, done.stdout
    assert said in done.stdout + done.stderr
    assert "Traceback" not in done.stderr

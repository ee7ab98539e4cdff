"""The command line, run as a user runs it: in a process of its own."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from processes import run_command, without_settings

pytest.importorskip("typer")
pytest.importorskip("rich")

GOLDEN = Path(__file__).parents[1] / "golden"
COMMANDS = ("cache", "check", "diff", "doctor", "draw", "ops", "passes", "peaks", "profile", "report", "tune")

needs_engine = pytest.mark.skipif(
    importlib.util.find_spec("thresher._engine") is None, reason="the engine is not built"
)


def thresher(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = without_settings()
    return subprocess.run(
        [sys.executable, "-m", "thresher", *map(str, arguments)],
        env={**clean, "COLUMNS": "200", "NO_COLOR": "1", **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def at_less_cost(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Like `thresher`, for more of a command that a test has run as a user does."""
    return run_command(*arguments, COLUMNS="200")


def test_help_lists_the_commands() -> None:
    done = thresher("--help")
    assert done.returncode == 0
    for command in COMMANDS:
        assert command in done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_each_command_has_examples(command: str) -> None:
    done = at_less_cost(command, "--help")
    assert done.returncode == 0
    assert "Examples" in done.stdout
    assert f"thresher {command}" in done.stdout
    assert "--json" in done.stdout


def test_wrong_command_and_option_are_errors() -> None:
    assert thresher("diagnose").returncode == 2
    assert thresher("doctor", "--xml").returncode == 2


@pytest.mark.parametrize("missing", [["rich"], ["typer"], ["typer", "rich"]])
def test_missing_packages_are_named(missing: list[str]) -> None:
    code = f"""
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name in {missing!r} else find(name, *rest)
from thresher.cli import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert f"pip install {' '.join(missing)}" in done.stderr
    assert "Traceback" not in done.stderr


def test_command_line_starts_without_torch() -> None:
    code = "import sys, thresher.cli.app; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120, check=False).returncode == 0


def test_report_prints_what_was_written() -> None:
    done = thresher("report", GOLDEN / "op_report.json")
    assert done.returncode == 0, done.stderr
    assert done.stdout == (GOLDEN / "op_report.txt").read_text()
    assert thresher("report", GOLDEN / "op_report.json", "--csv").stdout == (GOLDEN / "op_report.csv").read_text()
    assert thresher("report", GOLDEN / "op_report.json", "--json").stdout == (GOLDEN / "op_report.json").read_text()
    assert "not modelled" in thresher("report", GOLDEN / "op_report.json", "--rich").stdout


def test_report_of_a_wrong_file(tmp_path: Path) -> None:
    missing = at_less_cost("report", tmp_path / "none.json")
    assert missing.returncode == 1
    assert "No such file" in missing.stderr
    (tmp_path / "other.json").write_text('{"traceEvents": []}')
    other = at_less_cost("report", tmp_path / "other.json")
    assert other.returncode == 1
    assert "traceEvents" in other.stderr
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    assert at_less_cost("report", tmp_path / "binary.json").returncode == 1
    both = at_less_cost("report", GOLDEN / "op_report.json", "--json", "--csv")
    assert both.returncode == 1
    assert "choose one" in both.stderr


@needs_engine
def test_version() -> None:
    from thresher import _engine

    done = thresher("--version")
    assert done.returncode == 0
    assert done.stdout.startswith(f"thresher {_engine.version()} (")


@needs_engine
def test_doctor() -> None:
    done = thresher("doctor")
    assert done.returncode == 0, done.stdout
    verdict = "All is well." if importlib.util.find_spec("torch") else "The installation works; see the warnings."
    assert verdict in done.stdout
    data = json.loads(thresher("doctor", "--json").stdout)
    assert data["verdict"] in ("OK", "WARN")
    found = {check["name"]: check["level"] for check in data["checks"]}
    for name in ("python", "engine", "variables", "instructions", "threads", "computing"):
        assert found[name] == "OK", data
        assert name in done.stdout
    assert {"report file", "compiler"} <= set(found)
    assert {"name", "level", "found", "cure"} == set(data["checks"][0])


@needs_engine
@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        (
            "THRESHER_ISA",
            "avx3",
            "sse2, avx2, avx512, avx512_vnni, avx512_bf16, amx, amx_fp16, neon, neon_bf16, sve, sve2",
        ),
        ("THRESHER_NUM_THREADS", "many", "an integer from 1 to 1024"),
        ("THRESHER_PROFILE", "perhaps", "ON or OFF"),
    ],
)
def test_doctor_fails_on_a_wrong_variable(variable: str, value: str, message: str) -> None:
    done = thresher("doctor", "--json", **{variable: value})
    assert done.returncode == 1, done.stderr
    data = json.loads(done.stdout)
    assert data["verdict"] == "FAIL"
    (check,) = [check for check in data["checks"] if check["name"] == "variables"]
    assert check["level"] == "FAIL"
    assert variable in check["found"]
    assert message in check["found"]


@needs_engine
def test_doctor_warns_of_an_unknown_variable() -> None:
    done = thresher("doctor", "--json", THRESHER_PROFIL="ON")
    assert done.returncode == 0
    (check,) = [check for check in json.loads(done.stdout)["checks"] if check["name"] == "variables"]
    assert check["level"] == "WARN"
    assert "THRESHER_PROFILE" in check["found"]


@needs_engine
def test_doctor_lists_the_variables() -> None:
    from thresher import _engine

    names = [row["name"] for row in _engine.env_vars()]
    table = thresher("doctor", "--env", THRESHER_NUM_THREADS="1").stdout
    data = json.loads(thresher("doctor", "--env", "--json", THRESHER_NUM_THREADS="1").stdout)
    assert [row["name"] for row in data["variables"]] == names
    assert {row["name"]: row["value"] for row in data["variables"]}["THRESHER_NUM_THREADS"] == "1"
    for name in names:
        assert name in table


@needs_engine
def test_ops() -> None:
    rows = json.loads(thresher("ops", "--json").stdout)
    names = [row["name"] for row in rows]
    assert "linear" in names
    table = thresher("ops").stdout
    assert f"{len(names)} operators" in table
    for name in names:
        assert name in table


@needs_engine
def test_profile_runs_a_script_unmodified(tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text("NAME = 'linear'\n")
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "import neighbour\n"
        "from thresher import _engine\n"
        "if __name__ == '__main__':\n"
        "    print(sys.argv)\n"
        "    _engine.profile_record('forward', neighbour.NAME, 0, 2_000_000)\n"
        "    sys.exit(7)\n"
    )
    output = tmp_path / "folder" / "run.json"
    done = thresher("profile", "-o", output, script, "--json", "-o", "x")
    assert done.returncode == 7, done.stderr
    assert done.stdout.startswith(f"{[str(script), '--json', '-o', 'x']}\n")
    assert "*** forward ***" in done.stdout
    assert "linear" in done.stdout
    assert thresher("report", output).stdout in done.stdout
    as_json = thresher("profile", "--json", script).stdout
    assert json.loads(as_json.split("\n", 1)[1])["records"] == 1


@needs_engine
@pytest.mark.parametrize(
    ("body", "code", "error"),
    [
        ("pass", 0, ""),
        ("raise SystemExit", 0, ""),
        ("raise SystemExit('no luck')", 1, "no luck"),
        ("raise KeyError('lost')", 1, "KeyError: 'lost'"),
        ("raise KeyboardInterrupt", 130, ""),
    ],
)
def test_profile_keeps_the_exit_code(tmp_path: Path, body: str, code: int, error: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"def f():\n    {body}\nf()\n")
    done = thresher("profile", script)
    assert done.returncode == code
    assert error in done.stderr
    assert "runpy" not in done.stderr, "the traceback begins in the script"
    assert "0 dropped" in done.stdout, "the report comes in any case"


@needs_engine
def test_profile_of_nothing(tmp_path: Path) -> None:
    done = thresher("profile", tmp_path / "none.py")
    assert done.returncode == 1
    assert "expected a Python script" in done.stderr


@needs_engine
def test_passes_and_their_places() -> None:
    found = json.loads(at_less_cost("passes", "--json", "--level", "O1").stdout)
    assert found["level"] == "O1" and found["order"] == ["value_widening", "dead_code", "constant_folding"]
    places = {row["name"]: row["places"] for row in found["passes"]}
    assert places["dead_code"] == [2] and places["layout_motion"] == []
    assert "epilogue_fusion" in at_less_cost("passes").stdout
    wrong = at_less_cost("passes", "--level", "O9")
    assert wrong.returncode == 1 and "O0, O1, O2 or O3" in wrong.stderr


def test_draw(tmp_path: Path) -> None:
    text = tmp_path / "graph.txt"
    text.write_text("graph 1\ninput %x : f32[2]\n%y = relu(%x) : f32[2]\nreturn %y\n")
    drawn = at_less_cost("draw", text, "-o", tmp_path / "graph.svg")
    assert drawn.returncode == 0 and drawn.stdout == ""
    assert (tmp_path / "graph.svg").read_text() == at_less_cost("draw", text).stdout
    assert json.loads(at_less_cost("draw", "--json", text).stdout)["nodes"][0]["op"] == "relu"
    before = tmp_path / "before.txt"
    before.write_text(text.read_text().replace("relu", "neg"))
    assert "made by this pass" in at_less_cost("draw", "--before", before, text).stdout
    text.write_text("no graph")
    wrong = at_less_cost("draw", text)
    assert wrong.returncode == 1 and "line 1: expected 'graph 1'" in wrong.stderr
    assert at_less_cost("draw", tmp_path / "absent.txt").returncode == 1

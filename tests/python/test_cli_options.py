"""What all commands share: --json, --color, completion, and how they are started."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from processes import without_settings

pytest.importorskip("typer")
pytest.importorskip("rich")

GOLDEN = Path(__file__).parents[1] / "golden"


def thresher(*arguments: object, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in without_settings().items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    return subprocess.run(
        [sys.executable, "-m", "thresher", *map(str, arguments)],
        env={**clean, "COLUMNS": "120", "TERM": "xterm-256color", **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=cwd,
    )


COMMANDS = [
    ("doctor",),
    ("doctor", "--env"),
    ("ops",),
    ("passes", "--level", "O1"),
    ("cache", "list"),
    ("cache", "verify"),
    ("cache", "path"),
    ("report", GOLDEN / "op_report.json"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: str(command[0]))
def test_json_on_standard_output_or_in_a_file(command: tuple[object, ...], tmp_path: Path) -> None:
    environment = {"THRESHER_CACHE_DIR": str(tmp_path / "cache")}
    printed = thresher(command[0], "--json", *command[1:], **environment)
    if command[0] == "cache":
        printed = thresher(*command, "--json", **environment)
    file = tmp_path / "of the command.json"
    written = thresher(*command, f"--json={file}", **environment)
    assert printed.returncode == written.returncode == 0, printed.stderr + written.stderr
    assert json.loads(printed.stdout) == json.loads(file.read_text())
    assert written.stdout and not written.stdout.startswith(("{", "[")), "a file comes besides what people read"


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, id=str(command[0]), marks=[pytest.mark.thorough] if number in (1, 2) else [])
        for number, command in enumerate(COMMANDS[:4])
    ],
)
def test_colours(command: tuple[object, ...]) -> None:
    assert "\x1b[" not in thresher(*command).stdout, "this is no terminal"
    assert "\x1b[" in thresher(*command, "--color", "always").stdout
    assert "\x1b[" in thresher(*command, "--color=always", NO_COLOR="1").stdout, "the argument goes first"
    assert "\x1b[" not in thresher(*command, FORCE_COLOR="1", NO_COLOR="1").stdout
    assert "\x1b[" in thresher(*command, FORCE_COLOR="1").stdout
    assert "\x1b[" not in thresher(*command, "--color", "never", FORCE_COLOR="1").stdout


def test_an_unknown_colour() -> None:
    done = thresher("ops", "--color", "red")
    assert done.returncode == 2 and "'red' is not one of 'auto', 'always', 'never'" in done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str) -> None:
    done = thresher("--show-completion", shell)
    assert done.returncode == 0 and "_THRESHER_COMPLETE" in done.stdout, done.stderr


def test_completions() -> None:
    words = thresher(_THRESHER_COMPLETE="complete_bash", COMP_WORDS="thresher d", COMP_CWORD="1").stdout.split()
    assert words == ["dashboard", "diff", "doctor", "draw"]
    words = thresher(_THRESHER_COMPLETE="complete_bash", COMP_WORDS="thresher ops --", COMP_CWORD="2").stdout.split()
    assert {"--json", "--color"} <= set(words)


def test_a_module_is_profiled(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "words.py").write_text("import sys\nprint('words', sys.argv[1:], __name__, __package__)\nsys.exit(3)\n")
    (package / "__main__.py").write_text("import sys\nfrom package import words\n")
    done = thresher("profile", "-m", "package.words", "--json", "x", cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    assert "words ['--json', 'x'] __main__ package" in done.stdout and "no records" in done.stdout
    done = thresher("profile", "--json", "-m", "package", cwd=tmp_path)
    assert done.returncode == 3 and done.stdout.startswith("words [] package.words package\n{"), done.stderr
    done = thresher("profile", "-o", "run.json", "--json", "-m", "package.words", cwd=tmp_path)
    assert done.returncode == 3 and json.loads((tmp_path / "run.json").read_text())["format"] == "thresher-op-report"


@pytest.mark.parametrize("name", ["package.nothing", "nothing", "no thing", "sys", ".x"])
def test_no_module(name: str, tmp_path: Path) -> None:
    done = thresher("profile", "-m", name, cwd=tmp_path)
    assert done.returncode == 1 and f"-m {name}: expected a module that Python finds" in done.stderr
    assert "Traceback" not in done.stderr


def test_neither_script_nor_module() -> None:
    done = thresher("profile", "--no-peaks")
    assert done.returncode == 1 and "expected a Python script or -m MODULE, got neither" in done.stderr


@pytest.mark.parametrize("level", ["INFO", "info", "Debug"])
def test_levels_in_any_case(level: str) -> None:
    done = thresher("doctor", "--json", THRESHER_LOG=level)
    found = {check["name"]: check["level"] for check in json.loads(done.stdout)["checks"]}
    assert found["variables"] == "OK", done.stdout


def test_a_warning_is_shown_once_and_what_is_meant_for_developers_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    from thresher.cli.common import plain_warnings

    with plain_warnings():
        for _ in range(3):
            warnings.warn("this machine is slow", stacklevel=1)
            warnings.warn("call it otherwise", DeprecationWarning, stacklevel=1)
    assert capsys.readouterr().err == "thresher: warning: this machine is slow\n"

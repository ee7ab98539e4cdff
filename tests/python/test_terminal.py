"""What a person at a terminal sees besides the results: bars on long work, and messages of the chosen level."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from processes import run_with_torch, without_settings

pytest.importorskip("typer")


def command_at_terminal(folder: Path, *arguments: str) -> tuple[str, str]:
    """Runs a command whose standard error is a terminal.

    Returns:
        Its standard output, and what the terminal got.
    """
    leader, follower = pty.openpty()
    kept = without_settings()
    with subprocess.Popen(
        [sys.executable, "-m", "thresher", *arguments],
        env={**kept, "THRESHER_CACHE_DIR": str(folder), "TERM": "xterm", "COLUMNS": "100"},
        stdout=subprocess.PIPE,
        stderr=follower,
        text=True,
    ) as process:
        os.close(follower)
        shown = b""
        while True:
            try:
                part = os.read(leader, 4096)
            except OSError:  # how a terminal ends
                break
            if not part:
                break
            shown += part
        assert process.stdout is not None
        output = process.stdout.read()
    os.close(leader)
    assert process.returncode == 0, shown.decode()
    return output, shown.decode()


@pytest.mark.parametrize(
    ("arguments", "bar"),
    [
        (("peaks", "--threads", "1", "--json"), "measuring"),
        (("tune", "--shape", "3x24x40", "--threads", "1", "--json"), "tuning"),
    ],
)
def test_long_measurements_show_a_bar_that_goes_away(arguments: tuple[str, ...], bar: str, tmp_path: Path) -> None:
    output, shown = command_at_terminal(tmp_path, *arguments)
    assert json.loads(output)
    assert bar in shown and "\N{BOX DRAWINGS HEAVY HORIZONTAL}" in shown
    assert shown.rstrip().endswith(("\x1b[2K", "\x1b[?25h")), "the line of the bar is cleared, the cursor shown"


COMPILES = """
import logging, sys, warnings
import torch, thresher
warnings.simplefilter("ignore")
if OWN_LOGGING:
    logging.basicConfig(format="mine: %(message)s")
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.fft.rfft(torch.relu(x)).real + 1
with torch.no_grad():
    thresher.compile(Model().eval())(torch.ones(4, 8))
"""
SPLIT = "operators of 5 nodes run in PyTorch"


def said_while_compiling(level: str | None, *, own_logging: bool) -> list[str]:
    pytest.importorskip("torch")
    code = COMPILES.replace("OWN_LOGGING", str(own_logging))
    done = run_with_torch(code, **({"THRESHER_LOG": level} if level else {}))
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()


@pytest.mark.parametrize("level", ["info", pytest.param("debug", marks=pytest.mark.thorough)])
def test_messages_of_the_chosen_level_are_printed(level: str) -> None:
    first, *_ = said_while_compiling(level, own_logging=False)
    assert first.startswith("thresher: ") and SPLIT in first


@pytest.mark.parametrize("level", [pytest.param("warning", marks=pytest.mark.thorough), None])
def test_messages_of_lower_levels_are_not(level: str | None) -> None:
    assert said_while_compiling(level, own_logging=False) == []


def test_a_program_that_sets_up_logging_prints_them_once() -> None:
    lines = said_while_compiling("info", own_logging=True)
    assert [line[:6] for line in lines if SPLIT in line] == ["mine: "]

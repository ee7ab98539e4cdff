"""Processes that are forked with PyTorch imported end, fail and are stopped like fresh ones."""

from __future__ import annotations

import os
import subprocess
import time

import pytest
from processes import run_with_torch
from warm_python import run_warm

pytest.importorskip("torch")


def test_nothing_of_thresher_is_there_yet() -> None:
    code = "import sys; print(__name__, sys.argv[1:], [name for name in sys.modules if name.startswith('thresher')])"
    done = run_with_torch(code, "a b", "c")
    assert (done.returncode, done.stdout) == (0, "__main__ ['a b', 'c'] []\n"), done.stderr


def test_variables_are_those_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THRESHER_LOG", "info")
    code = "import os; print(os.environ.get('THRESHER_LOG'), os.environ['THRESHER_NUM_THREADS'])"
    assert run_with_torch(code, THRESHER_NUM_THREADS="2").stdout == "None 2\n"
    with pytest.raises(ValueError, match="OMP_NUM_THREADS is read before the code runs"):
        run_with_torch(code, OMP_NUM_THREADS="7")


@pytest.mark.parametrize(
    ("code", "status", "last"),
    [("raise ValueError('meant')", 1, "ValueError: meant\n"), ("exit(5)", 5, ""), ("import os; os.abort()", -6, "")],
)
def test_how_they_end(code: str, status: int, last: str) -> None:
    done = run_with_torch(code)
    assert done.returncode == status and done.stderr.endswith(last)


def test_what_takes_too_long_is_killed() -> None:
    begin = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        run_warm("import time; time.sleep(100)", environment=dict(os.environ), timeout=0.5)
    assert time.monotonic() - begin < 90
    assert run_with_torch("print('next')").stdout == "next\n"

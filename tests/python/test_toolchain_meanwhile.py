"""What a session does beside its main work: waited for where it is needed, ended where the main work fails."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from toolchain import orphans
from toolchain.meanwhile import beside
from toolchain.process import ToolchainError, run

Note = Callable[[str], Callable[[], None]]


@pytest.fixture
def done() -> list[str]:
    return []


@pytest.fixture
def task(done: list[str]) -> Note:
    return lambda name: lambda: done.append(name)


def failing() -> None:
    raise ToolchainError("no network")


def test_tasks_run_beside_the_block_one_after_the_other(done: list[str], task: Note) -> None:
    inside, outside = threading.Event(), threading.Event()
    with beside(task("first"), inside.set, lambda: outside.wait(60), task("second")):
        assert inside.wait(60), "the tasks wait for the end of the block"
        assert done == ["first"]
        outside.set()
    assert done == ["first", "second"]


def test_what_a_task_raises_comes_at_the_end(done: list[str], task: Note) -> None:
    with pytest.raises(ToolchainError, match="no network"), beside(failing, task("next")):
        done.append("the block")
    assert done == ["the block"]


def test_a_block_that_fails_ends_the_processes_of_the_tasks(
    done: list[str], task: Note, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(orphans, "MARK", "of this test alone")
    started = tmp_path / "started"
    sleeper = f"open({str(started)!r}, 'w').close(); import time; time.sleep(600)"
    begin = time.monotonic()
    with (
        pytest.raises(ZeroDivisionError),
        beside(lambda: run([sys.executable, "-c", sleeper]), task("after it")),
    ):
        while not started.exists():
            time.sleep(0.01)
        raise ZeroDivisionError
    assert time.monotonic() - begin < 120
    assert orphans.running(orphans.MARK) == [] and done == []

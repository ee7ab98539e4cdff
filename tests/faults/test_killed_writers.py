"""A process that is killed while it writes leaves the old content or the new, and the next run works."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from writers import WRITERS

HERE = Path(__file__).parent

KILLS = 10
# A forked child that starts a recording starts the thread that writes it.
WITH_THREADS = {"SavedTrace": (pytest.mark.threads_after_fork,)}
NAMES = [pytest.param(name, marks=WITH_THREADS.get(name, ())) for name in sorted(WRITERS)]


def execute(name: str, folder: Path, kills: int, seed: int) -> dict[str, int]:
    done = subprocess.run(
        [sys.executable, str(HERE / "writers.py"), name, str(folder), str(kills), str(seed)],
        capture_output=True,
        text=True,
        timeout=60 + kills * 2,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("name", NAMES)
def test_old_or_new_and_nothing_else(name: str, tmp_path: Path) -> None:
    found = execute(name, tmp_path, KILLS, 1)
    assert found["hits"] > 0, "no kill came while the file was unfinished: this proves nothing"
    assert name == "SavedTrace" or found["most"] == 1, "one killed writer leaves one file"


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_many_moments(name: str, tmp_path: Path) -> None:
    assert execute(name, tmp_path, 300, 2)["hits"] > 10


@pytest.mark.parametrize("seed", range(3))
def test_a_trace_that_is_being_recorded_is_readable_up_to_the_kill(seed: int, tmp_path: Path) -> None:
    code = """
import sys
from thresher import profiler
profiler.start(trace=sys.argv[1])
print("go", flush=True)
while True:
    with profiler.record_function("work"):
        pass
"""
    path = tmp_path / "run.thrtrace"
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(0.1 + 0.2 * random.Random(seed).random())
        os.kill(child.pid, signal.SIGKILL)
    from thresher.profiler.analysis import build_report
    from thresher.profiler.trace import read_trace

    trace = read_trace(path)
    assert "work" in trace.names
    report = build_report(trace)
    total = report["overview"]["total"]
    assert sum(total["by_category"].values()) == total["wall_ns"]


@pytest.mark.thorough
def test_measuring_the_peaks_can_be_killed(tmp_path: Path) -> None:
    environment = {**os.environ, "THRESHER_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "thresher", "peaks", "--json"]
    for delay in (0.3, 1, 2, 3):
        with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as child:
            time.sleep(delay)
            child.kill()
    first, second = (
        json.loads(subprocess.run(command, env=environment, capture_output=True, check=True, timeout=120).stdout)
        for _ in range(2)
    )
    assert second["from_cache"] and second["by_threads"] == first["by_threads"]

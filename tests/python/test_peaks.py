"""The roofs of the machine."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("thresher._engine")

import thresher
from thresher import _engine, cache, machine

RATES = (
    "fp32_gflops",
    "int8_gops",
    "l1_read_gb_per_s",
    "l2_read_gb_per_s",
    "l3_read_gb_per_s",
    "dram_read_gb_per_s",
    "dram_write_gb_per_s",
    "dram_copy_gb_per_s",
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, nothing measured in this process yet, and measurements that take a moment only."""
    monkeypatch.setattr(sys.modules["thresher.machine.roofs"], "_measured", {})
    monkeypatch.setattr(_engine, "measure_peaks", functools.partial(_engine.measure_peaks, quick=True))
    monkeypatch.delenv("THRESHER_CACHE", raising=False)
    cache.set_dir(tmp_path / "cache")
    yield tmp_path / "cache"
    cache.set_dir(None)


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["thresher.machine.roofs"], "_measured", {})


def never(*_: object, **__: object) -> Any:
    raise AssertionError("it was measured again")


def test_measured_once_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    first = thresher.peaks()
    assert not first.from_cache
    assert first.seconds > 0
    assert first.engine_version == thresher.__version__
    assert (first.isa, first.cpu_model) == (_engine.isa(), _engine.cpu_model())
    assert first.one_thread.num_threads == 1
    assert first.all_threads.num_threads == _engine.usable_cores()
    for entry in first.by_threads:
        for name in RATES:
            rate = getattr(entry, name)
            assert 0 < rate.min <= rate.median <= rate.max, name
    assert first.one_thread.l1_buffer_bytes < first.l1_bytes
    assert first.one_thread.l3_buffer_bytes > first.l2_bytes

    monkeypatch.setattr(_engine, "measure_peaks", never)
    second = thresher.peaks()
    assert second.from_cache
    forget(monkeypatch)
    third = thresher.peaks()
    assert third == second
    assert third.measured_at == first.measured_at
    assert {**third.to_dict(), "from_cache": False} == first.to_dict()


def test_refresh_and_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not thresher.peaks(num_threads=1).from_cache
    assert [entry.num_threads for entry in thresher.peaks(num_threads=1).by_threads] == [1]
    three = thresher.peaks(num_threads=3)
    assert not three.from_cache, "another number of threads is another measurement"
    assert [entry.num_threads for entry in three.by_threads] == [1, 3]
    assert thresher.peaks(num_threads=1).from_cache
    assert not thresher.peaks(True, num_threads=1).from_cache
    forget(monkeypatch)
    assert thresher.peaks(num_threads=1).from_cache


def test_without_the_cache(folder: Path) -> None:
    with cache.disabled():
        assert not thresher.peaks(num_threads=1).from_cache
        assert thresher.peaks(num_threads=1).from_cache, "once a process is enough"
    assert not folder.exists()


def test_an_entry_of_another_shape_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = thresher.peaks(num_threads=1).to_dict()
    for wrong in (
        {},
        [],
        {**whole, "by_threads": []},
        {**whole, "by_threads": [{"num_threads": 1}]},
        {**whole, "x": 1},
    ):
        forget(monkeypatch)
        cache.store("peaks", {"num_threads": [1]}, wrong)
        assert not thresher.peaks(num_threads=1).from_cache


def test_progress_and_interruption() -> None:
    calls: list[tuple[int, int]] = []
    thresher.peaks(num_threads=1, progress=lambda done, total: calls.append((done, total)))
    assert calls == sorted(calls)
    assert calls[0][0] == 0
    assert calls[-1][0] == calls[-1][1] > 8

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        thresher.peaks(True, num_threads=1, progress=stop)


def test_wrong_arguments() -> None:
    for wrong in (0, -1, 1025):
        with pytest.raises(ValueError, match="1 to 1024 threads"):
            thresher.peaks(num_threads=wrong)


def test_a_busy_machine_is_told() -> None:
    data = thresher.peaks(num_threads=1).to_dict()
    entry = data["by_threads"][0]
    entry["fp32_gflops"] = entry["int8_gops"] = {"median": 99.0, "min": 50.0, "max": 100.0}
    assert not machine.Peaks.from_dict(data).disturbed
    entry["fp32_gflops"] = {"median": 60.0, "min": 50.0, "max": 100.0}
    assert machine.Peaks.from_dict(data).disturbed


def test_nodes_and_tiles_of_fp16(capsys: pytest.CaptureFixture[str]) -> None:
    from thresher.cli import peaks as cli

    data = thresher.peaks(num_threads=1).to_dict()
    assert data["by_node"] == [] or len(data["by_node"]) > 1
    rate = {"median": 80.0, "min": 70.0, "max": 90.0}
    data["by_node"] = [{"node": node, "num_threads": 8, "dram_read_gb_per_s": rate} for node in (0, 2)]
    data["by_threads"][0]["fp16_gflops"] = rate
    found = machine.Peaks.from_dict(data)
    assert found.to_dict() == data
    assert found.by_node[1] == machine.NodePeaks(2, 8, machine.Rate(80.0, 70.0, 90.0))
    cli._print(found)
    text = capsys.readouterr().out
    assert "Node 2: 8 threads read 80.0 GB/s of its own memory" in text
    assert "fp16 product of tiles" in text
    for wrong in ([{"node": 0}], [{**data["by_node"][0], "dram_read_gb_per_s": 5}], "none"):
        with pytest.raises(ValueError, match="to_dict"):
            machine.Peaks.from_dict({**data, "by_node": wrong})


def command(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("typer")
    return subprocess.run(
        [sys.executable, "-m", "thresher", "peaks", *arguments],
        env={**os.environ, "THRESHER_CACHE_DIR": str(folder), "COLUMNS": "120", "NO_COLOR": "1", **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_command_line(folder: Path) -> None:
    found = thresher.peaks()
    table = command(folder)
    assert table.returncode == 0, table.stderr
    assert "from the cache; --refresh measures again" in table.stdout
    assert found.measured_at in table.stdout
    assert f"{found.one_thread.fp32_gflops.median:.1f}" in table.stdout
    for unit in ("GFLOP/s", "GOP/s", "GB/s"):
        assert unit in table.stdout
    data = json.loads(command(folder, "--json").stdout)
    assert data.pop("disturbed") == found.disturbed
    assert {**data, "from_cache": False} == found.to_dict()


def test_command_line_measures(folder: Path) -> None:
    forced = _engine.isas()[0]
    done = command(folder, "--refresh", "--threads", "1", "--json", THRESHER_ISA=forced)
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert (data["isa"], data["from_cache"]) == (forced, False)
    assert data["seconds"] < 20
    again = json.loads(command(folder, "--threads", "1", "--json", THRESHER_ISA=forced).stdout)
    assert (again["measured_at"], again["from_cache"]) == (data["measured_at"], True)


def test_command_line_where_nothing_can_be_kept(folder: Path) -> None:
    folder.write_text("not a folder")
    done = command(folder, "--threads", "1", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["from_cache"] is False
    assert done.stderr.startswith("thresher: warning: cache ")
    assert done.stderr.count("\n") == 1
    assert command(folder, "--threads", "0").returncode == 2

"""Traces of the engine: started and stopped from Python, by the environment, around exceptions and killed processes."""

from __future__ import annotations

import json
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import run_python

_engine = pytest.importorskip("thresher._engine")

from thresher import profiler  # noqa: E402 - the engine may be missing

RECORD = np.dtype(
    [
        ("start_ns", "<i8"),
        ("end_ns", "<i8"),
        ("correlation", "<u8"),
        ("execution", "<u8"),
        ("value", "<i8"),
        ("external", "<u4"),
        ("user", "<u4"),
        ("site", "<u4"),
        ("thread", "<u4"),
        ("lane", "<u2"),
        ("event", "<u2"),
        ("kind", "u1"),
        ("section", "u1"),
        ("phase", "u1"),
        ("device", "u1"),
    ]
)
OP, EXECUTION, CALL, RUNTIME, MEMORY, RANGE, STEP = range(7)


class Trace:
    """A trace file, read by the description of its format alone."""

    def __init__(self, path: Path) -> None:
        data = path.read_bytes()
        assert data[:8] == b"THRTRACE"
        assert np.frombuffer(data, "<u4", 2, 8).tolist() == [1, 64] == [1, RECORD.itemsize]
        self.meta: dict[str, Any] = {}
        self.sites: dict[int, dict[str, Any]] = {}
        self.tail: dict[str, Any] | None = None
        records = []
        at = 16
        while at < len(data):
            tag = data[at : at + 4].decode()
            (crc,) = np.frombuffer(data, "<u4", 1, at + 4).tolist()
            (size,) = np.frombuffer(data, "<u8", 1, at + 8).tolist()
            payload = data[at + 16 : at + 16 + size]
            assert len(payload) == size
            assert zlib.crc32(payload) == crc
            at += 16 + (size + 7) // 8 * 8
            if tag == "RECS":
                records.append(np.frombuffer(payload, RECORD))
            elif tag == "SITE":
                self.sites.update({site["id"]: site for site in json.loads(payload)})
            elif tag in ("HEAD", "DATA"):
                self.meta.update(json.loads(payload))
            else:
                assert tag == "TAIL"
                self.tail = json.loads(payload)
        self.records = np.concatenate(records) if records else np.empty(0, RECORD)

    def of(self, kind: int) -> Any:
        return self.records[self.records["kind"] == kind]

    def name(self, record: Any) -> str:
        return str(self.sites[int(record["site"])]["name"])


@pytest.fixture(autouse=True)
def off_afterwards() -> Iterator[None]:
    profiler.reset()
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        profiler.stop()
    profiler.reset()


def test_a_trace_of_marks(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "run.thrtrace"
    profiler.start(trace=path)
    assert profiler.is_enabled()
    assert profiler.trace_file() == path
    profiler.step()
    for _ in range(3):
        with profiler.record_function("tokenise"):
            pass
        profiler.step()
    profiler.annotate({"batch": 8})
    profiler.stop()
    with profiler.record_function("after the end"):
        pass
    trace = Trace(path)
    assert trace.tail is not None
    assert trace.tail["dropped"] == 0
    assert trace.meta["batch"] == 8
    assert trace.meta["isa"] == _engine.isa()
    assert trace.meta["python"].startswith("3.")
    assert [trace.name(record) for record in trace.of(RANGE)] == ["tokenise"] * 3
    steps = trace.of(STEP)
    assert [trace.name(record) for record in steps] == ["Step#0", "Step#1", "Step#2"]
    assert steps["start_ns"][1:].tolist() == pytest.approx(steps["end_ns"][:-1].tolist(), abs=1e6)


def test_starting_twice_and_stopping_without_a_start(tmp_path: Path) -> None:
    profiler.stop()
    profiler.start(trace=tmp_path / "a")
    with pytest.raises(ValueError, match="expected to start one, got one running into"):
        profiler.start(trace=tmp_path / "b")
    profiler.stop()
    profiler.stop()
    with pytest.raises(ValueError, match="expected a new file"):
        profiler.start(trace=tmp_path / "a")
    with pytest.raises(ValueError, match="expected one that runs"):
        profiler.annotate({})
    assert Trace(tmp_path / "a").tail is not None


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OSError):
        profiler.start(trace=tmp_path / "file" / "trace")
    assert not profiler.is_enabled()


def test_the_block_keeps_a_trace_in_memory(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="the body"), profiler.profile() as block:
        with profiler.record_function("work"):
            pass
        raise RuntimeError("the body")
    assert not profiler.is_enabled()
    assert not _engine.trace_status()["running"]
    block.save_trace(tmp_path / "block.thrtrace")
    trace = Trace(tmp_path / "block.thrtrace")
    assert [trace.name(record) for record in trace.of(RANGE)] == ["work"]


def test_a_limit_is_kept_and_said(tmp_path: Path) -> None:
    profiler.start(trace=tmp_path / "small", max_bytes=20_000)
    for _ in range(1000):
        _engine.profile_record("forward", "linear", 0, 1)
    with pytest.warns(UserWarning, match="the trace has reached its limit of 20000 bytes") as said:
        profiler.stop()
    assert profiler.collect().records == 1000, "the report has them all the same"
    tail = Trace(tmp_path / "small").tail
    assert tail is not None
    # The file is written while the loop runs; what came in time is in it.
    assert tail["records"] + tail["dropped"] == 1000
    assert tail["dropped"] > 0
    assert f"lacks {tail['dropped']} records" in str(said[0].message)
    assert "limit" in tail["problem"]


MARK = "from thresher import profiler\nwith profiler.record_function('work'): pass\n"


def test_the_environment_starts_a_trace(tmp_path: Path) -> None:
    done = run_python(MARK, THRESHER_PROFILE_TRACE=str(tmp_path / "run-{pid}.thrtrace"))
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.iterdir()
    trace = Trace(path)
    assert trace.tail is not None
    assert [trace.name(record) for record in trace.of(RANGE)] == ["work"]


def test_an_environment_that_names_no_writable_place_is_said_and_harmless(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("mine")
    done = run_python(MARK + "print('ran')", THRESHER_PROFILE_TRACE=str(tmp_path / "there"))
    assert done.returncode == 0
    assert done.stdout == "ran\n"
    assert "no trace is kept" in done.stderr
    assert (tmp_path / "there").read_text() == "mine"


def test_a_killed_process_leaves_what_it_recorded(tmp_path: Path) -> None:
    code = MARK + "import os, signal, time\ntime.sleep(0.5)\nos.kill(os.getpid(), signal.SIGKILL)"
    done = run_python(code, THRESHER_PROFILE_TRACE=str(tmp_path / "killed"))
    assert done.returncode == -9
    trace = Trace(tmp_path / "killed")
    assert trace.tail is None
    assert [trace.name(record) for record in trace.of(RANGE)] == ["work"]


def test_a_forked_child_writes_no_trace_and_a_spawned_one_its_own(tmp_path: Path) -> None:
    code = MARK + (
        "import os\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    with profiler.record_function('child'): pass\n"
        "    profiler.stop()\n"
        "    os._exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "import multiprocessing as mp\n"
        "mp.get_context('spawn').Process(target=profiler.is_enabled).start()\n"
    )
    done = run_python(code, THRESHER_PROFILE_TRACE=str(tmp_path / "{pid}"))
    assert done.returncode == 0, done.stderr
    ranges = [[t.name(record) for record in t.of(RANGE)] for t in map(Trace, tmp_path.iterdir())]
    assert sorted(ranges) in ([[], ["work"]], [["work"]]), ranges


def test_a_compiled_model_with_a_part_in_pytorch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Half(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Linear(16, 16)
            self.last = torch.nn.Linear(16, 8)

        def forward(self, x: Any) -> Any:
            return self.last(torch.relu(torch.cumprod(torch.relu(self.first(x)), 1)))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = Half().eval()
        compiled = torch.compile(model, backend="thresher")
        x = torch.randn(2, 4, 16)
        with torch.no_grad():
            compiled(x)
            path = tmp_path / "half.thrtrace"
            profiler.start(trace=path)
            for _ in range(5):
                compiled(x)
            profiler.stop()
    trace = Trace(path)
    numbers = {str(event["name"]): event["number"] for event in _engine.profile_events()}
    count = {name: int((trace.records["event"] == number).sum()) for name, number in numbers.items()}
    assert count["thresherCall"] == 5
    assert count["thresherSubgraphExecution"] == 10
    assert count["thresherGraphExecution"] == 10
    assert count["thresherFallback"] >= 5
    ops = trace.of(OP)
    assert len(set(ops["correlation"].tolist())) == len(ops) > 0
    executions = {int(e["execution"]): e for e in trace.of(EXECUTION)}
    for op in ops:
        run = executions[int(op["execution"])]
        assert run["start_ns"] == op["value"] <= op["start_ns"] <= op["end_ns"] <= run["end_ns"]
    linears = [s for s in (trace.sites[int(op["site"])] for op in ops) if s["kernel"].startswith("linear fp32")]
    assert {site["module"] for site in linears} == {"first", "last"}
    assert all(site["flops"] > 0 for site in linears)
    report = profiler.collect()
    assert report.phase("inference").calls == 5
    assert any(row.opname == "PyTorch operators" for row in report.rows)
    covered = sum(row.total_ns for row in report.rows) + report.gap_ns
    assert covered == report.wall_ns


def test_no_record_is_lost_at_the_default_size(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(
        *(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()) for _ in range(30))
    ).eval()
    compiled = torch.compile(model, backend="thresher")
    x = torch.randn(1, 8)
    with torch.no_grad():
        compiled(x)
        profiler.start(trace=tmp_path / "many")
        for _ in range(3000):
            compiled(x)
        profiler.stop()
    trace = Trace(tmp_path / "many")
    assert trace.tail is not None
    assert trace.tail["dropped"] == 0
    assert len(trace.of(OP)) == 3000 * 30 > 65_536, "more than a ring holds"
    assert len(trace.of(CALL)) == 3000


def test_memory_and_compilation_are_in_the_trace(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    import thresher

    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU(), torch.nn.Linear(256, 256)).eval()
    compiled = torch.compile(model, backend="thresher")
    before = _engine.allocated_bytes()
    profiler.start(trace=tmp_path / "memory")
    with torch.no_grad():
        compiled(torch.randn(8, 256))
        compiled(torch.randn(8, 512)[:, ::2])  # with gaps, which no plan reads
    held = _engine.allocated_bytes()
    assert held > before + 2 * 256 * 256 * 4, "the packed weights at least"
    thresher.clear_cache()
    profiler.stop()
    trace = Trace(tmp_path / "memory")
    numbers = {str(event["name"]): event["number"] for event in _engine.profile_events()}
    seen = set(trace.records["event"].tolist())
    expected = ("CompileGraph", "InitGraph", "Malloc", "DataConvert", "LaunchKernels", "ClearCache", "Free")
    assert {numbers[f"thresher{name}"] for name in expected} <= seen
    memory = trace.of(MEMORY)
    assert int(memory["value"].sum()) == _engine.allocated_bytes() - before
    assert (memory["start_ns"] == memory["end_ns"]).all()
    totals = before + np.cumsum(memory["value"])
    assert totals.tolist() == memory["correlation"].tolist()
    assert max(totals) == held


@pytest.mark.parametrize("suffix", [".thrtrace", ".json", ".json.gz", ".pftrace", ".html"])
def test_a_block_is_exported_in_every_form(tmp_path: Path, suffix: str) -> None:
    with profiler.profile() as block, profiler.record_function("work"):
        pass
    path = tmp_path / f"run{suffix}"
    block.export(path)
    assert path.stat().st_size > 100
    if suffix != ".html":
        from thresher.profiler.trace import read_trace

        if suffix != ".pftrace":
            assert "work" in read_trace(path).names
    else:
        assert path.read_text().lower().startswith("<!doctype html>")
    with pytest.raises((OSError, ValueError), match="expected a new file"):
        block.export(path)
    with pytest.raises(ValueError, match="ends in one of"):
        profiler.export_trace(tmp_path / "run.docx")
    assert callable(profiler.export_trace)

"""thresher.benchmark, thresher.profile, PerformanceProfiler, MemoryProfiler."""

from __future__ import annotations

import csv
import itertools
import json
import math
import mmap
import re
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from processes import limit_file_size, lines_of, run_with_torch

import thresher
from thresher import profiler
from thresher.measure import engines
from thresher.measure.benchmark import _error
from thresher.measure.folder import new_folder
from thresher.measure.inputs import call_at
from thresher.measure.resident import forget_peak, resident_bytes
from thresher.profiler.export import OutputError


class Net(torch.nn.Module):
    """Two layers, one of which is named."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(64, 128)
        self.second = torch.nn.Linear(128, 16)

    def forward(self, x: Any) -> Any:
        return self.second(torch.nn.functional.gelu(self.first(x)))


@pytest.fixture
def net() -> Any:
    torch.manual_seed(0)
    return Net().eval()


BOTH = ["eager", "thresher"]


# ---- benchmark ----


def test_a_benchmark_compares_engines_at_every_batch(net: Any, tmp_path: Path) -> None:
    result = thresher.benchmark(net, (64,), batch_sizes=(1, 4), num_iterations=20, engines=BOTH, output_dir=tmp_path)
    assert [(row.engine, row.batch_size) for row in result.rows] == [
        *(("eager", 1), ("thresher", 1)),
        *(("eager", 4), ("thresher", 4)),
    ]
    for row in result.rows:
        assert row.latency.count == 20
        assert 0 < row.latency.min_ms <= row.latency.p50_ms <= row.latency.p99_ms <= row.latency.max_ms
        assert row.throughput == pytest.approx(row.batch_size / row.latency.mean_ms * 1e3)
        assert row.max_abs_error is not None and row.max_abs_error < 1e-5
        assert row.first_call_ms > 0
    assert all(row.speedup == 1 for row in result.rows if row.engine == "eager")
    folder = tmp_path / "Net"
    data = json.loads((folder / "benchmark.json").read_text())
    assert [row["engine"] for row in data["rows"]] == BOTH * 2
    with (folder / "benchmark.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [float(row["p50_ms"]) for row in table] == [row.latency.p50_ms for row in result.rows]
    assert "Thresher" in (folder / "benchmark.txt").read_text()
    picture = ET.fromstring((folder / "benchmark.svg").read_text())
    assert len(picture.findall(".//{*}rect")) == 1 + 4  # the paper and a bar for each row


def test_nothing_is_written_over(net: Any, tmp_path: Path) -> None:
    result = thresher.benchmark(net, (64,), (1,), 1, 1, engines=["eager"])
    first, second = result.save(tmp_path), result.save(tmp_path)
    assert (first.name, second.name) == ("Net", "Net-2")
    assert (first / "benchmark.json").read_text() == (second / "benchmark.json").read_text()


@pytest.mark.thorough
def test_a_slow_engine_is_seen_to_be_slow(net: Any) -> None:
    x = torch.randn(512, 64)

    def slow(given: Any) -> Any:
        for _ in range(60):
            net(x)
        return net(given)

    fast = thresher.benchmark(net, (64,), (1,), 20, engines=["eager"]).rows[0]
    assert thresher.benchmark(slow, (64,), (1,), 20, engines=["eager"]).rows[0].latency.p50_ms > fast.latency.p50_ms


def test_a_disturbed_measurement_says_so() -> None:
    calls = itertools.count()

    def disturbed(given: Any) -> Any:
        if next(calls) % 20 > 9:
            time.sleep(0.05)
        return given + 1

    result = thresher.benchmark(disturbed, (64,), (1,), 40, engines=["eager"])
    (note,) = [note for note in result.notes if "other programs were at work" in note]
    assert re.match(r"batch 1: the medians of PyTorch eager's rounds go from \d+\.\d+ to \d+\.\d+ ms: ", note)
    assert note in str(result)


def test_memory_is_that_of_the_engine(net: Any) -> None:
    if forget_peak() is not None:
        pytest.skip("the peak of resident memory cannot be reset here")

    def hungry(x: Any) -> Any:
        return x + torch.ones(64, 1 << 20).sum()  # 256 MiB for a moment

    rows = thresher.benchmark(hungry, (64,), (1,), 1, 1, engines=["eager"]).rows
    modest = thresher.benchmark(net, (64,), (1,), 1, 1, engines=["eager"]).rows
    assert rows[0].memory_bytes is not None and modest[0].memory_bytes is not None
    assert 250 << 20 < rows[0].memory_bytes < 400 << 20
    assert modest[0].memory_bytes < 64 << 20


def test_energy_that_cannot_be_read_has_a_reason(net: Any) -> None:
    result = thresher.benchmark(net, (64,), (1,), 1, 1, engines=["eager"])
    known = result.rows[0].joules_per_call is not None
    assert known != any("energy is not known" in note for note in result.notes)


def test_a_wrong_result_is_not_hidden(net: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(engines._Eager):
        name, title = "wrong", "Wrong"

        def prepare(self, model: Any, call: Any, config: Any, threads: int) -> Any:
            run = super().prepare(model, call, config, threads)
            return lambda: run() + 1

    monkeypatch.setitem(engines.ENGINES, "wrong", Wrong())
    rows = thresher.benchmark(net, (64,), (2,), 2, 1, engines=["eager", "wrong"]).rows
    assert rows[1].max_abs_error == pytest.approx(1)
    one, two = np.array([1.0, np.inf]), np.array([1.0, np.nan])
    assert _error([one], [one]) == 0 and math.isnan(_error([one], [two]) or 0)
    assert _error([one], [one, one]) == math.inf and _error([two], [two]) == 0 and _error(None, [one]) is None
    assert '"nan"' in json.dumps(
        thresher.BenchmarkResult(
            "m",
            tuple(
                thresher.BenchmarkRow("eager", 1, rows[0].latency, 1.0, None, 1.0, math.nan, None, None)
                for _ in range(1)
            ),
            {},
            (),
            {},
        ).to_dict(),
        allow_nan=False,
    )


def test_an_engine_that_fails_is_left_out_with_its_reason(net: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(engines.Engine):
        name, title = "broken", "Broken"

        def prepare(self, model: Any, call: Any, config: Any, threads: int) -> Any:
            raise RuntimeError("no such kernel\nand more")

    monkeypatch.setitem(engines.ENGINES, "broken", Broken())
    result = thresher.benchmark(net, (64,), (1,), 1, 1, engines=["eager", "broken"])
    assert [row.engine for row in result.rows] == ["eager"]
    assert result.unavailable == {"broken": "RuntimeError: no such kernel"}
    assert "Broken did not run: RuntimeError: no such kernel" in str(result)


def test_inputs_by_shape_example_position_and_name(net: Any) -> None:
    (x,), named = call_at((3, 5), 2, net)
    assert x.shape == (2, 3, 5) and x.dtype == torch.float32 and not named
    (again,), _ = call_at((3, 5), 2, net)
    assert torch.equal(x, again)
    (a, b), _ = call_at([(3,), torch.tensor([[1, 2], [3, 4]])], 3, net.double())
    assert a.dtype == torch.float64 and b.tolist() == [[1, 2], [3, 4], [1, 2]]
    args, named = call_at({"ids": torch.arange(4)[None]}, 2, None)
    assert args == () and named["ids"].tolist() == [[0, 1, 2, 3]] * 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input_shapes": (0, 3)}, r"input_shapes: expected sizes of at least 1 such as \(3, 224, 224\).*got 0"),
        ({"input_shapes": "64"}, "input_shapes: expected a shape, a sequence or a mapping"),
        ({"input_shapes": torch.tensor(1)}, "expected an example with rows"),
        ({"batch_sizes": (1, 1)}, "batch_sizes: expected different integers"),
        ({"batch_sizes": ()}, "batch_sizes: expected different integers"),
        ({"num_iterations": 0}, "num_iterations: expected an integer of at least 1, got 0"),
        ({"warmup_iterations": True}, "warmup_iterations: expected an integer of at least 1, got True"),
        ({"engines": ["eager", "tensorflow"]}, "engines: expected a list of eager, thresher"),
        ({"engines": "eager"}, "engines: expected a list of eager, thresher"),
        ({"model": 3}, "model: expected a torch.nn.Module or a function, got 3"),
    ],
)
def test_bad_arguments(net: Any, change: dict[str, Any], message: str) -> None:
    arguments = {"model": net, "input_shapes": (64,), "batch_sizes": (1,), "num_iterations": 1, **change}
    with pytest.raises(ValueError, match=message):
        thresher.benchmark(**arguments)


def test_a_model_in_training_mode_is_refused(net: Any) -> None:
    with pytest.raises(ValueError, match=r"got one in training mode; call model\.eval\(\) first"):
        thresher.benchmark(net.train(), (64,))


def test_a_missing_engine_that_was_asked_for_is_an_error(net: Any) -> None:
    if engines.ENGINES["zentorch"].obstacle() is None:
        pytest.skip("zentorch is installed")
    with pytest.raises(thresher.UnavailableError, match="zentorch is not available: expected zentorch"):
        thresher.benchmark(net, (64,), engines=["eager", "zentorch"])


def test_a_wrong_shape_is_the_models_own_error(net: Any) -> None:
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        thresher.benchmark(net, (63,), (1,), 1, 1, engines=["eager"])


# ---- profile ----


def test_a_profile_is_a_folder_that_is_never_written_over(net: Any, tmp_path: Path) -> None:
    x = torch.randn(8, 64)
    first = thresher.profile(net, x, tmp_path)
    second = thresher.profile(net, {"x": x}, tmp_path, num_iterations=5)
    assert (first.name, second.name) == ("Net", "Net-2")
    names = {"layers.csv", "operators.txt", "report.html", "report.json", "trace.thrtrace"}
    for folder, calls in ((first, 20), (second, 5)):
        assert {path.name for path in folder.iterdir()} == names
        run = thresher.PerformanceProfiler(folder)
        assert {row["name"]: row["count"] for row in run.operators()}["linear"] == 2 * calls
        with (folder / "layers.csv").open() as file:
            layers = {row["name"]: int(row["total_ns"]) for row in csv.DictReader(file)}
        assert {"first", "second"} <= layers.keys() and min(layers.values()) > 0
    assert (first / "report.html").read_text().startswith("<!doctype html>")
    assert not profiler.is_enabled()


def test_a_compiled_model_and_a_function_are_profiled_as_they_are(net: Any, tmp_path: Path) -> None:
    compiled = thresher.compile(net)
    folder = thresher.profile(compiled, (torch.randn(8, 64),), tmp_path)
    assert folder.name == "Net"

    def twice(x: Any) -> Any:
        return compiled(x) + compiled(x)

    again = thresher.profile(twice, torch.randn(8, 64), tmp_path, num_iterations=3)
    assert again.name == "twice"
    rows = {row["name"]: row["count"] for row in thresher.PerformanceProfiler(again).operators()}
    assert rows["linear"] == 3 * 2 * 2


def test_a_model_that_pytorch_runs_is_a_warning(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="the engine ran no operator of cumulate"):
        thresher.profile(_cumulate, torch.randn(3, 4), tmp_path)


def _cumulate(x: Any) -> Any:
    return torch.cumprod(x, 0)


_cumulate.__name__ = "cumulate"


def test_bad_profiles(net: Any, tmp_path: Path) -> None:
    x = torch.randn(8, 64)
    with pytest.raises(ValueError, match="num_iterations: expected an integer of at least 1, got 0"):
        thresher.profile(net, x, tmp_path, num_iterations=0)
    with pytest.raises(ValueError, match="model: expected something to call, got 'net'"):
        thresher.profile("net", x, tmp_path)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="config: expected None for what is compiled already"):
        thresher.profile(lambda x: x, x, tmp_path, config=thresher.CompilerConfig())
    profiler.start(trace=True)
    try:
        with pytest.raises(ValueError, match="expected no running trace, got one"):
            thresher.profile(net, x, tmp_path)
    finally:
        profiler.stop()
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="file: expected a folder to write into"):
        thresher.profile(net, x, tmp_path / "file")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_full_disk_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    # In a process of its own: a trace names all plans there have been, and is to fit.
    code = f"""
import torch, thresher
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 16)).eval()
{limit_file_size(65536)}
try:
    thresher.profile(model, torch.randn(8, 64), {str(tmp_path)!r})
except thresher.profiler.export.OutputError as error:
    print(error)
"""
    (message,) = lines_of(run_with_torch(code))
    assert re.search(r"report\.html: expected a file that can be written, .*make room", message)
    # What was written stays, and can be read.
    assert thresher.PerformanceProfiler(tmp_path / "Sequential").operators()
    assert not (tmp_path / "Sequential" / "report.html").exists()


# ---- bottlenecks ----


def test_bottlenecks_come_from_findings_and_operators(net: Any, tmp_path: Path) -> None:
    folder = thresher.profile(net, torch.randn(64, 64), tmp_path, warmup_iterations=0)
    run = thresher.PerformanceProfiler(folder)
    found = run.find_bottlenecks()
    assert any("compiled" in one.title for one in found), "the first call compiled the model"
    linear = next(one for one in found if one.operator == "linear" and one.share is not None)
    rows = {row["name"]: row["self_ns"] for row in run.operators()}
    assert linear.share == pytest.approx(100 * rows["linear"] / sum(rows.values()))
    assert linear.title == f"linear takes {linear.share:.0f} %"
    assert len(run.find_bottlenecks(limit=1)) == 1
    assert "linear takes" in run.summary()
    trace = thresher.PerformanceProfiler(folder / "trace.thrtrace")
    assert {row["name"]: row["count"] for row in trace.operators()} == {
        row["name"]: row["count"] for row in run.operators()
    }


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"expected report\.json or trace\.thrtrace in the folder, got neither"):
        thresher.PerformanceProfiler(tmp_path)
    (tmp_path / "report.json").write_text("{}")
    with pytest.raises(ValueError, match="expected"):
        thresher.PerformanceProfiler(tmp_path)
    with pytest.raises(OSError, match="nowhere"):
        thresher.PerformanceProfiler(tmp_path / "nowhere")


# ---- memory ----


def test_memory_of_a_block(net: Any) -> None:
    thresher.clear_cache()
    compiled = thresher.compile(net)
    watch = thresher.MemoryProfiler()
    with pytest.raises(ValueError, match="expected a block that has ended, got none"):
        watch.report()
    with torch.no_grad(), watch:
        compiled(torch.randn(8, 64))
        kept = torch.ones(64, 1 << 18)  # 64 MiB of PyTorch's
    report = watch.report()
    weights = 4 * (64 * 128 + 128 * 16)
    assert report.engine_peak >= report.engine_after >= report.engine_before + weights
    assert dict(report.held)["packed weights"] >= weights
    if report.resident_peak is not None and report.resident_before is not None:
        assert report.resident_peak >= report.resident_before + kept.nbytes
    assert "whole process" in str(report)


def test_memory_and_a_running_trace(net: Any) -> None:
    profiler.start(trace=True)
    try:
        with pytest.raises(ValueError, match="expected no running trace, got one"), thresher.MemoryProfiler():
            pass
    finally:
        profiler.stop()


def test_a_report_after_an_error_is_of_what_came_before() -> None:
    watch = thresher.MemoryProfiler()
    with pytest.raises(KeyError), watch:
        raise KeyError
    assert watch.report().engine_after >= 0
    assert not profiler.is_enabled()


# ---- helpers ----


def test_resident_memory_grows_with_what_is_used() -> None:
    before = resident_bytes()
    if before is None or forget_peak() is not None:
        pytest.skip("this system does not count resident memory")
    # Not malloc's, which may have that much to spare in a process of many tests.
    with mmap.mmap(-1, 128 << 20) as block:
        for at in range(0, len(block), mmap.PAGESIZE):
            block[at] = 1
        grown = resident_bytes()
        assert grown is not None and grown - before > 100 << 20
    peak, now = resident_bytes(peak=True), resident_bytes()
    assert peak is not None and now is not None and peak - now > 100 << 20


def test_names_of_folders(tmp_path: Path) -> None:
    assert new_folder(tmp_path / "a", "my model/../x").name == "my_model_.._x"
    assert new_folder(tmp_path, "...").name == "model"

"""Whether the trace of PyTorch's profiler is right where it shows the engine."""

from __future__ import annotations

import itertools
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from kineto_trace import KinetoTrace, require_shim
from torch import nn
from torch.profiler import ProfilerActivity, record_function
from torch.profiler import profile as torch_profile

import thresher.torch_profiler as torch_profiler

require_shim()

BOTH = (ProfilerActivity.CPU, ProfilerActivity.PrivateUse1)
SLACK_US = 0.002  # files have three digits after the point


class Mixed(nn.Module):
    """A model of which a part runs in PyTorch: the engine has no fft."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Sequential(nn.Linear(64, 64), nn.GELU())
        self.after = nn.Linear(64, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.before(x)
        x = torch.fft.fft(x).real
        return torch.softmax(self.after(x), -1)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> KinetoTrace:
    """A profile of a mixed model: two named steps of three calls, and two more threads."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = torch.compile(Mixed().eval(), backend="thresher")
    x = torch.randn(4, 64)

    def run(count: int) -> None:
        with torch.no_grad():
            for _ in range(count):
                model(x)

    run(1)
    everywhere = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    with torch_profile(activities=BOTH, record_shapes=True, experimental_config=everywhere) as prof:
        for name in ("step a", "step b"):
            with record_function(name):
                run(3)
        together = threading.Barrier(2)
        threads = [threading.Thread(target=lambda: (run(5), together.wait())) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    path = tmp_path_factory.mktemp("trace") / "t.json"
    prof.export_chrome_trace(str(path))
    torch._dynamo.reset()
    return KinetoTrace(path)


def test_counts(trace: KinetoTrace) -> None:
    found = torch_profiler.last_session()
    assert found is not None
    assert found.kernels + found.copies == len(trace.device) > 0
    assert found.runtime == len(trace.runtime)
    assert (found.dropped, found.unlinked, found.out_of_window, found.before_launch) == (0, 0, 0, 0)
    assert trace.content["thresher_dropped"] == 0


def test_every_kernel_has_one_launch_and_starts_not_before_it(trace: KinetoTrace) -> None:
    for event in trace.device:
        assert event["ts"] >= trace.launch_of(event)["ts"] - SLACK_US


def test_every_kernel_lies_in_the_window(trace: KinetoTrace) -> None:
    found = torch_profiler.last_session()
    assert found is not None
    base = trace.content["baseTimeNanoseconds"]
    for event in (*trace.device, *trace.runtime):
        assert (found.start_ns - base) / 1e3 - SLACK_US <= event["ts"]
        assert event["ts"] + event["dur"] <= (found.stop_ns - base) / 1e3 + SLACK_US


def test_every_kernel_belongs_to_an_operator_that_surrounds_its_launch(trace: KinetoTrace) -> None:
    for event in trace.device:
        operator, launch = trace.operator_of(event), trace.launch_of(event)
        assert operator is not None, event
        assert operator["name"].startswith("thresher::graph_")
        assert operator["tid"] == launch["tid"]
        # PyTorch's clock and the engine's are matched to within a microsecond.
        assert operator["ts"] - 1 <= launch["ts"]
        assert launch["ts"] + launch["dur"] <= operator["ts"] + operator["dur"] + 1


def test_both_parts_of_the_model_are_there(trace: KinetoTrace) -> None:
    operators = [event["name"] for event in trace.host if event["cat"] == "cpu_op"]
    graphs = {name for name in operators if name.startswith("thresher::")}
    assert len(graphs) == 2
    assert "aten::_fft_r2c" in operators or "aten::fft_fft" in operators


def test_kernels_of_a_stream_do_not_overlap(trace: KinetoTrace) -> None:
    streams = trace.streams()
    assert len(streams) == 3, "one for each thread"
    for events in streams.values():
        for one, next_one in itertools.pairwise(events):
            assert one["ts"] + one["dur"] <= next_one["ts"] + SLACK_US


def test_kernel_times_of_a_stream_fit_into_the_wall_clock(trace: KinetoTrace) -> None:
    for events in trace.streams().values():
        wall = events[-1]["ts"] + events[-1]["dur"] - events[0]["ts"]
        assert sum(event["dur"] for event in events) <= wall + SLACK_US * len(events)


def test_arrows_lead_from_launch_to_kernel(trace: KinetoTrace) -> None:
    starts = {event["id"]: event for event in trace.events if event.get("cat") == "ac2g" and event["ph"] == "s"}
    ends = {event["id"]: event for event in trace.events if event.get("cat") == "ac2g" and event["ph"] == "f"}
    assert starts.keys() == ends.keys() == {event["args"]["correlation"] for event in trace.device}
    for event in trace.device:
        end, start = ends[event["args"]["correlation"]], starts[event["args"]["correlation"]]
        assert (end["pid"], end["tid"], end["ts"]) == (event["pid"], event["tid"], event["ts"])
        launch = trace.launch_of(event)
        assert (start["pid"], start["tid"], start["ts"]) == (launch["pid"], launch["tid"], launch["ts"])


def test_fields_that_readers_look_for(trace: KinetoTrace) -> None:
    for event in trace.device:
        wanted = {"device", "stream", "correlation", "External id", "queued", "submitted", "shapes", "dtypes"}
        assert wanted <= event["args"].keys(), event
        assert event["args"]["device"] == event["pid"] == 0
        assert event["args"]["stream"] == event["tid"]
        start_ns = trace.content["baseTimeNanoseconds"] + event["ts"] * 1e3
        assert event["args"]["queued"] <= event["args"]["submitted"] <= start_ns + 1e3
    linears = [event for event in trace.device if event["name"].startswith("linear")]
    assert linears
    for event in linears:
        assert event["args"]["flops"] > 2 * 4 * 64 * 16 - 1
        assert event["args"]["bytes"] > 0
        assert event["args"]["module"] in ("before.0", "after")
        assert Path(event["args"]["source"].split(":")[0]).name in (Path(__file__).name, "linear.py")
    for event in trace.device:
        if event["cat"] != "kernel":
            assert "memory bandwidth (GB/s)" in event["args"]


def test_device_and_streams_have_names(trace: KinetoTrace) -> None:
    assert trace.metadata("process_name")[(0, 0)] == "thresher"
    assert trace.metadata("process_labels")[(0, 0)] == "thresher:0"
    threads = trace.metadata("thread_name")
    for stream in trace.streams():
        assert threads[(0, stream)] == f"stream {stream}"
    host = trace.metadata("process_sort_index")[(os.getpid(), 0)]
    assert trace.metadata("process_sort_index")[(0, 0)] > host, "hardware below the threads"


def test_device_properties(trace: KinetoTrace) -> None:
    (properties,) = trace.content["deviceProperties"]
    assert (properties["id"], properties["name"]) == (0, "thresher:0")
    assert {"engine_version", "isa", "cpu", "num_threads"} <= properties.keys()


def test_bars_hold_the_kernels_of_their_annotation(trace: KinetoTrace) -> None:
    assert sorted(bar["name"] for bar in trace.bars) == ["step a", "step b"]
    for bar in trace.bars:
        annotation = next(event for event in trace.host if event["name"] == bar["name"])
        assert annotation["ts"] - 1 <= bar["ts"]
        assert bar["ts"] + bar["dur"] <= annotation["ts"] + annotation["dur"] + 1


def test_totals_equal_the_operator_report(compiler: Any) -> None:
    import thresher

    model = torch.compile(Mixed().eval(), backend="thresher")
    x = torch.randn(4, 64)
    with torch.no_grad():
        model(x)
        with thresher.profiler.profile() as ours, torch_profile(activities=BOTH) as prof:
            for _ in range(20):
                model(x)
    graphs = [entry for entry in prof.key_averages() if entry.key.startswith("thresher::graph_")]
    device_us = sum(entry.self_device_time_total for entry in graphs)
    elsewhere = ("outputs", "PyTorch operators")  # PyTorch's memory and operators: no kernels of the engine
    rows = [row for row in ours.report.rows if row.opname not in elsewhere]
    report_us = sum(row.total_ns for row in rows) / 1e3
    assert device_us == pytest.approx(report_us, rel=0.01)

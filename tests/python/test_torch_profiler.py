"""Everything that PyTorch's profiler offers, with the engine's rows in it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from kineto_trace import KinetoTrace, require_shim
from torch import nn
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, record_function, schedule, tensorboard_trace_handler
from torch.profiler import profile as torch_profile

import thresher.torch_profiler as torch_profiler

require_shim()

BOTH = (ProfilerActivity.CPU, ProfilerActivity.PrivateUse1)


class Branches(nn.Module):
    """Two linears under names of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 128)
        self.second = nn.Linear(128, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.nn.functional.gelu(self.first(x)))


@pytest.fixture
def model(compiler: Any) -> Iterator[Any]:
    """A compiled model that has run once."""
    compiled = torch.compile(Branches().eval(), backend="thresher")
    with torch.no_grad():
        compiled(torch.randn(8, 64))
        yield compiled


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(8, 64)


def on_device(events: Any) -> list[Any]:
    return [event for event in events if event.device_type == DeviceType.PrivateUse1]


def row(prof: Any, name: str, **grouping: Any) -> Any:
    found = [
        entry for entry in prof.key_averages(**grouping) if entry.key == name and entry.device_type == DeviceType.CPU
    ]
    assert len(found) == 1, (name, [entry.key for entry in prof.key_averages(**grouping)])
    return found[0]


def graph_rows(prof: Any, **grouping: Any) -> list[Any]:
    return [entry for entry in prof.key_averages(**grouping) if entry.key.startswith("thresher::graph_")]


def session() -> torch_profiler.Session:
    found = torch_profiler.last_session()
    assert found is not None
    return found


def assert_sound() -> None:
    found = session()
    assert found.error == ""
    assert found.finished
    assert (found.dropped, found.unlinked, found.out_of_window, found.before_launch) == (0, 0, 0, 0), found


def test_connected() -> None:
    status = torch_profiler.status()
    assert status.connected, status.reason
    assert torch._C._get_privateuse1_backend_name() == "thresher"


def test_context(model: Any, x: torch.Tensor) -> None:
    with torch_profile(activities=BOTH) as prof:
        for _ in range(3):
            model(x)
    assert_sound()
    assert session().kernels + session().copies == len(on_device(prof.events())) > 0
    table = prof.key_averages().table(sort_by="self_device_time_total")
    for column in (
        "Self THRESHER",
        "Self THRESHER %",
        "THRESHER total",
        "THRESHER time avg",
        "Self THRESHER time total",
    ):
        assert column in table
    (graph,) = graph_rows(prof)
    assert graph.count == 3


def test_start_and_stop(model: Any, x: torch.Tensor) -> None:
    prof = torch_profile(activities=BOTH)
    prof.start()
    model(x)
    prof.stop()
    model(x)
    assert_sound()
    (graph,) = graph_rows(prof)
    assert graph.count == 1


def test_many_sessions(model: Any, x: torch.Tensor) -> None:
    first = session().number if torch_profiler.last_session() else 0
    counts = set()
    for i in range(20):
        with torch_profile(activities=BOTH):
            model(x)
        assert_sound()
        assert session().number == first + i + 1
        counts.add(session().kernels)
    assert len(counts) == 1, "each session sees its own kernels and no others"


def test_profile_fills_in_the_activities(model: Any, x: torch.Tensor) -> None:
    with torch_profiler.profile(record_shapes=True) as prof:
        model(x)
    assert on_device(prof.events())
    with torch_profiler.profile(activities=[ProfilerActivity.CPU]) as prof:
        model(x)
    assert not on_device(prof.events())


def test_without_our_activity_nothing_is_recorded(model: Any, x: torch.Tensor) -> None:
    with torch_profile(activities=BOTH):
        model(x)
    number = session().number
    with torch_profile(activities=[ProfilerActivity.CPU]) as prof:
        model(x)
    assert session().number == number
    assert not graph_rows(prof), "no operator of ours without a session of ours"


def test_device_time_belongs_to_what_launched_it(model: Any, x: torch.Tensor) -> None:
    with torch_profile(activities=BOTH) as prof, record_function("my step"):
        model(x)
        model(x)
    kernels = sum(event.time_range.elapsed_us() for event in on_device(prof.events()) if not event.is_user_annotation)
    (graph,) = graph_rows(prof)
    assert graph.self_device_time_total == pytest.approx(kernels, rel=1e-6)
    assert row(prof, "my step").device_time_total == pytest.approx(kernels, rel=1e-6)
    assert row(prof, "my step").self_device_time_total == 0


def test_record_function_has_a_bar_on_the_device(model: Any, x: torch.Tensor, tmp_path: Path) -> None:
    with torch_profile(activities=BOTH) as prof:
        for name in ("one", "two"):
            with record_function(name):
                model(x)
    assert_sound()
    assert session().annotations == 2
    prof.export_chrome_trace(str(tmp_path / "t.json"))
    trace = KinetoTrace(tmp_path / "t.json")
    assert [bar["name"] for bar in trace.bars] == ["one", "two"]
    for bar in trace.bars:
        inside = [
            e for e in trace.device if bar["ts"] <= e["ts"] and e["ts"] + e["dur"] <= bar["ts"] + bar["dur"] + 2e-3
        ]
        assert len(inside) == len(trace.device) / 2


def test_record_shapes(model: Any, x: torch.Tensor) -> None:
    with torch_profile(activities=BOTH, record_shapes=True) as prof:
        model(x)
    (graph,) = graph_rows(prof, group_by_input_shape=True)
    assert graph.input_shapes == [[8, 64]]
    assert graph.self_device_time_total > 0


def test_with_stack(model: Any, x: torch.Tensor) -> None:
    verbose = torch._C._profiler._ExperimentalConfig(verbose=True)  # without it PyTorch keeps stacks to its files
    with torch_profile(activities=BOTH, with_stack=True, experimental_config=verbose) as prof:
        model(x)
    assert_sound()
    (graph,) = graph_rows(prof, group_by_stack_n=30)
    assert any(Path(__file__).name in frame for frame in graph.stack), graph.stack


def test_profile_memory(compiler: Any, x: torch.Tensor) -> None:
    compiled = torch.compile(Branches().eval(), backend="thresher")
    with torch.no_grad(), torch_profile(activities=BOTH, profile_memory=True) as prof:
        compiled(x)  # plans and packed weights are made here
    assert session().error == ""
    assert session().memory > 0
    assert "THRESHER Mem" in prof.key_averages().table()
    changes = [e for e in prof.profiler.kineto_results.events() if e.name() == "[memory]"]
    ours = [e for e in changes if e.device_type() == DeviceType.PrivateUse1]
    assert len(ours) == session().memory
    assert sum(e.nbytes() for e in ours) >= 64 * 128 * 4, "the first weight, packed"


def test_with_modules(model: Any, x: torch.Tensor, tmp_path: Path) -> None:
    with torch_profile(activities=BOTH, with_modules=True, with_stack=True) as prof:
        model(x)
    assert_sound()
    prof.export_chrome_trace(str(tmp_path / "t.json"))
    modules = {event["args"].get("module") for event in KinetoTrace(tmp_path / "t.json").device}
    assert {"first", "second"} <= modules


def test_schedule_writes_one_trace_per_cycle(model: Any, x: torch.Tensor, tmp_path: Path) -> None:
    sound = []

    def handle(prof: Any) -> None:
        tensorboard_trace_handler(str(tmp_path))(prof)
        sound.append(session())

    with torch_profile(
        activities=BOTH, schedule=schedule(wait=1, warmup=1, active=2, repeat=2), on_trace_ready=handle
    ) as prof:
        for _ in range(8):
            model(x)
            prof.step()
    files = sorted(tmp_path.glob("*.pt.trace.json"))
    assert len(files) == 2
    steps = [KinetoTrace(file).names("user_annotation") for file in files]
    assert sorted(map(sorted, steps)) == [["ProfilerStep#2", "ProfilerStep#3"], ["ProfilerStep#6", "ProfilerStep#7"]]
    for file in files:
        trace = KinetoTrace(file)
        assert {trace.operator_of(event)["name"].startswith("thresher::") for event in trace.device} == {True}
        assert {bar["name"] for bar in trace.bars} == trace.names("user_annotation")
    assert [(s.dropped, s.unlinked, s.out_of_window, s.before_launch) for s in sound] == [(0, 0, 0, 0)] * 2


def test_on_trace_ready_is_called_once(model: Any, x: torch.Tensor) -> None:
    seen = []
    with torch_profile(activities=BOTH, on_trace_ready=lambda prof: seen.append(len(on_device(prof.events())))):
        model(x)
    assert len(seen) == 1 and seen[0] > 0


def test_export_compressed(model: Any, x: torch.Tensor, tmp_path: Path) -> None:
    with torch_profile(activities=BOTH) as prof:
        model(x)
    prof.export_chrome_trace(str(tmp_path / "t.json.gz"))
    assert KinetoTrace(tmp_path / "t.json.gz").device


def test_backward(compiler: Any, x: torch.Tensor) -> None:
    compiled = torch.compile(Branches(), backend="thresher")
    compiled(x).sum().backward()
    with torch_profile(activities=BOTH) as prof:
        loss = compiled(x).sum()
        with record_function("backward"):
            loss.backward()
    assert_sound()
    assert len(graph_rows(prof)) == 2, "one graph forward, one backward"
    assert row(prof, "backward").count == 1


def test_several_threads(model: Any, x: torch.Tensor, tmp_path: Path) -> None:
    everywhere = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    with torch_profile(activities=BOTH, experimental_config=everywhere) as prof:
        model(x)
        together = threading.Barrier(3)  # a thread that ended leaves its stream to the next one

        def work() -> None:
            _run(model, x)
            _run(model, x)
            together.wait()

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert_sound()
    prof.export_chrome_trace(str(tmp_path / "t.json"))
    trace = KinetoTrace(tmp_path / "t.json")
    assert len(trace.streams()) == 4, "each thread has its own stream"
    for events in trace.streams().values():
        assert len({trace.launch_of(event)["tid"] for event in events}) == 1


def _run(model: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model(x)


def test_threads_that_pytorch_does_not_profile_are_counted(model: Any, x: torch.Tensor) -> None:
    with torch_profile(activities=BOTH):
        thread = threading.Thread(target=_run, args=(model, x))
        thread.start()
        thread.join()
    found = session()
    assert found.unlinked == found.kernels + found.copies > 0
    assert (found.dropped, found.out_of_window, found.before_launch) == (0, 0, 0)


def test_exception_in_the_body_leaves_nothing_behind(model: Any, x: torch.Tensor) -> None:
    with pytest.raises(ZeroDivisionError), torch_profile(activities=BOTH) as failed, record_function("failing"):
        model(x)
        raise ZeroDivisionError
    assert on_device(failed.events())
    with torch_profile(activities=BOTH) as prof:
        model(x)
    assert_sound()
    assert not [event for event in prof.events() if event.name == "failing"]


def test_a_session_inside_an_open_range(model: Any, x: torch.Tensor) -> None:
    with record_function("open before"):
        with torch_profile(activities=BOTH) as prof:
            model(x)
        assert_sound()
    assert len(graph_rows(prof)) == 1
    with torch_profile(activities=BOTH):
        model(x)
    assert_sound()


def test_only_our_activity(model: Any, x: torch.Tensor) -> None:
    with torch_profile(activities=[ProfilerActivity.PrivateUse1]) as prof:
        model(x)
    assert on_device(prof.events())
    found = session()
    assert found.unlinked == found.kernels + found.copies, "there is no operator to link to"


def test_all_activities(model: Any, x: torch.Tensor) -> None:
    with torch_profile() as prof:
        model(x)
    assert on_device(prof.events())
    assert_sound()


def test_starting_twice(model: Any, x: torch.Tensor) -> None:
    """PyTorch gives up the first session for the second one; so do we."""
    first, second = torch_profile(activities=BOTH), torch_profile(activities=BOTH)
    first.start()
    model(x)
    second.start()
    model(x)
    second.stop()
    assert_sound()
    assert session().kernels + session().copies == len(on_device(second.events()))
    first.stop()
    with torch_profile(activities=BOTH) as prof:
        model(x)
    assert_sound()
    assert len(on_device(prof.events())) == len(on_device(second.events()))


def test_stop_without_start(model: Any, x: torch.Tensor) -> None:
    with pytest.raises(AssertionError, match="must be initialized"):
        torch_profile(activities=BOTH).stop()
    with torch_profile(activities=BOTH):
        model(x)
    assert_sound()


def test_legacy_profiler(model: Any, x: torch.Tensor) -> None:
    with torch.autograd.profiler.profile(use_device="thresher") as prof:
        model(x)
        torch.relu(x)
    (relu,) = (event for event in prof.function_events if event.name == "aten::relu")
    assert relu.device_time_total > 0


def test_execution_trace_beside_it(model: Any, x: torch.Tensor, tmp_path: Path) -> None:
    observer = torch.profiler.ExecutionTraceObserver().register_callback(str(tmp_path / "et.json"))
    with torch_profile(activities=BOTH, execution_trace_observer=observer):
        model(x)
    assert_sound()
    nodes = json.loads((tmp_path / "et.json").read_text())["nodes"]
    assert any(node["name"].startswith("thresher::") for node in nodes)


class TestPyTorchWithTheNamedBackend:
    """A named backend is asked first wherever PyTorch looks for an accelerator: it must answer that there is none."""

    def test_accelerator(self) -> None:
        assert not torch.accelerator.is_available()
        assert torch.accelerator.device_count() == 0

    def test_pinned_memory_says_what_is_missing(self) -> None:
        with pytest.raises(RuntimeError, match="expected an accelerator, got none"):
            torch.zeros(2).pin_memory()

    @pytest.mark.filterwarnings("ignore:.*pin_memory.*")
    def test_data_loader(self) -> None:
        loader = torch.utils.data.DataLoader(list(range(4)), batch_size=2, pin_memory=True)
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]

    def test_checkpoint_and_compile(self) -> None:
        linear, x = nn.Linear(3, 3), torch.randn(2, 3, requires_grad=True)
        torch.utils.checkpoint.checkpoint(linear, x, use_reentrant=False).sum().backward()
        torch.compile(linear, backend="aot_eager")(x).sum().backward()
        assert x.grad is not None

    def test_random_numbers(self) -> None:
        torch.manual_seed(3)
        state = torch.get_rng_state()
        a = torch.rand(2)
        torch.set_rng_state(state)
        assert torch.equal(a, torch.rand(2))

    def test_autocast_and_saving(self, tmp_path: Path) -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = nn.Linear(3, 3)(torch.randn(2, 3))
        torch.save(out, tmp_path / "t.pt")
        # PyTorch's own saving is what is tested; nothing but tensors is read.
        assert torch.equal(torch.load(tmp_path / "t.pt", weights_only=True), out)  # noqa: TID251

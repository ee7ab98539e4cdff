"""The memory of results: an earlier one's where the program has dropped that one with all that shows it, else never."""

from __future__ import annotations

import copy
import io
import multiprocessing
import os
import resource
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from processes import run_with_torch

torch = pytest.importorskip("torch")

import thresher  # noqa: E402
from thresher import _engine  # noqa: E402
from thresher.torch_shim import library, tensors  # noqa: E402

ROWS, COLUMNS = 512, 1024  # 2 MiB a result


@pytest.fixture(autouse=True)
def memory() -> Iterator[None]:
    try:
        library.find(torch.__version__, cxx11_abi=torch._C._GLIBCXX_USE_CXX11_ABI)
    except library.ShimError as error:
        pytest.skip(str(error))
    _engine.forget_results()
    yield
    _engine.forget_results()


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(3)
    compiled = thresher.compile(torch.nn.Linear(16, COLUMNS).eval(), config=thresher.CompilerConfig(fallback="error"))
    with torch.no_grad():
        for _ in range(3):
            compiled(torch.zeros(ROWS, 16))
    return compiled


def call(model: Any, number: float) -> Any:
    with torch.no_grad():
        return model(torch.full((ROWS, 16), number))


def test_a_dropped_results_memory_is_the_next_ones(model: Any) -> None:
    before = _engine.kept_results()
    places = set()
    for i in range(10):
        result = call(model, float(i))
        places.add(result.data_ptr())
        del result
    after = _engine.kept_results()
    assert len(places) == 1
    assert after["taken"] - before["taken"] == 10 and after["again"] - before["again"] == 9
    assert after["blocks"] == 1 and ROWS * COLUMNS * 4 <= after["bytes"] <= ROWS * COLUMNS * 4 + 8192
    thresher.clear_cache()
    assert _engine.kept_results()["bytes"] == 0


HOLDERS: dict[str, Callable[[Any], Any]] = {
    "itself": lambda result: result,
    "a view": lambda result: result[3:, 5:],
    "a transposed view": lambda result: result.t().detach(),
    "an array": lambda result: result.numpy(),
    "its storage": lambda result: result.untyped_storage(),
    "dlpack": lambda result: torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(result)),
    "a list": lambda result: [{"x": result}],
    "a parameter": lambda result: torch.nn.Parameter(result),
    "its data": lambda result: result.data,
    "a buffer": lambda result: memoryview(result.numpy()),
    "what autograd saved": lambda result: torch.ones_like(result).requires_grad_(True) * result,
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_a_result_that_something_shows_is_nobody_elses(model: Any, holder: str) -> None:
    result = call(model, 1.0)
    place, expected = result.data_ptr(), result.clone()
    held = HOLDERS[holder](result)
    shown = torch.from_numpy(result.numpy())  # shows the memory when everything else is gone
    del result
    others = [call(model, float(i)) for i in range(2, 8)]
    assert place not in {other.data_ptr() for other in others}
    assert torch.equal(shown, expected)
    del shown, others
    for i in range(2, 8):
        assert call(model, float(i)).data_ptr() != place
    del held
    found = {call(model, 9.0).data_ptr() for _ in range(3)}
    held = [call(model, 9.0) for _ in range(9)]
    assert place in found | {one.data_ptr() for one in held}


def test_results_of_several_calls_are_right_while_some_are_held(model: Any) -> None:
    expected = {i: call(model, i / 3).clone() for i in range(8)}
    held: dict[int, Any] = {}
    for turn in range(200):
        i = turn * 5 % 8
        held[i] = call(model, i / 3)
        if turn % 3 == 0:
            held.pop(turn % 8, None)
        assert all(torch.equal(one, expected[j]) for j, one in held.items())


def test_results_of_several_threads_are_right(model: Any) -> None:
    expected = {i: call(model, i / 3).clone() for i in range(8)}
    wrong: list[int] = []

    def work(first: int) -> None:
        kept: list[tuple[int, Any]] = []
        for turn in range(60):
            i = (first + turn) % 8
            kept = [*kept[-2:], (i, call(model, i / 3))]
            wrong.extend(j for j, one in kept if not torch.equal(one, expected[j]))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_what_programs_do_with_results_works(model: Any) -> None:
    expected = call(model, 1.0).clone()
    result = call(model, 1.0)
    assert torch.equal(copy.deepcopy(result), expected)
    file = io.BytesIO()
    torch.save(result, file)
    file.seek(0)
    assert torch.equal(torch.load(file), expected)
    result.resize_(ROWS * 2, COLUMNS)
    assert torch.equal(result[:ROWS], expected)
    result[ROWS:] = 1.0
    result = call(model, 1.0)
    result.share_memory_()
    assert result.is_shared() and torch.equal(result, expected)
    result = call(model, 1.0)
    result.set_(torch.zeros(4))
    with torch.inference_mode():
        inference = model(torch.full((ROWS, 16), 1.0))
    assert inference.is_inference() and torch.equal(inference, expected)
    assert not call(model, 1.0).is_inference()


def test_conv_takes_no_new_memory_for_every_result() -> None:
    size = 200  # 40 MiB a result, which glibc never keeps
    x, w = torch.ones(1, size, size, 4), torch.ones(256, 1, 1, 4)
    for _ in range(3):
        thresher.conv(x, w, shared_layout="NHWC")
    pages = size * size * 256 * 4 // resource.getpagesize()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        thresher.conv(x, w, shared_layout="NHWC")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < pages


def test_the_memory_profile_counts_results(model: Any) -> None:
    call(model, 1.0)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        x = torch.full((ROWS, 16), 1.0)
        with torch.no_grad():
            result = model(x)
            del result
    size = ROWS * COLUMNS * 4
    changes = [event.nbytes() for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    assert changes.count(size) == 1 and changes.count(-size) == 1


def test_modes_see_the_operator_that_makes_results(model: Any) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(operator))
            return operator(*args, **(kwargs or {}))

    like = torch.zeros(ROWS, COLUMNS)
    before = _engine.kept_results()["taken"]
    with Watching():
        made, _ = tensors.empty(tensors.places([like]))
    assert made[0].shape == like.shape and any("aten.empty" in name for name in seen)
    assert _engine.kept_results()["taken"] == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_of_fork_has_results_of_its_own(model: Any) -> None:
    like = tensors.places([torch.zeros(ROWS, COLUMNS)])
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            tensors.empty(like)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(10):
            child = multiprocessing.get_context("fork").Process(target=_take, args=(like,))
            child.start()
            child.join(300)
            assert child.exitcode == 0
    finally:
        stop.set()
        thread.join()


def _take(like: bytes) -> None:
    """Nothing that uses OpenMP, which does not survive a fork."""
    for _ in range(10):
        made, _ = tensors.empty(like)
        made[0][0, 0] = 1.0


PROGRAM = """
import torch, thresher
from thresher import _engine
model = thresher.compile(torch.nn.Linear(16, 1024).eval())
with torch.no_grad():
    for _ in range(4):
        model(torch.zeros(512, 16))
print(_engine.kept_results()["bytes"])
"""


def test_nothing_is_kept_where_the_variable_says_so() -> None:
    run = run_with_torch(PROGRAM, THRESHER_KEPT_RESULTS="0")
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["0"]
    run = run_with_torch(PROGRAM, THRESHER_KEPT_RESULTS="-1")
    assert run.returncode != 0 and "THRESHER_KEPT_RESULTS: expected an integer from 0" in run.stderr


def test_what_is_no_address_is_refused() -> None:
    shim = library.find(torch.__version__, cxx11_abi=torch._C._GLIBCXX_USE_CXX11_ABI)
    with pytest.raises(TypeError, match="two addresses"):
        shim.set_result_memory(1, 2)
    with pytest.raises(TypeError):
        shim.set_result_memory("a", 2, 3)

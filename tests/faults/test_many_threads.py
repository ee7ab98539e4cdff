"""64 threads that call one model at once: every result is that of PyTorch, whatever else goes on."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

import thresher
from thresher import profiler

THREADS = 64
CALLS = 12


def model() -> Any:
    torch.manual_seed(0)
    layers = torch.nn.Linear(32, 48), torch.nn.GELU(), torch.nn.LayerNorm(48), torch.nn.Linear(48, 16)
    return torch.nn.Sequential(*layers).eval()


def in_threads(work: Callable[[int], None], count: int = THREADS) -> None:
    """Runs work(0) to work(count - 1) at once; raises what one of them raised."""
    barrier = threading.Barrier(count)
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            barrier.wait(60)
            work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    if failures:
        raise failures[0]


def compare(compiled: Any, eager: Any, number: int, calls: int = CALLS) -> None:
    generator = torch.Generator().manual_seed(number)
    with torch.no_grad():
        for call in range(calls):
            x = torch.randn(1 + (number + call) % 5, 32, generator=generator)
            torch.testing.assert_close(compiled(x), eager(x), atol=2e-5, rtol=1e-4)


@pytest.fixture
def compiled() -> Any:
    torch._dynamo.reset()
    thresher.clear_cache()
    eager = model()
    compiled = thresher.compile(eager, dynamic=True)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for rows in (3, 5):  # TorchDynamo's part is done before the threads start
            compiled(torch.ones(rows, 32))
    yield eager, compiled
    profiler.stop()
    profiler.reset()
    torch._dynamo.reset()
    thresher.clear_cache()


def test_inputs_and_shapes_of_their_own(compiled: Any) -> None:
    eager, fast = compiled
    thresher.clear_cache()  # plans are built while others run
    in_threads(lambda number: compare(fast, eager, number))


def test_while_the_profiler_is_started_and_stopped(compiled: Any, tmp_path: Path) -> None:
    eager, fast = compiled
    ended = threading.Event()
    rounds = []

    def switch() -> None:
        while not ended.is_set() or len(rounds) < 3:
            profiler.start(trace=tmp_path / f"{len(rounds)}.thrtrace")
            profiler.op_report("json")
            profiler.stop()
            profiler.reset()
            rounds.append(1)

    switcher = threading.Thread(target=switch)
    switcher.start()
    try:
        in_threads(lambda number: compare(fast, eager, number))
    finally:
        ended.set()
        switcher.join(60)
    assert not switcher.is_alive() and len(rounds) >= 3
    from thresher.profiler.trace import read_trace

    for path in sorted(tmp_path.glob("*.thrtrace"))[:: max(1, len(rounds) // 5)]:
        assert read_trace(path).meta["complete"] is True


def test_while_the_cache_is_cleared(compiled: Any) -> None:
    eager, fast = compiled
    ended = threading.Event()

    def clear() -> None:
        while not ended.wait(0.002):
            thresher.clear_cache()
            thresher.compilation_stats()

    clearer = threading.Thread(target=clear)
    clearer.start()
    try:
        in_threads(lambda number: compare(fast, eager, number, 6))
    finally:
        ended.set()
        clearer.join(60)
    assert not clearer.is_alive()


def test_while_the_number_of_threads_changes(compiled: Any) -> None:
    from thresher import _engine

    eager, fast = compiled
    ended = threading.Event()
    before = _engine.num_threads()

    def resize() -> None:
        count = 0
        while not ended.is_set():
            count += 1
            _engine.set_num_threads(1 + count % 4)

    resizer = threading.Thread(target=resize)
    resizer.start()
    try:
        in_threads(lambda number: compare(fast, eager, number, 6))
    finally:
        ended.set()
        resizer.join(60)
        _engine.set_num_threads(before)
    assert not resizer.is_alive()


def test_a_bad_request_among_good_ones() -> None:
    torch._dynamo.reset()
    table = torch.nn.Embedding(10, 8).eval()
    fast = thresher.compile(table)
    good, bad = torch.tensor([1, 9, 3]), torch.tensor([1, 10, 3])
    refused = []

    def work(number: int) -> None:
        with torch.no_grad():
            for _ in range(CALLS):
                if number % 4 == 0:
                    with pytest.raises(IndexError):
                        fast(bad)
                    refused.append(number)
                else:
                    assert torch.equal(fast(good), table(good))

    with torch.no_grad():
        fast(good)
    in_threads(work)
    assert len(refused) == THREADS // 4 * CALLS


def test_a_model_file(model_file: Path) -> None:
    import numpy as np

    loaded = thresher.load(model_file)
    inputs = [np.random.default_rng(i).standard_normal((4 if i % 2 else 64, 128)).astype(np.float32) for i in range(8)]
    wanted = [loaded(x)["output"] for x in inputs]

    def work(number: int) -> None:
        for call in range(20):
            at = (number + call) % len(inputs)
            assert np.array_equal(loaded(inputs[at])["output"], wanted[at])

    in_threads(work)

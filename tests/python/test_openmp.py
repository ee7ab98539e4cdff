"""PyTorch's OpenMP threads work for the engine, or make room for its own."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from processes import run_with_torch

torch = pytest.importorskip("torch")
pytest.importorskip("thresher._engine")

from thresher.compiler import openmp  # noqa: E402 - both may be missing


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def test_threads_end_and_come_back() -> None:
    if not openmp._loaded():
        pytest.skip("this PyTorch has no OpenMP library that can be paused")
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        x = torch.randn(1 << 20)
        wanted = torch.exp(x)
        with_pool = threads()
        openmp.release_threads()
        deadline = time.monotonic() + 10
        while threads() > with_pool - 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert threads() <= with_pool - 2
        assert torch.equal(torch.exp(x), wanted)
        assert threads() >= with_pool
        openmp.release_threads()
        openmp.release_threads()
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("libraries", [[], ["/no/such/libgomp.so"], ["libm.so.6"]])
def test_without_a_library_nothing_happens(monkeypatch: pytest.MonkeyPatch, libraries: list[str]) -> None:
    """None, one that cannot be loaded, one without the functions of OpenMP: no thread ends, and none is borrowed."""
    x = torch.randn(1 << 20)
    wanted = torch.exp(x)
    before = threads()
    monkeypatch.setattr(openmp, "_loaded", lambda: libraries)
    openmp._pause.cache_clear()
    openmp._lend.cache_clear()
    try:
        assert openmp.borrow_threads() is False
        openmp.release_threads()
        time.sleep(0.05)
        assert threads() == before
        assert torch.equal(torch.exp(x), wanted)
    finally:
        openmp._pause.cache_clear()
        openmp._lend.cache_clear()


def test_a_model_with_parts_in_pytorch_gives_eagers_results() -> None:
    code = (
        "import sys, warnings, torch\n"
        "warnings.simplefilter('ignore')\n"
        f"sys.path.insert(0, {str(Path(__file__).parents[2] / 'examples')!r})\n"
        "from half_and_half import SpeechEncoder\n"
        "torch.manual_seed(0)\n"
        "model = SpeechEncoder(64, 2).eval()\n"
        "compiled = torch.compile(model, backend='thresher')\n"
        "with torch.no_grad():\n"
        "    for frames in (40, 64, 40):\n"
        "        x = torch.randn(2, 80, frames)\n"
        "        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)\n"
        "print('equal')\n"
    )
    done = run_with_torch(code)
    assert done.stdout == "equal\n", done.stderr[-2000:]


MIXED = """
import os, sys, warnings, torch
from thresher.compiler import openmp, runtime
warnings.simplefilter("ignore")
torch.set_num_threads(2)
torch.set_grad_enabled(False)
model = lambda x, w: torch.cumprod((x @ w).relu() @ w, 1).sigmoid() @ w
x, w = torch.randn(300, 300), torch.randn(300, 300) / 17
calls = []
borrow = runtime.borrow_threads
runtime.borrow_threads = lambda: calls.append(borrow()) or calls[-1]
compiled = torch.compile(model, backend="thresher")
for _ in range(3):
    torch.testing.assert_close(compiled(x, w), model(x, w), rtol=1e-4, atol=1e-4)
print(len(calls), all(calls), any(calls))
if len(sys.argv) > 1:
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)
        torch.testing.assert_close(compiled(x, w), model(x, w), rtol=1e-4, atol=1e-4)
        os._exit(0 if not calls[-1] else 1)
    print(os.waitpid(child, 0)[1])
"""


def run_mixed(threads: str, *arguments: str) -> str:
    done = run_with_torch(MIXED, *arguments, THRESHER_NUM_THREADS=threads)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_parts_borrow_pytorchs_threads() -> None:
    if not openmp._lend():
        pytest.skip("this PyTorch has no OpenMP library whose threads can be borrowed")
    assert run_mixed("2") == "6 True True\n"


def test_another_number_of_threads_is_not_borrowed() -> None:
    assert run_mixed("3") == "6 False False\n"


def test_a_forked_child_borrows_none() -> None:
    if not openmp._lend():
        pytest.skip("this PyTorch has no OpenMP library whose threads can be borrowed")
    assert run_mixed("2", "fork") == "6 True True\n0\n"

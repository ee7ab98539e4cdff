"""PyTorch's OpenMP threads make room for the engine's."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

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


def test_without_a_library_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    openmp._pause.cache_clear()
    monkeypatch.setattr(openmp, "_loaded", lambda: ["/no/such/libgomp.so"])
    openmp.release_threads()
    openmp._pause.cache_clear()


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
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout == "equal\n", done.stderr[-2000:]

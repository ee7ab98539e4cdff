"""NVTX ranges, as a tool receives them through the interface of NVTX: a library that the environment names."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from nvtx_ranges import build_listener, ranges_of
from processes import lines_of, run_python
from small_decoder import write_decoder

_engine = pytest.importorskip("thresher._engine")


@pytest.fixture(scope="module")
def listener(tmp_path_factory: pytest.TempPathFactory) -> str:
    return build_listener(tmp_path_factory.mktemp("nvtx"))


STEPS = """
import numpy as np
from thresher import _engine, profiler, startup
startup.initialize()
graph = _engine.Graph()
(value,) = graph.add("layer_norm", [graph.input("x", "f32", (512, 512)), None, None])
(value,) = graph.add("softmax", [value])
graph.set_outputs([value])
plan = _engine.Plan.build(graph, _engine.WeightStore(), name="two_steps", num_threads=2)
x, y = np.ones((512, 512), np.float32), np.empty((512, 512), np.float32)
for number in range(3):
    with profiler.record_function(f"request {number}"):
        plan.run([x], [y])
print(_engine.nvtx_listening())
"""


def test_runs_and_their_steps(listener: str, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    done = run_python(STEPS, NVTX_INJECTION64_PATH=listener, NVTX_LISTENER_LINES=str(lines))
    assert lines_of(done) == ["True"]
    ranges = ranges_of(lines)
    (thread,) = {range.thread for range in ranges if range.path[0].startswith("request")}
    outer = [range.path for range in ranges if range.thread == thread and len(range.path) <= 2]
    assert outer == [path for i in range(3) for path in [(f"request {i}",), (f"request {i}", "two_steps")]]
    # A step is shared by the threads, each of which shows what it did of it.
    steps = [range for range in ranges if range.path[-1].split()[0] in ("layer_norm", "softmax")]
    assert all(range.path[:-1] == () for range in steps if range.thread != thread)
    assert all(range.path[1] == "two_steps" for range in steps if range.thread == thread)
    assert len(steps) + 6 == len(ranges)
    count = Counter(range.path[-1].split()[0] for range in steps)
    assert count["layer_norm"] >= 3 and count["softmax"] >= 3
    variants = {range.path[-1].partition(" fp32 ")[2] for range in steps}
    assert len(variants) == 1 and variants != {""}, "the kernel's variant is named"


@pytest.mark.thorough
def test_phases_of_a_language_model(listener: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    folder = write_decoder(tmp_path / "model", "Qwen2", seed=3)
    lines = tmp_path / "lines"
    code = f"""
from thresher.llm import LLM
with LLM({str(folder)!r}, kv_cache_bytes=2 << 20, max_batch=4, max_step_tokens=32) as llm:
    llm.generate([list(range(1, 51))], temperature=0, max_tokens=4, ignore_eos=True)
"""
    done = run_python(code, NVTX_INJECTION64_PATH=listener, NVTX_LISTENER_LINES=str(lines))
    assert done.returncode == 0, done.stderr
    ranges = ranges_of(lines)
    # 32 and 18 tokens of the prompt, the last of which gives the first of the answer.
    assert [range.path[0] for range in ranges if range.path[-1] in ("prefill", "decode")] == [
        *["prefill"] * 2,
        *["decode"] * 3,
    ]
    inside = {range.path[0] for range in ranges if len(range.path) == 3 and "attention" in range.path[-1]}
    assert inside == {"prefill", "decode"}


def test_nobody_listens() -> None:
    assert lines_of(run_python(STEPS)) == ["False"]


def test_a_tool_that_cannot_be_used(listener: str, tmp_path: Path) -> None:
    code = """
import warnings
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    from thresher import _engine, startup
    startup.initialize()
print(_engine.nvtx_listening(), *[str(warning.message) for warning in found])
"""
    missing = tmp_path / "missing.so"
    other = Path(_engine.__file__)
    for path, reason in ((missing, "cannot be opened"), (other, "has no function"), (Path(listener), "refused")):
        (line,) = lines_of(run_python(code, NVTX_INJECTION64_PATH=str(path)))
        assert line.startswith(
            f"False NVTX_INJECTION64_PATH: expected the library of a tool for NVTX ranges, got {path}"
        )
        assert reason in line and line.endswith("no ranges are sent")

"""Profiles of models that answer: phases, tokens, and windows of some steps."""

from __future__ import annotations

import concurrent.futures
import subprocess
import sys

import pytest
from small_decoder import write_decoder

import thresher
from thresher import profiler
from thresher.llm import LLM
from thresher.profiler.analysis import build_report
from thresher.profiler.report import OpReport
from thresher.profiler.trace import read_trace

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_decoder(tmp_path_factory.mktemp("model"), "Qwen2", seed=3)


@pytest.fixture(scope="module")
def llm(folder):
    with LLM(folder, kv_cache_bytes=2 << 20, max_batch=4, max_step_tokens=32) as made:
        made.generate([[1, 2, 3]] * 2, temperature=0, max_tokens=3, ignore_eos=True)
        yield made


@pytest.fixture(autouse=True)
def off():
    yield
    profiler.stop()
    profiler.reset()


def answer(llm, prompt, count):
    llm.generate([list(range(1, prompt + 1))], temperature=0, max_tokens=count, ignore_eos=True)


def test_prefill_and_decode_are_phases_with_their_tokens(llm):
    profiler.reset()
    profiler.start()
    answer(llm, 50, 11)
    profiler.stop()
    report = profiler.collect()
    assert [phase.name for phase in report.phases] == ["prefill", "decode"]
    prefill, decode = report.phases
    assert (prefill.calls, prefill.tokens) == (
        2,
        50,
    )  # 32 and 18 tokens: the last of them gives the first of the answer
    assert (decode.calls, decode.tokens) == (10, 10)
    for phase in report.phases:
        assert phase.executions >= phase.calls
        assert phase.tokens_per_s == pytest.approx(phase.tokens / phase.wall_ns * 1e9)
        assert phase.gap_ns > 0, "the wall clock is that of the steps"
        assert phase.percent_of_peak is None or phase.percent_of_peak > 0
        assert {"linear", "paged_attention"} <= {row.opname for section in phase.sections for row in section.rows}
    text = profiler.op_report()
    assert f"phase decode: 10 calls, {decode.executions} executions" in text
    assert f"10 tokens, {decode.tokens_per_s:.1f} tokens/s" in text
    assert f"50 tokens, {prefill.tokens_per_s:.1f} tokens/s" in profiler.render(report)
    again = OpReport.from_json(profiler.op_report("json"))
    assert [phase.tokens for phase in again.phases] == [50, 10]
    assert again.phase("decode").tokens_per_s == pytest.approx(decode.tokens_per_s)


def test_other_models_have_no_phase_of_the_engine(llm):
    profiler.reset()
    profiler.start()
    answer(llm, 4, 2)
    model = torch.compile(torch.nn.Linear(4, 4), backend="thresher")
    with torch.no_grad():
        model(torch.ones(1, 4))
    profiler.stop()
    inference = profiler.collect().phase("inference")
    assert inference.tokens == 0
    assert inference.tokens_per_s is None


def test_the_profiler_is_imported_when_it_is_wanted():
    found = "[name for name in sys.modules if name.startswith('thresher.profiler')]"
    code = f"import sys, thresher.llm; assert not {found}, {found}"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_threads_are_those_of_the_plans_that_ran(folder, llm, tmp_path):
    pool = thresher.get_num_threads()
    try:
        thresher.set_num_threads(2)
        profiler.reset()
        profiler.start()
        assert profiler.collect().num_threads == 2  # nothing ran: the pool's
        profiler.stop()
        with LLM(folder, kv_cache_bytes=1 << 20, max_batch=4, num_threads=1) as one:
            window = one.profile_window(steps=2, request=0, trace=tmp_path / "one.thrtrace")
            answer(one, 8, 6)
            report = window.result(timeout=30).report
        assert report.num_threads == 1
        assert ", 1 thread, " in profiler.render(report)
        machine = build_report(read_trace(tmp_path / "one.thrtrace"))["machine"]  # what the page has
        assert machine["num_threads"] == 1
        profiler.reset()
        profiler.start()
        with LLM(folder, kv_cache_bytes=1 << 20, max_batch=4, num_threads=1) as one:
            answer(one, 4, 2)
        with LLM(folder, kv_cache_bytes=1 << 20, max_batch=4, num_threads=2) as two:
            answer(two, 4, 2)
        assert profiler.collect().num_threads == 2
    finally:
        thresher.set_num_threads(pool)


def test_a_window_from_a_request_on(llm, tmp_path):
    number = llm.engine._number
    window = llm.profile_window(steps=4, request=number + 1, trace=tmp_path / "window.thrtrace")
    answer(llm, 8, 6)
    assert not window.done()
    answer(llm, 8, 6)
    profile = window.result(timeout=30)
    report = profile.report
    assert sum(phase.calls for phase in report.phases) == 4
    assert report.phase("prefill").tokens == 8
    assert report.phase("decode").tokens == 3
    shown = build_report(read_trace(tmp_path / "window.thrtrace"))["overview"]["phases"]  # what the page has
    assert [(each["phase"], each["calls"], each["tokens"]) for each in shown] == [("prefill", 1, 8), ("decode", 3, 3)]
    for each, phase in zip(shown, report.phases, strict=True):
        assert each["wall_ns"] == phase.wall_ns
        assert each["tokens_per_s"] == pytest.approx(phase.tokens_per_s)
    assert not profiler.is_enabled()


def test_a_window_from_a_batch_on(llm):
    window = llm.profile_window(steps=3, batch=3)
    answer(llm, 8, 6)
    assert not window.done()
    llm.generate([[1, 2, 3]] * 3, temperature=0, max_tokens=12, ignore_eos=True)
    report = window.result(timeout=30).report
    assert sum(phase.calls for phase in report.phases) == 3
    assert sum(phase.tokens for phase in report.phases) >= 9


def test_a_window_that_never_comes_and_what_is_not_legal(folder, llm, tmp_path):
    for options in ({"steps": 0, "batch": 1}, {"steps": 1}, {"steps": 1, "batch": 1, "request": 1}):
        with pytest.raises(ValueError, match="expected"):
            llm.profile_window(**options)
    waiting = llm.profile_window(steps=1, batch=4)
    with pytest.raises(RuntimeError, match="expected one profile at a time"):
        llm.profile_window(steps=1, batch=1)
    assert waiting.cancel()
    (tmp_path / "there").write_text("")
    wrong = llm.profile_window(steps=1, batch=1, trace=tmp_path / "there")
    answer(llm, 4, 3)
    assert isinstance(wrong.exception(timeout=30), ValueError)
    with LLM(folder, kv_cache_bytes=1 << 20) as other:
        never = other.profile_window(steps=1, batch=1)
    with pytest.raises(concurrent.futures.CancelledError):
        never.result(timeout=30)

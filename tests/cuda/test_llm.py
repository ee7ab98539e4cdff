"""Language models whose pages, weights and steps are a device's: the tokens are those of the CPU."""

from __future__ import annotations

import ctypes
import dataclasses
import random
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_decoder import write_decoder

pytest.importorskip("torch")
pytest.importorskip("transformers")

from thresher.llm import LLM, SamplingParams
from thresher.llm.step_inputs import Work
from thresher.machine import Backend

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_decoder(tmp_path_factory.mktemp("model"), "Llama", seed=1, initializer_range=0.3)


@pytest.fixture
def on_device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether that is a GPU."""
    library = request.config.getoption("--device-library")
    obstacle = Backend("cuda").obstacle()
    if obstacle and library is None:
        pytest.skip(f"skipped: no GPU: {obstacle}")
    if obstacle:
        monkeypatch.setitem(sys.modules, "thresher_cuda", types.SimpleNamespace(library_path=lambda: library))
    return not obstacle


def _answers(folder: Path, prompts: list[list[int]], tokens: int, **options: Any) -> list[tuple[int, ...]]:
    params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
    options = {"kv_cache": "f32", **options}
    with LLM(folder, precision="fp32", max_batch=4, max_length=200, **options) as llm:
        return [tuple(result.completions[0].token_ids) for result in llm.generate(prompts, params)]


def test_the_tokens_are_those_of_the_cpu(on_device: bool, folder: Path) -> None:
    choose = random.Random(3)
    lengths, tokens = ((1, 5, 40, 90, 17, 33), 24) if on_device else ((3, 20), 4)
    prompts = [[choose.randrange(160) for _ in range(length)] for length in lengths]
    wanted = _answers(folder, prompts, tokens)
    assert _answers(folder, prompts, tokens, device="cuda") == wanted
    assert _answers(folder, prompts[:1], tokens, device="cuda:0") == wanted[:1]


def test_devices_that_there_are_not(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"device: expected 'cpu', 'cuda' or 'cuda:N', got 'gpu'"):
        LLM(folder, device="gpu")


def test_a_precision_that_there_is_not(on_device: bool, folder: Path) -> None:
    with pytest.raises(ValueError, match="precision"):
        LLM(folder, device="cuda", precision="fp4")


@pytest.mark.parametrize("cache", ["q8_0", "q4_0"])
def test_pages_in_blocks(on_device: bool, tmp_path: Path, cache: str) -> None:
    folder = write_decoder(tmp_path, "Llama", seed=1, initializer_range=0.3, head_dim=32)
    prompts, tokens = [[1, 2, 3], list(range(5, 25))], 16 if on_device else 3
    wanted = _answers(folder, prompts, tokens, kv_cache=cache)
    assert _answers(folder, prompts, tokens, device="cuda", kv_cache=cache) == wanted


def test_experts(on_device: bool, tmp_path: Path) -> None:
    sizes = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "head_dim": 16}
    mixture = write_decoder(tmp_path, "Qwen3Moe", seed=1, initializer_range=0.3, **sizes)
    prompts, tokens = [[1, 2, 3], list(range(5, 17))], 16 if on_device else 3
    assert _answers(mixture, prompts, tokens, device="cuda") == _answers(mixture, prompts, tokens)


def _scores(folder: Path, tokens: list[int], **options: Any) -> Any:
    """Of the tokens behind each of these, computed as one prompt and as its last token alone."""
    with LLM(folder, max_batch=1, max_length=64, **options) as llm:
        rows = [llm.runner.run([Work(tokens, 0, [[0]], len(tokens))]).copy()]
        rows.append(llm.runner.run([Work(tokens[-1:], len(tokens) - 1, [[0]], 1, answering=True)]).copy())
        return np.concatenate(rows)


@pytest.mark.parametrize("precision", ["bf16", "fp16", "int8_weight", "int4_weight"])
def test_values_in_16_bits(on_device: bool, folder: Path, precision: str) -> None:
    tokens = list(range(3, 20)) if on_device else [3, 4, 5]
    exact = _scores(folder, tokens, precision="fp32", kv_cache="f32")
    on_cpu = _scores(folder, tokens, precision=precision)
    found = _scores(folder, tokens, precision=precision, device="cuda")
    error, wanted = (np.linalg.norm(x - exact) / np.linalg.norm(exact) for x in (found, on_cpu))
    # The CPU keeps what goes from one operator to the next in f32.
    assert error < max(4 * wanted, 0.02)


def test_of_scores_only_the_best_leave_the_device(folder: Path, on_device: bool) -> None:
    """Where no request wants more; any that does gets them, and so do those beside it in that step."""
    prompts = [[1, 2, 3], [4, 5, 6]]
    greedy = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)
    with LLM(folder, precision="fp32", max_batch=2, max_length=64, device="cuda", kv_cache="f32") as llm:
        given, run = [], llm.runner.run

        def watched(work: list[Work]) -> Any:
            given.append(run(work))
            return given[-1]

        llm.runner.run = watched  # type: ignore[method-assign]
        wanted = [result.completions[0].token_ids for result in llm.generate(prompts, greedy)]
        assert all(isinstance(scores, list) for scores in given)
        for other in ({"logprobs": 0}, {"logit_bias": {5: 0.0}}, {"min_tokens": 4}):
            given.clear()
            found = llm.generate(prompts[0], dataclasses.replace(greedy, **other))[0].completions[0]
            assert found.token_ids == wanted[0] and not any(isinstance(scores, list) for scores in given)
        given.clear()
        with llm.engine._lock:  # both have come before the first step
            streams = [llm.stream(prompts[0], greedy), llm.stream(prompts[1], dataclasses.replace(greedy, logprobs=0))]
        assert [stream.result().completions[0].token_ids for stream in streams] == wanted
        assert given and not any(isinstance(scores, list) for scores in given)
    assert [tuple(tokens) for tokens in wanted] == _answers(folder, prompts, 4)


def test_scores_that_are_no_numbers(on_device: bool, tmp_path: Path) -> None:
    folder = write_decoder(tmp_path, "Llama", seed=1)
    file = folder / "model.safetensors"
    safetensors_numpy = pytest.importorskip("safetensors.numpy")
    tensors = safetensors_numpy.load_file(file)
    tensors["model.norm.weight"][3] = np.nan
    safetensors_numpy.save_file(tensors, file, {"format": "pt"})
    with (
        LLM(folder, precision="fp32", max_batch=2, max_length=64, device="cuda", kv_cache="f32") as llm,
        pytest.raises(ValueError, match="expected finite scores, got nan"),
    ):
        llm.generate([[1, 2, 3]], SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True))


def test_values_are_as_the_weights_are_stored(on_device: bool, tmp_path: Path) -> None:
    """Nothing is rounded on the way: between two operators all is in the type that products take."""
    steps = []
    for layers in (1, 2):
        name = tmp_path / str(layers)
        write_decoder(name, "Llama", seed=1, num_hidden_layers=layers, dtype="bfloat16")
        with LLM(name, max_batch=1, max_length=64, device="cuda") as llm:
            steps.append(len(llm.runner._body.at((1,))[0].steps()))
    # Norm; queries, keys and values; positions of the queries; the write; attention; the output product; norm; gate and
    # up; silu of one times the other; the product behind it.
    assert steps[1] - steps[0] == 10


def test_a_profile_of_some_steps_is_a_window_for_tools(
    on_device: bool, folder: Path, request: pytest.FixtureRequest
) -> None:
    if on_device:
        pytest.skip("only the emulator tells")
    count = ctypes.CDLL(request.config.getoption("--device-library")).emulated_windows
    before = count()
    params = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)
    with LLM(folder, precision="fp32", max_batch=2, max_length=64, device="cuda", kv_cache="f32") as llm:
        window = llm.profile_window(steps=2, request=1, trace=False)
        llm.generate([[1, 2, 3]], params)
        assert count() == before and not window.done()
        llm.generate([[4, 5, 6]], params)
        assert sum(phase.calls for phase in window.result(30).report.phases) == 2
    assert count() == before + 1, "opened and closed once"


def test_each_number_of_answers_is_one_graph(on_device: bool, folder: Path, request: pytest.FixtureRequest) -> None:
    if on_device:
        pytest.skip("only the emulator tells")
    count = ctypes.CDLL(request.config.getoption("--device-library")).emulated_graph_launches
    with LLM(folder, precision="fp32", max_batch=2, max_length=64, device="cuda", kv_cache="f32") as llm:

        def launches(prompts: list[list[int]], tokens: int) -> int:
            before = count()
            llm.generate(prompts, SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True))
            return int(count() - before)

        # The prompt's step gives one token; of the others, each one token long, the first is launched step by step.
        assert launches([[1, 2, 3]], 3) == 1
        assert launches([[1, 2, 4]], 3) == 2 + 1, "a prompt of as many tokens has come before"


def test_numbers_of_answers_share_graphs(on_device: bool, folder: Path, request: pytest.FixtureRequest) -> None:
    """Steps are filled up to a bucket: those of 3 sequences are those of 4, and tokens stay what they are."""
    if on_device:
        pytest.skip("only the emulator tells")
    count = ctypes.CDLL(request.config.getoption("--device-library")).emulated_graph_launches
    prompts = [[1, 2, 3], [4, 5, 6], [7, 8, 9], [10, 11, 12]]
    params = SamplingParams(max_tokens=3, temperature=0.0, ignore_eos=True)
    with LLM(folder, precision="fp32", max_batch=4, max_length=64, device="cuda", kv_cache="f32") as llm:

        def run(prompts: list[list[int]]) -> tuple[int, list[tuple[int, ...]]]:
            before = count()
            with llm.engine._lock:  # all have come before the first step
                streams = [llm.stream(prompt, params) for prompt in prompts]
            found = [tuple(token for delta in stream for token in delta.token_ids) for stream in streams]
            return int(count() - before), found

        run(prompts)
        # Of two steps of one token each, both find the graph of four sequences; alone, the first would make one.
        # So does their prompts' step, of 9 tokens as of 12.
        launches, three = run(prompts[:3])
        assert launches == 2 + 1
        assert three == _answers(folder, prompts[:3], 3)


def test_prompts_share_graphs(on_device: bool, folder: Path, request: pytest.FixtureRequest) -> None:
    """A prompt's step is filled up, too: what lies behind the prompt keeps no keys and changes no token."""
    if on_device:
        pytest.skip("only the emulator tells")
    count = ctypes.CDLL(request.config.getoption("--device-library")).emulated_graph_launches
    long, short = list(range(1, 24)), list(range(30, 47))
    params = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
    with LLM(folder, precision="fp32", max_batch=1, max_length=64, device="cuda", kv_cache="f32") as llm:
        llm.generate([long], params)
        before = count()
        found = [tuple(result.completions[0].token_ids) for result in llm.generate([short], params)]
        assert count() == before + 1
    assert found == _answers(folder, [short], 1)

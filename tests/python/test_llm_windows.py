"""Models of which some layers see the last tokens alone: what is behind their windows is given back."""

from __future__ import annotations

import numpy as np
import pytest
from small_decoder import write_decoder

from thresher.llm import LLM
from thresher.llm.layer_groups import AllTokens, LastTokens
from thresher.llm.models.decoder import PAGE_TOKENS

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

_WINDOW = 40
_STEP = 48
_LENGTH = 640
_IN_WINDOWS = 1 + -(-(_WINDOW - 2 + _STEP) // PAGE_TOKENS)  # pages of a sequence, wherever in a page it stands


@pytest.fixture(scope="module", autouse=True)
def one_thread_of_torch():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def _write(path, architecture, seed, **changes):
    sizes = {"max_position_embeddings": _LENGTH, "initializer_range": 0.3, "sliding_window": _WINDOW}
    return write_decoder(path, architecture, seed, **{**sizes, **changes})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Gemma 3: five layers with a window, one that sees all, one with a window."""
    return _write(
        tmp_path_factory.mktemp("gemma3"),
        "Gemma3Text",
        4,
        head_dim=16,
        query_pre_attn_scalar=16,
        num_hidden_layers=7,
    )


@pytest.fixture(scope="module")
def mistral(tmp_path_factory):
    """All layers have a window."""
    return _write(tmp_path_factory.mktemp("mistral"), "Mistral", 5)


def _load(path, **options):
    sizes = {"max_length": _LENGTH, "max_batch": 4, "max_step_tokens": _STEP}
    return LLM(path, precision="fp32", **{**sizes, **options})


def _greedy(path, prompt, count):
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    with torch.no_grad():
        made = model.generate(
            torch.tensor([prompt]), max_new_tokens=count, do_sample=False, eos_token_id=None, pad_token_id=0
        )
    return made[0, len(prompt) :].tolist()


def _prompt(length, seed=0):
    return np.random.default_rng(seed).integers(2, 160, length).tolist()


def _tokens(output):
    return output.completions[0].token_ids


_OPTIONS = {"temperature": 0, "ignore_eos": True}


def test_a_long_answer_has_a_bounded_number_of_pages_in_layers_with_windows(folder):
    prompt = _prompt(100)
    with _load(folder) as llm:
        assert [group.policy for group in llm.runner.groups] == [AllTokens(), LastTokens(_WINDOW)]
        assert [group.layers for group in llm.runner.groups] == [(5,), (0, 1, 2, 3, 4, 6)]
        assert llm.runner.pages == (4 * _LENGTH // PAGE_TOKENS, 4 * _IN_WINDOWS)
        cache = llm.engine._cache
        most = [0, 0]
        tokens = []
        for delta in llm.stream(prompt, max_tokens=500, **_OPTIONS):
            tokens += delta.token_ids
            most = [max(a, pool.used) for a, pool in zip(most, cache.pools, strict=True)]
        assert cache.used == 0
        for pool in cache.pools:
            pool.check()
    assert tokens == _greedy(folder, prompt, 500)
    assert 17 <= most[0] <= 19 and most[1] <= _IN_WINDOWS


@pytest.mark.parametrize("model", ["folder", "mistral"])
def test_batches_with_shared_beginnings_answer_as_each_alone(request, model):
    """In few pages, so that answers begin again, and what was kept is taken."""
    path = request.getfixturevalue(model)
    shared = _prompt(200)
    prompts = [shared[:n] + _prompt(m, n + m) for n, m in ((200, 1), (64, 50), (65, 3), (199, 30), (96, 64), (0, 7))]
    alone = [_greedy(path, prompt, 90) for prompt in prompts]
    with _load(path) as llm:
        token = llm.runner.token_bytes
    with _load(path, kv_cache_bytes=450 * token) as llm:
        for _ in range(2):
            outputs = llm.generate(prompts, max_tokens=90, **_OPTIONS)
            assert [_tokens(output) for output in outputs] == alone
        # What is found of beginnings above follows from who came when; of the same prompt once more it is certain.
        for _ in range(2):
            (output,) = llm.generate([prompts[0]], max_tokens=90, **_OPTIONS)
            assert _tokens(output) == alone[0]
        stats = llm.stats()
        assert stats.cached_tokens > 0 and stats.pages_used == 0
        for pool in llm.engine._cache.pools:
            pool.check()


def test_a_prompt_is_continued_from_what_its_windows_see(folder):
    prompt = _prompt(300)
    with _load(folder) as llm:
        first = _tokens(llm.generate([prompt], max_tokens=4, **_OPTIONS)[0])
        again = llm.generate([prompt + first], max_tokens=20, **_OPTIONS)[0]
    assert again.stats.cached_tokens == 288, "the last 13 pages of windows are kept, and all that see everything"
    assert first + _tokens(again) == _greedy(folder, prompt, 24)


@pytest.mark.parametrize("guesses", ["ngram", "model"])
def test_guesses_that_fail_leave_windows_whole(folder, mistral, tmp_path, guesses):
    small = _write(tmp_path / "small", "Mistral", 6, num_hidden_layers=1)
    options = {"speculation": "ngram"} if guesses == "ngram" else {"draft_model": small}
    prompt = (_prompt(20) * 8)[:150]
    with _load(folder, **options) as llm:
        outputs = llm.generate([prompt, prompt[:90]], max_tokens=200, **_OPTIONS)
        assert outputs[0].stats.drafted_tokens > 0
        if llm.engine._draft_model is not None:
            assert llm.engine._draft_model.used_pages == 0
    assert [_tokens(output) for output in outputs] == [_greedy(folder, p, 200) for p in (prompt, prompt[:90])]


def test_a_step_of_all_tokens_reads_what_windows_see(folder):
    with _load(folder) as llm:
        runner = llm.runner
        layer = runner.token_bytes // 7
        assert runner.read_bytes(20) == runner.weight_bytes + 20 * 7 * layer
        seen = runner.read_bytes(600) - runner.weight_bytes
        assert 600 * layer + 6 * _WINDOW * layer <= seen <= 600 * layer + 6 * (_WINDOW + 2 * PAGE_TOKENS) * layer


def test_memory_for_no_page_is_named(folder):
    with pytest.raises(ValueError, match=r"kv_cache_bytes: expected at least .*, one page, got 100"):
        _load(folder, kv_cache_bytes=100)

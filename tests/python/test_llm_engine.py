"""LLM: what users call, on a small model with random weights."""

from __future__ import annotations

import asyncio
import json
import random
import re
import resource
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from small_decoder import write_decoder

from thresher.llm import (
    LLM,
    ChatTemplateError,
    EngineClosedError,
    QueueFullError,
    SamplingParams,
    UnsupportedModelError,
)
from thresher.llm.bench import bench
from thresher.llm.pace import Pace
from thresher.llm.speculation import NGramDrafts

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

_TEXT = "the cat sat on the mat and looked at the moon while a dog ran round the old house in the rain"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    path = tmp_path_factory.mktemp("model")
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, special_tokens=["<s>", "</s>"])
    backend.train_from_iterator([_TEXT] * 10, trainer)
    backend.save(str(path / "tokenizer.json"))
    template = (
        "{% for m in messages %}{% if m.role == 'bad' %}{{ raise_exception('no such role') }}{% endif %}"
        "<s>{{ m.role }}: {{ m.content }}</s>{% endfor %}{% if add_generation_prompt %}<s>assistant: {% endif %}"
    )
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>", "chat_template": template}))
    changes = {"max_position_embeddings": 512, "initializer_range": 0.3, "eos_token_id": 1}
    return write_decoder(path, "Llama", seed=1, vocab_size=backend.get_vocab_size(), **changes)


@pytest.fixture(scope="module")
def llm(folder):
    with LLM(folder, precision="fp32", max_length=200, max_batch=6, max_step_tokens=48, kv_cache_bytes=2 << 20) as made:
        yield made


@pytest.fixture(scope="module")
def llm_in_blocks(folder):
    """Its products have the same bits in every batch; sums of fp32 depend on the number of rows in their last ones."""
    with LLM(folder, weights="q8_0", max_length=200, max_batch=6, max_step_tokens=48, kv_cache_bytes=2 << 20) as made:
        yield made


@pytest.fixture(scope="module")
def reference(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def _prompts(count, seed=0):
    numbers = np.random.default_rng(seed)
    # Around the sizes of pages and of steps; every other one begins alike.
    lengths = [1, 2, 31, 32, 33, 47, 48, 49, 63, 64, 65, 96, 97, 120]
    shared = numbers.integers(2, 280, 200).tolist()
    return [
        (shared[:length] if i % 2 else numbers.integers(2, 280, length).tolist())
        for i, length in zip(range(count), lengths * 10, strict=False)
    ]


def _greedy(model, prompt, count):
    with torch.no_grad():
        made = model.generate(
            torch.tensor([prompt]), max_new_tokens=count, do_sample=False, eos_token_id=None, pad_token_id=0
        )
    return made[0, len(prompt) :].tolist()


def test_greedy_tokens_are_those_of_transformers_alone_and_together(llm, reference):
    prompts = _prompts(14)
    expected = [_greedy(reference, prompt, 24) for prompt in prompts]
    options = {"temperature": 0, "max_tokens": 24, "ignore_eos": True}
    together = llm.generate(prompts, **options)
    assert [o.completions[0].token_ids for o in together] == expected
    assert all(o.completions[0].finish_reason == "length" for o in together)
    for prompt, tokens in zip(prompts[:4], expected, strict=False):
        assert llm.generate(prompt, **options)[0].completions[0].token_ids == tokens


def test_a_mixed_batch_with_cancels_is_what_each_is_alone(llm_in_blocks):
    chance = random.Random(5)
    prompts = _prompts(24, seed=3)
    options = [
        SamplingParams(
            max_tokens=chance.randint(1, 40),
            temperature=chance.choice([0, 0.7, 1.3]),
            top_k=chance.choice([0, 5]),
            top_p=chance.choice([1.0, 0.8]),
            repetition_penalty=chance.choice([1.0, 1.2]),
            seed=number,
            ignore_eos=True,
            logprobs=1,
        )
        for number in range(len(prompts))
    ]
    alone = [llm_in_blocks.generate(p, o)[0].completions[0] for p, o in zip(prompts, options, strict=True)]
    for _ in range(3):
        streams = []
        for number, (prompt, params) in enumerate(zip(prompts, options, strict=True)):
            streams.append(llm_in_blocks.stream(prompt, params))
            if number % 3 == 0:
                time.sleep(chance.random() / 100)
                chance.choice(streams).cancel()
        for stream, expected in zip(streams, alone, strict=True):
            completion = stream.result().completions[0]
            if completion.finish_reason == "cancel":
                assert completion.token_ids == expected.token_ids[: len(completion.token_ids)]
            else:
                assert completion.token_ids == expected.token_ids
                assert completion.logprobs == expected.logprobs
    stats = llm_in_blocks.stats()
    assert (stats.running, stats.waiting, stats.pages_used) == (0, 0, 0)


def _repetitive(count, seed=0):
    numbers = np.random.default_rng(seed)
    phrases = [numbers.integers(2, 280, 7).tolist() for _ in range(3)]
    return [[t for i in numbers.integers(0, 3, length) for t in phrases[i]] for length in range(1, count + 1)]


@pytest.mark.parametrize("draft_tokens", [1, 4, 7])
def test_guesses_change_no_token(folder, llm, draft_tokens):
    prompts = _repetitive(8) + _prompts(8)
    options = [
        {"temperature": 0},
        {"temperature": 0, "repetition_penalty": 1.1, "stop_token_ids": [7, 30, 120]},
        {"temperature": 0.2, "seed": 3, "logit_bias": {40: 20.0, 41: 20.0}},
        {"temperature": 0, "logit_bias": dict.fromkeys(range(50, 54), 1000.0), "frequency_penalty": 300.0},
    ]
    params = [SamplingParams(max_tokens=40 + i, ignore_eos=True, **options[i % 4]) for i in range(len(prompts))]
    expected = [llm.generate(p, o)[0].completions[0].token_ids for p, o in zip(prompts, params, strict=True)]
    with LLM(
        folder,
        precision="fp32",
        max_length=200,
        max_batch=6,
        kv_cache_bytes=40 * 16384,
        speculation="ngram",
        draft_tokens=draft_tokens,
    ) as guessing:
        for _ in range(2):
            streams = [guessing.stream(p, o) for p, o in zip(prompts, params, strict=True)]
            streams[3].cancel()
            for number, (stream, tokens) in enumerate(zip(streams, expected, strict=True)):
                found = stream.result().completions[0].token_ids
                assert found == (tokens[: len(found)] if number == 3 else tokens)
        stats = guessing.stats()
        assert 0 < stats.accepted_tokens <= stats.drafted_tokens
        assert (stats.running, stats.waiting, stats.pages_used) == (0, 0, 0)
        alone = guessing.generate(prompts[4], params[4])[0]
        assert alone.completions[0].token_ids == expected[4]
        assert 0 <= alone.stats.accepted_tokens <= alone.stats.drafted_tokens
    assert llm.stats().drafted_tokens == 0


def test_guesses_stop_where_they_do_not_pay():
    tokens = [1, 2, 3] * 5
    drafts = NGramDrafts(4)
    assert drafts.propose(tokens, 9, 0.3) == [1, 2, 3] and drafts.propose(tokens, 2, 0.3) == [1, 2]
    for _ in range(3):
        drafts.judge(4, 0)
    tried = [bool(drafts.propose(tokens, 4, 0.3)) for _ in range(200)]
    assert 0 < sum(tried) < 6 and not any(tried[:8])  # now and then, ever less often
    for _ in range(6):
        drafts.judge(4, 4)
    assert drafts.propose(tokens, 4, 0.3) and not drafts.propose(tokens, 4, 1.1)


def test_prompt_logprobs_are_those_of_the_model(llm, reference):
    prompts = [p for p in _prompts(14) if len(p) < 100]
    outputs = llm.generate(prompts, temperature=0, max_tokens=3, ignore_eos=True, prompt_logprobs=2, n=2)
    plain = llm.generate(prompts, temperature=0, max_tokens=3, ignore_eos=True)
    for prompt, output, other in zip(prompts, outputs, plain, strict=True):
        with torch.no_grad():
            expected = torch.log_softmax(reference(torch.tensor([prompt])).logits[0], -1).numpy()
        assert [c.token_ids for c in output.completions] == [other.completions[0].token_ids] * 2
        assert len(output.prompt_logprobs) == len(prompt) - 1 and other.prompt_logprobs == []
        for row, (token, found) in enumerate(zip(prompt[1:], output.prompt_logprobs, strict=True)):
            assert found.token_id == token
            assert found.logprob == pytest.approx(expected[row, token], abs=1e-4)
            assert [t for t, _ in found.top] == np.argsort(-expected[row])[:2].tolist()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_no_run_of_tokens_comes_twice(llm, reference, size):
    prompt = [5, 6, 7, 5, 9, 6, 7]
    found = llm.generate(prompt, temperature=0, max_tokens=60, ignore_eos=True, no_repeat_ngram_size=size)[0]
    tokens = found.completions[0].token_ids
    with torch.no_grad():
        made = reference.generate(
            torch.tensor([prompt]),
            max_new_tokens=60,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            no_repeat_ngram_size=size,
        )
    assert tokens == made[0, len(prompt) :].tolist()


def test_a_pool_that_is_too_small_for_all_is_enough_for_each(folder, reference):
    prompts = _prompts(8, seed=4)
    expected = [_greedy(reference, prompt, 30) for prompt in prompts]
    with LLM(folder, precision="fp32", max_length=200, max_batch=8, kv_cache_bytes=7 * 16384) as small:
        assert small.stats().pages == 7
        outputs = small.generate(prompts, temperature=0, max_tokens=30, ignore_eos=True)
        assert [o.completions[0].token_ids for o in outputs] == expected
        stats = small.stats()
        assert stats.preemptions > 0 and stats.pages_used == 0 and stats.finished == 8


def test_a_beginning_that_is_known_is_not_computed_again(folder):
    prompt = _prompts(14)[13]
    with LLM(folder, precision="fp32", max_length=200) as fresh:
        first = fresh.generate(prompt, temperature=0, max_tokens=5, ignore_eos=True)[0]
        second = fresh.generate(prompt, temperature=0, max_tokens=5, ignore_eos=True)[0]
        assert (first.stats.cached_tokens, second.stats.cached_tokens) == (0, 96)
        assert fresh.stats().cached_tokens == 96
        assert first.completions[0].token_ids == second.completions[0].token_ids
    with LLM(folder, precision="fp32", max_length=200, prefix_cache=False) as without:
        without.generate(prompt, max_tokens=1)
        assert without.generate(prompt, max_tokens=1)[0].stats.cached_tokens == 0


def test_seeds(llm):
    prompt = _prompts(3)[2]
    first, again, other = (
        llm.generate(prompt, seed=seed, max_tokens=20, ignore_eos=True)[0].completions[0].token_ids
        for seed in (1, 1, 2)
    )
    assert first == again != other
    many = llm.generate(prompt, seed=1, n=3, max_tokens=20, ignore_eos=True)[0].completions
    assert many[0].token_ids == first
    assert len({tuple(c.token_ids) for c in many}) == 3


def test_logprobs_are_those_of_the_model(llm, reference):
    prompt = _prompts(6)[5]
    completion = llm.generate(prompt, temperature=0, max_tokens=4, ignore_eos=True, logprobs=3)[0].completions[0]
    with torch.no_grad():
        logits = reference(torch.tensor([prompt + completion.token_ids])).logits[0, len(prompt) - 1 :]
    expected = torch.log_softmax(logits, -1).numpy()
    for row, (token, found) in enumerate(zip(completion.token_ids, completion.logprobs, strict=True)):
        assert found.token_id == token
        assert found.logprob == pytest.approx(expected[row, token], abs=1e-4)
        assert [t for t, _ in found.top] == np.argsort(-expected[row])[:3].tolist()
    assert found.top[0] == (found.token_id, found.logprob)


def test_what_ends_an_answer(llm):
    prompt = _prompts(4)[3]
    tokens = llm.generate(prompt, temperature=0, max_tokens=12, ignore_eos=True)[0].completions[0].token_ids
    stopped = llm.generate(prompt, temperature=0, max_tokens=12, ignore_eos=True, stop_token_ids=[tokens[5]])[0]
    first = tokens.index(tokens[5])
    assert stopped.completions[0].token_ids == tokens[: first + 1]
    assert stopped.completions[0].finish_reason == "stop"
    later = llm.generate(
        prompt, temperature=0, max_tokens=12, ignore_eos=True, stop_token_ids=[tokens[0]], min_tokens=3
    )[0].completions[0]
    assert tokens[0] not in later.token_ids[:3]


def test_a_stop_text_is_not_part_of_the_answer(llm):
    prompt = _TEXT[:40]
    options = {"temperature": 0, "max_tokens": 30, "ignore_eos": True}
    text = llm.generate(prompt, **options)[0].text
    stop = max(text.split("\ufffd"), key=len)[1:4]
    assert len(stop) == 3
    answer = llm.generate(prompt, stop=stop, **options)[0].completions[0]
    assert answer.text == text[: text.index(stop)]
    assert answer.finish_reason == "stop"
    deltas = list(llm.stream(prompt, stop="never there", **options))
    assert "".join(d.text for d in deltas) == text
    assert deltas[-1].finish_reason == "length"


def test_logit_bias_and_penalties(llm):
    prompt = _prompts(4)[3]
    only = llm.generate(prompt, temperature=0, max_tokens=3, ignore_eos=True, logit_bias={42: 1000.0})[0]
    assert only.completions[0].token_ids == [42, 42, 42]
    spread = llm.generate(
        prompt, temperature=0, max_tokens=3, ignore_eos=True, logit_bias={42: 1000.0, 43: 900.0}, presence_penalty=200.0
    )[0]
    assert spread.completions[0].token_ids[:2] == [42, 43]


def test_chat(llm):
    messages = [{"role": "user", "content": "the cat"}]
    assert llm.tokenizer.chat_text(messages) == "<s>user: the cat</s><s>assistant: "
    output = llm.chat(messages, max_tokens=5, temperature=0)
    assert output.prompt_token_ids == llm.tokenizer.chat_prompt(messages)
    assert output.prompt_token_ids[0] == 0
    with pytest.raises(ChatTemplateError, match="no such role"):
        llm.chat([{"role": "bad", "content": "x"}])
    with pytest.raises(ChatTemplateError, match="expected messages with role and content"):
        llm.chat(["hello"])


def test_templates_run_in_a_sandbox(llm, monkeypatch):
    monkeypatch.setattr(llm.tokenizer, "template", "{{ ''.__class__.__mro__[1].__subclasses__() }}")
    monkeypatch.setattr(llm.tokenizer, "_compiled", None)
    with pytest.raises(ChatTemplateError, match="unsafe"):
        llm.chat([{"role": "user", "content": "x"}])


def test_asyncio(llm):
    prompts = _prompts(6, seed=9)
    expected = [
        llm.generate(p, temperature=0, max_tokens=8, ignore_eos=True)[0].completions[0].token_ids for p in prompts
    ]

    async def together():
        return await asyncio.gather(
            *(llm.generate_async(p, temperature=0, max_tokens=8, ignore_eos=True) for p in prompts)
        )

    assert [c[0].token_ids for c in asyncio.run(together())] == expected

    async def leave():
        async for _ in llm.stream_async(prompts[0], max_tokens=150, ignore_eos=True):
            break
        await asyncio.sleep(0)

    asyncio.run(leave())
    for _ in range(200):
        if llm.stats().running == 0:
            break
        time.sleep(0.01)
    assert llm.stats().running == 0 and llm.stats().pages_used == 0


@pytest.mark.parametrize(
    ("prompt", "options", "text"),
    [
        ([], {}, "expected at least one token, got none"),
        ([1] * 200, {}, "expected at most 199 tokens, so that one more fits into 200, got 200"),
        ([9999], {}, "expected tokens from 0 to"),
        ([1], {"temperature": -1}, "temperature: expected 0 or more, got -1"),
        ([1], {"top_p": 0}, "top_p: expected above 0"),
        ([1], {"n": 0}, "n: expected 1 to 128, got 0"),
        ([1], {"min_tokens": 5, "max_tokens": 2}, "min_tokens: expected at most max_tokens"),
        ([1], {"logit_bias": {99999: 1.0}}, "logit_bias: expected tokens from 0 to"),
        ([1], {"stop": [""]}, "stop: expected texts that are not empty"),
        ([1], {"logprobs": 1000}, "logprobs: expected 0 to 64"),
        ([1], {"prompt_logprobs": -1}, "prompt_logprobs: expected 0 to 64"),
        ([1], {"no_repeat_ngram_size": -1}, "no_repeat_ngram_size: expected 0"),
    ],
)
def test_what_is_not_legal_is_refused_alone(llm, prompt, options, text):
    with pytest.raises(ValueError, match=text):
        llm.generate([prompt], **options)
    assert llm.generate([1, 2], max_tokens=1)[0].completions[0].finish_reason in ("length", "stop")


def test_the_longest_prompt_that_fits(llm):
    output = llm.generate([5] * 199, max_tokens=50, ignore_eos=True)[0]
    assert len(output.completions[0].token_ids) == 1 and output.completions[0].finish_reason == "length"


def test_a_full_queue_refuses(folder):
    with LLM(folder, precision="fp32", max_length=200, max_batch=1, max_waiting=2) as small:
        streams = [small.stream([1, 2], max_tokens=100, ignore_eos=True) for _ in range(3)]
        with pytest.raises(QueueFullError, match="at most 2 answers"):
            small.stream([1, 2])
        for stream in streams:
            stream.cancel()
        for stream in streams:
            stream.result()
        assert small.generate([1, 2], max_tokens=1)


def test_a_step_that_fails_fails_its_requests_alone(llm, monkeypatch):
    run = llm.runner.run
    failures = [MemoryError("no room")]

    def sometimes(work):
        if failures and any(len(w.tokens) == 7 for w in work):
            raise failures.pop()
        return run(work)

    monkeypatch.setattr(llm.runner, "run", sometimes)
    with pytest.raises(MemoryError, match="no room"):
        llm.generate([3] * 7, max_tokens=2)
    assert llm.generate([3] * 7, max_tokens=2, ignore_eos=True)[0].completions[0].finish_reason == "length"
    assert llm.stats().failed >= 1 and llm.stats().pages_used == 0


def test_a_prompt_beside_an_answer_is_computed_in_pieces(folder, monkeypatch):
    prompt, *others = _prompts(6, seed=8)
    long = [token for each in others for token in each][:60]
    with LLM(folder, weights="q8_0", max_length=500, max_batch=3, max_step_tokens=24) as model:
        _check_pieces(model, prompt, long, monkeypatch)


def _check_pieces(model, prompt, long, monkeypatch):
    options = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}
    expected = model.generate(long, **options)[0].completions[0].token_ids
    pieces, failures = [], []
    entered, released = threading.Event(), threading.Event()
    released.set()
    begin = model.runner.begin

    class Watched:
        """A step whose pieces are as short as they can be, and are counted."""

        def __init__(self, work):
            if failures:
                raise failures.pop()
            self._step, self._tokens = begin(work), sum(len(item.tokens) for item in work)

        @property
        def longest_s(self):
            return self._step.longest_s

        def run_for(self, seconds):
            pieces.append(self._tokens)
            entered.set()
            assert released.wait(20)
            return self._step.run_for(0.0)

    monkeypatch.setattr(model.runner, "begin", Watched)
    beside = model.stream(prompt, temperature=0, max_tokens=480, ignore_eos=True)
    next(beside)
    assert model.generate(long, **options)[0].completions[0].token_ids == expected
    assert len(pieces) > 10
    # One that is cancelled while it is under way, and one whose step fails, end alone.
    entered.clear()
    released.clear()
    cancelled = model.stream(long, **options)
    assert entered.wait(20)
    cancelled.cancel()
    released.set()
    assert cancelled.result().completions[0].finish_reason == "cancel"
    failures.append(MemoryError("no room"))
    with pytest.raises(MemoryError, match="no room"):
        model.generate(long, **options)
    next(beside)
    assert model.generate(long, **options)[0].completions[0].token_ids == expected
    beside.cancel()
    tokens = beside.result().completions[0].token_ids
    monkeypatch.undo()
    alone = model.generate(prompt, temperature=0, max_tokens=480, ignore_eos=True)[0].completions[0].token_ids
    assert tokens == alone[: len(tokens)]


def test_who_raises_on_delivery_harms_nobody(llm):
    done = threading.Event()

    def raises(delta):
        if delta.finish_reason:
            done.set()
        raise RuntimeError("mine")

    llm.engine.submit([1, 2, 3], SamplingParams(max_tokens=150, ignore_eos=True), raises)
    assert done.wait(20)
    assert llm.generate([1, 2], max_tokens=1)


def test_close_ends_what_is_open(folder):
    made = LLM(folder, precision="fp32", max_length=200)
    stream = made.stream([1, 2], max_tokens=190, ignore_eos=True)
    next(stream)
    made.close()
    assert stream.result().completions[0].finish_reason == "cancel"
    with pytest.raises(EngineClosedError):
        made.generate([1])
    made.close()


@pytest.mark.release_build
@pytest.mark.parametrize("count", [300, pytest.param(5000, marks=pytest.mark.thorough)])
def test_memory_stays_flat_over_different_prompts(folder, count):
    random = np.random.default_rng(7)

    def status(name):
        return int(re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())[1])

    def answer(made, count):
        for first in range(0, count, 50):
            lengths = random.integers(1, 120, 50)
            prompts = [random.integers(2, 280, length).tolist() for length in lengths]
            made.generate(prompts, max_tokens=4, seed=first, ignore_eos=True)

    with LLM(folder, precision="fp32", max_length=200, max_batch=8, max_step_tokens=64, kv_cache_bytes=1 << 20) as made:
        answer(made, 200)  # every page has been written once, and plans are made
        begin = status("RssAnon")
        limits = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, ((status("VmData") + 65536) * 1024, limits[1]))
        try:
            answer(made, count)
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, limits)
        grown = status("RssAnon") - begin
        assert made.stats().finished == 200 + count
    assert grown < 4096, f"{grown} kB more after {count} prompts"


def test_what_cannot_be_loaded_is_named(folder, tmp_path):
    with pytest.raises(FileNotFoundError, match="expected a model at"):
        LLM(tmp_path / "none")
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    with pytest.raises((UnsupportedModelError, ValueError, FileNotFoundError)):
        LLM(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="expected JSON"):
        LLM(tmp_path)
    with pytest.raises(ValueError, match="kv_cache: expected one of"):
        LLM(folder, kv_cache="int3")
    with pytest.raises(ValueError, match="kv_cache: expected heads of a multiple of 32 numbers for q8_0, got 16"):
        LLM(folder, kv_cache="q8_0")
    with pytest.raises(ValueError, match="max_length: expected at most 512"):
        LLM(folder, max_length=4096)
    with pytest.raises(ValueError, match="speculation: expected 'ngram' or None, got 'guess'"):
        LLM(folder, speculation="guess")
    with pytest.raises(ValueError, match="kv_cache_bytes: expected at least"):
        LLM(folder, kv_cache_bytes=10)


@pytest.mark.parametrize("cache", ["q8_0", "q4_0"])
def test_keys_and_values_in_blocks(folder, tmp_path, cache):
    """Pages are smaller, answers nearly the same; those of a batch that runs out of pages are those of each alone."""
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    config = transformers.LlamaConfig.from_pretrained(folder)
    config.head_dim, config.initializer_range = 32, 0.1
    torch.manual_seed(2)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    options = {"weights": "q8_0", "max_length": 200, "max_batch": 8, "num_threads": 2}
    prompts = _prompts(12, seed=4)
    with LLM(tmp_path, kv_cache="f32", kv_cache_bytes=1 << 20, **options) as exact:
        wanted = exact.generate(prompts, max_tokens=12, temperature=0, ignore_eos=True, prompt_logprobs=0)
        exact_page = exact.runner.cache_bytes // exact.stats().pages
    with LLM(tmp_path, kv_cache=cache, kv_cache_bytes=1 << 20, **options) as made:
        page = made.runner.cache_bytes // made.stats().pages
        assert page * 128 == exact_page * (34 if cache == "q8_0" else 18)
        together = made.generate(prompts, max_tokens=12, temperature=0, ignore_eos=True, prompt_logprobs=0)
        alone = [made.generate(p, max_tokens=12, temperature=0, ignore_eos=True)[0] for p in prompts]
    assert [o.completions[0].token_ids for o in together] == [o.completions[0].token_ids for o in alone]
    with LLM(tmp_path, kv_cache=cache, kv_cache_bytes=7 * page, **options) as few:
        again = few.generate(prompts, max_tokens=12, temperature=0, ignore_eos=True)
        assert few.stats().preemptions
    assert [o.completions[0].token_ids for o in again] == [o.completions[0].token_ids for o in alone]
    errors = [
        abs(a.logprob - b.logprob)
        for x, y in zip(together, wanted, strict=True)
        for a, b in zip(x.prompt_logprobs, y.prompt_logprobs, strict=True)
    ]
    assert 0 < np.mean(errors) < (0.02 if cache == "q8_0" else 0.3), np.mean(errors)


@pytest.mark.parametrize("precision", ["bf16", "int8", "int8_weight"])
def test_other_precisions_answer(folder, precision):
    with LLM(folder, precision=precision, max_length=200) as made:
        output = made.generate(_prompts(4), max_tokens=5, temperature=0, ignore_eos=True)
        assert all(len(o.completions[0].token_ids) == 5 for o in output)


def test_a_draft_model_changes_no_token(folder, tmp_path):
    """One that guesses well, one that guesses badly: the tokens are those without, at any temperature."""
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    config = transformers.LlamaConfig.from_pretrained(folder)
    config.num_hidden_layers = 1
    torch.manual_seed(5)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    options = {"weights": "q8_0", "max_length": 200, "max_batch": 4, "max_step_tokens": 48}
    prompts = _prompts(10, seed=6)
    asked = [{"temperature": 0}, {"temperature": 0.8, "seed": 3, "top_p": 0.9}]
    with LLM(folder, **options) as plain:
        wanted = [plain.generate(prompts, max_tokens=30, ignore_eos=True, **each) for each in asked]
    for draft, well in ((folder, True), (tmp_path, False)):
        with LLM(folder, draft_model=draft, **options) as made:
            for each, expected in zip(asked, wanted, strict=True):
                found = made.generate(prompts, max_tokens=30, ignore_eos=True, **each)
                tokens = [o.completions[0].token_ids for o in found]
                assert tokens == [o.completions[0].token_ids for o in expected]
                drafted = sum(o.stats.drafted_tokens for o in found)
                accepted = sum(o.stats.accepted_tokens for o in found)
                assert drafted > 20
                if each["temperature"] == 0:
                    assert (accepted > 0.95 * drafted) is well
            assert made.engine._draft_model.used_pages == 0
            stream = made.stream(prompts[0], max_tokens=100, ignore_eos=True)
            next(stream)
            stream.cancel()
            stream.result()
            assert made.engine._draft_model.used_pages == 0


def test_a_draft_model_sees_a_prompt_in_pieces(folder, monkeypatch):
    """However short they are: no token waits for a whole chunk, guesses come once the prompt has been seen."""
    prompt = _prompts(5, seed=6)[-1]
    options = {"weights": "q8_0", "max_length": 400, "max_batch": 2}
    with LLM(folder, **options) as plain:
        wanted = plain.generate([prompt], max_tokens=250, ignore_eos=True, temperature=0)[0]
    monkeypatch.setattr(Pace, "piece_s", lambda self, answers, step_s: 1e-9)
    with LLM(folder, draft_model=folder, **options) as made:
        drafter, steps, pieces = made.engine._draft_model, [], []
        begin = drafter._runner.begin

        def counted(work):
            step = begin(work)
            steps.append(sum(len(item.tokens) for item in work))
            run_for = step.run_for
            step.run_for = lambda seconds: (pieces.append(seconds), run_for(seconds))[1]
            return step

        monkeypatch.setattr(drafter._runner, "begin", counted)
        found = made.generate([prompt], max_tokens=250, ignore_eos=True, temperature=0)[0]
        assert found.completions[0].token_ids == wanted.completions[0].token_ids
        assert found.stats.drafted_tokens > 0
        assert sum(steps) == len(prompt)
        assert len(pieces) > len(steps) > 1
        # An answer that goes while its prompt is under way takes it along.
        stream = made.stream(prompt, max_tokens=250, ignore_eos=True)
        for _ in range(3):
            next(stream)
        assert drafter._catching_up is not None
        stream.cancel()
        stream.result()
        assert drafter._catching_up is None
        assert drafter.used_pages == 0
        again = made.generate([prompt], max_tokens=250, ignore_eos=True, temperature=0)[0]
        assert again.completions[0].token_ids == wanted.completions[0].token_ids


def test_a_draft_model_that_fails_is_left_out(folder):
    with LLM(folder, draft_model=folder, precision="fp32", max_length=200) as made:
        made.engine._draft_model._runner.run = None
        assert len(made.generate([5, 6], max_tokens=9, ignore_eos=True)[0].completions[0].token_ids) == 9


def test_a_draft_model_has_to_fit(folder, tmp_path):
    with pytest.raises(ValueError, match="expected one way to guess"):
        LLM(folder, speculation="ngram", draft_model=folder)
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    described = json.loads((tmp_path / "tokenizer.json").read_text())
    described["model"]["vocab"]["zzz"] = len(described["model"]["vocab"])
    (tmp_path / "tokenizer.json").write_text(json.dumps(described))
    with pytest.raises(ValueError, match="draft_model: expected the tokens of the model"):
        LLM(folder, draft_model=tmp_path)


def test_commands_load_as_they_are_told(folder):
    from typer.testing import CliRunner

    from thresher.cli.app import app

    def run(command, *options):
        return CliRunner().invoke(app, ["llm", command, str(folder), *options])

    answer = ("the cat sat", "--raw", "--weights", "q8_0", "--max-tokens", "8", "--max-length", "64")
    plain = run("run", *answer)
    assert plain.exit_code == 0, plain.output
    for options in (("--draft-model", str(folder)), ("--speculation", "ngram")):
        assert run("run", *answer, *options).stdout == plain.stdout
    sizes = ("--prompt", "8", "--output", "4", "--rounds", "1", "--json")
    small = json.loads(run("bench", *sizes, "--weights", "q4_0", "--draft-model", str(folder)).stdout)
    large = json.loads(run("bench", *sizes).stdout)
    assert small["weight_bytes"] < large["weight_bytes"] / 3
    for options, text in (
        (("--speculation", "ngram", "--draft-model", str(folder)), "expected one way to guess"),
        (("--weights", "q9"), "weights: expected one of model, fp32, q8_0"),
    ):
        wrong = run("run", *answer[:2], *options)
        assert wrong.exit_code != 0 and text in wrong.output


@pytest.mark.parametrize("batch", [1, 5])
def test_bench_counts_tokens_while_all_answers_are_under_way(llm, monkeypatch, batch):
    """Each step takes 20 ms here, whatever it computes: so a token of an answer does, beside prompts or not."""
    run = llm.runner.run

    def slowly(work):
        begin = time.monotonic()
        scores = run(work)
        time.sleep(max(0.0, 0.02 - (time.monotonic() - begin)))
        return scores

    monkeypatch.setattr(llm.runner, "run", slowly)
    before = llm.stats()
    result = bench(llm, batch=batch, prompt_tokens=40, output_tokens=6, rounds=1)
    assert result.token_ms == pytest.approx(20, rel=0.5)
    assert result.decode_tokens_per_s == pytest.approx(batch / result.token_ms * 1e3)
    assert result.ttft_ms >= 20
    assert (result.read_gb_per_s is None) == (batch > 1)
    after = llm.stats()
    assert (after.running, after.waiting) == (0, 0)
    assert after.cancelled - before.cancelled == 2 * batch


def test_bench_says_where_answers_have_no_room(llm):
    with pytest.raises(ValueError, match="output_tokens: expected answers that fit into 200 tokens"):
        bench(llm, batch=2, prompt_tokens=40, output_tokens=190, rounds=1)
    assert llm.stats().running == 0

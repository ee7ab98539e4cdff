"""Packed weights in the cache: taken where they fit, made anew where they do not."""

from __future__ import annotations

import json
import os
import time

import numpy as np
import pytest
from small_decoder import write_decoder

from thresher import _engine, cache
from thresher.cache import CacheWarning, location
from thresher.llm import LLM, packed_weights

PROMPT = list(range(5, 30))


@pytest.fixture(autouse=True)
def cache_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(packed_weights, "_LEAST_BYTES", 0)
    monkeypatch.setattr(packed_weights, "_SETTLED_NS", -(10**12))
    monkeypatch.setattr(location, "_warned", set())
    cache.set_dir(tmp_path / "cache")
    yield tmp_path / "cache"
    cache.set_dir(None)


@pytest.fixture
def folder(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    return write_decoder(tmp_path / "model", "Qwen2", seed=3, initializer_range=0.3)


def answer(folder, **options):
    with LLM(folder, kv_cache_bytes=1 << 20, max_length=128, **options) as llm:
        parts = llm.runner._store.parts()
        tokens = llm.generate(PROMPT, temperature=0, max_tokens=20)[0].completions[0].token_ids
    return tokens, [given for _, _, given in parts]


def kept(cache_folder):
    return sorted((cache_folder / "weights").iterdir())


@pytest.mark.parametrize(
    "options",
    [{}, {"precision": "fp32"}, {"precision": "int8"}, {"weights": "q8_0"}, {"weights": "q4_0", "kv_cache": "f32"}],
)
def test_the_second_start_packs_nothing_and_says_the_same(folder, cache_folder, options):
    tokens, given = answer(folder, **options)
    assert given
    assert not any(given)
    (file,) = kept(cache_folder)
    written = file.stat().st_mtime_ns
    again, given = answer(folder, **options)
    assert all(given)
    assert again == tokens
    assert kept(cache_folder)[0].stat().st_mtime_ns == written
    assert answer(folder, precision="bf16")[1] == [False] * len(given), "other options have a file of their own"
    with cache.disabled():
        assert answer(folder, **options)[0] == tokens


def test_another_model_in_the_same_place_is_another_model(folder, cache_folder):
    tokens, _ = answer(folder)
    (file,) = folder.glob("*.safetensors")
    content = bytearray(file.read_bytes())
    half = len(content) // 2
    words = np.frombuffer(content[half:-256], np.uint8).copy()
    content[half:-256] = np.roll(words, 256).tobytes()  # other numbers, as many
    times = file.stat()
    file.write_bytes(content)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    other, given = answer(folder)
    assert not any(given)
    with cache.disabled():
        assert answer(folder)[0] == other != tokens
    assert len(kept(cache_folder)) == 2


def test_a_copy_of_the_model_takes_what_is_kept(folder, cache_folder, tmp_path):
    answer(folder)
    folder.rename(tmp_path / "elsewhere")
    assert all(answer(tmp_path / "elsewhere")[1])
    assert len(kept(cache_folder)) == 1


def test_a_damaged_file_is_packed_again(folder, cache_folder):
    tokens, _ = answer(folder)
    (file,) = kept(cache_folder)
    content = bytearray(file.read_bytes())
    content[-100] ^= 64
    file.write_bytes(content)
    with pytest.warns(CacheWarning, match="put aside"):
        again, given = answer(folder)
    assert again == tokens
    assert not any(given)
    assert all(answer(folder)[1])


def test_other_kernels_read_nothing_of_it(folder, cache_folder, monkeypatch):
    answer(folder)
    monkeypatch.setattr(_engine, "packed_layout", lambda: "0" * 32)
    assert not any(answer(folder)[1])
    assert len(kept(cache_folder)) == 2


def test_a_cache_that_cannot_be_written_is_done_without(folder):
    cache.set_dir("/proc/thresher")
    with pytest.warns(CacheWarning, match="expected a folder that can be written"):
        tokens, _ = answer(folder)
    assert len(tokens) == 20


def test_a_file_that_has_just_changed_is_read_again(folder, cache_folder, monkeypatch):
    monkeypatch.setattr(packed_weights, "_SETTLED_NS", 3_600_000_000_000)
    answer(folder)
    assert not (cache_folder / "digests").exists()
    monkeypatch.setattr(packed_weights, "_SETTLED_NS", 1)
    time.sleep(0.01)
    answer(folder)
    (file,) = (cache_folder / "digests").iterdir()
    assert json.loads(file.read_bytes())["key"]["path"].startswith(str(folder))


def test_small_models_are_packed_sooner_than_kept(folder, cache_folder, monkeypatch):
    monkeypatch.setattr(packed_weights, "_LEAST_BYTES", 16 << 20)
    answer(folder)
    assert not cache_folder.exists()

"""Tokenizers of sentence pieces in GGUF files, against what their scores say."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from thresher.llm.models import UnsupportedModelError
from thresher.llm.models.gguf import config_of, tokenizer_of

pytest.importorskip("tokenizers")

_SPACE = "\u2581"
_TEXT = "the cat sat on the mat and the other cats looked at the moon while a dog ran round the old house in the rain"
_BYTES = [f"<0x{number:02X}>" for number in range(256)]


def _vocabulary():
    """Pieces, all parts of words of the text; what is shorter or comes first has the better score."""
    pieces: dict[str, None] = {}
    words = [_SPACE + word for word in _TEXT.split()]
    for length in range(1, 7):
        for word in words:
            for first in range(len(word) - length + 1):
                pieces.setdefault(word[first : first + length])
    random = np.random.default_rng(3)
    kept = [piece for piece in pieces if len(piece) == 1 or random.random() < 0.7]
    scores = random.permutation(len(kept)) * -1.0
    tokens = ["<unk>", "<s>", "</s>", *_BYTES, *kept, "<|turn|>"]
    types = [2, 3, 3, *[6] * 256, *[1] * len(kept), 4]
    return tokens, np.array([0.0] * 259 + list(scores) + [0.0], np.float32), np.array(types, np.int32)


_TOKENS, _SCORES, _TYPES = _vocabulary()


def _metadata(**changes):
    found = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": _TOKENS,
        "tokenizer.ggml.scores": _SCORES,
        "tokenizer.ggml.token_type": _TYPES,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    return {**found, **{f"tokenizer.ggml.{name}": value for name, value in changes.items()}}


def _by_scores(text, prefix=True):
    """The two neighbours whose piece has the best score are joined, the first of equals, until none are."""
    known = {piece: number for number, piece in enumerate(_TOKENS) if _TYPES[number] == 1}
    parts = list(((" " if prefix and text else "") + text).replace(" ", _SPACE))
    while True:
        pairs = [(_SCORES[known[a + b]], -at) for at, (a, b) in enumerate(itertools.pairwise(parts)) if a + b in known]
        if not pairs:
            break
        at = -max(pairs)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    found = []
    for part in parts:
        found += [known[part]] if part in known else [3 + byte for byte in part.encode()]
    return found


@pytest.mark.parametrize(
    "text",
    [
        "the cat",
        "cats",
        "  two  spaces ",
        "",
        "a",
        "moon\nrain",
        "the müllers and 猫 🐈 sat",
        "theatre",
        "hathe" * 20,
        _TEXT,
    ],
)
@pytest.mark.parametrize("prefix", [True, False])
def test_texts_are_cut_as_scores_say(text, prefix):
    tokenizer = tokenizer_of(_metadata(add_space_prefix=prefix))
    assert tokenizer.encode(text, special=False) == _by_scores(text, prefix)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_random_texts():
    tokenizer = tokenizer_of(_metadata())
    random = np.random.default_rng(5)
    letters = list("thecasonmdlkwiru  é")
    for length in random.integers(1, 40, 100):
        text = "".join(random.choice(letters, length))
        assert tokenizer.encode(text, special=False) == _by_scores(text), text


def test_what_stands_around_a_text():
    tokens = _by_scores("the cat")
    assert tokenizer_of(_metadata()).encode("the cat") == [1, *tokens]
    assert tokenizer_of(_metadata(add_bos_token=False, add_eos_token=True)).encode("the cat") == [*tokens, 2]
    assert tokenizer_of(_metadata(add_bos_token=False)).encode("the cat") == tokens
    tokenizer = tokenizer_of(_metadata(add_space_prefix=False))
    turn = len(_TOKENS) - 1
    assert tokenizer.encode("cats<|turn|>cats</s>", special=False) == [
        *(*_by_scores("cats", False), turn),
        *(*_by_scores("cats", False), 2),
    ]
    assert tokenizer.special == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    assert tokenizer.token_bytes(3 + 0xC3) == b"\xc3"
    assert tokenizer.token_bytes(_TOKENS.index(_SPACE)) == b" "


def test_what_does_not_fit_is_named():
    metadata = _metadata()
    del metadata["tokenizer.ggml.scores"]
    with pytest.raises(UnsupportedModelError, match=r"expected tokenizer.ggml.scores of \d+ tokens, got none"):
        tokenizer_of(metadata)
    with pytest.raises(UnsupportedModelError, match=r"tokens, got 3"):
        tokenizer_of(_metadata(scores=np.zeros(3, np.float32)))
    with pytest.raises(UnsupportedModelError, match=r"token_type of \d+ tokens, got 2"):
        tokenizer_of(_metadata(token_type=np.ones(2, np.int32)))
    assert tokenizer_of(_metadata(bos_token_id=10_000)).encode("the cat") == _by_scores("the cat")
    with pytest.raises(UnsupportedModelError, match=r"the key tokenizer\.ggml\.tokens, got none"):
        config_of({"general.architecture": "llama"})
    with pytest.raises(UnsupportedModelError, match="or of sentence pieces"):
        tokenizer_of(_metadata(model="bert"))

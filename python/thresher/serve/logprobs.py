"""Logarithms of probabilities, as OpenAI's API has them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from thresher.llm import Delta, Logprobs
from thresher.llm.tokenizer import Tokenizer

_LEAST = -9999.0  # JSON has no -inf


def chat_logprobs(tokenizer: Tokenizer, delta: Delta) -> list[dict[str, Any]]:
    """One entry a token of a chat's answer."""
    found = []
    for each in shown(delta):
        entry = _entry(tokenizer, each.token_id, each.logprob)
        entry["top_logprobs"] = [_entry(tokenizer, token, logprob) for token, logprob in each.top]
        found.append(entry)
    return found


def shown(delta: Delta) -> Sequence[Logprobs]:
    """Those of tokens that are part of the answer: what ends it without text is not."""
    if delta.finish_reason == "stop" and delta.logprobs and not delta.text:
        return delta.logprobs[:-1]
    return delta.logprobs


class CompletionLogprobs:
    """Collects those of a completion, and where in the text each token begins."""

    def __init__(self, tokenizer: Tokenizer, offset: int = 0) -> None:
        self._tokenizer = tokenizer
        self._offset = offset

    def of(self, tokens: Iterable[Logprobs | int], top: int) -> dict[str, Any]:
        """The entries of tokens, which follow those of the last call; a number stands for one without."""
        found: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for each in tokens:
            token = each if isinstance(each, int) else each.token_id
            text = _text(self._tokenizer, token)
            found["tokens"].append(text)
            found["text_offset"].append(self._offset)
            self._offset += len(text)
            if isinstance(each, int):
                found["token_logprobs"].append(None)
                found["top_logprobs"].append(None)
                continue
            found["token_logprobs"].append(max(each.logprob, _LEAST))
            likely = {_text(self._tokenizer, t): max(logprob, _LEAST) for t, logprob in each.top[:top]}
            found["top_logprobs"].append(likely)
        return found


def _entry(tokenizer: Tokenizer, token: int, logprob: float) -> dict[str, Any]:
    data = tokenizer.token_bytes(token)
    return {"token": data.decode("utf-8", "replace"), "logprob": max(logprob, _LEAST), "bytes": list(data)}


def _text(tokenizer: Tokenizer, token: int) -> str:
    return tokenizer.token_bytes(token).decode("utf-8", "replace")

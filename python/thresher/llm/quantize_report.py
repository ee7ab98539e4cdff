"""What a model loses in fewer bits: perplexity, and how often the same token is the most likely one."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Sequence
from typing import Any

from thresher.llm.api import LLM
from thresher.llm.loading import WEIGHTS, encoding_of
from thresher.llm.runner import CACHES
from thresher.llm.sampling import Logprobs

# Options of LLM by the name of what they make. Either weights differ from the reference or keys and values do.
ENCODINGS: dict[str, dict[str, str]] = {
    "model": {},
    **{name: {"precision": name, "weights": "fp32"} for name in ("bf16", "int8", "int8_weight", "int4_weight")},
    **{name: {"precision": "fp32", "weights": name} for name in WEIGHTS},
    **{f"kv_{name}": {"precision": "fp32", "weights": "fp32", "kv_cache": name} for name in CACHES if name != "f32"},
}
_LONGEST_TOKEN = 16  # letters, by and large
_REFERENCE = {"precision": "fp32", "weights": "fp32"}


@dataclasses.dataclass(frozen=True, slots=True)
class EncodingResult:
    """What one encoding of the weights does to a model.

    Attributes:
      name: of ENCODINGS, or "fp32", which the others are compared with.
      weight_bytes: packed weights in memory.
      cache_token_bytes: keys and values of a token.
      perplexity: of the text.
      agreement: the share of places where the most likely token is that of fp32.
      tokens: how many were predicted.
    """

    name: str
    weight_bytes: int
    cache_token_bytes: int
    perplexity: float
    agreement: float
    tokens: int

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return dataclasses.asdict(self)


def quantize_report(
    path: str | os.PathLike[str],
    text: str,
    encodings: Sequence[str] = tuple(ENCODINGS),
    *,
    most_tokens: int | None = None,
    window: int = 512,
    num_threads: int = 0,
    progress: Callable[[str], None] | None = None,
) -> list[EncodingResult]:
    """Compares encodings of a model's weights with fp32, on a text.

    Args:
      path: of the model.
      text: what is predicted, token by token; ``sample_text()`` gives one.
      encodings: names of ENCODINGS, and those with a group, such as "q4_0:128".
      most_tokens: of the text; None: all.
      window: tokens that are predicted from their beginning on; the text is cut into so many.
      num_threads: 0: as many as the engine has.
      progress: is told each name when its turn comes.

    Returns:
      First fp32, then the encodings in their order.

    Raises:
      ValueError: an encoding is not known, the text has fewer than two tokens, or the model is not supported.
      NotImplementedError: the model's weights cannot be encoded so.
    """
    chosen = {"fp32": _REFERENCE, **{name: _options(name) for name in encodings}}
    results: list[EncodingResult] = []
    best: list[int] = []
    for name, own in chosen.items():
        if progress is not None:
            progress(name)
        options: dict[str, Any] = {"kv_cache": "f32", **own}
        with LLM(path, **options, max_batch=1, prefix_cache=False, num_threads=num_threads) as llm:
            found = _predict(llm, text, most_tokens, window)
            likely = [each.top[0][0] for each in found]
            best = best or likely
            results.append(
                EncodingResult(
                    name,
                    llm.runner.weight_bytes,
                    llm.runner.token_bytes,
                    math.exp(-sum(each.logprob for each in found) / len(found)),
                    sum(a == b for a, b in zip(likely, best, strict=True)) / len(found),
                    len(found),
                )
            )
    return results


def _options(encoding: str) -> dict[str, str]:
    """Options of LLM that make an encoding."""
    if encoding in ENCODINGS:
        return ENCODINGS[encoding]
    if encoding.partition(":")[0] not in WEIGHTS:
        raise ValueError(f"encodings: expected some of {', '.join(ENCODINGS)}, got {encoding}")
    encoding_of(encoding)
    return {"precision": "fp32", "weights": encoding}


def _predict(llm: LLM, text: str, most_tokens: int | None, window: int) -> list[Logprobs]:
    if most_tokens is not None:
        text = text[: _LONGEST_TOKEN * most_tokens]  # the rest would be read for nothing
    tokens = llm.encode(text)[:most_tokens]
    length = min(window, llm.engine.max_length - 1)
    if length < 2 or len(tokens) < 2:
        raise ValueError(f"expected a text and a window of at least two tokens, got {len(tokens)} and {length}")
    windows = [tokens[first : first + length] for first in range(0, len(tokens), length)]
    outputs = llm.generate(windows, temperature=0, max_tokens=1, prompt_logprobs=1)
    return [each for output in outputs for each in output.prompt_logprobs]

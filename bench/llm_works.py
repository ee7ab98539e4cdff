"""What is measured of language models, a row each: beside other engines, against the roofs of the machine, or against
Thresher itself in another state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from llm_turns import ENGINES, OURS, Load, Places, loaded

from measure.statistics import median

OUTPUT = 64  # tokens of an answer
PROMPT = 16  # tokens of a short prompt
FEW = "4 bit"
ALONE = tuple(engine.key for engine in ENGINES)
TOGETHER = (OURS, "llama_cpp")
LLAMA_CPP = "llama_cpp"


@dataclass(frozen=True)
class Model:
    """A model that is measured.

    Attributes:
      title: in the table.
      file: GGUF, or a folder, which is the other one.
      folder: for engines that do not read it.
      bits: "bf16", "8 bit" or "4 bit": which roof its products have, and how near they are to come.
    """

    title: str
    file: Path
    folder: Path
    bits: str


@dataclass(frozen=True)
class Settings:
    """How it is measured.

    Attributes:
      places: where things lie.
      threads: numbers of threads; the largest alone where a work does not say otherwise.
      rounds: turns of each engine.
      prompts: tokens of prompts.
      batches: requests at a time.
      context: tokens of a long context; 0: what Thresher takes by default.
    """

    places: Places
    threads: tuple[int, ...]
    rounds: int
    prompts: tuple[int, ...]
    batches: tuple[int, ...]
    context: int = 0


@dataclass(frozen=True)
class Row:
    """One measurement.

    Attributes:
      model: its title.
      work: what was done.
      threads: of every engine.
      found: of Thresher, with its unit.
      share: of the roof.
      roof: of what.
      peers: how many times as fast as each other engine Thresher is.
      wanted: what is to be reached, in words.
      missed: what of that was not.
      details: everything that was measured.
    """

    model: str
    work: str
    threads: int
    found: str
    share: float | None = None
    roof: str = ""
    peers: Mapping[str, float] = field(default_factory=dict)
    wanted: str = ""
    missed: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def _peers(made: Mapping[str, Any], figure: str, *, more: bool) -> dict[str, float]:
    """How many times as good Thresher's figure is as each other engine's; `more` of it is better, or less."""
    engines = made["engines"]
    ours = engines[OURS][figure]
    found = {}
    for key, engine in engines.items():
        if key != OURS and figure in engine:
            found[key] = ours / engine[figure] if more else engine[figure] / ours
    return found


def _missed(wishes: Sequence[tuple[str, float | None, float]]) -> str:
    """Which figures are below what they are to be at least; those that were not measured are not."""
    return ", ".join(name for name, got, least in wishes if got is not None and got < least)


def decode(model: Model, s: Settings) -> Iterator[Row]:
    """Tokens of one answer, on each number of threads."""
    least = 0.75 if model.bits == FEW else 0.85
    load = Load(1, PROMPT, OUTPUT)
    for threads in s.threads:
        with loaded(s.places, (model.file, model.folder), threads, 1, PROMPT + OUTPUT, ALONE) as engines:
            made = engines.measure(load, s.rounds, roofs=True)
            about = engines.call("describe", length=PROMPT + OUTPUT // 2)
        token_ms = made["engines"][OURS]["token_ms"]
        share = about["decode_bytes"] / (token_ms / 1e3) / made["roofs"]["read_bytes"]
        peers = _peers(made, "token_ms", more=False)
        missed = _missed((("roof", share, least), ("llama.cpp", peers.get(LLAMA_CPP), 1.3)))
        wanted = f"{least:.0%} of the roof, 1.3 x llama.cpp"
        yield Row(model.title, "decode, 1 request", threads, f"{token_ms:.2f} ms a token", share, "reading", peers,
                  wanted, missed, made | about)  # fmt: skip


def prefill(model: Model, s: Settings) -> Iterator[Row]:
    """Prompts of several lengths."""
    threads, longest = max(s.threads), max(s.prompts)
    with loaded(s.places, (model.file, model.folder), threads, 1, longest + OUTPUT, ALONE) as engines:
        about = engines.call("describe", length=longest)
        for prompt in s.prompts:
            made = engines.measure(Load(1, prompt, 2), s.rounds, roofs=True)
            kind = "bf16" if model.bits == "bf16" and "bf16" in made["roofs"] else about["prompts_as"]
            rate = made["engines"][OURS]["prompt_tokens_per_s"]
            share = rate * about["operations_per_token"] / made["roofs"][kind]
            peers = _peers(made, "prompt_tokens_per_s", more=True)
            missed = _missed((("roof", share, 0.7), ("best other", min(peers.values(), default=None), 1.5)))
            yield Row(model.title, f"prompt of {prompt}", threads, f"{rate:.0f} tokens/s", share, kind, peers,
                      "70 % of the roof, 1.5 x the best other", missed, made | about)  # fmt: skip


def batch(model: Model, s: Settings) -> Iterator[Row]:
    """Several requests at a time, over one; weights of 4 bits once more in 8, of which the wish is."""
    threads, most = max(s.threads), max(s.batches)
    for weights, keys in {"model": TOGETHER, **({"q8_0": (OURS,)} if model.bits == FEW else {})}.items():
        places = s.places, (model.file, model.folder)
        with loaded(*places, threads, most, PROMPT + OUTPUT, keys, weights=weights) as engines:
            alone = engines.measure(Load(1, PROMPT, OUTPUT), s.rounds)
            for count in s.batches:
                made = engines.measure(Load(count, PROMPT, OUTPUT), s.rounds)
                rate = made["engines"][OURS]["tokens_per_s"]
                times = rate / alone["engines"][OURS]["tokens_per_s"]
                least = None if weights == "model" and model.bits == FEW else {8: 4.0, 32: 8.0}.get(count)
                work = f"{count} requests" if weights == "model" else f"{count} requests, weights in {weights}"
                yield Row(model.title, work, threads, f"{rate:.0f} tokens/s, {times:.1f} x one request",
                          peers=_peers(made, "tokens_per_s", more=True),
                          wanted=f"{least:g} x one request" if least else "",
                          missed=_missed((("one request", times, least or 0.0),)), details=made)  # fmt: skip


def context(model: Model, s: Settings) -> Iterator[Row]:
    """Tokens behind a long prompt, keys and values in int8."""
    threads = max(s.threads)
    options = {"kv_cache": "q8_0"}
    with loaded(s.places, (model.file, model.folder), threads, 1, s.context, **options) as engines:
        found = [engines.call("long_context", count=OUTPUT) for _ in range(_few(s) + 1)][1:]
    empty, full = (median([each[name] for each in found]) for name in ("empty_ms", "full_ms"))
    yield Row(model.title, f"behind {found[0]['prompt']} tokens, cache in q8_0", threads,
              f"{full:.2f} ms a token, {full / empty:.2f} x an empty context", wanted="1.25 x an empty context",
              missed=_missed((("empty context", 1.25, full / empty),)), details={"samples": found})  # fmt: skip


def cached(model: Model, s: Settings) -> Iterator[Row]:
    """The first token of a prompt that was computed before."""
    with loaded(s.places, (model.file, model.folder), max(s.threads), 1, s.context, prefix_cache=True) as engines:
        found = [engines.call("cached_prompt", length=max(s.prompts), seed=turn) for turn in range(s.rounds + 1)][1:]
    times = median([each["computed_ms"] / each["cached_ms"] for each in found])
    again = median([each["cached_ms"] for each in found])
    yield Row(model.title, f"first token, prompt of {found[0]['prompt']} cached", max(s.threads),
              f"{again:.1f} ms, {times:.1f} x sooner", wanted="10 x sooner",
              missed=_missed((("sooner", times, 10.0),)), details={"samples": found})  # fmt: skip


def start(model: Model, s: Settings) -> Iterator[Row]:
    """A fresh process with packed weights in the cache, and its memory when keys and values fill theirs."""
    threads, prompt = max(s.threads), max(s.prompts)
    found = []
    for _ in range(_few(s) + 1):
        with loaded(s.places, (model.file, model.folder), threads, 1, prompt + OUTPUT) as engines:
            ours = dict(engines.made[OURS])
            made = engines.measure(Load(1, prompt, OUTPUT), 1)["engines"][OURS]
            found.append(ours | {"peak_mb": made["peak_mb"]} | engines.call("memory_asked"))
    found = found[1:]
    seconds = median([each["start_s"] for each in found])
    peak = median([each["peak_mb"] for each in found])
    weights, pages, python = (found[0][name] for name in ("weights_mb", "cache_mb", "imported_mb"))
    share = (peak - pages) / weights
    yield Row(model.title, "start, weights packed before", threads, f"{seconds:.2f} s", wanted="0.5 s",
              missed=_missed((("start", 0.5, seconds),)), details={"samples": found})  # fmt: skip
    yield Row(model.title, "peak memory", threads,
              f"{peak:.0f} MB: {share:.2f} x weights of {weights:.0f} MB, and {pages:.0f} MB of pages "
              f"({python:.0f} MB before the model)",
              wanted="1.1 x the weights, and the pages", missed=_missed((("memory", 1.1, share),)))  # fmt: skip


def gap(model: Model, s: Settings) -> Iterator[Row]:
    """Time between two tokens of an answer while a long prompt is computed beside it, 99 of 100 times at most."""
    threads = max(s.threads)
    for cache in ("bf16", "q8_0"):
        with loaded(s.places, (model.file, model.folder), threads, 2, s.context, kv_cache=cache) as engines:
            found = [engines.call("gap") for _ in range(_few(s))]
        times = median([each["beside_p99_ms"] / each["alone_p99_ms"] for each in found])
        beside = median([each["beside_p99_ms"] for each in found])
        work = f"p99 gap beside a prompt of {found[0]['prompt_tokens']}, cache in {cache}"
        yield Row(model.title, work, threads, f"{beside:.1f} ms, {times:.1f} x alone", wanted="3 x alone",
                  missed=_missed((("alone", 3.0, times),)), details={"samples": found})  # fmt: skip


def _few(s: Settings) -> int:
    """Turns of what takes long."""
    return min(s.rounds, 3)


WORKS: Mapping[str, Callable[[Model, Settings], Iterator[Row]]] = {
    work.__name__: work for work in (decode, prefill, batch, context, cached, start, gap)
}

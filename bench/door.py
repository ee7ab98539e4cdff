"""The way of a call into a model: what it costs beside the plan, how long the first call takes, what threads capture.

Usage: python door.py --model minilm --output FOLDER, in an environment with Thresher; bench/run.py --door calls it. The
weights are random and the layers narrow where only the way counts: it does not depend on them.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

import torch
from sizes import SHAPES, inputs_of
from transformers import BertConfig, BertModel

import thresher
from measure.table import Table
from thresher import _engine
from thresher.compiler.builder import TORCH_DTYPES
from thresher.compiler.stats import RECORDER
from thresher.torch_shim import tensors as shim

NARROW = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}  # a plan of some ten microseconds
ROUNDS = 15
CALLS = 50
THREADS = 24
CASES = [(2 + i % 4, 5 + 3 * i) for i in range(16)]
FIRST_ROUNDS = 3
SLOWER = 1.1  # a shape after the rush over the same shape alone

Call = Callable[[], Any]


def medians(calls: dict[str, Call], clock: Callable[[], float] = time.thread_time) -> dict[str, float]:
    """Seconds of one call of each: the medians of turns. By default what the calling thread computes."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            begin = clock()
            for _ in range(CALLS):
                call()
            times[name].append((clock() - begin) / CALLS)
    return {name: statistics.median(found) for name, found in times.items()}


def overhead(model: str) -> dict[str, dict[str, float]]:
    """Microseconds on the clock of a call beyond its plan's run with arguments that are ready, by number of threads."""
    encoder = BertModel(BertConfig(**{**SHAPES[model], **NARROW})).eval()
    inputs = inputs_of((2, 16))
    found: dict[str, dict[str, float]] = {}
    for threads in sorted({1, _engine.num_threads()}):
        _engine.set_num_threads(threads)
        thresher.clear_cache()
        torch._dynamo.reset()
        compiled = thresher.compile(encoder)
        compiled(**inputs)
        (plan,) = (plan for graph in RECORDER.alive() for plan in graph.plans())
        given = [inputs[name.removeprefix("kwargs.")] for name, _, _ in plan.inputs]
        results = [torch.empty(shape, dtype=TORCH_DTYPES[dtype]) for dtype, shape in plan.outputs]
        places = shim.places(given), shim.places(results)
        guarded = torch.compile(encoder, backend="thresher")
        calls: dict[str, Call] = {
            "plan": functools.partial(plan.run_at, *places),
            "thresher.compile": functools.partial(compiled, **inputs),
            "torch.compile": functools.partial(guarded, **inputs),
        }
        for call in calls.values():
            call()
        took = medians(calls, time.perf_counter)
        found[str(threads)] = {name: (took[name] - took["plan"]) * 1e6 for name in calls if name != "plan"}
    return found


def first_call(model: str, way: str) -> float:
    """Seconds of the first call in a process of its own, which has called the model without compiling it."""
    command = [sys.executable, "-W", "ignore", __file__, "--model", model, "--first", way]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def measure_first(model: str, way: str) -> float:
    """The same, in this process."""
    encoder = BertModel(BertConfig(**SHAPES[model])).eval()
    inputs = inputs_of((2, 16))
    encoder(**inputs)
    compile_it = {
        "eager": lambda: torch.compile(encoder, backend="eager"),
        "thresher": lambda: thresher.compile(encoder),
        "thresher, dynamic": lambda: thresher.compile(encoder, dynamic=True),
    }
    begin = time.perf_counter()
    compile_it[way]()(**inputs)
    return time.perf_counter() - begin


def rush(model: str) -> dict[str, Any]:
    """Threads that call a new model at once, with several shapes each, against one thread."""
    encoder = BertModel(BertConfig(**{**SHAPES[model], **NARROW})).eval()
    inputs = {case: inputs_of(case) for case in CASES}

    def call_all(compiled: Any, first: int) -> None:
        with torch.no_grad():
            for i in range(len(CASES)):
                compiled(**inputs[CASES[(first + i) % len(CASES)]])

    alone = thresher.compile(encoder)
    thresher.clear_cache()
    call_all(alone, 0)
    one = thresher.compilation_stats().graphs
    thresher.clear_cache()
    together = thresher.compile(encoder)
    start = threading.Barrier(THREADS)

    def work(number: int) -> None:
        start.wait()
        call_all(together, number)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    many = thresher.compilation_stats().graphs
    call_all(alone, 0)
    ratios = {}
    for case in CASES:
        found = medians({"alone": lambda c=case: alone(**inputs[c]), "together": lambda c=case: together(**inputs[c])})
        ratios[f"{case[0]}x{case[1]}"] = found["together"] / found["alone"]
    return {"threads": THREADS, "shapes": len(CASES), "one": one, "many": many, "ratios": ratios}


def main() -> int:
    """Runs the command line.

    Returns:
      1 where threads capture more than one thread or leave a shape slower, else 0.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SHAPES, default="minilm")
    parser.add_argument("--output", type=Path, default=Path("build/bench"))
    parser.add_argument("--first", help=argparse.SUPPRESS)
    options = parser.parse_args()
    with torch.no_grad():
        if options.first:
            print(measure_first(options.model, options.first))
            return 0
        costs = overhead(options.model)
        found: dict[str, Any] = {"model": options.model, "overhead_us": costs, "rush": rush(options.model)}
    ways = ("eager", "thresher", "thresher, dynamic")
    rounds = [{way: first_call(options.model, way) for way in ways} for _ in range(FIRST_ROUNDS)]
    found["first_call"] = {way: statistics.median(r[way] / r["eager"] for r in rounds) for way in ways[1:]}
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "door.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    table = Table("The way into a model", ["<what", "value"])
    for threads, cost in costs.items():
        for name, value in cost.items():
            table.add(f"call of {name} beyond its plan, us, {threads} thread{'s'[: threads != '1']}", f"{value:.0f}")
    for way, value in found["first_call"].items():
        table.add(f'first call, {way}, over torch.compile(backend="eager")', f"{value:.2f}")
    crowd = found["rush"]
    worst = max(crowd["ratios"], key=lambda case: float(crowd["ratios"][case]))
    table.add("captures of one thread", str(crowd["one"]))
    table.add(f"captures of {crowd['threads']} threads, {crowd['shapes']} shapes", str(crowd["many"]))
    table.add(f"a shape afterwards over the same alone, worst ({worst})", f"{crowd['ratios'][worst]:.2f}")
    table.print()
    return int(crowd["many"] > crowd["one"] or statistics.median(crowd["ratios"].values()) > SLOWER)


if __name__ == "__main__":
    sys.exit(main())

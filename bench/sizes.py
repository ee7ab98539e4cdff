"""Many sizes on one model: how many plans they take, how much memory, and what a plan for many costs a call.

Usage: python sizes.py --model minilm --count 1000 --largest 32,512 --output FOLDER, in an environment with Thresher;
bench/run.py --sizes calls it. The weights are random: what is measured does not depend on them.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

import torch
from models import MODELS
from transformers import BertConfig, BertModel

import thresher
from measure.table import Table

SHAPES: dict[str, dict[str, int]] = {
    "minilm": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
    "bert-base": {},
}
COMPARED = 16  # sizes at which a plan of their own is made, too
LEAST_SECONDS = 0.3  # of calls by turns at each of them
LEAST_TURNS = 7
MOST_PLANS = 8
FLAT = 1.05  # memory after the second pass over that after the first


def choose_sizes(count: int, largest: tuple[int, int]) -> list[tuple[int, int]]:
    """Different pairs of batch and sequence, the largest among them; small sizes are as likely as large ones."""
    if count > largest[0] * largest[1] // 2:
        raise ValueError(f"expected at most {largest[0] * largest[1] // 2} different sizes, got {count}")
    choose = random.Random(7)
    found = {largest: None}
    while len(found) < count:
        found[round(largest[0] ** choose.random()), round(largest[1] ** choose.random())] = None
    sizes = list(found)
    choose.shuffle(sizes)
    return sizes


def inputs_of(size: tuple[int, int]) -> dict[str, torch.Tensor]:
    """Words and a mask that hides the end of the last row."""
    words = torch.randint(0, 30000, size)
    mask = torch.ones(size, dtype=torch.int64)
    mask[-1, size[1] // 2 + 1 :] = 0
    return {"input_ids": words, "attention_mask": mask}


def resident_mb() -> float:
    """Memory of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096 / 1e6


def ratio(many: Any, own: Any, size: tuple[int, int]) -> float:
    """Time of a call by the plan for many over that by a plan for this size: the median of the quotients of turns."""
    inputs = inputs_of(size)
    times: tuple[list[float], list[float]] = ([], [])
    for model in (many, own):
        model(**inputs)
    begin = time.perf_counter()
    while len(times[0]) < LEAST_TURNS or time.perf_counter() - begin < LEAST_SECONDS:
        for which in (0, 1) if len(times[0]) % 2 else (1, 0):
            start = time.perf_counter()
            (many, own)[which](**inputs)
            times[which].append(time.perf_counter() - start)
    return statistics.median(a / b for a, b in zip(*times, strict=True))


def measure(model: str, count: int, largest: tuple[int, int]) -> dict[str, Any]:
    """Runs all sizes twice, and some against plans of their own."""
    torch.manual_seed(20)
    encoder = BertModel(BertConfig(**SHAPES[model])).eval()
    sizes = choose_sizes(count, largest)
    many = thresher.compile(encoder, dynamic=True)
    found: dict[str, Any] = {"model": model, "sizes": len(sizes), "largest": list(largest)}
    with torch.no_grad():
        for turn in ("first", "second"):
            begin = time.perf_counter()
            for size in sizes:
                many(**inputs_of(size))
            stats = thresher.compilation_stats()
            found[turn] = {
                "seconds": time.perf_counter() - begin,
                "resident_mb": resident_mb(),
                "plans": stats.plans,
                "plans_built": stats.plans_built,
                "compile_seconds": stats.compile_seconds,
            }
        own = thresher.compile(encoder, dynamic=True, config=thresher.CompilerConfig(plan_sizes="one"))
        compared = sorted(sizes, key=lambda size: size[0] * size[1])[:: max(1, len(sizes) // COMPARED)]
        found["ratios"] = {f"{size[0]}x{size[1]}": ratio(many, own, size) for size in compared}
    return found


def table_of(found: dict[str, Any]) -> Table:
    """One row a pass, and the worst ratio."""
    batch, length = found["largest"]
    title = f"{found['sizes']} sizes up to {batch} x {length}, {MODELS[found['model']].title}"
    table = Table(title, ["<pass", "plans", "plans built", "planning s", "memory MB", "seconds"])
    for turn in ("first", "second"):
        row = found[turn]
        table.add(
            turn,
            str(row["plans"]),
            str(row["plans_built"]),
            f"{row['compile_seconds']:.2f}",
            f"{row['resident_mb']:.0f}",
            f"{row['seconds']:.0f}",
        )
    return table


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SHAPES, default="minilm")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--largest", default="32,512", help="batch and sequence (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=Path("build/bench"))
    options = parser.parse_args()
    batch, length = map(int, options.largest.split(","))
    found = measure(options.model, options.count, (batch, length))
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "sizes.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    table_of(found).print()
    first, second = found["first"], found["second"]
    worst = max(found["ratios"], key=lambda size: float(found["ratios"][size]))
    print(
        f"time of a call over that of a plan for its size: worst {found['ratios'][worst]:.3f} (at {worst}), "
        f"median {statistics.median(found['ratios'].values()):.3f}, {len(found['ratios'])} sizes"
    )
    flat = second["plans_built"] == first["plans_built"] and second["resident_mb"] < FLAT * first["resident_mb"]
    if not flat or second["plans"] > MOST_PLANS:
        print(
            f"bench: expected at most {MOST_PLANS} plans, and no more plans or memory in the second pass",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

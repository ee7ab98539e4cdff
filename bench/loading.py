"""Loading a model file: how long it takes, how much memory, and what the first calls then take.

Usage: python loading.py --model minilm --output FOLDER, in an environment with Thresher; bench/run.py --loading calls
it. Every load has a process of its own, without PyTorch. The weights are random: what is measured does not depend on
them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

import numpy as np

import thresher
from measure.table import Table

LARGEST = {"batch": 32, "sequence": 512}
EXPORTED = (2, 128)
CALLED = ({"batch": 4, "sequence": 16}, {"batch": 5, "sequence": 33})
PRECISIONS = ("fp32", "int8")
ROUNDS = 9
MOST_MEMORY = {"one size": 1.1, "many sizes": 1.15}  # of what the file holds; the latter has four graphs and plans


def write(model: str, folder: Path) -> dict[str, Path]:
    """Exports the encoder for one combination of sizes and for all up to the largest; what is there is kept."""
    paths = {"one size": folder / f"{model}.thrmodel", "many sizes": folder / f"{model}-many.thrmodel"}
    if all(path.exists() for path in paths.values()):
        return paths
    import torch
    from sizes import SHAPES, inputs_of
    from transformers import BertConfig, BertModel

    folder.mkdir(parents=True, exist_ok=True)
    encoder = BertModel(BertConfig(**SHAPES[model])).eval()
    inputs = inputs_of(EXPORTED)
    dims = {place: torch.export.Dim(name, max=LARGEST[name]) for place, name in enumerate(LARGEST)}
    thresher.export(encoder, (), paths["one size"], kwargs=inputs)
    thresher.export(encoder, (), paths["many sizes"], kwargs=inputs, dynamic_shapes=dict.fromkeys(inputs, dims))
    return paths


def memory(name: str) -> int:
    """Bytes of this process: VmRSS, those in memory now, or VmHWM, the most there were."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith(f"{name}:"))


def load_here(path: str, precision: str) -> dict[str, float]:
    """Seconds of a load and of the first calls, at sizes that differ where the file has many; bytes at the peak."""
    load = thresher.load  # which imports what it needs
    before = memory("VmRSS")
    cpu, begin = time.process_time(), time.perf_counter()
    model = load(path, precision=precision)
    found = {"load": time.perf_counter() - begin, "processor": time.process_time() - cpu}
    found["peak"] = memory("VmHWM") - before
    for name, called in zip(("first call", "second call"), CALLED, strict=True):
        sizes = {size: called[size] for size in model.sizes[0]}
        inputs = [
            np.ones(port.shape, port.dtype) for port in (model.inputs_at(sizes) if model.sizes[0] else model.inputs)
        ]
        begin = time.perf_counter()
        model(*inputs)
        found[name] = time.perf_counter() - begin
    return found


def load_apart(path: Path, precision: str) -> dict[str, float]:
    """The same in a process of its own."""
    command = [sys.executable, "-W", "ignore", __file__, "--load", str(path), precision]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> int:
    """Runs the command line.

    Returns:
      1 where loading takes more memory than it may, else 0.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("minilm", "bert-base"), default="minilm")
    parser.add_argument("--output", type=Path, default=Path("build/bench"))
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="processes for each row (default: %(default)s)")
    parser.add_argument("--load", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.load:
        print(json.dumps(load_here(*options.load)))
        return 0
    paths = write(options.model, options.output / "models")
    rows: dict[tuple[str, str], list[dict[str, float]]] = {(f, p): [] for f in paths for p in PRECISIONS}
    for _ in range(options.rounds):
        for (file, precision), measured in rows.items():
            measured.append(load_apart(paths[file], precision))
    columns = ["<file", "precision", "MB", "load, ms", "best", "processor", "peak over file", "1st call, ms", "2nd"]
    table = Table(f"Loading {options.model}", columns)
    result: list[dict[str, Any]] = []
    for (file, precision), measured in rows.items():
        size = paths[file].stat().st_size
        middle = {key: statistics.median(one[key] for one in measured) for key in measured[0]}
        best = min(one["load"] for one in measured)
        share = middle["peak"] / size
        result.append({"file": file, "precision": precision, "bytes": size, "best": best, "share": share, **middle})
        times = [middle["load"], best, middle["processor"]]
        calls = [middle["first call"], middle["second call"]]
        cells = [*(f"{t * 1e3:.0f}" for t in times), f"{share:.2f}", *(f"{t * 1e3:.0f}" for t in calls)]
        table.add(file, precision, f"{size / 1e6:.0f}", *cells, bad=share > MOST_MEMORY[file])
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "loading.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    table.print()
    return int(any(row["share"] > MOST_MEMORY[row["file"]] for row in result))


if __name__ == "__main__":
    sys.exit(main())

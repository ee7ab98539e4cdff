"""Times whole models on an NVIDIA GPU against PyTorch: eager, eager in a CUDA graph, and inductor with graphs."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.nn import functional

import thresher
from thresher.machine import Backend

EPILOG = """\
examples:
  python bench/cuda/models_bench.py
  python bench/cuda/models_bench.py --quick --dtype bfloat16 --json build/bench/models.json
  python bench/cuda/models_bench.py --only minilm --inductor    # compiling takes it a quarter of a minute a case

A time is that of one call on the wall clock until the device is done, host included; the ways take turns, and medians
count. "of torch" is the better of the two other ways, or three, over thresher: how many times as fast it is. Weights
are random; "error" is the distance from eager in the same type.

exit codes:
  0  measured
  2  there is no GPU, or no PyTorch for it; the message says why"""

Call = Callable[[], Any]


@dataclass(frozen=True)
class Case:
    """One model with its inputs.

    Attributes:
        name: of the case.
        build: gives the model.
        inputs: keyword arguments of a call, on the CPU.
    """

    name: str
    build: Callable[[], torch.nn.Module]
    inputs: dict[str, torch.Tensor]


@dataclass(frozen=True)
class Row:
    """What one case took, in milliseconds a call; None where a way failed or was not asked for."""

    name: str
    dtype: str
    eager: float
    graph: float | None
    inductor: float | None
    thresher: float
    host_us: float  # of a call of thresher's until it returns
    first_s: float  # its first call
    of_torch: float
    error: float
    parts: int
    in_pytorch: int  # nodes


class DecodeLayer(torch.nn.Module):
    """A layer of Llama for one new token of each sequence, whose earlier keys and values are inputs."""

    def __init__(self, width: int, inner: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before = torch.nn.RMSNorm(width, eps=1e-5)
        self.behind = torch.nn.RMSNorm(width, eps=1e-5)
        self.query, self.key, self.value, self.out = (torch.nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (torch.nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = torch.nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """x: [batch, 1, width]; keys and values: [batch, heads, past, width / heads]."""
        batch, _, width = x.shape
        normal = self.before(x)
        query, key, value = (
            project(normal).view(batch, 1, self.heads, width // self.heads).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        keys, values = torch.cat([keys, key], 2), torch.cat([values, value], 2)
        heads = functional.scaled_dot_product_attention(query, keys, values)
        x = x + self.out(heads.transpose(1, 2).reshape(batch, 1, width))
        normal = self.behind(x)
        return x + self.down(functional.silu(self.gate(normal)) * self.up(normal))


class Decode(torch.nn.Module):
    """Layers of a language model that makes one token of each sequence."""

    def __init__(self, layers: int, width: int, inner: int, heads: int, vocabulary: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(DecodeLayer(width, inner, heads) for _ in range(layers))
        self.norm = torch.nn.RMSNorm(width, eps=1e-5)
        self.head = torch.nn.Linear(width, vocabulary, bias=False)

    def forward(self, x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """x: [batch, 1, width]; keys and values: of all layers alike."""
        for layer in self.layers:
            x = layer(x, keys, values)
        return self.head(self.norm(x))  # type: ignore[no-any-return]


def _bert(width: int, layers: int, heads: int) -> torch.nn.Module:
    config = transformers.BertConfig(
        hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=4 * width
    )
    return transformers.BertModel(config, add_pooling_layer=False)


def _tokens(batch: int, length: int, padding: float = 0.0) -> dict[str, torch.Tensor]:
    mask = torch.ones(batch, length, dtype=torch.int64)
    if padding:
        mask[:, int(length * (1 - padding)) :] = 0
    return {"input_ids": torch.randint(0, 30000, (batch, length)), "attention_mask": mask}


def cases(*, quick: bool) -> Iterator[Case]:
    """What is timed; each model is made anew."""
    length = 128
    for batch in (1, 8, 64):
        yield Case(f"minilm b{batch}", lambda: _bert(384, 6, 12), _tokens(batch, length))
    for batch in (1, 8) if quick else (1, 8, 64):
        yield Case(f"bert-base b{batch}", lambda: _bert(768, 12, 12), _tokens(batch, length))
    yield Case("minilm b64, half padding", lambda: _bert(384, 6, 12), _tokens(64, length, 0.5))
    layers = 4 if quick else 16
    for batch in (1, 16):
        past = torch.randn(batch, 32, 255, 128)
        inputs = {"x": torch.randn(batch, 1, 4096), "keys": past, "values": past}
        yield Case(
            f"llama 7B, {layers} layers, decode b{batch}", lambda: Decode(layers, 4096, 11008, 32, 32000), inputs
        )


def _graphed(call: Call) -> Call:
    """The call as a CUDA graph: its inputs stay where they are."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def medians(calls: dict[str, Call], seconds: float) -> dict[str, float]:
    """Milliseconds of one call of each, in turns, each until the device is done."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(next(iter(times.values()))) < 5:
        for name, call in calls.items():
            for again in range(3):  # the first comes after another way has been at the caches
                torch.cuda.synchronize()
                start = time.perf_counter()
                call()
                torch.cuda.synchronize()
                if again:
                    times[name].append((time.perf_counter() - start) * 1e3)
    return {name: statistics.median(found) for name, found in times.items()}


def _host_us(call: Call) -> float:
    """Microseconds until a call returns, the device being idle before it."""
    times = []
    for _ in range(50):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e6)
    torch.cuda.synchronize()
    return statistics.median(times)


def _tensor(result: Any) -> torch.Tensor:
    found: torch.Tensor = result if isinstance(result, torch.Tensor) else next(iter(result.values()))
    return found


def measure(case: Case, dtype: torch.dtype, seconds: float, *, inductor: bool) -> Row:
    """One row."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = case.build().to(dtype).eval()
    inputs = {name: (t.to(dtype) if t.is_floating_point() else t).cuda() for name, t in case.inputs.items()}
    thresher.clear_cache()
    torch._dynamo.reset()
    compiled = thresher.compile(model)
    calls: dict[str, Call] = {"eager": lambda: model(**inputs), "thresher": lambda: compiled(**inputs)}
    torch.cuda.synchronize()
    start = time.perf_counter()
    calls["thresher"]()
    torch.cuda.synchronize()
    first = time.perf_counter() - start
    wanted, found = _tensor(calls["eager"]()).double(), _tensor(calls["thresher"]()).double()
    for _ in range(3):
        calls["thresher"]()
    host = _host_us(calls["thresher"])
    stats = thresher.compilation_stats()
    try:
        calls["graph"] = _graphed(calls["eager"])
    except RuntimeError as error:
        print(f"{case.name}: no CUDA graph of eager: {str(error).splitlines()[0]}", file=sys.stderr)
    if inductor:
        calls["inductor"] = partial(torch.compile(model, mode="reduce-overhead"), **inputs)
        for _ in range(4):
            calls["inductor"]()
    took = medians(calls, seconds)
    return Row(
        case.name,
        str(dtype).removeprefix("torch."),
        took["eager"],
        took.get("graph"),
        took.get("inductor"),
        took["thresher"],
        host,
        first,
        min(ms for name, ms in took.items() if name != "thresher") / took["thresher"],
        float((found - wanted).norm() / wanted.norm()),
        stats.partitions,
        stats.nodes_unsupported,
    )


def main() -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--quick", action="store_true", help="fewer cases and rounds: under a minute")
    parser.add_argument("--only", metavar="TEXT", default="", help="cases whose names hold this")
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16"),
        nargs="*",
        help="default: bfloat16, and float32 unless --quick",
    )
    parser.add_argument("--inductor", action="store_true", help="also PyTorch's own compiler, with graphs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows there")
    options = parser.parse_args()
    obstacle = Backend("cuda").obstacle()
    if obstacle is None and not torch.cuda.is_available():
        obstacle = "expected a PyTorch for CUDA, got one without; install that of PyTorch's project"
    if obstacle:
        print(f"skipped: no GPU: {obstacle}", file=sys.stderr)
        return 2
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, milliseconds a call\n")
    head = f"{'model':<34} {'dtype':<9} {'eager':>8} {'graph':>8} {'inductor':>8} {'thresher':>8} {'of torch':>8}"
    print(f"{head} {'host us':>8} {'first s':>8} {'error':>8} parts  in PyTorch")
    rows = []
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for dtype in options.dtype or (("bfloat16",) if options.quick else ("bfloat16", "float32")):
            for case in cases(quick=options.quick):
                if options.only not in case.name:
                    continue
                row = measure(case, getattr(torch, dtype), 0.4 if options.quick else 2.0, inductor=options.inductor)
                rows.append(row)
                others = " ".join(f"{ms:8.3f}" if ms is not None else " " * 8 for ms in (row.graph, row.inductor))
                print(
                    f"{row.name:<34} {row.dtype:<9} {row.eager:8.3f} {others} {row.thresher:8.3f} {row.of_torch:8.2f} "
                    f"{row.host_us:8.0f} {row.first_s:8.2f} {row.error:8.1e} {row.parts:5}  {row.in_pytorch}",
                    flush=True,
                )
                torch.cuda.empty_cache()
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Times attention on a GPU against PyTorch's: several in a row, each on the result of the one before."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import thresher
from thresher.machine import Backend

EPILOG = """\
examples:
  python bench/cuda/attention_bench.py
  python bench/cuda/attention_bench.py --dtype float32 --json build/bench/attention.json

PyTorch's calls are in a CUDA graph, with the kernel that it chooses. Both are timed in turns with events; the median
counts.

exit codes:
  0  measured
  2  there is no GPU; the message says why"""

CALLS = 12


@dataclass(frozen=True)
class Case:
    """The sizes of one attention, [batch, heads, length, width]; `kv_heads` share keys among `heads`."""

    name: str
    batch: int
    heads: int
    kv_heads: int
    length: int
    width: int
    causal: bool = False


CASES = (
    Case("MiniLM, batch 1", 1, 12, 12, 128, 32),
    Case("MiniLM, batch 8", 8, 12, 12, 128, 32),
    Case("MiniLM, batch 64", 64, 12, 12, 128, 32),
    Case("BERT-base, batch 1", 1, 12, 12, 128, 64),
    Case("BERT-base, batch 8", 8, 12, 12, 128, 64),
    Case("BERT-base, batch 64", 64, 12, 12, 128, 64),
    Case("causal, 512", 4, 16, 16, 512, 64, True),
    Case("causal, 2048, grouped", 1, 32, 8, 2048, 128, True),
    Case("4096", 2, 16, 16, 4096, 128),
)


@dataclass(frozen=True)
class Row:
    """One case.

    Attributes:
        name: of the case.
        us: median microseconds of one attention.
        torch_us: the same of PyTorch.
        tflop_per_s: of the two products; of causal attention those of the keys that are seen.
        error: largest difference from float64 after one attention, as a share of PyTorch's.
    """

    name: str
    us: float
    torch_us: float
    tflop_per_s: float
    error: float


def _attention(case: Case, calls: int) -> Any:
    import torch
    from torch.nn import functional

    class Attention(torch.nn.Module):
        def forward(self, q: Any, k: Any, v: Any) -> Any:
            for _ in range(calls):
                q = functional.scaled_dot_product_attention(
                    q, k, v, is_causal=case.causal, enable_gqa=case.heads != case.kv_heads
                )
            return q

    return Attention().eval()


def _in_graph(call: Callable[[], Any]) -> Callable[[], Any]:
    import torch

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def _us(call: Callable[[], Any]) -> float:
    import torch

    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(3):
        call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3 / 3 / CALLS


def measure(case: Case, dtype: str, rounds: int) -> Row:
    """Times one case in turns with PyTorch."""
    import torch

    generator = torch.Generator("cuda").manual_seed(0)

    def random(heads: int) -> Any:
        shape = (case.batch, case.length, heads, case.width)
        return torch.randn(shape, generator=generator, device="cuda", dtype=getattr(torch, dtype)).transpose(1, 2)

    q, k, v = random(case.heads), random(case.kv_heads), random(case.kv_heads)
    with torch.inference_mode():
        exact = _attention(case, 1)(*(x.double() for x in (q, k, v)))
        ours, theirs = thresher.compile(_attention(case, 1)), _attention(case, 1)
        errors = [float((f(q, k, v).double() - exact).abs().max()) for f in (ours, theirs)]
        compiled = thresher.compile(_attention(case, CALLS))
        many = _attention(case, CALLS)
        calls = (lambda: compiled(q, k, v)), _in_graph(lambda: many(q, k, v))
        times: tuple[list[float], list[float]] = ([], [])
        for turn in range(rounds + 1):
            for call, found in zip(calls, times, strict=True):
                us = _us(call)
                if turn > 0:
                    found.append(us)
    medians = [statistics.median(found) for found in times]
    flops = 4.0 * case.batch * case.heads * case.length**2 * case.width * (0.5 if case.causal else 1.0)
    return Row(case.name, medians[0], medians[1], flops / medians[0] / 1e6, errors[0] / errors[1])


def main() -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    parser.add_argument("--rounds", type=int, default=9, help="default: 9")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows there")
    options = parser.parse_args()
    if obstacle := Backend("cuda").obstacle():
        print(f"skipped: no GPU: {obstacle}", file=sys.stderr)
        return 2
    import torch

    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, {options.dtype}\n")
    print(f"{'attention':<24} {'us':>9} {'PyTorch':>9} {'ratio':>6} {'TFLOP/s':>8} {'error':>6}")
    rows = []
    for case in CASES:
        row = measure(case, options.dtype, options.rounds)
        rows.append(row)
        ratio = row.torch_us / row.us
        print(f"{row.name:<24} {row.us:9.1f} {row.torch_us:9.1f} {ratio:5.2f}x {row.tflop_per_s:8.1f} {row.error:6.2f}")
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Times the kernels of a device: GB/s against the speed at which it copies, TFLOP/s of products."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from thresher import _engine
from thresher.machine import Backend
from thresher.machine.backend import cuda_library

EPILOG = """\
examples:
  python bench/cuda/device_bench.py
  python bench/cuda/device_bench.py --quick --json build/bench/device.json
  python bench/cuda/device_bench.py --device cpu --quick        # the same kernels on the CPU

Times are taken with events of the device around several launches; the median of the rounds counts. Memory that a kernel
reads and writes is counted once; "of copy" is its share of the speed of a copy on the device, measured in the same run.

exit codes:
  0  measured
  2  there is no such device; the message says why"""


PROGRAMS = {
    "add": "s0=add(in0,in1)",
    "mul+add+gelu": "s0=mul(in0,in1); s1=add(s0,0.5); s2=gelu(s1)",
    "8 steps": "s0=mul(in0,in1); s1=add(s0,0.5); s2=silu(s1); s3=sub(s2,s0); s4=maximum(s3,-1.0); s5=mul(s4,s1); "
    "s6=tanh(s5); s7=add(s6,in0)",
}


@dataclass(frozen=True)
class Row:
    """One kernel at one size.

    Attributes:
        name: what was timed.
        us: median time of a launch in microseconds.
        spread: upper quartile over lower quartile.
        gb_per_s: bytes read and written in a second; None for products.
        of_copy: that, as a share of the copy's; None for products.
        tflop_per_s: for products.
    """

    name: str
    us: float
    spread: float
    gb_per_s: float | None = None
    of_copy: float | None = None
    tflop_per_s: float | None = None


class Bench:
    """Buffers of a device and the clock of its stream."""

    def __init__(self, device: Any, quick: bool) -> None:
        self.device = device
        self.stream = device.stream()
        self._rounds = 5 if quick else 15
        self._least_ns = 2e6 if quick else 10e6

    def empty(self, count: int) -> Any:
        """A buffer of small numbers."""
        buffer = self.device.empty(count * 4)
        # The bytes 0x3c make 0.0115 in float32.
        self.stream.fill(buffer, 0x3C, count * 4)
        return buffer

    def _ns(self, launch: Callable[[], None], count: int) -> float:
        start, end = self.device.event(), self.device.event()
        self.stream.record(start)
        for _ in range(count):
            launch()
        self.stream.record(end)
        end.synchronize()
        return float(end.ns_since(start)) / count

    def time(self, launch: Callable[[], None]) -> tuple[float, float]:
        """Median nanoseconds of a launch, and the spread."""
        once = max(self._ns(launch, 1), self._ns(launch, 2), 100.0)
        count = max(1, min(1000, int(self._least_ns / once)))
        times = sorted(self._ns(launch, count) for _ in range(self._rounds))
        quarter = len(times) // 4
        return statistics.median(times), times[-1 - quarter] / times[quarter]


class Measurement:
    """The rows of one run.

    Args:
        device: what is measured.
        quick: small sizes, few rounds.
    """

    def __init__(self, device: Any, *, quick: bool) -> None:
        self.rows: list[Row] = []
        self._bench = Bench(device, quick)
        self._quick = quick
        self._copy_speed = 0.0

    def run(self) -> list[Row]:
        """Times everything."""
        self._memory()
        self._products()
        return self.rows

    def _add(self, name: str, moved: float, launch: Callable[[], None]) -> None:
        ns, spread = self._bench.time(launch)
        speed = moved / ns
        self._copy_speed = self._copy_speed or speed  # the first row is the copy
        self.rows.append(Row(name, ns / 1e3, spread, gb_per_s=speed, of_copy=speed / self._copy_speed))

    def _launch(self, build: Callable[[Any], Sequence[int]], *buffers: Any, allow_tf32: bool = False) -> Any:
        """A call that hands the plan of a graph to the stream. `buffers` are its inputs, then its output."""
        graph = _engine.Graph()
        graph.set_outputs(build(graph))
        plan = _engine.Plan.build(
            graph, _engine.WeightStore(), level="O0", device=self._bench.device, allow_tf32=allow_tf32
        )
        return partial(plan.launch, self._bench.stream, list(buffers[:-1]), [buffers[-1]])

    def _memory(self) -> None:
        stream = self._bench.stream
        count = 1 << (24 if self._quick else 27)  # beyond any cache
        x, y, out = (self._bench.empty(count) for _ in range(3))
        self._add(f"copy {count * 4 >> 20} MiB", 8.0 * count, lambda: stream.copy(out, x, count * 4))
        self._add(f"fill {count * 4 >> 20} MiB", 4.0 * count, lambda: stream.fill(out, 1, count * 4))
        for name, program in PROGRAMS.items():
            chain = self._launch(partial(_chain, program, [(count,), (count,)]), x, y, out)
            self._add(f"pointwise {name}", 12.0 * count, chain)
        chain = self._launch(partial(_chain, PROGRAMS["add"], [(count // 1024, 1024), (1024,)]), x, y, out)
        self._add("pointwise add of a row", 8.0 * count, chain)
        for cols in (128, 384, 768, 1024, 4096, 8192, 32768):
            rows = count // cols
            norm = self._launch(partial(_norm, rows, cols), x, y, y, out)
            self._add(f"layer_norm {rows}x{cols}", 8.0 * rows * cols, norm)
            softmax = self._launch(partial(_softmax, rows, cols), x, out)
            self._add(f"softmax {rows}x{cols}", 8.0 * rows * cols, softmax)

    def _products(self) -> None:
        large = [(1024, 1024, 1024)] if self._quick else [(4096, 4096, 4096), (8192, 8192, 8192)]
        for m, n, k in [(128, 1536, 384), *large]:
            for name, tf32 in (("f32", False), ("tf32", True), ("bf16", False)):
                a, c = self._bench.empty(m * k), self._bench.empty(m * n)
                product = partial(_product, m, n, k, "bf16" if name == "bf16" else "fp32")
                launch = self._launch(product, a, c, allow_tf32=tf32)
                try:
                    ns, spread = self._bench.time(launch)
                except NotImplementedError as error:  # cuBLASLt is not installed
                    print(f"products are left out: {error}", file=sys.stderr)
                    return
                flops = 2.0 * m * n * k
                self.rows.append(Row(f"linear {name} {m}x{n}x{k}", ns / 1e3, spread, tflop_per_s=flops / ns / 1e3))


def _chain(program: str, shapes: list[tuple[int, ...]], graph: Any) -> Sequence[int]:
    inputs = [graph.input(f"x{i}", "f32", shape) for i, shape in enumerate(shapes)]
    return list(graph.add("pointwise", inputs, {"program": program}))


def _norm(rows: int, cols: int, graph: Any) -> Sequence[int]:
    x = graph.input("x", "f32", (rows, cols))
    return list(graph.add("layer_norm", [x, *(graph.input(name, "f32", (cols,)) for name in ("weight", "bias"))]))


def _softmax(rows: int, cols: int, graph: Any) -> Sequence[int]:
    return list(graph.add("softmax", [graph.input("x", "f32", (rows, cols))]))


def _product(m: int, n: int, k: int, precision: str, graph: Any) -> Sequence[int]:
    """With a weight that is there when the plan is made; in bf16 the rows are rounded at each call."""
    weight = graph.constant("weight", np.full((n, k), 0.01, np.float32))
    return list(graph.add("linear", [graph.input("x", "f32", (m, k)), weight], {"precision": precision}))


def main() -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="default: cuda")
    parser.add_argument("--index", type=int, default=0, help="which GPU (default: 0)")
    parser.add_argument("--quick", action="store_true", help="small sizes, few rounds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows there")
    options = parser.parse_args()
    library = None
    if options.device == "cuda":
        if obstacle := Backend("cuda").obstacle():
            print(f"skipped: no GPU: {obstacle}", file=sys.stderr)
            return 2
        library = cuda_library()
    device = _engine.Device(library, options.index)
    rows = Measurement(device, quick=options.quick).run()
    info = device.info
    print(f"{info['kind']}:{info['index']} {info['name']}\n")
    print(f"{'kernel':<34} {'us':>10} {'spread':>7} {'GB/s':>8} {'of copy':>8} {'TFLOP/s':>8}")
    for row in rows:
        speed = f"{row.gb_per_s:8.1f}" if row.gb_per_s is not None else " " * 8
        share = f"{row.of_copy:8.0%}" if row.of_copy is not None else " " * 8
        flops = f"{row.tflop_per_s:8.2f}" if row.tflop_per_s is not None else ""
        print(f"{row.name:<34} {row.us:10.1f} {row.spread:7.2f} {speed} {share} {flops}".rstrip())
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({"device": info, "rows": [asdict(row) for row in rows]}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())

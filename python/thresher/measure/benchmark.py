"""thresher.benchmark: a model in several engines, in turns."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import os
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from thresher import _engine, startup
from thresher.compiler import CompilerConfig, UnavailableError
from thresher.draw.bars import Bar, bars_svg
from thresher.measure.engines import ENGINES, Run
from thresher.measure.folder import name_of, new_folder
from thresher.measure.inputs import Call, InputShapes, call_at
from thresher.measure.latency import Latency
from thresher.measure.resident import forget_peak, resident_bytes
from thresher.profiler.energy import EnergyMeter
from thresher.profiler.export import write_text
from thresher.threads import get_num_threads

REFERENCE = "eager"
ROUNDS = 10
UNEVEN = 3  # rounds that differ more were disturbed


@dataclasses.dataclass(frozen=True, slots=True)
class BenchmarkRow:
    """One engine at one batch size.

    Attributes:
      engine: its name.
      batch_size: rows of every input.
      latency: of its calls.
      throughput: rows a second, by the mean latency.
      speedup: how many times as fast as eager PyTorch: the median over the rounds of the quotient of both medians in
        that round; None without eager PyTorch.
      first_call_ms: the first call and what the engine does before it: here models are compiled.
      max_abs_error: the largest difference from eager PyTorch's results; None without it.
      memory_bytes: how much resident memory rose at most from before the engine had the model until it was warm; None
        where it cannot be told.
      joules_per_call: energy of processor and GPUs, None where a part of it is not counted.
    """

    engine: str
    batch_size: int
    latency: Latency
    throughput: float
    speedup: float | None
    first_call_ms: float
    max_abs_error: float | None
    memory_bytes: int | None
    joules_per_call: float | None


@dataclasses.dataclass(frozen=True, slots=True)
class BenchmarkResult:
    """What ``thresher.benchmark`` found; ``print`` shows it as a table.

    Attributes:
      model: what was measured.
      rows: one for each engine and batch size.
      unavailable: engines that did not run, with the reason.
      notes: what a reader of the figures must know, such as why there is no energy.
      machine: processor, threads and versions.
    """

    model: str
    rows: tuple[BenchmarkRow, ...]
    unavailable: dict[str, str]
    notes: tuple[str, ...]
    machine: dict[str, Any]

    def __str__(self) -> str:
        """The table, and below it what is to be known of it."""
        head = ("batch", "engine", "p50 ms", "p90 ms", "p99 ms", "rows/s", "x eager", "first ms", "error", "memory")
        joules = any(row.joules_per_call is not None for row in self.rows)
        lines = [[*head, *(("J/call",) if joules else ())]]
        for row in self.rows:
            time_ms = row.latency
            error = "-" if row.max_abs_error is None else f"{row.max_abs_error:.1e}"
            memory = "-" if row.memory_bytes is None else f"{row.memory_bytes / 1e6:.1f} MB"
            lines.append(
                [
                    str(row.batch_size),
                    ENGINES[row.engine].title,
                    *(f"{value:.3f}" for value in (time_ms.p50_ms, time_ms.p90_ms, time_ms.p99_ms)),
                    f"{row.throughput:.1f}",
                    "-" if row.speedup is None else f"{row.speedup:.2f}",
                    f"{row.first_call_ms:.0f}",
                    error,
                    memory,
                    *([("-" if row.joules_per_call is None else f"{row.joules_per_call:.3f}")] if joules else []),
                ]
            )
        widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
        text = [self._title()]
        for line in lines:
            cells = [
                cell.ljust(width) if i == 1 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            ]
            text.append("  ".join(cells).rstrip())
        text += [f"{ENGINES[name].title} did not run: {reason}" for name, reason in self.unavailable.items()]
        return "\n".join([*text, *self.notes])

    def _title(self) -> str:
        threads = self.machine["num_threads"]
        return f"{self.model} on {self.machine['cpu']}, {threads} thread{'' if threads == 1 else 's'}"

    def to_dict(self) -> dict[str, Any]:
        """All of it as what JSON can hold; an error that is no number is text, "nan" or "inf"."""
        data = {"format": "thresher-benchmark", "format_version": 1, **dataclasses.asdict(self)}
        for row in data["rows"]:
            error = row["max_abs_error"]
            row["max_abs_error"] = error if error is None or math.isfinite(error) else str(error)
        return data

    def svg(self) -> str:
        """A picture: bars of the median times, one group a batch size."""
        groups: dict[str, list[Bar]] = {}
        for row in self.rows:
            speed = "" if row.speedup is None else f", {row.speedup:.2f} x"
            bar = Bar(
                ENGINES[row.engine].title,
                row.latency.p50_ms,
                f"{row.latency.p50_ms:.2f} ms{speed}",
                row.engine == "thresher",
            )
            groups.setdefault(f"batch {row.batch_size}", []).append(bar)
        subtitle = "Milliseconds a call, median; shorter is faster. x: times as fast as PyTorch eager."
        notes = [f"{ENGINES[name].title} did not run: {reason}" for name, reason in self.unavailable.items()]
        return bars_svg(groups, self._title(), subtitle, notes)

    def save(self, output_dir: str | os.PathLike[str]) -> Path:
        """Writes benchmark.txt, .json, .csv and .svg into a new folder.

        Args:
          output_dir: where the folder is made; it is called after the model, with a number where that exists.

        Returns:
          The folder.

        Raises:
          OutputError: something cannot be written; the message names it.
        """
        folder = new_folder(output_dir, self.model)
        rows = [dataclasses.asdict(row) for row in self.rows]
        flat = [{**row, **row.pop("latency")} for row in rows]
        table = io.StringIO()
        writer = csv.DictWriter(table, list(flat[0]) if flat else ["engine"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(flat)
        write_text(folder / "benchmark.txt", f"{self}\n")
        write_text(folder / "benchmark.json", json.dumps(self.to_dict(), indent=2) + "\n")
        write_text(folder / "benchmark.csv", table.getvalue())
        write_text(folder / "benchmark.svg", self.svg())
        return folder


def benchmark(
    model: Callable[..., Any],
    input_shapes: InputShapes,
    batch_sizes: Sequence[int] = (1, 8, 16, 32),
    num_iterations: int = 100,
    warmup_iterations: int = 10,
    *,
    engines: Sequence[str] | None = None,
    config: CompilerConfig | None = None,
    output_dir: str | os.PathLike[str] | None = None,
) -> BenchmarkResult:
    """Measures a model in eager PyTorch, in Thresher and in other engines that are installed.

    The engines take turns in one process, ten blocks of calls each, so that what slows the machine for a while slows
    all of them; the first call of a block is not counted.

    >>> import torch, thresher
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()).eval()
    >>> result = thresher.benchmark(model, (64,), batch_sizes=(1, 8), num_iterations=20, engines=["eager", "thresher"])
    >>> [(row.batch_size, row.engine) for row in result.rows]
    [(1, 'eager'), (1, 'thresher'), (8, 'eager'), (8, 'thresher')]
    >>> all(row.max_abs_error < 1e-5 and row.latency.p50_ms > 0 for row in result.rows)
    True

    Args:
      model: the model, in eval mode; or a function of tensors.
      input_shapes: the shape of its input without the batch, such as (3, 224, 224); several in a list, or by name in a
        mapping. A tensor, such as token ids, instead of a shape is an example, whose rows are repeated to the batch.
      batch_sizes: how many rows the inputs have.
      num_iterations: calls of each engine at each batch size that are timed.
      warmup_iterations: calls before, the first of which is timed apart.
      engines: by name: "eager", "thresher", "inductor", "zentorch", "onnxruntime", "openvino"; None for all that are
        installed.
      config: how Thresher compiles the model.
      output_dir: where to write table, data and picture, in a new folder; None writes nothing.

    Returns:
      Times, throughput, memory, energy and errors; the text of it is a table.

    Raises:
      ValueError: an argument that cannot be used.
      UnavailableError: an engine asked for by name is not installed.
      OutputError: the results cannot be written.
    """
    startup.initialize()
    _check(model, batch_sizes, num_iterations, warmup_iterations)
    chosen, unavailable = _choose(engines)
    config = config or CompilerConfig()
    rows: list[BenchmarkRow] = []
    notes: dict[str, None] = {}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="thresher: .* run in PyTorch")  # the stats say it, and the times show
        _load_libraries(chosen, unavailable, config)
        for batch in batch_sizes:
            call = call_at(input_shapes, batch, model)
            rows += _measure(model, call, batch, chosen, unavailable, notes, config, num_iterations, warmup_iterations)
    result = BenchmarkResult(name_of(model), tuple(rows), unavailable, tuple(notes), _machine(config))
    if output_dir is not None:
        result.save(output_dir)
    return result


def _check(model: object, batch_sizes: Sequence[int], num_iterations: int, warmup_iterations: int) -> None:
    if not callable(model) or isinstance(model, type):
        raise ValueError(f"model: expected a torch.nn.Module or a function, got {model!r}; pass an object to call")
    if isinstance(model, torch.nn.Module) and model.training:
        raise ValueError("model: expected a model in eval mode, got one in training mode; call model.eval() first")
    whole = isinstance(batch_sizes, Sequence) and all(type(size) is int and size > 0 for size in batch_sizes)
    if not whole or not batch_sizes or len(set(batch_sizes)) != len(batch_sizes):
        raise ValueError(
            f"batch_sizes: expected different integers of at least 1, got {batch_sizes!r}; write (1, 8) for two"
        )
    for name, value in (("num_iterations", num_iterations), ("warmup_iterations", warmup_iterations)):
        if type(value) is not int or value < 1:
            raise ValueError(f"{name}: expected an integer of at least 1, got {value!r}; the default is 100 or 10")


def _choose(names: Sequence[str] | None) -> tuple[list[str], dict[str, str]]:
    """Engines that run here, and the others with the reason."""
    if names is not None:
        wrong = [name for name in names if name not in ENGINES]
        if isinstance(names, str) or wrong or not names:
            raise ValueError(f"engines: expected a list of {', '.join(ENGINES)}, got {names!r}; or None for all")
    obstacles = {name: ENGINES[name].obstacle() for name in dict.fromkeys(names or ENGINES)}
    missing = {name: reason for name, reason in obstacles.items() if reason is not None}
    if names is not None and missing:
        raise UnavailableError("; ".join(f"{name} is not available: {reason}" for name, reason in missing.items()))
    return [name for name in obstacles if name not in missing], missing


def _load_libraries(chosen: list[str], unavailable: dict[str, str], config: CompilerConfig) -> None:
    """Lets every engine run something tiny, so that loading it counts for neither time nor memory of the model."""
    tiny = torch.nn.Linear(4, 4).eval()
    for name in list(chosen):
        try:
            ENGINES[name].prepare(tiny, ((torch.zeros(2, 4),), {}), config, get_num_threads())()
        except Exception as error:
            _give_up(name, error, chosen, unavailable)


def _give_up(name: str, error: Exception, chosen: list[str], unavailable: dict[str, str]) -> None:
    """Goes on without an engine; Thresher's own failures and those of the model itself are the user's to see."""
    if name in (REFERENCE, "thresher"):
        raise error
    chosen.remove(name)
    lines = str(error).strip().splitlines() or [type(error).__name__]
    unavailable[name] = f"{type(error).__name__}: {lines[0][:200]}"


def _measure(
    model: Callable[..., Any],
    call: Call,
    batch: int,
    chosen: list[str],
    unavailable: dict[str, str],
    notes: dict[str, None],
    config: CompilerConfig,
    num_iterations: int,
    warmup_iterations: int,
) -> list[BenchmarkRow]:
    """The rows of one batch size. Engines that fail leave `chosen` for `unavailable`."""
    synchronize = _synchronizer(call)
    runs: dict[str, Run] = {}
    first_ms, memory, results = {}, {}, {}
    for name in list(chosen):
        obstacle = forget_peak()
        before = resident_bytes()
        start = time.perf_counter()
        try:
            run = ENGINES[name].prepare(model, call, config, get_num_threads())
            results[name] = _arrays(run())
            synchronize()
        except Exception as error:
            _give_up(name, error, chosen, unavailable)
            continue
        first_ms[name] = (time.perf_counter() - start) * 1e3
        for _ in range(warmup_iterations - 1):
            run()
        synchronize()
        peak = resident_bytes(peak=True)
        if obstacle:
            notes[f"memory is not known: {obstacle}"] = None
        memory[name] = None if obstacle or peak is None or before is None else max(0, peak - before)
        runs[name] = run
    rounds = min(ROUNDS, num_iterations)
    samples: dict[str, list[list[float]]] = {name: [] for name in runs}
    joules: dict[str, float | None] = dict.fromkeys(runs, 0.0)
    for number in range(rounds):
        calls = num_iterations * (number + 1) // rounds - num_iterations * number // rounds
        order = list(runs)
        for name in order[number % len(order) :] + order[: number % len(order)]:
            block, energy = _block(runs[name], calls, synchronize)
            samples[name].append(block)
            used, known = energy["joules"], joules[name]
            joules[name] = None if used is None or known is None else known + used
            if used is None:
                notes[f"energy is not known: {energy['reason']}"] = None
    rows = []
    for name, blocks in samples.items():
        latency = Latency.of([one for block in blocks for one in block])
        used = joules[name]
        shortest, longest = (pick(median(block) for block in blocks) for pick in (min, max))
        if longest > UNEVEN * shortest:
            notes[
                f"batch {batch}: the medians of {ENGINES[name].title}'s rounds go from {shortest:.3f} to {longest:.3f} "
                "ms: other programs were at work; measure again when they are not"
            ] = None
        rows.append(
            BenchmarkRow(
                engine=name,
                batch_size=batch,
                latency=latency,
                throughput=batch / latency.mean_ms * 1e3,
                speedup=_speedup(samples.get(REFERENCE), blocks),
                first_call_ms=first_ms[name],
                max_abs_error=_error(results.get(REFERENCE), results[name]),
                memory_bytes=memory[name],
                joules_per_call=None if used is None else used / (num_iterations + rounds),
            )
        )
    return rows


def _block(run: Run, calls: int, synchronize: Callable[[], object]) -> tuple[list[float], dict[str, Any]]:
    """Milliseconds of some calls, and the energy of these and the one before them."""
    meter = EnergyMeter()
    meter.start()
    run()  # another engine's threads may be spinning still
    synchronize()
    found = []
    for _ in range(calls):
        start = time.perf_counter_ns()
        run()
        synchronize()
        found.append((time.perf_counter_ns() - start) / 1e6)
    return found, meter.stop()


def _synchronizer(call: Call) -> Callable[[], object]:
    args, kwargs = call
    if any(tensor.is_cuda for tensor in (*args, *kwargs.values())):
        return torch.cuda.synchronize
    return lambda: None


def _speedup(reference: list[list[float]] | None, blocks: list[list[float]]) -> float | None:
    if reference is None:
        return None
    return median(median(base) / median(block) for base, block in zip(reference, blocks, strict=True))


def _arrays(result: Any) -> list[np.ndarray[Any, Any]]:
    """The arrays of a result, in order, as float64 where they are numbers."""
    found = []
    for leaf in pytree.tree_leaves(result):
        if isinstance(leaf, torch.Tensor):
            found.append(leaf.detach().to(torch.float64).numpy(force=True))
        elif isinstance(leaf, np.ndarray):
            found.append(leaf.astype(np.float64))
    return found


def _error(expected: list[np.ndarray[Any, Any]] | None, found: list[np.ndarray[Any, Any]]) -> float | None:
    """The largest difference; None where there is nothing to compare with, infinite where the shapes differ."""
    if expected is None:
        return None
    if [one.shape for one in expected] != [one.shape for one in found]:
        return float("inf")
    pairs = [(a, b) for a, b in zip(expected, found, strict=True) if a.size]
    if any(np.isnan(a).any() or np.isnan(b).any() for a, b in pairs):
        equal = all(np.array_equal(a, b, equal_nan=True) for a, b in pairs)
        return 0.0 if equal else float("nan")
    with np.errstate(invalid="ignore"):  # infinities of one sign differ by nothing
        return max((float(np.max(np.abs(np.where(a == b, 0.0, a - b)))) for a, b in pairs), default=0.0)


def _machine(config: CompilerConfig) -> dict[str, Any]:
    return {
        "cpu": _engine.cpu_model(),
        "isa": _engine.isa(),
        "num_threads": config.threads or get_num_threads(),
        "torch_threads": torch.get_num_threads(),
        "thresher": _engine.version(),
        "torch": str(torch.__version__),
    }

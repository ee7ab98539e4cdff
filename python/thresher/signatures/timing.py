"""How long a signature takes: in the engine and in PyTorch, by turns, from the profiler's records."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from thresher import _engine
from thresher.compiler.openmp import release_threads
from thresher.machine.roofs import known_peaks
from thresher.profiler import is_enabled, record_function
from thresher.profiler.analysis.costs import CostModel
from thresher.profiler.analysis.peaks import normalise
from thresher.profiler.trace.model import Site
from thresher.signatures.launchable import get_launchable
from thresher.signatures.signature import Signature

Kernel = Callable[..., torch.Tensor]

# Backends take turns this many times, so that a disturbance meets all of them.
_TURNS = 10


def backends() -> dict[str, Callable[[Signature], Kernel]]:
    """What can compute a signature, by name: the engine, and PyTorch's own operators."""
    return {"thresher": get_launchable, "torch": lambda signature: signature.call}


@dataclass(frozen=True)
class Work:
    """What one run of a signature takes at least.

    Attributes:
        flops: Floating-point operations; None where the engine does not say.
        bytes: Bytes read and written; None likewise.
        roof_ns: The time for these at the machine's measured peaks; None where they were not measured.
    """

    flops: float | None = None
    bytes: float | None = None
    roof_ns: float | None = None


@dataclass(frozen=True)
class Timing:
    """The runs of one backend.

    Attributes:
        backend: Its name.
        samples_us: The time of each run, in microseconds.
        work: What a run takes at least.
    """

    backend: str
    samples_us: tuple[float, ...]
    work: Work = Work()

    @property
    def median_us(self) -> float:
        """The middle of the runs."""
        return statistics.median(self.samples_us)

    @property
    def gflops(self) -> float | None:
        """10^9 floating-point operations per second, at the median."""
        return None if not self.work.flops else self.work.flops / self.median_us / 1e3

    @property
    def gbytes_per_s(self) -> float | None:
        """10^9 bytes per second, at the median."""
        return None if not self.work.bytes else self.work.bytes / self.median_us / 1e3

    @property
    def percent_of_roof(self) -> float | None:
        """The time that the machine's peaks allow, in percent of the median."""
        return None if self.work.roof_ns is None else self.work.roof_ns / self.median_us / 10

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; None is what is not known."""
        return {
            "backend": self.backend,
            "runs": len(self.samples_us),
            "min_us": min(self.samples_us),
            "max_us": max(self.samples_us),
            "mean_us": statistics.fmean(self.samples_us),
            "median_us": self.median_us,
            "stddev_us": statistics.pstdev(self.samples_us),
            "flops": self.work.flops,
            "bytes": self.work.bytes,
            "gflop_per_s": self.gflops,
            "gbyte_per_s": self.gbytes_per_s,
            "percent_of_roof": self.percent_of_roof,
        }

    def __str__(self) -> str:
        found = self.to_dict()
        names = ("min", "max", "mean", "median", "stddev")
        return " ".join(f"{name}={found[f'{name}_us']:.2f}us" for name in names)


def time_kernels(
    kernels: Mapping[str, Kernel], args: Sequence[torch.Tensor], iterations: int
) -> dict[str, tuple[float, ...]]:
    """The time of every run of some kernels on the same arguments, in microseconds, from the profiler's records.

    They take turns. Before each turn threads that the other's library has left spinning are ended, and one run goes
    before those that count.

    Args:
        kernels: By name.
        args: What they are called with.
        iterations: How many runs of each count.
    """
    samples: dict[str, list[float]] = {name: [] for name in kernels}
    with _recording(), torch.no_grad():
        for share in _shares(iterations):
            for name, kernel in kernels.items():
                release_threads()
                kernel(*args)
                begin = _engine.profile_now_ns()
                for _ in range(share):
                    with record_function(name):
                        kernel(*args)
                samples[name] += _ranges(name, begin)
    return {name: tuple(found) for name, found in samples.items()}


def work_of(signature: Signature, args: Sequence[torch.Tensor]) -> Work:
    """What the engine's cost model says of a signature's operator; its packing of operands is not counted.

    Raises:
        UnsupportedOperatorError: The engine cannot compute it.
    """
    launchable = get_launchable(signature)
    return work_of_call(lambda: launchable(*args), launchable.plan.num_threads)


def work_of_call(call: Callable[[], object], num_threads: int) -> Work:
    """What the engine's cost model says of the operators of a call, together; packing of operands is not counted.

    Args:
        call: What runs them; it is called once.
        num_threads: Threads that share the work.

    Returns:
        Nothing but None where the engine does not say it of one of them.
    """
    with _recording(), torch.no_grad():
        begin = _engine.profile_now_ns()
        call()
        ran = [record for record in _since(begin, "op") if record["section"] == "forward"]
        sites = {_place(site): site for site in _engine.profile_summary()["sites"]}  # type: ignore[attr-defined]
    model = CostModel(*normalise(known_peaks()), num_threads)
    flops = bytes_ = roof = 0.0
    known = True
    for record in ran:
        if record["flops"] < 0 or record["bytes"] < 0:
            return Work()
        flops, bytes_ = flops + record["flops"], bytes_ + record["bytes"]
        cost = model.of(_site(record, sites.get(_place(record), {}).get("precision", "")))
        known = known and cost.roof_ns is not None
        roof += cost.roof_ns or 0.0
    return Work(flops, bytes_, roof if known and ran else None)


def time_signature(
    signature: Signature, names: Iterable[str], iterations: int, args: Sequence[torch.Tensor] | None = None
) -> list[Timing]:
    """Times the backends of these names.

    Args:
        signature: What they compute.
        names: Of `backends()`.
        iterations: How many runs of each count.
        args: What they are called with; by default random numbers.

    Raises:
        UnsupportedOperatorError: The engine was named and cannot compute it.
    """
    given = signature.sample_args() if args is None else args
    wanted = list(dict.fromkeys(names))
    kernels = {name: backends()[name](signature) for name in wanted}
    work = work_of(signature, given) if "thresher" in wanted else Work()
    return [Timing(name, samples, work) for name, samples in time_kernels(kernels, given, iterations).items()]


@contextmanager
def _recording() -> Iterator[None]:
    was_on = is_enabled()
    if not was_on:
        _engine.profile_start()
    try:
        yield
    finally:
        if not was_on:
            _engine.profile_stop()


def _shares(iterations: int) -> list[int]:
    """Runs of each turn."""
    turns = min(_TURNS, iterations)
    return [iterations // turns + (turn < iterations % turns) for turn in range(turns)]


def _ranges(name: str, begin: int) -> list[float]:
    ranges = [record for record in _since(begin, "range") if record["name"] == name]
    return [(record["end_ns"] - record["start_ns"]) / 1e3 for record in ranges]


def _since(begin: int, kind: str) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = _engine.profile_records()
    return [record for record in records if record["kind"] == kind and record["start_ns"] >= begin]


def _place(found: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(found[part]) for part in ("name", "kernel", "section", "shapes", "dtypes"))


def _site(record: Mapping[str, Any], precision: str) -> Site:
    return Site(
        id=0,
        name=record["name"],
        kernel=record["kernel"],
        section=record["section"],
        shapes=record["shapes"],
        dtypes=record["dtypes"],
        precision=precision,
        flops=record["flops"],
        bytes=record["bytes"],
    )

"""How fast this machine computes and moves memory at best."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime, timezone
from typing import Any, TypeVar

from thresher.json_text import flag, integer, number, text

# On a machine that is left alone, the middle of the arithmetic measurements comes this near to the best of them. Speed
# of memory differs from one time to the next on quiet machines, too.
_QUIET_SHARE = 0.85


@dataclass(frozen=True)
class Rate:
    """A rate that was measured several times.

    Attributes:
        median: The middle of the measurements: the roof.
        min: The slowest.
        max: The fastest.
    """

    median: float
    min: float
    max: float


@dataclass(frozen=True)
class ThreadPeaks:
    """What a number of threads reach together.

    A multiply-add is two operations; 1 GB is 1e9 bytes.

    Attributes:
        num_threads: How many threads.
        rounds: How many measurements each rate comes from.
        fp32_gflops: Multiply-adds of float32.
        bf16_gflops: Dot products of bfloat16; None where the processor (or the forced instruction set) has none.
        int8_gops: Dot products of int8 by the instructions that `Peaks.int8_by` names.
        l1_read_gb_per_s: Reading a buffer that fits the first-level cache.
        l2_read_gb_per_s: Reading one that fits the second level and not the first.
        l3_read_gb_per_s: Reading one that fits this process's share of the third level and not the second.
        dram_read_gb_per_s: Reading one that fits no cache.
        dram_write_gb_per_s: Writing it, past the caches where the processor can.
        dram_copy_gb_per_s: Copying half of it over the other half; counts bytes read and bytes written.
        l1_buffer_bytes: Size of the first of these buffers, for each thread.
        l2_buffer_bytes: Size of the second.
        l3_buffer_bytes: Size of the third.
        dram_buffer_bytes: Size of the last, for all threads together.
        fp16_gflops: Products of tiles of float16; None where there are none, and float16 is multiplied as float32.
    """

    num_threads: int
    rounds: int
    fp32_gflops: Rate
    bf16_gflops: Rate | None
    int8_gops: Rate
    l1_read_gb_per_s: Rate
    l2_read_gb_per_s: Rate
    l3_read_gb_per_s: Rate
    dram_read_gb_per_s: Rate
    dram_write_gb_per_s: Rate
    dram_copy_gb_per_s: Rate
    l1_buffer_bytes: int
    l2_buffer_bytes: int
    l3_buffer_bytes: int
    dram_buffer_bytes: int
    fp16_gflops: Rate | None = None


@dataclass(frozen=True)
class NodePeaks:
    """What the cores of a node of memory read together from their own node's.

    Attributes:
        node: The system's number of the node.
        num_threads: How many threads, one for each core.
        dram_read_gb_per_s: Reading a buffer that fits no cache.
    """

    node: int
    num_threads: int
    dram_read_gb_per_s: Rate


@dataclass(frozen=True)
class Peaks:
    """The roofs of this machine.

    Attributes:
        cpu_model: The processor.
        architecture: Such as "x86_64".
        isa: The instruction set in use.
        simd_target: The variant of the kernels that ran; it may know more than the name of the instruction set says.
        int8_by: The instructions behind `int8_gops`: "tiles of int8" (AMX); "quads of int8"; where there are no such
            "pairs of int8", whose products are added in int16 first, or "pairs of int16".
        usable_cores: Cores this process may use.
        l1_bytes: Size of a core's first-level data cache.
        l2_bytes: Size of a core's second-level cache.
        l3_bytes: Size of the third-level cache, shared by `l3_cores` cores.
        l3_cores: Cores that share it.
        engine_version: The engine that measured.
        measured_at: When, as ISO 8601 in UTC.
        seconds: How long it took.
        from_cache: Whether an earlier measurement was used.
        by_threads: One set of rates for each number of threads, ascending.
        by_node: Memory of each node by itself, where there are several.
    """

    cpu_model: str
    architecture: str
    isa: str
    simd_target: str
    int8_by: str
    usable_cores: int
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    l3_cores: int
    engine_version: str
    measured_at: str
    seconds: float
    from_cache: bool
    by_threads: tuple[ThreadPeaks, ...]
    by_node: tuple[NodePeaks, ...] = ()

    @property
    def one_thread(self) -> ThreadPeaks:
        """The rates of one thread."""
        return self.by_threads[0]

    @property
    def all_threads(self) -> ThreadPeaks:
        """The rates of the largest number of threads that was measured."""
        return self.by_threads[-1]

    @property
    def disturbed(self) -> bool:
        """Whether the machine was busy with something else, so that the medians lie below the roofs."""
        rates = [rate for entry in self.by_threads for rate in (entry.fp32_gflops, entry.int8_gops)]
        return any(rate.median < _QUIET_SHARE * rate.max for rate in rates)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        by_threads = [asdict(entry) for entry in self.by_threads]
        return {**asdict(self), "by_threads": by_threads, "by_node": [asdict(entry) for entry in self.by_node]}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Peaks:
        """The inverse of `to_dict`.

        Raises:
            ValueError: The data is not what `to_dict` gives.
        """
        try:
            by_threads = tuple(_rates(ThreadPeaks, entry) for entry in data["by_threads"])
            by_node = tuple(_rates(NodePeaks, entry) for entry in data.get("by_node", ()))
            found = cls(**{**data, "by_threads": by_threads, "by_node": by_node})
            _check_types(found)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"expected what Peaks.to_dict gives, got something else: {error}") from error
        if not by_threads:
            raise ValueError("expected what Peaks.to_dict gives, got no number of threads")
        return found


_Entry = TypeVar("_Entry", ThreadPeaks, NodePeaks)

_measured: dict[tuple[Any, ...], Peaks] = {}


def known_peaks(num_threads: int | None = None) -> Peaks | None:
    """What `peaks` would give without measuring; None if this machine has not been measured yet.

    Args:
        num_threads: As in `peaks`; the same errors.
    """
    from thresher import cache

    _, key, in_process = _identity(num_threads)
    if in_process in _measured:
        return replace(_measured[in_process], from_cache=True)
    stored = cache.load("peaks", key)
    if stored is None:
        return None
    try:
        return replace(Peaks.from_dict(stored), from_cache=True)
    except ValueError:
        return None  # from a build of the same version that measured other things


def _identity(num_threads: int | None) -> tuple[list[int], dict[str, Any], tuple[Any, ...]]:
    """Numbers of threads to measure, the key of the file with the result, and the same within the process."""
    from thresher import _engine

    _engine.initialize()
    machine: dict[str, Any] = _engine.machine()
    counts = sorted({1, num_threads if num_threads is not None else int(machine["usable_cores"])})
    if counts[0] < 1 or counts[-1] > 1024:
        raise ValueError(f"peaks: expected 1 to 1024 threads, got {num_threads}")
    return counts, {"num_threads": counts}, (*counts, *machine.items())


def peaks(
    refresh: bool = False, *, num_threads: int | None = None, progress: Callable[[int, int], object] | None = None
) -> Peaks:
    """The roofs of this machine with one thread and with all: measured once, then from the cache.

    The first call takes a few seconds and wants a machine that does nothing else.

    Args:
        refresh: Measures again even where there is an earlier measurement.
        num_threads: The larger number of threads; by default all cores this process may use.
        progress: Called with how much of how much is done while the measurement runs.

    Raises:
        ValueError: `num_threads` is not from 1 to 1024, or a THRESHER_* variable is wrong.
        MemoryError: There is no memory for the buffers.
    """
    from thresher import _engine, cache

    counts, key, in_process = _identity(num_threads)
    if not refresh and (known := known_peaks(num_threads)) is not None:
        return known
    begin = time.monotonic()
    measured_at = datetime.now(timezone.utc).isoformat(timespec="seconds")
    raw: dict[str, Any] = _engine.measure_peaks(counts, progress=progress)
    result = Peaks.from_dict(
        {
            **_engine.machine(),
            **raw,
            "engine_version": _engine.version(),
            "measured_at": measured_at,
            "seconds": round(time.monotonic() - begin, 3),
            "from_cache": False,
        }
    )
    _measured[in_process] = result
    cache.store("peaks", key, result.to_dict())
    return result


def _rates(kind: type[_Entry], data: dict[str, Any]) -> _Entry:
    values: dict[str, Any] = {name: Rate(**value) if isinstance(value, dict) else value for name, value in data.items()}
    entry = kind(**values)
    _check_types(entry)
    for rate in vars(entry).values():
        if isinstance(rate, Rate):
            _check_types(rate)
    return entry


def _check_types(found: Rate | ThreadPeaks | NodePeaks | Peaks) -> None:
    """Compares the simple fields with their declarations.

    Raises:
        TypeError: One has another type.
    """
    checks: dict[object, Callable[[object], object]] = {"int": integer, "float": number, "str": text, "bool": flag}
    for field in fields(found):
        value = getattr(found, field.name)
        if field.type in checks:
            checks[field.type](value)
        elif not isinstance(value, Rate) and (
            field.type == "Rate" or (field.type == "Rate | None" and value is not None)
        ):
            raise TypeError(f"{field.name}: expected a rate, got {type(value).__name__}")

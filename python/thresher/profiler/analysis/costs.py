"""The cost model: how near an operator comes to the measured peak, and what bounds it.

A run of an operator that computes F operations and moves B bytes takes at least

    t_compute = F / peak of its precision,    t_memory = B / bandwidth of the memory level that holds B,

and at least the longer of the two, its roof time. The percentage of the peak is the roof time divided by the time
it took.
It is bound by the longer of the two; but where the roof time explains less than a fifth of the time it took, neither
arithmetic nor memory bounds it, and it is bound by overhead: starting threads, dispatch, cold caches, a kernel that
fits its shape badly.

The memory level is the smallest that holds the bytes of one run: the first and second level count once per thread, the
third once per group of cores that share it. So the roof is never too low: data that come from further away only make
the percentage smaller. A step of an answer of a language model (phase "decode") meets each weight once, after all
others, so there the level is the smallest that holds the bytes of the whole step.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from thresher.profiler.trace.model import Site

OVERHEAD_SHARE = 0.2
DECODE = "decode"
# Weights in blocks are multiplied as integers; other weights of 8 and 4 bits are widened first.
_BLOCKS = ("q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k", "iq4_nl", "mxfp4")
_COMPUTE_ROOF = {
    "fp32": "fp32_gflops",
    "f32": "fp32_gflops",
    "bf16": "bf16_gflops",
    "int8": "int8_gops",
    "i8": "int8_gops",
    "u8": "int8_gops",
    "fp16": "fp16_gflops",
    "f16": "fp16_gflops",
    "int8_weight": "fp32_gflops",
    "int4_weight": "fp32_gflops",
    **dict.fromkeys(_BLOCKS, "int8_gops"),
}


@dataclass(frozen=True)
class Cost:
    """What the cost model says of one run of an operator; times in ns, None where not modelled.

    Attributes:
        compute_ns: Shortest time for its arithmetic.
        memory_ns: Shortest time for its bytes.
        reason: Why it is not modelled, None if it is.
    """

    compute_ns: float | None
    memory_ns: float | None
    reason: str | None

    @property
    def roof_ns(self) -> float | None:
        """The shortest time that the peaks allow."""
        if self.compute_ns is None or self.memory_ns is None:
            return None
        return max(self.compute_ns, self.memory_ns)


class CostModel:
    """Costs on one machine with one number of threads.

    Args:
        peaks: Peaks in the form of the report, None if there are none.
        reason: Why there are none.
        num_threads: Threads that shared the work, None if not known.
    """

    def __init__(self, peaks: dict[str, Any] | None, reason: str | None, num_threads: int | None) -> None:
        self.reason = reason
        self.note = ""
        self.entry: dict[str, Any] | None = None
        self._levels: list[tuple[float, float]] = []
        self._step_bytes = 0.0
        if peaks is None:
            return
        self.entry = _choose(peaks["threads"], num_threads)
        measured = self.entry["num_threads"]
        if num_threads is not None and measured != num_threads:
            self.note = f"the peaks were measured with {measured} threads; the run used {num_threads}"
        sizes = peaks["cache_bytes"]
        groups = -(-measured // sizes["l3_cores"]) if sizes.get("l3_cores") else 1
        for level, copies in (("l1", measured), ("l2", measured), ("l3", groups)):
            size, rate = sizes.get(level), self.entry.get(f"{level}_read_gbytes")
            if size and rate:
                self._levels.append((size * copies, rate))

    def precision_of(self, site: Site) -> str:
        """The precision of a site's arithmetic: as it says, else that of its first input."""
        return site.precision or site.dtypes.split(",")[0].strip() or "fp32"

    def bandwidth(self, amount: float) -> float | None:
        """Gigabytes per second of the level that holds so many bytes, None if it was not measured."""
        for size, rate in self._levels:
            if amount <= size:
                return rate
        memory = self.entry.get("dram_read_gbytes") if self.entry else None
        return float(memory) if memory else None

    def peak(self, precision: str) -> float | None:
        """Operations per nanosecond at the peak of a precision."""
        if self.entry is None:
            return None
        name = _COMPUTE_ROOF.get(precision)
        if name is None:
            return None
        rate, fp32 = self.entry.get(name), self.entry.get("fp32_gflops")
        if fp32 and (rate or name in ("bf16_gflops", "fp16_gflops")):
            # What a machine is slower at than at fp32, or has no dot products for, the engine multiplies in fp32.
            rate = max(rate or 0.0, fp32)
        return float(rate) if rate else None

    def set_decoding(self, runs: Iterable[tuple[float, int]], steps: int) -> None:
        """Says what the steps of answers move.

        Args:
            runs: Bytes of a run, and how many there were, of every operator in phase "decode".
            steps: How many steps there were.
        """
        self._step_bytes = sum(amount * count for amount, count in runs) / steps if steps else 0.0

    def of(self, site: Site | None, phase: str = "") -> Cost:
        """The cost of one run of what a site does, in a phase."""
        if site is None or site.flops is None or site.bytes is None:
            return Cost(None, None, "its operations and bytes are not known")
        if site.flops == 0 and site.bytes == 0:
            return Cost(None, None, "it computes and moves nothing")
        if self.entry is None:
            return Cost(None, None, self.reason or "no peaks")
        precision = self.precision_of(site)
        peak = self.peak(precision)
        if site.flops > 0 and peak is None:
            return Cost(None, None, f"no peak was measured for {precision}")
        bandwidth = self.bandwidth(max(site.bytes, self._step_bytes if phase == DECODE else 0.0))
        if bandwidth is None:
            return Cost(None, None, "no bandwidth of memory was measured")
        # Gigabytes per second are bytes per nanosecond.
        return Cost(site.flops / peak if peak else 0.0, site.bytes / bandwidth, None)


def bound_of(compute_ns: float, memory_ns: float, total_ns: float) -> str:
    """What bounds work: "compute", "memory" or "overhead".

    Args:
        compute_ns: Shortest time for the arithmetic.
        memory_ns: Shortest time for the bytes.
        total_ns: The time it took.
    """
    if max(compute_ns, memory_ns) < OVERHEAD_SHARE * total_ns:
        return "overhead"
    return "compute" if compute_ns >= memory_ns else "memory"


def _choose(threads: list[dict[str, Any]], wanted: int | None) -> dict[str, Any]:
    # With no measurement for this number, the next larger one is a roof that surely is not too low.
    for entry in threads:
        if wanted is not None and entry["num_threads"] >= wanted:
            return entry
    return threads[-1]

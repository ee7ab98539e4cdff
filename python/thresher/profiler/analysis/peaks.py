"""The measured peaks of a machine, in the form of the report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

COMPUTE = ("fp32_gflops", "bf16_gflops", "int8_gops")
MEMORY = ("dram_read_gbytes", "l1_read_gbytes", "l2_read_gbytes", "l3_read_gbytes")
NO_PEAKS = "the trace holds no peaks of its machine: run `thresher peaks` there before recording, or give them"


def normalise(peaks: object) -> tuple[dict[str, Any] | None, str | None]:
    """Peaks in the form of the report, and why there are none.

    Args:
        peaks: What `thresher.peaks()` or its `to_dict()` gives, or what a report says; None if there are none.
    """
    if peaks is None:
        return None, NO_PEAKS
    to_dict = getattr(peaks, "to_dict", None)
    data = to_dict() if callable(to_dict) else peaks
    if not isinstance(data, Mapping):
        return None, f"the peaks are not an object but {type(data).__name__}"
    entries = data.get("by_threads") or data.get("threads")
    if not isinstance(entries, (list, tuple)):
        return None, str(data.get("reason") or "the peaks hold no measurements")
    threads = [found for entry in entries if isinstance(entry, Mapping) and (found := _entry(entry)) is not None]
    if not threads:
        return None, "the peaks hold no measurements"
    threads.sort(key=lambda entry: int(entry["num_threads"]))
    cache = data.get("cache_bytes") if isinstance(data.get("cache_bytes"), Mapping) else {}
    assert isinstance(cache, Mapping)
    sizes = {level: _positive(data.get(f"{level}_bytes", cache.get(level))) for level in ("l1", "l2", "l3")}
    cores = _positive(data.get("l3_cores", cache.get("l3_cores")))
    result: dict[str, Any] = {"threads": threads, "cache_bytes": {**sizes, "l3_cores": cores}}
    if data.get("measured_at"):
        result["measured_at"] = str(data["measured_at"])
    return result, None


def _entry(entry: Mapping[str, Any]) -> dict[str, Any] | None:
    threads = entry.get("num_threads")
    if not isinstance(threads, int) or threads < 1:
        return None
    found: dict[str, Any] = {"num_threads": threads}
    for name in (*COMPUTE, *MEMORY):
        found[name] = _rate(entry.get(name, entry.get(name.replace("_gbytes", "_gb_per_s"))))
    if (fp16 := _rate(entry.get("fp16_gflops"))) is not None:
        found["fp16_gflops"] = fp16
    return found


def _rate(value: object) -> float | None:
    if isinstance(value, Mapping):
        value = value.get("median")
    return float(value) if isinstance(value, (int, float)) and value > 0 else None


def _positive(value: object) -> int | None:
    return int(value) if isinstance(value, (int, float)) and value > 0 else None

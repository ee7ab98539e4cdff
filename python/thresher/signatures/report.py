"""Results of driver commands for programs and for people: JSON, CSV, a summary, a picture."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from html import escape
from typing import Any

import torch

from thresher import _engine
from thresher.draw.bars import whole_svg
from thresher.signatures.run import CommandResult
from thresher.signatures.timing import Timing

_COLUMNS = (
    "command",
    "func_name",
    "backend",
    "shape",
    "dtype",
    "runs",
    "min_us",
    "max_us",
    "mean_us",
    "median_us",
    "stddev_us",
    "flops",
    "bytes",
    "gflop_per_s",
    "gbyte_per_s",
    "percent_of_roof",
    "times_as_fast_as_torch",
    "verdict",
    "problem",
)

_WIDTH, _LABEL, _VALUE = 960, 400, 150
_BAR, _GAP, _TOP = 14, 10, 64
_STYLE = """
text { font: 12px system-ui, 'Segoe UI', Helvetica, Arial, sans-serif; fill: #1f2328 }
.title { font-size: 15px; font-weight: 600 }
.value { font-variant-numeric: tabular-nums }
.torch { fill: #8c959f }
.thresher { fill: #bf5f00 }
.axis { stroke: #8c959f; stroke-width: 1 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .torch { fill: #6e7681 }
  .thresher { fill: #f0883e }
  .axis { stroke: #6e7681 }
}
"""


def to_dict(results: Sequence[CommandResult]) -> dict[str, Any]:
    """Everything, for JSON."""
    return {
        "format": "thresher-commands-1",
        "engine_version": _engine.version(),
        "torch_version": torch.__version__,
        "machine": _engine.machine(),
        "times_as_fast_as_torch": geometric_mean(_ratios(results)),
        "commands": [result.to_dict() for result in results],
    }


def to_csv(results: Sequence[CommandResult]) -> str:
    """One line for each backend of each command; what is not known is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for found in results:
        common = {
            "command": found.command,
            "func_name": found.func_name,
            "times_as_fast_as_torch": found.ratio,
            "verdict": "" if found.verification is None else found.verification.verdict,
            "problem": found.problem,
        }
        for result in found.results:
            timing = {} if result.timing is None else result.timing.to_dict()
            shape = "x".join(map(str, result.shape))
            own = {"backend": result.backend, "shape": shape, "dtype": result.dtype}
            problem = {"problem": result.problem} if result.problem else {}
            writer.writerow({**common, **own, **timing, **problem})
        if not found.results:
            writer.writerow(common)
    return text.getvalue()


def summary(results: Sequence[CommandResult]) -> list[str]:
    """What many commands say together, in a few lines."""
    failed = [found for found in results if found.failed]
    lines = [f"{len(results)} commands, {len(failed)} failed"]
    verified = [found.verification for found in results if found.verification is not None]
    if verified:
        lines.append(f"{sum(one.passed for one in verified)} of {len(verified)} verified")
    ratios = _ratios(results)
    mean = geometric_mean(ratios)
    if mean is not None:
        slower = sum(ratio < 1 for ratio in ratios)
        lines.append(
            f"{mean:.2f} times as fast as PyTorch: geometric mean of {len(ratios)} medians, least {min(ratios):.2f}, "
            f"most {max(ratios):.2f}; {slower} slower"
        )
    return lines


def geometric_mean(ratios: Sequence[float]) -> float | None:
    """The geometric mean; None of nothing."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None


def to_svg(results: Sequence[CommandResult]) -> str:
    """Bars of the medians of each backend; those of a command have a scale of their own."""
    timed = [found for found in results if any(result.timing is not None for result in found.results)]
    parts = []
    y = _TOP
    for found in timed:
        times = [result.timing for result in found.results if result.timing is not None]
        scale = (_WIDTH - _LABEL - _VALUE) / max(timing.median_us for timing in times)
        label = found.func_name if len(found.func_name) <= 62 else f"{found.func_name[:61]}…"
        middle = y + len(times) * _BAR / 2 + 4
        tip = f"<title>{escape(found.command)}</title>"
        parts.append(f'<text x="{_LABEL - 8}" y="{middle:.1f}" text-anchor="end">{escape(label)}{tip}</text>')
        start = y
        for timing in times:
            width = max(1.0, timing.median_us * scale)
            parts.append(
                f'<rect class="{timing.backend}" x="{_LABEL}" y="{y}" width="{width:.1f}" height="{_BAR - 2}">{tip}'
                "</rect>"
                f'<text class="value" x="{_LABEL + width + 6:.1f}" y="{y + _BAR - 3}">{_figures(timing, found)}</text>'
            )
            y += _BAR
        parts.append(f'<line class="axis" x1="{_LABEL}" y1="{start - 2}" x2="{_LABEL}" y2="{y}"/>')
        y += _GAP
    mean = geometric_mean(_ratios(results))
    told = "" if mean is None else f" Geometric mean: {mean:.2f} times as fast as PyTorch."
    title = f"{len(timed)} kernels on {_engine.cpu_model()}, {_engine.isa()}"
    figures = f"Median of a run; shorter is faster.{told}"
    return whole_svg(_WIDTH, y + 12, title, figures, [], parts, _STYLE)


def _figures(timing: Timing, found: CommandResult) -> str:
    ratio = f", {found.ratio:.2f} x" if timing.backend == "thresher" and found.ratio is not None else ""
    return f"{timing.backend} {timing.median_us:.0f} µs{ratio}"


def _ratios(results: Sequence[CommandResult]) -> list[float]:
    return [found.ratio for found in results if found.ratio is not None]

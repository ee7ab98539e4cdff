"""How precisely the engine computes, and what it decided for each layer."""

from __future__ import annotations

import dataclasses
import difflib
import fnmatch
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from thresher import _engine

Precision: TypeAlias = Literal["model", "fp32", "bf16", "fp16", "int8", "int8_weight", "int4_weight"]

PRECISIONS = ("fp32", "bf16", "fp16", "int8", "int8_weight", "int4_weight")

# Weights are multiplied as the model stores them.
MODEL_PRECISION: Precision = "model"

# Those that only the CPU has kernels for.
CPU_PRECISIONS = ("int8", "int8_weight", "int4_weight")

_MAX_LISTED = 8  # exceptions that a summary names
# What begins the reason where something is computed in another way than its name says.
_OTHERWISE = ("asked for; ", "the weight is stored so; ")


@dataclasses.dataclass(frozen=True, slots=True)
class PrecisionDecision:
    """How the engine computes one layer.

    Attributes:
      module: its path in the model, such as "encoder.layer.0.output.dense"; "" where PyTorch does not say.
      source: its line, "model.py:12 in forward".
      op: the operator.
      k: rows of the matrix, the width of the layer's input.
      n: columns of the matrix, the width of its output.
      precision: one of PRECISIONS.
      weight_error: the relative error of the rounded weights (Frobenius norm), None where they are not rounded.
      reason: why this precision: "asked for", or that the weight is stored so, and why it is multiplied in fp32 all the
        same; or what kept the layer as the model has it.
    """

    module: str
    source: str
    op: str
    k: int
    n: int
    precision: str
    weight_error: float | None
    reason: str

    @staticmethod
    def of(entry: Mapping[str, Any]) -> PrecisionDecision:
        """A decision as the engine reports it."""
        error = entry["weight_error"]
        return PrecisionDecision(
            module=str(entry["module"]),
            source=str(entry["source"]),
            op=str(entry["op"]),
            k=int(entry["k"]),
            n=int(entry["n"]),
            precision=str(entry["precision"]),
            weight_error=None if error is None else float(error),
            reason=str(entry["reason"]),
        )

    def __str__(self) -> str:
        error = "" if self.weight_error is None else f", weight error {self.weight_error:.2g}"
        reason = f" ({self.reason})" if self.reason else ""
        return f"{self.module or self.source or '?'}: {self.op} {self.k} x {self.n} in {self.precision}{error}{reason}"


def available() -> tuple[str, ...]:
    """The precisions of this build."""
    from thresher import _engine

    return tuple(_engine.precisions())


def decisions_of(plan: _engine.Plan) -> list[PrecisionDecision]:
    """What the engine decided for the layers of a plan."""
    return [PrecisionDecision.of(entry) for entry in plan.precision_decisions()]


def merge(plans: Iterable[Sequence[PrecisionDecision]]) -> tuple[PrecisionDecision, ...]:
    """The decisions of several plans of one graph with each layer once, as the first plan that has it decided."""
    merged: dict[object, PrecisionDecision] = {}
    for decisions in plans:
        times: Counter[object] = Counter()
        for decision in decisions:
            layer = (decision.module, decision.source, decision.op, decision.k, decision.n)
            times[layer] += 1  # a line may hold several layers that look alike
            merged.setdefault((layer, times[layer]), decision)
    return tuple(merged.values())


def summarize(decisions: Sequence[PrecisionDecision]) -> str:
    """A few lines: how many layers are computed in which precision, and those that stay in fp32."""
    if not decisions:
        return ""
    counts = Counter(decision.precision for decision in decisions)
    lines = ["layers: " + ", ".join(f"{count} in {precision}" for precision, count in counts.most_common())]
    otherwise = {(d.precision, d.reason.partition("; ")[2]) for d in decisions if d.reason.startswith(_OTHERWISE)}
    lines += [f"  {precision}: {reason}" for precision, reason in sorted(otherwise)]
    other = [decision for decision in decisions if decision.precision == "fp32"] if len(counts) > 1 else []
    lines += [f"  {decision}" for decision in other[:_MAX_LISTED]]
    if len(other) > _MAX_LISTED:
        lines.append(f"  and {len(other) - _MAX_LISTED} more, see precision_decisions")
    return "\n".join(lines)


def unmatched(patterns: Iterable[str], modules: Iterable[str]) -> list[str]:
    """Sentences about the patterns that match no module."""
    paths = sorted(path for path in set(modules) if path)
    found = []
    for pattern in patterns:
        if any(fnmatch.fnmatchcase(path, pattern) for path in paths):
            continue
        near = difflib.get_close_matches(pattern.rstrip(".*"), paths, n=1, cutoff=0.4)
        hint = f"; the nearest module is {near[0]!r}" if near else ""
        found.append(f"precision_exclude: {pattern!r} matches no module of the model{hint}")
    return found


def warn_unmatched(patterns: Iterable[str], modules: Iterable[str]) -> None:
    """Warns of patterns that match no module."""
    for sentence in unmatched(patterns, modules):
        warnings.warn(f"thresher: {sentence}", stacklevel=2)

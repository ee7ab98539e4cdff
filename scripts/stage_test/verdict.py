"""The verdict, from the files of a measurement alone."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from measure.statistics import Summary, median, summarise
from stage_test.plan import (
    AGREEMENT_FILE,
    AGREEMENT_FORMAT,
    AGREEMENT_LIMIT,
    CHECKS,
    ERROR_LIMIT,
    MEAN_ERROR_BOUND,
    RUN_FORMAT,
    SCENARIOS,
    SPREAD_BOUND,
    Check,
    Scenario,
    scenarios_of,
)

# How often the rounds are drawn again for the error of a ratio.
RESAMPLES = 200


class ResultError(ValueError):
    """The files cannot be judged: one is missing, truncated, of another kind, or not comparable with the others."""


@dataclass(frozen=True)
class Outcome:
    """One comparison: what was measured, what with, and whether the limit was kept.

    Attributes:
      statistic: "median" or "mean" for times, else the name of the quantity.
      value: the ratio, the difference or the count that must not be above `limit`. NaN never passes.
      error: standard error of the value; it fails only where it is above the limit by more than two of them.
    """

    title: str
    statistic: str
    measured: float
    reference: float
    value: float
    limit: float
    error: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether the value is within its limit, or above it by no more than chance explains."""
        return self.value - 2 * self.error <= self.limit

    def message(self) -> str:
        """One line with both figures and the limit."""
        word = "PASS" if self.passed else "FAIL"
        if self.statistic in ("median", "mean"):
            return (
                f"{word} {self.title}, {self.statistic}: {self.measured:.3f} ms against {self.reference:.3f} ms is "
                f"{self.value:.3f} times (+- {2 * self.error:.3f}), limit {self.limit:.3f}"
            )
        return f"{word} {self.title}, {self.statistic}: {figure(self.value)}, limit {figure(self.limit)}"


def figure(value: float) -> str:
    """A count or a small difference as text."""
    return f"{value:.0f}" if value == 0 or value >= 1 else f"{value:.2e}"


@dataclass
class Attempt:
    """One full measurement: the runs and what they mean."""

    number: int
    runs: dict[str, dict[str, Any]]
    summaries: dict[str, Summary]
    outcomes: list[Outcome]
    noise: list[str]


@dataclass
class Verdict:
    """The result of the stage. The last attempt decides; there is a second one only where the first was noisy."""

    attempts: list[Attempt]
    agreement: list[Outcome]
    similarities: list[dict[str, Any]] = field(default_factory=list)

    @property
    def deciding(self) -> Attempt:
        """The attempt whose times are judged."""
        return self.attempts[-1]

    @property
    def outcomes(self) -> list[Outcome]:
        """Every comparison that counts."""
        return [*self.deciding.outcomes, *self.agreement]

    @property
    def failures(self) -> list[Outcome]:
        """The comparisons that crossed their limits."""
        return [outcome for outcome in self.outcomes if not outcome.passed]

    @property
    def passed(self) -> bool:
        """Whether every limit was kept."""
        return not self.failures

    def speedup(self, statistic: str) -> float:
        """How many times faster scenario (3) is than (1), both unprofiled, by "median" or "mean"."""
        reference = float(getattr(self.deciding.summaries["1-off"], statistic))
        return reference / float(getattr(self.deciding.summaries["3-off"], statistic))


def read_json(path: Path, wanted_format: str) -> dict[str, Any]:
    """One file of a measurement.

    Raises:
      ResultError: it cannot be read, is not complete JSON, or is something else.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ResultError(f"{path}: expected a result, got none ({error.strerror}); measure again") from None
    except ValueError as error:
        raise ResultError(f"{path}: is not complete JSON ({error}); the run was cut off, measure again") from None
    if not isinstance(value, dict) or value.get("format") != wanted_format:
        found = value.get("format") if isinstance(value, dict) else type(value).__name__
        raise ResultError(f"{path}: expected a file of the format '{wanted_format}', got {found!r}")
    return value


def _checked_samples(path: Path, run: Mapping[str, Any]) -> list[float]:
    try:
        wanted = int(run["plan"]["requests"])
        samples = [float(value) for value in run["samples_ms"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ResultError(f"{path}: the plan or the samples are missing or no numbers ({error!r})") from None
    if len(samples) != wanted:
        raise ResultError(f"{path}: the plan expected {wanted} samples, got {len(samples)}; measure again")
    for i, value in enumerate(samples):
        if not (math.isfinite(value) and value > 0):
            raise ResultError(f"{path}: sample {i} must be a positive number of milliseconds, got {value}")
    return samples


def _require_comparable(folder: Path, runs: Mapping[str, Mapping[str, Any]]) -> None:
    """Runs of different plans, PyTorch versions or processors must not be compared.

    Raises:
      ResultError: they differ.
    """

    def facts(run: Mapping[str, Any]) -> dict[str, Any]:
        environment = run.get("environment", {})
        return {
            "plan": run["plan"],
            "torch": environment.get("versions", {}).get("torch"),
            "transformers": environment.get("versions", {}).get("transformers"),
            "cpu_model": environment.get("cpu_model"),
            "torch_threads": run.get("torch_threads"),
        }

    first_id = SCENARIOS[0].id
    first = facts(runs[first_id])
    for name, run in runs.items():
        for key, value in facts(run).items():
            if value != first[key]:
                raise ResultError(
                    f"{folder}: the runs cannot be compared: {key} is {first[key]} in {first_id} but {value} in "
                    f"{name}; measure all of them together, with the same versions in both environments"
                )


def noise_of(summaries: Mapping[str, Summary]) -> list[str]:
    """A sentence for every run whose samples spread over a bound."""
    found: list[str] = []
    for name, summary in summaries.items():
        if summary.spread > SPREAD_BOUND:
            found.append(f"{name}: p90 / p10 is {summary.spread:.2f}, bound {SPREAD_BOUND:.2f}")
        if summary.mean_error > MEAN_ERROR_BOUND:
            found.append(
                f"{name}: standard error of the mean is {summary.mean_error:.1%}, bound {MEAN_ERROR_BOUND:.1%}"
            )
    return found


def _compare(check: Check, samples: Mapping[str, list[float]], plan: Mapping[str, Any]) -> list[Outcome]:
    """The check by median and by mean. The error comes from drawing the rounds again and again (bootstrap)."""
    involved = [check.measured, check.reference, *(check.beyond or ())]
    block = int(plan["block"])
    rounds = [
        {name: samples[name][start : start + block] for name in involved}
        for start in range(0, len(samples[check.measured]), block)
    ]
    outcomes: list[Outcome] = []
    for statistic, function in (("median", median), ("mean", fmean)):

        def ratio(
            chosen: Sequence[Mapping[str, list[float]]], function: Callable[[list[float]], float] = function
        ) -> tuple[float, float, float]:
            found = {name: function([value for entry in chosen for value in entry[name]]) for name in involved}
            allowed = found[check.beyond[0]] / found[check.beyond[1]] if check.beyond else 1.0
            return found[check.measured], found[check.reference], max(allowed, 1.0)

        measured, reference, allowed = ratio(rounds)
        value = measured / reference
        # Relative to what is allowed, so that both parts of the comparison carry their chance into the error.
        draw = random.Random(0)
        draws = []
        for _ in range(RESAMPLES):
            a, b, c = ratio(draw.choices(rounds, k=len(rounds)))
            draws.append(a / b / c)
        outcomes.append(
            Outcome(check.title, statistic, measured, reference, value, check.limit * allowed, stdev(draws) * allowed)
        )
    return outcomes


def _scenarios(path: Path, run: Mapping[str, Any]) -> tuple[Scenario, ...]:
    try:
        found = scenarios_of(run["plan"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ResultError(f"{path}: the plan is missing or incomplete ({error!r}); measure again") from None
    if {scenario.id for scenario in SCENARIOS[:7]} - {scenario.id for scenario in found}:
        raise ResultError(f"{path}: the plan leaves out scenarios; measure again")
    return found


def read_attempt(folder: Path) -> Attempt:
    """One attempt folder, judged.

    Raises:
      ResultError: a run is missing, incomplete or not comparable with the others.
    """
    runs: dict[str, dict[str, Any]] = {}
    summaries: dict[str, Summary] = {}
    first = read_json(folder / f"{SCENARIOS[0].id}.json", RUN_FORMAT)
    for scenario in _scenarios(folder / f"{SCENARIOS[0].id}.json", first):
        path = folder / f"{scenario.id}.json"
        run = read_json(path, RUN_FORMAT)
        named = run.get("scenario", {}).get("id")
        if named != scenario.id:
            raise ResultError(f"{path}: expected the run of scenario {scenario.id}, got that of {named}")
        summaries[scenario.id] = summarise(_checked_samples(path, run))
        runs[scenario.id] = run
    _require_comparable(folder, runs)
    samples = {name: [float(value) for value in run["samples_ms"]] for name, run in runs.items()}
    plan = runs[SCENARIOS[0].id]["plan"]
    checks = [check for check in CHECKS if check.measured in samples]
    outcomes = [outcome for check in checks for outcome in _compare(check, samples, plan)]
    return Attempt(int(runs[SCENARIOS[0].id]["attempt"]), runs, summaries, outcomes, noise_of(summaries))


def _read_agreement(path: Path, attempt: Attempt) -> tuple[list[Outcome], list[dict[str, Any]]]:
    value = read_json(path, AGREEMENT_FORMAT)
    outcomes: list[Outcome] = []
    similarities: list[dict[str, Any]] = []
    try:
        scenarios = value["scenarios"]
        eager = [float(pair["cosine"]) for pair in scenarios["1-off"]["similarities"]]
        for scenario in SCENARIOS:
            if scenario.id in attempt.runs and scenario.profiler == "http":
                count = float(scenarios[scenario.id]["answers_that_differ"])
                outcomes.append(Outcome("5-http vs 5-off", "answers_that_differ", count, 0.0, count, 0.0))
            if scenario.id not in attempt.runs or not scenario.compiled:
                continue
            entry = scenarios[scenario.id]
            title = f"{scenario.id} vs PyTorch"
            if scenario.kind == "backend-bf16":
                ours, pytorchs = (float(entry[f"last_hidden_state_error{of}"]) for of in ("", "_of_pytorch"))
                ratio = ours / pytorchs if pytorchs else math.nan
                outcomes.append(Outcome(title, "error_over_pytorchs", ours, pytorchs, ratio, ERROR_LIMIT))
                continue
            for key in ("last_hidden_state_max_abs", "pooled_max_abs"):
                error = float(entry[key])
                outcomes.append(Outcome(title, key, error, 0.0, error, AGREEMENT_LIMIT))
            cosines = [float(pair["cosine"]) for pair in entry["similarities"]]
            differences = [abs(a - b) for a, b in zip(cosines, eager, strict=True)]
            worst = math.nan if any(math.isnan(d) for d in differences) else max(differences)
            outcomes.append(Outcome(title, "similarity_max_abs", worst, 0.0, worst, AGREEMENT_LIMIT))
        similarities = [
            {"first": pair["first"], "second": pair["second"], "pytorch": cosine, "thresher": float(other["cosine"])}
            for pair, cosine, other in zip(
                scenarios["1-off"]["similarities"], eager, scenarios["3-off"]["similarities"], strict=True
            )
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise ResultError(f"{path}: a scenario's agreement is missing or incomplete ({error!r}); run again") from None
    return outcomes, similarities


def _left_to_pytorch(attempt: Attempt) -> list[Outcome]:
    """Every operator must run in Thresher: a back end that hands all of them back would keep the limits on time."""
    outcomes: list[Outcome] = []
    for scenario in SCENARIOS:
        if scenario.id not in attempt.runs or not scenario.compiled:
            continue
        try:
            compilation = attempt.runs[scenario.id]["engine"]["compilation"]
            count = float(compilation["nodes_unsupported"] + len(compilation["eager_shapes"]))
            if compilation["partitions"] < 1:
                count = math.nan
        except (KeyError, TypeError) as error:
            raise ResultError(
                f"attempt {attempt.number}, {scenario.id}: the compiler's statistics are missing or incomplete "
                f"({error!r}); measure again"
            ) from None
        outcomes.append(Outcome(f"{scenario.id} vs PyTorch", "operators_left_to_pytorch", count, 0.0, count, 0.0))
    return outcomes


def judge(folder: Path) -> Verdict:
    """The verdict on the folder of a measurement: attempt-*/SCENARIO.json and agreement.json.

    Raises:
      ResultError: the files cannot be judged.
    """
    folders = sorted(folder.glob("attempt-*"), key=lambda path: (len(path.name), path.name))
    if not folders:
        raise ResultError(
            f"{folder}: expected folders attempt-1, ... with results, got none; give the --output of a run"
        )
    attempts = [read_attempt(path) for path in folders]
    agreement, similarities = _read_agreement(folder / AGREEMENT_FILE, attempts[-1])
    return Verdict(attempts, agreement + _left_to_pytorch(attempts[-1]), similarities)

"""What the stage runs, in which order, and the limits that its results must keep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Scenario:
    """One of the runs.

    Attributes:
      id: name of its file and of its rows, for example "2-on".
      title: what it is, for a table.
      kind: "base" (PyTorch, Thresher not installed), "loaded" (PyTorch, Thresher installed and its entry points
        loaded), "backend" (torch.compile with backend="thresher"), "backend-bf16" (the same on the model in
        bfloat16) or "serve" (a language model).
      profiler: what watches: "off", "thresher" (operator records) or "torch.profiler"; the latter also shows the engine
        in "backend". In "serve" it is "http" where requests go through a server.
    """

    id: str
    title: str
    kind: str
    profiler: str

    @property
    def compiled(self) -> bool:
        """Whether the model runs in Thresher."""
        return self.kind.startswith("backend")


SCENARIOS: tuple[Scenario, ...] = (
    Scenario("1-off", "(1) torch eager, no Thresher", "base", "off"),
    Scenario("1-on", "(1) torch eager, no Thresher", "base", "torch.profiler"),
    Scenario("2-off", "(2) torch eager, Thresher loaded", "loaded", "off"),
    Scenario("2-on", "(2) torch eager, Thresher loaded", "loaded", "torch.profiler"),
    Scenario("3-off", '(3) backend="thresher"', "backend", "off"),
    Scenario("3-on", '(3) backend="thresher"', "backend", "thresher"),
    Scenario("3-torch", '(3) backend="thresher"', "backend", "torch.profiler"),
    Scenario("4-off", "(4) the same in bfloat16", "backend-bf16", "off"),
    Scenario("5-off", "(5) a language model", "serve", "off"),
    Scenario("5-http", "(5) the same behind thresher serve", "serve", "http"),
)
KINDS: tuple[str, ...] = ("base", "loaded", "backend", "backend-bf16", "serve")
# Without the environment of (5), which has more packages.
WITHOUT_SERVE = tuple(scenario.id for scenario in SCENARIOS if scenario.kind != "serve")
# What measurements consist of whose plan does not say: those made before there was a (4).
FIRST_SCENARIOS = tuple(scenario.id for scenario in SCENARIOS[:7])


@dataclass(frozen=True)
class Check:
    """A run that must not be slower than another by more than a limit.

    Attributes:
      limit: the largest ratio that passes.
      beyond: two scenarios whose own ratio is allowed on top, as a factor; none: nothing is.
    """

    title: str
    measured: str
    reference: str
    limit: float
    beyond: tuple[str, str] | None = None


# Times of two processes differ by a few percent for no better reason than where their memory lies.
RATIO_LIMIT = 1.10
# Runs of one process do not.
RECORDS_LIMIT = 1.03
TORCH_PROFILER_LIMIT = 1.05

CHECKS: tuple[Check, ...] = (
    Check("(2) vs (1), profiler off", "2-off", "1-off", RATIO_LIMIT),
    Check("(2) vs (1), profiler on", "2-on", "1-on", RATIO_LIMIT),
    Check("(3) vs (1), profiler off", "3-off", "1-off", RATIO_LIMIT),
    Check("(3) operator records on vs off", "3-on", "3-off", RECORDS_LIMIT),
    Check("(3) torch.profiler, over its cost in (1)", "3-torch", "3-off", TORCH_PROFILER_LIMIT, ("1-on", "1-off")),
    Check("(4) bfloat16 vs (3) float32", "4-off", "3-off", RATIO_LIMIT),
    Check("(5) over HTTP vs in process", "5-http", "5-off", RATIO_LIMIT),
)

# The first entry of every file, so that another tool's JSON is not taken for a result.
RUN_FORMAT = "thresher stage_test run"
AGREEMENT_FORMAT = "thresher stage_test agreement"
AGREEMENT_FILE = "agreement.json"

# Largest absolute difference between PyTorch's and Thresher's outputs.
AGREEMENT_LIMIT = 1e-4
# In bfloat16: Thresher's largest error over that of PyTorch, both against float64.
ERROR_LIMIT = 1.0
# A run is noisy when p90 / p10 of its samples is above the first bound, or when the standard error of its mean is above
# the second: then chance alone could move a ratio across the limit.
SPREAD_BOUND = 1.30
MEAN_ERROR_BOUND = 0.03


@dataclass(frozen=True)
class Plan:
    """How much is measured.

    Attributes:
      requests: timed requests of every scenario.
      warmups: requests before them; the first one compiles in scenario (3).
      block: timed requests in a row before another scenario gets its turn.
      threads: threads that PyTorch and Thresher may use.
      batch: passages a request.
      sequence: tokens a passage.
      scenarios: ids of what is run.
    """

    requests: int = 300
    warmups: int = 5
    block: int = 10
    threads: int = 1
    batch: int = 1
    sequence: int = 128
    scenarios: tuple[str, ...] = tuple(scenario.id for scenario in SCENARIOS)

    def __post_init__(self) -> None:
        for name in ("requests", "warmups", "block", "threads", "batch", "sequence"):
            value = getattr(self, name)
            if value < 1:
                raise ValueError(f"--{name} must be at least 1, got {value}")
        if self.sequence > 128:
            raise ValueError(f"--sequence must be at most 128, the length of the passages, got {self.sequence}")

    def blocks(self) -> list[int]:
        """Timed requests of every round; their sum is `requests`."""
        full, rest = divmod(self.requests, self.block)
        return [self.block] * full + ([rest] if rest else [])

    def turns(self) -> Iterator[tuple[int, Scenario, int]]:
        """Every block in the order of running: (round, scenario, timed requests).

        The order turns by one place every second round and is reversed in the others, so that a host which becomes
        slower or faster, and what a process leaves in the caches, meet every scenario alike.
        """
        chosen = scenarios_of({"scenarios": self.scenarios})
        count = len(chosen)
        for number, requests in enumerate(self.blocks()):
            start = number // 2 % count
            order = [chosen[(start + i) % count] for i in range(count)]
            for scenario in reversed(order) if number % 2 else order:
                yield number, scenario, requests


def scenarios_of(plan: Mapping[str, Any]) -> tuple[Scenario, ...]:
    """The scenarios of a measurement, by the plan in its files."""
    wanted = plan.get("scenarios", FIRST_SCENARIOS)
    return tuple(scenario for scenario in SCENARIOS if scenario.id in wanted)

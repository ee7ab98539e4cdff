"""What became of a target: read from what libFuzzer prints, shown as a table and as JSON."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

_STATUS = re.compile(r"#(\d+)\s+[A-Z]?[A-Za-z_]+\b.*?cov: (\d+)(?: ft: (\d+))?(?: corp: (\d+))?")
_DONE = re.compile(r"(?:Done (\d+) runs in|stat::number_of_executed_units:\s+(\d+))")
_WRITTEN = re.compile(r"Test unit written to (.+)")
# The first of these says most.
_REASONS = (
    re.compile(r"^(\S+: expected .*)"),
    re.compile(r"^(.*: runtime error: .*)"),
    re.compile(r"^\s*=+ Uncaught Python exception: =+$\n(.*)", re.MULTILINE),
    re.compile(r"^SUMMARY: (.*)"),
    re.compile(r"^(==\d+== ?ERROR: .*)"),
)
_COLUMNS = ("target", "language", "seconds", "runs", "runs/s", "cov", "ft", "corpus", "findings")


@dataclass
class Outcome:
    """How a run of a target went.

    Attributes:
        target: its name.
        language: what it is written in.
        seconds: how long it ran.
        runs: how many inputs it read.
        coverage: edges of the code that were reached.
        features: what libFuzzer tells inputs apart by.
        corpus: inputs that lead somewhere else.
        findings: inputs that broke something.
        reasons: what they broke.
        replay: a command for each finding.
        problem: why the target did not run; empty if it did.
        skipped: why it was left out; empty if it was not.
    """

    target: str
    language: str
    seconds: float = 0.0
    runs: int = 0
    coverage: int = 0
    features: int = 0
    corpus: int = 0
    findings: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    replay: list[str] = field(default_factory=list)
    problem: str = ""
    skipped: str = ""

    @property
    def ok(self) -> bool:
        """Whether nothing was found and the target ran, unless it was left out."""
        return not self.findings and not self.problem

    def read(self, line: str) -> None:
        """Takes in a line of libFuzzer's."""
        if match := _STATUS.match(line):
            self.runs = max(self.runs, int(match[1]))
            self.coverage, self.features, self.corpus = (
                int(new) if new else old
                for new, old in zip(match.groups()[1:], (self.coverage, self.features, self.corpus), strict=True)
            )
        elif match := _DONE.match(line):
            self.runs = int(match[1] or match[2])
        elif match := _WRITTEN.search(line):
            self.findings.append(match[1].strip())

    def to_dict(self) -> dict[str, Any]:
        """The outcome as plain data for JSON."""
        return {**asdict(self), "runs_per_second": round(self.rate, 1), "ok": self.ok}

    @property
    def rate(self) -> float:
        """Inputs a second."""
        return self.runs / self.seconds if self.seconds > 0 else 0.0

    def progress(self) -> str:
        """One line for who waits."""
        return (
            f"{self.target}: {self.seconds:.0f} s, {self.runs} runs, {self.rate:.0f}/s, cov {self.coverage}, "
            f"ft {self.features}, corpus {self.corpus}, findings {len(self.findings)}"
        )

    def cells(self) -> tuple[str, ...]:
        """The row of the table."""
        if self.skipped:
            return (self.target, self.language, self.skipped, *[""] * (len(_COLUMNS) - 3))
        numbers = (self.runs, round(self.rate), self.coverage, self.features, self.corpus)
        last = self.problem or str(len(self.findings))
        return (self.target, self.language, f"{self.seconds:.0f}", *map(str, numbers), last)


def reason_in(log: str) -> str:
    """What a log says was wrong, in one line."""
    for pattern in _REASONS:
        match = re.search(pattern.pattern, log, re.MULTILINE)
        if match:
            return match[1].strip()[:300]
    return "see the log"


def table(outcomes: Sequence[Outcome]) -> str:
    """The outcomes, one a line."""
    rows = [_COLUMNS, *(outcome.cells() for outcome in outcomes)]
    widths = [
        max(len(row[i]) for row in rows if not (i == 2 and row[2].startswith("skipped"))) for i in range(len(_COLUMNS))
    ]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def sizes(folder: Path) -> tuple[int, int]:
    """How many files lie in a folder, and how many bytes they have."""
    files = [path for path in folder.glob("*") if path.is_file()]
    return len(files), sum(path.stat().st_size for path in files)

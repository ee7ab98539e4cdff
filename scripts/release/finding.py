"""What a check found, and the table of all checks."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from toolchain.process import ToolchainError

OK, FAULT, ABSENT, SKIPPED = "ok", "FAULT", "not here", "left out"
WIDTH = 100


@dataclass(frozen=True)
class Problem:
    """One thing that must be mended before a release."""

    wanted: str
    found: str
    cure: str


@dataclass(frozen=True)
class Verdict:
    """What a check returns.

    Attributes:
        found: what was looked at and what it is.
        problems: what is wrong; a check with problems has failed.
        absent: what could not be looked at on this machine. It has not passed.
        skipped: why nothing was looked at, by the user's own choice.
    """

    found: str
    problems: Sequence[Problem] = ()
    absent: Sequence[str] = ()
    skipped: str = ""


@dataclass(frozen=True)
class Finding:
    """A row of the table.

    Attributes:
        check: its name.
        outcome: ok, FAULT, not here (looked for in vain; not passed), left out (not asked for).
        found: what was found.
        problems: what is wrong.
        absent: what could not be looked at.
    """

    check: str
    outcome: str
    found: str
    problems: Sequence[Problem] = field(default_factory=tuple)
    absent: Sequence[str] = field(default_factory=tuple)


def carry_out(check: str, action: Callable[[], Verdict]) -> Finding:
    """Runs a check; one that breaks off has failed, and the next ones run all the same."""
    try:
        verdict = action()
    except (ToolchainError, OSError, ValueError, KeyError) as error:
        words = str(error) if isinstance(error, ToolchainError) else f"{type(error).__name__}: {error}"
        problem = Problem("the check to run to its end", words, "mend what the message names; more is above")
        return Finding(check, FAULT, "broke off", (problem,))
    if verdict.problems:
        return Finding(check, FAULT, verdict.found, tuple(verdict.problems), tuple(verdict.absent))
    if verdict.skipped:
        return Finding(check, SKIPPED, verdict.skipped)
    return Finding(check, ABSENT if verdict.absent else OK, verdict.found, (), tuple(verdict.absent))


def table(findings: Sequence[Finding]) -> str:
    """Returns the findings as lines: check, outcome, what was found; below a failed one what is wrong and the cure."""
    name_width = max([len("check"), *(len(finding.check) for finding in findings)])
    outcome_width = max(len(outcome) for outcome in (OK, FAULT, ABSENT, SKIPPED))
    indent = name_width + outcome_width + 4
    lines = [f"{'check':{name_width}}  {'outcome':{outcome_width}}  found", "-" * (indent + WIDTH // 2)]
    for finding in findings:
        texts = finding.found.splitlines() or [""]
        if finding.absent:
            texts.append(f"not here: {', '.join(finding.absent)}")
        for problem in finding.problems:
            texts += [f"expected: {problem.wanted}", f"got: {problem.found}", f"cure: {problem.cure}"]
        wrapped = [part for text in texts for part in _wrap(text)]
        lines.append(f"{finding.check:{name_width}}  {finding.outcome:{outcome_width}}  {wrapped[0]}".rstrip())
        lines += [" " * indent + part for part in wrapped[1:]]
    return "\n".join(lines)


def _wrap(text: str) -> list[str]:
    wrapper = textwrap.TextWrapper(WIDTH, subsequent_indent="        ", break_long_words=False, break_on_hyphens=False)
    return [part for line in text.splitlines() or [""] for part in wrapper.wrap(line) or [""]]

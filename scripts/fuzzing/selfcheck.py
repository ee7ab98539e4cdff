"""Whether the fuzzers find what is planted for them: a silent fuzzer must not pass."""

from __future__ import annotations

from dataclasses import dataclass

from toolchain.process import ToolchainError

from .campaign import Runner
from .outcome import Outcome
from .target import Target, planted

SECONDS = 60


@dataclass(frozen=True)
class Expected:
    """What must be found in a planted target.

    Attributes:
        word: what the input begins with.
        reason: a part of the message.
    """

    word: bytes
    reason: str


EXPECTED = {
    "planted_overflow": Expected(b"chaff", "heap-buffer-overflow"),
    "planted_allocation": Expected(b"grain", "memory: expected at most"),
    "planted_exception": Expected(b"husk", "LookupError"),
    "planted_hoard": Expected(b"bran", "MemoryError"),
}


def judge(target: Target, outcome: Outcome) -> str:
    """Says what is wrong with a run of a planted target; empty if what is planted was found."""
    expected = EXPECTED.get(target.name)
    if expected is None:
        return f"{target.name}: expected an entry in scripts/fuzzing/selfcheck.py, got none"
    if outcome.problem:
        return f"{target.name}: {outcome.problem}"
    if not outcome.findings:
        return f"{target.name}: expected what is planted in {target.source} to be found, got nothing"
    for path in outcome.findings:
        with open(path, "rb") as file:
            begin = file.read(len(expected.word))
        if begin != expected.word:
            return f"{target.name}: expected an input that begins with {expected.word!r}, got {begin!r} in {path}"
    if not any(expected.reason in reason for reason in outcome.reasons):
        return f"{target.name}: expected a message with {expected.reason!r}, got {'; '.join(outcome.reasons)!r}"
    return ""


def check(runner: Runner, chosen: list[Target], jobs: int) -> list[Outcome]:
    """Runs what is planted and judges it.

    Raises:
        ToolchainError: something planted was not found, or nothing is planted.
    """
    outcomes = runner.run_all(chosen, SECONDS, jobs)
    faults = [fault for target, outcome in zip(chosen, outcomes, strict=True) if (fault := judge(target, outcome))]
    if missing := EXPECTED.keys() - {target.name for target in planted()}:
        faults.append(f"tests/fuzz/planted: expected {', '.join(sorted(missing))}, got no such file")
    if not chosen:
        faults.append("no planted target could be run")
    if faults:
        raise ToolchainError("The self-check failed.\n" + "\n".join(faults))
    return outcomes

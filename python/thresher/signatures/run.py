"""Driver commands, one after another: results, times and verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from thresher.signatures.driver import parse_command
from thresher.signatures.flags import CommandError
from thresher.signatures.timing import Timing, backends, time_signature
from thresher.signatures.verification import Verification, verify


@dataclass(frozen=True)
class Result:
    """What a backend gave.

    Attributes:
        backend: Its name.
        shape: The result's sizes.
        dtype: The result's type.
        device: Where it lies.
        timing: Its times; None where the command asks for none.
        problem: Why there is no result; else empty.
    """

    backend: str
    shape: tuple[int, ...] = ()
    dtype: str = ""
    device: str = ""
    timing: Timing | None = None
    problem: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        timing = None if self.timing is None else self.timing.to_dict()
        return {**vars(self), "shape": list(self.shape), "timing": timing}


@dataclass(frozen=True)
class CommandResult:
    """What became of a command.

    Attributes:
        command: Its text.
        func_name: The name of its signature; empty where it could not be understood.
        results: One entry a backend, in the order in which they were asked for.
        verification: The verdict, where it was asked for and could be made.
        problem: Why it could not be understood or verified; else empty.
    """

    command: str
    func_name: str = ""
    results: tuple[Result, ...] = ()
    verification: Verification | None = None
    problem: str = ""

    @property
    def failed(self) -> bool:
        """Whether anything of it did."""
        wrong = self.verification is not None and not self.verification.passed
        return bool(self.problem) or wrong or any(result.problem for result in self.results)

    @property
    def ratio(self) -> float | None:
        """How many times as fast as PyTorch the engine is, by medians; None where one of them was not timed."""
        times = {found.backend: found.timing.median_us for found in self.results if found.timing is not None}
        return times["torch"] / times["thresher"] if {"torch", "thresher"} <= set(times) else None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "command": self.command,
            "func_name": self.func_name,
            "results": [result.to_dict() for result in self.results],
            "times_as_fast_as_torch": self.ratio,
            "verification": None if self.verification is None else self.verification.to_dict(),
            "problem": self.problem,
            "failed": self.failed,
        }


def run(commands: Iterable[str], names: Sequence[str], *, verify: bool = False) -> Iterator[CommandResult]:
    """Runs commands. What fails is reported in its result, and the others go on.

    Args:
        commands: Driver commands.
        names: Backends, of `backends()`.
        verify: Whether to compare the engine with float64 and PyTorch.
    """
    for command in commands:
        yield run_command(command, names, verified=verify)


def run_command(command: str, names: Sequence[str], *, verified: bool = False) -> CommandResult:
    """Runs one command; as `run`."""
    try:
        parsed = parse_command(command)
    except CommandError as error:
        return CommandResult(command, problem=str(error))
    signature = parsed.signature
    results: dict[str, Result] = {}
    args = signature.sample_args()
    for name in names:
        try:
            with torch.no_grad():
                made = backends()[name](signature)(*args)
        except (NotImplementedError, ValueError, RuntimeError, MemoryError, IndexError) as error:
            results[name] = Result(name, problem=str(error))
        else:
            dtype = str(made.dtype).removeprefix("torch.")
            results[name] = Result(name, tuple(made.shape), dtype, str(made.device))
    able = [name for name, result in results.items() if not result.problem]
    if parsed.iterations and able:
        for timing in time_signature(signature, able, parsed.iterations, args):
            results[timing.backend] = Result(**{**vars(results[timing.backend]), "timing": timing})
    verification, problem = None, ""
    if verified:
        try:
            verification = verify(signature)
        except (NotImplementedError, ValueError, RuntimeError, MemoryError) as error:
            problem = f"it cannot be verified: {error}"
    return CommandResult(parsed.text, signature.func_name, tuple(results.values()), verification, problem)

"""Fills the cache with launchables ahead of their first use."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from thresher import cache
from thresher.signatures.driver import command_to_signature, read_commands
from thresher.signatures.flags import CommandError
from thresher.signatures.launchable import explain, get_launchable
from thresher.signatures.signature import Signature

Progress = Callable[[int, int], object]


class Status(str, Enum):
    """Where a launchable stands."""

    PENDING = "pending"
    KNOWN = "known"  # it was in the cache before
    MADE = "made"
    FAILED = "failed"


@dataclass(frozen=True)
class Populated:
    """What became of one launchable.

    Attributes:
        func_name: The signature's; the command where that could not be understood.
        status: Where it stands.
        problem: Why it failed; else empty.
    """

    func_name: str
    status: Status
    problem: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"func_name": self.func_name, "status": self.status.value, "problem": self.problem}


class CachePopulator:
    """Makes launchables and keeps them in the cache, with several processes if asked.

        >>> populator = CachePopulator(commands=["gemm -m 8 -k 8 -n 8"])
        >>> populator.run()
        >>> populator.failures()
        {}

    Attributes:
        signatures: What is to be in the cache.
    """

    def __init__(
        self,
        *,
        signatures: Iterable[Signature] = (),
        commands: Iterable[str] = (),
        commands_file: str | Path | None = None,
    ) -> None:
        """Collects signatures from all three sources; commands that cannot be understood are failures.

        Args:
            signatures: Signatures.
            commands: Driver commands.
            commands_file: A file of such, as `read_commands` takes it.

        Raises:
            ValueError: The file holds no command.
            OSError: It cannot be read.
        """
        found = {signature.func_name: signature for signature in signatures}
        self._states: dict[str, Populated] = {}
        given = [*commands, *(read_commands(Path(commands_file)) if commands_file is not None else ())]
        for command in given:
            try:
                signature = command_to_signature(command)
            except CommandError as error:
                self._states[command] = Populated(command, Status.FAILED, str(error))
                continue
            found[signature.func_name] = signature
        self.signatures = tuple(found.values())
        self._states.update({name: Populated(name, Status.PENDING) for name in found})

    def run(self, jobs: int = 1, progress: Progress | None = None) -> None:
        """Makes what is not in the cache. A failure does not keep the others from being made.

        Args:
            jobs: Processes that work at it; with 1 this one does.
            progress: Called with how many are done, and how many there are.

        Raises:
            ValueError: `jobs` is below 1, or the cache is off, so that nothing would be kept.
        """
        if not isinstance(jobs, int) or jobs < 1:
            raise ValueError(f"jobs: expected a number of processes, at least 1, got {jobs!r}")
        if not cache.enabled():
            raise ValueError("preload: expected a cache that is on, got one that is off; unset THRESHER_CACHE")
        for done, state in enumerate(self._run(min(jobs, len(self.signatures))), start=1):
            self._states[state.func_name] = state
            if progress is not None:
                progress(done, len(self.signatures))

    def status(self, func_name: str) -> Populated:
        """What became of one launchable.

        Raises:
            KeyError: It is none of those that are to be made.
        """
        if func_name not in self._states:
            raise KeyError(f"expected one of the {len(self._states)} names of this populator, got {func_name!r}")
        return self._states[func_name]

    def statuses(self) -> tuple[Populated, ...]:
        """What became of all."""
        return tuple(self._states.values())

    def failures(self) -> dict[str, str]:
        """Why those that failed did, by name."""
        return {name: state.problem for name, state in self._states.items() if state.status is Status.FAILED}

    def _run(self, jobs: int) -> Iterator[Populated]:
        if jobs <= 1:
            yield from map(_populate, self.signatures)
            return
        # A fork would copy threads' locks but not the threads.
        context = multiprocessing.get_context("spawn")
        folder = cache.folder()
        with ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin, initargs=(folder,)) as pool:
            futures = {pool.submit(_populate, signature): signature for signature in self.signatures}
            for future in as_completed(futures):
                try:
                    yield future.result()
                except Exception as error:  # the process died: memory ran out, or somebody ended it
                    name = futures[future].func_name
                    yield Populated(name, Status.FAILED, f"its process ended: {type(error).__name__}: {error}")


def _begin(folder: Path | None) -> None:
    """A new process uses the cache of the one that started it."""
    import torch

    cache.set_dir(folder)
    torch.set_num_threads(1)


def _populate(signature: Signature) -> Populated:
    name = signature.func_name
    try:
        if explain(signature).hit:
            return Populated(name, Status.KNOWN)
        get_launchable(signature)
        why = explain(signature)
        if not why.hit:  # a folder that cannot be written, say
            return Populated(name, Status.FAILED, f"it was not kept: {why.reason}")
    except (NotImplementedError, ValueError, RuntimeError, MemoryError) as error:
        return Populated(name, Status.FAILED, str(error))
    return Populated(name, Status.MADE)

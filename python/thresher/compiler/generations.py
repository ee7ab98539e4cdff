"""What a compiled graph keeps for each set of parameters that it is called with."""

from __future__ import annotations

import dataclasses
import itertools
import weakref
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import torch

from thresher.compiler.weights import Snapshot

# Parameters that twice change within this many calls are being trained: they stop being packed ahead.
TRAINING_CALLS = 8
# Parameters that are not packed ahead are again when they stayed as they were for about as many calls.
LASTING_CALLS = 64
# Models that share a graph, each with plans of its own. TorchDynamo gives all models of a class one graph.
MOST_MODELS = 16

_NEVER = 2**63 - 1

_serial = itertools.count()


class Generation:
    """Plans for one state of the parameters.

    Args:
      tensors: the arguments at `frozen`, as they came.
      dead: called when none of them exists any more, in any thread and behind any lock.

    Attributes:
      frozen: positions of the arguments that are constants of the plans.
      whole: whether these are all parameters and buffers.
      constants: the frozen arguments, as graphs hold them.
      snapshot: their state.
      store: their packed weights.
      entries, families: plans, for the sizes of a call and for many sizes (`runtime.Entry`, `runtime.Family`).
      calls: how many there were, and at which number `Generations.lasting` is to be asked; read and counted up without
        Python, too.
      quick_changes: how often the parameters have changed after few calls.
      serial: a number that no other has.
      used: when it became the one in use, as such a number.
    """

    __slots__ = (
        "__weakref__",
        "_owners",
        "calls",
        "constants",
        "entries",
        "families",
        "frozen",
        "quick_changes",
        "serial",
        "snapshot",
        "store",
        "used",
        "whole",
    )

    def __init__(
        self,
        frozen: tuple[int, ...],
        whole: bool,
        constants: dict[int, torch.Tensor],
        tensors: list[torch.Tensor],
        quick_changes: int,
        dead: Callable[[Generation], None],
    ) -> None:
        self.frozen = frozen
        self.whole = whole
        self.constants = constants
        self.snapshot = Snapshot.take(tensors)
        self.store = self.snapshot.store()
        self.entries: dict[object, Any] = {}
        self.families: dict[object, Any] = {}
        self.calls = array("q", [0, _NEVER if whole else 0])
        self.quick_changes = quick_changes
        self.serial = self.used = next(_serial)
        living = list(frozen)
        this = weakref.ref(self)

        def gone(_: object) -> None:
            living.pop()
            if not living and (generation := this()) is not None:
                dead(generation)

        # The program's own tensors: those above share their memory, and would keep them alive for ever.
        self._owners = [weakref.ref(tensor, gone) for tensor in tensors]

    def fits(self, args: Sequence[Any]) -> bool:
        """Whether the plans are for these arguments' parameters as they are now."""
        return self.snapshot.unchanged(list(map(args.__getitem__, self.frozen)))

    def holds(self) -> bool:
        """Whether its parameters exist and are what they were."""
        tensors = [owner() for owner in self._owners]
        return None not in tensors and self.snapshot.unchanged(tensors)  # type: ignore[arg-type]

    def precedes(self, args: Sequence[Any]) -> bool:
        """Whether it was made for parameters of the same model, or one of its own is gone."""
        tensors = [owner() for owner in self._owners]
        return None in tensors or any(args[i] is tensor for i, tensor in zip(self.frozen, tensors, strict=True))

    def stable(self, args: Sequence[Any]) -> tuple[int, ...]:
        """Positions of the parameters that show no change."""
        return tuple(self.frozen[i] for i in self.snapshot.stable([args[i] for i in self.frozen]))

    @property
    def changes_after(self) -> int:
        """`quick_changes` of what takes its place."""
        return self.quick_changes + (self.calls[0] < TRAINING_CALLS)


@dataclasses.dataclass(slots=True)
class _Sighting:
    """Of parameters that are not packed ahead."""

    tensor: weakref.ref[torch.Tensor]  # the first of them
    snapshot: Snapshot | None = None  # from the second time on
    calls: int = 0  # when it was taken


class Generations:
    """The generations of one graph.

    Every model that the graph is called for has one. Parameters that change take the place of what they were;
    parameters that are gone take theirs with them. Looking for one needs no lock, making one does.

    Args:
      static: positions of the arguments that are parameters or buffers.
      constant: a parameter, by its position, as graphs hold it.
    """

    def __init__(self, static: tuple[int, ...], constant: Callable[[int, torch.Tensor], torch.Tensor]) -> None:
        self.current: Generation | None = None
        self._static = static
        self._constant = constant
        self._all: dict[int, Generation] = {}  # by serial number
        self._changes_of_dead: int | None = None  # `changes_after` of one that died since the last was made
        self._sightings: dict[int, _Sighting] = {}  # by the id of the first parameter

    def all(self) -> list[Generation]:
        """All of them."""
        return list(self._all.values())

    def find(self, args: Sequence[Any]) -> Generation | None:
        """The one for these arguments' parameters as they are now."""
        found = self.current
        if found is not None and found.whole and found.fits(args):
            return found
        fitting = [one for one in self.all() if one.fits(args)]
        found = next((one for one in fitting if one.whole), fitting[0] if fitting else None)
        if found is not None and found is not self.current:
            found.used = next(_serial)
            self.current = found
        return found

    def lasting(self, args: Sequence[Any], calls: array[int]) -> bool:
        """Whether the parameters, of which not all are frozen, have been the same for long.

        Args:
          args: of a call.
          calls: of its generation, where it is noted when to ask again at the latest.
        """
        calls[1] = calls[0] + LASTING_CALLS // 2
        tensor = args[self._static[0]]
        sighting = self._sightings.get(id(tensor))
        if sighting is None or sighting.tensor() is not tensor:
            for key in list(self._sightings)[: max(0, len(self._sightings) + 1 - MOST_MODELS)]:
                self._sightings.pop(key, None)
            self._sightings[id(tensor)] = _Sighting(weakref.ref(tensor))
            return False
        parameters = [args[i] for i in self._static]
        if sighting.snapshot is not None:
            if calls[0] - sighting.calls < LASTING_CALLS // 2:
                return False
            if sighting.snapshot.unchanged(parameters):
                return True
        # Not to be held: `tensor` tells whether they are those that were seen.
        sighting.snapshot = dataclasses.replace(Snapshot.take(parameters), held=())
        sighting.calls = calls[0]
        return False

    def make(self, args: Sequence[Any], *, lasting: bool = False) -> tuple[Generation, int]:
        """Makes one for parameters that were never seen or have changed. To be called behind a lock.

        Args:
          args: those of the call.
          lasting: whether `lasting` says so.

        Returns:
          It, and the number of those whose parameters have changed.
        """
        frozen, changes, useless = self._static, 0, 0
        if lasting:
            changes = 1  # so that they stop being packed at the next quick change
            for one in self.all():  # fits other models, too, which would never be packed
                if not one.whole:
                    self._all.pop(one.serial, None)
        else:
            stale = [one for one in self.all() if not one.holds() and one.precedes(args)]
            useless = len(stale)
            if stale:
                last = max(stale, key=lambda one: one.used)
                frozen, changes = last.frozen, last.changes_after
                if changes > 1:
                    frozen = last.stable(args)
                for one in stale:
                    self._all.pop(one.serial, None)
            elif self._changes_of_dead is not None:
                changes = self._changes_of_dead
                if changes > 1:
                    frozen = ()
            self._changes_of_dead = None
        while len(self._all) >= MOST_MODELS:
            oldest = min(self.all(), key=lambda one: one.used)
            changes = max(changes, oldest.changes_after)
            self._all.pop(oldest.serial, None)
        tensors = [args[i] for i in frozen]
        constants = {i: self._constant(i, tensor) for i, tensor in zip(frozen, tensors, strict=True)}
        this = weakref.ref(self)

        def dead(generation: Generation) -> None:
            if (generations := this()) is not None:
                generations._forget(generation)

        made = Generation(frozen, frozen == self._static, constants, tensors, changes, dead)
        self._all[made.serial] = made
        self.current = made
        return made, useless

    def clear(self) -> None:
        """Drops them all."""
        self.current = None
        self._all = {}
        self._changes_of_dead = None
        self._sightings = {}

    def _forget(self, generation: Generation) -> None:
        if self._all.pop(generation.serial, None) is not None:
            self._changes_of_dead = generation.changes_after
        if self.current is generation:
            self.current = None

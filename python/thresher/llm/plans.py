"""The plans of one graph: those for many sizes, and for a size alone where none of them fits."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from thresher import _engine

_log = logging.getLogger(__name__)

_LEAST_EXTENT = 8  # a plan for many sizes is looked for with at least so much room
_MOST_KNOWN = 4096  # combinations of sizes, beyond which they are looked for again


class Plans:
    """The plans of one graph, made when they are first wanted."""

    def __init__(
        self,
        part: str,
        build: Callable[..., _engine.Graph],
        most: Mapping[str, int],
        samples: Sequence[Sequence[int]],
        store: _engine.WeightStore,
        name: str,
        options: dict[str, Any],
    ) -> None:
        """Prepares to make them.

        Args:
          part: of the model, for logs and profiles.
          build: the graph at sizes.
          most: names of the sizes, and the largest of each.
          samples: sizes at which graphs tell what the graph is at all others.
          store: the weights that all plans share.
          name: of the model, for profiles.
          options: of _engine.Plan.build.
        """
        self._part, self._build, self._most, self._samples = part, build, dict(most), samples
        self._store, self._name, self._options = store, name, options
        self._many: list[_engine.Plan] = []
        self._family: _engine.GraphFamily | None = None
        self._chosen: dict[tuple[int, ...], tuple[_engine.Plan, tuple[int, ...]]] = {}

    def run(self, sizes: tuple[int, ...], inputs: bytes, outputs: bytes) -> None:
        """Runs the plan for these sizes, as _engine.Plan.run_at does."""
        plan, own = self._chosen.get(sizes) or self.at(sizes)
        plan.run_at(inputs, outputs, own)

    def begin_run(self, sizes: tuple[int, ...], inputs: bytes, outputs: bytes) -> _engine.PausableRun:
        """The same in pieces, as _engine.Plan.begin_at does."""
        plan, own = self._chosen.get(sizes) or self.at(sizes)
        return plan.begin_at(inputs, outputs, own)

    def at(self, sizes: tuple[int, ...]) -> tuple[_engine.Plan, tuple[int, ...]]:
        """The plan for these sizes, and the sizes to run it with."""
        found = self._chosen.get(sizes)
        if found is None:
            if len(self._chosen) >= _MOST_KNOWN:
                self._chosen.clear()
            found = self._chosen[sizes] = self._find(sizes)()
        return found

    def begin(self, sizes: tuple[int, ...]) -> Callable[[], None]:
        """Builds the graphs of the plan for these sizes.

        Returns:
          What makes the plan, in any thread, and leaves the interpreter to others.
        """
        make = self._find(sizes)

        def keep() -> None:
            self._chosen[sizes] = make()

        return keep

    def _find(self, sizes: tuple[int, ...]) -> Callable[[], tuple[_engine.Plan, tuple[int, ...]]]:
        """What gives the plan for these sizes, once the graphs are there that it is made of."""
        for plan in self._many:
            if plan.admits(sizes):
                return lambda: (plan, sizes)
        if min(sizes) > 1 and max(self._most.values()) >= _LEAST_EXTENT:
            try:
                if self._family is None:
                    samples = [(list(sample), self._build(*sample)) for sample in self._samples]
                    self._family = _engine.GraphFamily.fit(list(self._most), 1, samples)
            except (NotImplementedError, ValueError) as error:
                _log.info("%s: a plan for %s alone: %s", self._part, sizes, error)
            else:
                return functools.partial(self._make_many, self._family, sizes)
        return functools.partial(self._make_one, self._build(*sizes))

    def _make_many(self, family: _engine.GraphFamily, sizes: tuple[int, ...]) -> tuple[_engine.Plan, tuple[int, ...]]:
        most = [max(most, size + _LEAST_EXTENT) for most, size in zip(self._most.values(), sizes, strict=True)]
        try:
            plan = _engine.Plan.build_extent(
                family, self._store, sizes, most, name=f"{self._name}.{self._part}", **self._options
            )
        except (NotImplementedError, ValueError) as error:
            _log.info("%s: a plan for %s alone: %s", self._part, sizes, error)
            return self._make_one(self._build(*sizes))
        self._many.append(plan)
        return plan, sizes

    def _make_one(self, graph: _engine.Graph) -> tuple[_engine.Plan, tuple[int, ...]]:
        return _engine.Plan.build(graph, self._store, name=f"{self._name}.{self._part}", **self._options), ()

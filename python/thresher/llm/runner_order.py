"""What a runner is made from, in a form that other processes can be told."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from thresher import _engine
from thresher.llm import loading
from thresher.llm.models.decoder import Decoder
from thresher.llm.models.sharding import Share
from thresher.llm.packed_weights import PackedWeights
from thresher.llm.rank_group import RankGroup
from thresher.llm.runner import Runner
from thresher.llm.step_record import recorded_step


@dataclasses.dataclass(frozen=True, slots=True)
class RunnerOrder:
    """A runner to make.

    Attributes:
      path: of the model, the same on all machines.
      weights: how matrices are kept.
      length: how long a sequence may become.
      pages: how many there are for each group of layers.
      options: more of Runner, what JSON can say.
    """

    path: str
    weights: str
    length: int
    pages: Sequence[int]
    options: Mapping[str, Any]

    def make(
        self,
        loaded: loading.Loaded,
        decoder: Decoder,
        *,
        device: _engine.Device | None = None,
        ranks: RankGroup | None = None,
    ) -> Runner:
        """Makes it, with the plans that one sequence wants.

        Raises:
          MemoryError, ValueError: as Runner and the tokenizer say.
        """
        options: dict[str, Any] = {**self.options, "pages": self.pages, "name": Path(self.path).name, "ranks": ranks}
        if device is not None:
            runner = Runner(decoder, device=device, **options)
            runner.prepare(meanwhile=loaded.text.result)
            _release(loaded)
            return runner
        packed = PackedWeights(loaded.files, self.weights, options["precision"], decoder.share)
        runner = Runner(decoder, store=packed.store, **options)
        runner.prepare(packed.find, loaded.text.result)  # a model without a tokenizer that it should have is of no use
        packed.keep(Path(self.path).name)
        _release(loaded)
        return runner


def _release(loaded: loading.Loaded) -> None:
    """Gives back what only loading wanted: weights as they are on disk, what a tokenizer was made of."""
    for file in loaded.files:
        file.release()
    _engine.release_free_memory()


def follow(ranks: RankGroup) -> None:
    """Computes this rank's share of what rank 0 is asked, until rank 0 ends; rank 0 has ``LLM(path, ranks=ranks)``.

    Args:
      ranks: the group, in a process that is not its rank 0.

    Raises:
      RankError: another rank could not load the model.
      FileNotFoundError, ValueError, MemoryError: this one could not.
    """
    order = ranks.listen()
    if order is None:
        return
    error: Exception | None = None
    try:
        loaded = loading.load(Path(order.path), order.weights)
        decoder = Decoder(loaded.config, loaded.tensors, order.length, Share(ranks.rank, ranks.size))
        runner = order.make(loaded, decoder, ranks=ranks)
    except Exception as found:
        error = found
    ranks.agree(error)
    while (work := ranks.listen()) is not None:
        with recorded_step(work):
            runner.run(work)

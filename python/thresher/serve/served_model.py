"""What is served, said in a form that other processes can be given."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from thresher.llm import LLM, RankGroup, TextEncoder
from thresher.serve.service import Service


@dataclasses.dataclass(frozen=True, slots=True)
class ServedModel:
    """Models to load, and how.

    Attributes:
      path: of the language model.
      name: as clients call it.
      options: of LLM, what JSON can say.
      embedding: the encoder's folder; None: there is none.
      embedding_name: as clients call that.
      grammars: clients may send grammars for answers.
      stall_s: a step that takes longer than this counts as one that never ends.
    """

    path: str
    name: str
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    embedding: str | None = None
    embedding_name: str = ""
    grammars: bool = False
    stall_s: float = 10.0

    def load(self, ranks: RankGroup | None = None) -> Service:
        """Loads the models; the service's `llm` has to be closed.

        Args:
          ranks: that share the language model.

        Raises:
          OSError, ValueError, NotImplementedError, MemoryError: as LLM and TextEncoder say.
        """
        encoder = None
        if self.embedding is not None:
            encoder = TextEncoder(self.embedding, num_threads=int(self.options.get("num_threads", 0)))
        # Clients' grammars are refused before they get here; those of tools are the server's own.
        llm = LLM(self.path, ranks=ranks, allow_grammars=True, **self.options)
        return Service(
            llm,
            self.name,
            encoder=encoder,
            encoder_name=self.embedding_name,
            grammars=self.grammars,
            stall_s=self.stall_s,
        )

"""One engine of language models a file. Each file has a class Engine:

Engine(model: Model, threads: int, batch: int, context: int)
                        timed: loads a model for so many answers at once of so many tokens each, prompts included
run(prompts, count) -> Times
                        answers the prompts (lists of tokens of equal length, computed from nothing) together, `count`
                        tokens each, always the most likely one
note                    what a reader must know about how it computes; may be empty
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engines import Unavailable


@dataclass(frozen=True)
class Model:
    """Where a model lies.

    Attributes:
      file: GGUF; or a folder, which is the other one.
      folder: the same numbers as transformers reads them, in bf16; what engines convert goes there, too.
    """

    file: Path
    folder: Path

    def gguf(self) -> str:
        """The file, for engines that read nothing else."""
        if self.file.is_dir():
            raise Unavailable("reads GGUF files alone")
        return str(self.file)


@dataclass
class Times:
    """Seconds from when the prompts came.

    Attributes:
      first: to the first token of the first answer.
      prompts: to the first token of the last answer.
      end: to the last token of all.
    """

    first: float
    prompts: float
    end: float

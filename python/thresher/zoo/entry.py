"""What an entry of the zoo is."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

# What a call of the model, eager or compiled, answers to a task that people can judge.
Demonstration = Callable[[Callable[..., Any]], str]


class MissingPackageError(ImportError):
    """An entry wants a package that is not installed; the message names it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Parts:
    """What an entry is made of.

    Attributes:
      model: in eval mode; of a language model a ``thresher.llm.LLM``.
      inputs: example inputs by name, with one row each; empty for a language model.
      demonstrate: answers a task with a model.
    """

    model: Any
    inputs: dict[str, Any]
    demonstrate: Demonstration


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """An entry.

    Attributes:
      name: by which users ask for it.
      kind: "encoder", "decoder", "vision", "speech" or "diffusion".
      description: one sentence.
      parameters: how many numbers it has learnt.
      weights: "trained" (they come with a package) or "trained here" (by this machine, from data of a package, at the
        first load; kept in the cache).
      origin: where weights, or data, come from, and their licence.
      packages: what has to be installed, as (name of the import, what pip calls it).
      make: makes it.
    """

    name: str
    kind: str
    description: str
    parameters: int
    weights: str
    origin: str
    packages: tuple[tuple[str, str], ...]
    make: Callable[[], Parts]

    def obstacle(self) -> str | None:
        """Why it cannot be loaded here, None where it can."""
        missing = [pip for package, pip in self.packages if importlib.util.find_spec(package) is None]
        return (
            f"expected {', '.join(missing)} to be installed, got nothing; pip install {' '.join(missing)}"
            if missing
            else None
        )


def package_folder(package: str) -> Path:
    """Where the files of a package lie, which is not imported.

    Raises:
      MissingPackageError: it is not installed.
    """
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise MissingPackageError(f"expected the package {package}, got nothing; install it with pip")
    return Path(found.submodule_search_locations[0])

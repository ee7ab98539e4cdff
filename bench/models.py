"""The models that the engines run; export.py makes their files."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Model:
    """One encoder.

    Attributes:
      key: name on the command line and of its folder.
      title: name above the table.
      rounds: turns of every engine in a case, fewer where a call takes longer.
      trained: whether its answers mean something, so that their accuracy can be measured.
    """

    key: str
    title: str
    rounds: int
    trained: bool


MODELS = {
    model.key: model
    for model in (
        Model("minilm", "all-MiniLM-L6-v2", 20, True),
        Model("bert-base", "BERT-base, random weights", 6, False),
    )
}
# Positions that both models have.
LONGEST = 512

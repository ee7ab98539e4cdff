"""Texts whose likeness people have rated, read from the data files that the package gensim carries."""

from __future__ import annotations

import importlib.metadata
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

FOLDER = "gensim/test/test_data"
BATCH_TOKENS = 1024  # about as many words run as one batch


@dataclass(frozen=True)
class Corpus:
    """Texts and ratings of pairs of them.

    Attributes:
      key: name in the files; see accuracy.CORPORA.
      texts: each once.
      pairs: int [n, 2], positions in texts.
      ratings: float [n], higher is more alike.
    """

    key: str
    texts: list[str]
    pairs: np.ndarray
    ratings: np.ndarray


def wordsim353(table: str) -> Corpus:
    """WordSim-353: word, word and mean rating a line, separated by tabs; lines that begin with # are remarks.

    Raises:
      ValueError: a line has another form.
    """
    texts: dict[str, int] = {}
    pairs: list[tuple[int, int]] = []
    ratings: list[float] = []
    for line in table.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        cells = line.split("\t")
        if len(cells) != 3:
            raise ValueError(f"WordSim-353: expected two words and a rating a line, got {line!r}")
        first, second = (texts.setdefault(word, len(texts)) for word in cells[:2])
        pairs.append((first, second))
        ratings.append(float(cells[2]))
    return Corpus("wordsim353", list(texts), np.array(pairs), np.array(ratings))


def lee(documents: str, similarities: str) -> Corpus:
    """The documents of Lee, Pincombe and Welsh: one a line, and a square of ratings of which the upper half is filled.

    Raises:
      ValueError: the square does not fit the documents.
    """
    texts = [line for line in documents.split("\n") if line.strip()]
    square = np.array([[float(cell) for cell in line.split()] for line in similarities.splitlines() if line.strip()])
    if square.shape != (len(texts), len(texts)):
        raise ValueError(f"Lee: expected {len(texts)} x {len(texts)} ratings, got {square.shape}")
    pairs = list(itertools.combinations(range(len(texts)), 2))
    return Corpus("lee50", texts, np.array(pairs), np.array([square[pair] for pair in pairs]))


def read_all() -> list[Corpus]:
    """Both corpora, from the files of the installed package, which is not imported."""
    package = importlib.metadata.distribution("gensim")

    def text(name: str) -> str:
        # A pound sign in lee.cor is a single byte.
        return Path(str(package.locate_file(f"{FOLDER}/{name}"))).read_text(encoding="latin-1")

    return [wordsim353(text("wordsim353.tsv")), lee(text("lee.cor"), text("similarities0-1.txt"))]


def batches(texts: Sequence[str]) -> list[list[int]]:
    """Positions of the texts, those of like length together, about BATCH_TOKENS words a batch with padding."""
    order = sorted(range(len(texts)), key=lambda i: (len(texts[i].split()), i), reverse=True)
    found: list[list[int]] = []
    while order:
        # The first of a batch is its longest; a word has about one and a half word pieces, and two stand around all.
        longest = len(texts[order[0]].split()) * 3 // 2 + 2
        count = max(1, min(len(order), BATCH_TOKENS // longest))
        found.append(order[:count])
        order = order[count:]
    return found

"""What a precision costs in answers: embeddings of real texts against ratings by people and against PyTorch's."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from comparison import REFERENCE, Bench, Places, Settings, head

from measure.progress import Progress
from measure.table import Table


@dataclass(frozen=True)
class Measured:
    """How one corpus is judged.

    Attributes:
      title: name in the table.
      correlation: "Spearman" or "Pearson".
    """

    title: str
    correlation: str


CORPORA = {"wordsim353": Measured("WordSim-353", "Spearman"), "lee50": Measured("Lee-50", "Pearson")}
# How much of the reference's correlation Thresher may lose.
LIMITS = {"fp32": 0.001, "bf16": 0.005, "fp16": 0.005, "int8": 0.01}


def pool(hidden: np.ndarray, attention_mask: np.ndarray) -> np.ndarray:
    """Sentence embeddings as sentence-transformers makes them: mean over the real tokens, then unit length.

    Args:
      hidden: [batch, sequence, width]; what stands at padded positions does not matter, not even if it is no number.
      attention_mask: [batch, sequence], 1 for a real token.
    """
    real = attention_mask.astype(bool)[:, :, None]
    mean = np.where(real, hidden, 0).astype(np.float64).sum(axis=1) / real.sum(axis=1)
    return mean / np.linalg.norm(mean, axis=1, keepdims=True)


def ranks(values: np.ndarray) -> np.ndarray:
    """Rank of every value, from 1; equal values share the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[inverse])


def pearson(first: np.ndarray, second: np.ndarray) -> float:
    """Correlation of the values."""
    return float(np.corrcoef(first, second)[0, 1])


def spearman(first: np.ndarray, second: np.ndarray) -> float:
    """Correlation of the ranks."""
    return pearson(ranks(first), ranks(second))


def correlation(kind: str, embeddings: np.ndarray, pairs: np.ndarray, ratings: np.ndarray) -> float:
    """Correlation between the ratings and the cosines of the pairs.

    Args:
      kind: "Spearman" or "Pearson".
      embeddings: [texts, width], each of unit length.
      pairs: [n, 2], positions in embeddings.
      ratings: [n].
    """
    cosines = (embeddings[pairs[:, 0]] * embeddings[pairs[:, 1]]).sum(axis=1)
    return {"Spearman": spearman, "Pearson": pearson}[kind](cosines, ratings)


def batches_of(arrays: Mapping[str, np.ndarray], corpus: str) -> list[tuple[np.ndarray, dict[str, np.ndarray]]]:
    """The batches of a corpus in accuracy.npz: which texts they hold, and the model's inputs."""
    found: list[tuple[np.ndarray, dict[str, np.ndarray]]] = []
    while f"{corpus}-{len(found)}-rows" in arrays:
        prefix = f"{corpus}-{len(found)}-"
        inputs = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
        found.append((inputs.pop("rows"), inputs))
    return found


@dataclass(frozen=True)
class AccuracyRow:
    """One engine on one corpus.

    Attributes:
      correlation: with the ratings of people.
      loss: the reference's correlation less this one; negative where this engine is nearer to people.
      limit: the largest loss that is allowed; None for engines that are only shown.
      max_error, mean_error: absolute difference of the numbers in the embeddings from the reference's.
    """

    corpus: str
    key: str
    title: str
    precision: str
    correlation: float
    loss: float
    limit: float | None
    max_error: float
    mean_error: float

    @property
    def broken(self) -> bool:
        """Whether more is lost than allowed; so is a correlation that is no number."""
        return self.limit is not None and not self.loss <= self.limit


def rows_of(
    engines: Mapping[str, Mapping[str, Any]],
    embeddings: Mapping[str, Mapping[str, np.ndarray]],
    arrays: Mapping[str, np.ndarray],
) -> list[AccuracyRow]:
    """Every row of the table.

    Args:
      engines: titles and precisions by key.
      embeddings: by corpus, then by engine; the reference must be there.
      arrays: what export.py wrote: the pairs and the ratings.
    """
    rows: list[AccuracyRow] = []
    for corpus, found in embeddings.items():
        kind = CORPORA[corpus].correlation
        pairs, ratings = arrays[f"{corpus}-pairs"], arrays[f"{corpus}-ratings"]
        expected = correlation(kind, found[REFERENCE], pairs, ratings)
        for key, values in found.items():
            precision = engines[key]["precision"]
            reached = correlation(kind, values, pairs, ratings)
            difference = np.abs(values - found[REFERENCE])
            rows.append(
                AccuracyRow(
                    corpus=corpus,
                    key=key,
                    title=engines[key]["title"],
                    precision=precision,
                    correlation=reached,
                    loss=expected - reached,
                    limit=LIMITS[precision] if key.startswith("thresher") else None,
                    max_error=float(difference.max()),
                    mean_error=float(difference.mean()),
                )
            )
    return rows


def table_of(rows: list[AccuracyRow], unavailable: Mapping[str, tuple[str, str, str]], title: str) -> Table:
    """All corpora in one table, those that lose too much in red, then what is not available.

    Args:
      rows: what `rows_of` gives.
      unavailable: title, precision and reason by key.
      title: name of the model.
    """
    columns = ("<texts", "<engine", "<precision", "<correlation", "value", "loss", "max abs error", "mean abs error")
    table = Table(f"{title}, embeddings of real texts", (*columns, "<verdict"))
    for row in rows:
        verdict = "" if row.limit is None else f"{'more' if row.broken else 'no more'} than {row.limit:g} lost"
        numbers = (f"{row.correlation:.4f}", f"{row.loss:+.4f}", f"{row.max_error:.1e}", f"{row.mean_error:.1e}")
        where = (CORPORA[row.corpus].title, row.title, row.precision, CORPORA[row.corpus].correlation)
        table.add(*where, *numbers, verdict, bad=row.broken)
    for name, precision, reason in unavailable.values():
        table.add("-", name, precision, "-", "-", "-", "-", "-", f"not available: {reason}")
    return table


def measure(settings: Settings, places: Places, revision: str) -> tuple[dict[str, Any], list[AccuracyRow]]:
    """Runs every engine over both corpora, one after the other: nothing is timed.

    Returns:
      The result without its rows, ready for JSON, and the rows.

    Raises:
      WorkerError: an engine failed.
    """
    bench = Bench(settings, places)
    folder = places.output / "embeddings"
    folder.mkdir(parents=True, exist_ok=True)
    embeddings: dict[str, dict[str, np.ndarray]] = {corpus: {} for corpus in CORPORA}
    progress = Progress("accuracy", len(bench.engines))
    for spec in bench.specs():
        with contextlib.ExitStack() as stack:
            started = bench.start(spec, settings.threads[0], stack)
            files: dict[str, Path] = {}
            for corpus in CORPORA if started is not None else ():
                file = folder / f"{spec.key}-{corpus}.npy"
                if bench.ask(spec, started[0], "embed", corpus=corpus, file=str(file)) is None:
                    break
                files[corpus] = file
        if len(files) == len(CORPORA):
            for corpus, file in files.items():
                embeddings[corpus][spec.key] = np.load(file)
        progress.step(f"{spec.key} is done")
    with np.load(places.output / "accuracy.npz") as arrays:
        rows = rows_of(bench.engines, embeddings, dict(arrays.items()))
    return head(settings, bench, revision), rows

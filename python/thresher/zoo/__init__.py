"""Models to try, to measure and to learn from.

    import thresher

    print(thresher.zoo.load("minilm").answer())

An entry says whether its weights were trained. Packages that it needs are not installed by itself.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from thresher.compiler import CompilerConfig
from thresher.compiler import compile as thresher_compile
from thresher.compiler import export as thresher_export
from thresher.measure.benchmark import BenchmarkResult
from thresher.measure.benchmark import benchmark as measure
from thresher.zoo import digits_unet, digits_vit, efficientnet, minilm, pp_ocr, smollm2, whisper
from thresher.zoo.entry import Entry, MissingPackageError

__all__ = ["Entry", "MissingPackageError", "ZooModel", "benchmark", "export", "info", "list", "load"]

_ENTRIES: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        minilm.ENTRY,
        smollm2.ENTRY,
        efficientnet.ENTRY,
        pp_ocr.DETECTOR,
        pp_ocr.READER,
        digits_vit.ENTRY,
        whisper.ENTRY,
        digits_unet.ENTRY,
    )
}


class ZooModel:
    """A model of the zoo that is loaded.

    >>> import thresher
    >>> found = thresher.zoo.load("digits-vit")
    >>> found.info.weights, tuple(found.inputs["images"].shape)
    ('trained here', (1, 1, 8, 8))
    >>> print(found.answer().splitlines()[-1])  # doctest: +ELLIPSIS
    2... of 297 digits that it was not trained with are read right (9... %)

    Attributes:
      info: its entry.
      model: a torch.nn.Module in eval mode; of a decoder a ``thresher.llm.LLM``.
      inputs: example inputs by name, with one row each; none of a decoder.
    """

    def __init__(self, entry: Entry) -> None:
        parts = entry.make()
        self.info = entry
        self.model = parts.model
        self.inputs = parts.inputs
        self._demonstrate = parts.demonstrate

    @property
    def is_language_model(self) -> bool:
        """Whether the model is a ``thresher.llm.LLM``, which the engine runs by itself."""
        return self.info.kind == "decoder"

    def compile(self, config: CompilerConfig | None = None) -> Callable[..., Any]:
        """The model in the engine; of a decoder its generate()."""
        if self.is_language_model:
            generate: Callable[..., Any] = self.model.generate
            return generate
        compiled: Callable[..., Any] = thresher_compile(self.model, config=config)
        return compiled

    def answer(self, run: Callable[..., Any] | None = None) -> str:
        """What the model answers to a task that people can judge: similarities, text, digits.

        Args:
          run: what is called in place of the model: the model itself, or one that you compiled. None compiles it.
        """
        return self._demonstrate(self.compile() if run is None else run)

    def error(self, run: Callable[..., Any] | None = None) -> float | None:
        """The largest difference from eager PyTorch's results for `inputs`; None of a decoder, which has none."""
        if self.is_language_model:
            return None
        with torch.no_grad():
            expected, found = (
                [leaf for leaf in pytree.tree_leaves(call(**self.inputs)) if isinstance(leaf, torch.Tensor)]
                for call in (self.model, self.compile() if run is None else run)
            )
        return max(float((a - b).abs().max()) for a, b in zip(expected, found, strict=True))


def list(kind: str | None = None) -> tuple[str, ...]:
    """The names of the entries.

    >>> import thresher
    >>> thresher.zoo.list()[:3]
    ('minilm', 'smollm2', 'efficientnet-lite0')
    >>> thresher.zoo.list("diffusion")
    ('digits-unet',)

    Args:
      kind: "encoder", "decoder", "vision", "speech" or "diffusion"; None for all.

    Raises:
      ValueError: there is no such kind.
    """
    kinds = tuple(dict.fromkeys(entry.kind for entry in _ENTRIES.values()))
    if kind is not None and kind not in kinds:
        raise ValueError(f"kind: expected None or one of {', '.join(kinds)}, got {kind!r}")
    return tuple(name for name, entry in _ENTRIES.items() if kind in (None, entry.kind))


def info(name: str) -> Entry:
    """What an entry is.

    >>> import thresher
    >>> thresher.zoo.info("whisper-tiny-en").weights
    'trained'

    Args:
      name: one of ``list()``.

    Raises:
      ValueError: there is no such entry.
    """
    entry = _ENTRIES.get(name)
    if entry is None:
        near = difflib.get_close_matches(str(name), _ENTRIES, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"zoo: expected one of {', '.join(_ENTRIES)}, got {name!r}{hint}")
    return entry


def load(name: str) -> ZooModel:
    """Loads an entry; one that is "trained here" is trained at its first load, which takes up to a minute.

    >>> import thresher
    >>> found = thresher.zoo.load("digits-vit")
    >>> found.error() < 1e-4
    True

    Args:
      name: one of ``list()``.

    Raises:
      ValueError: there is no such entry.
      MissingPackageError: it needs a package that is not installed.
    """
    entry = info(name)
    obstacle = entry.obstacle()
    if obstacle is not None:
        raise MissingPackageError(f"zoo: {name}: {obstacle}")
    return ZooModel(entry)


def benchmark(
    name: str,
    batch_sizes: Sequence[int] = (1, 8),
    num_iterations: int = 50,
    warmup_iterations: int = 5,
    *,
    engines: Sequence[str] | None = None,
    config: CompilerConfig | None = None,
    output_dir: str | os.PathLike[str] | None = None,
) -> BenchmarkResult:
    """Measures an entry as ``thresher.benchmark`` does a model.

    >>> import thresher
    >>> result = thresher.zoo.benchmark("digits-vit", (1,), 10, engines=["eager", "thresher"])
    >>> [row.engine for row in result.rows]
    ['eager', 'thresher']

    Args:
      name: one of ``list()``; not a decoder, which ``thresher llm bench`` measures.
      batch_sizes: how many rows the inputs have.
      num_iterations: calls that are timed.
      warmup_iterations: calls before.
      engines: by name; None for all that are installed.
      config: how Thresher compiles the model.
      output_dir: where to write table, data and picture.

    Raises:
      ValueError: there is no such entry, it is a decoder, or an argument cannot be used.
      MissingPackageError: it needs a package that is not installed.
      UnavailableError: an engine asked for by name is not installed.
      OutputError: the results cannot be written.
    """
    _want_module(name, "thresher llm bench PATH measures it")
    found = load(name)
    return measure(
        found.model,
        found.inputs,
        batch_sizes,
        num_iterations,
        warmup_iterations,
        engines=engines,
        config=config,
        output_dir=output_dir,
    )


def export(name: str, path: str | os.PathLike[str]) -> Path:
    """Writes an entry to a model file, which runs without PyTorch.

    >>> import pathlib, tempfile, thresher
    >>> file = thresher.zoo.export("digits-vit", pathlib.Path(tempfile.mkdtemp()) / "digits.thrmodel")
    >>> [port.shape for port in thresher.load(file).outputs]
    [(1, 10)]

    Args:
      name: one of ``list()``; not a decoder, whose own file ``thresher.llm.LLM`` loads.
      path: the file; one that exists is replaced once the new one is whole.

    Returns:
      The path.

    Raises:
      ValueError: there is no such entry, or it is a decoder.
      MissingPackageError: it needs a package that is not installed.
      UnsupportedOperatorError: the engine lacks operators of the model.
      ExportError: the file cannot be written.
    """
    _want_module(name, "thresher.llm.LLM loads its own file")
    found = load(name)
    return thresher_export(found.model, (), path, kwargs=found.inputs)


def _want_module(name: str, instead: str) -> None:
    if info(name).kind == "decoder":
        raise ValueError(f"zoo: expected a model with inputs of tensors, got the decoder {name!r}; {instead}")

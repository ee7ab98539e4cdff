"""Folders for results, none of which is written twice."""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path

from thresher.profiler.export import OutputError


def new_folder(parent: str | os.PathLike[str], name: str) -> Path:
    """Makes a folder that was not there: NAME, or NAME-2, NAME-3 and so on.

    Args:
      parent: where; made if it does not exist.
      name: what it is about; whatever is no letter, digit, "-", "_" or "." becomes "_".

    Raises:
      OutputError: it cannot be made.
    """
    folder = Path(parent).expanduser().absolute()
    plain = re.sub(r"[^\w.-]+", "_", name, flags=re.ASCII).strip("._") or "model"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(1):
            made = folder / (plain if number == 1 else f"{plain}-{number}")
            try:
                made.mkdir()
                return made
            except FileExistsError:
                continue
    except OSError as error:
        raise OutputError(
            f"{folder}: expected a folder to write into, got: {error.strerror or error}; choose another output_dir"
        ) from error
    raise AssertionError("the numbers do not end")


def name_of(model: object) -> str:
    """What a model is called: its class, or a function's own name; of a compiled model that of the model within."""
    inner = getattr(model, "_orig_mod", None) or getattr(model, "_torchdynamo_orig_callable", None) or model
    return str(getattr(inner, "__name__", None) or type(inner).__name__)

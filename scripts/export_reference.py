"""Exports all-MiniLM-L6-v2 and what PyTorch says it answers, for machines that have no PyTorch.

    python scripts/export_reference.py FOLDER

writes FOLDER/minilm.thrmodel and FOLDER/minilm.npz with the arrays input_<name> and output_<number>. Needs an
environment with Thresher, PyTorch and the model.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch

import thresher
from measure.minilm import load_model, tokenize

TEXTS = ("Wheat is threshed to part the grain from the chaff.", "A short one.")
SEQUENCE = 32


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args(argv).folder
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "minilm.thrmodel"
    model = load_model()
    inputs = tokenize(TEXTS, SEQUENCE)
    with torch.inference_mode():
        outputs = model(**inputs).to_tuple()
    thresher.export(model, (), path, kwargs=inputs)
    questions = {f"input_{name}": value.numpy() for name, value in inputs.items()}
    answers = {f"output_{i}": value.numpy() for i, value in enumerate(outputs)}
    np.savez(folder / "minilm.npz", allow_pickle=False, **questions, **answers)
    print(f"{path}: {path.stat().st_size / 2**20:.1f} MiB, {len(outputs)} outputs")
    return 0


if __name__ == "__main__":
    sys.exit(main())

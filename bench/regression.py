"""What the nightly regression gate measures: all-MiniLM-L6-v2 in the engine, 60 passages one after another.

    thresher profile -o run.json bench/regression.py

Needs an environment with Thresher, PyTorch and the model. `nox -s bench -- --regression FOLDER` runs it several times.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))
import thresher
from measure.minilm import load_model, tokenize
from thresher import profiler

WARMUPS = 5
CALLS = 60
SEQUENCE = 128
TEXT = "Wheat is threshed to part the grain from the chaff."

model = thresher.compile(load_model())
inputs = tokenize((TEXT,), SEQUENCE)
with torch.inference_mode():
    for _ in range(WARMUPS):
        model(**inputs)
    profiler.reset()
    for _ in range(CALLS):
        model(**inputs)
        profiler.step()

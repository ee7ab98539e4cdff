"""Imports an installed Thresher the way a user's first script does. Run with `python -I`, away from the repository."""

from __future__ import annotations

import sys
import time

start = time.perf_counter()
import thresher

took_ms = (time.perf_counter() - start) * 1e3
if "torch" in sys.modules:
    sys.exit("Expected `import thresher` to leave PyTorch alone; it imported torch.")
from thresher import _engine

print(f"thresher {thresher.__version__} imports in {took_ms:.0f} ms without torch; instruction set {_engine.isa()}")

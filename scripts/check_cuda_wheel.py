"""Opens the library of an installed thresher-cuda. Run with `python -I`, away from the repository."""

from __future__ import annotations

import ctypes
import importlib.util
import sys

import thresher_cuda

path = thresher_cuda.library_path()
library = ctypes.CDLL(path)
library.thresher_device_get_api.restype = ctypes.c_void_p
if not library.thresher_device_get_api():
    sys.exit(f"Expected a table of functions from {path}, got none.")
print(f"{path} opens without a driver")

if importlib.util.find_spec("thresher") is not None:
    from thresher import Backend

    backend = Backend("cuda")
    print(f"the engine: {backend.obstacle() or 'the CUDA kernels can be used here'}")

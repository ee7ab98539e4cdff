"""The kernels for NVIDIA GPUs, as a library that Thresher's engine opens. There is nothing else to call here."""

from __future__ import annotations

from pathlib import Path

__all__ = ["library_path"]


def library_path() -> str:
    """Where the library lies.

    Raises:
      FileNotFoundError: the package is not whole.
    """
    path = Path(__file__).resolve().parent / "libthresher_cuda.so"
    if not path.is_file():
        raise FileNotFoundError(f"expected {path}, got none; pip install --force-reinstall thresher-cuda")
    return str(path)

"""The photos and the page of scikit-image, as tensors."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from thresher.zoo.entry import package_folder

PACKAGES = (("skimage", "scikit-image"), ("PIL", "pillow"))


def image(name: str) -> torch.Tensor:
    """An image of scikit-image, whose files are read and which is not imported.

    Args:
      name: of the file, as in "chelsea.png".

    Returns:
      float32 [1, 3, height, width] of red, green and blue from 0 to 1.

    Raises:
      MissingPackageError: scikit-image is not installed.
    """
    pillow: Any = importlib.import_module("PIL.Image")
    with pillow.open(package_folder(PACKAGES[0][0]) / "data" / name) as file:
        pixels = np.asarray(file.convert("RGB"), dtype=np.float32)
    return torch.from_numpy(pixels / 255).permute(2, 0, 1)[None].contiguous()


def resized(images: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Images of another size, smoothed where they become smaller."""
    return functional.interpolate(images, (height, width), mode="bilinear", antialias=True)


def centred(images: torch.Tensor) -> torch.Tensor:
    """From 0..1 to -1..1."""
    return images * 2 - 1

"""1,797 handwritten digits of 8 x 8 pixels, which scikit-learn ships."""

from __future__ import annotations

import gzip
from collections.abc import Sequence

import numpy as np
import torch

from thresher.zoo.entry import package_folder

PACKAGE = ("sklearn", "scikit-learn")
ORIGIN = "data: the digits of scikit-learn (UCI Optical Recognition of Handwritten Digits, CC BY 4.0)"
TRAINING = 1500  # the rest is for tests
_SHADES = " .:-=+*#%@"


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """All digits.

    Returns:
      float32 [1797, 1, 8, 8] from -1 (paper) to 1 (ink), and what they are, int64 [1797].
    """
    with gzip.open(package_folder(PACKAGE[0]) / "datasets" / "data" / "digits.csv.gz") as file:
        rows = np.loadtxt(file, delimiter=",", dtype=np.float32)
    return torch.from_numpy(rows[:, :64]).reshape(-1, 1, 8, 8) / 8 - 1, torch.from_numpy(rows[:, 64].astype(np.int64))


def picture(images: torch.Tensor, captions: Sequence[str]) -> str:
    """Digits side by side as text, two letters a pixel, a caption below each.

    Args:
      images: [n, 1, 8, 8] from -1 to 1; what is beyond counts as that.
      captions: n of them, at most 16 letters.
    """
    shades = ((images[:, 0].clamp(-1, 1) + 1) / 2 * (len(_SHADES) - 1)).round().int().tolist()
    lines = ["  ".join("".join(_SHADES[value] * 2 for value in image[row]) for image in shades) for row in range(8)]
    return "\n".join(line.rstrip() for line in [*lines, "  ".join(f"{caption:16}" for caption in captions)])

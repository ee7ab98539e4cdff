"""PP-LCNetV3, which looks at pages for PP-OCRv4: convolutions of single channels and of single positions by turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True)
class Stage:
    """A block.

    Attributes:
      out: its channels.
      stride: along height and width.
      window: of the convolution of single channels.
      squeeze: whether channels are weighed between the two convolutions.
    """

    out: int
    stride: tuple[int, int] = (1, 1)
    window: int = 3
    squeeze: bool = False


class Affine(nn.Module):
    """One factor and one summand for all elements."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: of any shape."""
        return x * self.scale + self.bias


class Squeeze(nn.Module):
    """Weighs channels by what is in all of them.

    Args:
      channels: of x.
      slope: of the hard sigmoid.
      residual: whether x is added.
    """

    def __init__(self, channels: int, slope: float = 1 / 6, residual: bool = False) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(channels, channels // 4, 1)
        self.expand = nn.Conv2d(channels // 4, channels, 1)
        self.slope, self.residual = slope, residual

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [batch, channels, height, width]."""
        found: torch.Tensor = self.expand(functional.relu(self.reduce(x.mean((2, 3), keepdim=True))))
        weighed = x * (found * self.slope + 0.5).clamp(0, 1)
        return x + weighed if self.residual else weighed


def _layer(convolution: nn.Conv2d) -> nn.Sequential:
    act = [] if convolution.stride == (2, 2) else [nn.Hardswish(), Affine()]
    return nn.Sequential(convolution, Affine(), *act)


class Block(nn.Sequential):
    """One stage."""

    def __init__(self, channels: int, stage: Stage) -> None:
        window, half = stage.window, stage.window // 2
        single = nn.Conv2d(channels, channels, window, stage.stride, half, groups=channels)
        squeeze = [Squeeze(channels)] if stage.squeeze else []
        super().__init__(_layer(single), *squeeze, _layer(nn.Conv2d(channels, stage.out, 1)))


class LcNet(nn.Module):
    """Pages [batch, 3, height, width] from -1 to 1 to what some of its stages have found.

    Args:
      stages: in their order.
      taps: which of them answer.
    """

    def __init__(self, stages: Sequence[Stage], taps: Sequence[int]) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16))
        channels = [16, *(stage.out for stage in stages)]
        self.blocks = nn.ModuleList(map(Block, channels, stages))
        self.taps = frozenset(taps)

    def forward(self, pages: torch.Tensor) -> list[torch.Tensor]:
        """One tensor a tap."""
        x, found = self.stem(pages), []
        for i, block in enumerate(self.blocks):
            x = block(x)
            if i in self.taps:
                found.append(x)
        return found

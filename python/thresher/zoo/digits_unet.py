"""A small U-Net that draws digits: it turns noise into them along straight lines (rectified flow)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from thresher.zoo.digits import ORIGIN, PACKAGE, TRAINING, digits, picture
from thresher.zoo.entry import Entry, Parts
from thresher.zoo.trained import trained

WIDTH, ANGLES = 32, 16
STEPS, BATCH = 1000, 64
DRAWING_STEPS = 20


class _Block(torch.nn.Module):
    """Two convolutions with a shift by time and digit between them, and what came in added."""

    def __init__(self, channels: int, made: int, condition: int) -> None:
        super().__init__()
        self.first_norm = torch.nn.GroupNorm(4, channels)
        self.first = torch.nn.Conv2d(channels, made, 3, padding=1)
        self.shift = torch.nn.Linear(condition, made)
        self.second_norm = torch.nn.GroupNorm(4, made)
        self.second = torch.nn.Conv2d(made, made, 3, padding=1)
        self.around = torch.nn.Conv2d(channels, made, 1)

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        h = self.first(functional.silu(self.first_norm(x))) + self.shift(condition)[:, :, None, None]
        made: torch.Tensor = self.around(x) + self.second(functional.silu(self.second_norm(h)))
        return made


class DigitsUNet(torch.nn.Module):
    """Where noisy digits move: images [batch, 1, 8, 8], times [batch] from 0 to 1 and digits [batch] to directions."""

    def __init__(self) -> None:
        super().__init__()
        condition = 2 * WIDTH
        self.of_time = torch.nn.Linear(2 * ANGLES, condition)
        self.of_digit = torch.nn.Embedding(10, condition)
        self.enter = torch.nn.Conv2d(1, WIDTH, 3, padding=1)
        self.down = _Block(WIDTH, WIDTH, condition)
        self.middle = _Block(WIDTH, 2 * WIDTH, condition)
        self.up = _Block(3 * WIDTH, WIDTH, condition)
        self.leave = torch.nn.Conv2d(WIDTH, 1, 3, padding=1)

    def forward(self, images: torch.Tensor, times: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The direction from noise to digits."""
        rates = torch.exp(torch.arange(ANGLES, dtype=torch.float32) * (math.log(100.0) / ANGLES))
        angles = times[:, None] * rates
        condition = functional.silu(self.of_time(torch.cat((angles.cos(), angles.sin()), 1)) + self.of_digit(labels))
        fine = self.down(self.enter(images), condition)
        coarse = self.middle(functional.avg_pool2d(fine, 2), condition)
        both = torch.cat((fine, functional.interpolate(coarse, scale_factor=2.0, mode="nearest")), 1)
        moved: torch.Tensor = self.leave(functional.silu(self.up(both, condition)))
        return moved


def _train(model: Any) -> None:
    images, labels = (part[:TRAINING] for part in digits())
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=STEPS)
    for _ in range(STEPS):
        rows = torch.randint(TRAINING, (BATCH,))
        wanted, noise, times = images[rows], torch.randn(BATCH, 1, 8, 8), torch.rand(BATCH)
        at = times[:, None, None, None]
        loss: Any = functional.mse_loss(model(noise + at * (wanted - noise), times, labels[rows]), wanted - noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


def draw(run: Callable[..., Any], labels: torch.Tensor, seed: int = 0) -> torch.Tensor:
    """Draws digits.

    Args:
      run: the model, eager or compiled.
      labels: which digits, int64 [n].
      seed: of the noise.

    Returns:
      float32 [n, 1, 8, 8] from -1 to 1, about.
    """
    images = torch.randn(len(labels), 1, 8, 8, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        for step in range(DRAWING_STEPS):
            times = torch.full((len(labels),), step / DRAWING_STEPS)
            images = images + run(images, times, labels) / DRAWING_STEPS
    return images


def nearest(images: torch.Tensor) -> torch.Tensor:
    """What the real digits are that look most alike, int64 [n]."""
    known, labels = digits()
    return labels[torch.cdist(images.flatten(1), known.flatten(1)).argmin(1)]


def _demonstrate(run: Callable[..., Any]) -> str:
    labels = torch.arange(10)
    images = draw(run, labels)
    alike = nearest(images)
    captions = [f"{label} (like a {other})" for label, other in zip(labels.tolist(), alike.tolist(), strict=True)]
    rows = [picture(images[i : i + 5], captions[i : i + 5]) for i in (0, 5)]
    return "\n\n".join(rows) + f"\n{int((alike == labels).sum())} of 10 look most like a real digit of that kind"


def _make() -> Parts:
    model = trained("digits-unet", 1, DigitsUNet, _train)
    inputs = {"images": torch.zeros(1, 1, 8, 8), "times": torch.zeros(1), "labels": torch.zeros(1, dtype=torch.int64)}
    return Parts(model, inputs, _demonstrate)


ENTRY = Entry(
    "digits-unet",
    "diffusion",
    "A U-Net that draws digits of 8 x 8 pixels, from noise in 20 steps.",
    129377,
    "trained here",
    ORIGIN,
    (PACKAGE,),
    _make,
)

"""A small vision transformer that reads digits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from thresher.zoo.digits import ORIGIN, PACKAGE, TRAINING, digits, picture
from thresher.zoo.entry import Entry, Parts
from thresher.zoo.trained import trained

WIDTH, HEADS, LAYERS, PATCH = 64, 4, 2, 2
EPOCHS, BATCH = 20, 50


class DigitsViT(torch.nn.Module):
    """Digits [batch, 1, 8, 8] to scores [batch, 10]."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Linear(PATCH * PATCH, WIDTH)
        self.positions = torch.nn.Parameter(torch.randn(1, (8 // PATCH) ** 2, WIDTH) * 0.02)
        layer = torch.nn.TransformerEncoderLayer(
            WIDTH, HEADS, 2 * WIDTH, dropout=0.1, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = torch.nn.ModuleList(
            [layer, *(_like(layer) for _ in range(LAYERS - 1))]  # each with numbers of its own
        )
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.head = torch.nn.Linear(WIDTH, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores of the ten digits."""
        batch, side = images.shape[0], 8 // PATCH
        patches = images.reshape(batch, side, PATCH, side, PATCH).transpose(2, 3).reshape(batch, side * side, -1)
        x = self.embed(patches) + self.positions
        for layer in self.layers:
            x = layer(x)
        scores: torch.Tensor = self.head(self.norm(x).mean(1))
        return scores


def _like(layer: torch.nn.TransformerEncoderLayer) -> torch.nn.TransformerEncoderLayer:
    return torch.nn.TransformerEncoderLayer(
        WIDTH, HEADS, 2 * WIDTH, dropout=0.1, activation="gelu", batch_first=True, norm_first=layer.norm_first
    )


def _train(model: Any) -> None:
    images, labels = (part[:TRAINING] for part in digits())
    steps = EPOCHS * (TRAINING // BATCH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    for _ in range(EPOCHS):
        for rows in torch.randperm(TRAINING).reshape(-1, BATCH):
            loss: Any = functional.cross_entropy(model(images[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()


def _demonstrate(run: Callable[..., Any]) -> str:
    images, labels = (part[TRAINING:] for part in digits())
    with torch.no_grad():
        read = run(images).argmax(1)
    shown = slice(0, 5)
    captions = [f"read {a}, is {b}" for a, b in zip(read[shown].tolist(), labels[shown].tolist(), strict=True)]
    right = int((read == labels).sum())
    share = f"({100 * right / len(labels):.1f} %)"
    return (
        f"{picture(images[shown], captions)}\n"
        f"{right} of {len(labels)} digits that it was not trained with are read right {share}"
    )


def _make() -> Parts:
    model = trained("digits-vit", 1, DigitsViT, _train)
    return Parts(model, {"images": digits()[0][TRAINING : TRAINING + 1]}, _demonstrate)


ENTRY = Entry(
    "digits-vit",
    "vision",
    "A vision transformer of two layers that reads handwritten digits of 8 x 8 pixels.",
    69066,
    "trained here",
    ORIGIN,
    (PACKAGE,),
    _make,
)

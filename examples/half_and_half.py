"""A model of which a part runs in PyTorch: its Fourier transform, which is not among the engine's operators.

    thresher profile --html half.html examples/half_and_half.py

The page shows what runs where: the row "PyTorch operators" in the table, thresherFallback on the time line.
"""

from __future__ import annotations

import torch
from torch import nn


class SpeechEncoder(nn.Module):
    """Convolutions over a spectrogram and its cepstrum, then transformer layers, as speech models have them."""

    def __init__(self, width: int = 256, layers: int = 4) -> None:
        """Makes random weights."""
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv1d(80 + 41, width, 3, padding=1),
            nn.GELU(),
            nn.Conv1d(width, width, 3, stride=2, padding=1),
            nn.GELU(),
        )
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, activation="gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)

    def forward(self, spectrogram: torch.Tensor) -> torch.Tensor:
        """Encodes a batch.

        Args:
            spectrogram: float32 [batch, 80, frames].

        Returns:
            float32 [batch, frames / 2, width].
        """
        cepstrum = torch.fft.rfft(spectrogram, dim=1).abs()
        features = self.stem(torch.cat([spectrogram, cepstrum], 1))
        return self.norm(self.encoder(features.transpose(1, 2)))


def main() -> None:
    """Encodes a batch of noise a number of times."""
    torch.manual_seed(0)
    model = torch.compile(SpeechEncoder().eval(), backend="thresher")
    spectrogram = torch.randn(2, 80, 400)
    with torch.no_grad():
        for _ in range(200):
            encoded = model(spectrogram)
    print("encoded:", tuple(encoded.shape))


if __name__ == "__main__":
    main()

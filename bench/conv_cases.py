"""What bench/run.py conv measures: convolutions of a file of commands, and whole networks of vision and speech."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

SEED = 18
# Of models and inputs; in int8, engines round both themselves.
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.float32}
PRECISIONS = {torch.float32: ("fp32", "bf16", "int8"), torch.bfloat16: ("bf16",)}
_CONVOLUTIONS = {3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}
_TRANSPOSED = {3: nn.ConvTranspose1d, 4: nn.ConvTranspose2d, 5: nn.ConvTranspose3d}


def layers(file: Path, batches: list[int]) -> list[dict[str, Any]]:
    """The convolutions of a file that go forward in a type that is measured, at some batch sizes; as plain data.

    Those in float32 are there once more for bf16 and for int8.
    """
    from thresher.signatures import ConvSignature, Mode, command_to_signature
    from thresher.signatures.driver import read_commands
    from thresher.signatures.in_torch import canonical

    found = []
    for command in read_commands(file):
        signature = command_to_signature(command)
        if not isinstance(signature, ConvSignature) or signature.mode is not Mode.FORWARD:
            raise ValueError(f"{file}: expected convolutions that go forward, got '{command}'; use -F 1")
        if signature.dtype not in PRECISIONS:
            continue
        x = canonical(signature.input_shape, signature.input_layout)
        w = canonical(signature.kernel_shape, signature.kernel_layout)
        for batch, precision in itertools.product(batches, PRECISIONS[signature.dtype]):
            found.append(
                {
                    "name": _name(x[1:], w, signature),
                    "kind": _kind(x, w, signature.groups),
                    "batch": batch,
                    "input": [batch, *x[1:]],
                    "kernel": list(w),
                    "settings": {
                        "stride": signature.stride,
                        "padding": signature.padding,
                        "dilation": signature.dilation,
                        "groups": signature.groups,
                    },
                    "transposed": signature.transposed,
                    "bias": signature.bias,
                    "channels_last": signature.input_layout.endswith("C"),
                    "precision": precision,
                }
            )
    return found


def make(case: dict[str, Any]) -> tuple[nn.Module, torch.Tensor]:
    """The network of a case in float32, ready for inference, and its input; the same on every machine."""
    torch.manual_seed(SEED)
    if "network" in case:
        model, shape = NETWORKS[case["network"]]()
        shape = [case["batch"], *shape]
    else:
        model, shape = _convolution(case), case["input"]
    with torch.no_grad():
        for key, value in model.named_buffers():
            if key.endswith("running_var"):
                value.uniform_(0.5, 1.5)
    return model.eval(), torch.randn(shape)


def _convolution(case: dict[str, Any]) -> nn.Module:
    first, second, *window = case["kernel"]
    groups = case["settings"]["groups"]
    channels = (first, second * groups) if case["transposed"] else (second * groups, first)
    kind = (_TRANSPOSED if case["transposed"] else _CONVOLUTIONS)[len(case["kernel"])]
    made: nn.Module = kind(*channels, tuple(window), bias=case["bias"], **case["settings"])
    return made


def _kind(x: tuple[int, ...], w: tuple[int, ...], groups: int) -> str:
    if groups == 1:
        return "pointwise" if max(w[2:]) == 1 else "dense"
    return "depthwise" if groups == x[1] else "grouped"


def _name(x: tuple[int, ...], w: tuple[int, ...], signature: Any) -> str:
    channels = w[1] * signature.groups if signature.transposed else w[0]
    parts = ["x".join(map(str, x)), f"-> {channels},", "x".join(map(str, w[2:]))]
    for letter, values in (("s", signature.stride), ("d", signature.dilation)):
        if max(values) > 1:
            parts.append(f"{letter}{values[0]}")
    if signature.groups > 1:
        parts.append(f"g{signature.groups}")
    if signature.transposed:
        parts.append("transposed")
    return " ".join(parts)


class First(nn.Module):
    """A model of transformers whose first answer counts."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.model(x, return_dict=False)[0]
        return answer


def _of_transformers(model: str, config: str, shape: list[int], **sizes: Any) -> tuple[nn.Module, list[int]]:
    import importlib

    import transformers

    made = getattr(transformers, config)(**sizes)
    modeling = importlib.import_module(type(made).__module__.replace(".configuration_", ".modeling_"))
    return First(getattr(modeling, model)(made)), shape


def _efficientnet() -> tuple[nn.Module, list[int]]:
    from thresher.zoo.efficientnet import EfficientNetLite0

    return EfficientNetLite0(), [3, 224, 224]


IMAGE = [3, 224, 224]
# Random weights: what is measured is time.
NETWORKS = {
    "EfficientNet-Lite0": _efficientnet,
    "ResNet-50": lambda: _of_transformers("ResNetForImageClassification", "ResNetConfig", IMAGE, num_labels=1000),
    "MobileNetV2": lambda: _of_transformers(
        "MobileNetV2ForImageClassification", "MobileNetV2Config", IMAGE, num_labels=1000
    ),
    "ViT-B/16": lambda: _of_transformers("ViTForImageClassification", "ViTConfig", IMAGE, num_labels=1000),
    "SegFormer-B0": lambda: _of_transformers("SegformerForSemanticSegmentation", "SegformerConfig", [3, 512, 512]),
    "Whisper-base encoder": lambda: _of_transformers(
        "WhisperEncoder",
        "WhisperConfig",
        [80, 3000],
        d_model=512,
        encoder_layers=6,
        encoder_attention_heads=8,
        encoder_ffn_dim=2048,
    ),
}


def networks(names: Sequence[str]) -> list[str]:
    """Those of NETWORKS whose names begin so, in any case of letters; all where `names` is empty.

    Raises:
      ValueError: none begins so.
    """
    if not names:
        return list(NETWORKS)
    for name in names:
        if not any(known.lower().startswith(name.lower()) for known in NETWORKS):
            raise ValueError(f"expected beginnings of {', '.join(NETWORKS)}, got '{name}'")
    return [known for known in NETWORKS if known.lower().startswith(tuple(name.lower() for name in names))]

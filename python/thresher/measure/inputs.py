"""What a model is called with while it is measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

Shape = Sequence[int]
# One input; several by position; or several by name.
InputShapes = Shape | torch.Tensor | Sequence[Shape | torch.Tensor] | Mapping[str, Shape | torch.Tensor]
Call = tuple[tuple[Any, ...], dict[str, Any]]


def call_at(shapes: InputShapes, batch: int, like: object) -> Call:
    """Arguments of one call.

    Args:
      shapes: of the inputs without the batch, or example tensors with one.
      batch: how many rows all of them get, in front.
      like: a model: random inputs have the dtype and device of its first parameter of floats, else float32 on the host.

    Returns:
      Positional arguments and those by name. Random numbers are normally distributed and the same each time; an
      example's rows are repeated.

    Raises:
      ValueError: something else than shapes and tensors.
    """
    dtype, device = _kind_of(like)
    generator = torch.Generator().manual_seed(0)

    def one(entry: Any) -> torch.Tensor:
        if isinstance(entry, torch.Tensor):
            return _repeated(entry, batch)
        if not _is_shape(entry):
            raise ValueError(
                f"input_shapes: expected sizes of at least 1 such as (3, 224, 224), or a tensor, got {entry!r}; "
                "leave the batch out of a shape, and give a tensor where an input is not of floats"
            )
        return torch.randn((batch, *entry), generator=generator).to(device, dtype)

    if isinstance(shapes, Mapping):
        return (), {name: one(entry) for name, entry in shapes.items()}
    if isinstance(shapes, torch.Tensor) or _is_shape(shapes):
        return (one(shapes),), {}
    given: object = shapes
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise ValueError(
            f"input_shapes: expected a shape, a sequence or a mapping of shapes, got {shapes!r}; "
            "write (3, 224, 224) for one input of floats"
        )
    return tuple(one(entry) for entry in shapes), {}


def call_with(inputs: Any) -> Call:
    """Arguments of one call: a mapping gives them by name, a tuple or list by position, anything else is the only one.

    Mappings are those that tokenizers give, too.
    """
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs), {}) if isinstance(inputs, (tuple, list)) else ((inputs,), {})


def _is_shape(entry: object) -> bool:
    if isinstance(entry, str) or not isinstance(entry, Sequence):
        return False
    return all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in entry)


def _repeated(example: torch.Tensor, batch: int) -> torch.Tensor:
    if example.dim() == 0 or example.shape[0] == 0:
        raise ValueError(
            f"input_shapes: expected an example with rows, got one of shape {list(example.shape)}; add a first "
            "dimension with example.unsqueeze(0)"
        )
    rows = example.detach()[torch.arange(batch, device=example.device) % example.shape[0]]
    return rows.contiguous()


def _kind_of(model: object) -> tuple[torch.dtype, torch.device]:
    if isinstance(model, torch.nn.Module):
        for parameter in model.parameters():
            if parameter.is_floating_point():
                return parameter.dtype, parameter.device
    return torch.float32, torch.device("cpu")

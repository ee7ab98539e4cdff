"""Convolutions and their gradients in PyTorch's operators, on tensors of any layout; sizes may be symbolic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

aten: Any = torch.ops.aten


class Settings(NamedTuple):
    """What a convolution is told beside its tensors: one number a spatial dimension, in the order D, H, W, or one.

    Attributes:
        stride: Steps between windows.
        padding: Zeros on both sides.
        dilation: Steps within a window.
        groups: Into how many independent parts the channels fall.
        transposed: Whether it is a transposed convolution.
        output_padding: What a transposed one adds to one side of its output.
        input_layout: The dimensions of the input in the order of its sizes, such as "NHWC".
        kernel_layout: Those of the weights.
        output_layout: Those of the output.
    """

    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    groups: int
    transposed: bool
    output_padding: Sequence[int]
    input_layout: str
    kernel_layout: str
    output_layout: str

    def in_order(self) -> tuple[Any, ...]:
        """What aten.convolution takes behind the bias."""
        lists = [list(values) for values in (self.stride, self.padding, self.dilation)]
        return *lists, self.transposed, list(self.output_padding), self.groups


def axes(layout: str) -> str:
    """The dimensions of a layout in PyTorch's order."""
    return "NC" + "".join(axis for axis in "DHW" if axis in layout)


def canonical(shape: Sequence[int], layout: str) -> tuple[int, ...]:
    """Sizes of a layout in PyTorch's order."""
    return tuple(shape[layout.index(axis)] for axis in axes(layout))


def to_torch(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """A view of the tensor in PyTorch's order."""
    return tensor.permute([layout.index(axis) for axis in axes(layout)])


def from_torch(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """The inverse of `to_torch`."""
    return tensor.permute([axes(layout).index(axis) for axis in layout])


def convolve(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, settings: Settings) -> torch.Tensor:
    """The convolution."""
    turned = to_torch(x, settings.input_layout), to_torch(w, settings.kernel_layout)
    return from_torch(aten.convolution.default(*turned, bias, *settings.in_order()), settings.output_layout)


def input_gradient(
    gradient: torch.Tensor, w: torch.Tensor, input_shape: Sequence[int], settings: Settings
) -> torch.Tensor:
    """The gradient of the input, whose sizes are `input_shape` in the order of its layout."""
    made = aten.convolution_backward.default(
        to_torch(gradient, settings.output_layout),
        _stand_in(gradient, input_shape, settings.input_layout),
        to_torch(w, settings.kernel_layout),
        None,
        *settings.in_order(),
        [True, False, False],
    )
    return from_torch(made[0], settings.input_layout)


def weight_gradient(
    gradient: torch.Tensor, x: torch.Tensor, kernel_shape: Sequence[int], settings: Settings
) -> torch.Tensor:
    """The gradient of the weights, whose sizes are `kernel_shape` in the order of their layout."""
    made = aten.convolution_backward.default(
        to_torch(gradient, settings.output_layout),
        to_torch(x, settings.input_layout),
        _stand_in(gradient, kernel_shape, settings.kernel_layout),
        None,
        *settings.in_order(),
        [False, True, False],
    )
    return from_torch(made[1], settings.kernel_layout)


def _stand_in(like: torch.Tensor, shape: Sequence[int], layout: str) -> torch.Tensor:
    """For a tensor of which only sizes count, and the order in memory, which the gradient takes."""
    if like.dtype in (torch.float64, torch.float16):  # PyTorch's plain kernels want these row-major
        return like.new_empty(canonical(shape, layout))
    return to_torch(like.new_empty(shape), layout)

"""Convolutions: forward, gradient of the input, gradient of the weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import torch

from thresher.signatures.in_torch import Settings, axes, canonical, convolve, input_gradient, weight_gradient
from thresher.signatures.signature import DTYPE_NAMES, Argument, Signature, elements, float_type, joined, sizes

_CANONICAL = {3: "NCH", 4: "NCHW", 5: "NCDHW"}


class Mode(str, Enum):
    """What of a convolution is computed.

    Attributes:
        FORWARD: The output, of input, weights and bias.
        INPUT_GRADIENT: The gradient of the input, of the output's gradient and weights.
        WEIGHT_GRADIENT: The gradient of the weights, of the output's gradient and input.
    """

    FORWARD = "fwd"
    INPUT_GRADIENT = "bwd"
    WEIGHT_GRADIENT = "wrw"


@dataclass(frozen=True, init=False)
class ConvSignature(Signature):
    """A convolution of one, two or three dimensions.

    A layout names the dimensions of a tensor in the order of its sizes: of "NCH", "NCHW" and "NCDHW" every permutation.
    Of weights, N stands for what PyTorch has first (output channels, or input channels where transposed) and C for what
    it has second.

        >>> signature = ConvSignature((1, 14, 14, 96), (192, 3, 3, 96), shared_layout="NHWC", padding=1)
        >>> signature.output_shape
        (1, 14, 14, 192)

    Attributes:
        input_shape: Sizes of the input, in the order of its layout.
        kernel_shape: Sizes of the weights, in the order of theirs.
        input_layout: The input's layout.
        kernel_layout: The weights' layout.
        output_layout: The output's layout.
        bias: Whether there is a bias, one number an output channel.
        dtype: torch.float32, torch.bfloat16 or torch.float16, of all tensors.
        stride: Steps between windows; one number, or one a spatial dimension in the order D, H, W.
        padding: Zeros on both sides, likewise.
        dilation: Steps within a window, likewise.
        groups: Into how many independent parts the channels fall.
        transposed: Whether it is a transposed convolution.
        output_padding: What a transposed one adds to one side of its output.
        mode: "fwd", "bwd" (gradient of the input) or "wrw" (gradient of the weights).
    """

    input_shape: tuple[int, ...]
    kernel_shape: tuple[int, ...]
    input_layout: str
    kernel_layout: str
    output_layout: str
    bias: bool
    dtype: torch.dtype
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    transposed: bool
    output_padding: tuple[int, ...]
    mode: Mode

    def __init__(
        self,
        input_shape: Sequence[int],
        kernel_shape: Sequence[int],
        *,
        shared_layout: str | None = None,
        input_layout: str | None = None,
        kernel_layout: str | None = None,
        output_layout: str | None = None,
        bias: bool = False,
        dtype: torch.dtype = torch.float32,
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        transposed: bool = False,
        output_padding: int | Sequence[int] = 0,
        mode: str | Mode = Mode.FORWARD,
    ) -> None:
        """Checks everything.

        Args:
            input_shape: As the attribute.
            kernel_shape: As the attribute.
            shared_layout: The layout of all three tensors, in place of those below.
            input_layout: As the attribute; by default PyTorch's.
            kernel_layout: The same.
            output_layout: The same.
            bias: As the attribute.
            dtype: As the attribute.
            stride: As the attribute.
            padding: As the attribute.
            dilation: As the attribute.
            groups: As the attribute.
            transposed: As the attribute.
            output_padding: As the attribute.
            mode: As the attribute.

        Raises:
            ValueError: The shapes do not fit each other, or an argument cannot be; names both shapes.
        """
        own = (input_layout, kernel_layout, output_layout)
        if shared_layout is not None and any(layout is not None for layout in own):
            raise ValueError(
                f"convolution: expected shared_layout or layouts of each tensor, got {shared_layout} and more"
            )
        x, w = sizes("input_shape", input_shape), sizes("kernel_shape", kernel_shape)
        rank = len(x)
        if rank not in _CANONICAL or len(w) != rank:
            raise ValueError(
                f"convolution: expected input and kernel shapes of one rank, 3 to 5, got input {list(x)} of rank "
                f"{rank} and kernel {list(w)} of rank {len(w)}"
            )
        layouts = [
            _layout(name, layout or shared_layout, rank) for name, layout in zip(_LAYOUT_NAMES, own, strict=True)
        ]
        if len({frozenset(layout) for layout in layouts}) != 1:
            raise ValueError(f"convolution: expected layouts of the same dimensions, got {', '.join(layouts)}")
        spatial = rank - 2
        fields: dict[str, object] = {
            "input_shape": x,
            "kernel_shape": w,
            **dict(zip(_LAYOUT_NAMES, layouts, strict=True)),
            "bias": bool(bias),
            "dtype": float_type("convolution", dtype),
            "stride": _per_dimension("stride", stride, spatial, 1),
            "padding": _per_dimension("padding", padding, spatial, 0),
            "dilation": _per_dimension("dilation", dilation, spatial, 1),
            "groups": sizes("groups", [groups])[0],
            "transposed": bool(transposed),
            "output_padding": _per_dimension("output_padding", output_padding, spatial, 0),
            "mode": _mode(mode),
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)
        self._check()

    @property
    def spatial_rank(self) -> int:
        """How many dimensions a window has: 1 to 3."""
        return len(self.input_shape) - 2

    @property
    def func_name(self) -> str:
        """Readable and unique: operator, type, mode, shapes with layouts, attributes."""
        kind = f"conv{self.spatial_rank}d" + ("_transposed" if self.transposed else "")
        tensors = (
            joined(self.input_shape) + self.input_layout.lower(),
            joined(self.kernel_shape) + self.kernel_layout.lower(),
            "to_" + self.output_layout.lower(),
        )
        attributes = [f"s{joined(self.stride)}", f"p{joined(self.padding)}", f"d{joined(self.dilation)}"]
        if self.transposed:
            attributes.append(f"op{joined(self.output_padding)}")
        attributes.append(f"g{self.groups}")
        if self.bias:
            attributes.append("bias")
        return "_".join([kind, DTYPE_NAMES[self.dtype], self.mode.value, *tensors, *attributes])

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """Forward: input, weight and, with `bias`, bias; else the output's gradient, and weight or input."""
        x = Argument("input", self.input_shape, self.dtype)
        w = Argument("weight", self.kernel_shape, self.dtype)
        gradient = Argument("output_gradient", self._forward_shape(), self.dtype)
        if self.mode is Mode.INPUT_GRADIENT:
            return gradient, w
        if self.mode is Mode.WEIGHT_GRADIENT:
            return gradient, x
        return (x, w, Argument("bias", (self._out_channels(),), self.dtype)) if self.bias else (x, w)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The sizes of what the mode computes, in the order of its layout."""
        if self.mode is Mode.INPUT_GRADIENT:
            return self.input_shape
        if self.mode is Mode.WEIGHT_GRADIENT:
            return self.kernel_shape
        return self._forward_shape()

    @property
    def depth(self) -> int:
        """How many products an element of the result sums, at most."""
        w = canonical(self.kernel_shape, self.kernel_layout)
        if self.mode is Mode.WEIGHT_GRADIENT:
            positions = canonical(self._forward_shape(), self.output_layout)
            positions = canonical(self.input_shape, self.input_layout) if self.transposed else positions
            return positions[0] * elements(positions[2:])
        window = elements(w[2:])
        # Weights are [output channels, input channels of a group], transposed ones the other way round.
        over_first = self.transposed == (self.mode is Mode.FORWARD)
        return window * (w[0] // self.groups if over_first else w[1])

    @property
    def is_linear(self) -> bool:
        """It is."""
        return True

    @property
    def unpadded(self) -> int:
        """What slides over zeros is multiplied with them by some and not by others: weights, or what acts as such."""
        return 1 if self.mode is Mode.WEIGHT_GRADIENT and not self.transposed else 0

    @property
    def settings(self) -> Settings:
        """Everything but shapes, type, bias and mode."""
        return Settings(*(getattr(self, name) for name in Settings._fields))

    def call(self, *args: torch.Tensor) -> torch.Tensor:
        """The convolution in PyTorch's operators, on tensors of these layouts."""
        if self.mode is Mode.FORWARD:
            return convolve(args[0], args[1], args[2] if self.bias else None, self.settings)
        if self.mode is Mode.INPUT_GRADIENT:
            return input_gradient(args[0], args[1], self.input_shape, self.settings)
        return weight_gradient(args[0], args[1], self.kernel_shape, self.settings)

    def _check(self) -> None:
        x = canonical(self.input_shape, self.input_layout)
        w = canonical(self.kernel_shape, self.kernel_layout)
        shapes = (
            f"input {list(self.input_shape)} in {self.input_layout} and kernel {list(self.kernel_shape)} in "
            f"{self.kernel_layout}"
        )
        channels = w[0] if self.transposed else w[1] * self.groups
        if x[1] != channels:
            raise ValueError(
                f"convolution of {self.groups} groups: expected an input of {channels} channels for this kernel, got "
                f"{x[1]}: {shapes}"
            )
        if w[0] % self.groups:
            raise ValueError(
                f"convolution: expected a kernel whose {w[0]} channels are a multiple of {self.groups} groups: {shapes}"
            )
        if not self.transposed and any(self.output_padding):
            raise ValueError(
                f"convolution: expected no output_padding where it is not transposed, got {list(self.output_padding)}"
            )
        steps = zip(self.output_padding, self.stride, self.dilation, strict=True)
        if any(added >= max(stride, dilation) for added, stride, dilation in steps):
            raise ValueError(
                f"convolution: expected output_padding below stride or dilation, got {list(self.output_padding)} with "
                f"stride {list(self.stride)} and dilation {list(self.dilation)}"
            )
        if min(self._forward_shape()) < 1:
            raise ValueError(
                f"convolution: expected windows that fit the padded input, got an output {list(self._forward_shape())} "
                f"of {shapes} with padding {list(self.padding)} and dilation {list(self.dilation)}"
            )

    def _out_channels(self) -> int:
        w = canonical(self.kernel_shape, self.kernel_layout)
        return w[1] * self.groups if self.transposed else w[0]

    def _forward_shape(self) -> tuple[int, ...]:
        """Of the output, in its layout."""
        x = canonical(self.input_shape, self.input_layout)
        w = canonical(self.kernel_shape, self.kernel_layout)
        spatial = []
        for i, (size, window) in enumerate(zip(x[2:], w[2:], strict=True)):
            reach = self.dilation[i] * (window - 1) + 1
            if self.transposed:
                spatial.append((size - 1) * self.stride[i] - 2 * self.padding[i] + reach + self.output_padding[i])
            else:
                spatial.append((size + 2 * self.padding[i] - reach) // self.stride[i] + 1)
        named = dict(zip(axes(self.output_layout), (x[0], self._out_channels(), *spatial), strict=True))
        return tuple(named[axis] for axis in self.output_layout)


_LAYOUT_NAMES = ("input_layout", "kernel_layout", "output_layout")


def _layout(name: str, layout: str | None, rank: int) -> str:
    usual = _CANONICAL[rank]
    if layout is None:
        return usual
    wanted = [usual] if rank > 3 else ["NCH", "NCW"]
    if not isinstance(layout, str) or not any(sorted(layout) == sorted(one) for one in wanted):
        raise ValueError(
            f"{name}: expected a permutation of {' or '.join(wanted)} for tensors of rank {rank}, got {layout!r}"
        )
    return layout


def _per_dimension(name: str, given: int | Sequence[int], spatial: int, least: int) -> tuple[int, ...]:
    values = [given] * spatial if isinstance(given, int) else given
    found = sizes(name, values, least)
    if len(found) != spatial:
        raise ValueError(f"{name}: expected one number or {spatial}, got {list(found)}")
    return found


def _mode(mode: str | Mode) -> Mode:
    try:
        return Mode(mode)
    except ValueError:
        raise ValueError(f"mode: expected one of {', '.join(one.value for one in Mode)}, got {mode!r}") from None

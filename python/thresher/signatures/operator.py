"""thresher.conv: convolutions of the engine as operators of PyTorch, with gradients."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from thresher import threads
from thresher.compiler.decompositions import DECOMPOSITIONS
from thresher.compiler.errors import UnsupportedOperatorError
from thresher.signatures.convolution import ConvSignature, Mode
from thresher.signatures.in_torch import Settings, convolve, input_gradient, weight_gradient
from thresher.signatures.launchable import Launchable, get_launchable
from thresher.torch_shim import tensors as shim

log = logging.getLogger("thresher.signatures")

_SETTINGS = (
    "int[] stride, int[] padding, int[] dilation, int groups, bool transposed, int[] output_padding, "
    "str input_layout, str kernel_layout, str output_layout"
)
_MOST_ROUTES = 1024

_library: Any = torch.library.Library("thresher", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define(f"conv(Tensor input, Tensor weight, Tensor? bias, {_SETTINGS}) -> Tensor")
_library.define(f"conv_input_gradient(Tensor gradient, Tensor weight, SymInt[] input_shape, {_SETTINGS}) -> Tensor")
_library.define(f"conv_weight_gradient(Tensor gradient, Tensor input, SymInt[] kernel_shape, {_SETTINGS}) -> Tensor")
_ops: Any = torch.ops.thresher

# What runs calls of a kind that was met before: launchables by arguments and settings.
_routes: dict[object, Launchable] = {}
# The same behind PyTorch's dispatcher, and PyTorch's operators where the engine refuses.
_kernels: dict[object, Callable[[list[torch.Tensor]], torch.Tensor]] = {}


def conv(
    x: torch.Tensor,
    w: torch.Tensor,
    b: torch.Tensor | None = None,
    *,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    transposed: bool = False,
    output_padding: int | Sequence[int] = 0,
    shared_layout: str | None = None,
    input_layout: str | None = None,
    kernel_layout: str | None = None,
    output_layout: str | None = None,
) -> torch.Tensor:
    """A convolution of one to three dimensions by the engine's kernels, differentiable.

        >>> import torch, thresher
        >>> x, w = torch.ones(1, 8, 8, 3), torch.ones(16, 3, 3, 3)
        >>> thresher.conv(x, w, shared_layout="NHWC", padding=1).shape
        torch.Size([1, 8, 8, 16])

    It is the operator ``torch.ops.thresher.conv``: torch.compile knows it, with this back end or another. What the
    engine cannot compute, such as float64, runs in PyTorch; where the type is one of the engine's, a warning says so.

    Args:
        x: The input, a CPU tensor of float32, bfloat16 or float16, its sizes in the order of its layout.
        w: The weights, likewise; in PyTorch's layout [out, in / groups, ...], transposed [in, out / groups, ...].
        b: One number an output channel.
        stride: Steps between windows; one number, or one a spatial dimension.
        padding: Zeros on both sides, likewise.
        dilation: Steps within a window, likewise.
        groups: Into how many independent parts the channels fall.
        transposed: Whether it is a transposed convolution.
        output_padding: What a transposed one adds to one side of its output.
        shared_layout: The layout of input, weights and output, such as "NHWC"; by default "NCH", "NCHW" or "NCDHW".
        input_layout: The input's, in place of shared_layout.
        kernel_layout: The weights', likewise.
        output_layout: The output's, likewise.

    Returns:
        A new tensor in the order of the output's layout.

    Raises:
        ValueError: Shapes, layouts or settings do not fit each other; names both shapes.
    """
    if torch.compiler.is_compiling():
        given = (stride, padding, dilation, groups, transposed, output_padding)
        return _call(x, w, b, given, (shared_layout, input_layout, kernel_layout, output_layout))
    tensors = [x, w] if b is None else [x, w, b]
    forms = shim.forms(tensors)
    key: object = None
    if forms is not None:
        settings = (_hashable(stride), _hashable(padding), _hashable(dilation), groups, transposed)
        layouts = (shared_layout, input_layout, kernel_layout, output_layout)
        key = (forms, *settings, _hashable(output_padding), *layouts, threads.get_num_threads())
        route = _routes.get(key)
        if route is not None:
            return route.run(tensors)
    given = (stride, padding, dilation, groups, transposed, output_padding)
    made = _call(x, w, b, given, (shared_layout, input_layout, kernel_layout, output_layout))
    if key is not None and not made.requires_grad and all(map(_is_of_the_cpu, tensors)):
        _keep(key, tensors, given, (shared_layout, input_layout, kernel_layout, output_layout))
    return made


def _call(
    x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None, given: tuple[Any, ...], layouts: tuple[str | None, ...]
) -> torch.Tensor:
    """Calls the operator with every setting spelt out."""
    signature = _signature(list(x.shape), list(w.shape), b is not None, torch.float32, given, layouts)
    if b is not None and list(b.shape) != list(signature.arguments[2].shape):
        raise ValueError(
            f"conv: expected a bias of {signature.arguments[2].shape[0]} numbers for weights {list(w.shape)}, got "
            f"{list(b.shape)}"
        )
    if not x.dtype == w.dtype == (x.dtype if b is None else b.dtype):
        raise ValueError(
            f"conv: expected tensors of one type, got input {x.dtype}, weight {w.dtype}"
            + ("" if b is None else f" and bias {b.dtype}")
        )
    return _ops.conv(x, w, b, *_spelt(signature))  # type: ignore[no-any-return]


def _signature(
    x: Sequence[int],
    w: Sequence[int],
    bias: bool,
    dtype: torch.dtype,
    given: tuple[Any, ...],
    layouts: tuple[str | None, ...],
    mode: Mode = Mode.FORWARD,
) -> ConvSignature:
    stride, padding, dilation, groups, transposed, output_padding = given
    shared_layout, input_layout, kernel_layout, output_layout = layouts
    return ConvSignature(
        x,
        w,
        shared_layout=shared_layout,
        input_layout=input_layout,
        kernel_layout=kernel_layout,
        output_layout=output_layout,
        bias=bias,
        dtype=dtype,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        transposed=transposed,
        output_padding=output_padding,
        mode=mode,
    )


def _spelt(signature: ConvSignature) -> Settings:
    """The settings of the operators' schemas."""
    spelt: list[Any] = [list(value) if isinstance(value, tuple) else value for value in signature.settings]
    return Settings(*spelt)


def _of(x: Sequence[int], w: Sequence[int], bias: bool, dtype: torch.dtype, mode: Mode, *spelt: Any) -> ConvSignature:
    """The inverse of `_spelt`."""
    return _signature(list(x), list(w), bias, dtype, spelt[:6], (None, *spelt[6:]), mode)


# ---- what computes ----

_ENGINE_TYPES = (torch.float32, torch.bfloat16, torch.float16)


def _is_of_the_cpu(tensor: torch.Tensor) -> bool:
    return tensor.is_cpu and tensor.layout is torch.strided and tensor.dtype in _ENGINE_TYPES


def _compute(
    tensors: list[torch.Tensor], x: Sequence[int], w: Sequence[int], bias: bool, mode: Mode, *spelt: Any
) -> torch.Tensor:
    """A convolution or a gradient on the CPU: the engine's, else PyTorch's."""
    dtype = tensors[0].dtype
    count = threads.get_num_threads()
    key = (tuple(x), tuple(w), bias, dtype, mode, *map(_hashable, spelt), count)
    kernel = _kernels.get(key)
    if kernel is None:
        kernel = _kernel(_of(x, w, bias, dtype if dtype in _ENGINE_TYPES else torch.float32, mode, *spelt), dtype)
        _make_room(_kernels)
        _kernels[key] = kernel
    return kernel(tensors)


def _kernel(signature: ConvSignature, dtype: torch.dtype) -> Callable[[list[torch.Tensor]], torch.Tensor]:
    if dtype in _ENGINE_TYPES:
        try:
            return get_launchable(signature).run
        except UnsupportedOperatorError as error:
            warnings.warn(f"thresher.conv runs in PyTorch: {error}", stacklevel=2)
    return lambda tensors: signature.call(*tensors).contiguous()


def _keep(key: object, tensors: list[torch.Tensor], given: tuple[Any, ...], layouts: tuple[str | None, ...]) -> None:
    """Lets the next call of this kind go straight to the kernel."""
    x, w = tensors[:2]
    signature = _signature(list(x.shape), list(w.shape), len(tensors) == 3, x.dtype, given, layouts)
    try:
        launchable = get_launchable(signature)
    except UnsupportedOperatorError:
        return
    _make_room(_routes)
    _routes[key] = launchable


def _make_room(kept: dict[Any, Any]) -> None:
    while len(kept) >= _MOST_ROUTES:
        kept.pop(next(iter(kept)), None)


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _conv_cpu(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None, *spelt: Any) -> torch.Tensor:
    tensors = [x, w] if b is None else [x, w, b]
    return _compute(tensors, x.shape, w.shape, b is not None, Mode.FORWARD, *spelt)


def _input_gradient_cpu(gradient: torch.Tensor, w: torch.Tensor, shape: Sequence[int], *spelt: Any) -> torch.Tensor:
    return _compute([gradient, w], shape, w.shape, False, Mode.INPUT_GRADIENT, *spelt)


def _weight_gradient_cpu(gradient: torch.Tensor, x: torch.Tensor, shape: Sequence[int], *spelt: Any) -> torch.Tensor:
    return _compute([gradient, x], x.shape, shape, False, Mode.WEIGHT_GRADIENT, *spelt)


# ---- what PyTorch wants to know: shapes, PyTorch's own operators, gradients ----


def _conv_in_torch(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None, *spelt: Any) -> torch.Tensor:
    return convolve(x, w, b, Settings(*spelt)).contiguous()


def _input_gradient_in_torch(g: torch.Tensor, w: torch.Tensor, shape: Sequence[int], *spelt: Any) -> torch.Tensor:
    return input_gradient(g, w, shape, Settings(*spelt)).contiguous()


def _weight_gradient_in_torch(g: torch.Tensor, x: torch.Tensor, shape: Sequence[int], *spelt: Any) -> torch.Tensor:
    return weight_gradient(g, x, shape, Settings(*spelt)).contiguous()


def _save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    first, second, third, *spelt = inputs
    ctx.save_for_backward(first, second)
    ctx.third, ctx.spelt = third, spelt


def _conv_backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
    x, w = ctx.saved_tensors
    needs = ctx.needs_input_grad
    gx = _ops.conv_input_gradient(gradient, w, x.shape, *ctx.spelt) if needs[0] else None
    gw = _ops.conv_weight_gradient(gradient, x, w.shape, *ctx.spelt) if needs[1] else None
    channels = ctx.spelt[8].index("C")
    gb = gradient.sum([i for i in range(gradient.dim()) if i != channels]) if needs[2] else None
    return gx, gw, gb, *([None] * len(ctx.spelt))


def _input_gradient_backward(ctx: Any, outer: torch.Tensor) -> tuple[Any, ...]:
    """The gradient of the input is linear in both arguments: its own gradients are convolutions again."""
    gradient, w = ctx.saved_tensors
    needs = ctx.needs_input_grad
    first = _ops.conv(outer, w, None, *ctx.spelt) if needs[0] else None
    second = _ops.conv_weight_gradient(gradient, outer, w.shape, *ctx.spelt) if needs[1] else None
    return first, second, None, *([None] * len(ctx.spelt))


def _weight_gradient_backward(ctx: Any, outer: torch.Tensor) -> tuple[Any, ...]:
    gradient, x = ctx.saved_tensors
    needs = ctx.needs_input_grad
    first = _ops.conv(x, outer, None, *ctx.spelt) if needs[0] else None
    second = _ops.conv_input_gradient(gradient, outer, x.shape, *ctx.spelt) if needs[1] else None
    return first, second, None, *([None] * len(ctx.spelt))


for _name, _cpu, _in_torch, _backward in (
    ("conv", _conv_cpu, _conv_in_torch, _conv_backward),
    ("conv_input_gradient", _input_gradient_cpu, _input_gradient_in_torch, _input_gradient_backward),
    ("conv_weight_gradient", _weight_gradient_cpu, _weight_gradient_in_torch, _weight_gradient_backward),
):
    _library.impl(_name, _cpu, "CPU")
    # On fake tensors PyTorch's operators tell shapes, symbolic ones as well.
    torch.library.register_fake(f"thresher::{_name}", _in_torch, lib=_library)
    torch.library.register_autograd(f"thresher::{_name}", _backward, setup_context=_save, lib=_library)
    # The back end sees what the importer knows, so that neighbours can be fused with it.
    DECOMPOSITIONS[getattr(_ops, _name).default] = _in_torch

"""Commands of MIOpenDriver as signatures: `convbfp16 -n 128 -c 128 -H 24 -W 48 -k 384 -y 1 -x 1 -F 1`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import torch

from thresher import json_text
from thresher.signatures.aten import AtenSignature, read_trace
from thresher.signatures.attention import SdpaSignature
from thresher.signatures.convolution import ConvSignature, Mode
from thresher.signatures.flags import CommandError, Flag, choose, parse_flags
from thresher.signatures.gemm import GemmSignature
from thresher.signatures.normalization import BatchNormSignature, LayerNormSignature
from thresher.signatures.signature import Signature

# What follows the name of an operator.
_SUFFIXES = {"": torch.float32, "fp16": torch.float16, "bfp16": torch.bfloat16}
_DIRECTIONS = {1: Mode.FORWARD, 2: Mode.INPUT_GRADIENT, 4: Mode.WEIGHT_GRADIENT}

_TIME = Flag("time", "t", 1, "whether to time it: 0 or 1")
_ITERATIONS = 10
_ITER = Flag("iter", "i", _ITERATIONS, "how many runs to time")
_CAST = "tensors have the type that the command's name says"


@dataclass(frozen=True)
class DriverCommand:
    """A command, understood.

    Attributes:
        text: The command.
        signature: What it computes.
        iterations: How many runs are timed; 0: none.
    """

    text: str
    signature: Signature
    iterations: int


def _conv(dtype: torch.dtype, values: dict[str, Any]) -> Signature:
    spatial = choose("--spatial_dim (-_)", values["spatial_dim"], {1: "", 2: "", 3: ""})
    mode = choose("--mode (-m)", values["mode"], {"conv": "", "trans": "transposed"})
    direction = choose("--forw (-F)", values["forw"], {number: one.value for number, one in _DIRECTIONS.items()})
    default = {1: "NCH", 2: "NCHW", 3: "NCDHW"}[spatial]
    layouts = [values[name] or default for name in ("in_layout", "fil_layout", "out_layout")]
    axes = [axis for axis in "dhw" if axis.upper() in layouts[0]]
    groups = values["group_count"]
    if groups < 1 or values["in_channels"] % groups or values["out_channels"] % groups:
        raise CommandError(
            f"--group_count (-g): expected a number that divides --in_channels {values['in_channels']} and "
            f"--out_channels {values['out_channels']}, got {groups}"
        )
    in_channels, out_channels = values["in_channels"], values["out_channels"]
    first, second = (in_channels, out_channels // groups) if mode == "trans" else (out_channels, in_channels // groups)
    x = {"N": values["batchsize"], "C": in_channels, **{axis.upper(): values[f"in_{axis}"] for axis in axes}}
    w = {"N": first, "C": second, **{axis.upper(): values[f"fil_{axis}"] for axis in axes}}
    for flag, layout, sizes in zip(("--in_layout (-I)", "--fil_layout (-f)"), layouts, (x, w), strict=False):
        if sorted(layout) != sorted(sizes):
            raise CommandError(f"{flag}: expected a permutation of {default}, got {layout}")
    return ConvSignature(
        [x[axis] for axis in layouts[0]],
        [w[axis] for axis in layouts[1]],
        input_layout=layouts[0],
        kernel_layout=layouts[1],
        output_layout=layouts[2],
        bias=bool(choose("--bias (-b)", values["bias"], {0: "", 1: ""})),
        dtype=dtype,
        stride=[values[f"conv_stride_{axis}"] for axis in axes],
        padding=[values[f"pad_{axis}"] for axis in axes],
        dilation=[values[f"dilation_{axis}"] for axis in axes],
        groups=groups,
        transposed=mode == "trans",
        output_padding=[values[f"trans_output_pad_{axis}"] for axis in axes],
        mode=_DIRECTIONS[direction],
    )


def _gemm(dtype: torch.dtype, values: dict[str, Any]) -> Signature:
    choose("--forw (-F)", values["forw"], {1: "forward"})
    choose("--isColMajor (-C)", values["isColMajor"], {0: "row-major"})
    choose("--alpha (-A)", values["alpha"], {1.0: ""})
    choose("--beta (-B)", values["beta"], {0.0: ""})
    turned = [bool(choose(f"--{name}", values[name], {0: "", 1: ""})) for name in ("transA", "transB")]
    a, b = [values["a_h"], values["a_w"]], [values["a_w"], values["b_w"]]
    batch = [values["batch_count"]] if values["batch_count"] != 1 else []
    return GemmSignature(
        [*batch, *(a[::-1] if turned[0] else a)],
        [*batch, *(b[::-1] if turned[1] else b)],
        transpose_a=turned[0],
        transpose_b=turned[1],
        dtype=dtype,
    )


def _layer_norm(dtype: torch.dtype, values: dict[str, Any]) -> Signature:
    choose("--forw (-F)", values["forw"], {1: "forward"})
    try:
        shape = [int(size) for size in values["input"].split("x")]
    except ValueError:
        raise CommandError(f"--input (-X): expected sizes such as 100x3x32x32, got {values['input']!r}") from None
    first = values["normalized_dim"]
    if not 0 <= first < len(shape):
        raise CommandError(f"--normalized_dim (-o): expected 0 to {len(shape) - 1} for {values['input']}, got {first}")
    affine = choose("--mode (-m)", values["mode"], {0: "no weight and bias", 1: "weight and bias"}) == 1
    return LayerNormSignature(shape, dims=len(shape) - first, affine=affine, eps=values["eps"], dtype=dtype)


def _batch_norm(dtype: torch.dtype, values: dict[str, Any]) -> Signature:
    choose("--forw (-F)", values["forw"], {2: "inference"})
    choose("--mode (-m)", values["mode"], {1: "statistics a channel"})
    spatial = [values["in_d"]] if values["in_d"] else []
    shape = [values["batchsize"], values["in_channels"], *spatial, values["in_h"], values["in_w"]]
    return BatchNormSignature(shape, eps=values["eps"], dtype=dtype)


def _sdpa(dtype: torch.dtype, values: dict[str, Any]) -> Signature:
    outer = [values["batchsize"], values["heads"]]
    query = values["query_length"]
    return SdpaSignature(
        [*outer, query, values["head_size"]],
        [*outer, values["key_length"] or query, values["head_size"]],
        causal=bool(choose("--causal (-c)", values["causal"], {0: "", 1: ""})),
        masked=bool(choose("--mask (-m)", values["mask"], {0: "", 1: ""})),
        dtype=dtype,
    )


@dataclass(frozen=True)
class Operator:
    """An operator of driver commands.

    Attributes:
        flags: Those that it takes.
        make: Its signature from the values of the flags.
    """

    flags: tuple[Flag, ...]
    make: Callable[[torch.dtype, dict[str, Any]], Signature]


OPERATORS: dict[str, Operator] = {
    "conv": Operator(
        (
            Flag("spatial_dim", "_", 2, "dimensions of a window: 1, 2 or 3"),
            Flag("batchsize", "n", 100, "batch"),
            Flag("in_channels", "c", 3, "channels of the input"),
            Flag("in_d", "!", 32, "depth of the input"),
            Flag("in_h", "H", 32, "height of the input"),
            Flag("in_w", "W", 32, "width of the input"),
            Flag("in_layout", "I", "", "layout of the input; by default NCH, NCHW or NCDHW"),
            Flag("out_channels", "k", 32, "channels of the output"),
            Flag("fil_d", "@", 3, "depth of a window"),
            Flag("fil_h", "y", 3, "height of a window"),
            Flag("fil_w", "x", 3, "width of a window"),
            Flag("fil_layout", "f", "", "layout of the weights"),
            Flag("bias", "b", 0, "whether there is a bias: 0 or 1"),
            Flag("out_layout", "O", "", "layout of the output"),
            Flag("forw", "F", 1, "1: forward, 2: gradient of the input, 4: gradient of the weights"),
            Flag("mode", "m", "conv", "conv, or trans for a transposed convolution"),
            Flag("conv_stride_d", "#", 1, "stride in depth"),
            Flag("conv_stride_h", "u", 1, "stride in height"),
            Flag("conv_stride_w", "v", 1, "stride in width"),
            Flag("pad_d", "$", 0, "zeros on both sides in depth"),
            Flag("pad_h", "p", 0, "zeros on both sides in height"),
            Flag("pad_w", "q", 0, "zeros on both sides in width"),
            Flag("dilation_d", "^", 1, "dilation in depth"),
            Flag("dilation_h", "l", 1, "dilation in height"),
            Flag("dilation_w", "j", 1, "dilation in width"),
            Flag("trans_output_pad_d", "%", 0, "what a transposed convolution adds to the output in depth"),
            Flag("trans_output_pad_h", "Y", 0, "the same in height"),
            Flag("trans_output_pad_w", "X", 0, "the same in width"),
            Flag("group_count", "g", 1, "groups"),
            _TIME,
            _ITER,
            Flag("in_cast_type", "U", "", "", refused=_CAST),
            Flag("wei_cast_type", "R", "", "", refused=_CAST),
            Flag("out_cast_type", "T", "", "", refused=_CAST),
            Flag("pad_val", "r", 0, "", refused="padding is zeros"),
            Flag("pad_mode", "z", "", "", refused="padding is what --pad_d, --pad_h and --pad_w say"),
        ),
        _conv,
    ),
    "gemm": Operator(
        (
            Flag("a_h", "m", 256, "rows of the result"),
            Flag("a_w", "k", 256, "products of an element"),
            Flag("b_w", "n", 256, "columns of the result"),
            Flag("batch_count", "b", 1, "how many products"),
            Flag("transA", "u", 0, "whether the left factor is stored transposed: 0 or 1"),
            Flag("transB", "v", 0, "whether the right one is"),
            Flag("isColMajor", "C", 0, "0: matrices are row-major"),
            Flag("alpha", "A", 1.0, "1"),
            Flag("beta", "B", 0.0, "0"),
            Flag("forw", "F", 1, "1: forward"),
            _TIME,
            _ITER,
        ),
        _gemm,
    ),
    "layernorm": Operator(
        (
            Flag("input", "X", "100x3x32x32", "sizes of the input"),
            Flag("normalized_dim", "o", 3, "the first of the dimensions that are normalised"),
            Flag("eps", "e", 1e-5, "what is added to the variance"),
            Flag("mode", "m", 0, "1: with weight and bias"),
            Flag("forw", "F", 1, "1: forward"),
            _TIME,
            _ITER,
        ),
        _layer_norm,
    ),
    "bnorm": Operator(
        (
            Flag("batchsize", "n", 32, "batch"),
            Flag("in_channels", "c", 3, "channels"),
            Flag("in_d", "D", 0, "depth; 0: none"),
            Flag("in_h", "H", 32, "height"),
            Flag("in_w", "W", 32, "width"),
            Flag("eps", "e", 1e-5, "what is added to the variance"),
            Flag("mode", "m", 1, "1: statistics a channel"),
            Flag("forw", "F", 2, "2: inference"),
            _TIME,
            _ITER,
        ),
        _batch_norm,
    ),
    "sdpa": Operator(
        (
            Flag("batchsize", "n", 1, "batch"),
            Flag("heads", "h", 8, "heads"),
            Flag("query_length", "q", 128, "length of the query"),
            Flag("key_length", "k", 0, "length of key and value; 0: the query's"),
            Flag("head_size", "d", 64, "size of a head"),
            Flag("causal", "c", 0, "whether query i sees keys 0 to i only: 0 or 1"),
            Flag("mask", "m", 0, "whether a mask is added to the scores: 0 or 1"),
            _TIME,
            _ITER,
        ),
        _sdpa,
    ),
}
COMMANDS = {f"{name}{suffix}": (name, dtype) for name in OPERATORS for suffix, dtype in _SUFFIXES.items()}


def parse_command(text: str) -> DriverCommand:
    """A command as a signature and what to do with it.

    Args:
        text: `conv`, `gemm`, `layernorm`, `bnorm` or `sdpa`, with `fp16` or `bfp16` behind it for these types, and
            flags; or an aten operator with what a trace says of its inputs: `aten::mm {"Input Dims": ...}`. What stands
            before, up to MIOpenDriver, is skipped.

    Raises:
        CommandError: It cannot be understood; says what was expected.
    """
    stripped = text.strip()
    if stripped.startswith("aten::"):
        return _aten_command(stripped)
    try:
        words = shlex.split(stripped)
    except ValueError as error:
        raise CommandError(f"expected a command, got {stripped!r}: {error}") from None
    if words and PurePath(words[0]).name == "MIOpenDriver":
        words = words[1:]
    if not words or words[0] not in COMMANDS:
        found = repr(words[0]) if words else "nothing"
        raise CommandError(f"expected one of {', '.join(COMMANDS)} or an operator such as aten::mm, got {found}")
    name, dtype = COMMANDS[words[0]]
    operator = OPERATORS[name]
    try:
        values = parse_flags(operator.flags, words[1:])
        signature = operator.make(dtype, values)
    except CommandError as error:
        raise CommandError(f"{words[0]}: {error}") from None
    except ValueError as error:
        raise CommandError(str(error)) from error
    if values["iter"] < 1:
        raise CommandError(f"{words[0]}: --iter (-i): expected at least 1, got {values['iter']}")
    timed = choose("--time (-t)", values["time"], {0: "", 1: ""})
    return DriverCommand(stripped, signature, values["iter"] if timed else 0)


def command_to_signature(command: str | Sequence[str]) -> Signature:
    """What a driver command computes.

        >>> command_to_signature("conv -n 1 -c 64 -H 56 -W 56 -k 64 -p 1 -q 1").output_shape
        (1, 64, 56, 56)

    Args:
        command: One text, or its words.

    Raises:
        CommandError: It cannot be understood; says what was expected.
    """
    return parse_command(command if isinstance(command, str) else shlex.join(command)).signature


def read_commands(path: Path) -> list[str]:
    """The commands of a file.

    Args:
        path: One command a line, `#` before comments; or a trace of torch.profiler (.json, .json.gz), whose aten
            operators are taken.

    Raises:
        ValueError: It holds no command.
        OSError: It cannot be read.
    """
    if path.name.endswith((".json", ".json.gz")):
        return read_trace(path)
    lines = (line.partition(" #")[0].strip() for line in path.read_text(encoding="utf-8").splitlines())
    commands = [line for line in lines if line and not line.startswith("#")]
    if not commands:
        raise ValueError(f"{path}: expected a command a line, got none")
    return commands


def _aten_command(text: str) -> DriverCommand:
    op, _, inputs = text.partition(" ")
    try:
        data = json_text.parse(inputs)
    except ValueError as error:
        raise CommandError(
            f"{op}: expected what a trace says of its inputs as JSON, got {inputs!r:.80}: {error}"
        ) from None
    if not isinstance(data, dict):
        raise CommandError(f"{op}: expected a JSON object, got {inputs!r:.80}")
    try:
        return DriverCommand(text, AtenSignature(op, data.get("args", data)), _ITERATIONS)
    except ValueError as error:
        raise CommandError(str(error)) from error

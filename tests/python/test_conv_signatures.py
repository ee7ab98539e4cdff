"""Convolutions from signatures and `thresher.conv`: every mode, layout and type against float64; gradients."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch.nn import functional

import thresher
from thresher import cache
from thresher.signatures import ConvSignature, Mode, command_to_signature, get_launchable, launchable, verify

LAYOUTS = {1: "NCH", 2: "NCHW", 3: "NCDHW"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[None]:
    """An empty cache of the test's own; one thread, since these are small."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    cache.set_dir(tmp_path / "cache")
    launchable.forget()
    yield
    launchable.forget()
    cache.set_dir(None)
    torch.set_num_threads(threads)


@st.composite
def convolutions(draw: st.DrawFn) -> ConvSignature:
    """Small convolutions of every kind."""
    rank = draw(st.sampled_from([1, 2, 3]))
    axes = LAYOUTS[rank][2:]
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    transposed = draw(st.booleans())
    channels, out_channels = (groups * draw(st.integers(1, 5)) for _ in range(2))
    first, second = (channels, out_channels) if transposed else (out_channels, channels)
    x = {"N": draw(st.integers(1, 3)), "C": channels, **{axis: draw(st.integers(1, 9 - 2 * rank)) for axis in axes}}
    w = {"N": first, "C": second // groups, **{axis: draw(st.integers(1, 3)) for axis in axes}}
    layouts = ["".join(draw(st.permutations(LAYOUTS[rank]))) for _ in range(3)]

    def numbers(least: int, most: int) -> list[int]:
        return [draw(st.integers(least, most)) for _ in axes]

    try:
        return ConvSignature(
            [x[axis] for axis in layouts[0]],
            [w[axis] for axis in layouts[1]],
            input_layout=layouts[0],
            kernel_layout=layouts[1],
            output_layout=layouts[2],
            bias=draw(st.booleans()),
            dtype=draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16])),
            stride=numbers(1, 3),
            padding=numbers(0, 2),
            dilation=numbers(1, 2),
            groups=groups,
            transposed=transposed,
            output_padding=numbers(0, 1) if transposed else 0,
            mode=draw(st.sampled_from(Mode)),
        )
    except ValueError as error:
        assume("windows that fit" not in str(error) and "output_padding below" not in str(error))
        raise


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(convolutions())
def test_every_convolution_agrees_with_float64(signature: ConvSignature) -> None:
    found = verify(signature)
    assert found.passed, f"{signature.func_name}: {found.verdict}"


COMMANDS = [
    "convbfp16 -n 2 -c 16 -H 12 -W 24 -k 48 -y 1 -x 1 --in_layout NHWC --out_layout NHWC --fil_layout NHWC",
    "conv -n 2 -c 8 -H 9 -W 7 -k 12 -p 1 -q 1 -u 2 -v 2",
    "conv -n 2 -c 8 -H 9 -W 7 -k 8 -p 2 -q 2 -l 2 -j 2 -g 8 --in_layout NHWC --out_layout NHWC --fil_layout NHWC",
    "conv -n 1 -c 12 -H 9 -W 7 -k 8 -y 3 -x 3 -p 1 -q 1 -g 4 -b 1",
    "conv -_ 3 -n 1 -c 4 --in_d 5 -H 6 -W 7 -k 6 --pad_d 1 -p 1 -q 1",
    "convfp16 -_ 1 -n 2 -c 8 -H 33 -k 16 -y 5 -p 2 -u 2",
    "conv -n 1 -c 6 -H 5 -W 5 -k 8 -m trans -u 2 -v 2 -Y 1 -X 1 -p 1 -q 1",
]  # fmt: skip


@pytest.mark.parametrize("direction", [1, 2, 4])
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_in_every_direction(command: str, direction: int) -> None:
    found = verify(command_to_signature(f"{command} -F {direction}"))
    assert found.passed, found.verdict


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((1, 3, 8, 8), (4, 3, 3)), r"input \[1, 3, 8, 8\] of rank 4 and kernel \[4, 3, 3\] of rank 3"),
        (((1, 3), (4, 3)), r"input \[1, 3\] of rank 2"),
        (((1, 4, 8, 8), (4, 3, 3, 3)), r"expected an input of 3 channels .* input \[1, 4, 8, 8\] in NCHW and kernel"),
        (((1, 0, 8, 8), (4, 3, 3, 3)), "input_shape: expected integers of at least 1"),
    ],
)
def test_shapes_that_do_not_fit(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ConvSignature(*arguments)


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"groups": 3}, r"3 groups: expected an input of 9 channels"),
        ({"groups": 0}, "groups: expected integers of at least 1"),
        ({"stride": 0}, "stride"),
        ({"stride": (1, 1, 1)}, "one number or 2"),
        ({"padding": -1}, "padding"),
        ({"padding": 1.5}, "padding"),
        ({"dilation": 5}, "windows that fit the padded input"),
        ({"shared_layout": "NCDHW"}, "a permutation of NCHW"),
        ({"shared_layout": "NHWC", "input_layout": "NCHW"}, "expected shared_layout or layouts of each tensor"),
        ({"output_padding": 1}, "where it is not transposed"),
        ({"transposed": True, "output_padding": 1}, "below stride or dilation"),
        ({"mode": "both"}, "fwd, bwd, wrw"),
        ({"dtype": torch.int8}, "torch.int8"),
    ],
)
def test_settings_that_do_not_fit(named: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ConvSignature((2, 3, 8, 8), (3, 3, 3, 3), **named)


def test_layouts_of_one_dimension() -> None:
    assert ConvSignature((1, 9, 4), (6, 3, 4), shared_layout="NWC").output_shape == (1, 7, 6)
    with pytest.raises(ValueError, match="the same dimensions, got NHC, NCW"):
        ConvSignature((1, 9, 4), (6, 4, 3), input_layout="NHC", kernel_layout="NCW", output_layout="NCW")


# ---- thresher.conv ----


def test_it_is_the_engines_and_quiet() -> None:
    x, w, b = torch.randn(2, 9, 8, 6), torch.randn(4, 3, 3, 6), torch.randn(4)
    wanted = functional.conv2d(x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2), b, padding=1).permute(0, 2, 3, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first = thresher.conv(x, w, b, padding=1, shared_layout="NHWC")
        second = thresher.conv(x, w, b, padding=1, shared_layout="NHWC")  # the short way
    torch.testing.assert_close(first, wanted)
    assert torch.equal(first, second)
    assert first.is_contiguous()
    assert launchable._kept, "the engine has computed it"


def test_the_short_way_tells_calls_apart() -> None:
    x, w = torch.randn(1, 4, 9, 9), torch.randn(4, 4, 3, 3)
    for again in range(3):
        for named in ({}, {"stride": 2}, {"padding": [1, 0]}, {"dilation": 2}, {"groups": 1}):
            found = thresher.conv(x, w, **named)  # type: ignore[arg-type]
            torch.testing.assert_close(found, functional.conv2d(x, w, **named))
        turned = thresher.conv(x, w, output_layout="NHWC")
        torch.testing.assert_close(turned, functional.conv2d(x, w).permute(0, 2, 3, 1))
        half = thresher.conv(x.bfloat16(), w.bfloat16())
        assert half.dtype == torch.bfloat16
        torch.testing.assert_close(half, functional.conv2d(x.bfloat16(), w.bfloat16()))
        x = torch.randn(1, 4, 9, 9) if again else x.clone(memory_format=torch.channels_last)


def test_gradients_equal_eagers() -> None:
    named: dict[str, Any] = {"stride": 2, "padding": 1, "groups": 2}
    ours = [t.requires_grad_() for t in (torch.randn(2, 4, 7, 7), torch.randn(6, 2, 3, 3), torch.randn(6))]
    theirs = [t.detach().clone().requires_grad_() for t in ours]
    outer = torch.randn(2, 6, 4, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        thresher.conv(*ours, **named).backward(outer)
    functional.conv2d(*theirs, **named).backward(outer)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad, other.grad)


def test_gradcheck_in_float64_which_runs_in_pytorch() -> None:
    x, w, b = (
        torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((1, 3, 4, 2), (4, 1, 2, 2), (4,))
    )

    def run(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        layouts = {"input_layout": "NHWC", "output_layout": "CNHW"}
        return thresher.conv(x, w, b, stride=2, padding=1, groups=2, **layouts)  # type: ignore[arg-type]

    assert torch.autograd.gradcheck(run, (x, w, b))
    assert torch.autograd.gradgradcheck(run, (x, w, b))


def test_the_operators_keep_pytorchs_rules() -> None:
    x, w, b = (t.requires_grad_() for t in (torch.randn(1, 4, 5, 5), torch.randn(6, 2, 3, 3), torch.randn(6)))
    rest = ([1, 1], [1, 1], [1, 1], 2, False, [0, 0], "NCHW", "NCHW", "NCHW")
    ops: Any = torch.ops.thresher
    torch.library.opcheck(ops.conv.default, (x, w, b, *rest))
    outer = torch.randn(1, 6, 5, 5, requires_grad=True)
    torch.library.opcheck(ops.conv_input_gradient.default, (outer, w, list(x.shape), *rest))
    torch.library.opcheck(ops.conv_weight_gradient.default, (outer, x, list(w.shape), *rest))


@pytest.mark.parametrize("backend", ["thresher", "aot_eager"])
def test_inside_of_compiled_functions(backend: str) -> None:
    def model(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.relu(thresher.conv(x, w, b, padding=1, shared_layout="NHWC"))

    x, w, b = (t.requires_grad_() for t in (torch.randn(2, 5, 5, 4), torch.randn(6, 3, 3, 4), torch.randn(6)))
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    with torch.no_grad():
        wanted = model(x, w, b)
        torch.testing.assert_close(compiled(x, w, b), wanted)
    compiled(x, w, b).sum().backward()
    found = [t.grad.clone() for t in (x, w, b)]  # type: ignore[union-attr]
    x.grad = w.grad = b.grad = None
    model(x, w, b).sum().backward()
    for mine, other in zip(found, (x, w, b), strict=True):
        torch.testing.assert_close(mine, other.grad)


def test_the_back_end_has_the_whole_of_it() -> None:
    torch._dynamo.reset()
    thresher.clear_cache()
    x, w = torch.randn(2, 5, 5, 4), torch.randn(6, 3, 3, 4)
    compiled = torch.compile(lambda x, w: thresher.conv(x, w, shared_layout="NHWC"), backend="thresher")
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, w), thresher.conv(x, w, shared_layout="NHWC"))
    assert thresher.compilation_stats().unsupported == ()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, w: thresher.conv(x, w[:, :2]), r"input \[1, 4, 5, 5\] in NCHW and kernel \[6, 2, 3, 3\] in NCHW"),
        (
            lambda x, w: thresher.conv(x, w.double()),
            "tensors of one type, got input torch.float32, weight torch.float64",
        ),
        (lambda x, w: thresher.conv(x, w, torch.ones(5)), r"a bias of 6 numbers for weights \[6, 4, 3, 3\], got \[5\]"),
        (lambda x, w: thresher.conv(x, w, shared_layout="NHCC"), "a permutation of NCHW"),
    ],
)
def test_wrong_calls_name_both_shapes(call: Any, message: str) -> None:
    x, w = torch.randn(1, 4, 5, 5), torch.randn(6, 4, 3, 3)
    for _ in range(2):
        with pytest.raises(ValueError, match=message):
            call(x, w)
    assert thresher.conv(x, w).shape == (1, 6, 3, 3), "the next call works"


def test_what_the_engine_refuses_runs_in_pytorch_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    from thresher.signatures import operator

    def refuse(signature: object) -> None:
        raise thresher.UnsupportedOperatorError("not today")

    monkeypatch.setattr(operator, "get_launchable", refuse)
    x, w = torch.randn(1, 2, 6 + random.randint(10, 99), 5), torch.randn(3, 2, 3, 3)
    with pytest.warns(UserWarning, match="runs in PyTorch: not today"):
        found = thresher.conv(x, w)
    torch.testing.assert_close(found, functional.conv2d(x, w))


def test_a_launchable_of_a_convolution_is_kept() -> None:
    signature = command_to_signature(COMMANDS[0])
    made = get_launchable(signature)
    launchable.forget()
    kept = get_launchable(signature, cache_only=True)
    args = signature.sample_args()
    assert torch.equal(kept(*args), made(*args))

"""Convolutions against float64, and what passes make of models that have them."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from hypothesis import assume, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from thresher import _engine  # noqa: E402
from thresher.compiler.stats import RECORDER  # noqa: E402

CONVOLUTIONS = [F.conv1d, F.conv2d, F.conv3d]
TRANSPOSED = [F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d]


def last(x: Any) -> Any:
    """[N, C, spatial...] as [N, spatial..., C]."""
    return x.movedim(1, -1)


def run(
    op: str, operands: list[Any], attrs: dict[str, Any], constant: bool, num_threads: int = 1, of_steps: str = "name"
) -> tuple[Any, list[str]]:
    """The operator on tensors, weight and bias constants or inputs; the result and the names of the steps."""
    graph = _engine.Graph()
    ids, inputs = [], []
    for i, tensor in enumerate(operands):
        if tensor is None:
            ids.append(None)
        elif constant and i in (1, 2):
            ids.append(graph.constant(f"c{i}", tensor.contiguous(), True))
        else:
            # An input is row-major; other layouts are permutes of one, as importers make them.
            order = sorted(range(tensor.dim()), key=lambda d: -tensor.stride(d))
            stored = tensor.permute(order).contiguous()
            port = graph.input(f"x{i}", "f32", list(stored.shape))
            ids.append(graph.add("permute", [port], {"dims": [order.index(d) for d in range(tensor.dim())]}, "", "")[0])
            inputs.append(stored.numpy())
    (out,) = graph.add(op, ids, attrs, "", "")
    graph.set_outputs([out])
    plan = _engine.Plan.build(graph, _engine.WeightStore(), num_threads=num_threads)
    results = [np.full(shape, np.nan, np.float32) for _, shape in plan.outputs]
    plan.run(inputs, results)
    return torch.from_numpy(results[0]), [str(step[of_steps]) for step in plan.steps()]


def agree(got: Any, want: Any, terms: int) -> None:
    """Within what float32 may lose in sums of so many terms."""
    assert got.shape == want.shape
    assert (got.double() - want).abs().max() <= 2e-7 * (terms**0.5 + 4) * want.abs().max().clamp(min=1.0)


@st.composite
def geometries(draw: Any) -> dict[str, Any]:
    rank = draw(st.integers(1, 3))
    sizes = {1: 24, 2: 12, 3: 6}[rank]

    def each(low: int, high: int) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=rank, max_size=rank))

    kernel, dilation, stride, padding = each(1, 4), each(1, 3), each(1, 3), each(0, 3)
    transposed = draw(st.booleans())
    spatial = []
    for k, d, p in zip(kernel, dilation, padding, strict=True):
        reach = d * (k - 1) + 1
        least = max(1, reach - 2 * p) if not transposed else max(1, 2 * p + 2 - reach)
        spatial.append(draw(st.integers(least, max(least, sizes))))
    groups = draw(st.sampled_from([1, 1, 2, 3, 16, 33]))
    wide = st.integers(1, 3 if groups > 3 else 20)
    depthwise = groups > 1 and draw(st.booleans())
    output_padding = [draw(st.integers(0, max(s, d) - 1)) for s, d in zip(stride, dilation, strict=True)]
    return {
        "x": (draw(st.integers(1, 3)), groups * (1 if depthwise else draw(wide)), *spatial),
        "k": groups * (1 if depthwise else draw(wide)),
        "kernel": kernel,
        "groups": groups,
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "transposed": transposed,
        "output_padding": output_padding if transposed else [0] * rank,
        "bias": draw(st.booleans()),
        "residual": draw(st.booleans()),
        "relu": draw(st.booleans()),
        "channels_last": draw(st.booleans()),
        "constant": draw(st.booleans()),
        "seed": draw(st.integers(0, 1 << 20)),
    }


@settings(max_examples=150, deadline=None)
@given(geometries())
def test_every_geometry(g: dict[str, Any]) -> None:
    torch.manual_seed(g["seed"])
    rank, groups = len(g["kernel"]), g["groups"]
    x = torch.randn(g["x"])
    shape = (x.shape[1], g["k"] // groups) if g["transposed"] else (g["k"], x.shape[1] // groups)
    weight = torch.randn(*shape, *g["kernel"])
    bias = torch.randn(g["k"]) if g["bias"] else None
    options = {name: g[name] for name in ("stride", "padding", "dilation", "groups")}
    if g["transposed"]:
        options["output_padding"] = g["output_padding"]
    function = (TRANSPOSED if g["transposed"] else CONVOLUTIONS)[rank - 1]
    want = last(function(x.double(), weight.double(), None if bias is None else bias.double(), **options))
    residual = torch.randn(want.shape) if g["residual"] else None
    attrs = {**options, "transposed": g["transposed"]}
    if g["relu"]:
        attrs |= {"activation": "relu", "residual_first": True}
    if residual is not None:
        want = want + residual
    want = want.relu() if g["relu"] else want
    seen = last(x).contiguous() if g["channels_last"] else last(x)
    got, _ = run("convolution", [seen, weight, bias, residual], attrs, g["constant"])
    agree(got, want, weight[0].numel())


@st.composite
def winograds(draw: Any) -> dict[str, Any]:
    """Of weights of 3 x 3 taps with so many channels that tiles of 2 x 2 or 4 x 4 results are computed."""
    channels, k = draw(st.integers(32, 70)), draw(st.integers(32, 70))
    constant = draw(st.booleans())
    sizes = st.integers(*((5, 23) if constant else (11, 30)))  # weights that are no constants want more tiles
    return {
        "groups": draw(st.sampled_from([1, 1, 1, 2])),
        "x": (draw(st.integers(1, 3)), channels, draw(sizes), draw(sizes)),
        "k": k,
        "padding": [draw(st.integers(1, 3)), draw(st.integers(1, 3))],
        "transposed": draw(st.booleans()),
        "bias": draw(st.booleans()),
        "residual": draw(st.booleans()),
        "activation": draw(st.sampled_from(["none", "relu", "silu"])),
        "residual_first": draw(st.booleans()),
        "channels_last": draw(st.booleans()),
        "threads": draw(st.integers(1, 3)),
        "constant": constant,
        "odd": draw(st.sampled_from([None, None, float("nan"), float("inf")])),
        "odd_weight": draw(st.booleans()),
        "seed": draw(st.integers(0, 1 << 20)),
    }


@settings(max_examples=100, deadline=None)
@given(winograds())
def test_three_by_three_taps_of_many_channels(g: dict[str, Any]) -> None:
    torch.manual_seed(g["seed"])
    groups, (batch, channels, *spatial) = g["groups"], g["x"]
    x = torch.randn(batch, groups * channels, *spatial)
    shape = (groups * channels, g["k"]) if g["transposed"] else (groups * g["k"], channels)
    # A transposed convolution takes away what another one adds.
    padding = [p % 2 for p in g["padding"]] if g["transposed"] else g["padding"]
    weight = torch.randn(*shape, 3, 3)
    if g["odd"] is not None:
        # Zeros around x are multiplied like its numbers; PyTorch's transposed convolutions leave them out.
        changed = weight if g["odd_weight"] and not g["transposed"] else x
        changed.view(-1)[g["seed"] % changed.numel()] = g["odd"]
    bias = torch.randn(groups * g["k"]) if g["bias"] else None
    function = F.conv_transpose2d if g["transposed"] else F.conv2d
    wide = None if bias is None else bias.double()
    want = last(function(x.double(), weight.double(), wide, padding=padding, groups=groups))
    residual = torch.randn(want.shape) if g["residual"] else None
    activate = {"none": lambda y: y, "relu": F.relu, "silu": F.silu}[g["activation"]]
    attrs = {name: g[name] for name in ("activation", "residual_first", "transposed")}
    if residual is None:
        want = activate(want)
    else:
        want = activate(want + residual) if g["residual_first"] else activate(want) + residual
    seen = last(x).contiguous() if g["channels_last"] else last(x)
    operands = [seen, weight, bias, residual]
    attrs |= {"padding": padding, "groups": groups}
    got, kernels = run("convolution", operands, attrs, g["constant"], g["threads"], "kernel")
    assert kernels[-1] == "winograd"
    finite = want.isfinite()
    assert torch.equal(got.isfinite(), finite)
    assert torch.equal(got.isnan(), want.isnan())
    agree(got.where(finite, 0), want.where(finite, 0), 9 * channels)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 3, 1), (2, 3, 1, 0), (3, 0, 2, 1)])
def test_weights_come_in_any_layout(order: tuple[int, ...], transposed: bool) -> None:
    """As an input of the call, whose strides the packing follows."""
    x, dense = torch.randn(2, 6, 5, 7), torch.randn(6, 6, 3, 2)
    weight = dense.permute(order).contiguous().permute([order.index(d) for d in range(4)])
    function = F.conv_transpose2d if transposed else F.conv2d
    got, _ = run("convolution", [last(x), weight, None, None], {"transposed": transposed}, False)
    agree(got, last(function(x.double(), dense.double())), 36)


def test_padding_before_and_after() -> None:
    x, weight = torch.randn(2, 3, 6, 7), torch.randn(4, 3, 3, 2)
    want = F.conv2d(F.pad(x.double(), (2, 4, 1, 3)), weight.double())
    got, _ = run("convolution", [last(x), weight, None, None], {"padding": [1, 2, 3, 4]}, True)
    agree(got, last(want), 18)


@pytest.mark.parametrize("groups", [1, 2, 12])
@pytest.mark.parametrize("stride, dilation", [(1, 1), (2, 1), (1, 2), (3, 2)])
def test_gradients_are_convolutions(groups: int, stride: int, dilation: int) -> None:
    """That of x is a transposed convolution; that of the weight an operator of its own."""
    x = torch.randn(3, 12, 11, 9, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(24, 12 // groups, 3, 3, dtype=torch.float64, requires_grad=True)
    y = F.conv2d(x, weight, None, stride, 1, dilation, groups)
    dy = torch.randn_like(y)
    dx, dw = torch.autograd.grad(y, (x, weight), dy)

    extra = [(x.shape[2 + d] + 2 - 2 * dilation - 1) % stride for d in range(2)]
    attrs = {"stride": [stride] * 2, "padding": [1, 1], "dilation": [dilation] * 2, "groups": groups}
    got, _ = run(
        "convolution",
        [last(dy.float()), weight.detach().float(), None, None],
        {**attrs, "transposed": True, "output_padding": extra},
        False,
    )
    agree(got, last(dx), 24 * 9)

    attrs["kernel"] = [3, 3]
    got, _ = run("convolution_weight_gradient", [last(dy.float()), last(x.detach().float())], attrs, False)
    agree(got, last(dw), y.shape[0] * y.shape[2] * y.shape[3])


@settings(max_examples=100, deadline=None)
@given(geometries())
def test_gradients_of_weights(g: dict[str, Any]) -> None:
    """Of whatever shape, layout and number of threads."""
    torch.manual_seed(g["seed"])
    rank, groups = len(g["kernel"]), g["groups"]
    assume(not g["transposed"])
    x = torch.randn(g["x"], dtype=torch.float64)
    weight = torch.zeros(g["k"], x.shape[1] // groups, *g["kernel"], dtype=torch.float64, requires_grad=True)
    options = {name: g[name] for name in ("stride", "padding", "dilation", "groups")}
    y = CONVOLUTIONS[rank - 1](x, weight, None, **options)
    dy = torch.randn_like(y)
    (want,) = torch.autograd.grad(y, weight, dy)
    operands = [last(dy.float()), last(x.float())]
    if g["channels_last"]:
        operands = [operand.contiguous() for operand in operands]
    attrs = {**options, "kernel": g["kernel"]}
    threads = 4 if g["relu"] else 1
    got, _ = run("convolution_weight_gradient", operands, attrs, False, num_threads=threads)
    agree(got, last(want), dy.numel() // g["k"])


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize(("channels", "outputs", "stride"), [(1, 1, 1), (1, 1, 2), (1, 2, 1), (4, 4, 1), (8, 8, 2)])
def test_planes_are_read_and_written_as_they_lie(channels: int, outputs: int, stride: int, constant: bool) -> None:
    torch.manual_seed(0)
    groups = 12
    x = torch.randn(3, groups * channels, 19, 45)
    weight, bias = torch.randn(groups * outputs, channels, 3, 3), torch.randn(groups * outputs)
    graph = _engine.Graph()
    port = graph.input("x", "f32", list(x.shape))
    (rows,) = graph.add("permute", [port], {"dims": [0, 2, 3, 1]}, "", "")
    if constant:
        operands = [graph.constant("w", weight, True), graph.constant("b", bias, True)]
    else:
        operands = [graph.input("w", "f32", list(weight.shape)), graph.input("b", "f32", list(bias.shape))]
    attrs = {"stride": [stride] * 2, "padding": [1, 1], "groups": groups, "activation": "relu6"}
    (out,) = graph.add("convolution", [rows, *operands], attrs, "", "")
    graph.set_outputs([graph.add("permute", [out], {"dims": [0, 3, 1, 2]}, "", "")[0]])
    want = F.relu6(F.conv2d(x.double(), weight.double(), bias.double(), stride, 1, 1, groups))
    inputs = [x.numpy()] if constant else [x.numpy(), weight.numpy(), bias.numpy()]
    found = []
    for num_threads in (1, 2, 3):
        plan = _engine.Plan.build(graph, _engine.WeightStore(), num_threads=num_threads)
        result = np.full(tuple(want.shape), np.nan, np.float32)
        plan.run(inputs, [result])
        found.append(torch.from_numpy(result))
        steps = [str(step["name"]) for step in plan.steps()]
        assert steps == ["convolution"] if constant else steps == ["copy", "convolution"]  # the copy is the weight's
    agree(found[0], want, 9 * channels)
    assert all(torch.equal(found[0], other) for other in found[1:])


# Someone who wants channels last behind it gets them.
def test_planes_meet_channels_last_behind_them() -> None:
    torch.manual_seed(0)
    x, residual = torch.randn(2, 32, 18, 20), torch.randn(2, 32, 18, 20)
    weight = torch.randn(32, 1, 3, 3)
    attrs = {"padding": [1, 1], "groups": 32}
    want = last(F.conv2d(x.double(), weight.double(), None, 1, 1, 1, 32))
    got, steps = run("convolution", [last(x), weight], attrs, True)
    assert steps == ["convolution", "copy"]
    agree(got, want, 9)
    got, steps = run("convolution", [last(x), weight, None, last(residual)], attrs, True)
    assert "convolution" in steps
    agree(got, want + last(residual).double(), 9)


def test_gradients_of_weights_read_planes_as_they_lie() -> None:
    torch.manual_seed(0)
    x, gradient = torch.randn(3, 32, 17, 28), torch.randn(3, 32, 17, 28)
    want = torch.nn.grad.conv2d_weight(x.double(), [32, 4, 3, 3], gradient.double(), padding=1, groups=8)
    attrs = {"kernel": [3, 3], "padding": [1, 1], "groups": 8}
    found = []
    for num_threads in (1, 2, 5):
        got, steps = run("convolution_weight_gradient", [last(gradient), last(x)], attrs, False, num_threads)
        assert steps == ["convolution_weight_gradient"]
        agree(got, last(want), 3 * 17 * 28)
        found.append(got)
    assert all(torch.equal(found[0], other) for other in found[1:])


def test_sums_of_long_gradients_are_shared_by_positions() -> None:
    """Few channels at many positions: each thread sums some, and their sums are summed."""
    dy, x = torch.randn(2, 40, 40, 16), torch.randn(2, 40, 40, 5)
    got, steps = run("convolution_weight_gradient", [dy, x], {"kernel": [1, 1]}, False, num_threads=4)
    want = torch.einsum("nhwk,nhwc->kc", dy.double(), x.double()).reshape(16, 1, 1, 5)
    agree(got, want, 3200)
    assert steps == ["convolution_weight_gradient", "sum"]


def test_training_runs_in_the_engine() -> None:
    """Forward and backward, strided, depthwise, transposed, with and without bias."""
    layers = [nn.Conv2d(3, 16, 3, 2, 1), nn.Conv2d(16, 16, 3, 1, 1, groups=16, bias=False), nn.Conv2d(16, 24, 1)]
    model = nn.Sequential(*layers, nn.ConvTranspose2d(24, 8, 2, 2), nn.ReLU())
    x = torch.randn(2, 3, 20, 20, requires_grad=True)
    weights = [x, *model.parameters()]
    want = torch.autograd.grad(model(x).square().sum(), weights)
    compiled = torch.compile(model, backend="thresher", options={"fallback": "error"})
    got = torch.autograd.grad(compiled(x).square().sum(), weights)
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4 * float(other.abs().max()))


REFUSED = {
    "rank": (((2, 3, 4), (5, 4, 1, 1)), {}, "of the same rank, got x [2, 3, 4] and weight [5, 4, 1, 1]"),
    "channels": (((2, 3, 3, 4), (5, 3, 1, 1)), {}, "got x [2, 3, 3, 4], weight [5, 3, 1, 1] and groups 1"),
    "groups": (((2, 3, 3, 4), (5, 2, 1, 1)), {"groups": 2}, "with K a multiple of groups"),
    "transposed": (((2, 3, 3, 4), (5, 2, 1, 1)), {"transposed": True}, "weight [C, K / groups, kernel...]"),
    "stride": (((2, 3, 3, 4), (5, 4, 1, 1)), {"stride": [1, 0]}, "expected stride from 1 to 1048576, got [1, 0]"),
    "numbers": (
        ((2, 3, 3, 4), (5, 4, 1, 1)),
        {"dilation": [1]},
        "expected dilation with 2 numbers, one for each spatial",
    ),
    "kernel": (((2, 3, 3, 4), (5, 4, 4, 1)), {}, "expected a kernel that fits into the padded x"),
    "output": (((2, 3, 3, 4), (4, 4, 2, 2)), {"transposed": True, "output_padding": [1, 0]}, "output_padding below"),
    "int8": (((2, 3, 3, 4), (5, 4, 1, 1)), {"precision": "int8"}, "int8"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_named(case: str) -> None:
    shapes, attrs, message = REFUSED[case]
    graph = _engine.Graph()
    ids = [graph.input(name, "f32", list(shape)) for name, shape in zip("xw", shapes, strict=True)]
    with pytest.raises((ValueError, NotImplementedError), match="convolution") as error:
        graph.add("convolution", [*ids, None, None], attrs, "", "")
    assert message in str(error.value)


REFUSED_GRADIENTS = {
    "batch": (((2, 3, 4), (3, 3, 4)), {"kernel": [1]}, "got gradient [2, 3, 4] and x [3, 3, 4]"),
    "rank": (((2, 3, 4), (2, 3, 3, 4)), {"kernel": [1]}, "expected gradient [N, positions..., K]"),
    "groups": (((2, 3, 4), (2, 3, 3)), {"kernel": [1], "groups": 2}, "multiples of groups, got gradient [2, 3, 4]"),
    "positions": (((2, 4, 4), (2, 5, 4)), {"kernel": [3]}, "than a kernel [3] has in the padded x"),
    "kernel": (((2, 3, 4), (2, 3, 4)), {"kernel": [1, 1]}, "expected kernel with 1 numbers"),
}


@pytest.mark.parametrize("case", REFUSED_GRADIENTS)
def test_gradients_that_do_not_fit_are_named(case: str) -> None:
    shapes, attrs, message = REFUSED_GRADIENTS[case]
    graph = _engine.Graph()
    ids = [graph.input(name, "f32", list(shape)) for name, shape in zip("gx", shapes, strict=True)]
    with pytest.raises(ValueError, match="convolution_weight_gradient") as error:
        graph.add("convolution_weight_gradient", ids, attrs, "", "")
    assert message in str(error.value)


# ---- models ----


class Bottleneck(nn.Module):
    """A residual block as in ResNet."""

    def __init__(self, width: int, groups: int = 1) -> None:
        super().__init__()
        inner = width // 2
        self.body = nn.Sequential(
            nn.Conv2d(width, inner, 1, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU(),
            nn.Conv2d(inner, inner, 3, padding=1, groups=groups),
            nn.BatchNorm2d(inner),
            nn.Hardswish(),
            nn.Conv2d(inner, width, 1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x: Any) -> Any:
        return torch.relu(x + self.body(x))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 32, 5, 2, 2), nn.BatchNorm2d(32), nn.ReLU6(), nn.MaxPool2d(3, 2, 1))
        self.blocks = nn.Sequential(Bottleneck(32), Bottleneck(32, 16))
        self.up = nn.ConvTranspose2d(32, 16, 2, 2)
        self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(16, 16, 1), nn.Hardsigmoid())
        self.head = nn.Linear(48, 10)

    def forward(self, x: Any) -> Any:
        deep = self.blocks(self.stem(x))
        wide = self.up(deep)
        wide = wide * self.gate(wide)
        joined = torch.cat([wide, F.interpolate(deep, scale_factor=2.0, mode="bilinear")], 1)
        return self.head(joined.mean((2, 3))), joined


def with_statistics(model: nn.Module) -> Any:
    """The model with norms that have seen something."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias)
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
    return model.eval()


def close(got: Any, want: Any, bound: float = 3e-6) -> None:
    for g, w in zip(got, want, strict=True):
        assert g.shape == w.shape
        assert (g.double() - w).abs().max() <= bound * w.abs().max()


def steps() -> list[str]:
    """The names of the steps of all plans there are."""
    return [str(step["name"]) for graph in RECORDER.alive() for plan in graph.plans() for step in plan.steps()]


@pytest.mark.parametrize("channels_last", [False, True])
def test_a_network_is_one_part(compiler: Any, channels_last: bool) -> None:
    torch.manual_seed(0)
    model = with_statistics(Net())
    exact = copy.deepcopy(model).double()
    x = torch.randn(2, 3, 48, 40)
    if channels_last:
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    with torch.no_grad():
        compiled = compiler.compile(model, config=compiler.CompilerConfig(fallback="error"))
        got, want = compiled(x), exact(x.double())
        close(got, want)
        assert got[1].stride() == model(x)[1].stride()
        for batch in (1, 3, 5):
            other = torch.randn(batch, 3, 48, 40)
            close(compiled(other), exact(other.double()))


def test_a_changed_weight_is_seen(compiler: Any) -> None:
    """Weights that a norm has scaled are those of the caller all the same."""
    torch.manual_seed(0)
    model = with_statistics(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 1)))
    x = torch.randn(2, 3, 9, 9)
    compiled = compiler.compile(model, config=compiler.CompilerConfig(fallback="error"))
    with torch.no_grad():
        for change in (lambda: None, model[0].weight.mul_, model[1].running_mean.add_, model[1].weight.mul_):
            if change.__name__ != "<lambda>":
                change(1.5)
            for _ in range(3):
                close([compiled(x)], [copy.deepcopy(model).double()(x.double())])


def test_nothing_stands_between_convolutions(compiler: Any) -> None:
    """Norms, activations and residuals are in the products, and layouts change at the ends alone."""
    torch.manual_seed(0)
    model = with_statistics(Net())
    x = torch.randn(1, 3, 48, 40).to(memory_format=torch.channels_last)
    with torch.no_grad():
        part = nn.Sequential(model.stem, model.blocks)
        compiled = compiler.compile(part, config=compiler.CompilerConfig(fallback="error"))
        close([compiled(x)], [copy.deepcopy(part).double()(x.double())])
    # The image is read as it lies.
    assert steps() == ["convolution", "max_pool", *["linear", "convolution", "linear"] * 2]


def test_a_row_of_layers_of_half_precision(compiler: Any) -> None:
    torch.manual_seed(0)
    for dtype, bound in ((torch.bfloat16, 0.03), (torch.float16, 0.004)):
        model = with_statistics(
            nn.Sequential(nn.Conv2d(3, 24, 3), nn.BatchNorm2d(24), nn.SiLU(), nn.Conv2d(24, 24, 3, groups=24))
        )
        model, x = model.to(dtype), torch.randn(2, 3, 12, 12, dtype=dtype)
        with torch.no_grad():
            got = compiler.compile(model, config=compiler.CompilerConfig(fallback="error"))(x)
            close([got], [copy.deepcopy(model).double()(x.double())], bound)
            assert got.dtype == dtype


def test_small_groups_run_in_the_engine(compiler: Any) -> None:
    for width, groups in ((32, 4), (64, 4), (48, 24)):
        model, x = with_statistics(Bottleneck(width, groups)), torch.randn(2, width, 9, 9)
        with torch.no_grad():
            want = copy.deepcopy(model).double()(x.double())
            close([compiler.compile(model)(x)], [want])
        assert not compiler.compilation_stats().unsupported
        compiler.clear_cache()


@pytest.mark.parametrize("transposed", [False, True])
def test_groups_of_few_outputs_are_left_to_pytorch_which_runs_them_sooner(compiler: Any, transposed: bool) -> None:
    layer = (nn.ConvTranspose2d if transposed else nn.Conv2d)(48, 24, 3, groups=6)
    model, x = nn.Sequential(nn.Conv2d(32, 48, 1), layer, nn.Conv2d(24, 32, 1)), torch.randn(1, 32, 9, 9)
    with torch.no_grad():
        want = copy.deepcopy(model).double()(x.double())
        close([compiler.compile(model)(x)], [want])
        (left,) = compiler.compilation_stats().unsupported
        assert left.op == "aten.convolution.default"
        assert left.reason == "groups of 8 input and 4 output channels, which PyTorch runs sooner"
        compiler.clear_cache()
        whole = compiler.compile(model, config=compiler.CompilerConfig(fallback="error"))
        close([whole(x)], [want])
        assert not compiler.compilation_stats().unsupported


@pytest.mark.parametrize("pads", [(0, 1, 0, 1), (2, 1, 0, 3), (1, 1, 1, 1)])
@pytest.mark.parametrize("stride", [1, 2])
def test_zeros_around_an_image_are_the_convolutions_own(compiler: Any, pads: tuple[int, ...], stride: int) -> None:
    conv = nn.Conv2d(6, 12, 3, stride, padding=(0, 1), groups=3).eval()
    x = torch.randn(2, 6, 9, 12).to(memory_format=torch.channels_last)
    with torch.no_grad():
        got = compiler.compile(lambda x: conv(F.pad(x, pads)), config=compiler.CompilerConfig(fallback="error"))(x)
        close([got], [copy.deepcopy(conv).double()(F.pad(x.double(), pads))])
    assert steps() == ["convolution"]


@pytest.mark.parametrize(
    "padded",
    [
        lambda x: F.pad(x, (1, 1, 1, 1), value=0.5),
        lambda x: F.pad(x, (-1, 2, 0, 1)),
        lambda x: F.pad(x, (1, 0, 0, 1, 0, 1))[:, :6],
        lambda x: F.pad(x, (1, 0, 0, 1, 0, 0, 0, 1)),
    ],
)
def test_what_else_is_around_an_image_stays(compiler: Any, padded: Any) -> None:
    conv = nn.Conv2d(6, 12, 3).eval()
    x = torch.randn(2, 6, 9, 12)
    with torch.no_grad():
        got = compiler.compile(lambda x: conv(padded(x)), config=compiler.CompilerConfig(fallback="error"))(x)
        close([got], [copy.deepcopy(conv).double()(padded(x.double()))])


@pytest.mark.parametrize(
    "named",
    [
        {"scale_factor": 2.0, "mode": "bilinear"},
        {"size": (20, 7), "mode": "bilinear", "align_corners": True},
        {"scale_factor": 3.0},
        {"size": (5, 24)},
        {"size": (5, 24), "mode": "nearest-exact"},
        {"scale_factor": 2.0, "mode": "bicubic"},
    ],
)
def test_resizing_is_one_step(compiler: Any, named: dict[str, Any]) -> None:
    x = torch.randn(2, 6, 9, 12).to(memory_format=torch.channels_last)
    with torch.no_grad():
        got = compiler.compile(lambda x: F.interpolate(x, **named), config=compiler.CompilerConfig(fallback="error"))(x)
        close([got], [F.interpolate(x.double(), **named)])
    assert steps() == ["resize"]


def test_resizing_by_a_factor_that_is_no_ratio_of_sizes(compiler: Any) -> None:
    x = torch.randn(2, 6, 9, 13)
    with torch.no_grad():
        compiled = compiler.compile(
            lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear"),
            config=compiler.CompilerConfig(fallback="error"),
        )
        close([compiled(x)], [F.interpolate(x.double(), scale_factor=1.7, mode="bilinear")], 1e-5)


def test_tracing_elsewhere_is_as_it_was() -> None:
    from thresher.compiler.resizing import kept_whole

    vec = torch.ops.aten.upsample_bilinear2d.vec
    before = dict(vec.py_kernels), dict(torch.ops.aten.upsample_bilinear2d.default.py_kernels)
    with pytest.raises(KeyError), kept_whole(), kept_whole():
        assert dict(vec.py_kernels) != before[0]
        raise KeyError
    assert (dict(vec.py_kernels), dict(torch.ops.aten.upsample_bilinear2d.default.py_kernels)) == before

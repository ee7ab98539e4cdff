"""The short way from TorchDynamo to the engine, and the graphs that must not take it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402


@pytest.fixture
def taken(compiler: Any, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Which of the graphs compiled so far took the short way."""
    from thresher.compiler import backend

    ways: list[bool] = []
    capture = backend.capture_inference

    def watched(*args: Any) -> Any:
        captured = capture(*args)
        ways.append(captured is not None)
        return captured

    monkeypatch.setattr(backend, "capture_inference", watched)
    return ways


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 6)).eval()


def test_inference_takes_it(compiler: Any, taken: list[bool]) -> None:
    net = model()
    compiled = compiler.compile(net)
    x = torch.randn(3, 6)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), net(x))
        assert compiler.compilation_stats().weight_bytes > 0  # parameters were known as such
        net[0].weight.mul_(2.0)
        torch.testing.assert_close(compiled(x), net(x))
    assert taken == [True]


def test_sizes_become_symbols(compiler: Any, taken: list[bool]) -> None:
    net = model()
    compiled = compiler.compile(net)
    with torch.no_grad():
        for rows in (3, 5, 7, 11):
            x = torch.randn(rows, 6)
            torch.testing.assert_close(compiled(x), net(x))
    assert taken == [True, True]


def test_an_integer_becomes_a_symbol(compiler: Any) -> None:
    def scale(x: Any, times: int) -> Any:
        return x.reshape(-1, times) * times + x.shape[0]

    compiled = torch.compile(scale, backend="thresher")
    x = torch.randn(24)
    with torch.no_grad():
        for times in (2, 3, 4, 6):
            torch.testing.assert_close(compiled(x, times), scale(x, times))


@pytest.mark.filterwarnings("ignore:thresher")
def test_gradients_do_not(compiler: Any, taken: list[bool]) -> None:
    net = model()
    compiled = compiler.compile(net)
    x = torch.randn(3, 6)
    compiled(x).sum().backward()
    got = net[0].weight.grad.clone()
    net.zero_grad()
    net(x).sum().backward()
    torch.testing.assert_close(got, net[0].weight.grad)
    assert taken == [False]


@pytest.mark.filterwarnings("ignore:thresher")
def test_both_ways_in_one_process(compiler: Any, taken: list[bool]) -> None:
    net = model()
    compiled = compiler.compile(net)
    x = torch.randn(3, 6)
    with torch.no_grad():
        first = compiled(x)
    assert not first.requires_grad
    second = compiled(x)
    assert second.requires_grad
    torch.testing.assert_close(first, second.detach())
    assert taken == [True, False]


def add_in_place(x: Any) -> Any:
    y = x * 2.0
    y += x
    return y


def change_the_input(x: Any) -> Any:
    x.add_(1.0)
    return x * 2.0


def view_of_the_input(x: Any) -> Any:
    return x.view(-1), x + 1.0


def the_input_itself(x: Any) -> Any:
    return x, x + 1.0


def shared_memory(x: Any) -> Any:
    y = x + 1.0
    return y, y[0]


def twice_the_same(x: Any) -> Any:
    y = x + 1.0
    return y, y


def a_view_sees_the_change(x: Any) -> Any:
    y = x * 2.0
    v = y.view(-1)
    y.add_(1.0)
    return v * 3.0


def changed_and_shared(x: Any) -> Any:
    y = x * 2.0
    v = y[1:]
    v.mul_(3.0)
    y.relu_()
    return y, v


def change_a_view_of_the_input(x: Any) -> Any:
    v = x.view(-1)
    v.add_(1.0)
    return v * 3.0


def pooled_with_channels_last(x: Any) -> Any:
    y = (x * 2.0).view(1, 2, 2, 3).permute(0, 3, 1, 2)
    return torch.nn.functional.adaptive_avg_pool2d(y, 1).flatten(1)


def strides_that_matter(x: Any) -> Any:
    y = x * 2.0
    y.as_strided_((4, 3), (1, 4))
    return y + 1.0


def a_constant(x: Any) -> Any:
    return x * torch.tensor([1.0, 2.0, 3.0, 4.0])


def a_constant_is_changed(x: Any) -> Any:
    c = torch.tensor([1.0, 2.0, 3.0, 4.0])
    c.add_(x[0])
    c[1] = 7.0
    return c * x, c


def constants_come_out(x: Any) -> Any:
    c = torch.tensor([1.0, 2.0])
    return x + 1.0, c, torch.tensor([]), torch.tensor(3)


def gradients_inside(x: Any) -> Any:
    with torch.enable_grad():
        return x * 2.0


def autocast_inside(x: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return x @ x.t()


def inference_mode_inside(x: Any) -> Any:
    with torch.inference_mode():
        y = x * 2.0
    return y + 1.0


def hooks_inside(x: Any) -> Any:
    with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
        return x * 2.0


@pytest.mark.parametrize(
    ("function", "short"),
    [
        (change_the_input, False),
        (change_a_view_of_the_input, False),
        (a_constant, True),
        (a_constant_is_changed, True),
        (constants_come_out, True),
        (strides_that_matter, True),
        (gradients_inside, False),
        (autocast_inside, False),
        (inference_mode_inside, False),
        (hooks_inside, False),
        (view_of_the_input, True),
        (the_input_itself, True),
        (shared_memory, True),
        (add_in_place, True),
        (a_view_sees_the_change, True),
        (changed_and_shared, True),
        (twice_the_same, True),
        (pooled_with_channels_last, True),
    ],
)
@pytest.mark.filterwarnings("ignore:thresher")
def test_graphs_that_are_not_plain(
    compiler: Any, taken: list[bool], function: Callable[[Any], Any], short: bool
) -> None:
    compiled = torch.compile(function, backend="thresher")
    with torch.no_grad():
        x = torch.randn(3, 4)
        ours, theirs = x.clone(), x.clone()
        got, want = compiled(ours), function(theirs)
    assert all(way is short for way in taken)
    assert torch.equal(ours, theirs)
    many = isinstance(want, tuple)
    for mine, reference in zip(got if many else [got], want if many else [want], strict=True):
        torch.testing.assert_close(mine, reference)
        assert mine.requires_grad == reference.requires_grad
    if many:  # what shares memory in PyTorch shares it here
        for i, j in ((0, 1), (1, 0)):
            assert shares(got[i], got[j]) == shares(want[i], want[j])
            assert shares(got[i], ours) == shares(want[i], theirs)


def shares(a: Any, b: Any) -> bool:
    return bool(a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr())


@pytest.mark.filterwarnings("ignore:thresher")
def test_sizes_that_depend_on_data(compiler: Any, taken: list[bool]) -> None:
    def positive(x: Any) -> Any:
        return x[x > 0.0] * 2.0

    x = torch.randn(3, 4)
    with torch.no_grad(), torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        torch.testing.assert_close(torch.compile(positive, backend="thresher")(x), positive(x))
    assert taken == [False]


def test_inference_mode(compiler: Any, taken: list[bool]) -> None:
    net = model()
    compiled = compiler.compile(net)
    x = torch.randn(3, 6)
    with torch.inference_mode():
        got = compiled(x)
        torch.testing.assert_close(got, net(x))
    assert got.is_inference()
    assert taken == [True]


@pytest.mark.filterwarnings("ignore:thresher")
def test_autocast_around(compiler: Any, taken: list[bool]) -> None:
    net = model()
    compiled = compiler.compile(net)
    x = torch.randn(3, 6)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        got, want = compiled(x), net(x)
    assert got.dtype == want.dtype
    torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
    assert taken == [False]


def test_unsupported_operators_are_named_with_their_line(compiler: Any, taken: list[bool]) -> None:
    def spectrum(x: Any) -> Any:
        return torch.fft.rfft(x * 2.0).abs() + 1.0

    compiled = torch.compile(spectrum, backend="thresher")
    x = torch.randn(3, 8)
    with torch.no_grad(), pytest.warns(UserWarning, match="test_capture.py"):
        torch.testing.assert_close(compiled(x), spectrum(x))
    assert taken == [True]


@pytest.mark.parametrize("no_grad", [True, False], ids=["one trace", "AOTAutograd"])
def test_nodes_know_their_module(compiler: Any, taken: list[bool], no_grad: bool) -> None:
    from thresher.compiler import runtime

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.ModuleList([nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4)) for _ in range(2)])
            self.heads = nn.ModuleDict({"a b": nn.Linear(4, 3)})

        def forward(self, x: Any) -> Any:
            for layer in self.layer:
                x = layer(x) + x
            return self.heads["a b"](x)

    net = Block().eval()
    compiled = compiler.compile(net)
    with torch.set_grad_enabled(not no_grad):
        compiled(torch.randn(2, 4))
    assert taken == [no_grad]
    plans = [plan for graph in runtime.RECORDER.alive() for plan in graph.plans()]
    linears = [step["module"] for plan in plans for step in plan.steps() if step["name"] == "linear"]
    assert linears == [name for name, module in net.named_modules() if isinstance(module, nn.Linear)]


def test_module_names_are_plain_paths() -> None:
    from thresher.compiler.origin import module_path

    paths = {
        "L['self']": "",
        "L['self'].encoder.layer.0": "encoder.layer.0",
        'G["model"].blocks[1].mlp': "blocks.1.mlp",
        "getattr(getattr(L['self'].layer, '0').attention, 'self').query": "layer.0.attention.self.query",
        "L['self']._modules['layer']._modules['0'].fc": "layer.0.fc",
        "L['self'].heads['a b']": "heads.a b",
        "layer.0.fc@1": "layer.0.fc",
    }
    assert {path: module_path(path) for path in paths} == paths


def test_results_are_no_constants_of_the_graph(compiler: Any) -> None:
    compiled = torch.compile(constants_come_out, backend="thresher")
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(2, 2)
            got, want = compiled(x), constants_come_out(x)
            for mine, reference in zip(got, want, strict=True):
                assert torch.equal(mine, reference)
                mine.fill_(9)  # the caller's own


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.logsumexp(1),
        lambda x: torch.logaddexp(x, x.flip(1)),
        lambda x: nn.functional.threshold(x, 0.1, 0.5),
        lambda x: torch.logit(x.sigmoid(), 1e-6),
        lambda x: torch.xlogy(x.abs(), x.abs() + 1),
        lambda x: torch.sinc(x) + torch.frac(x) + torch.deg2rad(x) + torch.rad2deg(x),
        lambda x: torch.diag_embed(x),
        lambda x: x + torch.linspace(-1, 1, 4),
        lambda x: nn.functional.affine_grid(x[:2, :3].reshape(1, 2, 3), (1, 1, 5, 4), align_corners=False),
        lambda x: nn.functional.mse_loss(x, x * 2) + nn.functional.smooth_l1_loss(x, x * 3),
        lambda x: nn.functional.binary_cross_entropy_with_logits(x, x.sigmoid()),
        lambda x: nn.functional.cross_entropy(x, x.argmax(1)),
    ],
)
@pytest.mark.filterwarnings("ignore:thresher")
def test_what_pytorch_writes_out_for_inference(
    compiler: Any, taken: list[bool], function: Callable[[Any], Any]
) -> None:
    compiled = torch.compile(function, backend="thresher", options={"fallback": "error"})
    x = torch.randn(3, 4)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), function(x), rtol=1e-5, atol=1e-5)
    assert taken == [True]
    y = x.clone().requires_grad_()  # with gradients PyTorch's own kernels stay
    z = x.clone().requires_grad_()
    torch.compile(function, backend="thresher")(y).sum().backward()
    function(z).sum().backward()
    torch.testing.assert_close(y.grad, z.grad, rtol=1e-4, atol=1e-5)

"""What the engine lacks is listed, all of it, and runs in PyTorch."""

from __future__ import annotations

import logging
import operator
import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402


class Mixed(nn.Module):
    """Supported parts around three operators that are not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: Any) -> Any:
        hidden = torch.cumprod(self.first(x).relu(), dim=1)
        spectrum = torch.fft.rfft(hidden).abs().sum(-1, keepdim=True)
        return self.second(hidden).sigmoid(), torch.special.erfinv(torch.tanh(spectrum) * 0.5), spectrum * 2


def run(compiler: Any, model: Any, *args: Any, **options: Any) -> Any:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        return torch.compile(model, backend=compiler.thresher_backend, options=options)(*args)


def check(got: Any, want: Any) -> None:
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-5, atol=1e-5)


def test_all_unsupported_operators_are_listed(compiler: Any, caplog: pytest.LogCaptureFixture) -> None:
    model, x = Mixed().eval(), torch.randn(3, 8)
    compiled = torch.compile(model, backend=compiler.thresher_backend)
    with (
        torch.no_grad(),
        caplog.at_level(logging.INFO, "thresher.compiler"),
        pytest.warns(UserWarning, match="run in PyTorch") as caught,
    ):
        check(compiled(x), model(x))
    listed = {entry.op: entry for entry in compiler.compilation_stats().unsupported}
    assert {"aten.cumprod.default", "aten._fft_r2c.default", "aten.erfinv.default"} <= set(listed)
    entry = listed["aten.cumprod.default"]
    assert entry.inputs[0].endswith("float32[3, 16]") and entry.outputs == ("float32[3, 16]",)
    assert "test_partition.py" in entry.source and "forward" in entry.source
    ours = [str(w.message) for w in caught if "run in PyTorch" in str(w.message)]
    assert len(ours) == 1
    messages = [r.getMessage() for r in caplog.records if r.name == "thresher.compiler"]
    for op in listed:
        assert op in ours[0] and any(op in message for message in messages)
    stats = compiler.compilation_stats()
    assert stats.partitions == 2 and stats.nodes_supported > 5
    assert stats.nodes_unsupported == sum(entry.count for entry in stats.unsupported)


def test_refusal_lists_everything(compiler: Any) -> None:
    model, x = Mixed().eval(), torch.randn(3, 8)
    compiled = torch.compile(model, backend=compiler.thresher_backend, options={"fallback": "error"})
    for _ in range(2):
        with torch.no_grad(), pytest.raises(compiler.UnsupportedOperatorError) as raised:
            compiled(x)
        text = str(raised.value)
        for want in ("aten.cumprod.default", "aten._fft_r2c.default", "aten.erfinv.default", "float32[3, 16]", "split"):
            assert want in text
        assert len(raised.value.operators) >= 3
    stats = compiler.compilation_stats()
    assert stats.plans_built == 0 and stats.partitions == 0


def test_unsupported_dtypes_run_in_pytorch(compiler: Any) -> None:
    def function(x: Any, w: Any) -> Any:
        return (x.double() @ w.double()).float().relu() @ w

    x, w = torch.randn(4, 4), torch.randn(4, 4)
    check([run(compiler, function, x, w)], [function(x, w)])
    reasons = " ".join(entry.reason for entry in compiler.compilation_stats().unsupported)
    assert "float64" in reasons


def test_equal_operators_are_counted(compiler: Any) -> None:
    def function(x: Any) -> Any:
        for _ in range(3):
            x = torch.cumprod(x, 0)
        return x

    x = torch.randn(3, 4)
    check([run(compiler, function, x)], [function(x)])
    stats = compiler.compilation_stats()
    assert stats.nodes_unsupported == 3 and stats.partitions == 0


def test_parts_are_few_and_large(compiler: Any) -> None:
    # Two independent branches around one operator: what does not depend on it joins one part.
    def function(x: Any, w: Any) -> Any:
        a = torch.cumprod((x @ w).tanh(), 0)
        b = (x @ w.t()).relu() @ w
        return (a @ w + b @ w).sigmoid()

    x, w = torch.randn(4, 4), torch.randn(4, 4)
    check([run(compiler, function, x, w)], [function(x, w)])
    assert compiler.compilation_stats().partitions == 2


def test_trivial_parts_stay_in_pytorch(compiler: Any) -> None:
    def function(x: Any) -> Any:
        y = torch.cumprod(x, 0).unsqueeze(0).transpose(0, 1)
        return torch.cumprod(y + 1, 1)

    x = torch.randn(3, 4)
    check([run(compiler, function, x)], [function(x)])
    assert compiler.compilation_stats().partitions == 0


def test_parameters_are_packed_in_every_part(compiler: Any) -> None:
    model, x = Mixed().eval(), torch.randn(3, 8)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        compiled = compiler.compile(model)
        check(compiled(x), model(x))
        assert compiler.compilation_stats().weight_bytes > 0
        model.second.weight.mul_(2)
        check(compiled(x), model(x))


def test_dynamic_sizes_across_parts(compiler: Any) -> None:
    def function(x: Any, w: Any) -> Any:
        y = torch.cumprod(x @ w, 1)
        return (y.reshape(y.shape[0] * 2, -1) @ w[:2]).softmax(-1)

    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        compiled = torch.compile(function, backend=compiler.thresher_backend, dynamic=True)
        for size in (3, 5, 8):
            x, w = torch.randn(size, 4), torch.randn(4, 4)
            check([compiled(x, w)], [function(x, w)])
    assert compiler.compilation_stats().graphs == 1


def test_random_operators_keep_their_order(compiler: Any) -> None:
    """The second could run before the first, which waits for two parts of the engine."""

    def function(x: Any, w: Any) -> Any:
        late = torch.rand_like(torch.cumprod(x @ w, 0).exp() @ w)
        early = torch.rand_like(x)
        return late @ w - early @ w

    x, w = torch.randn(4, 4), torch.randn(4, 4)
    torch.manual_seed(5)
    want = function(x, w)
    compiled = torch.compile(function, backend=compiler.thresher_backend)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled(x, w)
        torch.manual_seed(5)
        check([compiled(x, w)], [want])


def test_every_split_of_a_chain_is_in_order(compiler: Any) -> None:
    """Marks each operator of a chain unsupported in turn; the result must not change."""
    from torch.fx.experimental.proxy_tensor import make_fx

    from thresher.compiler.partition import split

    def function(x: Any, w: Any) -> Any:
        a = (x @ w).relu()
        b = (a * 2 + x).view(2, 8)
        c, d = b.split(4, 1)
        return ((c + d).sum(1), (a.t() @ a).softmax(-1), a.t())

    args = (torch.randn(4, 4), torch.randn(4, 4))
    want = function(*args)
    graph = make_fx(torch.func.functionalize(function), tracing_mode="fake")(*args)
    nodes = [n for n in graph.graph.nodes if n.op == "call_function"]
    for node in nodes:
        failed = {node} | {u for u in node.users if u.target is operator.getitem}
        cut = split(graph, failed)
        cut.outer.graph.lint()
        check(cut.outer(*args), want)
        inside = {m.name for part in cut.parts for m in part.module.graph.nodes if m.op == "call_function"}
        assert not inside & {n.name for n in failed}


@pytest.mark.parametrize(("size", "partitions"), [(4, 0), (512, 1)])
def test_a_part_has_to_pay_for_the_crossing(compiler: Any, size: int, partitions: int) -> None:
    def function(x: Any) -> Any:
        y = torch.cumprod(x, 0)
        return torch.cumprod((y * 2 + 1).tanh() - y, 1)

    x = torch.rand(size, size) / 4
    check([run(compiler, function, x)], [function(x)])
    assert compiler.compilation_stats().partitions == partitions


def test_one_operator_moves_as_much_in_the_engine_as_in_pytorch(compiler: Any) -> None:
    def function(x: Any) -> Any:
        return torch.cumprod(torch.cumprod(x, 0).tanh(), 1)

    x = torch.rand(2048, 2048) / 4
    check([run(compiler, function, x)], [function(x)])
    assert compiler.compilation_stats().partitions == 0


def test_what_no_part_is_worth_is_called_as_it_was_written(compiler: Any) -> None:
    """A small batch norm behind what the engine lacks: it takes nothing, and what changes in place stays so."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm2d(3)

        def forward(self, x: Any) -> Any:
            hidden = self.norm(torch.cumprod(x, 2)).relu()
            hidden += hidden.mean()
            return hidden

    model, x = Block().eval(), torch.randn(2, 3, 8, 8)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = compiler.compile(model)
        for _ in range(3):
            assert torch.equal(compiled(x), model(x))
        model.norm.running_mean.add_(1.0)  # a change of the model is seen
        assert torch.equal(compiled(x), model(x))
    stats = compiler.compilation_stats()
    assert stats.partitions == 0 and stats.plans == 0 and stats.unsupported


def histogram(x: Any) -> Any:
    """Can be imported at the sizes that it was captured with, and not at larger ones."""
    return torch.histc(x.relu() + 1, bins=64, min=0, max=4)


def test_shapes_that_the_engine_refuses_run_in_pytorch_and_are_told_of(
    compiler: Any, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"plan_sizes": "one"}
    compiled = torch.compile(histogram, backend=compiler.thresher_backend, dynamic=True, options=options)
    reason = "a histogram of 20000 elements in 64 bins"
    with torch.no_grad(), caplog.at_level(logging.WARNING, "thresher.compiler"):
        for size in (300, 20_000, 20_000, 400):
            x = torch.randn(size)
            check([compiled(x)], [histogram(x)])
    stats = compiler.compilation_stats()
    assert stats.graphs == stats.partitions == 1 and stats.nodes_unsupported == 0
    (counted,) = stats.eager_shapes
    assert counted.startswith("inputs [20000]: ") and reason in counted
    assert f"runs in PyTorch: {counted}" in stats.summary()
    (told,) = [r.getMessage() for r in caplog.records if r.name == "thresher.compiler"]
    assert "runs in PyTorch at these shapes" in told and reason in told


def test_shapes_that_the_engine_refuses_are_an_error_where_pytorch_is_forbidden(compiler: Any) -> None:
    options = {"plan_sizes": "one", "fallback": "error"}
    compiled = torch.compile(histogram, backend=compiler.thresher_backend, dynamic=True, options=options)
    with torch.no_grad():
        compiled(torch.randn(300))
        with pytest.raises(compiler.UnsupportedOperatorError, match="a histogram of 20000 elements in 64 bins"):
            compiled(torch.randn(20_000))
    assert compiler.compilation_stats().eager_shapes == ()

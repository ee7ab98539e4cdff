"""thresher.ops: operators of torch.library with the engine's kernels; fuse_ops, optimize_layout."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import thresher
from thresher import ops, profiler
from thresher.ops import library
from thresher.profiler.analysis import build_report
from thresher.profiler.trace import read_trace

functional: Any = torch.nn.functional


def t(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64).to(dtype)


BOOLS = torch.tensor([[True, False, True, True, False, True]] * 5)

# What is called, with which arguments, and what PyTorch gives for these.
Case = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], Callable[..., Any]]
CASES: dict[str, Case] = {
    "matmul": (ops.matmul, (t(2, 3, 4), t(4, 5)), {}, torch.matmul),
    "matmul of batches": (ops.matmul, (t(2, 1, 3, 4), t(5, 4, 6)), {}, torch.matmul),
    "matmul, strided": (ops.matmul, (t(4, 3).t(), t(5, 4).t()), {}, torch.matmul),
    "linear": (ops.linear, (t(2, 7, 4), t(3, 4), t(3)), {}, functional.linear),
    "linear of a vector": (ops.linear, (t(4), t(3, 4)), {}, functional.linear),
    "attention": (
        ops.attention,
        (t(2, 4, 5, 8), t(2, 4, 6, 8), t(2, 4, 6, 3)),
        {},
        functional.scaled_dot_product_attention,
    ),
    "attention, causal, shared heads": (
        ops.attention,
        (t(1, 4, 5, 8), t(1, 2, 5, 8), t(1, 2, 5, 3)),
        {"causal": True, "scale": 0.5},
        lambda q, k, v, causal, scale: functional.scaled_dot_product_attention(
            q, k, v, is_causal=causal, scale=scale, enable_gqa=True
        ),
    ),
    "attention, bool mask": (
        ops.attention,
        (t(1, 2, 5, 8), t(1, 2, 6, 8), t(1, 2, 6, 8), BOOLS),
        {},
        functional.scaled_dot_product_attention,
    ),
    "attention, added mask": (
        ops.attention,
        (t(1, 2, 5, 8), t(1, 2, 6, 8), t(1, 2, 6, 8), t(1, 1, 1, 6)),
        {},
        functional.scaled_dot_product_attention,
    ),
    "conv": (
        ops.conv,
        (t(2, 3, 7, 6), t(4, 3, 3, 2), t(4)),
        {"stride": (2, 1), "padding": 1, "dilation": 1},
        functional.conv2d,
    ),
    "conv over one dimension": (ops.conv, (t(2, 4, 9), t(6, 4, 3)), {}, functional.conv1d),
    "layer_norm": (ops.layer_norm, (t(2, 3, 8), (8,), t(8), t(8)), {"eps": 1e-3}, functional.layer_norm),
    "layer_norm over two": (ops.layer_norm, (t(2, 3, 8), (3, 8), t(3, 8)), {}, functional.layer_norm),
    "rms_norm": (ops.rms_norm, (t(2, 3, 8), (8,), t(8)), {"eps": 1e-3}, functional.rms_norm),
    "softmax": (ops.softmax, (t(2, 3, 4),), {"dim": 1}, torch.softmax),
    "gelu": (ops.gelu, (t(5, 4),), {}, functional.gelu),
    "gelu, tanh": (ops.gelu, (t(5, 4),), {"approximate": "tanh"}, functional.gelu),
    "silu": (ops.silu, (t(5, 4),), {}, functional.silu),
    "rotary": (ops.rotary, (t(3, 2, 8), t(3, 4), t(3, 4)), {}, lambda x, c, s: turned(x, c, s, False)),
    "rotary, part of a head": (
        ops.rotary,
        (t(2, 3, 2, 8), t(3, 3), t(3, 3)),
        {"interleaved": True},
        lambda x, c, s, interleaved: turned(x, c, s, interleaved),
    ),
}


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """Rotary positions, pair by pair."""
    out, pairs = x.clone(), cos.shape[1]
    for token, pair in itertools.product(range(cos.shape[0]), range(pairs)):
        i, j = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + pairs)
        c, s = cos[token, pair], sin[token, pair]
        a, b = x[..., token, :, i], x[..., token, :, j]
        out[..., token, :, i] = a * c - b * s
        out[..., token, :, j] = b * c + a * s
    return out


def engine_operators(function: Callable[..., Any], *args: Any, **kwargs: Any) -> dict[str, int]:
    """How often each operator of the engine ran in a call."""
    with profiler.profile(trace=False) as p:
        function(*args, **kwargs)
    return {row.opname: row.count for phase in p.report.phases for s in phase.sections for row in s.rows}


@pytest.mark.parametrize("name", CASES)
def test_an_operator_runs_in_the_engine_and_agrees_with_pytorch(name: str) -> None:
    function, args, kwargs, expected = CASES[name]
    ran = engine_operators(function, *args, **kwargs)
    assert sum(count for op, count in ran.items() if op not in ("reshape", "copy", "expand")) >= 1
    assert "PyTorch operators" not in ran
    torch.testing.assert_close(function(*args, **kwargs), expected(*args, **kwargs), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("name", CASES)
def test_other_floats(name: str, dtype: torch.dtype) -> None:
    function, args, kwargs, expected = CASES[name]
    args = tuple(a.to(dtype) if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args)
    wide = tuple(a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args)
    found = function(*args, **kwargs)
    assert found.dtype == dtype and found.is_contiguous()
    tolerance = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float64: 1e-12}[dtype]
    torch.testing.assert_close(found.double(), expected(*wide, **kwargs), atol=tolerance, rtol=tolerance)


def differentiable(args: tuple[Any, ...], dtype: torch.dtype) -> tuple[Any, ...]:
    return tuple(
        a.detach().to(dtype).requires_grad_() if isinstance(a, torch.Tensor) and a.is_floating_point() else a
        for a in args
    )


@pytest.mark.parametrize("name", CASES)
def test_gradcheck(name: str) -> None:
    function, args, kwargs, _ = CASES[name]
    given = differentiable(args, torch.float64)
    assert torch.autograd.gradcheck(lambda *a: function(*a, **kwargs), given, fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda *a: function(*a, **kwargs), given, fast_mode=True)


@pytest.mark.parametrize("name", CASES)
def test_gradients_in_float32_equal_those_of_pytorch(name: str) -> None:
    function, args, kwargs, expected = CASES[name]
    found = []
    for call in (function, expected):
        given = differentiable(args, torch.float32)
        result = call(*given, **kwargs)
        result.backward(t(*result.shape))
        found.append([a.grad for a in given if isinstance(a, torch.Tensor) and a.requires_grad])
    assert found[0]
    torch.testing.assert_close(found[0], found[1], atol=2e-5, rtol=2e-5)


OPERATORS: dict[str, tuple[Any, ...]] = {
    "matmul": (t(2, 3, 4), t(4, 5)),
    "linear": (t(2, 4), t(3, 4), t(3)),
    "attention": (t(1, 4, 5, 8), t(1, 2, 6, 8), t(1, 2, 6, 3), None, True),
    "conv": (
        *(t(1, 3, 6, 5), t(4, 3, 3, 3), t(4), [1, 1], [1, 1], [1, 1], 1, False, [0, 0]),
        *("NCHW", "NCHW", "NCHW"),
    ),
    "layer_norm": (t(2, 3, 8), [8], t(8), t(8)),
    "rms_norm": (t(2, 3, 8), [3, 8], t(3, 8)),
    "softmax": (t(3, 4), 0),
    "gelu": (t(7), "tanh"),
    "silu": (t(7),),
    "rotary": (t(2, 3, 4, 8), t(3, 4), t(3, 4)),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_opcheck(name: str) -> None:
    operator = getattr(torch.ops.thresher, name).default
    torch.library.opcheck(operator, OPERATORS[name])
    torch.library.opcheck(operator, differentiable(OPERATORS[name], torch.float32))


def test_a_row_that_sees_nothing_is_zero_and_has_no_gradient() -> None:
    q, k, v = (t(1, 1, 2, 4).requires_grad_() for _ in range(3))
    mask = torch.tensor([[False, False], [True, True]])
    out = ops.attention(q, k, v, mask)
    out.sum().backward()
    assert out[0, 0, 0].tolist() == [0] * 4
    assert q.grad is not None and k.grad is not None
    assert q.grad[0, 0, 0].tolist() == [0] * 4 and not k.grad.isnan().any()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: ops.matmul(t(2, 3), t(4, 5)),
            r"matmul: expected a \[\.\.\., m, k\].*got \[2, 3\], \[4, 5\]; transpose",
        ),
        (lambda: ops.matmul(t(2, 3, 4), t(3, 4, 5)), "expected batches that broadcast"),
        (lambda: ops.matmul(t(2, 3), t(3, 5).double()), "expected b of float32 on cpu as a is, got float64"),
        (lambda: ops.linear(t(2, 3), t(4, 5)), r"linear: expected x \[\.\.\., k\] and weight \[n, k\]"),
        (lambda: ops.linear(t(2, 3), t(4, 3), t(3)), r"expected weight \[n, k\] and bias \[n\], got \[4, 3\], \[3\]"),
        (lambda: ops.attention(t(1, 3, 5, 8), t(1, 2, 6, 8), t(1, 2, 6, 8)), "with h a multiple of g"),
        (lambda: ops.attention(*[t(1, 2, 5, 8)] * 3, BOOLS[:, :5], causal=True), "a mask or causal=True, got both"),
        (lambda: ops.attention(*[t(1, 2, 5, 8)] * 3, BOOLS), r"a mask that broadcasts to \[1, 2, 5, 5\], got \[5, 6\]"),
        (lambda: ops.attention(*[t(1, 2, 5, 8)] * 3, torch.ones(5, 5, dtype=torch.int32)), "got int32; True lets"),
        (lambda: ops.layer_norm(t(2, 3), (2,)), r"expected x to end with normalized_shape \[2\], got \[2, 3\]"),
        (lambda: ops.rms_norm(t(2, 3), (3,), t(2)), r"rms_norm: expected weight of shape \[3\], got \[2\]"),
        (lambda: ops.layer_norm(t(2, 3), (3,), eps=-1.0), "expected eps of at least 0, got -1"),
        (lambda: ops.softmax(t(2, 3), 2), r"expected dim from -2 to 1 for x of shape \[2, 3\], got 2"),
        (lambda: ops.softmax(torch.ones(2, dtype=torch.int64)), "expected x of floats, got int64"),
        (lambda: ops.gelu(t(2), "erf"), 'expected approximate "none" or "tanh", got \'erf\''),
        (lambda: ops.rotary(t(3, 2, 8), t(3, 5), t(3, 5)), "with pairs at most d / 2"),
    ],
)
def test_wrong_arguments_say_what_was_expected(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_no_elements() -> None:
    assert ops.silu(torch.empty(0, 3)).shape == (0, 3)
    assert ops.matmul(torch.empty(2, 0), torch.empty(0, 3)).tolist() == [[0] * 3] * 2


def test_plans_of_single_operators_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "CAPACITY", 4)
    for size in range(1, 12):
        ops.silu(torch.ones(size))
    assert len(library._graphs) <= 4
    ops.silu(torch.ones(11))
    before = thresher.compilation_stats().plans_built
    ops.silu(torch.ones(11))
    assert thresher.compilation_stats().plans_built == before, "the same shape has its plan"


class Block(torch.nn.Module):
    """A transformer's block of operators of ours."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.Parameter(t(16))
        self.qkv = torch.nn.Parameter(t(48, 16))
        self.out = torch.nn.Parameter(t(16, 16))

    def forward(self, x: Any, cos: Any, sin: Any) -> Any:
        batch, tokens, width = x.shape
        h = ops.rms_norm(x, (width,), self.norm)
        q, k, v = ops.linear(h, self.qkv).reshape(batch, tokens, 3, 4, 4).unbind(2)
        q, k = (ops.rotary(one, cos, sin).transpose(1, 2) for one in (q, k))
        mixed = ops.attention(q, k, v.transpose(1, 2), causal=True).transpose(1, 2).reshape(batch, tokens, width)
        return x + ops.gelu(ops.linear(mixed, self.out))


def test_a_model_of_these_operators_is_compiled_whole(compiler: Any) -> None:
    block = Block().eval()
    args = (t(2, 5, 16), t(5, 2), t(5, 2))
    compiled = torch.compile(block, backend="thresher", fullgraph=True)
    with torch.no_grad():
        expected = block(*args)
        ran = engine_operators(compiled, *args)
        torch.testing.assert_close(compiled(*args), expected, atol=1e-5, rtol=1e-5)
    stats = compiler.compilation_stats()
    assert (stats.partitions, stats.nodes_unsupported, stats.unsupported) == (1, 0, ())
    assert ran.get("sdpa") == 1 and "PyTorch operators" not in ran


def test_further_sizes_go_through_one_plan(compiler: Any) -> None:
    block = Block().eval()
    compiled = thresher.compile(block, dynamic=True)
    with torch.no_grad():
        for tokens in (5, 7, 9, 12):
            args = (t(2, tokens, 16), t(tokens, 2), t(tokens, 2))
            torch.testing.assert_close(compiled(*args), block(*args), atol=1e-5, rtol=1e-5)
    assert compiler.compilation_stats().unsupported == ()


def test_training_through_a_compiled_model(compiler: Any) -> None:
    args = (t(2, 5, 16), t(5, 2), t(5, 2))
    grads = []
    for compiled in (False, True):
        block = Block()
        (torch.compile(block, backend="thresher") if compiled else block)(*args).sum().backward()
        grads.append([p.grad for p in block.parameters()])
    torch.testing.assert_close(grads[1], grads[0], atol=1e-4, rtol=1e-4)


# ---- fuse_ops ----


def test_a_fused_function_is_one_plan(compiler: Any) -> None:
    @thresher.fuse_ops
    def gated(x: Any, weight: Any, gate: Any) -> Any:
        """Doc."""
        return ops.linear(x, weight) * functional.silu(ops.linear(x, gate)) + x.sum()

    assert (gated.__name__, gated.__doc__) == ("gated", "Doc.")
    x, weight, gate = t(3, 8), t(4, 8), t(4, 8)
    with torch.no_grad():
        found = gated(x, weight, gate)
    torch.testing.assert_close(found, x @ weight.T * functional.silu(x @ gate.T) + x.sum(), atol=1e-5, rtol=1e-5)
    stats = compiler.compilation_stats()
    assert (stats.graphs, stats.partitions, stats.plans) == (1, 1, 1)
    with torch.no_grad():
        ran = engine_operators(gated, x, weight, gate)
    assert ran["pointwise"] == 1 and "silu" not in ran, "silu, product and sum are one step"


def test_a_convolution_in_a_fused_function_takes_what_follows_it(compiler: Any) -> None:
    @thresher.fuse_ops
    def block(x: Any, weight: Any, bias: Any) -> Any:
        return ops.silu(ops.conv(x, weight, bias, padding=1)) + x

    args = t(1, 8, 6, 6), t(8, 8, 3, 3), t(8)
    with torch.no_grad():
        found, ran = block(*args), engine_operators(block, *args)
    expected = functional.silu(functional.conv2d(*args, padding=1)) + args[0]
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert ran["convolution"] == 1 and not {"silu", "pointwise"} & ran.keys()


def test_gradients_of_a_fused_function(compiler: Any) -> None:
    @thresher.fuse_ops
    def f(x: Any, weight: Any) -> Any:
        return ops.softmax(ops.linear(ops.layer_norm(x, (8,)), weight))

    found = []
    for call in (f, lambda x, w: torch.softmax(functional.layer_norm(x, (8,)) @ w.T, -1)):
        x, weight = t(3, 8).requires_grad_(), t(4, 8).requires_grad_()
        call(x, weight)[:, 0].sum().backward()
        found.append((x.grad, weight.grad))
    torch.testing.assert_close(found[0], found[1], atol=1e-5, rtol=1e-5)


def test_what_cannot_be_fused_is_listed(compiler: Any) -> None:
    @thresher.fuse_ops
    def f(x: Any) -> Any:
        return torch.cumprod(ops.silu(x), 0)

    with pytest.raises(thresher.UnsupportedOperatorError, match=r"aten\.cumprod\.default"):
        f(t(3))

    @thresher.fuse_ops(config=thresher.CompilerConfig(optimization_level="O1"))
    def g(x: Any) -> Any:
        return x if x.sum() > 0 else -x

    with pytest.raises(thresher.ThresherError, match="expected g to be captured as one graph, got: "):
        g(t(3))


def test_a_fused_function_inside_of_a_compiled_model_is_part_of_it(compiler: Any) -> None:
    @thresher.fuse_ops
    def f(x: Any) -> Any:
        return ops.silu(x) * 2

    class Model(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return ops.gelu(f(x))

    with torch.no_grad():
        torch.testing.assert_close(
            thresher.compile(Model(), fullgraph=True)(t(3, 4)), functional.gelu(functional.silu(t(3, 4)) * 2)
        )
    stats = compiler.compilation_stats()
    assert (stats.graphs, stats.partitions) == (1, 1)


def test_what_is_no_function() -> None:
    with pytest.raises(thresher.ConfigError, match="fuse_ops: expected a function of tensors, got 3"):
        thresher.fuse_ops(3)  # type: ignore[call-overload]
    with pytest.raises(thresher.ConfigError, match=r"expected a thresher\.CompilerConfig or None, got dict"):
        thresher.fuse_ops(config={})  # type: ignore[call-overload]
    with pytest.raises(thresher.ConfigError, match="decorate forward or give it an object"):
        thresher.optimize_layout(Block)


# ---- optimize_layout ----


def conversions(function: Callable[..., Any], folder: Any, *args: Any) -> int:
    """How often the engine copied an input that it could not read in place."""
    folder.mkdir()
    with profiler.profile(trace=folder / "t.thrtrace"):
        function(*args)
    rows = build_report(read_trace(folder / "t.thrtrace"))["runtime"]
    return sum(row["count"] for row in rows if row["name"] == "thresherDataConvert")


def test_a_table_is_laid_out_once(compiler: Any, tmp_path: Any) -> None:
    @thresher.fuse_ops
    def scores(x: Any, table: Any) -> Any:
        return ops.softmax(x * table)

    laid = thresher.optimize_layout(scores)
    x, table = t(64, 48), t(64, 96)[:, ::2]
    with torch.no_grad():
        expected = torch.softmax(x * table, -1)
        for function in (scores, laid):
            torch.testing.assert_close(function(x, table), expected)
        assert conversions(scores, tmp_path / "a", x, table) == 1
        assert conversions(laid, tmp_path / "b", x, table) == 0
        table.mul_(2)
        torch.testing.assert_close(laid(x, table), torch.softmax(x * table, -1))
        torch.testing.assert_close(laid(x, table=table), torch.softmax(x * table, -1))


def test_copies_go_with_their_tensors() -> None:
    seen: list[torch.Tensor] = []

    @thresher.optimize_layout
    def f(x: Any) -> Any:
        seen.append(x)
        return x.sum()

    table = t(4, 3).t()
    assert f(table) == f(table) and seen[0] is seen[1] and seen[0].is_contiguous()
    kept = f.__closure__[0].cell_contents if f.__closure__ else None  # type: ignore[attr-defined]
    plain = next(c.cell_contents for c in f.__closure__ if hasattr(c.cell_contents, "_copies"))  # type: ignore[attr-defined]
    assert kept is not None and len(plain._copies) == 1
    del table
    gc.collect()
    assert plain._copies == {}
    row_major = t(3, 4)
    f(row_major)
    assert seen[-1] is row_major
    learned = t(4, 3).t().requires_grad_()
    f(learned).backward()
    assert learned.grad is not None and plain._copies == {}


def test_parameters_of_a_module_are_laid_out_in_place() -> None:
    model = torch.nn.Linear(3, 4)
    model.weight.data = t(3, 4).t()
    expected = model(t(2, 3))
    assert thresher.optimize_layout(model) is model
    assert model.weight.is_contiguous()
    torch.testing.assert_close(model(t(2, 3)), expected)

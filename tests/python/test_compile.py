"""torch.compile and thresher.compile on whole models, against PyTorch without them."""

from __future__ import annotations

import threading
import warnings
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

SENTENCES = [
    "The harvest was late this year because of the rain.",
    "Rain delayed bringing in the crops.",
    "She tuned the old violin before the concert.",
]


def assert_close(got: Any, want: Any, tolerance: float = 1e-5) -> None:
    assert got.shape == want.shape and got.dtype == want.dtype
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance, equal_nan=True)


def assert_all_in_engine(compiler: Any, graphs: int | None = None) -> None:
    stats = compiler.compilation_stats()
    assert stats.nodes_unsupported == 0 and stats.unsupported == () and stats.eager_shapes == ()
    assert stats.partitions == stats.graphs >= 1
    if graphs is not None:
        assert stats.graphs == graphs


class Mlp(nn.Module):
    def __init__(self, activation: nn.Module | None = None) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(12, 32), activation or nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 5))

    def forward(self, x: Any) -> Any:
        return self.layers(x)


# ---- models ----


def test_minilm_on_sentences(compiler: Any, minilm: Any, minilm_tokenizer: Any) -> None:
    compiled = compiler.compile(minilm, dynamic=True)
    with torch.no_grad():
        for count in (3, 2):
            batch = minilm_tokenizer(SENTENCES[:count], padding=True, return_tensors="pt")
            got, want = compiled(**batch), minilm(**batch)
            for name in ("last_hidden_state", "pooler_output"):
                assert (got[name] - want[name]).abs().max() < 1e-4
    assert_all_in_engine(compiler, graphs=1)
    stats = compiler.compilation_stats()
    assert stats.plans == 1 and stats.weight_bytes > 40e6 and stats.peak_arena_bytes > 0


def test_minilm_projects_once_a_layer(compiler: Any, minilm: Any) -> None:
    from thresher.compiler.stats import RECORDER

    compiled = compiler.compile(minilm)
    with torch.no_grad():
        compiled(torch.ones(2, 9, dtype=torch.int64))
    (plan,) = (plan for graph in RECORDER.alive() for plan in graph.plans())
    steps = plan.steps()
    merged = [step["module"] for step in steps if step["name"] == "linears"]
    assert merged == [f"encoder.layer.{i}.attention.self" for i in range(6)]
    assert "copy" not in [step["name"] for step in steps]


def test_bert_sizes_become_dynamic(compiler: Any) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=99, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64
    )
    model = transformers.BertModel(config).eval()
    compiled = torch.compile(model, backend=compiler.thresher_backend)
    with torch.no_grad():
        for batch, length in ((2, 8), (3, 8), (3, 11), (5, 6)):
            ids = torch.randint(0, 99, (batch, length))
            mask = torch.ones_like(ids)
            mask[-1, length // 2 :] = 0
            got, want = compiled(ids, mask), model(ids, mask)
            assert_close(got.last_hidden_state, want.last_hidden_state)
            assert_close(got.pooler_output, want.pooler_output)
    assert_all_in_engine(compiler)
    stats = compiler.compilation_stats()
    assert stats.graphs <= 3 and stats.plans_built == 4
    # All graphs share one copy of the packed weights.
    weights = sum(p.numel() * 4 for p in model.parameters() if p.dim() == 2)
    assert 0 < stats.weight_bytes < 2 * weights


# Every two settings in every combination.
@pytest.mark.parametrize(
    ("activation", "norm_first", "batch_first"),
    [("relu", False, False), ("relu", True, True), ("gelu", False, True), ("gelu", True, False)],
)
def test_transformer_encoder(compiler: Any, activation: str, norm_first: bool, batch_first: bool) -> None:
    layer = nn.TransformerEncoderLayer(32, 4, 64, 0.1, activation, norm_first=norm_first, batch_first=batch_first)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    batch, length = 3, 6
    x = torch.randn((batch, length, 32) if batch_first else (length, batch, 32))
    padding = torch.zeros(batch, length, dtype=torch.bool)
    padding[0, -2:] = True
    causal = nn.Transformer.generate_square_subsequent_mask(length)
    for arguments in ({}, {"src_key_padding_mask": padding}, {"mask": causal, "is_causal": True}):
        torch._dynamo.reset()
        with torch.no_grad():
            assert_close(compiler.compile(model)(x, **arguments), model(x, **arguments))
    assert_all_in_engine(compiler, graphs=3)


def test_encoder_row_without_any_key_is_nan_as_in_pytorch(compiler: Any) -> None:
    model = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
    padding = torch.zeros(2, 5, dtype=torch.bool)
    padding[0] = True
    with torch.no_grad():
        x = torch.randn(2, 5, 32)
        want = model(x, src_key_padding_mask=padding)
        assert want[0].isnan().all() and not want[1].isnan().any()
        assert_close(compiler.compile(model)(x, src_key_padding_mask=padding), want)


@pytest.mark.parametrize("need_weights", [False, True])
def test_multihead_attention(compiler: Any, need_weights: bool) -> None:
    class Attend(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(32, 4, batch_first=True)

        def forward(self, x: Any, y: Any) -> Any:
            return self.attention(x, y, y, need_weights=need_weights)

    model = Attend().eval()
    x, y = torch.randn(2, 5, 32), torch.randn(2, 7, 32)
    with torch.no_grad():
        for got, want in zip(compiler.compile(model)(x, y), model(x, y), strict=True):
            assert (got is None) == (want is None)
            if want is not None:
                assert_close(got, want)
    assert_all_in_engine(compiler, graphs=1)


@pytest.mark.parametrize(
    "activation",
    [nn.ReLU(), nn.GELU(), nn.GELU(approximate="tanh"), nn.Tanh(), nn.SiLU(), nn.Sigmoid(), nn.ELU(), nn.Hardswish()],
    ids=str,
)
def test_mlp(compiler: Any, activation: nn.Module) -> None:
    model = Mlp(activation).eval()
    with torch.no_grad():
        x = torch.randn(7, 12)
        assert_close(compiler.compile(model)(x), model(x))
    assert_all_in_engine(compiler, graphs=1)


def test_functions_and_entry_point_name(compiler: Any) -> None:
    import importlib.metadata

    try:
        importlib.metadata.version("thresher")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the entry point exists only where thresher is installed")
    assert "thresher" in torch._dynamo.list_backends()
    model = Mlp().eval()
    with torch.no_grad():
        x = torch.randn(3, 12)
        assert_close(torch.compile(model, backend="thresher")(x), model(x))


# ---- shapes and layouts ----


def test_dynamic_sizes_share_one_graph(compiler: Any) -> None:
    model = Mlp().eval()
    compiled = compiler.compile(model, dynamic=True)
    with torch.no_grad():
        for size in (2, 3, 7, 33, 2):
            x = torch.randn(size, 12)
            assert_close(compiled(x), model(x))
    stats = compiler.compilation_stats()
    # One for the first size, one for many, and a larger one in its place.
    assert stats.graphs == 1 and stats.plans == 1 and stats.plans_built == 3
    assert "[0] 2 to 64" in stats.summary()


def test_plan_cache_drops_the_least_recently_used(compiler: Any) -> None:
    model = Mlp().eval()
    config = compiler.CompilerConfig(plan_sizes="one", plan_cache_size=2)
    compiled = compiler.compile(model, dynamic=True, config=config)
    with torch.no_grad():
        for size in (2, 3, 2, 4, 2):
            x = torch.randn(size, 12)
            assert_close(compiled(x), model(x))
        assert compiler.compilation_stats().plans_built == 3
        compiled(torch.randn(3, 12))
    stats = compiler.compilation_stats()
    assert stats.plans == 2 and stats.plans_built == 4


def test_strided_inputs(compiler: Any) -> None:
    model = Mlp().eval()
    compiled = compiler.compile(model, dynamic=True)
    with torch.no_grad():
        wide = torch.randn(12, 24)
        for x in (wide[:, ::2], wide[:, :12].t(), wide[:1, :12].expand(6, 12), wide[2:5, 12:]):
            assert_close(compiled(x), model(x))


def test_empty_batch(compiler: Any) -> None:
    model = Mlp().eval()
    compiled = compiler.compile(model)
    with torch.no_grad():
        for size in (0, 3, 0):
            x = torch.randn(size, 12)
            assert_close(compiled(x), model(x))
    (reason,) = compiler.compilation_stats().eager_shapes
    assert "inputs [0, 12]: a tensor of the graph has no elements" in reason


@pytest.mark.parametrize("level", ["O0", "O3"])
@pytest.mark.parametrize("rotated", [0, 8, 12])
def test_joining_an_empty_tensor(compiler: Any, level: Any, rotated: int) -> None:
    class Rotary(nn.Module):  # as in Phi-3, whose heads are rotated whole
        def forward(self, x: Any) -> Any:
            return torch.cat([x[..., :rotated], x[..., rotated:]], dim=-1) * 2 + 1

    model = Rotary().eval()
    compiled = compiler.compile(model, config=compiler.CompilerConfig(optimization_level=level, fallback="error"))
    with torch.no_grad():
        for rows in (3, 5, 7):
            x = torch.randn(rows, 12)
            assert_close(compiled(x), model(x))
    assert_all_in_engine(compiler)


def test_a_result_without_elements_is_reported(compiler: Any, caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Flatten(0)
    model.forward = lambda x: (x * 2)[:, :0] + 1  # type: ignore[method-assign]
    with torch.no_grad():
        assert compiler.compile(model)(torch.randn(3, 4)).shape == (3, 0)
    (reason,) = compiler.compilation_stats().eager_shapes
    assert "inputs [3, 4]: a tensor of the graph has no elements" in reason
    assert "a tensor of the graph has no elements" in caplog.text


def test_integer_and_bool_inputs_and_outputs(compiler: Any) -> None:
    def function(ids: Any, mask: Any) -> Any:
        return ids * 2 + 1, (ids > 3) & mask, (ids * mask).sum(1)

    ids, mask = torch.randint(-9, 9, (4, 5)), torch.rand(4, 5) > 0.5
    got = torch.compile(function, backend=compiler.thresher_backend)(ids, mask)
    for g, w in zip(got, function(ids, mask), strict=True):
        assert g.dtype == w.dtype and torch.equal(g, w)
    assert_all_in_engine(compiler, graphs=1)


def test_nan_and_infinity_propagate(compiler: Any) -> None:
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 5)).eval()
    x = torch.randn(4, 12)
    x[1, 3], x[2, 5] = float("nan"), float("inf")
    with torch.no_grad():
        assert_close(compiler.compile(model)(x), model(x))


def test_outputs_of_every_kind(compiler: Any) -> None:
    class Kinds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(5))

        def forward(self, x: Any) -> Any:
            y = x * 2
            return y, None, x, x.view(-1), 7, self.weight, y, y.t(), x.shape[0]

    model = Kinds()
    compiled = compiler.compile(model, dynamic=True)
    x = torch.randn(4, 5)
    with torch.no_grad():
        got, want = compiled(x), model(x)
    assert got[1] is None and got[4] == 7 and got[8] == 4
    for i in (0, 2, 3, 5, 6, 7):
        assert_close(got[i], want[i])
    assert got[2] is x and got[3].data_ptr() == x.data_ptr() and got[5] is model.weight
    assert got[6].data_ptr() == got[0].data_ptr() and got[7].data_ptr() == got[0].data_ptr()


def test_nothing_to_compute(compiler: Any) -> None:
    compiled = torch.compile(lambda x: (x, x.t(), x[0]), backend=compiler.thresher_backend)
    x = torch.randn(3, 4)
    got = compiled(x)
    assert got[0] is x and torch.equal(got[1], x.t()) and torch.equal(got[2], x[0])


def test_inputs_changed_in_place(compiler: Any) -> None:
    def function(x: Any, y: Any) -> Any:
        x.add_(1)
        y[:, 0] = 3
        return (x @ y).relu()

    pairs = [(torch.randn(3, 4), torch.randn(4, 5)) for _ in range(2)]
    pairs[1] = tuple(t.clone() for t in pairs[0])
    with torch.no_grad():
        want = function(*pairs[0])
        assert_close(torch.compile(function, backend=compiler.thresher_backend)(*pairs[1]), want)
    assert_close(pairs[1][0], pairs[0][0])
    assert_close(pairs[1][1], pairs[0][1])


# ---- parameters that change ----


def change_in_place(model: Mlp) -> None:
    with torch.no_grad():
        model.layers[0].weight.mul_(-1.5)


def change_by_state_dict(model: Mlp) -> None:
    model.load_state_dict(Mlp().state_dict())


def change_data(model: Mlp) -> None:
    model.layers[3].weight.data = torch.randn(5, 32)


def change_through_data(model: Mlp) -> None:
    model.layers[0].weight.data.copy_(torch.randn(32, 12))


def change_bias_through_data(model: Mlp) -> None:
    model.layers[0].bias.data.fill_(2.0)


def change_parameter(model: Mlp) -> None:
    model.layers[0].weight = nn.Parameter(torch.randn(32, 12))


@pytest.mark.parametrize(
    "change",
    [
        change_in_place,
        change_by_state_dict,
        change_data,
        change_through_data,
        change_bias_through_data,
        change_parameter,
    ],
)
def test_changed_parameters_are_noticed(compiler: Any, change: Any) -> None:
    model = Mlp().eval()
    compiled = compiler.compile(model)
    x = torch.randn(4, 12)
    with torch.no_grad():
        before = compiled(x)
        assert_close(before, model(x))
        change(model)
        want = model(x)
        assert not torch.allclose(before, want)
        assert_close(compiled(x), want)
        assert_close(compiled(x), want)


def test_parameters_without_freezing(compiler: Any) -> None:
    model = Mlp().eval()
    compiled = compiler.compile(model, config=compiler.CompilerConfig(freeze_parameters=False))
    x = torch.randn(4, 12)
    with torch.no_grad():
        assert_close(compiled(x), model(x))
        change_through_data(model)
        assert_close(compiled(x), model(x))
    assert compiler.compilation_stats().weight_bytes == 0


def test_buffers_that_change_at_every_call(compiler: Any) -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("steps", torch.zeros(3))
            self.linear = nn.Linear(3, 3)

        def forward(self, x: Any) -> Any:
            self.steps += 1
            return self.linear(x) + self.steps

    torch.manual_seed(1)
    model, reference = Counter(), Counter()
    reference.load_state_dict(model.state_dict())
    compiled = compiler.compile(model)
    x = torch.randn(2, 3)
    with torch.no_grad():
        for _ in range(6):
            assert_close(compiled(x), reference(x))


def test_a_changing_buffer_leaves_other_parameters_packed(compiler: Any) -> None:
    class Running(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)
            self.register_buffer("mean", torch.zeros(8))

        def forward(self, x: Any) -> Any:
            self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
            return self.linear(x - self.mean)

    model = Running()
    compiled = compiler.compile(model)
    with torch.no_grad():
        for _ in range(12):
            compiled(torch.randn(4, 8))
    stats = compiler.compilation_stats()
    assert stats.weight_bytes > 0 and stats.repacks <= 3


def change_one_element(model: Mlp) -> None:
    """Changes an element that no sample looks at, so that PyTorch's count of changes alone tells of it."""
    from thresher.compiler.weights import _sampled_words

    weight = model.layers[0].weight
    assert weight[3, 5].data_ptr() not in _sampled_words(weight.data)
    with torch.no_grad():
        weight[3, 5] += 10


@pytest.mark.parametrize("by", ["thresher.compile", "torch.compile"])
def test_one_changed_element_is_noticed(compiler: Any, by: str) -> None:
    model = Mlp().eval()
    compile_ = compiler.compile if by == "thresher.compile" else partial(torch.compile, backend="thresher")
    compiled = compile_(model)
    x = torch.randn(4, 12)
    with torch.no_grad():
        for number in range(3):
            assert_close(compiled(x), model(x))
            assert_close(compiled(x), model(x))
            assert compiler.compilation_stats().repacks == number
            change_one_element(model)
        assert_close(compiled(x), model(x))


def test_a_changed_element_keeps_packed_weights_from_being_shared(compiler: Any) -> None:
    """A second graph of the model takes the packed weights of the first, unless one has changed meanwhile."""
    model = Mlp().eval()
    x = torch.randn(4, 12)
    with torch.no_grad():
        first = torch.compile(model, backend="thresher")
        assert_close(first(x), model(x))
        change_one_element(model)
        second = torch.compile(lambda value: model(value) * 2, backend="thresher")
        assert_close(second(x), model(x) * 2)


def test_parameters_with_strides(compiler: Any) -> None:
    model = nn.Linear(8, 6, bias=False)
    model.weight = nn.Parameter(torch.randn(8, 6).t())
    compiled = compiler.compile(model, dynamic=True)
    with torch.no_grad():
        for size in (2, 3, 4):
            x = torch.randn(size, 8)
            assert_close(compiled(x), model(x))
        one = compiler.compilation_stats().weight_bytes
        model.weight.data[0, 0] += 1
        model.weight.mul_(1)
        assert_close(compiled(x), model(x))
    assert one < 3 * 4 * 64 * 8


class Standardized(nn.Conv2d):
    """A convolution whose kernels have mean 0 and variance 1, as networks without batch norms have them."""

    def forward(self, x: Any) -> Any:
        rows = self.weight.reshape(1, self.out_channels, -1)
        weight = nn.functional.batch_norm(rows, None, None, training=True).reshape_as(self.weight)
        return nn.functional.conv2d(x, weight, self.bias, padding=1)


@pytest.mark.parametrize(
    "layer",
    [
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(12, 40)),
        lambda: nn.utils.parametrizations.weight_norm(nn.Conv2d(12, 40, 3, padding=1)),
        lambda: Standardized(12, 40, 3),
    ],
)
def test_weights_that_are_computed_are_packed_ahead(compiler: Any, layer: Any) -> None:
    from thresher.compiler.stats import RECORDER

    model = nn.Sequential(layer()).eval()
    compiled = compiler.compile(model)
    x = torch.randn(2, 12, 12, 12)
    with torch.no_grad():
        assert_close(compiled(x), model(x))
        stats = compiler.compilation_stats()
        assert stats.weight_bytes >= 4 * 12 * 40 and not stats.unsupported
        (graph,) = (graph for graph in RECORDER.alive() if graph.plans())
        assert {step["name"] for step in graph.plans()[0].steps()} <= {"copy", "linear", "convolution"}
        for parameter in model.parameters():
            parameter.mul_(1.5)
        assert_close(compiled(x), model(x))


def test_clear_cache_keeps_models_working(compiler: Any) -> None:
    model = Mlp().eval()
    compiled = compiler.compile(model)
    x = torch.randn(4, 12)
    with torch.no_grad():
        compiled(x)
        compiler.clear_cache()
        stats = compiler.compilation_stats()
        assert stats.plans == 0 and stats.weight_bytes == 0 and stats.graphs == 0
        assert_close(compiled(x), model(x))
    assert compiler.compilation_stats().plans == 1


# ---- training ----


def gradients(model: nn.Module, call: Any, x: Any) -> list[Any]:
    model.zero_grad()
    x = x.clone().requires_grad_()
    call(x).square().sum().backward()
    return [x.grad, *(p.grad.clone() for p in model.parameters())]


@pytest.mark.parametrize(
    "model",
    [
        Mlp(nn.GELU()),
        Mlp(nn.ReLU()),
        Mlp(nn.Tanh()),
        Mlp(nn.SiLU()),
        Mlp(nn.Sigmoid()),
        nn.TransformerEncoderLayer(12, 2, 16, 0.0, batch_first=True),
        nn.TransformerEncoderLayer(12, 2, 16, 0.0, "gelu", norm_first=True),
    ],
    ids=["gelu", "relu", "tanh", "silu", "sigmoid", "encoder", "encoder_norm_first"],
)
def test_gradients(compiler: Any, model: nn.Module) -> None:
    x = torch.randn(3, 5, 12)
    want = gradients(model, model, x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the list of what runs in PyTorch
        got = gradients(model, compiler.compile(model), x)
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        assert_close(g, w, 2e-5)
    assert compiler.compilation_stats().partitions >= 2


@pytest.mark.filterwarnings("ignore:thresher")
def test_training_steps(compiler: Any) -> None:
    torch.manual_seed(3)
    model, reference = Mlp(), Mlp()
    reference.load_state_dict(model.state_dict())
    compiled = compiler.compile(model)
    x, y = torch.randn(16, 12), torch.randn(16, 5)
    for trained, call in ((model, compiled), (reference, reference)):
        optimizer = torch.optim.SGD(trained.parameters(), 0.1)
        for _ in range(8):
            optimizer.zero_grad()
            (call(x) - y).square().mean().backward()
            optimizer.step()
    for p, q in zip(model.parameters(), reference.parameters(), strict=True):
        assert_close(p, q, 1e-4)
    # Parameters in training are not packed anew at every step.
    assert compiler.compilation_stats().repacks <= 4


def test_dropout_in_training_keeps_its_random_numbers(compiler: Any) -> None:
    model = nn.Sequential(nn.Linear(12, 12), nn.Dropout(0.5), nn.Linear(12, 5)).train()
    compiled = compiler.compile(model)
    x = torch.randn(4, 12)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        compiled(x)
        torch.manual_seed(7)
        got = compiled(x)
    torch.manual_seed(7)
    with torch.no_grad():
        assert_close(got, model(x))


# ---- modes, threads, errors ----


def test_inference_mode_and_grad_mode(compiler: Any) -> None:
    model = Mlp().eval()
    compiled = compiler.compile(model)
    x = torch.randn(4, 12)
    want = model(x).detach()
    with torch.inference_mode():
        assert_close(compiled(x), want)
    with torch.no_grad():
        assert_close(compiled(x), want)
    got = compiled(x)
    assert got.requires_grad
    assert_close(got.detach(), want)
    with torch.inference_mode():
        frozen = Mlp().eval()
        assert_close(compiler.compile(frozen)(x), frozen(x))


def test_two_models_do_not_mix(compiler: Any) -> None:
    models = [Mlp().eval(), Mlp().eval()]
    compiled = [compiler.compile(model) for model in models]
    x = torch.randn(4, 12)
    with torch.no_grad():
        for _ in range(2):
            for call, model in zip(compiled, models, strict=True):
                assert_close(call(x), model(x))


def test_threads(compiler: Any) -> None:
    model = Mlp().eval()
    compiled = compiler.compile(model, dynamic=True)
    with torch.no_grad():
        compiled(torch.randn(2, 12))
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            generator = torch.Generator().manual_seed(seed)
            with torch.no_grad():
                for step in range(40):
                    x = torch.randn(2 + (seed + step) % 5, 12, generator=generator)
                    assert_close(compiled(x), model(x))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]
    assert compiler.compilation_stats().plans_built == 2


def test_bad_index_raises_and_the_next_call_works(compiler: Any) -> None:
    table = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 3)).eval()
    compiled = compiler.compile(table)
    good, bad = torch.tensor([[1, 9, 0]]), torch.tensor([[1, 10, 0]])
    with torch.no_grad():
        assert_close(compiled(good), table(good))
        with pytest.raises(IndexError, match="10"):
            compiled(bad)
        with pytest.raises(IndexError):
            compiled(-good)
        assert_close(compiled(good), table(good))


def test_wrong_shape_raises_and_the_next_call_works(compiler: Any) -> None:
    model = Mlp().eval()
    compiled = compiler.compile(model)
    with torch.no_grad():
        compiled(torch.randn(4, 12))
        with pytest.raises((RuntimeError, torch._dynamo.exc.TorchRuntimeError)):
            compiled(torch.randn(4, 11))
        x = torch.randn(4, 12)
        assert_close(compiled(x), model(x))


def test_memory_that_nobody_has(compiler: Any) -> None:
    def function(x: Any, w: Any) -> Any:
        return (x.expand(2**40, 8) @ w).relu().sum()

    compiled = torch.compile(function, backend=compiler.thresher_backend)
    x, w = torch.ones(1, 8), torch.ones(8, 8)
    with torch.no_grad():
        for _ in range(2):
            with pytest.raises((MemoryError, RuntimeError)):
                compiled(x, w)
        model = Mlp().eval()
        x = torch.randn(4, 12)
        assert_close(compiler.compile(model)(x), model(x))


def test_profile_records_of_a_call(compiler: Any) -> None:
    from thresher import _engine

    model = Mlp().eval()
    compiled = compiler.compile(model)
    x = torch.randn(4, 12)
    with torch.no_grad():
        compiled(x)
        _engine.profile_reset()
        _engine.profile_start()
        try:
            assert_close(compiled(x), model(x))
        finally:
            _engine.profile_stop()
    records = _engine.profile_records()
    _engine.profile_reset()
    calls = [r for r in records if r["kind"] == "call"]
    steps = [r for r in records if r["kind"] == "op"]
    assert len(calls) == 1
    assert {"linear", "layer_norm"} <= {r["name"] for r in steps}
    assert any(r["section"] == "alloc" for r in records)
    assert all(calls[0]["start_ns"] <= r["start_ns"] <= r["end_ns"] <= calls[0]["end_ns"] for r in records)
    assert {"thresherCall", "thresherLaunchSubgraph", "thresherMalloc", "thresherGraphExecution"} <= {
        r["event"] for r in records
    }
    linear = next(r for r in steps if r["name"] == "linear")
    assert linear["kernel"] == f"linear fp32 {_engine.isa()}"
    assert linear["shapes"].startswith("4x12, ")
    assert "test_compile.py:" in linear["source"]
    assert linear["flops"] > 0
    assert len({r["correlation"] for r in steps}) == len(steps)

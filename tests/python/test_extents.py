"""One plan for many sizes: number by number, and bit by bit in its results, the plan made for each of them."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from thresher import _engine  # noqa: E402
from thresher.compiler import runtime  # noqa: E402
from thresher.compiler.builder import TORCH_DTYPES  # noqa: E402
from thresher.compiler.importer import import_graph  # noqa: E402
from thresher.torch_shim.tensors import places  # noqa: E402

WORDS = 120
LARGEST = (24, 90)  # batch, sequence


class Lambda(nn.Module):
    def __init__(self, function: Callable[..., Any], **layers: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, *args: Any) -> Any:
        return self.function(self, *args)


def ids(batch: int, length: int) -> tuple[Any, ...]:
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[-1, length // 2 + 1 :] = 0
    return torch.randint(3, WORDS, (batch, length)), mask


def floats(batch: int, length: int) -> tuple[Any, ...]:
    return (torch.randn(batch, length, 16),)


def from_transformers(name: str, **sizes: Any) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{name.removesuffix('Encoder')}Config")(vocab_size=WORDS, **sizes)
    model = getattr(transformers, f"{name}Model")(config)
    return Lambda(lambda m, words, mask: m.model(input_ids=words, attention_mask=mask)[0], model=model)


BERT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
SHALLOW = {**BERT, "num_hidden_layers": 1}  # where what is between two layers is that of another case


def causal(m: Any, x: Any) -> Any:
    q = m.q(x).unflatten(-1, (2, 8)).transpose(1, 2)
    return nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True).transpose(1, 2).flatten(2)


def masked(m: Any, x: Any) -> Any:
    length = x.shape[1]
    scores = m.q(x) @ m.k(x).transpose(1, 2)
    scores = scores.masked_fill(torch.ones(length, length, dtype=torch.bool).triu(1), float("-inf"))
    return scores.softmax(-1) @ x


def pieces(m: Any, x: Any) -> Any:
    cut = torch.cat([x[:, 2:], x[:, :1], x[:, -2:]], 1)
    return torch.cat([m.q(cut), -cut], 0), x[:, 0], x[:, -1]


def sums(m: Any, x: Any) -> Any:
    centred = x - x.mean(1, keepdim=True)
    return m.q(centred).amax(1), centred.sum((0, 1)), x.cumsum(1), centred.softmax(0), x.mean(2).log_softmax(1)


def tables(m: Any, x: Any) -> Any:
    batch, length = x.shape[:2]
    positions = torch.arange(length).expand(batch, length)
    offset = torch.arange(length)[None, :] - torch.arange(length)[:, None]
    return m.e(positions) + x, m.e(offset.abs().clamp(max=30)).mean(1) + m.q(x)


def flat(m: Any, x: Any) -> Any:
    rows = m.q(x.transpose(0, 1).reshape(-1, 16))
    return rows.view(x.shape[1], x.shape[0], 16).permute(1, 2, 0), rows.t() @ rows


def two_lengths(m: Any, x: Any, y: Any) -> Any:
    q, k = m.q(x).unflatten(-1, (2, 8)).transpose(1, 2), m.k(y).unflatten(-1, (2, 8)).transpose(1, 2)
    return nn.functional.scaled_dot_product_attention(q, k, k).transpose(1, 2).flatten(2) + x


def convolutions(m: Any, x: Any) -> Any:
    image = m.image(x[:, None]).relu()
    return m.last(m.depthwise(m.first(x.transpose(1, 2)))).transpose(1, 2) + image.mean(1)


def convolution_layers() -> dict[str, nn.Module]:
    return {
        "first": nn.Conv1d(16, 48, 3, padding=1, groups=2),
        "depthwise": nn.Conv1d(48, 48, 5, padding=2, groups=48),
        "last": nn.Conv1d(48, 16, 1),
        "image": nn.Conv2d(1, 8, 3, padding=1),
    }


def layers() -> dict[str, nn.Module]:
    return {"q": nn.Linear(16, 16), "k": nn.Linear(16, 16), "e": nn.Embedding(128, 16)}


Case = tuple[Callable[[], nn.Module], Callable[[int, int], tuple[Any, ...]], str]
CASES: dict[str, Case] = {
    "bert": (lambda: from_transformers("Bert", **BERT), ids, "fp32"),
    "bert_int8": (lambda: from_transformers("Bert", **SHALLOW), ids, "int8"),
    "bert_int4": (lambda: from_transformers("Bert", **SHALLOW), ids, "int4_weight"),
    "bert_bf16": (lambda: from_transformers("Bert", **SHALLOW), ids, "bf16"),
    "bert_in_bf16": (lambda: from_transformers("Bert", **SHALLOW).bfloat16(), ids, "model"),
    "roberta": (lambda: from_transformers("Roberta", **SHALLOW), ids, "fp32"),
    "gpt2": (
        lambda: from_transformers("GPT2", n_embd=32, n_layer=1, n_head=4, use_cache=False),
        ids,
        "fp32",
    ),
    "llama": (
        lambda: from_transformers("Llama", **BERT, num_key_value_heads=2, use_cache=False),
        ids,
        "fp32",
    ),
    "t5": (
        lambda: from_transformers("T5Encoder", d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=4),
        ids,
        "fp32",
    ),
    "causal": (lambda: Lambda(causal, **layers()), floats, "fp32"),
    "masked": (lambda: Lambda(masked, **layers()), floats, "fp32"),
    "pieces": (lambda: Lambda(pieces, **layers()), floats, "fp32"),
    "sums": (lambda: Lambda(sums, **layers()), floats, "fp32"),
    "convolutions": (lambda: Lambda(convolutions, **convolution_layers()), floats, "fp32"),
    "tables": (lambda: Lambda(tables, **layers()), floats, "fp32"),
    "flat": (lambda: Lambda(flat, **layers()), floats, "fp32"),
    "two_lengths": (
        lambda: Lambda(two_lengths, **layers()),
        lambda batch, length: (torch.randn(batch, length, 16), torch.randn(batch, 3 + length // 2, 16)),
        "fp32",
    ),
}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Any, list[Any]]]]:
    """Every compiled graph that is called, with its arguments."""
    made: list[tuple[Any, list[Any]]] = []
    call = runtime.CompiledGraph.__call__

    def note(self: Any, args: Any, *entry: Any) -> Any:
        made.append((self, list(args)))
        return call(self, args, *entry)

    monkeypatch.setattr(runtime.CompiledGraph, "__call__", note)
    yield made


def family_of(graph: Any, args: list[Any]) -> tuple[Any, tuple[int, ...]]:
    sizes = graph._find_sizes(args)
    assert sizes is not None
    family = graph._family(graph.generation, args, sizes)
    return family, family.own(sizes)


# Whole models whose operators and precisions others have, too.
NIGHTLY = ("bert_bf16", "roberta", "gpt2", "t5")


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.thorough] if case in NIGHTLY else []) for case in CASES]
)
def test_equals_the_plan_for_the_size(compiler: Any, calls: list[tuple[Any, list[Any]]], case: str) -> None:
    make, inputs, precision = CASES[case]
    torch.manual_seed(1)
    model = make().eval()
    compiled = compiler.compile(model, dynamic=True, precision=precision)
    choose = random.Random(case)
    with torch.no_grad():
        # PyTorch captures convolutions of 16 and more by themselves.
        larger = ((17, 9), (18, 21)) if case == "convolutions" else ()
        for sizes in ((3, 17), (5, 8), (9, 31), *larger):
            compiled(*inputs(*sizes))
        points = [(2, 4), (LARGEST[0], 4), (4, LARGEST[1]), (7, 7), (16, 16)]
        points += [(choose.randint(2, LARGEST[0]), choose.randint(4, LARGEST[1])) for _ in range(12)]
        for point in points:
            calls.clear()
            compiled(*inputs(*point))
            graph, args = calls[-1]
            family, own = family_of(graph, args)
            plan = family.plan(own)
            if plan is None:  # as few rows are computed in another way
                assert case == "bert_int4" and point[0] * point[1] <= 8, f"no plan for {own}: {family}"
                continue
            options = {**graph.config.precision_arguments(), "name": graph.name}
            store = graph.generation.store.engine
            if point[0] != point[1]:  # sizes that are equal by chance may allow for less work
                alike = _engine.Plan.build(family.program.at(own), store, **options)
                assert plan.numbers(own) == alike.numbers(), own
            frozen = graph.generation.frozen
            known = [graph.generation.constants.get(i, arg) for i, arg in enumerate(args)]
            imported = import_graph(graph._module, known, frozenset(frozen))
            exact = _engine.Plan.build(imported.builder.graph, store, **options)
            results = []
            for ran in (exact, plan.at(own)):
                outputs = [torch.empty(shape, dtype=TORCH_DTYPES[dtype]) for dtype, shape in ran.outputs]
                inputs_of = [args[i].resolve_neg() for i in imported.arguments]
                ran.run_at(places(inputs_of), places(outputs))
                results.append(outputs)
            for want, got in zip(*results, strict=True):
                assert torch.equal(want, got), (own, (want - got).abs().max())
    assert compiler.compilation_stats().plans <= 3 + 2 * bool(larger)


def test_a_thousand_sizes_take_one_plan(compiler: Any) -> None:
    model = Lambda(causal, **layers()).eval()
    compiled = compiler.compile(model, dynamic=True)
    choose = random.Random(5)
    sizes = {(choose.randint(1, 32), choose.randint(1, 100)) for _ in range(1200)}
    with torch.no_grad():
        for batch, length in sizes:
            x = torch.randn(batch, length, 16)
            got = compiled(x)
            if (batch + length) % 10 == 0:
                torch.testing.assert_close(got, model(x), rtol=1e-4, atol=1e-5)
        built = compiler.compilation_stats()
        assert built.plans <= 8 and built.plans_built <= 16, built.summary()
        assert len(built.plan_extents) >= 1
        for batch, length in sizes:
            compiled(torch.randn(batch, length, 16))
    assert compiler.compilation_stats().plans_built == built.plans_built


def test_a_larger_plan_is_made_and_said(compiler: Any, caplog: pytest.LogCaptureFixture) -> None:
    model = Lambda(causal, **layers()).eval()
    compiled = compiler.compile(model, dynamic=True)
    with torch.no_grad(), caplog.at_level(logging.INFO, "thresher.compiler"):
        for length in (5, 9, 33, 7, 2000):
            x = torch.randn(3, length, 16)
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    said = [record.getMessage() for record in caplog.records if "many sizes" in record.getMessage()]
    assert len(said) == 3 and "one plan" in said[0] and "[1] 2 to 32" in said[0]
    assert "a larger plan" in said[2] and "[1] 2 to 2048" in said[2]
    assert compiler.compilation_stats().plans == 1


def test_sizes_that_are_divided_have_plans_of_their_own(compiler: Any, caplog: pytest.LogCaptureFixture) -> None:
    model = Lambda(lambda m, x: m.q(x[:, : x.shape[1] // 2]) * 2, **layers()).eval()
    compiled = compiler.compile(model, dynamic=True)
    with torch.no_grad(), caplog.at_level(logging.INFO, "thresher.compiler"):
        for length in (8, 9, 12, 15):
            x = torch.randn(3, length, 16)
            torch.testing.assert_close(compiled(x), model(x))
    assert any("one plan for each combination of shapes: a size is" in r.getMessage() for r in caplog.records)
    assert compiler.compilation_stats().plan_extents == () and compiler.compilation_stats().plans == 4


def test_a_threshold_between_the_samples_is_not_missed(compiler: Any) -> None:
    # At most 40 of the rows: no sample need lie on either side, so that the graph itself has to say it.
    model = Lambda(lambda m, x: m.q(x[:, :40]).sum(1), **layers()).eval()
    compiled = compiler.compile(model, dynamic=True)
    with torch.no_grad():
        for length in (8, 9, 39, 40, 41, 43, 64, 100, 38):
            x = torch.randn(3, length, 16)
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)


def test_changed_parameters_are_seen_at_all_sizes(compiler: Any) -> None:
    model = Lambda(causal, **layers()).eval()
    compiled = compiler.compile(model, dynamic=True)
    with torch.no_grad():
        for turn in range(3):
            for length in (5, 9, 33):
                x = torch.randn(3, length, 16)
                torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
            if turn == 0:
                model.q.weight.mul_(2)


def test_a_profile_has_the_shapes_of_each_call(compiler: Any) -> None:
    model = Lambda(causal, **layers()).eval()
    compiled = compiler.compile(model, dynamic=True)
    with torch.no_grad():
        for length in (5, 9, 7):
            compiled(torch.randn(3, length, 16))
        _engine.profile_reset()
        _engine.profile_start()
        try:
            for length in (7, 11, 7):
                compiled(torch.randn(3, length, 16))
        finally:
            _engine.profile_stop()
    rows = [row for row in _engine.profile_summary()["sites"] if row["name"] == "sdpa"]
    shapes = {row["shapes"].split(",")[0]: row["count"] for row in rows if row["count"]}
    assert shapes == {"3x2x7x8": 2, "3x2x11x8": 1}
    flops = {row["shapes"].split(",")[0]: row["flops"] for row in rows if row["count"]}
    assert flops["3x2x7x8"] * 121 == flops["3x2x11x8"] * 49


def decoder(name: str) -> Any:
    transformers = pytest.importorskip("transformers")
    words: dict[str, Any] = {"vocab_size": WORDS, "eos_token_id": None, "bos_token_id": None, "pad_token_id": 0}
    if name == "llama":
        config = transformers.LlamaConfig(**BERT, **words, num_key_value_heads=2)
        return transformers.LlamaForCausalLM(config).eval()
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, **words)).eval()


@pytest.mark.parametrize("name", ["llama", pytest.param("t5", marks=pytest.mark.thorough)])
def test_a_cache_that_grows_takes_one_plan(compiler: Any, name: str) -> None:
    """Each layer's keys and values have a length of their own for TorchDynamo."""
    model = decoder(name)
    words = torch.randint(3, WORDS, (1, 7))
    with torch.no_grad():
        want = model.generate(words, max_new_tokens=44, do_sample=False)
        model.forward = torch.compile(model.forward, backend="thresher")
        assert torch.equal(model.generate(words, max_new_tokens=44, do_sample=False), want)
        stats = compiler.compilation_stats()
        assert len(stats.plan_extents) == 1 and stats.plans_built <= 8  # of 44 lengths
        assert torch.equal(model.generate(words, max_new_tokens=44, do_sample=False), want)
    assert compiler.compilation_stats().plans_built == stats.plans_built


def test_sizes_that_were_equal_by_chance(compiler: Any) -> None:
    """Five sizes are more than a plan is for: those that are equal count as one, until a call has them otherwise."""
    layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(5)).eval()

    def both(*given: Any) -> list[Any]:
        return [layer(x) for layer, x in zip(layers, given, strict=True)]

    compiled = torch.compile(both, backend="thresher", dynamic=True)

    def call(*sizes: int) -> int:
        given = [torch.randn(size, 4) for size in sizes]
        for got, expected in zip(compiled(*given), both(*given), strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
        return int(compiler.compilation_stats().plans_built)

    with torch.no_grad():
        for size in (5, 7, 9, 12):
            built = call(*[size] * 5)
        assert call(*[13] * 5) == built  # by the plan for many
        for size in (5, 8, 11):
            built = call(size, size, size, 2 * size, 2 * size)  # of which there are two sizes now
        assert call(6, 6, 6, 14, 14) == built and call(9, 9, 9, 9, 9) == built
        for size in (5, 6, 7):
            built = call(size, size + 1, size + 2, size + 3, size + 4)
        assert call(5, 6, 7, 8, 9) == built  # each combination has a plan
        call(9, 9, 9, 9, 9)

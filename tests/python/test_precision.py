"""Precisions: names, what the engine is told, what it decided, and the memory that weights take."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from thresher import _engine  # noqa: E402
from thresher.compiler import precision as rules  # noqa: E402


def entry(module: str = "fc", **changes: Any) -> dict[str, Any]:
    plain = {"module": module, "source": "m.py:3 in f", "op": "linear", "k": 8, "n": 16}
    return {**plain, "precision": "bf16", "weight_error": 0.001, "reason": "", **changes}


def test_names(compiler: Any) -> None:
    assert rules.available() == rules.PRECISIONS
    with pytest.raises(compiler.ConfigError, match="did you mean 'int8_weight'"):
        compiler.CompilerConfig(precision="int8_weigh")


def test_precisions_that_the_build_lacks(compiler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_engine, "precisions", lambda: ["fp32", "bf16"])
    assert compiler.CompilerConfig(precision="bf16").precision == "bf16"
    for make in (
        lambda: compiler.CompilerConfig(precision="int8"),
        lambda: compiler.compile(nn.Linear(3, 3), precision="int8"),
    ):
        with pytest.raises(compiler.UnavailableError, match=r"precision='int8'.*available: fp32, bf16"):
            make()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"precision_exclude": "fc.*"}, "expected a tuple of patterns"),
        ({"precision_exclude": (3,)}, "expected a tuple of patterns"),
        ({"precision_exclude": ("",)}, "expected a tuple of patterns"),
        ({"max_weight_error": -1}, "expected a number of at least 0"),
        ({"max_weight_error": True}, "expected a number of at least 0"),
        ({"max_weight_error": float("nan")}, "expected a number of at least 0"),
        ({"max_weight_error": "1 %"}, "expected a number of at least 0"),
    ],
    ids=str,
)
def test_settings_that_are_refused(compiler: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(compiler.ConfigError, match=message):
        compiler.CompilerConfig(**changes)


def test_levels_without_the_pass_refuse(compiler: Any) -> None:
    for level in ("O0", "O1"):
        with pytest.raises(compiler.ConfigError, match="expected optimization_level 'O2' or 'O3' for 'bf16'"):
            compiler.CompilerConfig(optimization_level=level, precision="bf16")
        compiler.CompilerConfig(optimization_level=level)


def test_what_the_engine_decides(compiler: Any) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.Sequential(nn.Linear(16, 4)), nn.Linear(4, 4)).eval()
    settings = {"precision": "int8_weight", "max_weight_error": 0.5}
    with torch.no_grad():
        compiler.compile(model, precision_exclude=("1",), **settings)(torch.ones(2, 8))
    decisions = {decision.module: decision for decision in compiler.compilation_stats().precision_decisions}
    assert {module: (d.k, d.n, d.precision) for module, d in decisions.items()} == {
        "0": (8, 16, "int8_weight"),
        "1.0": (16, 4, "fp32"),
        "2": (4, 4, "int8_weight"),
    }
    assert 0 < (decisions["0"].weight_error or 0) < 0.02 and "exclude" in decisions["1.0"].reason


@pytest.mark.parametrize(
    ("precision", "limit"),
    [("bf16", 0.02), ("fp16", 0.003), ("int8", 0.05), ("int8_weight", 0.03), ("int4_weight", 0.3)],
)
def test_results_in_every_precision(
    compiler: Any, precision: Any, limit: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THRESHER_SMALL_PRODUCTS", "always")
    model = nn.Sequential(nn.Linear(96, 128), nn.GELU(), nn.Linear(128, 64)).eval()
    x = torch.randn(9, 96)
    with torch.no_grad():
        want = model(x)
        got = compiler.compile(model, precision=precision, max_weight_error=0)(x)
    error = ((got - want).norm() / want.norm()).item()
    assert 1e-6 < error < limit
    assert [d.precision for d in compiler.compilation_stats().precision_decisions] == [precision] * 2


def test_what_the_engine_is_told(compiler: Any) -> None:
    assert compiler.CompilerConfig(precision_exclude=("fc",)).precision_arguments() == {}
    config = compiler.CompilerConfig(precision="int8", precision_exclude=["fc.*"], max_weight_error=1)
    assert config.precision_arguments() == {"precision": "int8", "exclude": ["fc.*"], "max_weight_error": 1.0}
    hash(config)


def test_arguments_of_compile_go_before_the_configuration(compiler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model, **settings: seen.update(settings) or real(model, **settings))
    config = compiler.CompilerConfig(precision="bf16", precision_exclude=("0",), fusion=False)
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    compiler.compile(model, precision="int8", max_weight_error=0.5, config=config)
    chosen = seen["options"]["config"]
    assert (chosen.precision, chosen.precision_exclude, chosen.max_weight_error) == ("int8", ("0",), 0.5)
    assert not chosen.fusion
    compiler.compile(model, precision_exclude=("1",), config=config)
    chosen = seen["options"]["config"]
    assert (chosen.precision, chosen.precision_exclude) == ("bf16", ("1",))


def test_patterns_that_match_no_module() -> None:
    modules = ["", "encoder", "encoder.layer.0.dense", "encoder.layer.1.dense", "pooler"]
    assert rules.unmatched(["encoder.layer.0.*", "pooler", "*"], modules) == []
    (sentence,) = rules.unmatched(["encoder.layr.0.dense"], modules)
    assert "'encoder.layr.0.dense' matches no module" in sentence and "'encoder.layer.0.dense'" in sentence
    (sentence,) = rules.unmatched(["zzz"], modules)
    assert sentence.endswith("of the model")


def test_warnings_about_patterns(compiler: Any) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3))).eval()
    x = torch.ones(2, 3)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        compiler.compile(model, precision_exclude=("1.*", "0"))(x)
    with pytest.warns(UserWarning, match=r"'1\.1' matches no module of the model; the nearest module is '1\.0'"):
        compiler.compile(model, precision_exclude=("1.1",))
    torch._dynamo.reset()
    options = {"precision_exclude": ("1.*", "2")}
    with torch.no_grad(), pytest.warns(UserWarning, match="'2' matches no module") as caught:
        torch.compile(model, backend=compiler.thresher_backend, options=options)(x)
    assert len([w for w in caught if "precision_exclude" in str(w.message)]) == 1


def test_a_decision_knows_its_module() -> None:
    of = rules.PrecisionDecision.of
    assert of(entry("a.b")).module == "a.b"
    assert str(of(entry(""))).startswith("m.py:3 in f: linear 8 x 16 in bf16, weight error 0.001")
    text = str(of(entry("a.b", precision="fp32", weight_error=None, reason="excluded")))
    assert text == "a.b: linear 8 x 16 in fp32 (excluded)"


def test_layers_appear_once() -> None:
    first = [rules.PrecisionDecision.of(e) for e in (entry("a"), entry("a"), entry("b"))]
    second = [rules.PrecisionDecision.of(e) for e in (entry("a", precision="fp32"), entry("c"), entry("b"))]
    merged = rules.merge([first, second])
    assert [(d.module, d.precision) for d in merged] == [("a", "bf16"), ("a", "bf16"), ("b", "bf16"), ("c", "bf16")]
    assert rules.merge([]) == ()


def test_summary_of_what_is_multiplied_otherwise() -> None:
    slow = [rules.PrecisionDecision.of(entry(f"l{i}", reason="asked for; multiplied in fp32, since")) for i in range(3)]
    assert rules.summarize(slow) == "layers: 3 in bf16\n  bf16: multiplied in fp32, since"


@pytest.mark.parametrize(("wanted", "found"), [("int8", "int8_weight"), ("bf16", "bf16")])
def test_products_of_small_numbers_switched_off(
    compiler: Any, wanted: Any, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THRESHER_SMALL_PRODUCTS", "never")
    model, x = nn.Linear(64, 64).eval(), torch.randn(8, 64)
    with torch.no_grad():
        assert (compiler.compile(model, precision=wanted)(x) - model(x)).abs().max() < 0.05
    (decision,) = compiler.compilation_stats().precision_decisions
    assert decision.precision == found and "THRESHER_SMALL_PRODUCTS" in decision.reason


def test_summary_of_decisions() -> None:
    many = [rules.PrecisionDecision.of(entry(f"l{i}", precision="fp32", reason="excluded")) for i in range(20)]
    text = rules.summarize([rules.PrecisionDecision.of(entry("a"))] * 30 + many)
    assert text.startswith("layers: 30 in bf16, 20 in fp32\n  l0: linear 8 x 16 in fp32")
    assert text.endswith("and 12 more, see precision_decisions") and rules.summarize([]) == ""


def test_stats_merge_the_plans_of_a_graph(compiler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from thresher.compiler import stats

    model = nn.Linear(8, 16).eval()
    compiled = compiler.compile(model, dynamic=True, config=compiler.CompilerConfig(plan_sizes="one"))
    monkeypatch.setattr(stats, "decisions_of", lambda plan: [rules.PrecisionDecision.of(entry())])
    with torch.no_grad():
        compiled(torch.ones(2, 8))
        compiled(torch.ones(3, 8))
    found = compiler.compilation_stats()
    assert found.plans == 2 and [d.module for d in found.precision_decisions] == ["fc"]
    assert "layers: 1 in bf16" in found.summary() and "2 plans alive" in found.summary()


# ---- memory ----


class Held(nn.Module):
    """Reads a table in place, packs matrices, of which two are not row-major, and adds to each row of another such."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(1000, 64)
        self.fc = nn.Linear(64, 128)
        self.turned = nn.Parameter(torch.randn(96, 128).t())
        self.last = nn.Linear(96, 32)
        self.last.weight = nn.Parameter(torch.randn(96, 32).t())
        self.added = nn.Parameter(torch.randn(32, 12).t())

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.last(self.fc(self.table(ids)) @ self.turned)
        return hidden[:, None] + self.added


def test_memory_that_weights_take(compiler: Any) -> None:
    model = Held().eval()
    assert not any(parameter.is_contiguous() for parameter in (model.turned, model.last.weight, model.added))
    ids = torch.arange(12)
    with torch.no_grad():
        compiled = compiler.compile(model, dynamic=True, config=compiler.CompilerConfig(plan_sizes="one"))
        torch.testing.assert_close(compiled(ids), model(ids), rtol=1e-4, atol=1e-4)
        one = compiler.compilation_stats()
        compiled(torch.arange(9))
    two = compiler.compilation_stats()
    assert two.plans == 2 and two.weights_held == one.weights_held
    held = one.weights_held
    assert held.copied == 4 * 32 * 12  # products read the others as they lie
    assert held.original == 4 * (1000 * 64 + 128 + 32)
    assert held.packed == one.weight_bytes >= 4 * (64 * 128 + 128 * 96 + 96 * 32)
    assert one.peak_memory_bytes == one.peak_arena_bytes + held.packed + held.engine + held.copied
    compiler.clear_cache()
    assert compiler.compilation_stats().weights_held == type(held)()

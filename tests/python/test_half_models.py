"""Models in bfloat16 and float16: what runs in the engine, and how exact it is."""

from __future__ import annotations

import copy
import math
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import thresher  # noqa: E402
from thresher.model.loading import from_bf16, to_bf16  # noqa: E402

HALVES = (torch.bfloat16, torch.float16)


def small(family: str, **more: Any) -> torch.nn.Module:
    torch.manual_seed(1)
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
    config = getattr(transformers, f"{family}Config")(**sizes, vocab_size=300, **more)
    return getattr(transformers, f"{family}Model")(config).eval()


MODELS = {
    "bert": lambda: small("Bert"),
    "llama": lambda: small("Llama", num_key_value_heads=2),
    "qwen3": lambda: small("Qwen3", num_key_value_heads=2, head_dim=16),
    "gpt2": lambda: transformers.GPT2Model(
        transformers.GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=300, bos_token_id=0, eos_token_id=0)
    ).eval(),
    "t5": lambda: transformers.T5EncoderModel(
        transformers.T5Config(d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4, vocab_size=300)
    ).eval(),
}


def first(result: Any) -> torch.Tensor:
    return result[0]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


def combinations() -> list[Any]:
    """Each model, and each type with each attention; the other combinations run nightly."""
    return [
        pytest.param(name, dtype, attention, marks=[] if (j, k) == (i % 2, i // 2 % 2) else [pytest.mark.thorough])
        for (i, name), (j, dtype), (k, attention) in product(
            enumerate(MODELS), enumerate(HALVES), enumerate(("sdpa", "eager"))
        )
    ]


@pytest.mark.parametrize(("name", "dtype", "attention"), combinations(), ids=str)
def test_models_run_whole_and_lose_less_than_eager(name: str, dtype: torch.dtype, attention: str) -> None:
    model = MODELS[name]().to(dtype)
    model.set_attn_implementation(attention)
    ids = torch.randint(0, 300, (2, 19), generator=torch.Generator().manual_seed(2))
    keep = torch.ones_like(ids)
    keep[1, 12:] = 0
    arguments: dict[str, Any] = {"input_ids": ids, "attention_mask": keep}
    if hasattr(model.config, "use_cache"):
        model.config.use_cache = False
    with torch.no_grad():
        reference = first(copy.deepcopy(model).double()(**arguments))[keep.bool()]
        eager = first(model(**arguments))[keep.bool()]
        compiled = thresher.compile(model, config=thresher.CompilerConfig(fallback="error"))
        result = first(compiled(**arguments))
    assert result.dtype == dtype
    result = result[keep.bool()]
    error = float((result - reference).abs().max())
    assert error <= float((eager - reference).abs().max())
    assert float((result - reference).abs().mean()) <= float((eager - reference).abs().mean())
    # One rounding of the largest result, and what rounding rows to bf16 before a product adds.
    assert error <= {torch.bfloat16: 2**-5, torch.float16: 2**-9}[dtype] * float(reference.abs().max())


class Noticing(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        total = x + y
        product = x * y
        return (
            total,
            total > 1,
            product.to(torch.int64),
            torch.isinf(product),
            total == total.amax(),
            (x.float() * y.float()).to(x.dtype) >= 0.1,
            torch.full_like(x, 0.1),
            torch.arange(3, dtype=x.dtype) * 0.1 + x[:3],
        )


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_what_notices_rounding_sees_what_pytorch_sees(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    x = torch.cat([torch.randn(500, generator=generator), torch.randn(500, generator=generator) * 300]).to(dtype)
    y = torch.cat([torch.randn(500, generator=generator), torch.randn(500, generator=generator) * 300]).to(dtype)
    model = Noticing().eval()
    with torch.no_grad():
        wanted = model(x, y)
        found = thresher.compile(model, config=thresher.CompilerConfig(fallback="error"))(x, y)
    for index, (want, have) in enumerate(zip(wanted, found, strict=True)):
        assert want.dtype == have.dtype and torch.equal(want, have), index


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_nan_and_infinity_stay_in_their_row(dtype: torch.dtype, value: float) -> None:
    torch.manual_seed(4)
    model = torch.nn.Sequential(torch.nn.Linear(48, 32), torch.nn.GELU(), torch.nn.Linear(32, 40)).eval().to(dtype)
    x = torch.randn(5, 48).to(dtype)
    with torch.no_grad():
        compiled = thresher.compile(model)
        clean = compiled(x)
        x[2, 7] = value
        found = compiled(x)
        wanted = model(x)
    assert torch.equal(found[[0, 1, 3, 4]], clean[[0, 1, 3, 4]])
    assert torch.equal(found[2].isnan(), wanted[2].isnan())


def test_mixed_types_in_one_call() -> None:
    class Mixed(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
            return x * y + z.to(x.dtype) @ z.to(x.dtype).T

    generator = torch.Generator().manual_seed(5)
    x, y = torch.randn(6, 6, generator=generator).bfloat16(), torch.randn(6, 6, generator=generator)
    z = torch.randn(6, 9, generator=generator).half()
    with torch.no_grad():
        wanted = Mixed()(x.double(), y.double(), z.double())
        found = thresher.compile(Mixed(), config=thresher.CompilerConfig(fallback="error"))(x, y, z)
    assert found.dtype == torch.float32  # bfloat16 * float32
    assert torch.allclose(found.double(), wanted, atol=0.1)


def test_float64_is_left_to_pytorch_with_the_reason() -> None:
    model = torch.nn.Linear(8, 8).double().eval()
    x = torch.randn(3, 8, dtype=torch.float64)
    with torch.no_grad(), pytest.warns(UserWarning, match="has dtype float64, expected one of float32, bfloat16"):
        found = thresher.compile(model)(x)
        assert torch.equal(found, model(x))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_weights_stay_as_they_are_stored(dtype: torch.dtype) -> None:
    torch.manual_seed(6)
    model = torch.nn.Sequential(torch.nn.Linear(200, 504), torch.nn.ReLU(), torch.nn.Linear(504, 200)).eval().to(dtype)
    with torch.no_grad():
        compiled = thresher.compile(model)
        compiled(torch.randn(4, 200).to(dtype))
        stats = thresher.compilation_stats()
    wanted = {torch.bfloat16: "bf16", torch.float16: "fp16"}[dtype]
    # Models of other tests may be alive; sizes tell the layers apart.
    found = [d for d in stats.precision_decisions if {d.k, d.n} == {200, 504} and d.precision == wanted]
    assert len(found) == 2 and all(d.reason.startswith("the weight is stored so") for d in found)
    del compiled


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8", "int8_weight"])
def test_another_precision_than_the_models(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THRESHER_SMALL_PRODUCTS", "always")
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.Tanh(), torch.nn.Linear(96, 48)).eval().bfloat16()
    x = torch.randn(7, 64).bfloat16()
    with torch.no_grad():
        reference = copy.deepcopy(model).double()(x.double())
        compiled = thresher.compile(model, precision=precision)  # type: ignore[arg-type]
        found = compiled(x)
    decisions = thresher.compilation_stats().precision_decisions
    assert [d.precision for d in decisions if (d.k, d.n) in ((64, 96), (96, 48))].count(precision) >= 2
    limit = {"fp32": 2**-8, "bf16": 0.02}.get(precision, 0.06)
    assert float((found.double() - reference).abs().max()) <= limit * float(reference.abs().max())


def test_gradients_are_eagers() -> None:
    torch.manual_seed(8)
    model = torch.nn.Sequential(torch.nn.Linear(16, 24), torch.nn.GELU(), torch.nn.Linear(24, 4)).bfloat16()
    x = torch.randn(5, 16).bfloat16().requires_grad_()
    model(x).float().square().sum().backward()
    wanted = [x.grad.clone(), *(p.grad.clone() for p in model.parameters())]
    model.zero_grad()
    x.grad = None
    thresher.compile(model)(x).float().square().sum().backward()
    for want, have in zip(wanted, [x.grad, *(p.grad for p in model.parameters())], strict=True):
        assert have.dtype == torch.bfloat16
        assert float((want - have).float().abs().max()) <= 0.03 * float(want.float().abs().max())


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_export_and_load(dtype: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(9)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 16)).eval().to(dtype)
    x = torch.randn(3, 32).to(dtype)
    path = tmp_path / "half.thrmodel"
    thresher.export(model, (x,), path)
    # In 16 bits in the file, too.
    assert path.stat().st_size < 2 * (32 * 64 + 64 * 16) + 8192
    loaded = thresher.load(path)
    port = loaded.inputs[0]
    assert (port.bf16, str(port.dtype)) == (dtype == torch.bfloat16, "float32" if port.bf16 else "float16")
    assert ("bfloat16" if port.bf16 else "float16") in repr(loaded)
    found = next(iter(loaded(x.float().numpy() if port.bf16 else x.numpy()).values()))
    with torch.no_grad():
        wanted = thresher.compile(model)(x)
    assert np.array_equal(found, wanted.float().numpy())
    assert loaded.stats().precision == "model"


def test_bf16_of_numpy_rounds_as_pytorch_does() -> None:
    bits = np.random.default_rng(10).integers(0, 2**32, 200_000, dtype=np.uint32)
    numbers = np.concatenate(
        [bits.view(np.float32), np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1.00390625], np.float32)]
    )
    wanted = torch.from_numpy(numbers).bfloat16()
    found = torch.from_numpy(from_bf16(to_bf16(numbers)))
    assert torch.equal(found.isnan(), wanted.isnan())
    assert torch.equal(found[~found.isnan()], wanted.float()[~wanted.isnan()])
    assert from_bf16(to_bf16(np.float32(2.5))).shape == ()


@pytest.mark.parametrize("level", ["O0", "O1", "O2"])
def test_every_level(level: str) -> None:
    model = MODELS["bert"]().bfloat16()
    ids = torch.randint(0, 300, (1, 9), generator=torch.Generator().manual_seed(11))
    with torch.no_grad():
        reference = first(copy.deepcopy(model).double()(ids))
        eager = first(model(ids))
        found = first(thresher.compile(model, optimization_level=level)(ids))  # type: ignore[arg-type]
    assert float((found - reference).abs().max()) <= float((eager - reference).abs().max())

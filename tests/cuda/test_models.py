"""Whole models on a device: tiny ones of known architectures with random weights, against PyTorch in float64.

Where there is a GPU their tensors are CUDA tensors, which the engine uses in place; on the emulator they are the host's.
"""

from __future__ import annotations

import copy
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import thresher  # noqa: E402
from thresher.machine import Backend  # noqa: E402

pytestmark = pytest.mark.gpu

BATCH, LENGTH = 3, 13


def _ids(vocabulary: int = 97) -> Any:
    return torch.randint(0, vocabulary, (BATCH, LENGTH), generator=torch.Generator().manual_seed(1))


def _mask() -> Any:
    mask = torch.ones(BATCH, LENGTH, dtype=torch.int64)
    mask[1, 7:] = 0
    return mask


def _bert() -> tuple[Any, dict[str, Any]]:
    config = transformers.BertConfig(
        vocab_size=97,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=64,
    )
    return transformers.BertModel(config), {"input_ids": _ids(), "attention_mask": _mask()}


def _gpt2() -> tuple[Any, dict[str, Any]]:
    config = transformers.GPT2Config(vocab_size=97, n_embd=64, n_layer=2, n_head=4, n_positions=64, use_cache=False)
    return transformers.GPT2LMHeadModel(config), {"input_ids": _ids()}


def _llama() -> tuple[Any, dict[str, Any]]:
    config = transformers.LlamaConfig(
        vocab_size=97,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        use_cache=False,
    )
    return transformers.LlamaForCausalLM(config), {"input_ids": _ids()}


def _vit() -> tuple[Any, dict[str, Any]]:
    config = transformers.ViTConfig(
        image_size=32, patch_size=8, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128
    )
    return transformers.ViTModel(config), {"pixel_values": _pixels()}


def _resnet() -> tuple[Any, dict[str, Any]]:
    config = transformers.ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic", num_labels=7
    )
    return transformers.ResNetForImageClassification(config), {"pixel_values": _pixels()}


def _t5() -> tuple[Any, dict[str, Any]]:
    config = transformers.T5Config(
        vocab_size=97, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, use_cache=False
    )
    inputs = {"input_ids": _ids(), "attention_mask": _mask(), "decoder_input_ids": _ids()[:, :5]}
    return transformers.T5Model(config), inputs


def _pixels() -> Any:
    return torch.randn(BATCH, 3, 32, 32, generator=torch.Generator().manual_seed(2))


MODELS: dict[str, Callable[[], tuple[Any, dict[str, Any]]]] = {
    "bert": _bert,
    "gpt2": _gpt2,
    "llama": _llama,
    "vit": _vit,
    "resnet": _resnet,
    "t5": _t5,
}
# The emulator takes seconds for others.
EMULATED = ("bert", "llama")


class Place:
    """Where models of these tests run.

    Attributes:
        is_real: whether that is a GPU, and tensors are CUDA tensors.
    """

    def __init__(self, *, is_real: bool) -> None:
        self.is_real = is_real

    def put(self, value: Any) -> Any:
        """A tensor or a model where calls want it."""
        return value.cuda() if self.is_real else value

    def compile(self, model: Any, **settings: Any) -> Any:
        """The model in the engine; what runs in PyTorch is no surprise here."""
        if not self.is_real:
            settings["target"] = "cuda"
        return thresher.compile(model, **settings)


@pytest.fixture
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    library = request.config.getoption("--device-library")
    obstacle = Backend("cuda").obstacle()
    if obstacle and library is None:
        pytest.skip(f"skipped: no GPU: {obstacle}")
    if not obstacle and not torch.cuda.is_available():
        pytest.skip("wants a PyTorch for CUDA")
    if obstacle:
        monkeypatch.setitem(sys.modules, "thresher_cuda", types.SimpleNamespace(library_path=lambda: library))
    torch._dynamo.reset()
    thresher.clear_cache()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield Place(is_real=not obstacle)
    torch._dynamo.reset()
    thresher.clear_cache()


def _first(output: Any) -> Any:
    return output[0] if isinstance(output, tuple) else next(iter(output.values()))


def _run(model: Any, inputs: dict[str, Any]) -> Any:
    with torch.no_grad():
        return _first(model(**inputs))


def _error(found: Any, exact: Any) -> float:
    return float((found.double().cpu() - exact).norm() / exact.norm())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_gives_what_pytorch_gives(place: Place, name: str, dtype: str) -> None:
    if not place.is_real and (name not in EMULATED or dtype == "float16"):
        pytest.skip("takes the emulator too long")
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    kind = getattr(torch, dtype)
    model = model.eval().to(kind)
    exact = _run(copy.deepcopy(model).double(), {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()})
    model = place.put(model)
    given = {key: place.put(value.to(kind) if value.is_floating_point() else value) for key, value in inputs.items()}
    theirs = _error(_run(model, given), exact)
    compiled = place.compile(model)
    results = [_run(compiled, given) for _ in range(3)]
    stats = thresher.compilation_stats()
    assert stats.partitions > 0
    assert not stats.eager_shapes
    ours = _error(results[0], exact)
    assert results[0].dtype == kind
    assert results[0].is_cuda == place.is_real
    assert ours <= (2e-6 if dtype == "float32" else 1e-3) + 1.5 * theirs, f"{ours:.2e}, PyTorch {theirs:.2e}"
    assert all(torch.equal(result, results[0]) for result in results[1:])


def test_one_plan_serves_many_sizes(place: Place) -> None:
    torch.manual_seed(0)
    model, inputs = _bert()
    model = place.put(model.eval())
    compiled = place.compile(model)
    for batch, length in ((3, 13), (2, 9), (1, 5), (3, 4), (2, 12)):
        given = {key: place.put(value[:batch, :length].contiguous()) for key, value in inputs.items()}
        assert torch.allclose(_run(compiled, given), _run(model, given), atol=1e-5)

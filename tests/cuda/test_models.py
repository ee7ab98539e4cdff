"""Whole models on a device: tiny ones of known architectures, against PyTorch in float64.

On a GPU their tensors are CUDA tensors, which the engine uses in place; on the emulator they are the host's.
"""

from __future__ import annotations

import copy
import ctypes
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
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
        num_hidden_layers=1,
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


def _resnet50() -> tuple[Any, dict[str, Any]]:
    """Blocks of three convolutions, the second with a stride, as torchvision's; one block a stage."""
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[16, 32, 32], depths=[1, 1, 1], layer_type="bottleneck", num_labels=7
    )
    return transformers.ResNetForImageClassification(config), {"pixel_values": _pixels(16)}


def _mobilenet() -> tuple[Any, dict[str, Any]]:
    config = transformers.MobileNetV2Config(image_size=32, depth_multiplier=0.25, min_depth=8, num_labels=7)
    return transformers.MobileNetV2ForImageClassification(config), {"pixel_values": _pixels()}


def _efficientnet() -> tuple[Any, dict[str, Any]]:
    config = transformers.EfficientNetConfig(
        image_size=32,
        width_coefficient=0.25,
        in_channels=[16, 24],
        out_channels=[24, 40],
        kernel_sizes=[3, 5],
        strides=[2, 2],
        num_block_repeats=[1, 1],
        expand_ratios=[1, 4],
        depthwise_padding=[],
        hidden_dim=320,
        num_labels=7,
    )
    return transformers.EfficientNetForImageClassification(config), {"pixel_values": _pixels()}


def _t5() -> tuple[Any, dict[str, Any]]:
    config = transformers.T5Config(
        vocab_size=97, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, use_cache=False
    )
    inputs = {"input_ids": _ids(), "attention_mask": _mask(), "decoder_input_ids": _ids()[:, :5]}
    return transformers.T5Model(config), inputs


def _pixels(size: int = 32) -> Any:
    return torch.randn(BATCH, 3, size, size, generator=torch.Generator().manual_seed(2))


MODELS: dict[str, Callable[[], tuple[Any, dict[str, Any]]]] = {
    "bert": _bert,
    "gpt2": _gpt2,
    "llama": _llama,
    "vit": _vit,
    "resnet": _resnet,
    "resnet50": _resnet50,
    "mobilenet": _mobilenet,
    "efficientnet": _efficientnet,
    "t5": _t5,
}
# The emulator takes seconds for others.
EMULATED = ("bert", "llama", "resnet50")


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
    exact = _run(
        copy.deepcopy(model).double(), {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}
    )
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


def _kernels(request: pytest.FixtureRequest, compiled: Any, inputs: dict[str, Any]) -> int:
    """How many kernels a call of a compiled model launches."""
    count = ctypes.CDLL(request.config.getoption("--device-library")).emulated_kernels
    _run(compiled, inputs)
    before = int(count())
    _run(compiled, inputs)
    return int(count()) - before


# Of BERT: queries, keys and values; attention; the output product; norm; the product with gelu; the one behind it;
# norm. Of Llama: norm; queries, keys and values; rotary positions of two of them; attention; the output product; norm;
# gate and up; silu of one times the other; the product behind it.
@pytest.mark.parametrize(("name", "most"), [("bert", 7), ("llama", 10)])
def test_how_many_kernels_a_layer_is(place: Place, request: pytest.FixtureRequest, name: str, most: int) -> None:
    if place.is_real:
        pytest.skip("the emulator counts them")
    found = []
    for layers in (1, 2):
        model, inputs = MODELS[name]()
        config = copy.deepcopy(model.config)
        config.num_hidden_layers = layers
        compiled = place.compile(
            type(model)(config).eval().bfloat16(), config=thresher.CompilerConfig(cuda_graphs=False)
        )
        found.append(_kernels(request, compiled, inputs))
    assert found[1] - found[0] <= most


def test_one_plan_serves_many_sizes(place: Place) -> None:
    torch.manual_seed(0)
    model, inputs = _bert()
    model = place.put(model.eval())
    compiled = place.compile(model)
    sizes = ((3, 13), (2, 9), (1, 5), (3, 4), (2, 12)) if place.is_real else ((2, 4), (3, 5), (2, 6))
    for batch, length in sizes:
        given = {key: place.put(value[:batch, :length].contiguous()) for key, value in inputs.items()}
        assert torch.allclose(_run(compiled, given), _run(model, given), atol=1e-5)


@pytest.mark.parametrize("graphs", [True, False])
def test_the_road_of_torch_compile(place: Place, graphs: bool) -> None:
    torch.manual_seed(0)
    model, inputs = _bert()
    model = place.put(model.eval())
    inputs = {key: place.put(value) for key, value in inputs.items()}
    options: dict[str, Any] = {"cuda_graphs": graphs}
    if not place.is_real:
        options["target"] = "cuda"
    compiled = torch.compile(model, backend="thresher", options=options)
    for _ in range(3):
        assert torch.allclose(_run(compiled, inputs), _run(model, inputs), atol=1e-5)
    assert thresher.compilation_stats().partitions > 0


def test_a_changed_parameter_is_noticed(place: Place) -> None:
    torch.manual_seed(0)
    model = place.put(torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)).eval())
    x = place.put(torch.randn(5, 16))
    compiled = place.compile(model)
    with torch.no_grad():
        for factor in (1.0, 2.0, 0.5):
            model[0].weight.mul_(factor)
            model[2].bias.add_(factor)
            for _ in range(2):
                assert torch.allclose(compiled(x), model(x), atol=1e-5)


def test_inputs_of_any_strides(place: Place) -> None:
    torch.manual_seed(0)
    model = place.put(torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)).eval())
    compiled = place.compile(model)
    x = place.put(torch.randn(33, 40))
    with torch.no_grad():
        for given in (x[:16, :7].t(), x[:5, 1:17], x[::2, 3:19], x[:1, :16].expand(3, 16), x[1:6, :32:2]):
            for _ in range(2):
                assert torch.allclose(compiled(given), model(given), atol=1e-5)


@pytest.fixture
def real(place: Place) -> Place:
    """For what the emulator does not have: CUDA tensors."""
    if not place.is_real:
        pytest.skip("skipped: no GPU, and the emulator does not do for this")
    return place


def _small(place: Place) -> tuple[Any, dict[str, Any], Any]:
    torch.manual_seed(0)
    model, inputs = _bert()
    model = place.put(model.eval())
    return model, {key: place.put(value) for key, value in inputs.items()}, place.compile(model)


def test_streams_of_the_program(real: Place) -> None:
    model, inputs, compiled = _small(real)
    wanted = _run(model, inputs)
    for _ in range(3):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            found = _run(compiled, inputs)
        stream.synchronize()
        assert torch.allclose(found, wanted, atol=1e-5)
        assert torch.allclose(_run(compiled, inputs), wanted, atol=1e-5)


def test_the_program_may_capture_calls(real: Place) -> None:
    model, inputs, compiled = _small(real)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            _run(compiled, inputs)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = _run(compiled, inputs)
    for seed in range(3):
        torch.manual_seed(seed)
        inputs["input_ids"].copy_(torch.randint(0, 97, (BATCH, LENGTH)))
        graph.replay()
        _run(compiled, {key: value[:2] for key, value in inputs.items()})  # another call between has memory of its own
        assert torch.allclose(found, _run(model, inputs), atol=1e-5)


def test_threads_with_streams_of_their_own(real: Place) -> None:
    model, inputs, compiled = _small(real)
    wanted = _run(model, inputs)
    _run(compiled, inputs)
    torch.cuda.synchronize()

    def work(_: int) -> bool:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            found = [_run(compiled, inputs) for _ in range(10)]
        stream.synchronize()
        return all(torch.allclose(one, wanted, atol=1e-5) for one in found)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(8)))


def test_calls_do_not_wait_and_take_no_memory(real: Place) -> None:
    _, inputs, compiled = _small(real)
    for _ in range(4):
        _run(compiled, inputs)
    torch.cuda.synchronize()
    free, held = torch.cuda.mem_get_info()[0], torch.cuda.memory_allocated()
    busy = torch.randn(8192, 8192, device="cuda")
    torch.cuda.synchronize()
    done = torch.cuda.Event()
    for _ in range(20):
        busy @ busy
    result = _run(compiled, inputs)
    done.record()
    assert not done.query(), "a call waited for the device"
    torch.cuda.synchronize()
    del busy, result
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() == held
    for _ in range(20):
        _run(compiled, inputs)
    torch.cuda.synchronize()
    assert torch.cuda.mem_get_info()[0] >= free - (2 << 20)


def test_tensors_of_the_host_on_the_gpu(real: Place) -> None:
    torch.manual_seed(0)
    model, inputs = _bert()
    model.eval()
    compiled = thresher.compile(model, target="cuda")
    for _ in range(4):
        found = _run(compiled, inputs)
        assert not found.is_cuda
        assert torch.allclose(found, _run(model, inputs), atol=1e-5)


def test_a_call_without_memory_fails_alone(real: Place) -> None:
    _, inputs, compiled = _small(real)
    wanted = _run(compiled, inputs)
    large = torch.nn.Sequential(torch.nn.GELU(), torch.nn.Softmax(-1), torch.nn.Tanh()).cuda()
    other = real.compile(large)
    free = torch.cuda.mem_get_info()[0]
    hog = torch.empty(free - (256 << 20), dtype=torch.uint8, device="cuda")
    with pytest.raises((RuntimeError, MemoryError)):
        _run_one(other, torch.empty(1 << 29, device="cuda"))
    del hog
    torch.cuda.empty_cache()
    assert torch.equal(_run(compiled, inputs), wanted)


def _run_one(model: Any, x: Any) -> Any:
    with torch.no_grad():
        return model(x)

"""Networks of vision and speech, whole in the engine: compiled and as model files, in both orders of memory."""

from __future__ import annotations

import importlib
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import thresher  # noqa: E402
from thresher import zoo  # noqa: E402
from thresher.compiler.stats import RECORDER  # noqa: E402

_TRANSFORMER = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}


def of_transformers(family: str, name: str = "Model", **sizes: Any) -> Callable[[], Any]:
    """Makes a model of transformers."""

    def make() -> Any:
        transformers: Any = pytest.importorskip("transformers")
        config = getattr(transformers, f"{family}Config")(**sizes)
        module = type(config).__module__.replace(".configuration_", ".modeling_")
        return getattr(importlib.import_module(module), f"{family}{name}")(config)

    return make


class UNet(nn.Module):
    """Down, up, and across."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.deep, self.last = self._two(3, 16), self._two(16, 32), self._two(32, 16)
        self.up = nn.ConvTranspose2d(32, 16, 2, 2)
        self.classes = nn.Conv2d(16, 5, 1)

    @staticmethod
    def _two(channels: int, out: int) -> nn.Sequential:
        layers = [nn.Conv2d(channels, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU()]
        return nn.Sequential(*layers, nn.Conv2d(out, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU())

    def forward(self, x: Any) -> Any:
        across = self.first(x)
        deep = self.deep(functional.max_pool2d(across, 2))
        return self.classes(self.last(torch.cat([across, self.up(deep)], 1)))


IMAGE, SOUND, BANDS = (2, 3, 32, 32), (2, 4000), (2, 16, 40)
# What makes it, the shape of its input, and how many steps move data, of an input in PyTorch's order and in
# channels_last: they stand at the ends, but for what a model asks for, as Swin's shifted windows.
MODELS: dict[str, tuple[Callable[[], Any], tuple[int, ...], tuple[int, ...]]] = {
    "unet": (UNet, IMAGE, (2, 0)),
    "resnet": (
        of_transformers("ResNet", depths=[2, 2], hidden_sizes=[32, 64], embedding_size=16, layer_type="bottleneck"),
        IMAGE,
        (2, 0),
    ),
    "mobilenet": (
        of_transformers("MobileNetV2", depth_multiplier=0.25, finegrained_output=False),
        IMAGE,
        (1, 0),
    ),
    "convnext": (
        of_transformers("ConvNext", depths=[1, 2], hidden_sizes=[16, 32], num_stages=2),
        IMAGE,
        (1, 0),
    ),
    "swin": (
        of_transformers("Swin", image_size=32, embed_dim=16, window_size=2, depths=[2, 2], num_heads=[2, 2]),
        IMAGE,
        (21, 20),
    ),
    "vit": (of_transformers("ViT", image_size=32, patch_size=8, **_TRANSFORMER), IMAGE, (1, 0)),
    "segformer": (
        of_transformers("Segformer", depths=[1] * 4, hidden_sizes=[16, 16, 32, 32], num_attention_heads=[1, 2, 2, 2]),
        (2, 3, 64, 64),
        (2, 1),
    ),
    "whisper": (
        of_transformers(
            "Whisper",
            "Encoder",
            d_model=32,
            encoder_layers=2,
            encoder_attention_heads=2,
            encoder_ffn_dim=64,
            num_mel_bins=16,
            max_source_positions=20,
        ),
        BANDS,
        (1,),
    ),
    "wav2vec2": (
        of_transformers("Wav2Vec2", conv_dim=[32] * 7, num_conv_pos_embedding_groups=1, **_TRANSFORMER),
        SOUND,
        (2,),
    ),
}


def made(name: str) -> tuple[Any, Any]:
    """The model with seeded weights and norms that have seen something, and an input."""
    make, shape, _ = MODELS[name]
    torch.manual_seed(0)
    model = make().eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, 0, 0.2)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    return model, torch.randn(shape)


def first(result: Any) -> Any:
    return result if isinstance(result, torch.Tensor) else result[0]


def movements() -> int:
    """How many steps of the plans there are only move data."""
    steps = [str(step["name"]) for graph in RECORDER.alive() for plan in graph.plans() for step in plan.steps()]
    return Counter(steps)["copy"]


def close(got: Any, want: Any) -> None:
    assert got.shape == want.shape
    assert (got - want).abs().max() <= 2e-5 * want.abs().max()


def runs_whole_in_the_engine(compiler: Any, name: str, *, channels_last: bool) -> None:
    model, x = made(name)
    given = x.to(memory_format=torch.channels_last) if channels_last else x
    with torch.no_grad():
        want = first(model(x))
        close(first(compiler.compile(model, config=compiler.CompilerConfig(fallback="error"))(given)), want)
    stats = compiler.compilation_stats()
    assert stats.unsupported == () and stats.eager_shapes == () and stats.partitions == 1
    assert movements() <= MODELS[name][2][channels_last]


def test_large_results_between_steps_stay_in_bands(compiler: Any) -> None:
    torch.manual_seed(0)
    wide = 32
    # No line is computed twice, so that bands pay whatever the processor.
    layers = [nn.Conv2d(8, wide, 1), nn.ReLU6(), nn.Conv2d(wide, wide, 2, stride=2, groups=wide), nn.ReLU6()]
    model = nn.Sequential(*layers, nn.Conv2d(wide, 8, 1)).eval()
    x = torch.randn(2, 8, 255, 257).to(memory_format=torch.channels_last)
    with torch.no_grad():
        # Many threads would each have a share that stays in its cache.
        close(compiler.compile(model, config=compiler.CompilerConfig(threads=2))(x), model(x))
    (plan,) = (plan for graph in RECORDER.alive() for plan in graph.plans())
    assert [(step["name"], step["banded"]) for step in plan.steps()] == [
        ("linear", True),
        ("convolution", True),
        ("linear", True),
    ]
    # Neither of the two results between the steps.
    assert compiler.compilation_stats().peak_arena_bytes < 2 * 255 * 257 * wide * 4


# The deep ones take PyTorch as long again to capture, and have no operators beyond those of the others.
DEEP = ("mobilenet", "swin", "segformer")


def marked(name: str) -> Any:
    return pytest.param(name, marks=[pytest.mark.thorough] if name in DEEP else [])


@pytest.mark.parametrize("name", [marked(name) for name in MODELS])
def test_whole_in_the_engine(compiler: Any, name: str) -> None:
    runs_whole_in_the_engine(compiler, name, channels_last=False)


@pytest.mark.parametrize("name", [marked(name) for name, (_, shape, _) in MODELS.items() if len(shape) == 4])
def test_whole_in_the_engine_from_channels_last(compiler: Any, name: str) -> None:
    runs_whole_in_the_engine(compiler, name, channels_last=True)


@pytest.mark.parametrize("name", ["unet", "mobilenet", "segformer", "whisper", "wav2vec2"])
def test_as_a_model_file(name: str, tmp_path: Path) -> None:
    model, x = made(name)
    with torch.no_grad():
        want = first(model(x))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        file = thresher.export(model, (x,), tmp_path / "m.thrmodel")
    loaded = thresher.load(file)
    (port,) = loaded.inputs
    close(torch.from_numpy(np.array(next(iter(loaded(**{port.name: x.numpy()}).values())))), want)


# ---- with the weights of packages ----


def entry(name: str) -> Any:
    obstacle = zoo.info(name).obstacle()
    if obstacle is not None:
        pytest.skip(obstacle)
    thresher.clear_cache()
    return zoo.load(name)


@pytest.mark.thorough  # the detector, which is below, is a model of full size with its own weights, too
def test_efficientnet_sees_what_pytorch_sees() -> None:
    from thresher.zoo import efficientnet

    found = entry("efficientnet-lite0")
    assert sum(p.numel() for p in found.model.parameters()) == found.info.parameters
    compiled = found.compile()
    best = {}
    with torch.no_grad():
        for name in efficientnet.PHOTOS:
            photo = efficientnet.photo(name)
            shares, want = compiled(photo).softmax(1)[0], found.model(photo).softmax(1)[0]
            assert shares.topk(5).indices.tolist() == want.topk(5).indices.tolist(), name
            torch.testing.assert_close(shares, want, atol=1e-5, rtol=1e-3)
            assert movements() == 1, "the photo is turned, and nothing else"
            best[name] = efficientnet.NAMES[int(shares.argmax())]
    assert best == {
        "chelsea.png": "tiger cat",
        "coffee.png": "espresso",
        "camera.png": "tripod",
        "rocket.jpg": "missile",
        "motorcycle_left.png": "moped",
    }
    assert thresher.compilation_stats().unsupported == ()


@pytest.mark.thorough  # two models of full size
def test_the_page_is_read() -> None:
    reader = entry("pp-ocr-reader")
    lines = reader.answer().splitlines()
    assert [float(line.split()[0]) > 0.85 for line in lines] == [True] * 7
    said = ["".join(line[6:].split()) for line in lines]  # it drops spaces here and there
    assert said[0] == "Region-basedsegmentation"
    assert said[1] == "Letusfirstdeterminemarkersofthecoinsandthe"
    assert said[2] == "background.Thesemarkersarepixelsthatwecanlabel"
    assert said[5] == "histogramofgreyvalues:"
    assert said[6] == ">>>markers=np.zeros_like(coins)"
    assert sum(p.numel() for p in reader.model.parameters()) == reader.info.parameters
    assert thresher.compilation_stats().unsupported == ()


def test_the_detector_marks_what_pytorch_marks() -> None:
    found = entry("pp-ocr-detector")
    page = torch.rand(1, 3, 64, 96, generator=torch.Generator().manual_seed(0)) * 2 - 1
    with torch.no_grad():
        torch.testing.assert_close(found.compile()(page), found.model(page), atol=1e-5, rtol=1e-3)
    assert sum(p.numel() for p in found.model.parameters()) == found.info.parameters


def test_an_empty_page_has_no_lines() -> None:
    from thresher.zoo import pp_ocr

    assert pp_ocr.read(lambda page: page[:, :1] * 0, lambda lines: lines, [""], torch.ones(1, 3, 64, 96)) == []


def test_lines_are_found_where_they_are_and_as_they_are_turned() -> None:
    from thresher.zoo import pp_ocr

    page = torch.zeros(1, 3, 480, 640)

    def detect(given: Any) -> Any:
        rows, columns = torch.meshgrid(torch.arange(480.0), torch.arange(640.0), indexing="ij")
        turned = (rows - 200 - (columns - 300) * 0.1).abs() <= 8
        return ((turned & (columns >= 100) & (columns < 500)) | ((rows >= 400) & (rows < 402)))[None, None].float()

    (line,) = pp_ocr.lines_of(detect, page)
    assert (line.x, line.y) == pytest.approx((300, 200), abs=2)
    assert line.angle == pytest.approx(np.arctan(0.1), abs=0.01)
    assert line.width > 400 and 16 < line.height < 48


def test_weights_that_do_not_fit_are_refused() -> None:
    from thresher.zoo.weights import fill

    model = nn.Sequential(nn.Conv2d(2, 4, 1), nn.BatchNorm2d(4))
    weights = [torch.zeros(4, 2, 1, 1), torch.zeros(4), *[torch.ones(4)] * 4]
    assert not fill(model, weights).training
    with pytest.raises(ValueError, match="expected 6 weights, got 5"):
        fill(model, weights[1:])
    with pytest.raises(ValueError, match=r"0.bias: expected a weight of \[4\], got \[3\]"):
        fill(model, [weights[0], torch.zeros(3), *weights[2:]])

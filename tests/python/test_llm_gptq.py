"""Checkpoints of GPTQ and AWQ: packed here bit by bit, read exactly, and answered with like their numbers in fp32."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from test_llm_engine import folder  # noqa: F401

from thresher.llm import LLM
from thresher.llm.formats import read_safetensors, unpack_linears
from thresher.llm.formats.tensors import StoredTensor

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors_torch = pytest.importorskip("safetensors.torch")

_AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)  # the outputs whose codes stand in bits 0 to 3, 4 to 7, ...


def _words(codes, bits, columns=None):
    """Rows of codes as rows of i32."""
    per_word = 32 // bits
    words = np.zeros((codes.shape[0], codes.shape[1] // per_word), np.uint32)
    for row in range(codes.shape[0]):
        for at in range(codes.shape[1]):
            word, place = divmod(at, per_word)
            source = word * per_word + columns[place] if columns else at
            words[row, word] |= np.uint32(int(codes[row, source]) << (bits * place))
    return words.view(np.int32)


def _quantized(shape, bits, group, method, symmetric, seed, order=False):
    """The tensors of one linear, and the numbers that they stand for, [out, in]."""
    random = np.random.default_rng(seed)
    outputs, inputs = shape
    groups = inputs // group
    codes = random.integers(0, 2**bits, (inputs, outputs))
    zeros = np.full((groups, outputs), 2 ** (bits - 1))
    if not symmetric:
        zeros = random.integers(0, 2**bits, (groups, outputs))
    scales = (random.random((groups, outputs)) * 0.05 + 0.01).astype(np.float16)
    group_of = np.arange(inputs) // group
    if order:
        random.shuffle(group_of)
    numbers = (codes - zeros[group_of]) * scales.astype(np.float32)[group_of]
    if method == "awq":
        parts = {"qweight": _words(codes, 4, _AWQ_COLUMNS), "qzeros": _words(zeros, 4, _AWQ_COLUMNS)}
    else:
        stored = (zeros - (method == "gptq")) % 2**bits
        parts = {"qweight": _words(codes.T, bits).T.copy(), "qzeros": _words(stored, bits)}
        parts["g_idx"] = group_of.astype(np.int32)
    return {**parts, "scales": scales}, numbers.T.astype(np.float32)


def _stored(parts, prefix):
    names = {"int32": "i32", "float16": "f16", "float32": "f32"}
    return {
        f"{prefix}.{name}": StoredTensor(names[str(part.dtype)], part.shape, part.reshape(-1).view(np.uint8))
        for name, part in parts.items()
    }


def _config(method, bits=4):
    if method == "awq":
        return {"quant_method": "awq", "bits": 4, "version": "gemm", "zero_point": True}
    version = {"checkpoint_format": "gptq_v2"} if method == "gptq_v2" else {}
    return {"quant_method": "gptq", "bits": bits, **version}


@pytest.mark.parametrize(
    ("method", "bits", "group", "symmetric", "encoding"),
    [
        ("gptq", 4, 32, True, "q4_0"),
        ("gptq", 4, 96, False, "q5_0"),
        ("gptq_v2", 4, 64, False, "q5_0"),
        ("gptq_v2", 4, 192, True, "q4_0"),
        ("gptq", 8, 64, True, "q8_0"),
        ("gptq", 8, 64, False, "f32"),
        ("gptq", 4, 16, True, "f32"),
        ("awq", 4, 32, False, "q5_0"),
        ("awq", 4, 64, True, "q4_0"),
    ],
)
def test_numbers_are_exact(method, bits, group, symmetric, encoding):
    parts, numbers = _quantized((40, 192), bits, group, method, symmetric, seed=group)
    tensors = _stored(parts, "a.b") | {"norm.weight": StoredTensor("f32", (1,), np.zeros(4, np.uint8))}
    found = unpack_linears(tensors, _config(method, bits))
    assert set(found) == {"a.b.weight", "norm.weight"}
    assert found["a.b.weight"].encoding == encoding
    assert (found["a.b.weight"].dequantized() == numbers).all()


def test_inputs_in_the_order_of_their_groups():
    parts, numbers = _quantized((8, 128), 4, 32, "gptq", True, seed=1, order=True)
    found = unpack_linears(_stored(parts, "l"), _config("gptq"))
    columns = found["l.columns"].array()
    assert sorted(columns) == list(range(128))
    assert (found["l.weight"].dequantized() == numbers[:, columns]).all()


def test_scales_that_blocks_cannot_hold_stay_exact():
    parts, numbers = _quantized((8, 64), 4, 32, "awq", False, seed=2)
    parts["scales"] = parts["scales"].astype(np.float32) * np.float32(1 + 2**-20)
    found = unpack_linears(_stored(parts, "l"), _config("awq"))
    assert found["l.weight"].encoding == "f32"
    np.testing.assert_allclose(found["l.weight"].dequantized(), numbers * (1 + 2**-20), rtol=1e-6)


@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_a_model_answers_as_its_numbers_do(folder, tmp_path, method):  # noqa: F811
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = _config(method)
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tensors = {}
    with torch.no_grad():
        for number, (name, tensor) in enumerate(model.state_dict().items()):
            if "proj" not in name:
                tensors[name] = tensor.contiguous()
                continue
            shape = tuple(tensor.shape)
            parts, numbers = _quantized(shape, 4, 32, method, method == "gptq", number, order=method == "gptq")
            tensors |= {name.removesuffix("weight") + part: torch.tensor(value) for part, value in parts.items()}
            tensor.copy_(torch.tensor(numbers))
    tensors.pop("lm_head.weight", None) if config["tie_word_embeddings"] else None
    safetensors_torch.save_file(tensors, str(tmp_path / "model.safetensors"))
    prompts = [[5, 9, 100, 7], [3] * 40]
    with torch.no_grad():
        wanted = [torch.log_softmax(model(torch.tensor([p])).logits[0], -1) for p in prompts]
    for weights, error in (("fp32", 2e-3), ("model", 0.5)):
        with LLM(tmp_path, precision="fp32", weights=weights, max_length=100) as llm:
            outputs = llm.generate(prompts, temperature=0, max_tokens=1, prompt_logprobs=0)
        for prompt, output, expected in zip(prompts, outputs, wanted, strict=True):
            mine = [each.logprob for each in output.prompt_logprobs]
            theirs = [float(expected[i, token]) for i, token in enumerate(prompt[1:])]
            np.testing.assert_allclose(mine, theirs, atol=error)


def test_what_is_not_read_is_named():
    parts, _ = _quantized((8, 64), 4, 32, "gptq", True, seed=3)
    tensors = _stored(parts, "l")
    for config, message in (
        ({"quant_method": "aqlm"}, "expected quant_method gptq or awq, got 'aqlm'"),
        ({"quant_method": "gptq", "bits": 3}, "expected 4 or 8 bits, got 3"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "expected version gemm of awq, got 'gemv'"),
    ):
        with pytest.raises(ValueError, match=message):
            unpack_linears(tensors, config)
    without = {name: tensor for name, tensor in tensors.items() if name != "l.scales"}
    with pytest.raises(ValueError, match=r"l.qweight \(gptq\): expected a tensor 'l.scales', got none"):
        unpack_linears(without, _config("gptq"))
    short = {**tensors, "l.qzeros": StoredTensor("i32", (1, 1), np.zeros(4, np.uint8))}
    with pytest.raises(ValueError, match="expected qzeros for scales"):
        unpack_linears(short, _config("gptq"))
    bad = {**tensors, "l.g_idx": StoredTensor("i32", (64,), np.zeros(256, np.uint8))}
    with pytest.raises(ValueError, match="expected g_idx with 32 inputs in each of 2 groups"):
        unpack_linears(bad, _config("gptq"))


def test_a_folder_with_an_unknown_method_is_refused(folder, tmp_path):  # noqa: F811
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    for quantization, message in (({"quant_method": "fp8"}, "got 'fp8'"), ("gptq", "expected an object")):
        (tmp_path / "config.json").write_text(json.dumps({**config, "quantization_config": quantization}))
        with pytest.raises(ValueError, match=message):
            LLM(tmp_path)
    assert read_safetensors(folder)

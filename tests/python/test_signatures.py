"""Kernels from signatures: names, shapes, driver commands, launchables and the cache behind them."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import run_command_with_torch, without_settings

from thresher import cache, tuning
from thresher.cache import CacheWarning
from thresher.compiler import UnsupportedOperatorError
from thresher.signatures import (
    AtenSignature,
    BatchNormSignature,
    CachePopulator,
    CommandError,
    ConvSignature,
    GemmSignature,
    LayerNormSignature,
    Mode,
    NotCachedError,
    SdpaSignature,
    Signature,
    Status,
    command_to_signature,
    explain,
    get_launchable,
    launchable,
    time_signature,
    verification,
    verify,
)
from thresher.signatures.driver import OPERATORS, parse_command, read_commands
from thresher.signatures.run import run
from thresher.tuning.collect import collected

GEMM = "gemm -m 24 -k 40 -n 33"
ADDMM = {
    "Input Dims": [[7], [5, 3], [3, 7], [], []],
    "Input type": ["float", "float", "float", "Scalar", "Scalar"],
    "Concrete Inputs": ["", "", "", "1", "1"],
}
SIGNATURES: list[Signature] = [
    GemmSignature((24, 40), (40, 33)),
    GemmSignature((40, 24), (33, 40), transpose_a=True, transpose_b=True, bias=True),
    GemmSignature((3, 8, 5), (3, 5, 9), dtype=torch.bfloat16),
    GemmSignature((8, 5), (5, 9), dtype=torch.float16),
    LayerNormSignature((4, 9, 33)),
    LayerNormSignature((4, 9, 33), dims=2, affine=False, dtype=torch.bfloat16),
    BatchNormSignature((2, 5, 7, 3)),
    BatchNormSignature((2, 5, 7), dtype=torch.float16),
    SdpaSignature((2, 3, 17, 8), causal=True),
    SdpaSignature((2, 3, 17, 8), (2, 3, 9, 8), masked=True, dtype=torch.bfloat16),
    AtenSignature("aten::addmm", ADDMM),
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    """An empty cache of the test's own, and a process that has met no signature."""
    cache.set_dir(tmp_path / "cache")
    launchable.forget()
    yield tmp_path / "cache"
    launchable.forget()
    cache.set_dir(None)


# ---- what is computed ----


@pytest.mark.parametrize("signature", SIGNATURES, ids=str)
def test_every_kind_of_signature_agrees_with_float64(signature: Signature) -> None:
    found = verify(signature)
    assert found.passed, found.verdict
    assert [check.name for check in found.checks] == ["random", "blocks", "nan"]
    assert found.verdict.startswith("PASS: ")
    args = signature.sample_args()
    result = get_launchable(signature)(*args)
    assert result.shape == signature.output_shape == signature.call(*args).shape
    assert result.dtype == signature.dtype == signature.call(*args).dtype


def test_names_are_unique_and_say_what_is_computed() -> None:
    names = [signature.func_name for signature in SIGNATURES]
    assert len({*names}) == len(names)
    assert names[1] == "gemm_f32_40x24_33x40_ta_tb_bias"
    assert all(name.isidentifier() or "." in name or "-" in name for name in names)


def test_sample_arguments() -> None:
    signature = GemmSignature((4, 3), (3, 2), dtype=torch.bfloat16)
    first, again, other = (signature.sample_args(seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first[0], again[0]) and not torch.equal(first[0], other[0])
    assert [tensor.dtype for tensor in first] == [torch.bfloat16] * 2
    assert torch.equal(signature.sample_args(splat_value=0.5)[1], torch.full((3, 2), 0.5, dtype=torch.bfloat16))
    assert not torch.equal(signature.sample_args(seed=None)[0], signature.sample_args(seed=None)[0])
    assert float(BatchNormSignature((1, 50, 2)).sample_args()[2].min()) > 0, "variances"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GemmSignature((2, 3), (4, 5)), r"\[2, 3\] and \[4, 5\]"),
        (lambda: GemmSignature((2, 3), (3, 5, 1)), r"\[2, 3\] and \[3, 5, 1\]"),
        (lambda: GemmSignature((2, 3), (3, 5), dtype=torch.float64), "torch.float64"),
        (lambda: LayerNormSignature((2, 3), dims=3), "1 to 2 dims"),
        (lambda: BatchNormSignature((2,)), r"\[2\]"),
        (lambda: SdpaSignature((1, 2, 3, 4), (1, 2, 3, 5)), r"\[1, 2, 3, 4\] and \[1, 2, 3, 5\]"),
        (lambda: SdpaSignature((1, 2, 3, 4), causal=True, masked=True), "got both"),
        (lambda: AtenSignature("aten::nothing", ADDMM), "no operator of this name"),
        (lambda: AtenSignature("aten::addmm", {}), "record_shapes=True"),
        (lambda: AtenSignature("aten::relu_", {**ADDMM, "Input Dims": [[1]] * 5}), "changes or shares its inputs"),
        (lambda: AtenSignature("aten::mm", {"Input Dims": [[2, 3], [4, 5]], "Input type": ["float"] * 2,
                                            "Concrete Inputs": ["", ""]}), "PyTorch refuses"),
    ],
)  # fmt: skip
def test_signatures_that_cannot_be(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]


def test_wrong_arguments_are_refused_and_the_next_call_works() -> None:
    signature = GemmSignature((4, 3), (3, 2))
    kernel = get_launchable(signature)
    a, b = signature.sample_args()
    for args, message in (
        ((a,), "expected a float32"),
        ((a, b.double()), "expected b float32.3, 2., got b float64.3, 2."),
        ((a.t(), b), r"expected a float32\[4, 3\], got a float32\[3, 4\]"),
        ((a, b.to("meta")), "on meta"),
        ((a.clone().requires_grad_(), b), "thresher.conv"),
    ):
        with pytest.raises(ValueError, match=message):
            kernel(*args)
    strided = torch.empty(2, 3).t()
    strided.copy_(b)
    assert torch.equal(kernel(a, strided), kernel(a, b)), "any strides"
    with torch.no_grad():
        assert not kernel(a.requires_grad_(), b).requires_grad


def test_what_the_engine_lacks_is_refused_by_name() -> None:
    lacking = AtenSignature(
        "aten::cummax", {"Input Dims": [[4, 3], []], "Input type": ["float", "Scalar"], "Concrete Inputs": ["", "0"]}
    )
    with pytest.raises(UnsupportedOperatorError, match=r"aten.cummax.default: the engine has no such operator"):
        get_launchable(lacking)


# ---- verdicts ----


def test_verdicts_on_wrong_results() -> None:
    signature = GemmSignature((8, 40), (40, 6))
    args = signature.sample_args()
    reference = signature.call(*(tensor.double() for tensor in args))
    right = signature.call(*args)

    def judged(ours: torch.Tensor, name: str = "random") -> verification.Check:
        return verification.judge(name, signature, ours, right, reference)

    assert judged(right).passed
    nearly = right.clone()
    nearly[2, 3] += 1e-3
    assert not judged(nearly).passed
    assert judged(nearly).errors.max_abs == pytest.approx(1e-3, rel=0.01)
    lost = right.clone()
    lost[2, 3] = float("nan")
    assert judged(lost).reason == "NaN at other places than float64: 1 of 48 elements, the first at [2, 3]"
    infinite = right.clone()
    infinite[0, 0] = float("inf")
    assert "infinity at other places" in judged(infinite).reason
    assert not judged(right[:4]).passed
    whole = right.round()
    shifted = whole.clone()
    shifted[2, 3] += 1
    check = verification.judge("blocks", signature, shifted, whole, whole.double())
    assert "an error of indices: 1 of 48 elements, the first at [2, 3]" in check.reason
    rounded = verification.judge("blocks", signature, whole + 1e-5, whole, whole.double())
    assert rounded.passed and "the right whole numbers" in rounded.reason
    assert verification.judge("blocks", signature, whole, whole, whole.double()).reason == "all 48 elements exact"
    failed = verification.Verification("name", (judged(right), judged(lost)))
    assert failed.verdict.startswith("FAIL: random: NaN")


def test_blocks_of_ones_find_an_exchanged_index() -> None:
    signature = GemmSignature((9, 9), (9, 9))
    ones = verification.blocks(signature)
    right = signature.call(*ones)
    turned = signature.call(ones[0].t(), ones[1])
    check = verification.judge("blocks", signature, turned, right, right.double())
    assert not check.passed
    assert all(set(tensor.unique().tolist()) == {0.0, 1.0} for tensor in ones)


def test_blocks_of_ones_meet_in_every_convolution() -> None:
    for mode in Mode:
        for channels in (1, 2, 3, 64):
            signature = ConvSignature(
                (1, 7, 8, channels), (channels, 3, 3, channels), shared_layout="NHWC", padding=1, mode=mode
            )
            sums = signature.call(*verification.blocks(signature))
            assert bool(sums.any()), (mode, channels)


# ---- commands ----


def test_the_command_of_the_documentation() -> None:
    text = (
        "convbfp16 -n 128 -c 128 -H 24 -W 48 -k 384 -y 1 -x 1 -p 0 -q 0 -u 1 -v 1 -l 1 -j 1 -m conv -g 1 -F 1 -t 1 "
        "--iter 100 --in_layout NHWC --out_layout NHWC --fil_layout NHWC"
    )
    parsed = parse_command(text)
    assert parsed.iterations == 100
    assert parsed.text == text
    wanted = ConvSignature((128, 24, 48, 128), (384, 1, 1, 128), shared_layout="NHWC", dtype=torch.bfloat16)
    assert parsed.signature == wanted == command_to_signature(text.split())
    assert wanted.func_name == ("conv2d_bf16_fwd_128x24x48x128nhwc_384x1x1x128nhwc_to_nhwc_s1x1_p0x0_d1x1_g1")
    assert parse_command(f"./bin/MIOpenDriver {text}").signature == wanted


def test_defaults_are_those_of_the_driver() -> None:
    wanted = ConvSignature((100, 3, 32, 32), (32, 3, 3, 3))
    assert command_to_signature("conv") == wanted
    assert command_to_signature("conv -_ 3") == ConvSignature((100, 3, 32, 32, 32), (32, 3, 3, 3, 3))
    assert command_to_signature("conv -_ 1") == ConvSignature((100, 3, 32), (32, 3, 3))
    assert command_to_signature("convfp16").dtype == torch.float16
    assert parse_command("conv -t 0").iterations == 0


# One value for each flag of a convolution that is neither its default nor refused, and what the signature has then.
CONV_FLAGS: dict[str, tuple[str, dict[str, object]]] = {
    "spatial_dim": ("1", {"input_shape": (100, 4, 32)}),
    "batchsize": ("7", {"input_shape": (7, 4, 32, 32, 32)}),
    "in_channels": ("8", {"input_shape": (100, 8, 32, 32, 32)}),
    "in_d": ("9", {"input_shape": (100, 4, 9, 32, 32)}),
    "in_h": ("9", {"input_shape": (100, 4, 32, 9, 32)}),
    "in_w": ("9", {"input_shape": (100, 4, 32, 32, 9)}),
    "in_layout": ("NDHWC", {"input_shape": (100, 32, 32, 32, 4), "input_layout": "NDHWC"}),
    "out_channels": ("6", {"kernel_shape": (6, 4, 3, 3, 3)}),
    "fil_d": ("2", {"kernel_shape": (32, 4, 2, 3, 3)}),
    "fil_h": ("2", {"kernel_shape": (32, 4, 3, 2, 3)}),
    "fil_w": ("2", {"kernel_shape": (32, 4, 3, 3, 2)}),
    "fil_layout": ("NDHWC", {"kernel_shape": (32, 3, 3, 3, 4), "kernel_layout": "NDHWC"}),
    "bias": ("1", {"bias": True}),
    "out_layout": ("CNDHW", {"output_layout": "CNDHW"}),
    "forw": ("4", {"mode": "wrw"}),
    "mode": ("trans", {"transposed": True, "kernel_shape": (4, 32, 3, 3, 3)}),
    "conv_stride_d": ("2", {"stride": (2, 1, 1)}),
    "conv_stride_h": ("2", {"stride": (1, 2, 1)}),
    "conv_stride_w": ("2", {"stride": (1, 1, 2)}),
    "pad_d": ("2", {"padding": (2, 0, 0)}),
    "pad_h": ("2", {"padding": (0, 2, 0)}),
    "pad_w": ("2", {"padding": (0, 0, 2)}),
    "dilation_d": ("2", {"dilation": (2, 1, 1)}),
    "dilation_h": ("2", {"dilation": (1, 2, 1)}),
    "dilation_w": ("2", {"dilation": (1, 1, 2)}),
    "trans_output_pad_d": ("1", {"output_padding": (1, 0, 0)}),
    "trans_output_pad_h": ("1", {"output_padding": (0, 1, 0)}),
    "trans_output_pad_w": ("1", {"output_padding": (0, 0, 1)}),
    "group_count": ("2", {"groups": 2, "kernel_shape": (32, 2, 3, 3, 3)}),
}


@pytest.mark.parametrize("flag", OPERATORS["conv"].flags, ids=lambda flag: flag.name)
def test_every_flag_long_and_short(flag: object) -> None:
    name, short = flag.name, flag.short  # type: ignore[attr-defined]
    base = "conv" + " -_ 3" * (name != "spatial_dim") + " -c 4" * (name != "in_channels")
    if name.startswith("trans_output_pad"):
        base += " -m trans -# 2 -u 2 -v 2"
    if flag.refused:  # type: ignore[attr-defined]
        for spelt in (f"--{name} 1", f"-{short} 1"):
            with pytest.raises(CommandError, match=rf"--{name} \(-{short}\) is not supported"):
                command_to_signature(f"{base} {spelt}")
        return
    if name in ("time", "iter"):
        assert {parse_command(f"{base} {spelt} 1").iterations for spelt in (f"--{name}", f"-{short}")} == {
            10 if name == "time" else 1
        }
        return
    value, wanted = CONV_FLAGS[name]
    spelt = (f"--{name} {value}", f"--{name}={value}", f"-{short} {value}")
    signatures = [command_to_signature(f"{base} {one}") for one in spelt]
    assert signatures[0] == signatures[1] == signatures[2]
    assert signatures[0] != command_to_signature(base), "the value is not the default"
    for attribute, expected in wanted.items():
        assert getattr(signatures[0], attribute) == expected


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("", "got nothing"),
        ("pool -n 3", "got 'pool'"),
        ("conv -n", r"--batchsize \(-n\): expected a value, got none"),
        ("conv -n x", r"--batchsize \(-n\): expected an integer, got 'x'"),
        ("conv -n 2 --batchsize 2", "expected it once"),
        ("conv --batchsiz 2", "did you mean --batchsize"),
        ("conv -F 3", r"1 \(fwd\), 2 \(bwd\), 4 \(wrw\), got 3"),
        ("conv -m dw", "transposed"),
        ("conv -c 3 -g 2", "--in_channels 3"),
        ("conv --in_layout NHW", "permutation of NCHW, got NHW"),
        ("conv --in_layout NHWC --out_layout NCDW", "output_layout"),
        ("conv -H 2", "windows that fit"),
        ("conv -n 0", "at least 1"),
        ("conv -Y 1", "not transposed"),
        ("conv --iter 0", "at least 1, got 0"),
        ("conv -b 2", "got 2"),
        ("conv 'x", "No closing quotation"),
        ("gemm -C 1", "row-major"),
        ("gemm -A 2", "got 2.0"),
        ("layernorm -o 4", "0 to 3"),
        ("layernorm -X 3xa", "3xa"),
        ("bnorm -F 1", "inference"),
        ("aten::mm", "as JSON"),
        ("aten::mm []", "JSON object"),
    ],
)
def test_commands_that_cannot_be_understood(command: str, message: str) -> None:
    with pytest.raises(CommandError, match=message):
        parse_command(command)


def test_commands_of_the_other_operators() -> None:
    assert command_to_signature("gemmbfp16 -m 2 -k 3 -n 4 -u 1 -v 1") == GemmSignature(
        (3, 2), (4, 3), transpose_a=True, transpose_b=True, dtype=torch.bfloat16
    )
    assert command_to_signature("gemm -m 2 -k 3 -n 4 -b 5") == GemmSignature((5, 2, 3), (5, 3, 4))
    assert command_to_signature("layernorm -X 2x3x4 -o 1 -m 1 -e 0.5") == LayerNormSignature((2, 3, 4), dims=2, eps=0.5)
    assert command_to_signature("bnormfp16 -n 2 -c 4 -D 3 -H 5 -W 6") == BatchNormSignature(
        (2, 4, 3, 5, 6), dtype=torch.float16
    )
    assert command_to_signature("sdpa -n 2 -h 3 -q 4 -k 5 -d 6 -m 1") == SdpaSignature(
        (2, 3, 4, 6), (2, 3, 5, 6), masked=True
    )


def test_files_of_commands(tmp_path: Path) -> None:
    file = tmp_path / "commands.txt"
    file.write_text(f"# all of it\n\n{GEMM}   # a linear layer\nconv -_ 3 -# 2\n")
    assert read_commands(file) == [GEMM, "conv -_ 3 -# 2"]
    file.write_text("# nothing\n")
    with pytest.raises(ValueError, match="got none"):
        read_commands(file)


def test_operators_of_a_trace(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.LayerNorm(8))
    with torch.no_grad(), torch.profiler.profile(record_shapes=True) as recorded:
        model(torch.ones(4, 6))
        model(torch.ones(4, 6))
    recorded.export_chrome_trace(str(file))
    commands = read_commands(file)
    assert len({*commands}) == len(commands), "each once"
    names = {command.split()[0] for command in commands}
    assert {"aten::linear", "aten::addmm", "aten::relu", "aten::layer_norm"} <= names
    for command in commands:
        if command.startswith(("aten::linear ", "aten::relu ", "aten::layer_norm ")):
            assert verify(command_to_signature(command)).passed
    # What takes no tensors is reported as any other line that fails, and those after it are verified.
    dims, types = [[] for _ in range(6)], ["ScalarList", "", "", "", "Scalar", ""]
    inputs = {"Input Dims": dims, "Input type": types, "Concrete Inputs": ["[4, 6]", "", "", "", "False", ""]}
    relu = next(command for command in commands if command.startswith("aten::relu "))
    empty, after = run([f"aten::empty {json.dumps(inputs)}", relu], [], verify=True)
    assert empty.problem.startswith("it cannot be verified: expected an operator that takes tensors")
    assert after.verification is not None and after.verification.passed
    file.write_text(json.dumps({"traceEvents": [{"name": "aten::mm"}]}))
    with pytest.raises(ValueError, match="record_shapes=True"):
        read_commands(file)


def test_the_shapes_of_the_benchmark() -> None:
    signatures = [
        command_to_signature(line) for line in read_commands(Path(__file__).parents[2] / "bench/convolutions.txt")
    ]
    assert len({signature.func_name for signature in signatures}) == len(signatures) == 60
    assert {signature.spatial_rank for signature in signatures} == {1, 2, 3}


# ---- times ----


def test_every_run_is_a_record_of_the_profiler() -> None:
    ours, torchs = time_signature(GemmSignature((24, 40), (40, 33)), ["thresher", "torch"], 23)
    assert (ours.backend, torchs.backend) == ("thresher", "torch")
    assert len(ours.samples_us) == len(torchs.samples_us) == 23
    assert min(ours.samples_us) > 0
    assert ours.work.flops == torchs.work.flops == pytest.approx(2 * 24 * 40 * 33, rel=0.05)
    found = ours.to_dict()
    assert found["min_us"] <= found["median_us"] <= found["max_us"]
    assert found["gflop_per_s"] == pytest.approx(found["flops"] / found["median_us"] / 1e3)
    assert "stddev=" in str(ours)


# ---- the cache ----


def test_a_launchable_is_kept_for_other_processes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signature = GemmSignature((24, 40), (40, 33))
    with pytest.raises(NotCachedError, match="never stored"):
        get_launchable(signature, cache_only=True)
    made = get_launchable(signature)
    assert made.origin == "import"
    assert get_launchable(signature) is made is get_launchable(signature, cache_only=True), "the process's"
    launchable.forget()

    def fail(_: object) -> None:
        raise AssertionError("expected no import")

    monkeypatch.setattr(launchable, "import_signature", fail)
    kept = get_launchable(signature, cache_only=True)
    assert kept.origin == "file"
    args = signature.sample_args()
    assert torch.equal(kept(*args), made(*args))


def test_other_threads_make_another_plan() -> None:
    signature = GemmSignature((24, 40), (40, 33))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        first = get_launchable(signature)
        torch.set_num_threads(2)
        assert get_launchable(signature) is not first
        torch.set_num_threads(1)
        assert get_launchable(signature) is first
    finally:
        torch.set_num_threads(before)


def test_only_so_many_are_kept_in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launchable, "MOST_KEPT", 2)
    signatures = [GemmSignature((n, 4), (4, 4)) for n in (1, 2, 3)]
    first, second, _ = (get_launchable(one) for one in signatures)
    assert get_launchable(signatures[1]) is second
    assert get_launchable(signatures[0]) is not first
    assert get_launchable(signatures[0]).origin == "file"


@pytest.mark.parametrize(
    "damage",
    [lambda text: text[: len(text) // 2], lambda text: text.replace(b"linear", b"matmul"), lambda text: b""],
    ids=["truncated", "changed", "empty"],
)
def test_a_damaged_entry_is_put_aside_and_never_served(folder: Path, damage: object) -> None:
    signature = GemmSignature((24, 40), (40, 33))
    expected = get_launchable(signature)(*signature.sample_args())
    (path,) = (folder / "launchable").iterdir()
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    launchable.forget()
    assert not explain(signature).hit
    with pytest.warns(CacheWarning, match="put aside"):
        again = get_launchable(signature)
    assert again.origin == "import"
    assert torch.equal(again(*signature.sample_args()), expected)
    assert sorted(file.name for file in path.parent.iterdir()) == [path.name, f"{path.name}.damaged"]
    assert explain(signature).hit
    assert [entry.path.name for entry in cache.prune()] == [f"{path.name}.damaged"]


def test_a_name_that_means_something_else_is_made_anew(folder: Path) -> None:
    signature, other = GemmSignature((24, 40), (40, 33)), GemmSignature((24, 40), (40, 34))
    get_launchable(other)
    kept = cache.load(launchable.KIND, launchable.cache_key(other))
    cache.store(launchable.KIND, launchable.cache_key(signature), kept)
    assert get_launchable(signature).origin == "import"
    assert get_launchable(signature)(*signature.sample_args()).shape == (24, 33)


def test_why_it_was_a_miss(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signature = GemmSignature((24, 40), (40, 33))
    assert "never stored" in explain(signature).reason
    get_launchable(GemmSignature((1, 40), (40, 33)))
    assert "never stored here" in explain(signature).reason, "another signature explains nothing"
    get_launchable(signature)
    assert explain(signature).hit
    monkeypatch.setattr(torch, "__version__", "9.9")
    assert explain(signature).reason.startswith("it is kept for something else: torch was '2.")
    monkeypatch.undo()
    with cache.disabled():
        assert "off" in explain(signature).reason


WRITER = """
import sys, torch
from thresher.signatures import GemmSignature, get_launchable, launchable
from thresher import cache
signature = GemmSignature((24, 40), (40, 33))
print("ready", flush=True)
for i in range(int(sys.argv[1])):
    made = launchable._make(signature, 1)
    assert cache.load(launchable.KIND, launchable.cache_key(signature)) is not None
"""


@pytest.mark.parametrize("count", [2, pytest.param(8, marks=pytest.mark.thorough)])
def test_writers_and_a_killed_one(folder: Path, count: int) -> None:
    environment = {**without_settings(), "THRESHER_CACHE_DIR": str(folder), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error::thresher.cache.CacheWarning", "-c", WRITER]
    victim = subprocess.Popen([*command, "100000"], env=environment, stdout=subprocess.PIPE, text=True)
    writers = [subprocess.Popen([*command, "4"], env=environment, stdout=subprocess.DEVNULL) for _ in range(count)]
    try:
        assert victim.stdout is not None
        assert victim.stdout.readline() == "ready\n"
        time.sleep(random.uniform(0.05, 0.5))
        victim.send_signal(signal.SIGKILL)
        assert [writer.wait(timeout=300) for writer in writers] == [0] * count
    finally:
        for process in (victim, *writers):
            process.kill()
            process.wait()
    signature = GemmSignature((24, 40), (40, 33))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kept = get_launchable(signature, cache_only=True)
    assert kept.origin == "file"
    assert verify(signature).passed
    states = {entry.state.value for entry in cache.entries()}
    assert states <= {"good", "unfinished"}
    cache.prune()
    assert [entry.state.value for entry in cache.entries()] == ["good"]


@pytest.mark.parametrize("jobs", [1, 2])
def test_preloading(folder: Path, tmp_path: Path, jobs: int) -> None:
    file = tmp_path / "commands.txt"
    file.write_text("layernorm -X 2x8 -o 1\nnonsense\n")
    made = GemmSignature((24, 40), (40, 33))
    populator = CachePopulator(signatures=[made], commands=[GEMM, "gemm -m 3 -k 3 -n 3"], commands_file=file)
    assert len(populator.signatures) == 3
    assert populator.status(made.func_name).status is Status.PENDING
    done: list[tuple[int, int]] = []
    populator.run(jobs, progress=lambda *counts: done.append(counts))
    assert done == [(1, 3), (2, 3), (3, 3)]
    assert populator.status(made.func_name).status is Status.MADE
    assert list(populator.failures()) == ["nonsense"]
    launchable.forget()
    assert all(get_launchable(one, cache_only=True).origin == "file" for one in populator.signatures)
    again = CachePopulator(commands=[GEMM])
    again.run()
    assert again.status(made.func_name).status is Status.KNOWN
    with pytest.raises(KeyError, match="expected one of the 1"):
        again.status("other")
    with pytest.raises(ValueError, match="at least 1, got 0"):
        again.run(0)
    with cache.disabled(), pytest.raises(ValueError, match="one that is off"):
        again.run()


def test_tuning_knows_the_products_of_launchables() -> None:
    with collected() as found:
        get_launchable(GemmSignature((24, 40), (40, 33)))
    (product,) = found
    assert (product.m, product.k, product.n) == (24, 40, 33)
    assert isinstance(product, tuning.Product)


# ---- the command line ----


@pytest.fixture(scope="module")
def peaks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the machine's peaks are kept from one test to the next: measuring them takes seconds."""
    return tmp_path_factory.mktemp("peaks") / "peaks"


@pytest.fixture(autouse=True)
def known_peaks(peaks: Path, folder: Path) -> Iterator[None]:
    if peaks.exists():
        shutil.copytree(peaks, folder / "peaks")
    yield
    if not peaks.exists() and (folder / "peaks").exists():
        shutil.copytree(folder / "peaks", peaks)


def thresher(folder: Path, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("typer")
    return run_command_with_torch(*arguments, THRESHER_CACHE_DIR=str(folder), COLUMNS="200", **environment)


def in_process(*arguments: str) -> Any:
    pytest.importorskip("typer")
    from typer.testing import CliRunner

    from thresher.cli.app import app

    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200", "NO_COLOR": "1"})


def test_one_command_with_everything(folder: Path, tmp_path: Path) -> None:
    done = thresher(
        folder, "conv", *GEMM.split(), "--iter", 7, "--backend", "thresher", "--backend", "torch", "--verify",
        f"--json={tmp_path / 'out.json'}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == f"{GEMM} --iter 7"
    assert "  thresher: float32[24, 33] on cpu" in lines and "  torch: float32[24, 33] on cpu" in lines
    assert sum(line.strip().startswith("min=") and " median=" in line and " stddev=" in line for line in lines) == 2
    assert "times as fast as torch" in lines[-2]
    assert lines[-1].startswith("  PASS: ")
    data = json.loads((tmp_path / "out.json").read_text())
    (command,) = data["commands"]
    assert command["verification"]["passed"]
    assert [result["timing"]["runs"] for result in command["results"]] == [7, 7]


def test_a_failing_line_does_not_end_a_file(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "commands.txt"
    file.write_text(f"{GEMM} --iter 3\ngemm -Z 3\nlayernorm -X 2x8 -o 1 --iter 3\n")
    outputs = [tmp_path / name for name in ("times.csv", "times.svg", "verdicts.csv", "verdicts.json")]
    done = thresher(
        folder, "conv", "--commands-file", file, "--backend", "thresher", "--backend", "torch", "--csv", outputs[0],
        "--svg", outputs[1],
    )  # fmt: skip
    assert done.returncode == 1
    assert "gemm: expected a flag, got '-Z'" in done.stderr
    assert "3 commands, 1 failed" in done.stdout
    assert "geometric mean of 2 medians" in done.stdout
    rows = outputs[0].read_text().splitlines()
    assert len(rows) == 6 and rows[0].startswith("command,func_name,backend")
    assert outputs[1].read_text().count("<rect") == 4
    for output in outputs[2:]:
        done = thresher(folder, "verify", "--commands-file", file, "--output", output)
        assert done.returncode == 1
        assert done.stdout.count("PASS") == 6 and "FAIL: gemm: expected a flag" in done.stdout
    assert len(outputs[2].read_text().splitlines()) == 8
    assert [entry.get("passed") for entry in json.loads(outputs[3].read_text())] == [True, None, True]


def test_preload_explain_and_tune_on_the_command_line(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "commands.txt"
    file.write_text("gemm -m 3 -k 8 -n 8\n")
    missing = thresher(folder, "cache", "explain", "gemm", "-m", 3, "-k", 8, "-n", 8)
    assert missing.returncode == 1 and "never stored" in missing.stdout
    assert "1 made, 0 known before, 0 failed" in thresher(folder, "preload", "--commands-file", file).stdout
    done = thresher(folder, "preload", "--commands-file", file, "--json")
    assert [state["status"] for state in json.loads(done.stdout)] == ["known"]
    found = thresher(folder, "cache", "explain", "gemm", "-m", 3, "-k", 8, "-n", 8)
    assert found.returncode == 0 and found.stdout.startswith("hit: gemm_f32_3x8_8x8: it was stored at")
    tuned = thresher(folder, "tune", "--commands-file", file, "--json", THRESHER_NUM_THREADS="1")
    assert tuned.returncode == 0, tuned.stderr
    (product,) = json.loads(tuned.stdout)["products"]
    assert (product["m"], product["k"], product["n"]) == (3, 8, 8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["conv"], "expected a driver command or --commands-file"),
        (["conv", "gemm", "--backend", "cudnn"], "expected thresher or torch, got cudnn"),
        (["conv", "--commands-file", "/nowhere"], "No such file"),
        (["conv", "--flags", "pool"], "got pool"),
        (["verify", "gemm", "--output", "x.txt"], ".json or .csv"),
        (["verify", __file__], "use --commands-file"),
        (["preload", "gemm", "--device", "cuda"], "expected cpu, got cuda"),
    ],
)
def test_command_lines_that_cannot_be(arguments: list[str], message: str) -> None:
    done = in_process(*arguments)
    assert done.exit_code == 1
    assert message in done.stderr


def test_flags_are_listed() -> None:
    done = in_process("conv", "--flags", "convbfp16")
    assert done.exit_code == 0
    assert all(f"--{flag.name}" in done.stdout for flag in OPERATORS["conv"].flags)

"""Convolutions by cuDNN, beside our own: on the emulator by a stand-in that computes what it is asked for."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

COMPUTED = """
import json, sys
import numpy as np
import torch
from thresher import _engine, startup
startup.initialize()
library, calls, learned = sys.argv[1], int(sys.argv[2]), sys.argv[3]
device = _engine.Device(library)
if learned:
    device.learn(learned)
stream = device.stream()

CASES = {  # x, weight, attributes, bias, residual
    "plain": ((2, 6, 5, 8), (12, 8, 3, 3), {"padding": [1, 1]}, False, False),
    "bias": ((2, 6, 5, 8), (12, 8, 3, 3), {"padding": [1, 1]}, True, False),
    "relu": ((1, 9, 8, 8), (16, 8, 7, 7), {"padding": [3, 3], "stride": [2, 2], "activation": "relu"}, True, False),
    "groups": ((2, 5, 5, 36), (40, 18, 3, 3), {"groups": 2, "padding": [1, 0], "activation": "relu"}, True, False),
    "sum": ((2, 6, 5, 8), (12, 8, 3, 3), {"padding": [1, 1]}, True, True),
    "relu of a sum": ((2, 6, 5, 8), (12, 8, 3, 3),
                      {"padding": [1, 1], "activation": "relu", "residual_first": True}, True, True),
    "sum of a relu": ((2, 6, 5, 8), (12, 8, 3, 3), {"padding": [1, 1], "activation": "relu"}, True, True),
    "silu": ((2, 6, 5, 8), (11, 8, 3, 3), {"padding": [1, 1], "activation": "silu"}, True, False),
    "dilated lines": ((2, 20, 5), (9, 5, 3), {"dilation": [3], "padding": [2]}, True, False),
    "1x1 with a stride": ((2, 6, 5, 8), (12, 8, 1, 1), {"stride": [2, 2]}, True, False),
    # What cuDNN is not asked for.
    "transposed": ((2, 4, 3, 8), (8, 6, 3, 2), {"transposed": True, "stride": [2, 3]}, True, False),
    "volumes": ((1, 3, 4, 5, 8), (6, 8, 2, 3, 3), {"padding": [0, 1, 1]}, True, False),
}
TYPES = {"f32": (torch.float32, 2e-6), "bf16": (torch.bfloat16, 1.6e-2), "f16": (torch.float16, 2e-3)}

def stored(tensor):
    return tensor.contiguous().view(torch.uint8).numpy().reshape(-1).view(np.bool_)

def put(tensor):
    array = stored(tensor)
    buffer = device.empty(array.nbytes)
    stream.copy_in(buffer, array)
    return buffer

def run(name, kind):
    dtype, tolerance = TYPES[kind]
    x_shape, weight_shape, attrs, has_bias, has_residual = CASES[name]
    random = torch.Generator().manual_seed(1)
    draw = lambda *shape: torch.randn(*shape, generator=random).to(dtype)
    x, weight = draw(*x_shape), draw(*weight_shape)
    rank = weight.dim() - 2
    settings = {key: attrs[key] for key in ("padding", "stride", "dilation", "groups") if key in attrs}
    function = getattr(torch.nn.functional, f"conv{'_transpose' if 'transposed' in attrs else ''}{rank}d")
    wanted = function(x.double().movedim(-1, 1), weight.double(), **settings).movedim(1, -1)
    bias = draw(wanted.shape[-1]) if has_bias else None
    residual = draw(*wanted.shape) if has_residual else None
    wanted = wanted + bias.double() if has_bias else wanted
    act = {"relu": torch.relu, "silu": torch.nn.functional.silu}.get(attrs.get("activation"), lambda v: v)
    added = residual.double() if has_residual else 0
    wanted = act(wanted + added) if attrs.get("residual_first") else act(wanted) + added
    graph, inputs, buffers = _engine.Graph(), [], []
    for tensor in (x, weight, bias, residual):
        inputs.append(None if tensor is None else graph.input("v", kind, tuple(tensor.shape)))
        if tensor is not None:
            buffers.append(put(tensor))
    graph.set_outputs(graph.add("convolution", inputs, attrs))
    plan = _engine.Plan.build(graph, _engine.WeightStore(), device=device, name="convolution")
    errors = []
    for _ in range(calls):  # from the second on one graph
        nothing = torch.full((wanted.numel() + 8,), 777, dtype=dtype)
        out = put(nothing)
        plan.launch(stream, buffers, [out])
        found = stored(nothing).copy()
        stream.copy_out(found, out)
        found = torch.from_numpy(found.view(np.uint8)).view(dtype)
        assert (found[-8:] == nothing[-8:]).all(), "wrote behind the output"
        error = (found[:-8].double().reshape(wanted.shape) - wanted).abs().max() / wanted.abs().max()
        errors.append(error.item() / tolerance)
    return max(errors)

wanted = json.loads(sys.argv[4])
errors = {f"{name} {kind}": run(name, kind) for name in wanted or CASES for kind in TYPES}
print(json.dumps({"errors": errors, "choices": device.choices()}))
"""
# In the order in which they are tried.
FUSED = ["BiasActivationForward 1", "BiasActivationForward 0"]
PLAIN = ["Forward 1", "Forward 0"]


class Standing:
    """The stand-in, and programs that find it."""

    def __init__(self, library: str, folder: Path, *defines: str) -> None:
        if torch.version.cuda is not None:
            pytest.skip("PyTorch for CUDA loads the real one, and a second library of that name is not looked for")
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if compiler is None:
            pytest.skip("needs a C compiler, to make a stand-in for cuDNN")
        source = Path(__file__).with_name("cudnn_stand_in.c")
        command = [compiler, "-shared", "-fPIC", "-O1", *defines, "-o", str(folder / "libcudnn.so.9"), str(source)]
        subprocess.run(command, check=True)
        self.library = library
        self.lines = folder / "lines"
        self.environment = {"LD_LIBRARY_PATH": str(folder), "CUDNN_LINES": str(self.lines)}

    def run(self, *cases: str, calls: int = 3, learned: str = "", **settings: str) -> dict[str, Any]:
        """What the cases give, all where none is named: shares of what an error may be, and choices by subject."""
        self.lines.unlink(missing_ok=True)
        command = [sys.executable, "-c", COMPUTED, self.library, str(calls), learned, json.dumps(cases)]
        environment = {**os.environ, **self.environment, **settings}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        result: dict[str, Any] = json.loads(done.stdout)
        assert max(result["errors"].values()) < 1, result["errors"]
        rows = [line.split("\t") for line in result["choices"].splitlines()]
        return {"choices": {subject: (taken, remark) for subject, taken, remark in rows}, "text": result["choices"]}

    def calls(self) -> list[str]:
        return self.lines.read_text().splitlines() if self.lines.exists() else []


@pytest.fixture
def standing(gpu: Any, tmp_path: Path) -> Standing:
    if gpu.is_real:
        pytest.skip("a GPU has the real one")
    return Standing(gpu.library, tmp_path)


@pytest.mark.gpu
def test_what_is_faster_computes(standing: Standing) -> None:
    """The emulated kernels are slow; from the second call on cuDNN runs within a graph."""
    found = standing.run()["choices"]
    assert len(found) == 30, "transposed ones and volumes are not asked for"
    for subject, (taken, remark) in found.items():
        assert taken.startswith("cuDNN ") and taken.endswith("(cuDNN 92801)"), subject
        assert remark.startswith("own ") and " ms" in remark


@pytest.mark.gpu
def test_what_is_slower_does_not(standing: Standing) -> None:
    found = standing.run("relu", calls=2, CUDNN_SLOW="300")["choices"]
    assert [taken for taken, _ in found.values()] == ["own (cuDNN 92801)"] * 3
    assert all(remark.count(" ms") == 5 for _, remark in found.values()), found


@pytest.mark.thorough  # four processes; that choices reach another one is tested below
@pytest.mark.gpu
def test_what_was_measured_is_not_measured_again(standing: Standing) -> None:
    first = standing.run("relu", "silu", calls=1)
    measured = len(standing.calls())
    again = standing.run("relu", "silu", calls=1, learned=first["text"])
    assert again["text"] == first["text"]
    # Once each to be sure of it, twice in the emulator's clock, and the call itself.
    assert len([line for line in standing.calls() if line != "create"]) == 6 * 3
    assert measured > len(standing.calls())
    # Another version is another library.
    assert standing.run("relu", calls=1, learned=first["text"], CUDNN_VERSION="92900")["text"] != first["text"]
    assert "(cuDNN 92900)" in standing.run("relu", calls=1, learned="nonsense\n\t\n", CUDNN_VERSION="92900")["text"]


@pytest.mark.gpu
def test_the_first_choice_is_ours(standing: Standing) -> None:
    assert standing.run("relu", calls=2, THRESHER_CUDA_PRODUCTS="first")["choices"] == {}
    assert standing.calls() == []


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ({"LD_LIBRARY_PATH": ""}, "without cuDNN: libcudnn.so.9 cannot be opened"),
        pytest.param(
            {"CUDNN_FAILS": "cudnnCreate"},
            "without cuDNN: cuDNN could not start: CUDNN_STATUS_EXECUTION_FAILED",
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            {"CUDNN_FAILS": "cudnnGetConvolutionForwardWorkspaceSize"},
            "cuDNN has none: no algorithm",
            marks=pytest.mark.thorough,
        ),
        ({"CUDNN_FAILS": "later:9"}, "cuDNN: cudnnConvolution"),
    ],
)
def test_our_kernels_where_it_fails(standing: Standing, setting: dict[str, str], reason: str) -> None:
    found = standing.run("relu", "silu", **setting)["choices"]
    assert found and all(reason in remark for _, remark in found.values() if "own" in remark or "cuDNN" in remark), (
        found
    )


@pytest.mark.gpu
def test_a_call_that_fails_leaves_the_others(standing: Standing) -> None:
    found = standing.run("relu", CUDNN_FAILS="cudnnConvolutionBiasActivationForward")["choices"]
    for taken, remark in found.values():
        assert "fused" not in taken and taken.startswith("cuDNN implicit"), found
        assert "failed: cuDNN: cudnnConvolutionBiasActivationForward: CUDNN_STATUS_EXECUTION_FAILED" in remark


@pytest.mark.gpu
def test_a_library_without_a_function(gpu: Any, tmp_path: Path) -> None:
    if gpu.is_real:
        pytest.skip("a GPU has the real one")
    found = Standing(gpu.library, tmp_path, "-DWITHOUT_FILTERS").run("relu")["choices"]
    assert found == {
        "convolutions": ("own", "without cuDNN: libcudnn.so.9 has no function cudnnCreateFilterDescriptor")
    }


@pytest.mark.gpu
def test_choices_are_kept_for_later_processes(gpu: Any, tmp_path: Path) -> None:
    """In the cache, beside what other processes kept, where they are of this kind of device."""
    program = """
import sys, types
package = types.ModuleType("thresher_cuda")
package.library_path = lambda: sys.argv[1]
sys.modules["thresher_cuda"] = package
from thresher.machine.backend import open_device
device = open_device("cuda", 0)
print(device.choices(), end="")
device.learn(sys.argv[2])
"""

    def run(learned: str, **settings: str) -> str:
        command = [sys.executable, "-c", program, gpu.library, learned]
        environment = {**os.environ, "THRESHER_CACHE_DIR": str(tmp_path), **settings}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0 and not done.stderr, done.stderr
        return done.stdout

    first, second = "a convolution\town\t1 ms\n", "a product\tcuBLASLt 13 1 2\t0: 1 ms\n"
    assert run(first) == ""
    assert run(second) == first
    assert run("", THRESHER_CACHE="0") == ""
    assert run("") == first + second

"""Where models can run."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

import thresher
from thresher import _engine


def test_what_is_usable_here() -> None:
    assert thresher.Backend("cpu").available() and thresher.Backend("cpu").obstacle() is None
    has_gpu = importlib.util.find_spec("thresher_cuda") is not None and Path("/dev/nvidiactl").exists()
    assert thresher.Backend("cuda").available() == has_gpu
    assert [backend.name for backend in thresher.backends()] == ["cpu", "cuda"]


class FakePackage(ModuleType):
    """thresher_cuda with a library of our choice."""

    def __init__(self, library: Any) -> None:
        super().__init__("thresher_cuda")
        self._library = library

    def library_path(self) -> str:
        return str(self._library)


def test_what_is_in_the_way_of_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "thresher_cuda", None)  # as if it were not installed
    assert "pip install thresher-cuda" in (thresher.Backend("cuda").obstacle() or "")
    assert not thresher.Backend("cuda").available()
    broken = tmp_path / "libthresher_cuda.so"
    broken.write_bytes(b"no library")
    monkeypatch.setitem(sys.modules, "thresher_cuda", FakePackage(broken))
    assert f"device library {broken} cannot be opened" in (thresher.Backend("cuda").obstacle() or "")
    monkeypatch.setitem(sys.modules, "thresher_cuda", FakePackage("libm.so.6"))
    assert "expected a device library of Thresher" in (thresher.Backend("cuda").obstacle() or "")
    assert not thresher.Backend("cuda").available()


def test_gpus_are_usable_where_their_library_finds_one(
    monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config, compiler: Any
) -> None:
    emulator = pytestconfig.getoption("--device-library", None)
    if emulator is None:
        pytest.skip("wants --device-library")
    monkeypatch.setitem(sys.modules, "thresher_cuda", FakePackage(emulator))
    assert thresher.Backend("cuda").available() and thresher.Backend("cuda").obstacle() is None
    from thresher.doctor import checks

    finding = checks.check_gpu()
    assert finding.found.startswith("cuda:0 emulator (compute capability 9.0, 1 GiB), cuda:1")
    assert "; convolutions beside cuDNN; " in finding.found or "; convolutions without cuDNN; " in finding.found
    assert ("CUPTI's" in finding.found) == ("pip install thresher-cuda[cupti]" in finding.cure)
    model, x = nn.Sequential(nn.Linear(8, 8), nn.GELU()), torch.randn(3, 8)
    with torch.no_grad():
        assert torch.allclose(compiler.compile(model, target="cuda")(x), model(x), atol=1e-6)
    assert compiler.compilation_stats().partitions == 1
    for precision in ("int8", "int8_weight", "int4_weight"):
        with pytest.raises(compiler.UnavailableError, match=f"on a GPU, got '{precision}', which only the CPU has"):
            compiler.compile(model, target="cuda", precision=precision)


def test_cupti_is_looked_for_where_the_kernels_look(tmp_path: Path) -> None:
    from thresher.doctor import checks

    library = tmp_path / "thresher_cuda" / "libthresher_cuda.so"
    folder = tmp_path / "nvidia" / "cu13" / "lib"
    folder.mkdir(parents=True)
    (folder / "libcupti.so.13").write_bytes(b"no library")
    elsewhere = tmp_path / "elsewhere" / "thresher_cuda" / "libthresher_cuda.so"
    assert checks._opens_cupti(str(library)) == checks._opens_cupti(str(elsewhere)), "what the system has, if anything"
    shutil.copy(_engine.__file__, folder / "libcupti.so.13")  # any library that opens
    assert checks._opens_cupti(str(library))


def test_cudnn_is_looked_for_where_pytorch_brings_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from thresher.doctor import checks

    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    before = checks._has_cudnn()  # what the system has, if anything
    folder = tmp_path / "nvidia" / "cudnn" / "lib"
    folder.mkdir(parents=True)
    assert checks._has_cudnn() == before
    (folder / "libcudnn.so.9").touch()
    assert checks._has_cudnn()


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="expected one of cpu, cuda, got 'tpu'"):
        thresher.Backend("tpu")


def test_a_wrong_variable_is_an_obstacle() -> None:
    code = "import thresher; b = thresher.Backend('cpu'); print(b.available(), b.obstacle())"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**_environment(), "THRESHER_ISA": "mmx"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("False THRESHER_ISA: expected one of") and "mmx" in done.stdout


def _environment() -> dict[str, str]:
    import os

    return dict(os.environ)


def test_target(compiler: Any) -> None:
    with pytest.raises(compiler.UnavailableError, match=r"target=.cuda. is not available: .*; available: cpu"):
        compiler.compile(nn.Linear(2, 2), target="cuda")
    with pytest.raises(compiler.ConfigError, match="expected one of cpu, cuda, got 'tpu'"):
        compiler.compile(nn.Linear(2, 2), target="tpu")


def test_gradcheck(compiler: Any) -> None:
    """Finite differences in float32 are coarse, so the function is smooth and the step wide."""
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 3))
    compiled = compiler.compile(model)
    x = torch.randn(4, 6, requires_grad=True)
    assert torch.autograd.gradcheck(
        compiled, (x,), eps=1e-2, atol=1e-2, rtol=1e-2, nondet_tol=1e-5, check_undefined_grad=False
    )


@pytest.mark.parametrize("precision", ["bf16", "int8", "int8_weight"])
def test_gradients_through_a_rounded_model(compiler: Any, precision: str) -> None:
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 4))
    x = torch.randn(16, 32)

    def gradients(run: nn.Module) -> list[torch.Tensor]:
        model.zero_grad()
        run(x).square().sum().backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    expected = gradients(model)
    actual = gradients(compiler.compile(model, precision=precision))
    assert len(actual) == 4
    for ours, theirs in zip(actual, expected, strict=True):
        assert (ours - theirs).norm() <= 0.03 * theirs.norm()

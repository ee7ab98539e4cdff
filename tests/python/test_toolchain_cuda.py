"""Building for NVIDIA GPUs: finding the compiler, completing its folder, judging the wheel."""

from __future__ import annotations

import ctypes
import shutil
import struct
import subprocess
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAME = "thresher_cuda-0.1.0-py3-none-manylinux_2_34_x86_64.whl"


@pytest.fixture(autouse=True)
def scripts_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))


def fat_binary(*code: tuple[int, int]) -> bytes:
    """The part of a library that holds kernels: kinds (1: PTX, 2: machine code) and architectures."""
    entries = b""
    for kind, architecture in code:
        payload = b"\x7fELF..." if kind == 2 else b".version"
        entries += struct.pack("<HHIQ12xI32x", kind, 0x101, 64, len(payload), architecture) + payload
    return struct.pack("<4sHHQ", b"\x50\xed\x55\xba", 1, 16, len(entries)) + entries


WHOLE = ((2, 80), (2, 89), (2, 90), (1, 100), (2, 100))


def library(*code: tuple[int, int], machine: int = 62) -> bytes:
    header = b"\x7fELF" + bytes([2, 1]) + bytes(12) + struct.pack("<H", machine)
    # The number that marks fat binaries, in what reads them.
    return header + b"code \x50\xed\x55\xba more code" + fat_binary(*code) + bytes(64)


def make_wheel(folder: Path, name: str = NAME, content: bytes | None = None, without: str = "", more: str = "") -> Path:
    info = "thresher_cuda-0.1.0.dist-info"
    files = {
        "thresher_cuda/__init__.py": b"",
        "thresher_cuda/py.typed": b"",
        "thresher_cuda/libthresher_cuda.so": library(*WHOLE) if content is None else content,
        f"{info}/METADATA": b"",
        f"{info}/RECORD": b"",
        f"{info}/licenses/LICENSE": b"",
        f"{info}/licenses/licenses/nvidia-cuda-runtime.txt": b"",
    }
    if more:
        files[more] = b""
    path = folder / name
    with zipfile.ZipFile(path, "w") as archive:
        for entry, data in files.items():
            if not (without and entry.endswith(without)):
                archive.writestr(entry, data)
    return path


def test_every_kernel_waits_for_those_before_it() -> None:
    """Launches allow kernels to overlap, so all must begin where the wait is."""
    sources = {path: path.read_text() for path in (ROOT / "src" / "thresher" / "cuda").iterdir()}
    assert [path.name for path, text in sources.items() if "__global__" in text] == ["launcher.cuh"]
    launcher = next(text for path, text in sources.items() if path.name == "launcher.cuh")
    assert launcher.count("__global__") == 1
    body = launcher.partition("__global__")[2].partition("{")[2]
    assert body.split(";")[0].strip() == "WaitForEarlierKernels()"


class TestWheel:
    def test_a_good_one(self, tmp_path: Path) -> None:
        from toolchain.cuda import faults

        assert faults(make_wheel(tmp_path)) == []

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"name": "thresher_cuda-0.1.0-cp311-cp311-manylinux_2_34_x86_64.whl"}, "is cp311-cp311-"),
            ({"name": "thresher_cuda-0.1.0-py3-none-linux_x86_64.whl"}, "linux_x86_64 is not manylinux_"),
            ({"without": "__init__.py"}, "lacks thresher_cuda/__init__.py"),
            ({"without": "nvidia-cuda-runtime.txt"}, "lacks *.dist-info/licenses/licenses/nvidia-cuda-runtime.txt"),
            ({"without": ".so"}, "lacks thresher_cuda/libthresher_cuda.so"),
            ({"content": library(*WHOLE, machine=183)}, "ELF machine 183, not 62"),
            ({"content": library(*WHOLE[1:])}, "code for sm_89, sm_90, compute_100, sm_100, not for sm_80"),
            ({"content": b"\x7fELF"}, "code for no GPU"),
            ({"more": "thresher_cuda.libs/libcublasLt-1.so"}, "libcublasLt-1.so, which belongs to the user's machine"),
        ],
    )
    def test_a_bad_one_is_named(self, tmp_path: Path, changes: dict[str, str], message: str) -> None:
        from toolchain.cuda import faults

        assert message in "; ".join(faults(make_wheel(tmp_path, **changes)))  # type: ignore[arg-type]

    def test_a_large_one(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from toolchain import cuda

        whole = make_wheel(tmp_path)
        monkeypatch.setattr(cuda, "MOST_BYTES", whole.stat().st_size)
        assert cuda.faults(whole) == []
        monkeypatch.setattr(cuda, "MOST_BYTES", whole.stat().st_size - 1)
        assert cuda.faults(whole) == [f"it has {whole.stat().st_size / 1e6:.1f} MB, more than 0"]

    def test_version_and_dependency_come_from_the_one_project_file(self) -> None:
        tomllib = pytest.importorskip("tomllib")
        project = tomllib.loads((ROOT / "cuda" / "pyproject.toml").read_text())
        assert project["project"]["dynamic"] == ["version", "dependencies"]
        metadata = project["tool"]["scikit-build"]["metadata"]
        assert (ROOT / "cuda" / metadata["version"]["input"]).resolve() == ROOT / "pyproject.toml"
        assert metadata["dependencies"]["result"] == ["thresher=={project[version]}"]
        assert (ROOT / "cuda" / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


class TestFatBinaries:
    def test_all_that_a_file_holds(self) -> None:
        from toolchain.fatbin import architectures

        data = b"x" * 7 + fat_binary((2, 90), (2, 80)) + b"y" * 9 + fat_binary((1, 90), (2, 90))
        assert architectures(data) == ["sm_80", "compute_90", "sm_90"]
        assert architectures(b"") == architectures(b"\x50\xed\x55\xba") == []

    def test_a_cut_one_holds_nothing(self) -> None:
        from toolchain.fatbin import architectures

        whole = fat_binary((2, 90))
        assert all(architectures(whole[:size]) == [] for size in range(len(whole)))

    def test_wheel_and_cmake_agree(self) -> None:
        from toolchain.cuda import CODE

        text = (ROOT / "cmake" / "cuda.cmake").read_text()
        line = next(line for line in text.splitlines() if line.startswith("set(CMAKE_CUDA_ARCHITECTURES"))
        wanted: set[str] = set()
        for architecture in line.split('"')[1].split(";"):
            number, _, kind = architecture.partition("-")
            wanted |= {f"sm_{number}"} if kind != "virtual" else set()
            wanted |= {f"compute_{number}"} if kind != "real" else set()
        assert wanted == set(CODE)


USAGE = """
Fatbin elf code:
================
arch = sm_80
code version = [1,8]
Resource usage:
 Common:
  GLOBAL:0
 Function _ZN8thresher4cuda3RunINS0_11MergeKernelINS0_10SdpaSourceEEEEEvT_:
  REG:48 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:520 TEXTURE:0 SURFACE:0 SAMPLER:0
 Function _ZN8thresher4cuda3RunINS0_11MergeKernelINS0_11PagedSourceEEEEEvT_:
  REG:40 STACK:16 SHARED:0 LOCAL:0 CONSTANT[0]:520 TEXTURE:0 SURFACE:0 SAMPLER:0
arch = sm_90
 Function _ZN8thresher4cuda3RunINS0_11MergeKernelINS0_10SdpaSourceEEEEEvT_:
  REG:32 STACK:0 SHARED:0 LOCAL:0
 Function _ZN8thresher4cuda3RunINS0_10CopyKernelEEEvT_:
  REG:20 STACK:0 SHARED:0 LOCAL:0
arch = sm_80
 Function _ZN8thresher4cuda3RunINS0_10CopyKernelEEEvT_:
  REG:22 STACK:0 SHARED:0 LOCAL:0
"""


class TestRegisters:
    def test_the_most_of_each_kernel_counts(self) -> None:
        from toolchain.registers import read_usage

        assert read_usage(USAGE) == {
            "MergeKernel": {"sm_80": (48, 16), "sm_90": (32, 0)},
            "CopyKernel": {"sm_90": (20, 0), "sm_80": (22, 0)},
        }

    def test_what_is_written_is_read(self, tmp_path: Path) -> None:
        from toolchain.process import ToolchainError
        from toolchain.registers import faults, read_pins, read_usage, write_pins

        used, path = read_usage(USAGE), tmp_path / "registers.txt"
        write_pins(path, used)
        assert path.read_text().endswith("kernel       sm_80  sm_90\nCopyKernel   22     20\nMergeKernel  48+16  32\n")
        assert read_pins(path) == used and faults(used, used) == []
        path.write_text("kernel sm_80\nCopyKernel many\n")
        with pytest.raises(ToolchainError, match="expected a kernel and 1 numbers, got 'CopyKernel many'"):
            read_pins(path)

    def test_more_than_is_pinned(self) -> None:
        from toolchain.registers import faults, read_usage, unpinned

        used, pins = read_usage(USAGE), read_usage(USAGE)
        pins["CopyKernel"]["sm_80"] = (21, 0)
        pins["MergeKernel"] = {"sm_80": (255, 8)}
        assert unpinned(used, pins) == []
        assert faults(used, pins) == [
            "CopyKernel on sm_80: expected at most 21 registers, got 22",
            "MergeKernel on sm_80: expected at most 8 bytes of stack, got 16",
        ]
        assert unpinned(used, {}) == ["CopyKernel", "MergeKernel"] and faults(used, {}) == []

    def test_the_pinned_ones_are_those_of_the_sources(self) -> None:
        """That numbers fit is known where the kernels are built; here, that none is forgotten."""
        from toolchain.cuda import CODE, PINS
        from toolchain.registers import read_pins

        sources = "".join(path.read_text() for path in (ROOT / "src" / "thresher" / "cuda").iterdir())
        pins = read_pins(PINS)
        assert pins and all(f"struct {kernel} " in sources or f"class {kernel} " in sources for kernel in pins)
        assert {name for row in pins.values() for name in row} == {name for name in CODE if name.startswith("sm_")}


class TestRuns:
    def test_no_gpu(self) -> None:
        from toolchain.cuda_runs import obstacle

        def none(name: str) -> ctypes.CDLL:
            raise OSError(f"{name}: cannot open shared object file")

        assert obstacle(none) == "no driver: libcuda.so.1: cannot open shared object file"

    @pytest.mark.parametrize(
        ("code", "reason"),
        [
            (
                "int cuInit(unsigned f) { return 100; } int cuDeviceGetCount(int* n) { return 0; }",
                "answers with error 100",
            ),
            ("int cuInit(unsigned f) { return 0; } int cuDeviceGetCount(int* n) { *n = 0; return 0; }", "shows none"),
            ("int cuInit(unsigned f) { return 0; } int cuDeviceGetCount(int* n) { *n = 2; return 0; }", None),
        ],
    )
    def test_what_a_driver_says(self, tmp_path: Path, code: str, reason: str | None) -> None:
        from toolchain.cuda_runs import obstacle

        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if compiler is None:
            pytest.skip("needs a C compiler, to make a driver")
        (tmp_path / "driver.c").write_text(code)
        library = str(tmp_path / "driver.so")
        subprocess.run([compiler, "-shared", "-fPIC", "-o", library, str(tmp_path / "driver.c")], check=True)
        found = obstacle(lambda name: ctypes.CDLL(library))
        assert found is None if reason is None else reason in str(found)

    def test_wrong_arguments_and_machines_without_a_gpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from toolchain import cuda_runs
        from toolchain.native import Flavour
        from toolchain.process import ToolchainError

        with pytest.raises(ToolchainError, match="expected --quick or some of device, attention, models, got 'llm'"):
            cuda_runs.run_bench(Flavour(), ["--quick", "llm"])
        with pytest.raises(ToolchainError, match="got '--rounds'"):
            cuda_runs.run_bench(Flavour(), ["--rounds", "device"])
        monkeypatch.setattr(cuda_runs, "obstacle", lambda: "no driver")
        for run in (cuda_runs.run_bench, cuda_runs.run_tests):
            with pytest.raises(
                ToolchainError, match="Expected a machine with an NVIDIA GPU, got one without: no driver"
            ):
                run(Flavour(), [])

    def test_each_benchmark_is_there(self) -> None:
        from toolchain.cuda_runs import BENCHMARKS

        assert {path.name for path in (ROOT / "bench" / "cuda").glob("*_bench.py")} == {
            f"{name}_bench.py" for name in BENCHMARKS
        }


def fake_nvcc(path: Path, release: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{release}.88'\n")
    path.chmod(0o755)
    return path


class TestCompiler:
    def test_the_chosen_one_comes_first(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from toolchain import cuda

        nvcc = fake_nvcc(tmp_path / "nvcc", "13.2")
        monkeypatch.setenv("CUDACXX", str(nvcc))
        assert cuda.compiler() == nvcc

    @pytest.mark.parametrize("release", ["12.9", None])
    def test_a_wrong_choice_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str | None
    ) -> None:
        from toolchain import cuda
        from toolchain.process import ToolchainError

        nvcc = fake_nvcc(tmp_path / "nvcc", release) if release else tmp_path / "none"
        monkeypatch.setenv("CUDACXX", str(nvcc))
        with pytest.raises(ToolchainError, match=rf"of CUDA {cuda.pinned_release()} or newer, got .*{nvcc.name}"):
            cuda.compiler()

    def test_an_installed_one_of_the_pinned_release_saves_a_download(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from toolchain import cuda

        monkeypatch.delenv("CUDACXX", raising=False)
        installed = fake_nvcc(tmp_path / "installed", cuda.pinned_release())
        monkeypatch.setattr(cuda, "INSTALLED", installed)
        assert cuda.compiler() == installed
        fake_nvcc(installed, "12.4")
        asked = []

        def ensure(environment: object) -> None:
            asked.append(environment)
            fake_nvcc(cuda.CUDA_COMPILER.site_packages / "nvidia" / "cu13" / "bin" / "nvcc", cuda.pinned_release())

        monkeypatch.setattr(cuda.environments, "ensure", ensure)
        monkeypatch.setattr(type(cuda.CUDA_COMPILER), "site_packages", property(lambda _: tmp_path / "site"))
        assert cuda.compiler() == tmp_path / "site" / "nvidia" / "cu13" / "bin" / "nvcc"
        assert asked == [cuda.CUDA_COMPILER]

    def test_packages_become_a_toolkit(self, tmp_path: Path) -> None:
        from toolchain.cuda import complete_toolkit
        from toolchain.process import ToolchainError

        (tmp_path / "lib").mkdir()
        (tmp_path / "lib" / "libcudart.so.13").write_text("library")
        with pytest.raises(ToolchainError, match="to run; it does not"):
            complete_toolkit(tmp_path)
        nvcc = fake_nvcc(tmp_path / "bin" / "nvcc", "13.0")
        for _ in range(2):  # again changes nothing
            assert complete_toolkit(tmp_path) == nvcc
            assert (tmp_path / "lib64" / "libcudart.so").read_text() == "library"

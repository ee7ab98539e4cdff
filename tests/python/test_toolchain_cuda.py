"""Building for NVIDIA GPUs: finding the compiler, completing its folder, judging the wheel."""

from __future__ import annotations

import struct
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

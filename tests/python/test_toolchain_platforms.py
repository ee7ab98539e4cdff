"""What can be built where, and how a wheel that cannot run here is judged."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "src" / "thresher" / "kernels"
CROSS_COMPILER = shutil.which("aarch64-linux-gnu-g++")


@pytest.fixture(autouse=True)
def scripts_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))


@pytest.fixture
def on_machine(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes the toolchain believe that it runs on another machine."""
    from toolchain import platforms

    return lambda name: monkeypatch.setattr(platforms.host, "machine", lambda: name)


class TestPlatforms:
    def test_names_profiles_and_the_installer_agree(self) -> None:
        from toolchain.native import PROFILES
        from toolchain.platforms import PLATFORMS

        for name, platform in PLATFORMS.items():
            assert platform.name == name
            if platform.available:
                profiles = {platform.profile, platform.cross_profile} - {None}
                assert profiles <= set(PROFILES)
                command = ["bash", str(ROOT / "scripts" / "install_build_deps.sh"), "--check", "--platform", name]
                assert subprocess.run(command, capture_output=True, check=False).returncode in (0, 1)

    def test_arm_is_cross_compiled_on_x86_and_native_on_arm(self, on_machine: Callable[[str], None]) -> None:
        from toolchain import platforms
        from toolchain.native import Flavour

        on_machine("x86_64")
        arm = platforms.select("arm")
        assert (arm.cross, arm.host_profile) == (True, "armv8")
        assert Flavour() == Flavour("x86")
        on_machine("aarch64")
        assert (arm.cross, arm.host_profile) == (False, "armv8-native")
        assert Flavour() == Flavour("armv8-native")
        assert platforms.of_this_machine() is arm

    def test_a_wrong_machine_names_what_it_can_build(self, on_machine: Callable[[str], None]) -> None:
        from toolchain import platforms
        from toolchain.process import ToolchainError

        on_machine("aarch64")
        with pytest.raises(ToolchainError, match=r"built on x86_64 machines; this one is aarch64.*can: arm\."):
            platforms.select("x86")
        on_machine("riscv64")
        with pytest.raises(ToolchainError, match="Expected an x86_64 or aarch64 machine; this one is riscv64"):
            platforms.of_this_machine()

    def test_an_unknown_or_later_platform_names_the_available_ones(self) -> None:
        from toolchain import platforms
        from toolchain.process import ToolchainError

        for name in platforms.planned():
            with pytest.raises(ToolchainError, match=rf"Platform {name} is not yet available; available: x86, arm"):
                platforms.select(name)
        with pytest.raises(ToolchainError, match="Platform vax is unknown; available: x86, arm"):
            platforms.select("vax")

    def test_each_flavour_has_folders_of_its_own(self) -> None:
        from toolchain.native import PROFILES, Flavour

        flavours = [Flavour(profile, build_type) for profile in PROFILES for build_type in ("Release", "Debug")]
        assert len({flavour.objects for flavour in flavours}) == len(flavours)
        assert len({flavour.dependencies for flavour in flavours}) == len(flavours)

    def test_suffix_and_tag_are_the_other_architectures(self) -> None:
        from toolchain.platforms import ARM

        version = f"{sys.version_info.major}{sys.version_info.minor}"
        assert ARM.extension_suffix == f".cpython-{version}-aarch64-linux-gnu.so"
        assert ARM.platform_tag == "linux_aarch64"


def elf_file(machine: int, big_endian: bool = False) -> bytes:
    order, data = (">", 2) if big_endian else ("<", 1)
    return b"\x7fELF" + bytes([2, data, 1]) + bytes(9) + struct.pack(f"{order}HH", 3, machine) + bytes(44)


def test_the_machine_of_an_elf_file_is_read() -> None:
    from toolchain import elf

    assert elf.machine(elf_file(183)) == 183
    assert elf.machine(elf_file(21, big_endian=True)) == 21
    for other in (b"", b"\x7fELF", b"#!/bin/sh" + bytes(60)):
        assert elf.machine(other) is None
    with open(sys.executable, "rb") as file:
        assert elf.machine(file.read(elf.HEADER_SIZE)) in (62, 183)


class TestWheelOfAnotherArchitecture:
    TAG = f"cp{sys.version_info.major}{sys.version_info.minor}"

    def make(self, folder: Path, **changes: object) -> Path:
        from toolchain.platforms import ARM
        from toolchain.wheel import CONTENT

        tag = f"{self.TAG}-{self.TAG}-manylinux_2_34_aarch64"
        parts = {"file_tag": tag, "tag": tag, "machine": 183, "suffix": ARM.extension_suffix, "without": ""} | changes
        path = folder / f"thresher-0.1.0-{parts['file_tag']}.whl"
        with zipfile.ZipFile(path, "w") as archive:
            for name in CONTENT:
                if name != parts["without"]:
                    archive.writestr(name.replace("*", "thresher-0.1.0"), "")
            archive.writestr("thresher-0.1.0.dist-info/WHEEL", f"Wheel-Version: 1.0\nTag: {parts['tag']}\n")
            archive.writestr(f"thresher/_engine{parts['suffix']}", elf_file(int(str(parts["machine"]))))
        return path

    def test_a_good_one_passes(self, tmp_path: Path) -> None:
        from toolchain.platforms import ARM
        from toolchain.wheel import faults, inspect

        wheel = self.make(tmp_path)
        assert faults(wheel, ARM) == []
        inspect(wheel, ARM)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"file_tag": f"{TAG}-{TAG}-linux_aarch64"}, "platform tag linux_aarch64 is not manylinux_"),
            ({"file_tag": f"{TAG}-{TAG}-manylinux_2_34_x86_64"}, "is not manylinux_.*_aarch64"),
            ({"file_tag": "cp39-cp39-manylinux_2_34_aarch64"}, "its tag is cp39-cp39-"),
            ({"tag": f"{TAG}-{TAG}-linux_x86_64"}, "its metadata says Tag: .*x86_64"),
            ({"machine": 62}, "has ELF machine 62, not 183"),
            ({"suffix": f".cpython-{TAG[2:]}-x86_64-linux-gnu.so"}, "it lacks thresher/_engine.*aarch64"),
            ({"without": "thresher/py.typed"}, "it lacks thresher/py.typed"),
            ({"without": "*.dist-info/licenses/LICENSE"}, "it lacks .*LICENSE"),
        ],
    )
    def test_a_bad_one_is_named(self, tmp_path: Path, changes: dict[str, object], message: str) -> None:
        from toolchain.platforms import ARM
        from toolchain.process import ToolchainError
        from toolchain.wheel import inspect

        with pytest.raises(ToolchainError, match=f"is no wheel for platform arm: .*{message}"):
            inspect(self.make(tmp_path, **changes), ARM)

    def test_only_wheels_for_the_same_architecture_are_replaced(self, tmp_path: Path) -> None:
        from toolchain.wheel import superseded

        for name in (
            "thresher-0.1.0-cp311-cp311-manylinux_2_34_x86_64.whl",
            "thresher-0.1.0-cp311-cp311-manylinux_2_34_aarch64.whl",
            "thresher-0.0.9-cp311-cp311-manylinux_2_17_aarch64.manylinux2014_aarch64.whl",
            "thresher_cuda-0.1.0-cp311-cp311-manylinux_2_34_x86_64.whl",
        ):
            (tmp_path / name).write_text("")
        new = "thresher-0.1.0-cp311-cp311-manylinux_2_34_aarch64.whl"
        assert [path.name.split("-")[1] for path in superseded(tmp_path, new)] == ["0.0.9"]
        newer = "thresher-0.2.0-cp311-cp311-manylinux_2_34_x86_64.whl"
        assert [path.name for path in superseded(tmp_path, newer)] == [
            "thresher-0.1.0-cp311-cp311-manylinux_2_34_x86_64.whl"
        ]

    def test_pytorch_of_this_machine_is_refused(self, tmp_path: Path) -> None:
        from toolchain.platforms import ARM
        from toolchain.process import ToolchainError
        from toolchain.wheel import check_foreign_torch

        library = tmp_path / "torch" / "lib" / "libtorch_cpu.so"
        library.parent.mkdir(parents=True)
        library.write_bytes(elf_file(183))
        check_foreign_torch([str(tmp_path / "torch")], ARM)
        library.write_bytes(elf_file(62))
        with pytest.raises(ToolchainError, match="is for another machine"):
            check_foreign_torch([str(tmp_path / "torch")], ARM)
        with pytest.raises(ToolchainError, match=r"without lib/libtorch_cpu\.so"):
            check_foreign_torch([sys.executable], ARM)


@pytest.fixture
def fetch_python_headers() -> ModuleType:
    pytest.importorskip("yaml")
    import fetch_python_headers as module

    return module


class TestHeaders:
    def make(self, folder: Path, *, x86: bool = False, version: str | None = None, wrapper: bool = False) -> Path:
        version = version or f"{sys.version_info.major}.{sys.version_info.minor}"
        include = folder / "include" / f"python{version}"
        include.mkdir(parents=True)
        (include / "Python.h").write_text("")
        (include / "patchlevel.h").write_text(f'#define PY_VERSION "{version}.2"\n')
        own = "#define SIZEOF_VOID_P 8\n" + (
            "#define HAVE_GCC_ASM_FOR_X64 1\n" if x86 else "/* #undef HAVE_GCC_ASM_FOR_X64 */\n"
        )
        if wrapper:
            other = folder / "include" / "aarch64-linux-gnu" / include.name / "pyconfig.h"
            other.parent.mkdir(parents=True)
            other.write_text(own)
            own = "#include <aarch64-linux-gnu/pyconfig.h>\n"
        (include / "pyconfig.h").write_text(own)
        return include

    def run(self, module: ModuleType, source: Path, target: Path) -> int:
        return int(module.main(["--from", str(source), str(target)]))

    @pytest.mark.parametrize("wrapper", [False, True])
    def test_a_folder_of_headers_becomes_flat(
        self, fetch_python_headers: ModuleType, tmp_path: Path, wrapper: bool
    ) -> None:
        include = self.make(tmp_path, wrapper=wrapper)
        assert self.run(fetch_python_headers, include, tmp_path / "out") == 0
        assert "SIZEOF_VOID_P 8" in (tmp_path / "out" / "pyconfig.h").read_text()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["include", "out"]

    def test_wrong_headers_are_refused_and_old_ones_kept(
        self, fetch_python_headers: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        target = tmp_path / "out"
        assert self.run(fetch_python_headers, self.make(tmp_path / "good"), target) == 0
        capsys.readouterr()
        alone = self.make(tmp_path / "alone", wrapper=True)
        shutil.rmtree(alone.parent / "aarch64-linux-gnu")
        for source, message in (
            (self.make(tmp_path / "x86", x86=True), "is of an x86_64 Python"),
            (self.make(tmp_path / "old", version="3.1"), "holds the headers of Python 3.1"),
            (tmp_path / "none", "has no Python.h"),
            (alone, "only includes another file"),
        ):
            assert self.run(fetch_python_headers, source, target) == 1
            error = capsys.readouterr().err
            assert message in error
            assert str(source) in error
            assert "THRESHER_PYTHON_HEADERS" in error
            assert fetch_python_headers.fault(target, fetch_python_headers.PLATFORMS["arm"]) is None

    def test_without_debian_or_apt_the_cure_is_named(
        self,
        fetch_python_headers: ModuleType,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.delenv("THRESHER_PYTHON_HEADERS", raising=False)
        release = tmp_path / "os-release"
        monkeypatch.setattr(fetch_python_headers, "OS_RELEASE", release)
        for text, message in (
            ("ID=fedora\nVERSION_CODENAME=x\n", "got 'fedora'"),
            ("", "got 'unknown'"),
            ('ID=debian\nVERSION_CODENAME="bookworm"\n', "got no apt-get"),
        ):
            release.write_text(text)
            monkeypatch.setattr(fetch_python_headers.shutil, "which", lambda name: None)
            assert fetch_python_headers.main([str(tmp_path / "out")]) == 1
            error = capsys.readouterr().err
            assert message in error
            assert "THRESHER_PYTHON_HEADERS" in error
            assert not (tmp_path / "out").exists()


def highway_headers() -> Path | None:
    """The headers of Highway as Conan installed them for any platform; they are the same for all."""
    for path in (ROOT / "build" / "dependencies").glob("*/hwy-*-data.cmake"):
        folder = re.search(r'^set\(highway_PACKAGE_FOLDER_\w+ "(.+)"\)$', path.read_text(), re.MULTILINE)
        if folder and (Path(folder[1]) / "include" / "hwy" / "highway.h").is_file():
            return Path(folder[1]) / "include"
    return None


def cross_compile(kernel: Path, *options: str | Path) -> None:
    """Compiles a kernel for Arm, or skips the test where that cannot be done."""
    if not CROSS_COMPILER:
        pytest.skip("no aarch64-linux-gnu-g++; scripts/install_build_deps.sh --tests installs it")
    headers = highway_headers()
    if not headers:
        pytest.skip("no Highway under build/dependencies; `nox -s deps` installs it")
    flags = ["-std=c++20", "-fno-math-errno", "-Wall", "-Wextra", "-Wno-restrict", "-Werror", f"-I{ROOT / 'src'}"]
    command = [CROSS_COMPILER, *flags, "-isystem", headers, *options, kernel]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_kernel_cross_compiles_for_neon_and_sve(tmp_path: Path) -> None:
    from toolchain import elf

    out = tmp_path / "kernel.o"
    cross_compile(KERNELS / "softmax.cc", "-c", "-o", out)
    content = out.read_bytes()
    assert elf.machine(content) == 183
    # The mangled names of the namespaces that Highway compiles a kernel into, one for each instruction set.
    for namespace in (b"6N_SVE2", b"5N_SVE", b"N_NEON"):
        assert namespace in content


# Products are changed most often, and assert what depends on the longest vectors there are.
OFTEN_CHANGED = ("gemm", "gemm_dot")
SELDOM_CHANGED = sorted({path.stem for path in KERNELS.glob("*.cc")} - set(OFTEN_CHANGED))


@pytest.mark.parametrize(
    "kernel", [*OFTEN_CHANGED, *(pytest.param(name, marks=pytest.mark.thorough) for name in SELDOM_CHANGED)]
)
def test_every_kernel_is_one_of_arm(kernel: str) -> None:
    """Vectors of SVE, say, can neither be members nor elements of arrays."""
    cross_compile(KERNELS / f"{kernel}.cc", "-fsyntax-only")

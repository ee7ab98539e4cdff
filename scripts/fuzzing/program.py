"""Building the programs that fuzz targets are run by."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from toolchain import environments, native, wheel
from toolchain.environments import FUZZ
from toolchain.layout import ROOT
from toolchain.native import Flavour
from toolchain.process import ToolchainError, note, output
from toolchain.system import offer_fuzz_packages

from .target import CPP, PYTHON, RESULTS, SOURCES, Target

OBJECTS = RESULTS / "cmake"
PROBE = "int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }\n"


@dataclass(frozen=True)
class Programs:
    """What runs the targets.

    Attributes:
        clang: the compiler of the C++ targets, None if none was wanted.
        python: the interpreter that has atheris, None if none was wanted.
        skipped: why targets of a language are left out, by language.
    """

    clang: Path | None
    python: Path | None
    skipped: dict[str, str]

    def command(self, target: Target) -> list[str]:
        """The command that runs a target; libFuzzer's options follow."""
        if target.language == CPP:
            return [str(OBJECTS / "fuzz" / f"fuzz_{target.name}")]
        return [str(self.python), str(SOURCES / "run_python.py"), target.name]

    def environment(self) -> dict[str, str]:
        """The variables under which the programs run; the user's own THRESHER_* do not count."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("THRESHER_")}
        kept |= {"UBSAN_OPTIONS": "print_stacktrace=1", "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
        if self.clang is not None and (symbolizer := _symbolizer(self.clang)):
            kept |= {"ASAN_SYMBOLIZER_PATH": symbolizer, "UBSAN_SYMBOLIZER_PATH": symbolizer}
        return kept


def build(chosen: Sequence[Target]) -> Programs:
    """Builds what runs these targets; Python ones are skipped where there is no atheris.

    Raises:
        ToolchainError: there is no Clang with libFuzzer, or something does not build.
    """
    clang = python = None
    skipped = {}
    languages = {target.language for target in chosen}
    if CPP in languages:
        clang = find_clang()
        compile_targets(clang, [f"fuzz_{target.name}" for target in chosen if target.language == CPP])
    if PYTHON in languages:
        built = wheel.build_wheel(Flavour())
        python = environments.install_wheel(FUZZ, built)
        if output([python, "-c", "import atheris"]) is None:
            python = None
            skipped[PYTHON] = f"skipped: no atheris for Python {sys.version_info.major}.{sys.version_info.minor}"
            note(skipped[PYTHON])
    return Programs(clang, python, skipped)


def compile_targets(clang: Path, names: Sequence[str]) -> None:
    """Compiles CMake targets with Clang in the build folder of the fuzz targets.

    Highway comes from the package that the usual compiler built: both use the same C++ library and ABI, and what is in
    that library (which instruction sets there are, aligned memory) reads no input.
    """
    flavour = Flavour()
    native.install_dependencies(flavour)
    native.tool(
        [
            *("cmake", "-S", ROOT, "-B", OBJECTS, "-G", "Ninja"),
            f"-DCMAKE_TOOLCHAIN_FILE={flavour.toolchain_file}",
            *("-DCMAKE_BUILD_TYPE=Release", f"-DCMAKE_CXX_COMPILER={clang}"),
            *("-DTHRESHER_BUILD_FUZZERS=ON", "-DTHRESHER_BUILD_PYTHON=OFF", "-DTHRESHER_WERROR=OFF"),
        ],
        hint=f"Removing {OBJECTS} starts afresh.",
    )
    native.tool(["cmake", "--build", OBJECTS, *(f"--target={name}" for name in names)])


def find_clang() -> Path:
    """Returns a Clang that links programs of libFuzzer: $CXX, else the newest one there is; installs one as root.

    Raises:
        ToolchainError: there is none.
    """
    for attempt in range(2):
        for candidate in _candidates():
            if has_libfuzzer(candidate):
                return candidate
        if attempt == 0:
            offer_fuzz_packages()
    raise ToolchainError(
        "Expected a Clang with libFuzzer and AddressSanitizer, got none. Run this line, then try again:\n"
        "  sudo bash scripts/install_build_deps.sh -y --fuzz\n"
    )


def _candidates() -> Iterator[Path]:
    chosen = os.environ.get("CXX", "")
    if "clang" in chosen and (found := shutil.which(chosen)):
        yield Path(found)
    versions: dict[int, Path] = {}
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        for path in Path(folder or ".").glob("clang++-*"):
            if match := re.fullmatch(r"clang\+\+-(\d+)", path.name):
                versions.setdefault(int(match[1]), path)
    for version in sorted(versions, reverse=True):
        yield versions[version]
    if found := shutil.which("clang++"):
        yield Path(found)


def has_libfuzzer(compiler: Path) -> bool:
    """Whether a compiler links a program of libFuzzer; the package with its libraries may be missing."""
    with tempfile.TemporaryDirectory() as folder:
        command = [str(compiler), "-x", "c++", "-", "-o", f"{folder}/probe", "-fsanitize=fuzzer,address,undefined"]
        try:
            done = subprocess.run(
                command, input=f'extern "C" {PROBE}', text=True, capture_output=True, check=False, timeout=120
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
    return done.returncode == 0


def _symbolizer(clang: Path) -> str | None:
    """The program that turns addresses into lines; that of the compiler's own version comes first."""
    version = clang.name.rpartition("-")[2]
    return shutil.which(f"llvm-symbolizer-{version}") or shutil.which("llvm-symbolizer")

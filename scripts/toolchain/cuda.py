"""The CUDA platform: the compiler, and the wheel thresher-cuda."""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
import zipfile
from pathlib import Path

from . import components, elf, environments, fatbin, native, registers, sbom, wheel, wheel_file
from .environments import CUDA_COMPILER, TOOLS, script
from .layout import BUILD, DIST, REQUIREMENTS, ROOT, SCRIPTS, scratch_folder
from .platforms import CUDA, X86
from .process import ToolchainError, note, output, run
from .system import ensure_system_packages

PROJECT = ROOT / "cuda"
INSTALLED = Path("/usr/local/cuda/bin/nvcc")
LIBRARY = "thresher_cuda/libthresher_cuda.so"
CONTENT = (
    "thresher_cuda/__init__.py",
    "thresher_cuda/py.typed",
    LIBRARY,
    "*.dist-info/METADATA",
    "*.dist-info/RECORD",
    "*.dist-info/licenses/LICENSE",
    "*.dist-info/licenses/licenses/nvidia-cuda-runtime.txt",
)
# What cmake/cuda.cmake compiles for; the last one is PTX, which newer devices compile when they load it.
CODE = ["sm_80", "sm_89", "sm_90", "compute_100", "sm_100"]
# What a package index takes without asking, and users download.
MOST_BYTES = 12_000_000
PINS = PROJECT / "registers.txt"
# The user's own: the driver, and what nvidia-cublas brings.
EXCLUDED = ("libcuda.so*", "libcublas*.so*")


def pinned_release() -> str:
    """Returns the release of CUDA that requirements/cuda.txt pins, such as "13.0"."""
    text = (REQUIREMENTS / "cuda.txt").read_text(encoding="utf-8")
    found = re.search(r"^nvidia-cuda-nvcc==(\d+\.\d+)\.", text, re.MULTILINE)
    if not found:
        raise ToolchainError(f"{REQUIREMENTS / 'cuda.txt'} has no line of the form nvidia-cuda-nvcc==13.0.88.")
    return found[1]


def release_of(nvcc: Path) -> str | None:
    """Returns the release of a compiler, such as "13.0"; None if it does not run."""
    found = re.search(r"release (\d+\.\d+)", output([nvcc, "--version"]) or "")
    return found[1] if found else None


def compiler() -> Path:
    """Finds nvcc: $CUDACXX, an installed one of the pinned release, else the one of the pinned packages.

    Raises:
        ToolchainError: $CUDACXX is none, or the packages cannot be installed.
    """
    wanted = pinned_release()
    if chosen := os.environ.get("CUDACXX"):
        found = shutil.which(chosen)
        release = release_of(Path(found)) if found else None
        if release is None or int(release.partition(".")[0]) < int(wanted.partition(".")[0]):
            raise ToolchainError(
                f"CUDACXX: expected an nvcc of CUDA {wanted} or newer, got {chosen!r} ({release or 'does not run'}). "
                "Name another one, or unset the variable to have one installed."
            )
        return Path(str(found))
    if release_of(INSTALLED) == wanted:
        return INSTALLED
    environments.ensure(CUDA_COMPILER)
    return complete_toolkit(CUDA_COMPILER.site_packages / "nvidia" / "cu13")


def complete_toolkit(folder: Path) -> Path:
    """Adds to the unpacked packages what a toolkit has besides, and returns its compiler.

    The packages have neither the folder lib64, where nvcc looks, nor names of libraries without a version, which
    linkers look for.

    Raises:
        ToolchainError: the folder holds no compiler that runs.
    """
    for library in (folder / "lib").glob("lib*.so.*"):
        plain = library.with_name(library.name.partition(".so")[0] + ".so")
        if not plain.exists():
            plain.symlink_to(library.name)
    if not (folder / "lib64").exists():
        (folder / "lib64").symlink_to("lib")
    nvcc = folder / "bin" / "nvcc"
    if release_of(nvcc) is None:
        raise ToolchainError(f"Expected {nvcc} to run; it does not. Remove {CUDA_COMPILER.folder} and run this again.")
    return nvcc


def cuobjdump(nvcc: Path) -> Path:
    """Finds the program that says what kernels take: beside a compiler, else in the pinned packages.

    Raises:
        ToolchainError: the packages cannot be installed.
    """
    beside = nvcc.parent / "cuobjdump"
    if beside.is_file():
        return beside
    environments.ensure(CUDA_COMPILER)
    return CUDA_COMPILER.site_packages / "nvidia" / "cu13" / "bin" / "cuobjdump"


def check_registers(library: Path, nvcc: Path, *, pin: bool) -> None:
    """Compares what the kernels of a library take with cuda/registers.txt, or writes that file.

    Raises:
        ToolchainError: a kernel takes more than is pinned.
    """
    used = registers.used_by(library, cuobjdump(nvcc))
    if pin:
        registers.write_pins(PINS, used)
        note(f"{PINS}: {len(used)} kernels")
        return
    pins = registers.read_pins(PINS)
    if new := registers.unpinned(used, pins):
        note(f"{PINS} says nothing of {', '.join(new)}; --pin-registers writes what they take")
    if wrong := registers.faults(used, pins):
        raise ToolchainError(
            f"{PINS.relative_to(ROOT)} does not fit the kernels that were built: {'; '.join(wrong)}. Make them "
            "smaller, or pin what is meant with `nox -s build -- --platform cuda --pin-registers`."
        )


def build_wheel(build_type: str = "Release", *, pin_registers: bool = False) -> Path:
    """Builds the wheel and leaves it in dist/, in place of older ones.

    Args:
        build_type: as CMake calls it; what is pinned of kernels is of Release.
        pin_registers: whether to write cuda/registers.txt instead of comparing with it.

    Returns:
        The repaired wheel.

    Raises:
        ToolchainError: a step failed.
    """
    ensure_system_packages(CUDA.name)
    environments.ensure(TOOLS)
    nvcc = compiler()
    note(f"CUDA compiler: {nvcc}, release {release_of(nvcc)}")
    objects = BUILD / f"cuda-{build_type.lower()}"
    raw = BUILD / "wheel-cuda"
    shutil.rmtree(raw, ignore_errors=True)
    settings = {
        "build-dir": objects,
        "cmake.build-type": build_type,
        "install.strip": "true" if build_type == "Release" else "false",
    }
    run(
        [
            *(TOOLS.python, "-m", "pip", "wheel", "--disable-pip-version-check", "--no-deps", "--no-build-isolation"),
            *("--no-index", "-v", "--wheel-dir", raw),
            *(f"--config-settings={key}={value}" for key, value in settings.items()),
            PROJECT,
        ],
        hint=f"The compiler's or CMake's message is above. Removing {objects} starts afresh.",
        environment={
            **native.tool_environment(),
            "CUDACXX": str(nvcc),
            "SOURCE_DATE_EPOCH": wheel.source_date_epoch(),
        },
    )
    if build_type == "Release":
        check_registers(objects / "libthresher_cuda.so", nvcc, pin=pin_registers)
    return _repair(raw, components.contents(objects, objects / "no-conan", ["thresher_cuda"]))


def _repair(raw: Path, inside: components.Contents) -> Path:
    found = sorted(raw.glob("thresher_cuda-*.whl"))
    if len(found) != 1:
        raise ToolchainError(f"Expected one wheel in {raw}, got {[path.name for path in found]}.")
    with scratch_folder() as scratch:
        run(
            [
                *(script(TOOLS, "auditwheel"), "repair", "--plat", "auto", "--wheel-dir", scratch),
                *(f"--exclude={name}" for name in EXCLUDED),
                found[0],
            ],
            hint="auditwheel shows which symbol or library fits no manylinux tag.",
            environment=native.tool_environment(),
        )
        repaired = next(Path(scratch).glob("*.whl"))
        epoch = int(wheel.source_date_epoch())
        content = sbom.serialise(sbom.make(repaired, inside, epoch))
        wheel_file.rewrite(repaired, epoch, {sbom.name_of(repaired): content})
        if wrong := faults(repaired):
            raise ToolchainError(f"{repaired.name} is no wheel for platform cuda: {'; '.join(wrong)}.")
        final = wheel.publish(repaired)
    note(f"wheel: {final} ({final.stat().st_size / 2**20:.2f} MiB), code for {', '.join(CODE)}")
    return final


def faults(built: Path) -> list[str]:
    """Returns what is wrong with a wheel, as far as can be told without running it."""
    found = []
    tags = built.name.removesuffix(".whl").split("-")[2:]
    if tags[:2] != ["py3", "none"]:
        found.append(f"its tag is {'-'.join(tags)}, not py3-none-*")
    for tag in tags[-1].split("."):
        if not re.fullmatch(rf"manylinux(_\d+_\d+|\d+)_{CUDA.machine}", tag):
            found.append(f"its platform tag {tag} is not manylinux_*_{CUDA.machine}")
    if (size := built.stat().st_size) > MOST_BYTES:
        found.append(f"it has {size / 1e6:.1f} MB, more than {MOST_BYTES / 1e6:.0f}")
    with zipfile.ZipFile(built) as archive:
        names = archive.namelist()
        found += [f"it lacks {wanted}" for wanted in CONTENT if not fnmatch.filter(names, wanted)]
        if LIBRARY in names:
            data = archive.read(LIBRARY)
            if (machine := elf.machine(data[: elf.HEADER_SIZE])) != CUDA.elf_machine:
                found.append(f"{LIBRARY} has ELF machine {machine}, not {CUDA.elf_machine} ({CUDA.machine})")
            if (code := fatbin.architectures(data)) != CODE:
                found.append(f"{LIBRARY} has code for {', '.join(code) or 'no GPU'}, not for {', '.join(CODE)}")
        others = [name for name in names if name.endswith(".so") and name != LIBRARY]
        found += [f"it holds {name}, which belongs to the user's machine" for name in others]
    return found


def verify(built: Path) -> None:
    """Installs the wheel into a new empty environment and opens its library, which needs no driver for that.

    Where dist/ has the wheel thresher of the same version, the engine opens it, too, and says what it found.

    Raises:
        ToolchainError: the wheel does not install or its library does not open.
    """
    with scratch_folder() as scratch:
        environment = Path(scratch) / "venv"
        environments.create(environment)
        python = environment / "bin" / "python"
        install: list[str | Path] = [python, "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
        run([*install, "--no-deps", built])
        version = built.name.split("-")[1]
        engines = [path for path in DIST.glob(f"thresher-{version}-*.whl") if X86.machine in path.name]
        for engine in engines:
            run([*install, "--no-deps", engine])
        run([python, "-I", SCRIPTS / "check_cuda_wheel.py"], cwd=environment)
        if not engines:
            note(f"the engine did not open it: {DIST} has no wheel thresher {version}; `nox -s build` makes it")

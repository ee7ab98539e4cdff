"""The wheel: built by scikit-build-core, tagged by auditwheel, proven in an empty environment."""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
import zipfile
from collections.abc import Sequence
from pathlib import Path

from . import components, elf, environments, native, sbom, wheel_file, wheelhouse
from .environments import MODEL, TOOLS, script
from .layout import BUILD, DIST, PYTHON_TAG, ROOT, SCRIPTS, scratch_folder
from .native import Flavour
from .platforms import PLATFORMS, Platform
from .process import ToolchainError, note, output, run
from .system import ensure_system_packages

# 1 January 2020: an archive without git history still gives the same bytes each time.
FALLBACK_EPOCH = "1577836800"

# What every wheel holds, besides the extension module.
CONTENT = (
    "thresher/__init__.py",
    "thresher/_engine.pyi",
    "thresher/py.typed",
    "thresher/cli/__init__.py",
    "*.dist-info/METADATA",
    "*.dist-info/RECORD",
    "*.dist-info/entry_points.txt",
    "*.dist-info/licenses/LICENSE",
    "*.dist-info/licenses/licenses/highway.txt",
    "*.dist-info/sboms/thresher.cdx.json",
)

# What CMake builds for the wheel; see build.targets in pyproject.toml.
TARGETS = ("_engine", "torch_shims")

# Come with PyTorch, which is imported before the shim that uses them.
PYTORCH_LIBRARIES = ("libtorch*.so*", "libc10*.so*")


def source_date_epoch() -> str:
    """Returns the time that goes into the wheel: $SOURCE_DATE_EPOCH, the last commit's, or a constant; in seconds.

    Raises:
        ToolchainError: $SOURCE_DATE_EPOCH is no number.
    """
    chosen = os.environ.get("SOURCE_DATE_EPOCH", "")
    if chosen and not chosen.isdecimal():
        raise ToolchainError(f"SOURCE_DATE_EPOCH: expected seconds since 1970; got {chosen!r}. Unset it or mend it.")
    return chosen or output(["git", "-C", ROOT, "log", "-1", "--format=%ct"]) or FALLBACK_EPOCH


def build_wheel(flavour: Flavour, torch_shims: Sequence[str] | None = None) -> Path:
    """Builds the wheel and leaves it in dist/, in place of older ones for the same platform.

    Objects are kept in the flavour's build folder, so that a second call compiles only what changed.

    Args:
        flavour: what to build.
        torch_shims: interpreters or folders of PyTorch to build the profiler shim for; None: the pinned PyTorch of the
            environments, which is installed where it is missing, or no shim in a wheel for another architecture.

    Returns:
        The repaired wheel.

    Raises:
        ToolchainError: a step failed.
    """
    platform = flavour.platform
    raw = build_raw(flavour, torch_shims)
    wheel = _repair(raw, platform, components.contents(flavour.objects, flavour.dependencies, TARGETS))
    inspect(wheel, platform)
    note(f"connects to the profiler of PyTorch {', '.join(shims_in(wheel)) or 'not at all'}")
    return wheel


def build_raw(flavour: Flavour, torch_shims: Sequence[str] | None = None, **defines: str) -> Path:
    """Builds the wheel as the compiler leaves it, for this machine alone: auditwheel has not judged it.

    Args:
        flavour: what to build.
        torch_shims: as in `build_wheel`.
        defines: more CMake variables.

    Returns:
        The wheel, under build/.

    Raises:
        ToolchainError: a step failed.
    """
    platform = flavour.platform
    ensure_system_packages(platform.name)
    if torch_shims is None:
        torch_shims = () if platform.cross else [str(environments.ensure(MODEL))]
    if platform.cross:
        check_foreign_torch(torch_shims, platform)
    native.install_dependencies(flavour)
    raw = BUILD / "wheel"
    shutil.rmtree(raw, ignore_errors=True)
    settings = {
        "build-dir": flavour.objects,
        "cmake.build-type": flavour.build_type,
        "cmake.define.CMAKE_TOOLCHAIN_FILE": flavour.toolchain_file,
        # The build folder may be one of the C++ tests alone.
        "cmake.define.THRESHER_BUILD_PYTHON": "ON",
        "cmake.define.THRESHER_TORCH_SHIMS": ";".join(torch_shims),
        "cmake.define.THRESHER_FETCH_HIGHWAY": "OFF",
        "cmake.define.THRESHER_WERROR": "ON",
        **{f"cmake.define.{name}": value for name, value in defines.items()},
        **_cross_settings(platform),
        "install.strip": "true" if flavour.build_type == "Release" else "false",
    }
    run(
        [
            *(TOOLS.python, "-m", "pip", "wheel", "--disable-pip-version-check", "--no-deps", "--no-build-isolation"),
            *("--no-index", "-v", "--wheel-dir", raw),
            *(f"--config-settings={key}={value}" for key, value in settings.items()),
            ROOT,
        ],
        hint=f"The compiler's or CMake's message is above. Removing {flavour.objects} starts afresh.",
        environment={
            **native.tool_environment(),
            **native.object_sharing(flavour),
            **_cross_environment(platform),
            "SOURCE_DATE_EPOCH": source_date_epoch(),
        },
    )
    return _only_wheel(raw, platform)


def shims_in(wheel: Path) -> list[str]:
    """Returns the minor versions of PyTorch whose profiler a wheel connects to."""
    with zipfile.ZipFile(wheel) as archive:
        found = [re.fullmatch(r"thresher/_torch_shim_(\d+)_(\d+)\..*", name) for name in archive.namelist()]
    return [f"{match[1]}.{match[2]}" for match in found if match]


def headers_folder(platform: Platform) -> Path:
    """Returns where the headers of another architecture's Python are kept."""
    return BUILD / "python-headers" / f"{PYTHON_TAG}-{platform.machine}"


def _cross_settings(platform: Platform) -> dict[str, str | Path]:
    """Returns what CMake must know of the other architecture's Python; empty where the build is for this machine."""
    if not platform.cross:
        return {}
    headers = headers_folder(platform)
    run(
        [TOOLS.python, SCRIPTS / "fetch_python_headers.py", "--platform", platform.name, headers],
        hint="The line above says what was looked for.",
    )
    return {
        # Without the hints scikit-build-core would name the headers of the Python that runs it.
        "cmake.python-hints": "false",
        "cmake.define.Python_EXECUTABLE": TOOLS.python,
        "cmake.define.Python_INCLUDE_DIR": headers,
    }


def _cross_environment(platform: Platform) -> dict[str, str]:
    """Returns the variables from which scikit-build-core takes the module's suffix and the wheel's tag."""
    if not platform.cross:
        return {}
    return {
        "SETUPTOOLS_EXT_SUFFIX": platform.extension_suffix,
        "_PYTHON_HOST_PLATFORM": f"linux-{platform.machine}",
    }


def check_foreign_torch(places: Sequence[str], platform: Platform) -> None:
    """Stops unless every place is a folder of PyTorch for another architecture than this machine's.

    Raises:
        ToolchainError: an interpreter, which cannot be asked here, or PyTorch for another architecture.
    """
    for place in places:
        library = Path(place) / "lib" / "libtorch_cpu.so"
        wanted = f"--torch-shim: expected the folder `torch` of a PyTorch for {platform.machine}"
        if not library.is_file():
            raise ToolchainError(f"{wanted}; got {place}, without lib/libtorch_cpu.so. Unpack its wheel and name that.")
        with library.open("rb") as file:
            if elf.machine(file.read(elf.HEADER_SIZE)) != platform.elf_machine:
                raise ToolchainError(f"{wanted}; {library} is for another machine. Name another folder, or `none`.")


def _only_wheel(folder: Path, platform: Platform) -> Path:
    wheels = sorted(folder.glob(f"{platform.distribution.replace('-', '_')}-*.whl"))
    if len(wheels) != 1:
        raise ToolchainError(f"Expected one wheel in {folder}, got {[path.name for path in wheels]}.")
    return wheels[0]


def _repair(wheel: Path, platform: Platform, inside: components.Contents) -> Path:
    """Lets auditwheel find the tag that is true for the wheel's symbols, and adds the bill of materials.

    The result appears in dist/ in one step.
    """
    with scratch_folder() as scratch:
        run(
            [
                *(script(TOOLS, "auditwheel"), "repair", "--plat", "auto", "--wheel-dir", scratch),
                *(f"--exclude={name}" for name in PYTORCH_LIBRARIES),
                wheel,
            ],
            hint="auditwheel shows which symbol or library fits no manylinux tag.",
            environment=native.tool_environment(),
        )
        repaired = _only_wheel(Path(scratch), platform)
        epoch = int(source_date_epoch())
        content = sbom.serialise(sbom.make(repaired, inside, epoch))
        wheel_file.rewrite(repaired, epoch, {sbom.name_of(repaired): content})
        final = publish(repaired)
    note(f"wheel: {final} ({final.stat().st_size / 2**20:.2f} MiB)")
    return final


def publish(built: Path) -> Path:
    """Copies a wheel into dist/, where it then replaces older ones: at every moment there is one, and it is whole."""
    DIST.mkdir(parents=True, exist_ok=True)
    for left in DIST.glob(".*.whl.partial"):
        left.unlink()
    partial = DIST / f".{built.name}.partial"
    shutil.copyfile(built, partial)
    final = partial.replace(DIST / built.name)
    for old in superseded(DIST, final.name):
        old.unlink()
    return final


def superseded(folder: Path, name: str) -> list[Path]:
    """Lists the wheels in a folder that a new one replaces: of the same package, for the same architecture."""
    package = name.partition("-")[0]
    machine = next(p.machine for p in PLATFORMS.values() if name.removesuffix(".whl").endswith(f"_{p.machine}"))
    return sorted(old for old in folder.glob(f"{package}-*_{machine}.whl") if old.name != name)


def faults(wheel: Path, platform: Platform) -> list[str]:
    """Returns what is wrong with a wheel, as far as can be told without running it.

    The tag in its name and the one inside, the files that it must hold, and the machine and the suffix of its extension
    modules.
    """
    found = []
    name = wheel.name.removesuffix(".whl")
    tags = name.split("-")[2:]
    if len(tags) != 3 or tags[:2] != [PYTHON_TAG, PYTHON_TAG]:
        found.append(f"its tag is {'-'.join(tags)}, not {PYTHON_TAG}-{PYTHON_TAG}-*")
    for tag in tags[-1].split("."):
        if not re.fullmatch(rf"manylinux(_\d+_\d+|\d+)_{platform.machine}", tag):
            found.append(f"its platform tag {tag} is not manylinux_*_{platform.machine}")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = [archive.read(entry).decode() for entry in names if entry.endswith(".dist-info/WHEEL")]
        for line in "".join(metadata).splitlines():
            if line.startswith("Tag: ") and not line.endswith(f"_{platform.machine}"):
                found.append(f"its metadata says {line}")
        found += [f"it lacks {wanted}" for wanted in CONTENT if not fnmatch.filter(names, wanted)]
        if f"thresher/_engine{platform.extension_suffix}" not in names:
            engines = [entry for entry in names if entry.startswith("thresher/_engine.") and entry.endswith(".so")]
            found.append(f"it lacks thresher/_engine{platform.extension_suffix}, but has {engines or 'no engine'}")
        for entry in (entry for entry in names if re.search(r"\.so(\.|$)", entry)):
            with archive.open(entry) as file:
                machine = elf.machine(file.read(elf.HEADER_SIZE))
            if machine != platform.elf_machine:
                found.append(f"{entry} has ELF machine {machine}, not {platform.elf_machine} ({platform.machine})")
    return found


def inspect(wheel: Path, platform: Platform) -> None:
    """Stops if the wheel is not one for its platform.

    Raises:
        ToolchainError: names everything that is wrong with it.
    """
    if wrong := faults(wheel, platform):
        raise ToolchainError(f"{wheel.name} is no wheel for platform {platform.name}: {'; '.join(wrong)}.")


def verify(wheel: Path, platform: Platform) -> None:
    """Installs the wheel into a new empty environment, imports it and lets `thresher doctor` judge.

    The import is tried twice, without and with the packages that the wheel asks for. A wheel for another architecture
    is left to scripts/wheel_test.py, which runs where its platform is.

    Raises:
        ToolchainError: the wheel does not install, import or work there.
    """
    if platform.cross:
        note(f"{wheel.name} cannot run here: machine, suffix, tag and content are right, and nothing was installed")
        return
    with scratch_folder() as scratch:
        environment = Path(scratch) / "venv"
        environments.create(environment)
        python = environment / "bin" / "python"
        install: list[str | Path] = [python, "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
        check: list[str | Path] = [python, "-I", SCRIPTS / "check_wheel.py"]
        run([*install, "--no-deps", wheel])
        run(check, cwd=environment, hint="The import must work even where the wheel's dependencies are missing.")
        run([*install, *wheelhouse.install_arguments("runtime"), wheel])
        run(check, cwd=environment)
        run([environment / "bin" / "thresher", "doctor"], cwd=environment)

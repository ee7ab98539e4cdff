"""The C++ package: headers, libraries and configuration files, installed by CMake and kept as one archive."""

from __future__ import annotations

import gzip
import io
import re
import tarfile
from pathlib import Path

from . import native
from .layout import DIST, ROOT, scratch_folder
from .native import Flavour
from .platforms import CUDA, Platform
from .process import ToolchainError, note
from .wheel import source_date_epoch

# What every package holds; cmake/package.cmake says what else.
CONTENT = (
    "bin/model_stress_test",
    "include/thresher/operator_package.h",
    "include/thresher/run/model_file.h",
    "lib/cmake/thresher/thresher-config-version.cmake",
    "lib/cmake/thresher/thresher-config.cmake",
    "lib/libthresher.a",
    "lib/pkgconfig/thresher.pc",
    "lib/thresher/libhwy.a",
    "share/licenses/thresher/LICENSE",
    "share/licenses/thresher/highway.txt",
)


def version() -> str:
    """Returns the version that stands in pyproject.toml."""
    found = re.search(r'^version = "([^"]+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise ToolchainError('Expected a line `version = "1.2.3"` in pyproject.toml; got none.')
    return found[1]


def require(platform: Platform) -> None:
    """Stops for a platform that has no C++ package.

    Raises:
        ToolchainError: names the platform to take instead.
    """
    if platform is CUDA:
        raise ToolchainError(
            "--package: expected a platform whose programs need nothing beside the package; got cuda, whose kernels "
            "are a library that programs open at run time. Make the package with --platform x86, the wheel without it."
        )


def build_package(flavour: Flavour) -> Path:
    """Installs the C++ part of a build folder that a wheel was built in, and archives it in dist/.

    Returns:
        The archive, in place of older ones for the same platform.

    Raises:
        ToolchainError: a step failed, or the package is not complete.
    """
    platform = flavour.platform
    native.build_target(flavour, "thresher_core", "model_stress_test")
    name = f"thresher-{version()}-{platform.name}-{platform.machine}"
    with scratch_folder() as scratch:
        folder = Path(scratch) / name
        native.tool(["cmake", "--install", flavour.objects, "--component", "cpp", "--prefix", folder])
        missing = [path for path in CONTENT if not (folder / path).is_file()]
        if missing:
            raise ToolchainError(f"Expected {', '.join(missing)} in the C++ package; see cmake/package.cmake.")
        DIST.mkdir(parents=True, exist_ok=True)
        partial = DIST / f"{name}.tar.gz.partial"
        partial.write_bytes(archive(folder, int(source_date_epoch())))
    final = partial.replace(DIST / f"{name}.tar.gz")
    for old in superseded(DIST, final.name, platform):
        old.unlink()
    note(f"C++ package: {final} ({final.stat().st_size / 2**20:.2f} MiB)")
    return final


def superseded(folder: Path, name: str, platform: Platform) -> list[Path]:
    """Lists the archives in a folder that a new one replaces: those of other versions for the same platform."""
    pattern = f"thresher-*-{platform.name}-{platform.machine}.tar.gz"
    return sorted(old for old in folder.glob(pattern) if old.name != name)


def archive(folder: Path, time: int) -> bytes:
    """Returns a folder as .tar.gz; equal contents give equal bytes, whoever packs them where and when.

    Args:
        folder: what to pack; its name is that of the folder in the archive.
        time: the time stamp of every entry, in seconds.
    """
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path in [folder, *sorted(folder.rglob("*"), key=lambda path: path.as_posix())]:
            entry = tarfile.TarInfo(path.relative_to(folder.parent).as_posix())
            entry.mtime = time
            if path.is_dir():
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(entry)
            else:
                content = path.read_bytes()
                entry.size, entry.mode = len(content), 0o644
                tar.addfile(entry, io.BytesIO(content))
    return gzip.compress(packed.getvalue(), compresslevel=9, mtime=0)

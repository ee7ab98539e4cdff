"""The configure step refuses what it does not know."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = next((ROOT / "build" / "venv").glob("tools-*/bin"), None)
CMAKE = shutil.which("cmake", path=str(TOOLS) if TOOLS else None)
# Ninja is among the tools; make, which CMake would take, is not on a bare machine.
NINJA = shutil.which("ninja", path=str(TOOLS) if TOOLS else None)
GENERATOR = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={NINJA}"]
pytestmark = pytest.mark.skipif(not (CMAKE and NINJA), reason="no CMake, or no Ninja")


def check_options(tmp_path: Path, *defines: str) -> subprocess.CompletedProcess[str]:
    project = tmp_path / "CMakeLists.txt"
    project.write_text(
        "cmake_minimum_required(VERSION 3.25)\n"
        f'include("{ROOT}/cmake/version.cmake")\n'
        "project(options_only VERSION ${THRESHER_RELEASE} LANGUAGES NONE)\n"
        f'include("{ROOT}/cmake/options.cmake")\n'
        'message(STATUS "version=${THRESHER_VERSION_STRING}")\n'
    )
    command = [str(CMAKE), *GENERATOR, "-S", str(tmp_path), "-B", str(tmp_path / "b"), *defines]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_known_options_configure_and_the_version_is_read(tmp_path: Path) -> None:
    done = check_options(tmp_path, "-DTHRESHER_BUILD_TESTS=ON")
    assert done.returncode == 0, done.stderr
    line = next(line for line in (ROOT / "pyproject.toml").read_text().splitlines() if line.startswith("version"))
    version = line.split('"')[1]
    assert f"version={version}" in done.stdout


def test_an_unknown_option_stops_and_the_known_ones_are_listed(tmp_path: Path) -> None:
    done = check_options(tmp_path, "-DTHRESHER_BUILD_TEST=ON")
    assert done.returncode != 0
    assert "Unknown option THRESHER_BUILD_TEST." in done.stderr
    assert "THRESHER_BUILD_TESTS" in done.stderr


def test_nothing_to_build_stops(tmp_path: Path) -> None:
    done = check_options(tmp_path, "-DTHRESHER_BUILD_PYTHON=OFF")
    assert done.returncode != 0
    assert "nothing to build" in " ".join(done.stderr.split())


@pytest.mark.parametrize("place", ["/nonexistent/python", "folder"])
def test_a_place_without_pytorch_is_named_with_its_cure(tmp_path: Path, place: str) -> None:
    (tmp_path / "folder").mkdir()
    where = str(tmp_path / place)
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\n"
        "project(shim_only LANGUAGES NONE)\n"
        f'include("{ROOT}/cmake/torch_shim.cmake")\n'
    )
    shims = f"-DTHRESHER_TORCH_SHIMS={where}"
    command = [str(CMAKE), *GENERATOR, "-S", str(tmp_path), "-B", str(tmp_path / "b"), shims]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    message = " ".join(done.stderr.split())
    assert f"got '{where}'" in message
    assert "THRESHER_TORCH_SHIMS empty" in message


@pytest.mark.parametrize(
    ("minor", "wanted"),
    [(12, "no_registration.cc;tensors.cc"), (13, "registration.cc;session.cc;tensors.cc")],
)
def test_of_the_shim_is_built_what_a_pytorch_has_a_place_for(tmp_path: Path, minor: int, wanted: str) -> None:
    sources, torch = tmp_path / "src" / "thresher" / "torch_shim", tmp_path / "torch"
    sources.mkdir(parents=True)
    for name in ("no_registration.cc", "registration.cc", "session.cc", "tensors.cc"):
        (sources / name).touch()
    for header, text in (
        ("kineto/libkineto.h", ""),
        ("torch/headeronly/version.h", f"#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR {minor}\n"),
    ):
        (torch / "include" / header).parent.mkdir(parents=True, exist_ok=True)
        (torch / "include" / header).write_text(text)
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\n"
        "project(shim_only LANGUAGES CXX)\n"
        "function(Python_add_library name kind)\n  add_library(${name} ${kind} ${ARGN})\nendfunction()\n"
        "function(thresher_target_flags name)\nendfunction()\n"
        f'include("{ROOT}/cmake/torch_shim.cmake")\n'
        f"get_target_property(found _torch_shim_2_{minor} SOURCES)\n"
        'message(STATUS "sources=${found}")\n'
    )
    command = [
        str(CMAKE),
        *GENERATOR,
        "-S",
        str(tmp_path),
        "-B",
        str(tmp_path / "b"),
        f"-DTHRESHER_TORCH_SHIMS={torch}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = re.search(r"sources=(.*)", done.stdout)
    assert found and ";".join(sorted(Path(source).name for source in found[1].split(";"))) == wanted


def fetch_highway(folder: Path, *definitions: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Configures a project that includes cmake/highway.cmake, with this repository's pin but an upstream without it."""
    (folder / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\n"
        "project(user LANGUAGES NONE)\n"
        f'include("{ROOT}/cmake/highway.cmake")\n'
        "get_target_property(kind hwy::hwy TYPE)\n"
        'message(STATUS "kind=${kind} contrib=${HWY_ENABLE_CONTRIB}")\n'
    )
    pin = Path("conan/recipes/highway/all/conandata.yml")
    (folder / pin).parent.mkdir(parents=True)
    upstream = (folder / "upstream.tar.gz").as_uri()
    (folder / pin).write_text(re.sub(r'url: "[^"]+"', f'url: "{upstream}"', (ROOT / pin).read_text()))
    command = [str(CMAKE), *GENERATOR, "-S", str(folder), "-B", str(folder / "b"), *definitions]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120, check=False
    )


def test_an_unpacked_highway_is_taken(tmp_path: Path) -> None:
    own = tmp_path / "highway"
    own.mkdir()
    (own / "CMakeLists.txt").write_text("add_library(hwy INTERFACE)\n")
    done = fetch_highway(tmp_path, f"-DFETCHCONTENT_SOURCE_DIR_HIGHWAY={own}")
    assert done.returncode == 0, done.stderr
    assert "kind=INTERFACE_LIBRARY contrib=OFF" in done.stdout


def test_another_archive_than_the_pinned_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "highway_1.2.0.orig.tar.gz").write_bytes(b"not the archive")
    done = fetch_highway(tmp_path, THRESHER_SOURCE_MIRROR=tmp_path.as_uri())
    assert done.returncode != 0
    message = " ".join(done.stderr.split())
    assert "its hash is" in message and "set THRESHER_SOURCE_MIRROR" in message and "nox -s build" in message
    assert "FetchContent.cmake" not in message


def test_a_mirror_without_the_archive_is_named(tmp_path: Path) -> None:
    missing = (tmp_path / "nowhere").as_uri()
    done = fetch_highway(tmp_path, THRESHER_SOURCE_MIRROR=missing)
    assert done.returncode != 0
    assert f"{missing}/highway_1.2.0.orig.tar.gz" in "".join(done.stderr.split())

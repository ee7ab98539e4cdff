"""A project outside the repository builds against the C++ package and runs a model file."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import thresher
from thresher import _engine

ROOT = Path(__file__).resolve().parents[2]
PROJECT = ROOT / "tests" / "package"
sys.path.insert(0, str(ROOT / "scripts"))

from toolchain import package as toolchain_package  # noqa: E402

TOOLS = next((ROOT / "build" / "venv").glob("tools-*/bin"), None)
TOOL_PATH = f"{TOOLS}{os.pathsep}{os.environ['PATH']}" if TOOLS else os.environ["PATH"]
CMAKE = shutil.which("cmake", path=TOOL_PATH)
COMPILER = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")

wants_package = pytest.mark.skipif(
    "CPP_PACKAGE" not in os.environ, reason="CPP_PACKAGE names no archive of `nox -s build -- --package`"
)


def run(*command: str | Path, **options: Any) -> subprocess.CompletedProcess[Any]:
    environment = {**os.environ, "PATH": TOOL_PATH, **options.pop("environment", {})}
    return subprocess.run([str(part) for part in command], capture_output=True, check=False, env=environment, **options)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked archive, in a folder where it was never built or installed."""
    first = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(os.environ["CPP_PACKAGE"]) as archive:
        # Python before 3.11.4 knows no filters; the archive was built just now.
        archive.extractall(first, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))  # noqa: S202
    (folder,) = first.iterdir()
    return folder.rename(tmp_path_factory.mktemp("moved") / "a folder")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model file that needed no PyTorch to be made."""
    random = np.random.default_rng(0)
    graph = _engine.Graph()
    ids = graph.input("ids", "i64", [2, 5])
    scale = graph.input("scale", "f32", [1])
    table = graph.constant("table", random.standard_normal((30, 48), np.float32), weight=True)
    weight = graph.constant("fc.weight", random.standard_normal((48, 48), np.float32), weight=True)
    (x,) = graph.add("embedding", [table, ids])
    (x,) = graph.add("linear", [x, weight, None], {"activation": "gelu"})
    (y,) = graph.add("mul", [x, scale])
    graph.set_outputs([y, x])
    path = tmp_path / "small.thrmodel"
    _engine.write_model(str(path), "small", [(graph, ["scaled", "states"])])
    return path


def check(program: Path, path: Path) -> None:
    """The program gives what thresher.load gives."""
    ids, scale = np.arange(10).reshape(2, 5) * 3, np.array([0.5], np.float32)
    wanted = thresher.load(path)(ids, scale)
    done = run(program, path, input=ids.tobytes() + scale.tobytes())
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout == b"".join(array.tobytes() for array in wanted.values())
    said = done.stderr.decode()
    assert f"thresher {thresher.__version__} ran small with " in said
    assert int(said.split()[-2]) >= 2  # kernels, through pti.h
    path.write_bytes(path.read_bytes()[:-1])
    done = run(program, path)
    assert done.returncode == 1 and b"the file is incomplete" in done.stderr


@wants_package
@pytest.mark.skipif(not (CMAKE and COMPILER), reason="no CMake or no C++ compiler")
def test_with_cmake(package: Path, model: Path, tmp_path: Path) -> None:
    build = tmp_path / "build"
    done = run(
        *(CMAKE, "-S", PROJECT, "-B", build, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={package}"),
        *(
            "-DCMAKE_BUILD_TYPE=Release",
            "-DCMAKE_FIND_PACKAGE_PREFER_CONFIG=ON",
            "-DCMAKE_FIND_USE_PACKAGE_REGISTRY=OFF",
        ),
    )
    assert done.returncode == 0, done.stderr.decode()
    done = run(CMAKE, "--build", build)
    assert done.returncode == 0, done.stdout.decode()
    check(build / "run_model", model)


@wants_package
@pytest.mark.skipif(not (CMAKE and COMPILER), reason="no CMake or no C++ compiler")
@pytest.mark.parametrize(
    "define, message",
    [
        ("CMAKE_SYSTEM_PROCESSOR=riscv64", f"it is built for {platform.machine()}, this build is for riscv64"),
        ("wanted=0.0", 'compatible with requested version "0.0"'),
    ],
)
def test_what_does_not_fit_is_refused(package: Path, tmp_path: Path, define: str, message: str) -> None:
    name, value = define.split("=")
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(user LANGUAGES CXX)\n"
        f"set({name} {value})\nfind_package(thresher ${{wanted}} REQUIRED CONFIG)\n"
    )
    done = run(CMAKE, "-S", tmp_path, "-B", tmp_path / "b", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={package}")
    assert done.returncode != 0
    assert message in " ".join(done.stderr.decode().split())


@wants_package
@pytest.mark.skipif(not (shutil.which("pkg-config") and COMPILER), reason="no pkg-config or no C++ compiler")
def test_with_pkg_config(package: Path, model: Path, tmp_path: Path) -> None:
    # pkg-config separates flags with blanks, so that a folder without one is needed.
    place = tmp_path / "package"
    place.symlink_to(package)
    found = run(
        *("pkg-config", "--cflags", "--libs", "thresher"),
        environment={"PKG_CONFIG_PATH": str(place / "lib" / "pkgconfig")},
    )
    assert found.returncode == 0, found.stderr.decode()
    program = tmp_path / "run_model"
    done = run(str(COMPILER), "-O1", PROJECT / "run_model.cc", "-o", program, *found.stdout.decode().split())
    assert done.returncode == 0, done.stderr.decode()
    check(program, model)


@wants_package
def test_the_archive_holds_what_it_should_and_no_place_of_its_build() -> None:
    path = Path(os.environ["CPP_PACKAGE"])
    with tarfile.open(path) as archive:
        entries = archive.getmembers()
        top = path.name.removesuffix(".tar.gz")
        assert top == f"thresher-{thresher.__version__}-{top.split('-')[-2]}-{platform.machine()}"
        assert {entry.name.split("/")[0] for entry in entries} == {top}
        assert [entry.name for entry in entries] == sorted(entry.name for entry in entries)
        assert {(entry.uid, entry.gid, entry.uname) for entry in entries} == {(0, 0, "")}
        assert len({entry.mtime for entry in entries}) == 1
        names = {entry.name.removeprefix(f"{top}/") for entry in entries if entry.isfile()}
        assert set(toolchain_package.CONTENT) <= names
        assert not [name for name in names if name.startswith("include") and not name.startswith("include/thresher/")]
        for entry in entries:
            stream = archive.extractfile(entry) if entry.isfile() else None
            content = stream.read() if stream is not None else b""
            if b".debug_info" not in content:  # debuggers are told where the sources are
                assert str(ROOT).encode() not in content, f"{entry.name} names the folder it was built in"


def test_equal_contents_give_equal_archives(tmp_path: Path) -> None:
    archives = []
    for place, time in (("one", 1000), ("two", 2000)):
        folder = tmp_path / place / "package"
        for name in (
            ("b/later.txt", "a/first.txt", "a.txt") if place == "one" else ("a.txt", "a/first.txt", "b/later.txt")
        ):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(name)
            os.utime(folder / name, (time, time))
            (folder / name).chmod(0o600 if place == "one" else 0o664)
        archives.append(toolchain_package.archive(folder, 1577836800))
    assert archives[0] == archives[1]
    assert archives[0] != toolchain_package.archive(tmp_path / "two" / "package", 0)


def test_older_archives_of_the_same_platform_are_replaced(tmp_path: Path) -> None:
    from toolchain.platforms import PLATFORMS

    names = [
        "thresher-0.0.9-x86-x86_64.tar.gz",
        "thresher-0.0.9-arm-aarch64.tar.gz",
        "thresher-0.1.0-x86-x86_64.tar.gz",
    ]
    for name in names:
        (tmp_path / name).touch()
    old = toolchain_package.superseded(tmp_path, names[2], PLATFORMS["x86"])
    assert [path.name for path in old] == names[:1]


def test_a_platform_without_a_package_is_refused() -> None:
    from toolchain.platforms import PLATFORMS
    from toolchain.process import ToolchainError

    for name in ("x86", "arm"):
        toolchain_package.require(PLATFORMS[name])
    with pytest.raises(ToolchainError, match="--platform x86"):
        toolchain_package.require(PLATFORMS["cuda"])

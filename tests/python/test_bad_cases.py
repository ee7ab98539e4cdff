"""The guards are fed what they must refuse: each real command has to end with exit code 1 and name the fault.

format and lint run in a small clone with their own build folder, which borrows the environments that are made already.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHON_TAG = f"cp{sys.version_info.major}{sys.version_info.minor}"
GOOD_CC = "namespace thresher {\n\nint Twice(int x) { return 2 * x; }\n\n}  // namespace thresher\n"
BAD_CC = """#include <string>
#include <utility>

namespace thresher {

size_t Length(std::string text) {
  const std::string taken = std::move(text);
  return taken.size() + text.size();
}

}  // namespace thresher
"""
GLOBBING = """\
cmake_minimum_required(VERSION 3.25)
project(engine LANGUAGES CXX)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
file(GLOB sources CONFIGURE_DEPENDS src/thresher/*.cc)
add_library(engine OBJECT ${sources})
target_compile_features(engine PRIVATE cxx_std_20)
"""
# A line that must not pass by what ruff calls it.
FORBIDDEN = {
    "S102": "exec(text)",
    "S202": "tarfile.open(text).extractall(text)",
    "S302": "marshal.loads(text.encode())",
    "S306": "tempfile.mktemp()",
    "S307": "eval(text)",
    "S324": "hashlib.md5(text.encode())",
    "S506": "yaml.load(text, yaml.Loader)",
    "S602": "subprocess.run(text, shell=True, check=False)",
    "S605": "os.system(text)",
    "`pickle` is banned": "pickle.loads(text.encode())",
    "`torch.load` is banned": "torch.load(text)",
}


def made_environment(name: str) -> Path:
    build = Path(os.environ.get("THRESHER_BUILD_DIR", ROOT / "build")).expanduser()
    folder = build / "venv" / f"{name}-{PYTHON_TAG}"
    if not (folder / "thresher.json").exists():
        pytest.skip(f"needs the environment {name}; `nox -s lint` makes it")
    return folder


class Clone:
    """As much of the repository as format and lint read, in a git repository with one commit."""

    def __init__(self, root: Path, environments: tuple[str, ...]) -> None:
        self.root = root
        # The packages that noxfile.py imports; the other scripts need the real package.
        packages = ("toolchain", "containers", "sanitizers", "fuzzing", "mutations", "release", "documentation")
        for name in (*(f"scripts/{package}" for package in packages), "requirements", "docker", ".github"):
            shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("noxfile.py", "pyproject.toml", ".clang-format", ".clang-tidy", ".hadolint.yaml"):
            shutil.copyfile(ROOT / name, root / name)
        self.write("python/thresher/__init__.py", '"""A package."""\n')
        self.write("cuda/thresher_cuda/__init__.py", '"""A package."""\n')
        self.write("src/thresher/good.cc", GOOD_CC)
        self.write(".gitignore", "/build/\n__pycache__/\n/.nox/\n")
        for name in environments:
            self.lend(name, made_environment(name))
        self.git("init", "--quiet", "--initial-branch=main")
        self.commit("feat: all is well")

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def lend(self, name: str, made: Path) -> None:
        folder = self.root / "build" / "venv" / f"{name}-{PYTHON_TAG}"
        folder.mkdir(parents=True)
        for part in ("bin", "lib", "pyvenv.cfg"):
            (folder / part).symlink_to(made / part)
        code = (
            "from toolchain import environments as e; "
            f"one = next(x for x in e.ALL if x.name == {name!r}); "
            "e.write_stamp(one, {'fingerprint': one.fingerprint()})"
        )
        done = self.run([sys.executable, "-c", code])
        assert done.returncode == 0, done.stderr

    def run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("THRESHER_", "NOX"))}
        own = {
            "THRESHER_BUILD_DIR": str(self.root / "build"),
            "PYTHONPATH": str(self.root / "scripts"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "GIT_AUTHOR_NAME": "A",
            "GIT_AUTHOR_EMAIL": "a@example.test",
            "GIT_COMMITTER_NAME": "A",
            "GIT_COMMITTER_EMAIL": "a@example.test",
        }
        return subprocess.run(
            command, cwd=self.root, env={**kept, **own}, capture_output=True, text=True, check=False, timeout=300
        )

    def git(self, *arguments: str) -> str:
        done = self.run(["git", *arguments])
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def commit(self, title: str) -> None:
        self.git("add", "-A")
        self.git("commit", "--quiet", "-m", title)

    def nox(self, session: str, *arguments: str) -> tuple[int, str]:
        """Runs a session; returns its exit code and all it printed."""
        done = self.run([sys.executable, "-m", "nox", "-s", session, "--", *arguments])
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def formatting(tmp_path: Path) -> Clone:
    return Clone(tmp_path / "clone", ("checks",))


@pytest.fixture
def linting(tmp_path: Path) -> Clone:
    clone = Clone(tmp_path / "clone", ("checks", "model", "lint"))
    sources = [clone.root / "src" / "thresher" / name for name in ("good.cc", "bad.cc")]
    folder = next(
        clone.root / "build" / f"{profile}-release-{PYTHON_TAG}"
        for machine, profile in (("x86_64", "x86"), ("aarch64", "armv8-native"))
        if machine == os.uname().machine
    )
    folder.mkdir()
    commands = [{"directory": str(folder), "file": str(f), "command": f"c++ -std=c++20 -c {f}"} for f in sources]
    (folder / "compile_commands.json").write_text(json.dumps(commands))
    return clone


class TestFormat:
    def test_a_badly_formatted_file_fails_with_its_patch(self, formatting: Clone) -> None:
        code, text = formatting.nox("format", "--check")
        assert code == 0, text
        bad = {"python/thresher/bad.py": "x  =  1\n", "src/thresher/bad.cc": "int  f( ){return 1;}\n"}
        for name, content in bad.items():
            formatting.write(name, content)
        code, text = formatting.nox("format", "--check")
        assert code == 1
        assert "-x  =  1\n+x = 1\n" in text and "-int  f( ){return 1;}\n+int f() { return 1; }\n" in text
        assert "Some files are not formatted; the patch is above" in text
        assert {name: (formatting.root / name).read_text() for name in bad} == bad, "--check changes nothing"
        assert formatting.nox("format")[0] == 0
        assert formatting.nox("format", "--check")[0] == 0
        assert (formatting.root / "python" / "thresher" / "bad.py").read_text() == "x = 1\n"

    def test_a_file_that_cannot_be_parsed_fails(self, formatting: Clone) -> None:
        formatting.write("python/thresher/bad.py", "def f(:\n")
        code, text = formatting.nox("format", "--check")
        assert code == 1 and "could not check the format" in text and "bad.py" in text

    def test_a_badly_formatted_commit_fails_and_is_mended(self, formatting: Clone) -> None:
        formatting.write("python/thresher/bad.py", "x  =  1\n")
        formatting.commit("feat: bad")
        formatting.write("src/thresher/bad.cc", "int  f( ){return 1;}\n")
        formatting.commit("feat: bad, too")
        code, text = formatting.nox("format", "--check", "--commits", "main~2..HEAD")
        assert code == 1 and "feat: bad\n" in text and "+x = 1\n" in text and "2 of 2 commits" in text
        code, text = formatting.nox("format", "--commits", "main~2..HEAD")
        assert code == 0 and "git reset --keep refs/thresher/before-format/main/" in text, text
        assert formatting.git("show", "main~1:python/thresher/bad.py") == "x = 1"
        assert formatting.git("show", "main:src/thresher/bad.cc") == "int f() { return 1; }"
        assert formatting.git("log", "--format=%s", "main~2..main") == "feat: bad, too\nfeat: bad"
        assert not formatting.git("status", "--porcelain")
        assert formatting.nox("format", "--check", "--commits", "main~2..HEAD")[0] == 0


class TestLint:
    def test_every_tool_finds_its_fault(self, linting: Clone) -> None:
        code, text = linting.nox("lint", "--all")
        assert code == 0, text
        assert "clang-tidy: nothing found in 1 files of src/" in text
        linting.write("python/thresher/untyped.py", '"""A module."""\n\n\ndef _f(x):\n    return x\n')
        linting.write("scripts/toolchain/untyped.py", '"""A module."""\n\nX: int = ""\n')
        linting.write("python/thresher/unused.py", '"""A module."""\n\nimport os\n')
        linting.write("scripts/bad.sh", "#!/bin/sh\nrm -r $1/build\n")
        linting.write("src/thresher/bad.cc", BAD_CC)
        dockerfile = linting.root / "docker" / "Dockerfile"
        dockerfile.write_text(dockerfile.read_text() + "\nFROM debian\n")
        code, text = linting.nox("lint", "--since", "HEAD")
        assert code == 1
        tools = "ruff, mypy of the packages, mypy of the scripts, shellcheck, hadolint, clang-tidy"
        assert f"Found by {tools}; the messages are above" in text
        for word in ("F401", "untyped.py:4", "untyped.py:3", "SC2086", "DL3006", "bugprone-use-after-move"):
            assert word in text, word
        assert "clang-tidy: 1 of 2 files of src/" in text, "the good file has not changed"

    @pytest.mark.thorough
    def test_a_source_newer_than_the_build_is_looked_at(self, linting: Clone) -> None:
        made = made_environment("tools")
        linting.lend("tools", made)
        linting.write("CMakeLists.txt", GLOBBING)
        built = next(linting.root.glob(f"build/*-release-{PYTHON_TAG}"))
        configure = [str(made / "bin" / "cmake"), "-S", str(linting.root), "-B", str(built), "-G", "Ninja"]
        done = linting.run([*configure, f"-DCMAKE_MAKE_PROGRAM={made / 'bin' / 'ninja'}"])
        assert done.returncode == 0, done.stderr
        linting.write("src/thresher/bad.cc", BAD_CC)
        assert "bad.cc" not in (built / "compile_commands.json").read_text()
        code, text = linting.nox("lint", "--since", "HEAD")
        assert code == 1 and "Found by clang-tidy" in text, text
        assert "bugprone-use-after-move" in text and "left out" not in text

    @pytest.mark.thorough
    def test_what_believes_foreign_data_is_found(self, linting: Clone) -> None:
        names = ("hashlib", "marshal", "os", "pickle", "subprocess", "tarfile", "tempfile")
        modules = "".join(f"import {name}\n" for name in names)
        lines = "".join(f"    {line}\n" for line in FORBIDDEN.values())
        text = f'"""A module."""\n\n{modules}\nimport torch\nimport yaml\n\n\ndef _f(text):\n{lines}'
        # Not among what mypy reads, which would read all of PyTorch for it.
        linting.write("tests/python/bad.py", text)
        code, text = linting.nox("lint", "--since", "HEAD")
        assert code == 1 and "Found by ruff" in text
        assert not [word for word in FORBIDDEN if word not in text]


class TestStage:
    """tests/golden/stage_loaded and its like were measured while a scenario was really slowed down."""

    def command(self, recording: str) -> list[str]:
        return [str(ROOT / "scripts" / "stage_test.py"), "verdict", str(ROOT / "tests" / "golden" / recording)]

    @pytest.mark.parametrize("recording", ["stage_loaded", "stage_backend", "stage_profiler", "stage_torch"])
    def test_a_recorded_regression_ends_the_program_with_1(self, recording: str) -> None:
        done = subprocess.run([sys.executable, *self.command(recording)], capture_output=True, text=True, check=False)
        assert done.returncode == 1, done.stderr
        assert done.stdout.splitlines()[-1] == "stage_test: FAIL"

    def test_a_recorded_regression_ends_the_session_with_1(self, tmp_path: Path) -> None:
        # The session's own way to the program, from the build on, and nox's way from an error to an exit code.
        clone = Clone(tmp_path / "clone", ())
        clone.lend("runtime", Path(sys.prefix))
        noxfile = clone.root / "noxfile.py"
        text = noxfile.read_text()
        call = "tests.run_stage(Flavour(), "
        assert text.count(call) == 1
        noxfile.write_text(text.replace(call, "tests._run_script("))
        script, *arguments = self.command("stage_loaded")
        code, text = clone.nox("stage_test", script, *arguments)
        assert code == 1 and "stage_test: FAIL" in text and "ended with code 1" in text
        code, text = clone.nox("stage_test", script, arguments[0], str(ROOT / "tests" / "golden" / "stage_good"))
        assert code == 0 and "stage_test: PASS" in text

"""A build session that is stopped at any moment: what it left is not used, and the next session needs no help."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import textwrap
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from file_system import fill, remount
from processes import without_settings

ROOT = Path(__file__).resolve().parents[2]
if not (ROOT / "scripts" / "toolchain").is_dir():
    pytest.skip("tests the repository, not the wheel", allow_module_level=True)

# What noxfile.py does around every session.
DRIVER = """
import sys
from pathlib import Path
from toolchain import environments, wheel, wheelhouse
from toolchain.environments import Environment
from toolchain.layout import BUILD, DIST, build_lock
from toolchain.process import ToolchainError, run, stoppable
slow = Environment("slow", ("slow.txt",))
try:
    with stoppable(), build_lock():
        exec(sys.argv[1])
except ToolchainError as error:
    sys.exit(f"aborted: {error}")
except KeyboardInterrupt:
    sys.exit(130)
"""

# A package that takes as long to build as it is told.
BACKEND = """
import os, time, zipfile
def build_wheel(folder, config_settings=None, metadata_directory=None):
    with open(os.environ["SLOW_LOG"], "a") as log:
        log.write(f"{os.getpid()}\\n")
    time.sleep(float(os.environ.get("SLOW_SECONDS", "0")))
    name = "slowly-VERSION-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as archive:
        archive.writestr("slowly.py", "VALUE = 'VERSION'\\n")
        for file, text in (
            ("METADATA", "Metadata-Version: 2.1\\nName: slowly\\nVersion: VERSION\\n"),
            ("WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"),
            ("RECORD", ""),
        ):
            archive.writestr(f"slowly-VERSION.dist-info/{file}", text)
    return name
"""


def files_in(folder: Path) -> int:
    """How many files and folders there are; unlike `rglob`, a walk goes on where some vanish beside it."""
    return sum(len(folders) + len(files) for _, folders, files in os.walk(folder))


def wait_for(condition: Callable[[], object], seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it never happened"
        time.sleep(0.001)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@dataclass
class Clone:
    """A copy of the toolchain with a package that is slow to install."""

    root: Path

    @property
    def build(self) -> Path:
        return self.root / "build"

    @property
    def log(self) -> Path:
        return self.root / "builds.log"

    @property
    def folder(self) -> Path:
        return self.build / "venv" / f"slow-cp{sys.version_info.major}{sys.version_info.minor}"

    @property
    def archives(self) -> Path:
        return self.root / "archives"

    @property
    def requirements(self) -> Path:
        return self.root / "requirements" / "slow.txt"

    @property
    def lock(self) -> Path:
        return self.root / "requirements" / "locks" / "slow.txt"

    def started(self) -> list[int]:
        """The processes that have begun to build the package."""
        return [int(line) for line in self.log.read_text().split()] if self.log.exists() else []

    def package(self, version: str) -> None:
        """Makes the source archive of a version, and has the environment want that one."""
        source = self.root / "slowly"
        source.mkdir(exist_ok=True)
        (source / "pyproject.toml").write_text(
            f'[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
            f'[project]\nname = "slowly"\nversion = "{version}"\n'
        )
        (source / "backend.py").write_text(BACKEND.replace("VERSION", version))
        self.archives.mkdir(exist_ok=True)
        archive = self.archives / f"slowly-{version}.tar.gz"
        with tarfile.open(archive, "w:gz") as file:
            file.add(source, f"slowly-{version}")
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        self.requirements.write_text(f"slowly=={version}\n")
        self.lock.write_text(f"slowly=={version} --hash=sha256:{digest}\n")

    def start(self, code: str, **variables: str) -> subprocess.Popen[str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("THRESHER_", "PIP_"))}
        own = {
            "PYTHONPATH": str(self.root / "scripts"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "SLOW_LOG": str(self.log),
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.archives),
            "PIP_NO_CACHE_DIR": "1",
        }
        return subprocess.Popen(
            [sys.executable, "-c", DRIVER, textwrap.dedent(code)],
            cwd=self.root,
            env={**clean, **own, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, code: str, **variables: str) -> tuple[int, str]:
        process = self.start(code, **variables)
        text = process.communicate(timeout=120)[0]
        return process.returncode, text

    def succeed(self, code: str, **variables: str) -> str:
        status, text = self.run(code, **variables)
        assert status == 0, text
        return text

    def installed(self) -> str:
        """The version that the environment can import."""
        command = [str(self.folder / "bin" / "python"), "-c", "import slowly; print(slowly.VALUE)"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    pytest.importorskip("virtualenv")
    made = Clone(tmp_path / "clone")
    scripts = Path("scripts") / "toolchain"
    shutil.copytree(ROOT / scripts, made.root / scripts, ignore=shutil.ignore_patterns("__pycache__"))
    made.lock.parent.mkdir(parents=True)
    made.package("1.0")
    return made


ENSURE = "print('ensured', environments.ensure(slow))"


class TestEnvironment:
    @pytest.mark.parametrize(
        "number",
        [
            pytest.param(signal.SIGINT, marks=pytest.mark.thorough),
            pytest.param(signal.SIGTERM, marks=pytest.mark.thorough),
            signal.SIGKILL,
        ],
        ids=lambda number: number.name,
    )
    def test_stopped_while_pip_installs(self, number: signal.Signals, clone: Clone) -> None:
        process = clone.start(ENSURE, SLOW_SECONDS="300")
        wait_for(clone.started)
        (builder,) = clone.started()
        if number is signal.SIGINT:
            os.killpg(process.pid, number)  # as a terminal does
        else:
            process.send_signal(number)
        if number is signal.SIGKILL:
            process.wait(30)
            assert alive(builder), "a killed session cannot end what it has started"
        else:
            text = process.communicate(timeout=30)[0]
            assert process.returncode == 130
            assert "run it again" in text
            wait_for(lambda: not alive(builder), 10)
        assert not (clone.folder / "thresher.json").exists()
        text = clone.succeed(ENSURE)
        assert clone.installed() == "1.0"
        assert not alive(builder)
        assert ("ended what it had left at work" in text) is (number is signal.SIGKILL)
        assert "making" in text and "making" not in clone.succeed(ENSURE)

    @pytest.mark.thorough
    def test_killed_while_an_old_one_is_removed(self, clone: Clone) -> None:
        clone.succeed(ENSURE)
        whole = files_in(clone.folder)
        before = clone.lock.read_text()
        clone.lock.write_text(f"# changed\n{before}")
        process = clone.start(ENSURE)
        wait_for(lambda: files_in(clone.folder) < whole - 20)
        process.kill()
        process.wait(30)
        clone.lock.write_text(before)  # what the environment was made of is wanted again
        clone.succeed(ENSURE)
        assert clone.installed() == "1.0"
        subprocess.run([str(clone.folder / "bin" / "python"), "-m", "pip", "check"], check=True, capture_output=True)

    @pytest.mark.thorough
    def test_killed_while_a_wheel_is_replaced(self, clone: Clone, tmp_path: Path) -> None:
        wheels = {}
        for version in ("1.0", "2.0"):
            clone.package(version)
            command = f"[sys.executable, '-m', 'pip', 'wheel', '-w', {str(tmp_path)!r}, Path('slowly').resolve()]"
            clone.succeed(f"run({command})")
            wheels[version] = tmp_path / f"slowly-{version}-py3-none-any.whl"
        clone.requirements.write_text("")
        clone.lock.write_text("")
        install = "environments.install_wheel(slow, Path({!r}))".format
        clone.succeed(install(str(wheels["1.0"])))
        module = next((clone.folder / "lib").glob("python*/site-packages")) / "slowly.py"
        process = clone.start(install(str(wheels["2.0"])))
        # pip takes the old one away first.
        wait_for(lambda: not module.exists() or "2.0" in module.read_text())
        process.kill()
        process.wait(30)
        clone.succeed(install(str(wheels["1.0"])))
        assert clone.installed() == "1.0"


class TestLock:
    def test_a_second_session_waits_for_one_that_lives(self, clone: Clone) -> None:
        first = clone.start("import time; print('in', flush=True); time.sleep(1); print('out', flush=True)")
        assert first.stdout is not None
        assert first.stdout.readline() == "in\n"
        text = clone.succeed("print('mine')")
        assert "another session uses" in text and "waiting" in text
        assert "left at work" not in text
        assert first.poll() is not None or first.wait(5) == 0
        first.communicate()

    def test_what_a_session_starts_for_good_is_left_alone(self, clone: Clone) -> None:
        """Only a session that was killed is tidied up after."""
        text = clone.succeed(
            "import subprocess; from toolchain.process import _marked\n"
            "quiet = {'stdout': subprocess.DEVNULL, 'stderr': subprocess.DEVNULL}\n"
            "print(subprocess.Popen(['sleep', '60'], env=_marked(None), **quiet).pid)"
        )
        pid = int(text.split()[-1])
        try:
            assert "left at work" not in clone.succeed("pass")
            assert alive(pid)
        finally:
            os.kill(pid, signal.SIGKILL)

    def test_temporary_folders_of_killed_sessions_go(self, clone: Clone) -> None:
        code = (
            "from toolchain.layout import scratch_folder\nimport time\n"
            "with scratch_folder() as folder:\n    Path(folder, 'large').write_bytes(bytes(1000))\n"
            "    print('in', flush=True)\n    time.sleep(60)"
        )
        for _ in range(3):
            process = clone.start(code)
            assert process.stdout is not None
            wait_for(lambda process=process: process.stdout.readline() == "in\n")
            process.kill()
            process.communicate()
        assert len(list((clone.build / "scratch").iterdir())) == 1
        clone.succeed("pass")
        assert not (clone.build / "scratch").exists()


def test_a_real_session_that_is_asked_to_end(tmp_path: Path) -> None:
    pytest.importorskip("nox")
    clean = without_settings()
    with subprocess.Popen(
        [sys.executable, "-m", "nox", "-s", "format", "--", "--check"],
        cwd=ROOT,
        env={**clean, "THRESHER_BUILD_DIR": str(tmp_path / "build"), "PIP_NO_INDEX": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        text = ""
        while "-m virtualenv" not in text:
            line = process.stdout.readline()
            assert line, text
            text += line
        process.send_signal(signal.SIGTERM)
        text += process.communicate(timeout=60)[0]
    assert process.returncode not in (0, -signal.SIGTERM)
    assert "run it again" in text and "Traceback" not in text, text
    assert list(tmp_path.glob("build/venv/*/thresher.json")) == []
    assert not (tmp_path / "build" / "lock.session").exists()


KILLED_IN_TURN = """
import itertools, sys, time
versions = sorted(Path(sys.argv[2]).glob("*"))
print("ready", flush=True)
for made in itertools.cycle(versions):
    {step}
"""


def kill_in_turn(clone: Clone, step: str, versions: Path, check: Callable[[], None], kills: int = 8) -> None:
    choose = random.Random(0)
    for _ in range(kills):
        code = KILLED_IN_TURN.format(step=step).replace("sys.argv[2]", repr(str(versions)))
        process = clone.start(code)
        assert process.stdout is not None
        wait_for(lambda process=process: process.stdout.readline() == "ready\n")
        time.sleep(choose.random() * 0.05)
        process.kill()
        process.communicate()
        check()


def test_killed_while_a_wheel_goes_into_dist(clone: Clone, tmp_path: Path) -> None:
    versions = tmp_path / "versions"
    versions.mkdir()
    for version in ("1.0", "2.0"):
        path = versions / f"thresher-{version}-cp311-cp311-manylinux_2_36_x86_64.whl"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("engine", random.Random(version).randbytes(8 << 20))
    dist = clone.root / "dist"
    clone.succeed(f"wheel.publish(sorted(Path({str(versions)!r}).glob('*'))[0])")

    def whole() -> None:
        found = sorted(dist.glob("thresher-*.whl"))
        assert found, "there is always a wheel"
        for path in found:
            with zipfile.ZipFile(path) as archive:
                assert archive.testzip() is None
        assert len(list(dist.glob(".*partial"))) <= 1

    kill_in_turn(clone, "wheel.publish(made)", versions, whole)
    clone.succeed(f"wheel.publish(sorted(Path({str(versions)!r}).glob('*'))[1])")
    assert [path.name.split("-")[1] for path in dist.iterdir()] == ["2.0"]


@pytest.mark.thorough
def test_killed_while_a_set_of_wheels_is_kept(clone: Clone, tmp_path: Path) -> None:
    versions = tmp_path / "versions"
    for number in range(2):
        folder = versions / str(number) / "runtime"
        folder.mkdir(parents=True)
        for name in ("thresher.json", "a.whl", "b.whl", "c.whl"):
            (folder / name).write_bytes(str(number).encode() * (1 << 20))

    def whole() -> None:
        offered = clone.succeed("wheelhouse.offer(); import os; print('offered', os.environ['PIP_FIND_LINKS'])")
        for link in offered.split()[1:]:
            folder = Path(link.removeprefix("file://"))
            if folder == clone.archives:
                continue
            files = {path.name: path.read_bytes() for path in folder.iterdir()}
            assert sorted(files) == ["a.whl", "b.whl", "c.whl", "thresher.json"]
            assert len(set(files.values())) == 1 and all(len(data) == 1 << 20 for data in files.values())

    kill_in_turn(clone, "wheelhouse.adopt(made / 'runtime')", versions, whole)
    clone.succeed(f"wheelhouse.adopt(Path({str(versions)!r}) / '1' / 'runtime')")
    assert [path.name for path in (clone.build / "wheels").iterdir()] == ["runtime"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda n: n.name)
def test_stopped_while_ninja_compiles(number: signal.Signals, clone: Clone, tmp_path: Path) -> None:
    """A half-written output is made again, and nobody writes beside the next session."""
    if not (shutil.which("cmake") and shutil.which("ninja")):
        pytest.skip("needs cmake and ninja")
    source, out = tmp_path / "source", tmp_path / "out"
    source.mkdir()
    (source / "make.py").write_text(
        "import os, pathlib, sys, time\n"
        "with open(sys.argv[1], 'w', buffering=1) as out:\n"
        "    out.write('first half\\n')\n"
        "    time.sleep(float(os.environ.get('SLOW_SECONDS', '0')))\n"
        "    out.write('second half\\n')\n"
    )
    (source / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(slow NONE)\n"
        f"add_custom_command(OUTPUT made.txt COMMAND {sys.executable} ${{PROJECT_SOURCE_DIR}}/make.py made.txt)\n"
        "add_custom_target(all_of_it ALL DEPENDS made.txt)\n"
    )
    steps = (
        f"run(['cmake', '-G', 'Ninja', '-S', {str(source)!r}, '-B', {str(out)!r}])\n"
        f"run(['cmake', '--build', {str(out)!r}])"
    )
    process = clone.start(steps, SLOW_SECONDS="300")
    made = out / "made.txt"
    wait_for(lambda: made.exists() and made.read_text())
    process.send_signal(number)
    text = process.communicate(timeout=60)[0] if number is signal.SIGTERM else ""
    process.wait(60)
    text += clone.succeed(steps)
    assert ("run it again" if number is signal.SIGTERM else "left at work") in text
    time.sleep(0.2)
    assert made.read_text() == "first half\nsecond half\n"


def test_a_full_and_a_read_only_build_folder(clone: Clone, disk: Callable[[str], Path]) -> None:
    folder = disk("size=4m")
    fill(folder)
    status, text = clone.run(ENSURE, THRESHER_BUILD_DIR=str(folder / "build"))
    assert status == 1 and "Traceback" not in text
    assert "No space left on device" in text and "aborted:" in text, text
    (folder / "filler").unlink()
    remount(folder, "ro")
    status, text = clone.run(ENSURE, THRESHER_BUILD_DIR=str(folder / "build"))
    assert status == 1 and "Traceback" not in text
    assert "Read-only file system" in text and "writable" in text, text
    remount(folder, "rw")
    assert "mine" in clone.succeed("print('mine')", THRESHER_BUILD_DIR=str(folder / "build"))

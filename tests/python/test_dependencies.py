"""Native dependencies with a real Conan, in scratch projects with one tiny recipe: lock, mirror, offline, home."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOWHERE = "http://127.0.0.1:9"
LICENCE = b"May be used by everyone.\n"

RECIPE = """
import os, time
from conan import ConanFile
from conan.tools.files import copy, get, save


class ThingConan(ConanFile):
    name = "thing"
    license = "MIT"
    package_type = "static-library"
    settings = "os", "arch", "compiler", "build_type"

    def source(self):
        archive = self.conan_data["sources"][self.version][0]
        get(self, archive["url"], sha256=archive["sha256"], filename=archive["filename"], strip_root=True)

    def build(self):
        with open(os.environ["THING_LOG"], "a") as log:
            log.write("built\\n")
        time.sleep(float(os.environ.get("THING_SLEEP", "0")))
        save(self, "thing.bin", "x" * int(os.environ.get("THING_SIZE", "1")))

    def package(self):
        copy(self, "thing.*", self.build_folder, self.package_folder)
        copy(self, "thing.*", self.source_folder, self.package_folder)
"""
REQUIRES = """
from conan import ConanFile


class Project(ConanFile):
    settings = "os", "arch", "compiler", "build_type"

    def requirements(self):
        self.requires("thing/1.0")
"""
DRIVER = """
import sys
from pathlib import Path
from toolchain import agreement, archives, bundle, lock, native, offline, renewal
from toolchain.layout import build_lock
from toolchain.native import Flavour
from toolchain.process import ToolchainError
flavour = Flavour()
try:
    with build_lock():
        exec(sys.argv[1])
except ToolchainError as error:
    sys.exit(f"aborted: {error}")
"""
INSTALL = "native.install_dependencies(flavour)"
UPDATE = "renewal.run_update(['conan'], None)"
OFFLINE = "offline.switch_on(); offline.require(flavour, (), for_wheel=False); native.install_dependencies(flavour)"


@lru_cache
def tools() -> Path:
    """The environment that holds Conan: the one that nox makes, else the one that runs the tests."""
    build = Path(os.environ.get("THRESHER_BUILD_DIR", ROOT / "build")).expanduser()
    made = build / "venv" / f"tools-cp{sys.version_info.major}{sys.version_info.minor}"
    for folder in (made, Path(sys.prefix)):
        if (folder / "bin" / "conan").exists():
            return folder
    pytest.skip("needs Conan; `nox -s deps` installs it")


@lru_cache
def namespace(*options: str) -> tuple[str, ...]:
    """The command that gives a process namespaces of its own."""
    failures = []
    for command in (("unshare", f"-r{''.join(options)}"), ("unshare", f"-{''.join(options)}")):
        try:
            done = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
        except OSError as error:
            pytest.skip(f"needs the program unshare: {error}")
        if done.returncode == 0:
            return command
        failures.append(done.stderr.strip())
    pytest.skip(f"this machine lets nobody make namespaces: {'; '.join(failures)}")


def archive_of(folder: Path, content: str = "content") -> Path:
    path = folder / "thing-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, data in (("thing-1.0/thing.h", content.encode()), ("thing-1.0/LICENSE", LICENCE)):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


@dataclass
class Project:
    """A clone whose only dependency is the tiny recipe."""

    root: Path
    home: Path
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def log(self) -> Path:
        return self.home.parent / "builds.log"

    @property
    def recipe(self) -> Path:
        return self.root / "conan" / "recipes" / "thing" / "all" / "conanfile.py"

    @property
    def cached(self) -> list[Path]:
        return [path for path in (self.home / "sources" / "s").glob("*") if len(path.name) == 64]

    def builds(self) -> int:
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0

    def environment(self, **variables: str) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("THRESHER_", "PIP_", "CONAN_"))}
        own = {
            "THRESHER_CONAN_HOME": str(self.home),
            "THING_LOG": str(self.log),
            "PYTHONPATH": str(self.root / "scripts"),
        }
        return {**kept, **own, "PYTHONDONTWRITEBYTECODE": "1", **self.variables, **variables}

    def start(self, code: str, prefix: Sequence[str] = (), **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*prefix, sys.executable, "-c", DRIVER, code],
            cwd=self.root,
            env=self.environment(**variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, code: str, prefix: Sequence[str] = (), **variables: str) -> tuple[int, str]:
        """Runs a step of the toolchain; returns its exit code and what it printed."""
        process = self.start(code, prefix, **variables)
        text = process.communicate(timeout=300)[0]
        return process.returncode, text

    def succeed(self, code: str, prefix: Sequence[str] = (), **variables: str) -> str:
        status, text = self.run(code, prefix, **variables)
        assert status == 0, text
        return text

    def fail(self, code: str, prefix: Sequence[str] = (), **variables: str) -> str:
        status, text = self.run(code, prefix, **variables)
        assert status == 1, text
        assert "Traceback" not in text
        return text[text.index("aborted: ") :]


def copy_repository(root: Path) -> Project:
    """Copies what the toolchain reads, and lends it the tools environment that is there already."""
    for name in ("scripts/toolchain", "scripts/containers", "requirements", "conan", "licenses"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    (root / "docs").mkdir()
    for name in ("scripts/fetch_sources.py", "CMakePresets.json", "pyproject.toml", "docs/building.md"):
        shutil.copyfile(ROOT / name, root / name)
    project = Project(root, root / "home" / "conan")
    lend_tools(project)
    return project


def make_project(root: Path, url: str, sha256: str) -> Project:
    """Makes a project whose only dependency is the tiny recipe."""
    project = copy_repository(root)
    shutil.rmtree(root / "conan" / "recipes")
    project.recipe.parent.mkdir(parents=True)
    project.recipe.write_text(RECIPE)
    (project.recipe.parent / "conandata.yml").write_text(
        f'sources:\n  "1.0":\n    - filename: thing-1.0.tar.gz\n      sha256: {sha256}\n      url: {url}\n'
    )
    (root / "conan" / "recipes" / "thing" / "config.yml").write_text('versions:\n  "1.0":\n    folder: all\n')
    (root / "conan" / "conanfile.py").write_text(REQUIRES)
    (root / "licenses" / "thing.txt").write_bytes(LICENCE)
    (root / "licenses" / "README.md").write_text("| thing | MIT | thing.txt |\n")
    (root / "docs" / "building.md").write_text("## Native dependencies\n\n| thing | 1.0 | MIT | tests |\n")
    return project


def lend_tools(project: Project) -> None:
    stamp = "from toolchain.environments import *; write_stamp(TOOLS, {'fingerprint': TOOLS.fingerprint()})"
    folder = project.root / "build" / "venv" / f"tools-cp{sys.version_info.major}{sys.version_info.minor}"
    folder.mkdir(parents=True)
    for name in ("bin", "lib", "pyvenv.cfg"):
        (folder / name).symlink_to(tools() / name)
    subprocess.run([sys.executable, "-c", stamp], check=True, cwd=project.root, env=project.environment())


def clone_of(project: Project, root: Path, *, with_home: bool = False) -> Project:
    """Clones a project, without what it has built but with the verdict on its lock; on request with its Conan home."""
    shutil.copytree(project.root, root, symlinks=True, ignore=shutil.ignore_patterns("home", "build"))
    made = Project(root, root / "home" / "conan")
    lend_tools(made)
    shutil.copytree(project.root / "build" / "dependencies", root / "build" / "dependencies")
    if with_home:
        shutil.copytree(project.home, made.home, symlinks=True)
    else:
        made.home.parent.mkdir()
    return made


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with a lock and an empty home; tests leave it as it is."""
    folder = tmp_path_factory.mktemp("locked")
    archive = archive_of(folder)
    made = make_project(folder / "clone", archive.as_uri(), hashlib.sha256(archive.read_bytes()).hexdigest())
    made.succeed(UPDATE)
    made.succeed("lock.enforce(flavour.profile)")
    return made


@pytest.fixture(scope="module")
def filled(locked: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project whose dependency is built; tests leave it as it is."""
    made = clone_of(locked, tmp_path_factory.mktemp("filled") / "clone")
    made.succeed(INSTALL)
    assert made.builds() == 1
    return made


@pytest.fixture
def project(locked: Project, tmp_path: Path) -> Project:
    return clone_of(locked, tmp_path / "clone")


@contextlib.contextmanager
def served(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Serves a folder; yields its address and the paths asked for so far."""
    asked: list[str] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            super().do_GET()

        def log_message(self, format: str, *arguments: object) -> None:
            del format, arguments

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


class TestLock:
    def test_the_repository_agrees_with_itself(self, tmp_path: Path) -> None:
        found = tmp_path / "found.json"
        copy = copy_repository(tmp_path / "clone")
        text = copy.succeed(f"agreement.run_verification(Path({str(found)!r}))")
        content = json.loads(found.read_text())
        assert content["ok"] and all(finding["ok"] for finding in content["findings"])
        assert "verdict: all agree" in text
        assert all(path.name in text for path in (ROOT / "conan" / "config" / "profiles").iterdir())

    @pytest.mark.thorough
    def test_writing_the_lock_again_gives_the_same_bytes(self, project: Project) -> None:
        lock = project.root / "conan" / "conan.lock"
        before = lock.read_bytes()
        assert b"thing/1.0#" in before and b"%" not in before
        assert "conan/conan.lock: nothing changed" in project.succeed(UPDATE)
        assert lock.read_bytes() == before

    @pytest.mark.thorough
    def test_an_edited_recipe_stops_until_the_lock_is_written(self, filled: Project, tmp_path: Path) -> None:
        # The home holds the recipe as it is locked, and Conan by itself would go on with that.
        project = clone_of(filled, tmp_path / "clone", with_home=True)
        project.recipe.write_text(RECIPE.replace("import os, time", "import os\nimport time"))
        error = project.fail(INSTALL)
        assert "conan/conan.lock does not fit the recipes" in error and "thing  recipe  1.0#" in error
        assert "nox -s deps -- --update" in error
        assert project.builds() == 0, "nothing is built after the error"
        found = tmp_path / "update.json"
        text = project.succeed(f"renewal.run_update(['conan'], Path({str(found)!r}))")
        (change,) = json.loads(found.read_text())["conan"]["changes"]
        assert change["kind"] == "recipe" and change["old"] != change["new"]
        assert f"{change['old']}  ->  {change['new']}" in error and f"{change['old']}  ->  {change['new']}" in text
        project.succeed(INSTALL)
        assert project.builds() == 1, "the new recipe is the one that is built"

    def test_a_requirement_that_is_not_locked_stops(self, project: Project) -> None:
        lock = project.root / "conan" / "conan.lock"
        lock.write_text(json.dumps({**json.loads(lock.read_text()), "requires": []}))
        error = project.fail(INSTALL)
        assert "thing  added  -  ->  1.0#" in error and "nox -s deps -- --update" in error

    def test_a_lock_that_is_none_says_its_cure(self, project: Project) -> None:
        lock = project.root / "conan" / "conan.lock"
        for content in (None, "{half", '{"requires": ["thing/1.0"]}', "[]"):
            lock.unlink() if content is None else lock.write_text(content)
            error = project.fail("lock.entries_of(lock.read_lock())")
            assert str(lock) in error and "nox -s deps -- --update" in error

    @pytest.mark.thorough
    def test_every_disagreement_is_found_in_one_run(self, filled: Project, tmp_path: Path) -> None:
        broken = clone_of(filled, tmp_path / "clone", with_home=True)
        conan = broken.root / "conan"
        broken.recipe.write_text(RECIPE + "\n")
        (conan / "config" / "profiles" / "address").write_text(
            "include(x86)\n[conf]\ntools.build:cflags=['-fsanitize=address']\n"
        )
        (conan / "config" / "profiles" / "new").write_text("include(x86)\n")
        broken.cached[0].write_bytes(b"other")
        (broken.root / "licenses" / "thing.txt").unlink()
        page = broken.root / "docs" / "building.md"
        page.write_text(page.read_text().replace("1.0", "0.9"))
        next(broken.home.glob("p/b/*/p/thing.h")).write_text("tampered")
        status, text = broken.run("agreement.run_verification(None)")
        assert status == 1
        assert "verdict: FAULT in lock, archives, profiles, licences, documentation, Conan home" in text
        assert "thing  recipe  1.0#" in text
        assert "expected sha256" in text
        assert "conan/config/profiles/new: no session knows it" in text
        assert "-fsanitize=address, but compiler.sanitizer=none" in text
        assert "licenses/thing.txt" in text
        assert "expected the row `| thing | 1.0 | MIT | ... |`" in text and "thing/0.9 is no dependency" in text

    def test_versions_without_archives_are_named(self, project: Project) -> None:
        config = project.root / "conan" / "recipes" / "thing" / "config.yml"
        config.write_text('versions:\n  "1.0":\n    folder: all\n  "1.1":\n    folder: all\n')
        assert "lists the versions ['1.0', '1.1'], conandata.yml beside it ['1.0']" in project.fail("archives.named()")


class TestMirror:
    @pytest.mark.thorough
    def test_a_mirror_is_enough_where_upstream_cannot_be_reached(self, tmp_path: Path) -> None:
        mirror = tmp_path / "mirror"
        mirror.mkdir()
        sha256 = hashlib.sha256(archive_of(mirror).read_bytes()).hexdigest()
        project = make_project(tmp_path / "clone", f"{NOWHERE}/thing.tar.gz", sha256)
        project.succeed(UPDATE)
        status, text = project.run(INSTALL)
        assert status == 1
        assert "thing 1.0: no origin has its source archive" in text and "THRESHER_SOURCE_MIRROR" in text
        assert project.builds() == 0
        with served(mirror) as (address, asked):
            text = project.succeed(INSTALL, THRESHER_SOURCE_MIRROR=address)
        assert "thing 1.0: from mirror" in text and asked == ["/thing-1.0.tar.gz"]
        assert project.builds() == 1

    @pytest.mark.thorough
    def test_a_conan_server_gives_packages_without_sources(self, filled: Project, tmp_path: Path) -> None:
        project = clone_of(filled, tmp_path / "clone", with_home=True)
        with conan_server(tmp_path / "server") as address:
            for line in (
                ["remote", "add", "mine", address],
                ["remote", "login", "mine", "demo", "-p", "demo"],
                ["upload", "thing/1.0", "-r", "mine", "--confirm"],
            ):
                conan(project.home, *line)
            other = clone_of(filled, tmp_path / "other")
            text = other.succeed(INSTALL, THRESHER_CONAN_REMOTES=f"mine={address}")
        assert other.builds() == 0 and not other.cached
        assert "Download" in text
        assert next(other.home.glob("p/**/p/thing.h")).read_text() == "content"


def conan(home: Path, *arguments: str) -> None:
    command = [str(tools() / "bin" / "conan"), *arguments]
    done = subprocess.run(
        command, env={**os.environ, "CONAN_HOME": str(home)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@contextlib.contextmanager
def conan_server(folder: Path) -> Iterator[str]:
    """Runs Conan's own server on a free port."""
    program = Path(sys.prefix) / "bin" / "conan_server"
    if not program.exists():
        pytest.skip("needs the package conan-server (requirements/tests.txt)")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    secret = "0123456789abcdef0123456789abcdef"
    folder.mkdir()
    (folder / "server.conf").write_text(
        f"[server]\njwt_secret: {secret}\nupdown_secret: {secret}\njwt_expire_minutes: 10\nssl_enabled: False\n"
        f"port: {port}\npublic_port:\nhost_name: 127.0.0.1\nauthorize_timeout: 60\ndisk_authorize_timeout: 60\n"
        f"disk_storage_path: {folder / 'data'}\n[write_permissions]\n*/*@*/*: *\n[read_permissions]\n*/*@*/*: *\n"
        "[users]\ndemo: demo\n"
    )
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([str(program), "--server_dir", str(folder)], stdout=log, stderr=log)
    try:
        wait_for(lambda: socket.create_connection(("127.0.0.1", port), 1).close() is None)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def wait_for(condition: Callable[[], bool]) -> None:
    """Waits until a condition holds; OSError counts as not yet."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            if condition():
                return
        time.sleep(0.05)
    raise AssertionError("waited for 60 s in vain")


class TestOffline:
    @pytest.mark.thorough
    def test_a_filled_home_needs_no_network(self, filled: Project) -> None:
        for code in (INSTALL, OFFLINE, "agreement.run_verification(None)"):
            filled.succeed(code, namespace("n"))
        assert filled.builds() == 1

    def test_offline_asks_no_server(self, filled: Project) -> None:
        text = filled.succeed(OFFLINE, THRESHER_CONAN_REMOTES=f"mine={NOWHERE}", THRESHER_SOURCE_MIRROR=NOWHERE)
        assert "-r mine" not in text

    def test_what_is_missing_is_listed_before_anything_is_built(self, project: Project) -> None:
        code = "offline.switch_on(); offline.require(flavour, (), for_wheel=True)"
        error = project.fail(code, namespace("n"))
        assert "source archive of thing/1.0: thing-1.0.tar.gz (sha256 " in error
        assert "wheels to prove the wheel with: numpy" in error
        assert "--bundle FILE" in error and "--restore FILE" in error
        assert project.builds() == 0
        shutil.rmtree(project.root / "build" / "venv")
        error = project.fail(code, namespace("n"))
        assert "environment tools: wheels of" in error and "conan==" in error
        assert "source archive of thing: thing-1.0.tar.gz (sha256 " in error

    @pytest.mark.thorough
    def test_a_bundle_brings_packages_and_sources(self, filled: Project, tmp_path: Path) -> None:
        file = tmp_path / "bundle.tar"
        filled.succeed(f"bundle.pack(Path({str(file)!r}), flavour, [])")
        bare = clone_of(filled, tmp_path / "clone")
        bare.succeed(f"bundle.unpack(Path({str(file)!r}))", namespace("n"))
        bare.succeed(OFFLINE, namespace("n"))
        assert bare.builds() == 0, "the package came with the bundle"
        assert [path.name for path in bare.cached] == [path.name for path in filled.cached]

    @pytest.mark.thorough
    def test_a_bundle_that_does_not_fit_or_is_damaged_is_refused(self, filled: Project, tmp_path: Path) -> None:
        file = tmp_path / "bundle.tar"
        restore = f"bundle.unpack(Path({str(file)!r}))"
        filled.succeed(f"bundle.pack(Path({str(file)!r}), flavour, [])")
        good = file.read_bytes()

        file.write_bytes(good.replace(b'"python": "cp3', b'"python": "cp2'))
        assert "expected a bundle for Python cp3" in filled.fail(restore)
        file.write_bytes(good.replace(b"thing/1.0", b"thing/2.0").replace(b'"thing": "1.0#', b'"thing": "2.0#'))
        assert "expected a bundle for lock file" in filled.fail(restore)
        source = filled.cached[0].read_bytes()
        assert source in good
        file.write_bytes(good.replace(source, source[:-1] + b"?"))
        assert "expected sha256" in filled.fail(restore)
        file.write_bytes(good[: good.index(source) + 9])
        assert "Expected to unpack the bundle" in filled.fail(restore)
        file.write_bytes(good.replace(b'"conan.tgz"', b'"../an.tgz"'))
        assert "does not belong into a bundle" in filled.fail(restore)
        file.write_bytes(b"no bundle")
        assert "Expected to unpack the bundle" in filled.fail(restore)


@pytest.mark.thorough
class TestHome:
    def test_two_clones_with_one_home_build_once(self, project: Project, tmp_path: Path) -> None:
        other = clone_of(project, tmp_path / "other")
        other.home = project.home
        first = project.start(INSTALL, THING_SLEEP="4")
        wait_for(lambda: project.builds() == 1)
        second = other.start(INSTALL)
        texts = [process.communicate(timeout=300)[0] for process in (first, second)]
        assert (first.returncode, second.returncode) == (0, 0), texts
        assert "another session uses the Conan home" in texts[1]
        assert project.builds() == 1

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
    def test_a_session_that_was_stopped_heals(self, project: Project, number: signal.Signals) -> None:
        process = project.start(INSTALL, THING_SLEEP="300")
        wait_for(lambda: project.builds() == 1)
        os.killpg(process.pid, number)
        process.communicate(timeout=60)
        assert process.returncode != 0
        project.succeed(INSTALL)
        assert project.builds() == 2
        assert next(project.home.glob("p/b/*/p/thing.bin")).read_text() == "x"
        assert "verdict: all agree" in project.succeed("agreement.run_verification(None)")

    def test_a_full_disk_is_named_and_heals(self, project: Project) -> None:
        text = self.in_small_home(project, "size=1m", f"{INSTALL}", "mount -o remount,size=64m $HOME_FOLDER")
        first, second = text.split("status=", 2)[:2]
        assert "MiB are free in the Conan home" in first and "THRESHER_CONAN_HOME" in first
        assert second.startswith("1") and text.rstrip().endswith("status=0"), text

    def test_a_home_that_cannot_be_written_is_named_and_heals(self, project: Project) -> None:
        text = self.in_small_home(project, "size=64m,ro", f"{INSTALL}", "mount -o remount,rw $HOME_FOLDER")
        first, second = text.split("status=", 2)[:2]
        assert "Expected to write into the Conan home" in first and "THRESHER_CONAN_HOME" in first
        assert second.startswith("1") and text.rstrip().endswith("status=0"), text

    @staticmethod
    def in_small_home(project: Project, options: str, code: str, mend: str) -> str:
        """Runs a step on a file system of its own, mends that, runs the step again; returns what all printed."""
        project.home.mkdir(parents=True)
        script = (
            f"set -e; mount -t tmpfs -o {options} tmpfs $HOME_FOLDER; set +e; "
            '"$0" "$@"; echo "status=$?"; ' + mend + '; THING_SIZE=1 "$0" "$@"; echo "status=$?"'
        )
        prefix = [*namespace("m"), "sh", "-c", script]
        variables = {"HOME_FOLDER": str(project.home), "THING_SIZE": "4000000"}
        status, text = project.run(code, prefix, **variables)
        if "status=" not in text:
            pytest.skip(f"this machine lets nobody mount: {text.strip()}")
        assert status == 0
        return text


class TestWheelhouse:
    @pytest.fixture
    def wheelhouse(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
        monkeypatch.syspath_prepend(str(ROOT / "scripts"))
        from toolchain import environments, wheelhouse

        source = tmp_path / "tiny-1.0-py3-none-any.whl"
        with zipfile.ZipFile(source, "w") as archive:
            archive.writestr("tiny.py", "")
            archive.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
            archive.writestr(
                "tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            archive.writestr("tiny-1.0.dist-info/RECORD", "")
        monkeypatch.setattr(wheelhouse, "WHEELS", tmp_path / "wheels")
        monkeypatch.setattr(wheelhouse, "calls", lambda name: [["--no-index", str(source)]])
        monkeypatch.setattr(environments, "ensure", lambda environment: Path(sys.executable))
        monkeypatch.setattr(wheelhouse, "TOOLS", SimpleNamespace(python=Path(sys.executable)))
        return wheelhouse

    def test_a_set_is_kept_and_a_damaged_one_collected_again(self, wheelhouse: ModuleType, tmp_path: Path) -> None:
        assert not wheelhouse.is_kept("runtime")
        kept = wheelhouse.keep("runtime") / "tiny-1.0-py3-none-any.whl"
        content = kept.read_bytes()
        assert wheelhouse.is_kept("runtime")
        kept.write_bytes(content[:10])
        assert not wheelhouse.is_kept("runtime")
        wheelhouse.keep("runtime")
        assert kept.read_bytes() == content
        (tmp_path / "tiny-1.0-py3-none-any.whl").unlink()
        assert wheelhouse.keep("runtime") == kept.parent, "a set that is kept needs no origin"

    def test_pip_is_shown_the_sets(self, wheelhouse: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PIP_FIND_LINKS", "/elsewhere")
        folder = wheelhouse.keep("runtime")
        wheelhouse.offer()
        wheelhouse.offer()
        assert os.environ["PIP_FIND_LINKS"] == f"/elsewhere {folder.as_uri()}"

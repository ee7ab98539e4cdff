"""The build scripts: recipes and their archives, environments, options, versions, the session list."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def fetch_sources() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("fetch_sources", ROOT / "scripts" / "fetch_sources.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    # dataclasses looks its module up there.
    sys.modules["fetch_sources"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["fetch_sources"]


@pytest.fixture(autouse=True)
def scripts_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))


def recipe(folder: Path, text: str) -> Path:
    path = folder / "thing" / "all" / "conandata.yml"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    versions = re.findall(r'^  "([^"]+)":$', text, re.MULTILINE)
    listed = "".join(f'  "{version}": {{folder: all}}\n' for version in versions)
    (folder / "thing" / "config.yml").write_text(f"versions:\n{listed}")
    return folder


def archive_recipe(folder: Path, content: bytes, origin: str) -> Path:
    digest = hashlib.sha256(content).hexdigest()
    return recipe(folder, f'sources:\n  "1.0":\n    - {{filename: thing.tar.gz, sha256: {digest}, {origin}}}\n')


class TestRecipes:
    def test_every_required_version_has_a_recipe_and_a_lock(self, fetch_sources: ModuleType) -> None:
        known = {f"{d.name}/{d.version}" for d in fetch_sources.read_recipes(ROOT / "conan" / "recipes")}
        text = (ROOT / "conan" / "conanfile.py").read_text()
        required = set(re.findall(r'requires\("([^"]+)"\)', text))
        assert required and required <= known
        lock = json.loads((ROOT / "conan" / "conan.lock").read_text())
        assert {entry.partition("#")[0] for entry in lock["requires"]} == required

    def test_config_and_archives_must_list_the_same_versions(self, fetch_sources: ModuleType, tmp_path: Path) -> None:
        folder = archive_recipe(tmp_path, b"content", "url: file:///nowhere")
        config = folder / "thing" / "config.yml"
        config.write_text('versions:\n  "1.1": {folder: all}\n')
        with pytest.raises(fetch_sources.RecipeError, match=r"lists the versions \['1\.1'\].*\['1\.0'\]"):
            fetch_sources.read_recipes(folder)
        config.unlink()
        with pytest.raises(fetch_sources.RecipeError, match=r"config\.yml is missing"):
            fetch_sources.read_recipes(folder)

    def test_each_dependency_can_come_from_debian(self, fetch_sources: ModuleType) -> None:
        for dependency in fetch_sources.read_recipes(ROOT / "conan" / "recipes"):
            assert any(archive.debian for archive in dependency.archives), dependency.name

    @pytest.mark.parametrize(
        ("entry", "message"),
        [
            ("{filename: a.tgz, sha256: 12}", "64 lower-case hexadecimal"),
            (f"{{sha256: '{'0' * 64}', url: x}}", "filename is missing"),
            (f"{{filename: a.tgz, sha256: '{'0' * 64}'}}", "neither url nor debian"),
            (f"{{filename: a.tgz, sha256: '{'0' * 64}', urls: x}}", "unknown key 'urls'"),
            (f"{{filename: a.tgz, sha256: '{'0' * 64}', debian: {{source: a}}}}", "source and suite"),
            ("just text", "expected a mapping"),
        ],
    )
    def test_a_malformed_entry_is_named(
        self, fetch_sources: ModuleType, tmp_path: Path, entry: str, message: str
    ) -> None:
        folder = recipe(tmp_path, f'sources:\n  "1.0":\n    - {entry}\n')
        with pytest.raises(fetch_sources.RecipeError, match=message) as error:
            fetch_sources.read_recipes(folder)
        assert "version 1.0" in str(error.value)

    def test_no_recipe_at_all_is_an_error(self, fetch_sources: ModuleType, tmp_path: Path) -> None:
        with pytest.raises(fetch_sources.RecipeError, match=r"No conandata\.yml"):
            fetch_sources.read_recipes(tmp_path)


class TestFetching:
    def test_takes_a_file_whose_hash_fits(self, fetch_sources: ModuleType, tmp_path: Path) -> None:
        source = tmp_path / "thing.tar.gz"
        source.write_bytes(b"content")
        digest = hashlib.sha256(b"content").hexdigest()
        recipes = archive_recipe(tmp_path / "recipes", b"content", f"url: {source.as_uri()}")
        cache = tmp_path / "cache"
        (cache / "s").mkdir(parents=True)
        (cache / "s" / f"{digest}.dirty").touch()
        assert fetch_sources.main(["--recipes", str(recipes), str(cache)]) == 0
        assert [p.name for p in (cache / "s").iterdir()] == [digest], "no dirty mark, no partial file"
        source.unlink()
        assert fetch_sources.main(["--recipes", str(recipes), str(cache)]) == 0, "the cache is enough"

    def test_a_cut_off_file_in_the_cache_is_fetched_again(
        self, fetch_sources: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        source = tmp_path / "thing.tar.gz"
        source.write_bytes(b"content")
        recipes = archive_recipe(tmp_path / "recipes", b"content", f"url: {source.as_uri()}")
        kept = tmp_path / "cache" / "s" / hashlib.sha256(b"content").hexdigest()
        kept.parent.mkdir(parents=True)
        kept.write_bytes(b"cont")
        assert fetch_sources.main(["--recipes", str(recipes), str(tmp_path / "cache")]) == 0
        assert kept.read_bytes() == b"content"
        assert "cut off or damaged" in capsys.readouterr().err

    def test_a_cache_that_cannot_be_written_is_named_with_its_cure(
        self, fetch_sources: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        recipes = archive_recipe(tmp_path / "recipes", b"content", "url: file:///nowhere")
        # A file where the folder should be: permissions would not stop root.
        (tmp_path / "cache").write_text("")
        assert fetch_sources.main(["--recipes", str(recipes), str(tmp_path / "cache")]) == 2
        error = capsys.readouterr().err
        assert str(tmp_path / "cache") in error and "THRESHER_CONAN_HOME" in error

    def test_refuses_other_bytes_and_says_both_hashes(
        self, fetch_sources: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        source = tmp_path / "thing.tar.gz"
        source.write_bytes(b"tampered")
        recipes = archive_recipe(tmp_path / "recipes", b"content", f"url: {source.as_uri()}")
        assert fetch_sources.main(["--recipes", str(recipes), str(tmp_path / "cache")]) == 1
        error = capsys.readouterr().err
        for content in (b"content", b"tampered"):
            assert hashlib.sha256(content).hexdigest() in error
        assert "THRESHER_SOURCE_MIRROR" in error
        assert not list((tmp_path / "cache" / "s").iterdir())

    def test_the_mirror_comes_before_upstream(
        self, fetch_sources: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        mirror = tmp_path / "mirror"
        mirror.mkdir()
        (mirror / "thing.tar.gz").write_bytes(b"content")
        recipes = archive_recipe(tmp_path / "recipes", b"content", "url: file:///nowhere")
        arguments = ["--mirror", mirror.as_uri(), "--recipes", str(recipes), str(tmp_path / "cache")]
        assert fetch_sources.main(arguments) == 0
        assert "thing 1.0: from mirror" in capsys.readouterr().out

    def test_offline_only_files_are_looked_at(
        self, fetch_sources: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        recipes = archive_recipe(
            tmp_path / "recipes", b"content", "url: 'http://127.0.0.1:9/x', debian: {source: a, suite: b}"
        )
        arguments = ["--offline", "--recipes", str(recipes), str(tmp_path / "cache")]
        assert fetch_sources.main(arguments) == 1
        error = capsys.readouterr().err
        assert "left out, since this is to work offline" in error and "Debian source package" not in error
        (tmp_path / "thing.tar.gz").write_bytes(b"content")
        assert fetch_sources.main(["--mirror", tmp_path.as_uri(), *arguments]) == 0

    def test_only_what_is_asked_for_is_fetched(
        self, fetch_sources: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        recipes = archive_recipe(tmp_path / "recipes", b"content", "url: file:///nowhere")
        arguments = ["--recipes", str(recipes), str(tmp_path / "cache")]
        assert fetch_sources.main(["--only", "other/1.0", *arguments]) == 2
        assert "No recipe of other/1.0" in capsys.readouterr().err
        assert fetch_sources.main(["--only", "thing/1.0", *arguments]) == 1
        capsys.readouterr()
        assert fetch_sources.main(["--list", *arguments]) == 0
        (listed,) = json.loads(capsys.readouterr().out)
        assert (listed["name"], listed["version"]) == ("thing", "1.0")
        assert listed["archives"][0]["sha256"] == hashlib.sha256(b"content").hexdigest()

    @pytest.mark.parametrize(
        ("targets", "mirror"),
        [
            ("Debian|http://mirror.test/debian-security/\nDebian|http://mirror.test/debian/\n", "mirror.test/debian/"),
            ("|http://mirror.test/debian\n", "mirror.test/debian"),
            ("Ubuntu|http://mirror.test/ubuntu/\n", None),
            ("Other|http://mirror.test/debian/\n", None),
            ("", None),
        ],
    )
    def test_finds_the_debian_mirror(self, fetch_sources: ModuleType, targets: str, mirror: str | None) -> None:
        found = fetch_sources.debian_mirror(targets)
        assert found == (f"http://{mirror}" if mirror else None)


def run_script(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(ROOT / "scripts" / "install_build_deps.sh"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


class TestSystemPackages:
    def test_the_script_passes_its_own_test(self) -> None:
        done = run_script("--self-test")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "ok: Debian is known" in done.stdout
        assert "FAILED" not in done.stdout

    def test_dry_run_prints_commands(self) -> None:
        done = run_script("--dry-run", "-y")
        if done.returncode == 2:
            assert "expected Debian or Ubuntu" in done.stderr or "needs an x86_64 machine" in done.stderr
            return
        lines = done.stdout.splitlines()
        assert lines[0] == "apt-get update"
        assert lines[1].startswith("apt-get install --no-install-recommends -y ")
        assert "g++" in lines[1].split()

    def test_an_unknown_option_stops(self) -> None:
        done = run_script("--yes")
        assert done.returncode == 2
        assert "unknown option '--yes'" in done.stderr

    def test_check_names_what_is_missing(self) -> None:
        done = run_script("--check", "--python", "/no/such/python")
        assert done.returncode == 1
        assert "Python (/no/such/python)" in done.stdout


class TestEnvironments:
    def test_pins_of_the_build_backend_agree(self) -> None:
        text = (ROOT / "pyproject.toml").read_text()
        match = re.search(r"^requires = \[(.*)\]$", text, re.MULTILINE)
        assert match
        wanted = set(re.findall(r'"([^"]+)"', match.group(1)))
        assert wanted <= set((ROOT / "requirements" / "build.txt").read_text().splitlines())

    @pytest.mark.parametrize("path", sorted((ROOT / "requirements").glob("*.txt")), ids=lambda path: path.name)
    def test_every_requirement_is_pinned(self, path: Path) -> None:
        lines = [line.partition("#")[0].strip() for line in path.read_text().splitlines()]
        for line in filter(None, lines):
            assert re.match(r"^[A-Za-z0-9._-]+(\[[a-z,-]+\])?==[^\s;]+( *;.*)?$", line), line

    def test_fingerprint_follows_the_locks_and_the_base(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from toolchain import environments
        from toolchain.environments import Environment

        monkeypatch.setattr(environments, "REQUIREMENTS", tmp_path)
        (tmp_path / "locks").mkdir()
        for name in ("base", "top"):
            (tmp_path / "locks" / f"{name}.txt").write_text(f"a==1 --hash=sha256:{'0' * 64}\n")
        base = Environment("base", ("a.txt",))
        top = Environment("top", ("b.txt",), base=base)
        before = top.fingerprint()
        assert before == top.fingerprint()
        (tmp_path / "locks" / "base.txt").write_text(f"a==1 --hash=sha256:{'1' * 64}\n")
        assert top.fingerprint() != before

    @pytest.mark.parametrize(
        ("listed", "wanted"),
        [
            (
                "torch (2.15.0)\nAvailable versions: 2.15.0, 2.13.0+cu130, 2.13.0+cpu, 2.13.0, 2.1.0",
                "torch==2.13.0+cpu",
            ),
            ("torch (2.15.0)\nAvailable versions: 2.15.0+cpu, 2.13.0+cu130, 2.13.0, 2.12.0+cpu", None),
            ("torch (2.13.0+cpu.cxx11)\nAvailable versions: 2.13.0+cpu.cxx11", None),
            (None, None),
        ],
    )
    def test_pytorch_for_cpus_where_pip_sees_it(
        self,
        listed: str | None,
        wanted: str | None,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        from toolchain import environments

        monkeypatch.setattr(environments, "output", lambda _: listed)
        monkeypatch.setattr(environments.platform, "machine", lambda: "x86_64")
        arguments = environments.pytorch_call(Path("python"))
        assert arguments == ["--no-deps", *([wanted] if wanted else ["-r", environments.REQUIREMENTS / "torch.txt"])]
        said = capsys.readouterr()
        assert ("several GB" in said.out + said.err) == (wanted is None)

    def test_a_half_made_environment_has_no_stamp(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from toolchain import environments
        from toolchain.environments import Environment

        monkeypatch.setattr(environments, "BUILD", tmp_path)
        environment = Environment("some")
        assert environments.read_stamp(environment) == {}
        environment.folder.mkdir(parents=True)
        environments.write_stamp(environment, {"fingerprint": "x"})
        assert environments.read_stamp(environment) == {"fingerprint": "x"}
        (environment.folder / environments.STAMP).write_text("{half")
        assert environments.read_stamp(environment) == {}


class TestWheel:
    def test_the_versions_of_pytorch_are_read_from_the_wheel(self, tmp_path: Path) -> None:
        from toolchain import wheel

        with zipfile.ZipFile(tmp_path / "a.whl", "w") as archive:
            for name in ("_torch_shim_2_13.cpython-311.so", "_torch_shim_2_14.cpython-311.so", "_engine.so"):
                archive.writestr(f"thresher/{name}", "")
            archive.writestr("thresher/torch_shim/library.py", "")
        assert wheel.shims_in(tmp_path / "a.whl") == ["2.13", "2.14"]


class TestNative:
    def test_remotes_are_parsed(self) -> None:
        from toolchain.native import parse_remotes
        from toolchain.process import ToolchainError

        assert parse_remotes("") == {}
        assert parse_remotes("conancenter, mine=https://x.test/y=z") == {
            "conancenter": None,
            "mine": "https://x.test/y=z",
        }
        for wrong in ("=https://x.test", "mine="):
            with pytest.raises(ToolchainError, match="expected NAME or NAME=ADDRESS"):
                parse_remotes(wrong)

    def test_every_profile_is_committed_and_has_a_preset(self) -> None:
        from toolchain.native import PROFILES, Flavour

        profiles = {path.name for path in (ROOT / "conan" / "config" / "profiles").iterdir()}
        assert profiles == set(PROFILES)
        presets = json.loads((ROOT / "CMakePresets.json").read_text())
        for kind in ("configurePresets", "buildPresets", "testPresets"):
            names = {preset["name"] for preset in presets[kind]}
            assert {Flavour(profile, build_type).name for profile, build_type in PROFILES.items()} <= names


class TestChecks:
    def test_the_lists_hold_our_own_files_only(self) -> None:
        from toolchain import linting

        assert ROOT / "noxfile.py" in linting.python_files()
        assert ROOT / "scripts" / "install_build_deps.sh" in linting.shell_files()
        assert ROOT / ".ci" / "run" in linting.shell_files()
        for path in (*linting.cpp_files(), *linting.python_files()):
            assert not path.is_relative_to(ROOT / "build")

    def test_an_unknown_revision_is_said(self) -> None:
        from toolchain import linting
        from toolchain.process import ToolchainError

        with pytest.raises(ToolchainError, match="no-such-revision"):
            linting.changed_since("no-such-revision")

    def test_a_failing_command_says_its_line_code_and_cure(self) -> None:
        from toolchain.process import ToolchainError, run

        with pytest.raises(ToolchainError, match=r"ended with code 3\. Do this\."):
            run([sys.executable, "-c", "raise SystemExit(3)"], hint="Do this.")
        with pytest.raises(ToolchainError, match="Expected to run /no/such/program"):
            run(["/no/such/program"])


def test_the_version_stands_in_one_place() -> None:
    from importlib.metadata import version

    import thresher

    match = re.search(r'^version = "([^"]+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert match
    assert thresher.__version__ == match.group(1)
    assert thresher._engine.version() == match.group(1)
    assert version("thresher") == match.group(1)


def test_the_wheel_brings_licences_requirements_and_entry_points() -> None:
    from importlib.metadata import distribution, entry_points

    import thresher
    from toolchain import wheelhouse

    if not Path(thresher.__file__).is_relative_to(sys.prefix):
        pytest.skip("thresher is imported from a source tree, not from an installed wheel")
    names = {Path(str(file)).name for file in distribution("thresher").files or []}
    assert {"LICENSE", "highway.txt", "nanobind.txt", "robin_map.txt"} <= names
    asked = {line for line in distribution("thresher").requires or [] if "extra ==" not in line}
    assert asked == set(wheelhouse.runtime_requirements()), "these are kept for the proof of the wheel"
    assert entry_points(group="torch_dynamo_backends", name="thresher")
    assert entry_points(group="console_scripts", name="thresher")

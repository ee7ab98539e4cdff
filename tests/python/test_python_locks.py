"""The locks of the Python environments: reading, agreement, the files that are locked, and pip refusing other bytes."""

from __future__ import annotations

import hashlib
import itertools
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ROOT / "requirements" / "locks"
DIGEST = "0123456789abcdef" * 4


@pytest.fixture
def locks(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    from toolchain import python_lock

    return python_lock


@pytest.fixture
def pins(locks: ModuleType) -> ModuleType:
    from toolchain import python_resolution

    return python_resolution


def test_the_committed_locks_agree_with_the_requirement_files(pins: ModuleType) -> None:
    assert pins.faults() == []
    assert "Python 3.10 to 3.14, x86_64 and aarch64" in pins.check()


def test_no_committed_lock_names_a_server() -> None:
    for path in LOCKS.iterdir():
        assert "://" not in path.read_text()


def test_every_file_in_the_images_is_locked_for_its_architecture(locks: ModuleType) -> None:
    for entry in locks.read(LOCKS / "cuda-compiler.txt"):
        assert all(entry.is_for(target) for target in locks.TARGETS)


class TestReading:
    def test_what_is_written_is_read(self, locks: ModuleType, tmp_path: Path) -> None:
        entries = [
            locks.Entry("a", "1.0", (DIGEST, DIGEST[::-1])),
            locks.Entry("b", "2", (DIGEST,), 'python_version < "3.11"', ("3.10 aarch64",)),
            locks.Entry("b", "3", (DIGEST,), 'python_version >= "3.11"', ("everywhere",)),
        ]
        path = tmp_path / "a.txt"
        path.write_text(locks.to_text(entries, ["in.txt"]))
        assert locks.read(path) == entries

    @pytest.mark.parametrize(
        "line",
        ["a==1.0", f"a>=1.0 --hash=sha256:{DIGEST}", f"a==1.* --hash=sha256:{DIGEST}", "a==1 --hash=sha256:12"],
    )
    def test_a_line_without_version_or_hash_is_refused(self, locks: ModuleType, tmp_path: Path, line: str) -> None:
        path = tmp_path / "a.txt"
        path.write_text(f"{line}\n")
        with pytest.raises(Exception, match=r"expected NAME==VERSION and at least one --hash") as error:
            locks.read(path)
        assert "nox -s deps -- --update python" in str(error.value)

    def test_a_missing_lock_says_how_to_get_it(self, locks: ModuleType, tmp_path: Path) -> None:
        with pytest.raises(Exception, match=r"Expected the lock .*none\.txt.*`git checkout` or"):
            locks.read(tmp_path / "none.txt")


class TestAgreement:
    def faults(self, locks: ModuleType, wanted: str, *lines: str) -> list[str]:
        path = Path(self.folder, "lock.txt")
        path.write_text("".join(f"{line} --hash=sha256:{DIGEST}\n" for line in lines))
        source = Path(self.folder, "in.txt")
        source.write_text(wanted)
        found: list[str] = locks.disagreements(
            "lock.txt", [("in.txt", one) for one in locks.inputs(source)], locks.read(path)
        )
        return found

    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def test_an_equal_lock_has_none(self, locks: ModuleType) -> None:
        lines = ('Num-Py==2 ; python_version >= "3.11"', 'num_py==1 ; python_version < "3.11"', "other==1")
        wanted = 'num.py==2; python_version >= "3.11"\nnum.py==1; python_version < "3.11"\n'
        assert self.faults(locks, wanted, *lines) == []

    def test_another_version_and_a_missing_package_are_named(self, locks: ModuleType) -> None:
        assert self.faults(locks, "a==2\nb==1\n", "a==1") == [
            "lock.txt: in.txt wants a==2, the lock has 1.",
            "lock.txt: in.txt wants b==1, the lock lacks it.",
        ]

    def test_the_target_is_named_where_it_is_not_all(self, locks: ModuleType) -> None:
        (fault,) = self.faults(locks, "a==2\n", 'a==2 ; platform_machine == "x86_64" or python_version < "3.14"')
        assert fault == "lock.txt: in.txt wants a==2, the lock lacks it, for 3.14 aarch64."

    def test_two_versions_for_one_target_are_a_fault(self, locks: ModuleType) -> None:
        (fault,) = self.faults(locks, "", "a==1", 'a==2 ; python_version >= "3.14"')
        assert fault == "lock.txt: a is there in the versions 1 and 2, for 3.14 x86_64, 3.14 aarch64."

    def test_a_lock_above_another_with_another_version_is_found(
        self, pins: ModuleType, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from toolchain import environments
        from toolchain.environments import Environment

        monkeypatch.setattr(environments, "REQUIREMENTS", self.folder)
        monkeypatch.setattr(pins, "REQUIREMENTS", self.folder)
        base = Environment("base", ("base.txt",))
        monkeypatch.setattr(pins, "ALL", (base, Environment("top", ("top.txt",), base=base)))
        (self.folder / "locks").mkdir()
        for name, version in (("base", "1"), ("top", "1")):
            (self.folder / f"{name}.txt").write_text(f"{name}==1\n")
            lines = [f"shared=={version}", f"{name}==1"]
            (self.folder / "locks" / f"{name}.txt").write_text(
                "".join(f"{line} --hash=sha256:{DIGEST}\n" for line in lines)
            )
        assert pins.faults() == []
        top = self.folder / "locks" / "top.txt"
        top.write_text(top.read_text().replace("shared==1", "shared==2"))
        assert pins.faults() == ["top.txt: shared is there in the versions 1 and 2."]
        top.unlink()
        assert "Expected the lock" in pins.faults()[0]
        (self.folder / "locks" / "stale.txt").write_text("")
        (self.folder / "loose.txt").write_text("loose>=1\n")
        text = "\n".join(pins.faults())
        assert "stale.txt: no environment has this lock" in text and "loose.txt: no environment uses it" in text

    def test_an_environment_is_not_made_of_a_lock_that_does_not_fit(
        self, locks: ModuleType, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from toolchain import environments

        monkeypatch.setattr(environments, "REQUIREMENTS", self.folder)
        monkeypatch.setattr(environments, "BUILD", self.folder / "build")
        (self.folder / "locks").mkdir()
        (self.folder / "a.txt").write_text("a==2\n")
        (self.folder / "locks" / "some.txt").write_text(f"a==1 --hash=sha256:{DIGEST}\n")
        with pytest.raises(Exception, match=r"some\.txt: a\.txt wants a==2, the lock has 1\.\n.*--update python"):
            environments.ensure(environments.Environment("some", ("a.txt",)))
        assert not (self.folder / "build").exists()


class TestChoice:
    @pytest.mark.parametrize(
        ("name", "target", "fits"),
        [
            ("a-1-py3-none-any.whl", "3.14 aarch64", True),
            ("a-1-py2.py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", "3.10 x86_64", True),
            ("a-1-py2.py3-none-manylinux_2_17_x86_64.whl", "3.10 aarch64", False),
            ("a-1-py3-none-musllinux_1_2_x86_64.whl", "3.11 x86_64", False),
            ("a-1-cp312-cp312-manylinux_2_28_aarch64.whl", "3.12 aarch64", True),
            ("a-1-cp312-cp312-manylinux_2_28_aarch64.whl", "3.13 aarch64", False),
            ("a-1-cp313-cp313t-manylinux_2_28_x86_64.whl", "3.13 x86_64", False),
            ("a-1-cp311-abi3-manylinux_2_28_x86_64.whl", "3.14 x86_64", True),
            ("a-1-cp311-abi3-manylinux_2_28_x86_64.whl", "3.10 x86_64", False),
            ("a-1-cp311-cp311-win_amd64.whl", "3.11 x86_64", False),
            ("a-1-py2-none-any.whl", "3.11 x86_64", False),
        ],
    )
    def test_wheels_are_locked_for_the_targets_they_fit(
        self, pins: ModuleType, locks: ModuleType, name: str, target: str, fits: bool
    ) -> None:
        assert pins.fits(name, locks.Target(*target.split())) is fits

    def test_markers_hold_on_the_chosen_targets_only(self, pins: ModuleType, locks: ModuleType) -> None:
        from packaging.markers import Marker

        targets = locks.TARGETS
        choices = [
            targets,
            [t for t in targets if t.python == "3.10"],
            [t for t in targets if t.python >= "3.12"],
            [t for t in targets if t.python in ("3.11", "3.12")],
            [t for t in targets if t.python in ("3.10", "3.13")],
            [t for t in targets if t.machine == "aarch64"],
            [t for t in targets if t.machine == "x86_64" and t.python < "3.12"],
            [t for t in targets if (t.machine == "x86_64") == (t.python < "3.12")],
        ]
        for chosen in choices:
            text = pins.marker_for(chosen)
            held = [t for t in targets if t.satisfies(Marker(text) if text else None)]
            assert held == list(chosen), text
        assert pins.marker_for(targets) == ""
        assert pins.marker_for(choices[1]) == 'python_version < "3.11"'

    def test_a_line_names_the_files_that_can_be_installed(self, pins: ModuleType) -> None:
        def file(name: str, digit: str) -> dict[str, Any]:
            return {"url": f"https://index.test/{name}", "hashes": {"sha256": digit * 64}}

        package = {
            "name": "Some.Package",
            "version": "1",
            "marker": "python_version >= '3.14' and sys_platform == 'linux'",
            "wheels": [
                file("some_package-1-cp314-cp314-manylinux_2_28_x86_64.whl", "1"),
                file("some_package-1-cp313-cp313-manylinux_2_28_x86_64.whl", "2"),
            ],
            "sdist": file("some_package-1.tar.gz", "3"),
        }
        entry = pins._entry(package)
        assert (entry.name, entry.marker) == ("some-package", 'python_version >= "3.14"')
        assert entry.sha256 == ("1" * 64, "3" * 64)
        assert entry.sources == ("3.14 aarch64",), "there the archive is built"
        del package["sdist"]
        with pytest.raises(Exception, match=r"neither wheel nor source archive for 3\.14 aarch64"):
            pins._entry(package)

    def test_changes_are_told_old_and_new(self, pins: ModuleType, locks: ModuleType) -> None:
        old = [locks.Entry("a", "1", (DIGEST,)), locks.Entry("b", "1", (DIGEST,)), locks.Entry("c", "1", (DIGEST,))]
        new = [locks.Entry("a", "2", (DIGEST,)), locks.Entry("b", "1", (DIGEST[::-1],)), locks.Entry("d", "1", ("",))]
        found = [(c.name, c.kind, c.old, c.new) for c in pins.differences(Path("some.txt"), old, new)]
        assert found == [
            ("some:a", "version", "1", "2"),
            ("some:b", "version", "1", "1 with 2 other files"),
            ("some:c", "removed", "1", None),
            ("some:d", "added", None, "1"),
        ]

    def test_only_a_build_of_pytorch_for_gpus_asks_for_the_packages_of_nvidia(self, locks: ModuleType) -> None:
        from toolchain import environments

        assert environments.additions(["filelock", "numpy; extra == 'x'", "triton==1; sys_platform == 'win32'"]) == []
        assert environments.additions([]) == []
        (call,) = environments.additions(["filelock", "nvidia-cublas==13.1.1.3; platform_system == 'Linux'"])
        assert call[-1] == LOCKS / "torch-cuda.txt" and "--require-hashes" in call


def test_the_index_of_pip_is_shown_to_uv(pins: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://index.test/simple")
    monkeypatch.setenv("PIP_CERT", "/some/certificates")
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    found = pins._index()
    assert found["UV_DEFAULT_INDEX"] == "https://index.test/simple"
    assert found["SSL_CERT_FILE"] == "/some/certificates"


def wheel(folder: Path, content: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny.py", content)
        archive.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        tag = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr("tiny-1.0.dist-info/WHEEL", tag)
        archive.writestr("tiny-1.0.dist-info/RECORD", "tiny.py,,\ntiny-1.0.dist-info/RECORD,,\n")
    return path


@pytest.mark.thorough
@pytest.mark.parametrize("origin", ["virtualenv", "ensurepip"])
def test_pip_installs_the_locked_bytes_from_a_folder_and_no_others(
    locks: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], origin: str
) -> None:
    from toolchain import environments
    from toolchain.environments import Environment
    from toolchain.process import ToolchainError

    def with_ensurepip(folder: Path) -> None:
        done = subprocess.run([sys.executable, "-m", "venv", str(folder)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"this Python has no ensurepip: {done.stderr.strip()}")

    if origin == "ensurepip":
        monkeypatch.setattr(environments, "create", with_ensurepip)
    monkeypatch.setattr(environments, "REQUIREMENTS", tmp_path)
    monkeypatch.setattr(environments, "BUILD", tmp_path / "build")
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    good = wheel(tmp_path / "wheels", "GOOD = True\n")
    monkeypatch.setenv("PIP_FIND_LINKS", good.parent.as_uri())
    (tmp_path / "locks").mkdir()
    (tmp_path / "tiny.txt").write_text("tiny==1.0\n")
    locked = locks.Entry("tiny", "1.0", (hashlib.sha256(good.read_bytes()).hexdigest(), DIGEST))
    (tmp_path / "locks" / "some.txt").write_text(locks.to_text([locked], ["tiny.txt"]))
    environment = Environment("some", ("tiny.txt",))
    python = environments.ensure(environment)
    assert subprocess.run([python, "-c", "import tiny; assert tiny.GOOD"], check=False).returncode == 0
    assert environments.is_made(environment)

    # The same name and version with other bytes, as a broken or hostile mirror would serve it.
    wheel(good.parent, "EVIL = True\n")
    (environment.folder / environments.STAMP).unlink()
    with pytest.raises(ToolchainError, match="is not the file that was locked") as error:
        environments.ensure(environment)
    assert "pip config debug" in str(error.value) and "--update python" in str(error.value)
    assert "DO NOT MATCH THE HASHES" in capfd.readouterr().err
    assert subprocess.run([python, "-c", "import tiny"], capture_output=True, check=False).returncode != 0

    good.unlink()
    with pytest.raises(ToolchainError, match="No network, or no package index with these versions"):
        environments.ensure(environment)


def test_offline_a_file_counts_only_with_its_hash(
    locks: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from toolchain import environments, offline
    from toolchain.environments import Environment

    monkeypatch.setattr(environments, "REQUIREMENTS", tmp_path)
    monkeypatch.setattr(environments, "BUILD", tmp_path / "build")
    good = wheel(tmp_path / "wheels with a space", "")
    monkeypatch.setenv("PIP_FIND_LINKS", good.parent.as_uri())
    (tmp_path / "locks").mkdir()
    locked = locks.Entry("tiny", "1.0", (hashlib.sha256(good.read_bytes()).hexdigest(),))
    (tmp_path / "locks" / "some.txt").write_text(locks.to_text([locked], ["tiny.txt"]))
    environment = Environment("some", ("tiny.txt",))
    assert offline._lacking_environment(environment) is None
    good.write_bytes(good.read_bytes()[:-1])
    assert offline._lacking_environment(environment) == "environment some: wheels of tiny==1.0"


def test_only_known_packages_are_built_from_source_archives(locks: ModuleType) -> None:
    # Such a package needs a build back end, often a compiler and minutes: setuptools alone is there for them.
    built = {
        line.partition("==")[0]
        for lock in LOCKS.glob("*.txt")
        for before, line in itertools.pairwise(lock.read_text().splitlines())
        if before == f"{locks.SOURCE}everywhere"
    }
    assert built <= {"pluginbase"}

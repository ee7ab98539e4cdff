"""The release check: every check is fed a good case and bad ones, and the real command ends with exit code 1."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
from release import (
    audit,
    content,
    difference,
    finding,
    history,
    install,
    interpreter,
    pace,
    rebuild,
    session,
    version,
)
from release.content import WheelFile
from release.finding import Problem, Verdict
from toolchain import components, elf, environments, sbom, wheel_file
from toolchain.components import Component, Contents
from toolchain.environments import RELEASE, TOOLS
from toolchain.process import ToolchainError, is_offline

sys.path.remove(str(ROOT / "scripts"))

NAME = "thresher-0.1.0-cp311-cp311-manylinux_2_34_x86_64.whl"
INFO = "thresher-0.1.0.dist-info"
ENGINE = "thresher/_engine.cpython-311-x86_64-linux-gnu.so"
EPOCH = 1_700_000_000
INSIDE = Contents(
    (
        Component("highway", "1.2.0", "pkg:conan/highway@1.2.0", True, "ab" * 32),
        Component("libstdc++", "12.2.0", "pkg:generic/gcc@12.2.0", True),
        Component("nanobind", "3.1.0", "pkg:pypi/nanobind@3.1.0", True),
        Component("robin_map", "1.4.0", "pkg:github/tessil/robin-map@v1.4.0", False),
    ),
    (),
)
TEXTS = ("highway.txt", "gcc-runtime-exception.txt", "nanobind.txt", "robin_map.txt", "README.md")
METADATA = """Metadata-Version: 2.4
Name: thresher
Version: 0.1.0
Summary: An engine
License-Expression: Apache-2.0
Classifier: Programming Language :: Python :: 3
Classifier: Programming Language :: Python :: 3.10
Classifier: Programming Language :: Python :: 3.11
Requires-Python: >=3.10
Description-Content-Type: text/markdown

# Thresher

Words.
"""


def elf_file(sections: Mapping[str, bytes], machine: int = 62) -> bytes:
    """Makes a 64-bit ELF file that has these sections and nothing else."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name in (*sections, ".shstrtab"))
    blocks = {**sections, ".shstrtab": names}
    data = b"".join(blocks.values())
    heads = [struct.pack("<2I4Q2I2Q", *([0] * 10))]
    offset = 64
    for name, block in blocks.items():
        heads.append(struct.pack("<2I4Q2I2Q", names.index(name.encode()), 1, 0, 0, offset, len(block), 0, 0, 1, 0))
        offset += len(block)
    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    header += struct.pack("<2HI3QI6H", 3, machine, 1, 0, 0, offset, 0, 64, 0, 0, 64, len(heads), len(heads) - 1)
    return header + data + b"".join(heads)


def make_wheel(
    folder: Path,
    *,
    name: str = NAME,
    inside: Contents = INSIDE,
    metadata: str = METADATA,
    without: str = "",
    more: Mapping[str, bytes] | None = None,
    epoch: int = EPOCH,
) -> WheelFile:
    """Makes a wheel with which every check is content, but for what the arguments change."""
    folder.mkdir(parents=True, exist_ok=True)
    tags = name.removesuffix(".whl").split("-")[2:]
    members = {
        "thresher/__init__.py": b'__version__ = "0.1.0"\n',
        ENGINE: elf_file({".text": b"code", ".rodata": b"/proc/cpuinfo\0src/thresher/base/env.cc\0"}),
        f"{INFO}/METADATA": metadata.encode(),
        f"{INFO}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {'-'.join(tags)}\n".encode(),
        f"{INFO}/licenses/LICENSE": (ROOT / "LICENSE").read_bytes(),
        **{f"{INFO}/licenses/licenses/{text}": (ROOT / "licenses" / text).read_bytes() for text in TEXTS},
        **(more or {}),
    }
    path = folder / name
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in members.items():
            if member.rpartition("/")[2] != without:
                archive.writestr(member, data)
    additions = (
        {} if without == "thresher.cdx.json" else {sbom.name_of(path): sbom.serialise(sbom.make(path, inside, epoch))}
    )
    wheel_file.rewrite(path, epoch, additions)
    return WheelFile(path)


def words(verdict: Verdict) -> str:
    return "\n".join(f"{problem.wanted} | {problem.found} | {problem.cure}" for problem in verdict.problems)


@pytest.fixture
def good(tmp_path: Path) -> WheelFile:
    return make_wheel(tmp_path / "good")


# The clone: version, changelog, tag, commits


def clone(folder: Path, *, project: str = "0.1.0", changelog: str = "## Unreleased\n\n- A thing.\n") -> Path:
    (folder / "cmake").mkdir(parents=True)
    shutil.copy(ROOT / "cmake" / "version.cmake", folder / "cmake")
    (folder / "pyproject.toml").write_text(f'[project]\nname = "thresher"\nversion = "{project}"\n')
    (folder / "CHANGELOG.md").write_text(f"# Changelog\n\n{changelog}")
    return folder


RELEASED = "## 0.1.0 - 2026-11-22\n\n- A thing.\n"


@pytest.fixture(scope="module")
def cmake() -> str | Path:
    try:
        return session.cmake()
    except ToolchainError as error:
        pytest.skip(f"no CMake: {error}")


class TestVersion:
    @pytest.mark.parametrize(
        ("changelog", "tag"), [("## Unreleased\n\n- A thing.\n", None), (RELEASED, "v0.1.0"), (RELEASED, None)]
    )
    def test_agreement_passes(self, tmp_path: Path, cmake: Path, changelog: str, tag: str | None) -> None:
        verdict = version.check(clone(tmp_path / "c", changelog=changelog), tag, cmake, tmp_path)
        assert not verdict.problems
        assert ("not released yet" in verdict.found) == ("Unreleased" in changelog)

    @pytest.mark.parametrize(
        ("changes", "tag", "message"),
        [
            ({"changelog": RELEASED}, "v0.2.0", "expected the tag v0.1.0"),
            ({}, "v0.1.0", "the newest section of CHANGELOG.md to be `## 0.1.0"),
            ({"changelog": "## 0.1.0\n\n- A thing.\n"}, None, "no date | add the date"),
            ({"changelog": "## 0.1.0 - soon\n\n- A thing.\n"}, None, "soon | add the date"),
            ({"changelog": "## 0.1.0 - 2026-11-22\n"}, None, "entries under 0.1.0"),
            ({"changelog": "## 0.0.9 - 2026-11-22\n\n- A thing.\n"}, None, "to be 0.1.0 | 0.0.9"),
            ({"changelog": "## Unreleased\n"}, None, "remove the empty section"),
            ({"changelog": "## Unreleased\n\n- New.\n\n" + RELEASED}, None, "raise version"),
            ({"changelog": ""}, None, "no section at all"),
            ({"project": "0.1.0rc1", "changelog": RELEASED.replace("0.1.0", "0.1.0rc1")}, None, "a SemVer version"),
            ({"project": "01.1.0", "changelog": RELEASED.replace("0.1.0", "01.1.0")}, None, "a SemVer version"),
            ({"project": "0.1.0-rc.1", "changelog": RELEASED.replace("0.1.0", "0.1.0-rc.1")}, None, "read alike"),
        ],
    )
    def test_disagreement_is_named(
        self, tmp_path: Path, cmake: Path, changes: dict[str, str], tag: str | None, message: str
    ) -> None:
        found = words(version.check(clone(tmp_path / "c", **changes), tag, cmake, tmp_path))
        assert message.removeprefix("expected ") in found, found

    def test_another_version_in_cmake_is_named(self, tmp_path: Path, cmake: Path) -> None:
        folder = clone(tmp_path / "c")
        script = folder / "cmake" / "version.cmake"
        script.write_text(script.read_text() + 'set(THRESHER_VERSION_STRING "0.0.1")\n')
        assert "CMake to say 0.1.0 | 0.0.1" in words(version.check(folder, None, cmake, tmp_path))
        script.write_text("message(FATAL_ERROR no)")
        assert finding.carry_out("version", lambda: version.check(folder, None, cmake, tmp_path)).outcome == "FAULT"


def git(folder: Path, *arguments: str) -> None:
    identity = {"GIT_AUTHOR_NAME": "A", "GIT_AUTHOR_EMAIL": "a@example.org", "GIT_CONFIG_GLOBAL": os.devnull}
    identity |= {"GIT_COMMITTER_NAME": "A", "GIT_COMMITTER_EMAIL": "a@example.org"}
    subprocess.run(
        ["git", "-C", str(folder), *arguments], check=True, capture_output=True, env={**os.environ, **identity}
    )


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "--initial-branch=main")
    git(folder, "commit", "--allow-empty", "-m", "whatever was before the first release")
    git(folder, "tag", "v0.0.1")
    git(folder, "commit", "--allow-empty", "-s", "-m", "feat(engine)!: it runs", "-m", "Slowly.")
    yield folder


class TestHistory:
    def test_commits_before_the_last_release_are_left_alone(self, repository: Path) -> None:
        verdict = history.check_commits(repository, None)
        assert not verdict.problems and verdict.found == "1 commits since v0.0.1"

    def test_the_tag_being_released_is_not_the_last_release(self, repository: Path) -> None:
        git(repository, "tag", "v0.1.0")
        assert history.check_commits(repository, "v0.1.0").found == "1 commits since v0.0.1"

    def test_a_commit_that_nobody_signed_off_is_named(self, repository: Path) -> None:
        git(repository, "commit", "--allow-empty", "-m", "fix: forgot to sign")
        found = words(history.check_commits(repository, None))
        assert "Signed-off-by: NAME <ADDRESS>" in found and "'fix: forgot to sign'" in found
        assert "git rebase --signoff v0.0.1" in found

    @pytest.mark.parametrize("subject", ["Fix things", "fix:no space", "feature: no such type", "fix(): nothing named"])
    def test_a_message_of_another_form_is_named(self, repository: Path, subject: str) -> None:
        git(repository, "commit", "--allow-empty", "-s", "-m", subject)
        assert repr(subject) in words(history.check_commits(repository, None))

    def test_a_tree_with_changes_is_named(self, repository: Path) -> None:
        assert not history.check_clean(repository).problems
        (repository / "left").write_text("over")
        assert "?? left" in words(history.check_clean(repository))

    def test_no_repository_is_a_fault_and_no_crash(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
        found = finding.carry_out("tree", lambda: history.check_clean(tmp_path))
        assert found.outcome == "FAULT" and "not a git repository" in found.problems[0].found


# The wheel's file


class TestContent:
    def test_a_good_wheel_passes(self, good: WheelFile) -> None:
        for verdict in (
            content.check_leftovers([good]),
            content.check_size([good]),
            content.check_metadata([good], "0.1.0"),
            content.check_licences([good], ROOT / "licenses", ["highway"]),
        ):
            assert not verdict.problems, words(verdict)

    @pytest.mark.parametrize(
        "name",
        [
            *("thresher/engine.o", "thresher/libcore.a", "thresher/CMakeFiles/x.dir/y.json", "thresher/conf.cmake"),
            *("thresher/__pycache__/a.cpython-311.pyc", "thresher/engine.h", "thresher/a.gcda", "thresher/.gitignore"),
        ],
    )
    def test_a_leftover_is_named(self, tmp_path: Path, name: str) -> None:
        found = words(content.check_leftovers([make_wheel(tmp_path, more={name: b""})]))
        assert f"| {name} |" in found

    @pytest.mark.parametrize(
        "path",
        [
            *("/home/me/thresher/src/a.cc", "/work/build/venv/model/site-packages/torch/include/c10/x.h"),
            *("/root/.conan2/p/highw1/p/include/hwy/base.h", "/tmp/dev/thresher/src/thresher/torch_shim/device.cc"),
        ],
    )
    def test_a_path_of_the_builder_is_named(self, tmp_path: Path, path: str) -> None:
        library = elf_file({".text": b"code", ".rodata": b"before\0" + path.encode() + b"\0after"})
        assert path in words(content.check_leftovers([make_wheel(tmp_path, more={ENGINE: library})]))

    def test_debug_sections_are_named(self, tmp_path: Path) -> None:
        library = elf_file({".text": b"code", ".debug_info": b"x", ".symtab": b"y"})
        found = words(content.check_leftovers([make_wheel(tmp_path, more={ENGINE: library})]))
        assert ".debug_info, .symtab" in found and "--build-type Release" in found

    def test_a_cut_off_library_is_named(self, tmp_path: Path) -> None:
        library = elf_file({".text": b"code"})[:-70]
        assert "a whole library" in words(content.check_leftovers([make_wheel(tmp_path, more={ENGINE: library})]))

    def test_a_wheel_that_is_too_large_is_named_with_its_largest_file(self, good: WheelFile) -> None:
        size = good.path.stat().st_size
        assert not content.check_size([good], budget=size).problems
        found = words(content.check_size([good], budget=size - 1))
        assert f"{size:,}" in found and f"{INFO}/licenses/LICENSE" in found

    @pytest.mark.parametrize(
        ("old", "new", "message"),
        [
            ("Version: 0.1.0", "Version: 0.1.1", "to be of version 0.1.0"),
            ("Requires-Python: >=3.10", "Requires-Python: >=3.9", "the same oldest Python twice"),
            ("Requires-Python: >=3.10", "Requires-Python: ~=3.10", "Requires-Python: >=3.N"),
            ("Classifier: Programming Language :: Python :: 3.11\n", "", "the classifier Python :: 3.11"),
            ("Classifier: Programming Language :: Python :: 3.10\n", "", "and 3.11 as the oldest classifier"),
        ],
    )
    def test_metadata_that_disagrees_is_named(self, tmp_path: Path, old: str, new: str, message: str) -> None:
        assert old in METADATA
        wheel = make_wheel(tmp_path, metadata=METADATA.replace(old, new))
        assert message in words(content.check_metadata([wheel], "0.1.0"))

    def test_a_promised_version_without_a_wheel_is_said(self, good: WheelFile) -> None:
        assert "no wheel here for 3.10" in content.check_metadata([good], "0.1.0").found


class TestLicences:
    @pytest.mark.parametrize("text", ["LICENSE", "highway.txt", "gcc-runtime-exception.txt"])
    def test_a_missing_text_is_named(self, tmp_path: Path, text: str) -> None:
        found = words(content.check_licences([make_wheel(tmp_path, without=text)], ROOT / "licenses", ["highway"]))
        assert f"{text}, in {NAME}" in found

    def test_a_component_without_its_text_is_named(self, tmp_path: Path) -> None:
        fmt = Component("fmt", "12.1.0", "pkg:github/fmtlib/fmt@12.1.0", False)
        wheel = make_wheel(tmp_path, inside=Contents((*INSIDE.components, fmt), ()))
        assert "the licence of fmt, fmt.txt" in words(content.check_licences([wheel], ROOT / "licenses", None))

    def test_a_changed_text_is_named(self, tmp_path: Path) -> None:
        wheel = make_wheel(tmp_path, more={f"{INFO}/licenses/licenses/nanobind.txt": b"Do what you like."})
        assert "nanobind.txt" in words(content.check_licences([wheel], ROOT / "licenses", None))

    def test_a_text_of_nobody_is_named(self, tmp_path: Path) -> None:
        wheel = make_wheel(tmp_path, more={f"{INFO}/licenses/licenses/zlib.txt": b"Words."})
        assert "a component for zlib.txt" in words(content.check_licences([wheel], ROOT / "licenses", None))

    def test_code_of_nobody_is_named(self, tmp_path: Path) -> None:
        wheel = make_wheel(tmp_path, inside=Contents(INSIDE.components, ("/opt/thing/thing.h",)))
        assert "/opt/thing/thing.h" in words(content.check_licences([wheel], ROOT / "licenses", None))

    @pytest.mark.parametrize("conan", [["highway", "zlib"], []])
    def test_a_graph_that_is_not_what_was_linked_is_named(self, good: WheelFile, conan: list[str]) -> None:
        assert "Conan's graph" in words(content.check_licences([good], ROOT / "licenses", conan))

    def test_a_wheel_without_a_bill_is_a_fault(self, tmp_path: Path) -> None:
        wheel = make_wheel(tmp_path, without="thresher.cdx.json")
        found = finding.carry_out("licences", lambda: content.check_licences([wheel], ROOT / "licenses", None))
        assert found.outcome == "FAULT" and "bill of materials" in found.problems[0].found

    def test_the_list_for_people_names_every_known_text(self) -> None:
        listing = (ROOT / "licenses" / "README.md").read_text(encoding="utf-8")
        ours = {licence.text for licence in components.KNOWN.values()} - {"nvidia-cuda-runtime.txt"}
        assert {path.name for path in (ROOT / "licenses").glob("*.txt")} == ours
        assert all(f"| {text} |" in listing for text in ours)


class TestComponents:
    """Whose a file is, on the lay-out of a real build."""

    OBJECTS = Path("/clone/build/x86-release-cp311")
    SITE = Path("/clone/build/venv/tools/lib/python3.11/site-packages")

    def evidence(self) -> components.Evidence:
        torch = self.SITE / "torch" / "include"
        return components.Evidence(
            linked={self.OBJECTS / "libthresher.a", Path("/conan/p/highw/p/lib/libhwy.a")},
            headers={
                self.SITE / "nanobind" / "include" / "nanobind" / "nanobind.h",
                torch / "c10" / "core" / "Device.h",
                Path("/usr/include/python3.11/Python.h"),
            },
        )

    @pytest.mark.parametrize(
        ("path", "owner"),
        [
            ("/clone/build/x86-release-cp311/libthresher.a", ""),
            ("/conan/p/highw/p/include/hwy/base.h", "highway"),
            ("/clone/build/venv/tools/lib/python3.11/site-packages/nanobind/src/nb_func.cpp", "nanobind"),
            ("/clone/build/venv/tools/lib/python3.11/site-packages/torch/include/kineto/a.h", "kineto"),
            ("/clone/build/venv/tools/lib/python3.11/site-packages/torch/include/fmt/base.h", "fmt"),
            ("/clone/build/venv/tools/lib/python3.11/site-packages/torch/include/ATen/a.h", "pytorch"),
            ("/clone/build/venv/tools/lib/python3.11/site-packages/torch/include/sleef.h", None),
            ("/usr/include/python3.11/pyconfig.h", ""),
            ("/usr/include/c++/12/vector", "libstdc++"),
            ("/usr/include/x86_64-linux-gnu/c++/12/bits/os_defines.h", "libstdc++"),
            ("/usr/include/stdio.h", ""),
            ("/usr/lib/libz.a", None),
            ("/usr/local/lib/libcudart_static.a", "cuda-runtime"),
            ("/opt/thing/thing.h", None),
            ("/conan/p/zlib1/p/include/zlib.h", None),
        ],
    )
    def test_an_owner_is_found_by_the_folder(self, tmp_path: Path, path: str, owner: str | None) -> None:
        for name, folder in (("highway", "/conan/p/highw/p"), ("zlib", "/conan/p/zlib1/p")):
            (tmp_path / f"{name}-release-x86_64-data.cmake").write_text(
                f'set({name}_PACKAGE_FOLDER_RELEASE "{folder}")\n'
            )
        known = components.owners(self.evidence(), self.OBJECTS, tmp_path)
        assert components.owner(Path(path), known) == owner

    def test_an_archive_of_nothing_is_nobodys(self, tmp_path: Path) -> None:
        contents = {"librt.a": b"!<arch>\n", "libz.a": b"!<arch>\nz.o/", "empty.a": b"", "a.cc": b"!<arch>\n"}
        for name, text in contents.items():
            (tmp_path / name).write_bytes(text)
        assert [name for name in contents if components.is_empty_archive(tmp_path / name)] == ["librt.a"]
        assert not components.is_empty_archive(tmp_path / "none.a")


# Two builds


class TestDifference:
    def test_equal_builds_pass_whatever_the_order_of_time(self, tmp_path: Path) -> None:
        one, two = make_wheel(tmp_path / "a"), make_wheel(tmp_path / "b")
        verdict = difference.compare(one.path, two.path)
        assert not verdict.problems and "twice" in verdict.found

    @pytest.mark.parametrize(
        ("changes", "line"),
        [
            (
                {"more": {"thresher/__init__.py": b'__version__ = "0.1.1"\n'}},
                "thresher/__init__.py: 22 and 22 bytes, first different at 19",
            ),
            ({"more": {"thresher/extra.py": b""}}, "thresher/extra.py: only in the second"),
            ({"epoch": EPOCH + 100}, "thresher/__init__.py: time (2023, 11, 14, 22, 13, 20)"),
            (
                {
                    "more": {
                        ENGINE: elf_file({".text": b"code", ".rodata": b"/proc/cpuinfo\0src/thresher/base/env.hh\0"})
                    }
                },
                f"{ENGINE}: ELF sections .rodata (39 and 39 bytes)",
            ),
            ({"more": {ENGINE: elf_file({".text": b"code"}, machine=183)}}, f"{ENGINE}: ELF sections .rodata"),
        ],
    )
    def test_what_differs_is_named(self, tmp_path: Path, changes: dict[str, Any], line: str) -> None:
        one, two = make_wheel(tmp_path / "a"), make_wheel(tmp_path / "b", **changes)
        assert any(found.startswith(line) for found in difference.differences(one.path, two.path))
        assert line in words(difference.compare(one.path, two.path))

    def test_a_mode_is_named(self, tmp_path: Path, good: WheelFile) -> None:
        other = tmp_path / NAME
        with zipfile.ZipFile(good.path) as old, zipfile.ZipFile(other, "w", zipfile.ZIP_DEFLATED) as new:
            for info in old.infolist():
                data = old.read(info)
                if info.filename == "thresher/__init__.py":
                    info.external_attr = 0o100600 << 16
                new.writestr(info, data)
        assert difference.differences(good.path, other) == ["thresher/__init__.py: mode 0o100644 and 0o100600"]

    def test_umask_and_time_of_the_builder_leave_no_trace(self, tmp_path: Path, good: WheelFile) -> None:
        other = tmp_path / "unpacked" / NAME
        other.parent.mkdir()
        with zipfile.ZipFile(good.path) as old, zipfile.ZipFile(other, "w") as new:
            new.mkdir("thresher", 0o700) if hasattr(new, "mkdir") else new.writestr("thresher/", b"")
            for name in old.namelist():
                info = zipfile.ZipInfo(name, (2001, 2, 3, 4, 5, 6))
                info.external_attr = 0o100600 << 16
                new.writestr(info, old.read(name))
        wheel_file.rewrite(other, EPOCH)
        assert difference.differences(good.path, other) == []

    def test_record_is_true(self, good: WheelFile) -> None:
        lines = [line.rsplit(",", 2) for line in good.information("RECORD").decode().splitlines()]
        assert {line[0] for line in lines} == set(good.members)
        assert all(int(line[2]) == len(good.members[line[0]]) for line in lines if line[2])
        assert list(good.members)[-1] == f"{INFO}/RECORD"


def test_elf_sections_of_a_real_program() -> None:
    sections = elf.sections(Path(sys.executable).resolve().read_bytes())
    assert sections[".text"] and sections[".shstrtab"].startswith(b"\0") and sections[".bss"] == b""
    with pytest.raises(ValueError, match="no 64-bit ELF file"):
        elf.sections(b"#!/bin/sh\n")


# Tools of others


@pytest.fixture(scope="module")
def judges() -> None:
    """The environment of the release check; lint and releases need it, too."""
    if is_offline() and not environments.is_made(RELEASE):
        pytest.skip("needs the environment `release`, and may not use the network")
    environments.ensure(RELEASE)


def shown(**changes: Any) -> dict[str, Any]:
    libraries = {"libc10.so": None, "libtorch_cpu.so": None}
    return {"sym_tag": "manylinux_2_34_x86_64", "external_libs": libraries, **changes}


class TestAudit:
    def test_a_true_tag_passes(self, good: WheelFile) -> None:
        assert audit.judge_tags(good, shown()) == []

    @pytest.mark.parametrize("symbols", ["manylinux_2_36_x86_64", "manylinux_2_28_x86_64", "linux_x86_64"])
    def test_a_tag_that_the_symbols_do_not_bear_out_is_named(self, good: WheelFile, symbols: str) -> None:
        (problem,) = audit.judge_tags(good, shown(sym_tag=symbols))
        assert symbols in problem.wanted and problem.found == "manylinux_2_34_x86_64"

    def test_a_strange_library_is_named(self, good: WheelFile) -> None:
        (problem,) = audit.judge_tags(good, shown(external_libs={"libz.so.1": "/lib/libz.so.1", "libc10.so": None}))
        assert problem.found == "libz.so.1"

    def test_a_tag_inside_that_is_another_is_named(self, tmp_path: Path) -> None:
        wheel = make_wheel(tmp_path)
        renamed = wheel.path.rename(tmp_path / NAME.replace("2_34", "2_28"))
        problems = audit.judge_tags(WheelFile(renamed), shown(sym_tag="manylinux_2_28_x86_64"))
        assert [problem.found for problem in problems] == ["manylinux_2_34_x86_64"]

    def test_auditwheel_sees_a_tag_that_promises_too_much(self, tmp_path: Path) -> None:
        if not environments.is_made(TOOLS):
            pytest.skip("needs the environment `tools`, which `nox -s build` makes")
        engine = pytest.importorskip("thresher._engine")
        data = Path(engine.__file__).read_bytes()
        machine = "x86_64" if elf.machine(data[: elf.HEADER_SIZE]) == 62 else "aarch64"
        name = f"thresher-0.1.0-cp311-cp311-manylinux_2_17_{machine}.whl"
        found = words(audit.check_tags([make_wheel(tmp_path, name=name, more={ENGINE: data})]))
        assert f"| manylinux_2_17_{machine} |" in found

    @pytest.mark.thorough
    @pytest.mark.usefixtures("judges")
    def test_twine_judges_the_metadata(self, tmp_path: Path, good: WheelFile) -> None:
        assert not audit.check_twine([good]).problems
        bad = make_wheel(
            tmp_path,
            metadata=METADATA.partition("\n\n")[0].replace("text/markdown", "text/x-rst")
            + "\n\n.. thing:\n  - :nothing:`x\n",
        )
        assert "twine to pass" in words(audit.check_twine([good, bad]))

    @pytest.mark.thorough
    @pytest.mark.usefixtures("judges")
    def test_check_wheel_contents_judges_the_files(self, tmp_path: Path, good: WheelFile) -> None:
        assert not audit.check_contents([good]).problems
        bad = make_wheel(tmp_path, more={"tests/__init__.py": b""})
        assert "tests" in words(audit.check_contents([bad]))

    @pytest.mark.thorough
    @pytest.mark.usefixtures("judges")
    def test_the_schema_judges_the_bill(self, tmp_path: Path, good: WheelFile) -> None:
        assert not audit.check_sboms([good]).problems
        beside = good.path.with_suffix(".cdx.json")
        assert sorted(path.name for path in good.path.parent.iterdir()) == sorted([good.name, beside.name])
        odd = Component("highway", "1.2.0", "pkg:conan/highway@1.2.0", True, "no hash")
        found = words(audit.check_sboms([make_wheel(tmp_path, inside=Contents((odd,), ()))]))
        assert "a valid CycloneDX 1.6 document inside" in found


class TestBill:
    def test_it_says_what_is_inside(self, good: WheelFile) -> None:
        content = json.loads(sbom.write_beside(good.path).read_text())
        assert sbom.names(content) == ["highway", "libstdc++", "nanobind", "robin_map"]
        by_name = {entry["name"]: entry for entry in content["components"]}
        assert by_name["highway"]["hashes"] == [{"alg": "SHA-256", "content": "ab" * 32}]
        assert by_name["libstdc++"]["licenses"] == [{"expression": "GPL-3.0-or-later WITH GCC-exception-3.1"}]
        assert content["metadata"]["timestamp"] == "2023-11-14T22:13:20Z"
        assert {"cmake", "auditwheel", "nanobind"} <= {
            tool["name"] for tool in content["metadata"]["tools"]["components"]
        }

    def test_it_is_the_same_for_the_same_wheel_and_another_for_another(self, tmp_path: Path) -> None:
        one, two = make_wheel(tmp_path / "a"), make_wheel(tmp_path / "b")
        other = make_wheel(tmp_path / "c", more={"thresher/extra.py": b""})
        sboms = [sbom.write_beside(wheel.path).read_bytes() for wheel in (one, two, other)]
        assert sboms[0] == sboms[1] != sboms[2]
        numbers = [json.loads(text)["serialNumber"] for text in sboms]
        assert numbers[0] == numbers[1] != numbers[2]
        digest = json.loads(sboms[0])["metadata"]["component"]["hashes"][0]["content"]
        assert (
            digest
            == subprocess.run(["sha256sum", str(one.path)], capture_output=True, text=True, check=True).stdout.split()[
                0
            ]
        )


# Versions of Python


class TestInterpreters:
    def test_this_one_is_found_and_a_future_one_is_not(self) -> None:
        here = f"{sys.version_info.major}.{sys.version_info.minor}"
        found = interpreter.find(here)
        assert found and found.path == Path(sys.executable) and found.tag == f"cp{here.replace('.', '')}"
        assert interpreter.find("3.99") is None

    def test_a_program_of_that_name_which_is_another_is_no_find(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name, text in (("python3.98", "#!/bin/sh\nexit 127\n"), ("python3.97", "#!/bin/sh\necho 3 11 cpython 0\n")):
            (tmp_path / name).write_text(text)
            (tmp_path / name).chmod(0o755)
        (tmp_path / "python3.96").write_text("#!/bin/sh\necho 3 96 cpython 0\n")
        (tmp_path / "python3.96").chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        assert [interpreter.find(name) is not None for name in ("3.98", "3.97", "3.96")] == [False, False, True]

    def test_those_of_pyenv_are_found_newest_first(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
        monkeypatch.setenv("PATH", "/usr/bin:/bin")
        for name in ("3.96.9", "3.96.10", "3.96-dev"):
            program = tmp_path / "versions" / name / "bin" / "python3.96"
            program.parent.mkdir(parents=True)
            program.write_text("#!/bin/sh\necho 3 96 cpython 0\n")
            program.chmod(0o755)
        found = interpreter.find("3.96")
        assert found and found.path == tmp_path / "versions" / "3.96.10" / "bin" / "python3.96"

    def test_what_was_asked_for_by_name_has_to_be_there(self) -> None:
        assert interpreter.requested("3.12, 3.10") == (["3.12", "3.10"], True)
        assert interpreter.requested("all") == (list(interpreter.VERSIONS), False)
        with pytest.raises(ToolchainError, match=r"expected `all` or some of 3\.10.*'2\.7'"):
            interpreter.requested("2.7")

    def test_a_missing_version_is_not_here_and_never_ok(self, good: WheelFile) -> None:
        lax = finding.carry_out("python", lambda: install.check([good], [], ["3.14"], strict=False))
        assert lax.outcome == "not here" and "an interpreter for 3.14" in lax.absent
        strict = finding.carry_out("python", lambda: install.check([good], [], ["3.14"], strict=True))
        assert strict.outcome == "FAULT" and "a CPython 3.14" in strict.problems[0].wanted

    def test_a_missing_wheel_is_not_here_and_never_ok(self) -> None:
        python = interpreter.Interpreter("3.12", Path(sys.executable))
        assert install.check([], [python], [], strict=False).absent == ["a wheel for 3.12"]
        assert "a wheel for Python 3.12" in words(install.check([], [python], [], strict=True))

    def test_a_wheel_of_another_architecture_is_not_here(self, tmp_path: Path) -> None:
        other = "aarch64" if os.uname().machine == "x86_64" else "x86_64"
        wheel = make_wheel(tmp_path, name=NAME.replace("x86_64", other))
        assert f"a machine for {wheel.name}" in install.check([wheel], [], [], strict=False).absent

    def test_a_wheel_that_does_not_import_is_a_fault(self, tmp_path: Path) -> None:
        tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
        name = f"thresher-0.1.0-{tag}-{tag}-manylinux_2_34_{os.uname().machine}.whl"
        broken = make_wheel(tmp_path, name=name, more={"thresher/__init__.py": b"raise SystemExit('cannot start')\n"})
        here = interpreter.find(f"{sys.version_info.major}.{sys.version_info.minor}")
        assert here
        found = finding.carry_out("python", lambda: install.check([broken], [here], [], strict=True))
        assert found.outcome == "FAULT" and "check_wheel.py" in found.problems[0].found


class TestPlaces:
    def test_both_builds_differ_in_all_that_must_not_matter(self) -> None:
        one, two = rebuild.FIRST, rebuild.SECOND
        assert one.umask != two.umask and len(str(one.source)) != len(str(two.source))
        assert all(one.variables.get(name) != two.variables.get(name) for name in two.variables)
        assert two.variables["CCACHE_DISABLE"] == "1" and two.own_conan_home

    def test_nothing_but_the_commit_is_unpacked(self, repository: Path, tmp_path: Path) -> None:
        (repository / "kept.txt").write_text("committed")
        git(repository, "add", "kept.txt")
        git(repository, "commit", "-s", "-m", "feat: a file")
        (repository / "kept.txt").write_text("changed since")
        (repository / "left.txt").write_text("over")
        place = rebuild.Place(tmp_path / "place", "077", {})
        rebuild.unpack(repository, place)
        assert {path.name: path.read_text() for path in place.source.iterdir()} == {"kept.txt": "committed"}
        assert (place.source / "kept.txt").stat().st_mode & 0o777 == 0o600


class TestPace:
    def test_what_is_left_is_known_from_the_last_time(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        file = tmp_path / "seconds.json"
        first = pace.Pace(file, ["one", "two"])
        assert first.left() is None
        for name in ("one", "two"):
            with first.measured(name):
                pass
        assert capsys.readouterr().out.splitlines() == [
            "-- one: 1 of 2, its first time here",
            "-- two: 2 of 2, its first time here",
        ]
        file.write_text('{"one": 600, "two": 30.0}')
        second = pace.Pace(file, ["one", "two", "three"])
        assert second.left() is None
        second = pace.Pace(file, ["one", "two"])
        with second.measured("one"):
            assert second.left() == 630
        with second.measured("two"):
            pass
        assert [line.partition(", ")[2] for line in capsys.readouterr().out.splitlines()] == [
            "about 10 min left",
            "about 30 s left",
        ]

    def test_what_is_cut_short_does_not_count(self, tmp_path: Path) -> None:
        file = tmp_path / "seconds.json"
        file.write_text("no JSON")
        with pytest.raises(KeyboardInterrupt), pace.Pace(file, ["one"]).measured("one"):
            raise KeyboardInterrupt
        assert pace.Pace(file, ["one"]).left() is None


# The session


def run_main(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs the session's own main, which does not wait for the lock that a session around this test may hold."""
    return subprocess.run(
        [sys.executable, "-m", "release", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "scripts"), **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


class TestSession:
    def test_a_wrong_tag_ends_with_1_and_says_what_to_do(self, tmp_path: Path) -> None:
        report = tmp_path / "report.json"
        done = run_main("--check", "--only", "version", "--tag", "v9.9.9", "--json", str(report))
        assert done.returncode == 1
        assert "expected: the tag v0." in done.stdout and "got: v9.9.9" in done.stdout and "cure:" in done.stdout
        assert "verdict: FAULT in version" in done.stderr
        content = json.loads(report.read_text())
        assert content["ok"] is False and content["findings"][0]["problems"][0]["found"] == "v9.9.9"

    @pytest.mark.parametrize("bad", [False, True])
    def test_wheels_in_dist_are_checked(self, tmp_path: Path, bad: bool) -> None:
        make_wheel(tmp_path, more={"thresher/engine.o": b""} if bad else None)
        done = run_main("--check", "--no-rebuild", "--only", "leftovers,size", THRESHER_DIST_DIR=str(tmp_path))
        assert done.returncode == int(bad), done.stdout + done.stderr
        lines = [line.split()[:2] for line in done.stdout.splitlines()]
        assert ["leftovers", "FAULT" if bad else "ok"] in lines and ["size", "ok"] in lines, (
            "the others run all the same"
        )
        assert ("thresher/engine.o" in done.stdout) == bad

    def test_no_wheel_is_a_fault(self, tmp_path: Path) -> None:
        done = run_main("--check", "--no-rebuild", "--only", "size", THRESHER_DIST_DIR=str(tmp_path))
        assert done.returncode == 1 and "leave out --no-rebuild" in done.stdout

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ((), "Expected --check"),
            (("--check", "--only", "sizes"), "got 'sizes'"),
            (("--check", "--python", "2.7"), "got '2.7'"),
        ],
    )
    def test_a_wrong_option_is_named(self, arguments: tuple[str, ...], message: str) -> None:
        done = run_main(*arguments)
        assert done.returncode == 1 and message in done.stderr

    def test_what_was_left_out_is_not_called_ok(self) -> None:
        findings = [
            finding.carry_out("reproducible", lambda: Verdict("", skipped="--no-rebuild")),
            finding.carry_out("python", lambda: Verdict("x", absent=["an interpreter for 3.14"])),
            finding.carry_out("size", lambda: Verdict("x")),
        ]
        assert session.summary(findings) == (
            "verdict: 1 checks are ok; not here, so not proven: an interpreter for 3.14; left out: reproducible"
        )

    def test_the_table_tells_wanted_found_and_cure(self) -> None:
        problem = Problem("this", "that", "those")
        lines = finding.table([finding.carry_out("size", lambda: Verdict("x", [problem]))]).splitlines()
        assert [line.strip() for line in lines[-3:]] == ["expected: this", "got: that", "cure: those"]


@pytest.mark.parametrize("action", [lambda: 1 / 0])
def test_a_fault_of_the_check_itself_is_not_swallowed(action: Callable[[], Any]) -> None:
    with pytest.raises(ZeroDivisionError):
        finding.carry_out("size", action)

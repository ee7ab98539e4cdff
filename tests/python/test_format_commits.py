"""`nox -s format -- --commits`: commits of temporary repositories, formatted one by one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
AUTHOR = {"GIT_AUTHOR_NAME": "Ada Ütz", "GIT_AUTHOR_EMAIL": "ada@example.test", "GIT_AUTHOR_DATE": "1700000000 +0530"}
COMMITTER = {
    "GIT_COMMITTER_NAME": "Bo",
    "GIT_COMMITTER_EMAIL": "bo@example.test",
    "GIT_COMMITTER_DATE": "1700000123 -0800",
}


class Clone:
    """A repository with one commit on the branch main, the base of all ranges."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()
        self.git("init", "--quiet", "--initial-branch=main")
        self.commit("base", {"src/old.cc": "int  old;\n", "README": "x  y\n"})

    def git(self, *arguments: str) -> str:
        command = ["git", "-c", "core.autocrlf=false", "-C", str(self.root), *arguments]
        nowhere = {"PATH": os.environ["PATH"], "HOME": str(self.root.parent), "GIT_CONFIG_NOSYSTEM": "1"}
        done = subprocess.run(command, capture_output=True, check=False, env={**nowhere, **AUTHOR, **COMMITTER})
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode().strip()

    def commit(self, title: str, files: dict[str, str | None]) -> str:
        for name, content in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True) if content is None else path.write_text(content)
        self.git("add", "-A")
        self.git("commit", "--quiet", "-s", "-m", f"{title}\n\nWhy, in\ntwo lines.")
        return self.git("rev-parse", "HEAD")

    def show(self, revision: str, name: str) -> str:
        return self.git("show", f"{revision}:{name}")

    def log(self) -> list[str]:
        return self.git("log", "--format=%an|%ae|%ai|%cn|%ce|%ci|%B", "main").split("\n\n")


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path / "clone")


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    from toolchain import commits

    return commits


def squeeze(path: str, content: bytes) -> bytes:
    """Formats like a formatter: one space where there were several."""
    from toolchain.process import ToolchainError

    if b"unreadable" in content:
        raise ToolchainError("cannot read it.")
    while b"  " in content:
        content = content.replace(b"  ", b" ")
    return content


def apply(tool: ModuleType, clone: Clone, revisions: str = "main~2..HEAD", *, check: bool = False) -> None:
    tool.format_commits(clone.root, revisions, lambda path: path.startswith("src/"), squeeze, check=check)


def test_each_commit_is_formatted_and_nothing_else_changes(
    tool: ModuleType, clone: Clone, capfd: pytest.CaptureFixture[str]
) -> None:
    first = {"src/a.cc": "int  a;\n", "README": "two  spaces\n", "src/run.sh": "echo  x\n"}
    clone.commit("feat: first", first)
    clone.commit("feat: second", {"src/b  c.cc": "int  b;\n"})
    old = clone.commit("feat: third", {"src/a.cc": "int  a;\nint  c;\n", "src/b  c.cc": None})
    before = clone.log()
    (clone.root / "untracked").write_text("stays")
    apply(tool, clone, "main~3..HEAD")
    assert clone.log() == before, "message, sign-off, names and both dates"
    assert "Signed-off-by: Bo" in before[0] or any("Signed-off-by: Bo" in line for line in before)
    assert clone.show("main~2", "src/a.cc") == "int a;"
    assert clone.show("main~1", "src/a.cc") == "int a;", "the next commit does not take it back"
    assert clone.show("main~1", "src/b  c.cc") == "int b;"
    assert clone.show("main", "src/a.cc") == "int a;\nint c;"
    assert clone.show("main", "README") == "two  spaces", "not one of the formatted kinds"
    assert clone.show("main", "src/old.cc") == "int  old;", "no commit of the range touches it"
    assert clone.git("diff", "--stat", "main~1", "main", "--", "src/a.cc").endswith("1 insertion(+)")
    # The work tree follows, and the way back is printed.
    assert (clone.root / "src" / "a.cc").read_text() == "int a;\nint c;\n"
    assert clone.git("status", "--porcelain") == "?? untracked"
    out = capfd.readouterr().out
    backup = f"refs/thresher/before-format/main/{old[:12]}"
    assert f"git reset --keep {backup}" in out
    clone.git("reset", "--quiet", "--keep", backup)
    assert clone.git("rev-parse", "HEAD") == old
    assert (clone.root / "src" / "a.cc").read_text() == "int  a;\nint  c;\n"


def test_formatted_commits_stay_the_same_commits(
    tool: ModuleType, clone: Clone, capfd: pytest.CaptureFixture[str]
) -> None:
    clone.commit("feat: good", {"src/a.cc": "int a;\n"})
    good = clone.commit("feat: good, too", {"src/b.cc": "int b;\n"})
    apply(tool, clone)
    assert clone.git("rev-parse", "HEAD") == good
    assert "the files of all 2 commits are formatted" in capfd.readouterr().out
    assert not clone.git("for-each-ref", "refs/thresher")
    clone.commit("feat: bad", {"src/c.cc": "int  c;\n"})
    apply(tool, clone, "main~3..HEAD")
    assert clone.git("rev-parse", "HEAD~1") == good, "only what comes after the first change is rewritten"


def test_modes_and_links_stay(tool: ModuleType, clone: Clone) -> None:
    (clone.root / "src" / "link.cc").symlink_to("two  spaces")
    script = clone.root / "src" / "run.cc"
    script.write_text("run  it\n")
    script.chmod(0o755)
    clone.commit("feat: files", {})
    apply(tool, clone, "main~1..HEAD")
    listing = clone.git("ls-tree", "HEAD", "src/").splitlines()
    assert [line.split()[0] for line in listing] == ["120000", "100644", "100755"]
    assert (clone.root / "src" / "link.cc").readlink() == Path("two  spaces")
    assert script.read_text() == "run it\n" and script.stat().st_mode & 0o100


def test_check_prints_a_patch_per_commit_and_changes_nothing(
    tool: ModuleType, clone: Clone, capfd: pytest.CaptureFixture[str]
) -> None:
    clone.commit("feat: bad", {"src/a.cc": "int  a;\n"})
    head = clone.commit("feat: good", {"src/b.cc": "int b;\n"})
    (clone.root / "src" / "a.cc").write_text("changed but not committed")
    with pytest.raises(Exception, match=r"1 of 2 commits hold files that are not formatted.*--commits main~2\.\.HEAD"):
        apply(tool, clone, check=True)
    out = capfd.readouterr().out
    assert "feat: bad\n--- a/src/a.cc\n+++ b/src/a.cc\n" in out and "-int  a;\n+int a;\n" in out
    assert "feat: good" not in out
    assert clone.git("rev-parse", "HEAD") == head and not clone.git("for-each-ref", "refs/thresher")
    apply(tool, clone, "main~1..HEAD", check=True)


class TestRefusals:
    def refused(self, tool: ModuleType, clone: Clone, revisions: str = "main~1..HEAD") -> str:
        before = clone.git("rev-parse", "HEAD"), clone.git("status", "--porcelain"), clone.git("for-each-ref")
        with pytest.raises(Exception, match=r"--commits|Nothing was rewritten") as error:
            apply(tool, clone, revisions)
        assert type(error.value).__name__ == "ToolchainError"
        assert before == (clone.git("rev-parse", "HEAD"), clone.git("status", "--porcelain"), clone.git("for-each-ref"))
        return str(error.value)

    @pytest.fixture(autouse=True)
    def bad_commit(self, clone: Clone) -> None:
        clone.commit("feat: bad", {"src/a.cc": "int  a;\n"})

    def test_a_merge(self, tool: ModuleType, clone: Clone) -> None:
        clone.git("switch", "--quiet", "-c", "side", "main~1")
        clone.commit("feat: side", {"src/side.cc": "int  s;\n"})
        clone.git("switch", "--quiet", "main")
        clone.git("merge", "--quiet", "--no-edit", "side")
        assert "holds merges" in self.refused(tool, clone, "main~2..HEAD")

    def test_a_dirty_tree(self, tool: ModuleType, clone: Clone) -> None:
        (clone.root / "src" / "a.cc").write_text("int  a, b;\n")
        assert "1 files differ (src/a.cc). Commit or `git stash`" in self.refused(tool, clone)

    def test_a_detached_head(self, tool: ModuleType, clone: Clone) -> None:
        clone.git("switch", "--quiet", "--detach", "main")
        assert "HEAD is detached" in self.refused(tool, clone)

    def test_a_published_commit(self, tool: ModuleType, clone: Clone) -> None:
        clone.git("update-ref", "refs/remotes/origin/main", "main")
        clone.commit("feat: bad, too", {"src/b.cc": "int  b;\n"})
        assert "is published on origin/main" in self.refused(tool, clone, "main~2..HEAD")
        apply(tool, clone, "origin/main..HEAD")
        assert clone.show("HEAD", "src/b.cc") == "int b;" and clone.show("HEAD", "src/a.cc") == "int  a;"

    def test_a_file_that_cannot_be_read(self, tool: ModuleType, clone: Clone) -> None:
        clone.commit("feat: broken", {"src/broken.cc": "unreadable"})
        error = self.refused(tool, clone, "main~2..HEAD")
        assert "feat: broken: src/broken.cc: cannot read it. Nothing was rewritten." in error

    @pytest.mark.parametrize(
        ("revisions", "words"),
        [
            ("main", "expected BASE..HEAD"),
            ("..HEAD", "expected BASE..HEAD"),
            ("main~1...HEAD", "expected BASE..HEAD"),
            ("nothing..HEAD", "git knows no commit 'nothing'"),
            ("main~1..main~1", "expected a range that ends at HEAD"),
            ("other..HEAD", "other is no ancestor of HEAD"),
        ],
    )
    def test_a_range_that_is_none(self, tool: ModuleType, clone: Clone, revisions: str, words: str) -> None:
        clone.git("switch", "--quiet", "-c", "other", "main~1")
        clone.commit("feat: other", {"src/o.cc": "int o;\n"})
        clone.git("switch", "--quiet", "main")
        assert words in self.refused(tool, clone, revisions)

    def test_a_branch_that_moves_meanwhile_is_not_overwritten(
        self, tool: ModuleType, clone: Clone, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rewrite = tool.Repository.rewrite

        def slow(self: object, commits: list[object]) -> str:
            made: str = rewrite(self, commits)
            tree = clone.git("rev-parse", "main^{tree}")
            clone.git("update-ref", "refs/heads/main", clone.git("commit-tree", "-p", "main", "-m", "x", tree))
            return made

        monkeypatch.setattr(tool.Repository, "rewrite", slow)
        with pytest.raises(Exception, match="update-ref"):
            apply(tool, clone, "main~1..HEAD")
        assert clone.git("log", "-1", "--format=%s") == "x"
        assert (clone.root / "src" / "a.cc").read_text() == "int  a;\n" and not clone.git("status", "--porcelain")


def test_which_files_are_formatted(tool: ModuleType) -> None:
    from toolchain import linting

    for path in ("src/thresher/a.cc", "tests/cpp/a.h", "bench/x.cu", "noxfile.py", "python/thresher/_engine.pyi"):
        assert linting.is_formatted(path), path
    for path in ("docs/a.py", "src/a.py.in", "README.md", "setup.py", "scripts/a.cc"):
        assert not linting.is_formatted(path), path
    every = {path.relative_to(ROOT).as_posix() for path in (*linting.cpp_files(), *linting.python_files())}
    assert all(linting.is_formatted(path) for path in every)

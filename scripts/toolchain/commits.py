"""Formatting commits that are not published yet: each one's tree becomes the old tree with formatted files.

No patch is applied, so that nothing can conflict. The work tree is left alone until every commit has been written.
"""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .process import ToolchainError, note

# Gets the path of a file in the repository and its content; returns the formatted content.
Formatter = Callable[[str, bytes], bytes]
BACKUPS = "refs/thresher/before-format"


@dataclass(frozen=True, eq=False)
class Commit:
    """A commit of the range.

    Attributes:
        name: its hash.
        parent: the hash of its only parent.
        title: the first line of its message.
        files: the hash of the content by path, of the files it adds or changes and that can be formatted.
    """

    name: str
    parent: str
    title: str
    files: Mapping[str, str]

    def __str__(self) -> str:
        return f"{self.name[:12]} {self.title}"


class Repository:
    """A git repository and the formatted content of its files."""

    def __init__(self, root: Path, accepts: Callable[[str], bool], formatter: Formatter) -> None:
        self._root = root
        self._accepts = accepts
        self._formatter = formatter
        self._formatted: dict[tuple[str, str], str] = {}

    def git(self, *arguments: str, stdin: bytes = b"", index: Path | None = None) -> bytes:
        """Runs git and returns what it prints.

        Raises:
            ToolchainError: git fails, or is not there.
        """
        variables = {**os.environ, **({"GIT_INDEX_FILE": str(index)} if index else {})}
        command = ["git", "-C", str(self._root), *arguments]
        try:
            done = subprocess.run(command, input=stdin, capture_output=True, check=False, env=variables)
        except OSError as error:
            raise ToolchainError(f"Expected git; {error}. Install it.") from error
        if done.returncode != 0:
            raise ToolchainError(f"`git {' '.join(arguments)}`: {done.stderr.decode(errors='replace').strip()}")
        return done.stdout

    def line(self, *arguments: str, stdin: bytes = b"") -> str:
        """Returns what git prints, as a line; empty if it fails."""
        try:
            return self.git(*arguments, stdin=stdin).decode(errors="replace").strip()
        except ToolchainError:
            return ""

    def commits(self, revisions: str) -> list[Commit]:
        """Lists the commits of a range, the oldest first.

        Raises:
            ToolchainError: it is no range BASE..END whose end is the present commit, it holds merges, or the base is
                no ancestor of the end.
        """
        base, dots, end = revisions.partition("..")
        if not dots or not base or end.startswith("."):
            raise ToolchainError(f"--commits: expected BASE..HEAD, as origin/main..HEAD; got {revisions!r}.")
        names = [self.line("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}") for name in (base, end or "HEAD")]
        for name, found in zip((base, end), names, strict=True):
            if not found:
                raise ToolchainError(f"--commits: git knows no commit {name!r}; `git fetch` may bring it.")
        if names[1] != self.line("rev-parse", "HEAD"):
            raise ToolchainError(
                f"--commits: expected a range that ends at HEAD; {end} is another commit. Check it out."
            )
        exact = f"{names[0]}..{names[1]}"
        if self.line("merge-base", *names) != names[0]:
            raise ToolchainError(
                f"--commits: {base} is no ancestor of {end or 'HEAD'}. `git rebase {base}` makes it one, or name "
                f"`$(git merge-base {base} HEAD)..HEAD`."
            )
        if merges := self.line("rev-list", "--merges", "--abbrev-commit", exact):
            raise ToolchainError(
                f"--commits: {revisions} holds merges ({', '.join(merges.split())}), and a merge is the work of "
                f"several branches. Name a range after them, or `git rebase {base}`."
            )
        return [self._commit(name) for name in self.line("rev-list", "--reverse", exact).split()]

    def _commit(self, name: str) -> Commit:
        parent, title = self.git("log", "-1", "--format=%P%n%s", name).decode(errors="replace").splitlines()
        options = ("-r", "-z", "--no-renames", "--diff-filter=AMT")
        listing = self.git("diff-tree", *options, parent, name).decode(errors="surrogateescape")
        fields = listing.split("\0")[:-1]
        files = {}
        for status, path in zip(fields[::2], fields[1::2], strict=True):
            _, mode, _, blob, _ = status.split(" ")
            # Neither symbolic links nor submodules.
            if mode.startswith("100") and self._accepts(path):
                files[path] = blob
        return Commit(name, parent, title, files)

    def formatted(self, path: str, blob: str, commit: Commit) -> str:
        """Returns the hash of the formatted content of a file, which is written into the repository.

        Raises:
            ToolchainError: the file cannot be read by its formatter.
        """
        if (path, blob) not in self._formatted:
            content = self.git("cat-file", "blob", blob)
            try:
                made = self._formatter(path, content)
            except ToolchainError as error:
                raise ToolchainError(f"{commit}: {path}: {error} Nothing was rewritten.") from error
            same = made == content
            self._formatted[path, blob] = (
                blob if same else self.git("hash-object", "-w", "--stdin", stdin=made).decode().strip()
            )
        return self._formatted[path, blob]

    def patch(self, commit: Commit) -> str:
        """Returns what formatting changes in the files that a commit touches, empty if nothing."""
        lines: list[str] = []
        for path, blob in sorted(commit.files.items()):
            made = self.formatted(path, blob, commit)
            if made != blob:
                old, new = (
                    self.git("cat-file", "blob", name).decode(errors="replace").splitlines(keepends=True)
                    for name in (blob, made)
                )
                lines += difflib.unified_diff(old, new, f"a/{path}", f"b/{path}")
        return "".join(lines)

    def rewrite(self, commits: list[Commit]) -> str:
        """Writes new commits, and moves no branch.

        What one commit touched is formatted in all later ones, too; else the next would take the formatting back.

        Returns:
            The hash of the last one.
        """
        touched: set[str] = set()
        new = commits[0].parent
        with tempfile.TemporaryDirectory() as scratch:
            index = Path(scratch) / "index"
            for commit in commits:
                touched |= commit.files.keys()
                tree = self._tree(commit, touched, index)
                new = self._copy(commit, tree, new)
        return new

    def _tree(self, commit: Commit, touched: set[str], index: Path) -> str:
        self.git("read-tree", commit.name, index=index)
        updates = []
        listing = self.git("ls-files", "--stage", "-z", index=index).decode(errors="surrogateescape")
        for line in listing.split("\0")[:-1]:
            status, path = line.split("\t", 1)
            mode, blob, _ = status.split(" ")
            if path in touched and mode.startswith("100") and (made := self.formatted(path, blob, commit)) != blob:
                updates.append(f"{mode} {made}\t{path}\0")
        if updates:
            self.git("update-index", "-z", "--index-info", stdin=os.fsencode("".join(updates)), index=index)
        return self.git("write-tree", index=index).decode().strip()

    def _copy(self, commit: Commit, tree: str, parent: str) -> str:
        """Writes a commit with another tree and parent; message, author and both dates stay byte for byte."""
        raw = self.git("cat-file", "commit", commit.name)
        head, _, message = raw.partition(b"\n\n")
        # A signature does not hold for another tree.
        head = re.sub(rb"\ngpgsig(-sha256)? [^\n]*(\n [^\n]*)*", b"", head)
        head = re.sub(rb"(?m)^tree .*$", f"tree {tree}".encode(), head, count=1)
        head = re.sub(rb"(?m)^parent .*$", f"parent {parent}".encode(), head, count=1)
        made = head + b"\n\n" + message
        if made == raw:
            return commit.name
        return self.git("hash-object", "-t", "commit", "-w", "--stdin", stdin=made).decode().strip()

    def branch(self, commits: list[Commit], revisions: str) -> str:
        """Returns the reference of the present branch, if its commits may be rewritten.

        Raises:
            ToolchainError: HEAD is detached, a file differs from its commit, or a remote branch has a commit of the
                range.
        """
        branch = self.line("symbolic-ref", "--quiet", "HEAD")
        if not branch:
            raise ToolchainError(
                "--commits: HEAD is detached, so no branch would keep the result. `git switch` to one."
            )
        if dirty := self.git("status", "--porcelain", "--untracked-files=no").decode(errors="replace").splitlines():
            found = f"{len(dirty)} files differ ({dirty[0][3:]})"
            raise ToolchainError(f"--commits: expected a clean tree; {found}. Commit or `git stash` them.")
        contained = ["for-each-ref", "--format=%(refname:short)", "--contains", commits[0].name, "refs/remotes"]
        if published := self.line(*contained).split():
            raise ToolchainError(
                f"--commits: {commits[0]} is published on {', '.join(published)}; others may have built on it. Name a "
                f"later base than {revisions.partition('..')[0]}, or format in a commit of its own (`nox -s format`)."
            )
        return branch

    def move(self, branch: str, old: str, new: str) -> str:
        """Lets a branch and the work tree go over to new commits.

        Returns:
            The reference that keeps the old ones.
        """
        backup = f"{BACKUPS}/{branch.removeprefix('refs/heads/')}/{old[:12]}"
        self.git("update-ref", backup, old)
        self.git("read-tree", "-m", "-u", old, new)
        try:
            self.git("update-ref", "-m", "nox -s format -- --commits", branch, new, old)
        except ToolchainError:
            self.git("read-tree", "-m", "-u", new, old)
            raise
        return backup


def format_commits(
    root: Path, revisions: str, accepts: Callable[[str], bool], formatter: Formatter, *, check: bool
) -> None:
    """Formats the files that each commit of a range touches, in that very commit.

    Args:
        root: the top of the repository.
        revisions: BASE..HEAD.
        accepts: says of a path whether it can be formatted.
        formatter: formats a file.
        check: change nothing; print the patch of each commit.

    Raises:
        ToolchainError: the range cannot be rewritten; or `check` is set and a file of a commit is not formatted.
    """
    repository = Repository(root, accepts, formatter)
    commits = repository.commits(revisions)
    if not commits:
        note(f"{revisions} holds no commit")
        return
    branch = "" if check else repository.branch(commits, revisions)
    patches = {commit: patch for commit in commits if (patch := repository.patch(commit))}
    if check and patches:
        for commit, patch in patches.items():
            print(f"commit {commit}\n{patch}", flush=True)
        raise ToolchainError(
            f"{len(patches)} of {len(commits)} commits hold files that are not formatted; the patches are above. "
            f"`nox -s format -- --commits {revisions}` rewrites them."
        )
    new = commits[-1].name if check else repository.rewrite(commits)
    if new == commits[-1].name:
        note(f"the files of all {len(commits)} commits are formatted")
        return
    backup = repository.move(branch, commits[-1].name, new)
    for commit in patches:
        note(f"formatted {commit}")
    note(f"{branch.removeprefix('refs/heads/')}: {commits[-1].name[:12]} -> {new[:12]}; its files are formatted now")
    note(f"the old commits are kept: `git reset --keep {backup}` takes it back, `git update-ref -d` forgets them")

"""The commits of a release: Conventional Commits, signed off, and nothing uncommitted beside them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from toolchain.process import captured, output

from .finding import Problem, Verdict

# https://www.conventionalcommits.org
TYPES = ("build", "chore", "ci", "docs", "feat", "fix", "perf", "refactor", "revert", "style", "test")
SUBJECT = re.compile(rf"({'|'.join(TYPES)})(\([\w ./-]+\))?!?: \S.*")
SIGNED_OFF = re.compile(r"^Signed-off-by: .+ <\S+@\S+>$", re.MULTILINE)
# A table is no place for a hundred of them.
SHOWN = 5


@dataclass(frozen=True)
class Commit:
    """A commit by its short hash, first line and the rest of its message."""

    revision: str
    subject: str
    body: str


def last_tag(root: Path, before: str | None) -> str | None:
    """Returns the newest version tag that HEAD descends from, other than the one that is being released."""
    command = ["git", "-C", str(root), "describe", "--tags", "--abbrev=0", "--match", "v*"]
    return output([*command, *([f"--exclude={before}"] if before else []), "HEAD"])


def commits_since(root: Path, tag: str | None) -> list[Commit]:
    """Lists the commits after a tag, or all; merges are left out, since nobody writes their message.

    Raises:
        ToolchainError: this is no git repository.
    """
    span = f"{tag}..HEAD" if tag else "HEAD"
    text = captured(["git", "-C", root, "log", "--no-merges", "--format=%h%x1f%s%x1f%b%x1e", span])
    entries = (entry.strip("\n").split("\x1f") for entry in text.split("\x1e") if entry.strip())
    return [Commit(*entry) for entry in entries]


def check_commits(root: Path, tag: str | None) -> Verdict:
    """Judges the messages of the commits since the last release."""
    since = last_tag(root, tag)
    commits = commits_since(root, since)
    odd = [commit for commit in commits if not SUBJECT.fullmatch(commit.subject)]
    unsigned = [commit for commit in commits if not SIGNED_OFF.search(commit.body)]
    problems = []
    if odd:
        wanted = f"TYPE(SCOPE): TEXT with one of {', '.join(TYPES)}"
        problems.append(Problem(wanted, _listed(odd), "reword them (git rebase -i), or squash them"))
    if unsigned:
        cure = "git rebase --signoff " + (since or "--root")
        problems.append(Problem("Signed-off-by: NAME <ADDRESS> in each commit", _listed(unsigned), cure))
    return Verdict(f"{len(commits)} commits since {since or 'the first one'}", problems)


def _listed(commits: list[Commit]) -> str:
    lines = [f"{commit.revision} {commit.subject!r}" for commit in commits[:SHOWN]]
    return "; ".join(lines) + (f"; and {len(commits) - SHOWN} more" if len(commits) > SHOWN else "")


def check_clean(root: Path) -> Verdict:
    """Looks for changes that no commit has, and for files that git does not know.

    Raises:
        ToolchainError: this is no git repository.
    """
    lines = captured(["git", "-C", root, "status", "--porcelain"]).splitlines()
    revision = captured(["git", "-C", root, "rev-parse", "--short=12", "HEAD"]).strip()
    problems = []
    if lines:
        more = f" and {len(lines) - SHOWN} more" if len(lines) > SHOWN else ""
        shown = ", ".join(line.strip() for line in lines[:SHOWN]) + more
        problems.append(Problem("a clean working tree", shown, "commit it, or remove it: git status"))
    return Verdict(f"commit {revision}", problems)

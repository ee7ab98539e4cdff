"""Formatting and linting."""

from __future__ import annotations

import difflib
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from . import commits, environments, tidy
from .environments import CHECKS, LINT, script
from .layout import BUILD, ROOT
from .meanwhile import beside
from .process import ToolchainError, command_line, cores, note, output, run

CPP_FOLDERS = ("src", "tests", "bench")
CPP_SUFFIXES = (".h", ".cc", ".cu")
PYTHON_SUFFIXES = (".py", ".pyi")
PYTHON_PLACES = ("python", "cuda", "scripts", "tests", "bench", "examples", "conan", "conanfile.py", "noxfile.py")
SHELL_PLACES = ("scripts", "docker", ".ci")
# It takes longer to start than to read one.
FILES_AT_ONCE = 32


def _files(places: Iterable[str], suffixes: tuple[str, ...]) -> list[Path]:
    found: set[Path] = set()
    for place in places:
        path = ROOT / place
        candidates = path.rglob("*") if path.is_dir() else [path]
        found.update(p for p in candidates if p.is_file() and p.suffix in suffixes and "__pycache__" not in p.parts)
    return sorted(found)


def cpp_files() -> list[Path]:
    """Lists every C++ file of the repository."""
    return _files(CPP_FOLDERS, CPP_SUFFIXES)


def python_files() -> list[Path]:
    """Lists every Python file of the repository."""
    return _files(PYTHON_PLACES, PYTHON_SUFFIXES)


def is_formatted(path: str) -> bool:
    """Says whether a file of the repository, by its path there, is one of those that are formatted."""
    parts = Path(path).parts
    return (parts[0] in CPP_FOLDERS and Path(path).suffix in CPP_SUFFIXES) or (
        parts[0] in PYTHON_PLACES and Path(path).suffix in PYTHON_SUFFIXES
    )


def shell_files() -> list[Path]:
    """Lists every shell script, with or without an ending."""
    scripts = _files(SHELL_PLACES, (".sh", ""))
    return [path for path in scripts if path.read_bytes()[:2] == b"#!" and b"sh" in path.read_bytes().split(b"\n")[0]]


def workflow_files() -> list[Path]:
    """Lists the workflows of the code host."""
    return sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def schema_check(files: Sequence[Path]) -> list[str | Path]:
    """Returns the command that compares workflows with the schema that check-jsonschema brings along."""
    return [script(CHECKS, "check-jsonschema"), "--builtin-schema", "vendor.github-workflows", *files]


def changed_since(revision: str) -> set[Path]:
    """Lists the files that differ from a git revision, those that git does not know yet included.

    Raises:
        ToolchainError: this is no git repository, or it has no such revision.
    """
    changed = output(["git", "-C", ROOT, "diff", "--name-only", "--diff-filter=d", revision, "--"])
    if changed is None:
        raise ToolchainError(
            f"Expected the files changed since {revision!r}, but git cannot tell: is this a clone that has that "
            "revision? Without --since, every file is taken."
        )
    fresh = output(["git", "-C", ROOT, "ls-files", "--others", "--exclude-standard"]) or ""
    return {ROOT / name for name in (*changed.splitlines(), *fresh.splitlines())}


def _captured(command: Sequence[str | Path]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command_line(command), capture_output=True, text=True, check=False, cwd=ROOT)


def unformatted(files: Sequence[Path]) -> list[Path]:
    """Returns files among which are all that clang-format would change or cannot read."""
    batches = [files[first : first + FILES_AT_ONCE] for first in range(0, len(files), FILES_AT_ONCE)]

    def differs(batch: Sequence[Path]) -> bool:
        return _captured([script(CHECKS, "clang-format"), "--dry-run", "--Werror", *batch]).returncode != 0

    with ThreadPoolExecutor(cores()) as pool:
        found = zip(batches, pool.map(differs, batches), strict=True)
    return [path for batch, some in found if some for path in batch]


def clang_format_patch(files: list[Path]) -> str:
    """Returns the patch that clang-format would apply, empty if there is none.

    Raises:
        ToolchainError: clang-format cannot read a file.
    """
    patch: list[str] = []
    for path in unformatted(files):
        done = _captured([script(CHECKS, "clang-format"), path])
        if done.returncode != 0:
            raise ToolchainError(f"clang-format could not read {path}: {done.stderr.strip()}")
        old = path.read_text(encoding="utf-8").splitlines(keepends=True)
        name = path.relative_to(ROOT)
        patch += difflib.unified_diff(old, done.stdout.splitlines(keepends=True), f"a/{name}", f"b/{name}")
    return "".join(patch)


def ruff_format_patch(files: list[Path]) -> str:
    """Returns the patch that ruff would apply, empty if there is none.

    Raises:
        ToolchainError: ruff cannot parse a file.
    """
    if not files:
        return ""
    done = _captured([script(CHECKS, "ruff"), "format", "--diff", *(path.relative_to(ROOT) for path in files)])
    if done.returncode not in (0, 1) or (done.returncode == 1 and not done.stdout):
        raise ToolchainError(f"ruff could not check the format: {done.stderr.strip()}")
    return done.stdout


def format_sources(*, check: bool, since: str | None) -> None:
    """Formats C++ and Python, or with `check` prints the patch that formatting would apply.

    Raises:
        ToolchainError: `check` is set and a file is not formatted.
    """
    environments.ensure(CHECKS)
    chosen = changed_since(since) if since else None
    cpp = [path for path in cpp_files() if chosen is None or path in chosen]
    python = [path for path in python_files() if chosen is None or path in chosen]
    if check:
        patch = clang_format_patch(cpp) + ruff_format_patch(python)
        if patch:
            print(patch, flush=True)
            raise ToolchainError("Some files are not formatted; the patch is above. `nox -s format` applies it.")
    else:
        before = {path: path.read_bytes() for path in (*cpp, *python)}
        for command, files in (("clang-format", cpp), ("ruff", python)):
            arguments = ["-i"] if command == "clang-format" else ["format", "--quiet"]
            if files and (done := _captured([script(CHECKS, command), *arguments, *files])).returncode != 0:
                raise ToolchainError(f"{command} failed: {done.stderr.strip()}")
        for path, content in before.items():
            if path.read_bytes() != content:
                note(f"formatted {path.relative_to(ROOT)}")
    note(f"{len(cpp)} C++ and {len(python)} Python files {'are formatted' if check else 'looked at'}")


def formatted(path: str, content: bytes) -> bytes:
    """Returns the content of a file as its formatter writes it; the path decides which one and with which options.

    Raises:
        ToolchainError: the formatter cannot read the file.
    """
    if Path(path).suffix in PYTHON_SUFFIXES:
        program = script(CHECKS, "ruff")
        command: list[str | Path] = [program, "format", "--quiet", f"--stdin-filename={path}", "-"]
    else:
        program = script(CHECKS, "clang-format")
        command = [program, f"--assume-filename={path}"]
    done = subprocess.run(command_line(command), input=content, capture_output=True, check=False, cwd=ROOT)
    if done.returncode != 0:
        raise ToolchainError(f"{program.name} cannot read it: {done.stderr.decode(errors='replace').strip()}.")
    return done.stdout


def format_range(revisions: str, *, check: bool) -> None:
    """Formats what the commits of a range touch, in these commits; see `commits.format_commits`.

    Raises:
        ToolchainError: the range cannot be rewritten; or `check` is set and a file is not formatted.
    """
    environments.ensure(CHECKS)
    commits.format_commits(ROOT, revisions, is_formatted, formatted, check=check)


def shellcheck() -> Path:
    """Returns the program: ours, or the system's for an architecture without a wheel of it.

    Raises:
        ToolchainError: neither is there.
    """
    try:
        return script(CHECKS, "shellcheck")
    except ToolchainError:
        if found := shutil.which("shellcheck"):
            return Path(found)
        raise ToolchainError(
            "Expected shellcheck; there is no wheel of it for this machine. Install the package."
        ) from None


def lint_sources(*, fix: bool, everything: bool, since: str | None) -> None:
    """Runs ruff, mypy --strict, shellcheck, hadolint, clang-tidy and the comparison of the workflows with their schema.

    Args:
        fix: let ruff mend what it can.
        everything: clang-tidy looks at all sources, not only at those that changed.
        since: the revision that they are compared with; default: where the branch left the main one.

    Raises:
        ToolchainError: any of them finds something; the others still run and print what they find.
    """
    environments.ensure(CHECKS)
    environments.ensure(LINT)
    places = [place for place in PYTHON_PLACES if (ROOT / place).exists()]
    mypy: list[str | Path] = [LINT.python, "-m", "mypy"]
    commands: dict[str, list[str | Path]] = {
        "ruff": [script(CHECKS, "ruff"), "check", *(["--fix"] if fix else []), *places],
        "mypy of the packages": [*mypy, "python/thresher", "cuda/thresher_cuda"],
        # Two that run at the same time do not share what they keep.
        "mypy of the scripts": [*mypy, f"--cache-dir={BUILD / 'mypy' / 'scripts'}", "scripts"],
        "shellcheck": [shellcheck(), *shell_files()],
        "hadolint": [script(CHECKS, "hadolint"), "--no-color", ROOT / "docker" / "Dockerfile"],
        "schema of the workflows": schema_check(workflow_files()),
    }
    failed: set[str] = set()

    def attempt(name: str) -> None:
        try:
            run(commands[name], cwd=ROOT)
        except ToolchainError:
            failed.add(name)

    revision = since or tidy.default_revision()
    longest = "mypy of the packages"
    with beside(partial(attempt, longest)):
        for name in commands:
            if name != longest:
                attempt(name)
        try:
            tidy.run_tidy(None if everything or revision is None else changed_since(revision))
        except ToolchainError as error:
            note(str(error))
            failed.add("clang-tidy")
    if failed:
        found = ", ".join(name for name in (*commands, "clang-tidy") if name in failed)
        raise ToolchainError(f"Found by {found}; the messages are above.")

"""clang-tidy over the C++ sources of the engine: those that changed, or all."""

from __future__ import annotations

import json
import platform
import re
import subprocess
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import native
from .environments import CHECKS, TOOLS, script
from .layout import BUILD, ROOT
from .native import Flavour
from .process import ToolchainError, command_line, cores, note, output
from .system import ensure_system_packages

SOURCES = ROOT / "src"
# One instruction set is enough for what these checks see, and the kernels are compiled once for each otherwise.
ARGUMENTS = ("-Wno-unknown-warning-option", "-DHWY_COMPILE_ONLY_STATIC")
MACHINE_ARGUMENTS = {"x86_64": ("-march=x86-64-v3",)}


def default_revision() -> str | None:
    """Returns the revision since which a branch has changed: where it left the main branch, else the commit before.

    Returns:
        None outside of git, or where there is but one commit.
    """
    head = output(["git", "-C", ROOT, "rev-parse", "HEAD"])
    for main in ("origin/main", "main"):
        base = output(["git", "-C", ROOT, "merge-base", main, "HEAD"])
        if base and base != head:
            return base
    return output(["git", "-C", ROOT, "rev-parse", "--verify", "--quiet", "HEAD~1"])


def choose(changed: Iterable[Path], sources: Collection[Path]) -> list[Path]:
    """Returns the sources to look at so that every changed file is seen.

    Args:
        changed: files that differ.
        sources: the files that are compiled.

    Returns:
        The changed sources, and for a changed header the source of the same name, else the shortest one that includes
        it; a header that no source includes directly is left to the change that uses it.
    """
    chosen = {path for path in changed if path in sources}
    for header in (path for path in changed if path.suffix == ".h" and path.is_relative_to(SOURCES)):
        name = header.relative_to(SOURCES).as_posix()
        including = [path for path in sources if f'#include "{name}"' in path.read_text(encoding="utf-8")]
        same = header.name.removesuffix("-inl.h").removesuffix(".h")
        including.sort(key=lambda path: (path.stem != same, path.stat().st_size, path))
        if including and not chosen & set(including):
            chosen.add(including[0])
    return sorted(chosen)


def database() -> Path:
    """Returns a folder with compile_commands.json: that of the last build, else of a build that is only configured.

    Raises:
        ToolchainError: the build cannot be configured.
    """
    flavour = Flavour()
    for folder in (flavour.objects, BUILD / "tidy"):
        if (folder / "compile_commands.json").is_file():
            return folder
    note("clang-tidy needs to know how the sources are compiled; configuring a build")
    ensure_system_packages(flavour.platform.name)
    native.install_dependencies(flavour)
    folder = BUILD / "tidy"
    native.tool(
        [
            *("cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release"),
            *(f"-DCMAKE_TOOLCHAIN_FILE={flavour.toolchain_file}", f"-DPython_EXECUTABLE={TOOLS.python}"),
        ],
        hint=f"Removing {folder} starts afresh.",
    )
    return folder


def compiled(folder: Path) -> list[Path]:
    """Lists the sources of the engine that a compile database has."""
    try:
        commands = json.loads((folder / "compile_commands.json").read_text(encoding="utf-8"))
        files = {Path(entry["directory"], entry["file"]) for entry in commands}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ToolchainError(f"{folder}/compile_commands.json: {error}; remove {folder}.") from error
    return sorted(path for path in files if path.is_relative_to(SOURCES) and path.is_file())


def look_at(files: Sequence[Path], folder: Path) -> None:
    """Runs clang-tidy on some files, as many at once as there are cores.

    Raises:
        ToolchainError: it finds something.
    """
    arguments = [f"--extra-arg={a}" for a in (*ARGUMENTS, *MACHINE_ARGUMENTS.get(platform.machine(), ()))]
    command: list[str | Path] = [script(CHECKS, "clang-tidy"), "--quiet", "-p", folder, *arguments]

    def one(path: Path) -> str:
        done = subprocess.run(command_line([*command, path]), capture_output=True, text=True, check=False, cwd=ROOT)
        found = done.stdout.strip()
        if done.returncode != 0 and not found:
            return f"{path.relative_to(ROOT)}: clang-tidy ended with code {done.returncode}: {done.stderr.strip()}"
        return found

    with ThreadPoolExecutor(cores()) as pool:
        texts = list(pool.map(one, files))
    seen: set[str] = set()
    faulty = 0
    for text in texts:
        # A header's findings come once for each source that includes it.
        parts = re.split(r"(?m)^(?=\S+:\d+:\d+: (?:error|warning): )", text)
        fresh = [part for part in parts if part.strip() and part not in seen]
        seen.update(fresh)
        faulty += bool(text)
        if fresh:
            print("".join(fresh).rstrip(), flush=True)
    if faulty:
        raise ToolchainError(
            f"clang-tidy found something in {faulty} of {len(files)} files; .clang-tidy has the checks."
        )
    note(f"clang-tidy: nothing found in {len(files)} files of src/")


def run_tidy(changed: Collection[Path] | None) -> None:
    """Runs clang-tidy over the engine's sources.

    Args:
        changed: look only at these files and those that show them; None: all.

    Raises:
        ToolchainError: it finds something, or the build cannot be configured.
    """
    if changed is not None and not any(path.is_relative_to(SOURCES) for path in changed):
        note("clang-tidy: nothing in src/ has changed")
        return
    folder = database()
    sources = compiled(folder)
    there = sorted(path for path in SOURCES.rglob("*.cc") if changed is None or path in changed)
    if not set(there) <= set(sources) and (folder / "CMakeCache.txt").is_file():
        # They may be newer than the database; only the build knows which it leaves out on purpose.
        native.tool(["cmake", folder], hint=f"Removing {folder} starts afresh.")
        sources = compiled(folder)
    files = sources if changed is None else choose(changed, set(sources))
    if left_out := [path.relative_to(ROOT).as_posix() for path in there if path not in sources]:
        note(f"clang-tidy: not compiled in {folder} and left out: {', '.join(left_out)}")
    note(f"clang-tidy: {len(files)} of {len(sources)} files of src/")
    look_at(files, folder)

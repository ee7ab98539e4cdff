"""Running commands: each is printed, and a failure becomes an error that says what to do."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from . import orphans

# After Ctrl-C, which reaches what was started, too.
GRACE_S = 3.0


class ToolchainError(Exception):
    """A build step failed; the message says what was expected, what was found and what to do."""


def command_line(command: Sequence[str | Path]) -> list[str]:
    """Turns the parts of a command into strings."""
    return [str(part) for part in command]


def run(
    command: Sequence[str | Path],
    *,
    hint: str = "",
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    name: str | None = None,
) -> None:
    """Runs a command with its output on the terminal.

    Args:
        command: program and arguments.
        hint: what the reader should do when it fails; added to the error.
        cwd: working directory, by default the current one.
        environment: variables to add to the current environment.
        name: what the error calls it, where the whole command would be too long to read twice.

    Raises:
        ToolchainError: the command is not there or ends with another code than 0.
    """
    parts = command_line(command)
    print(f"$ {shlex.join(parts)}", flush=True)
    try:
        with subprocess.Popen(parts, cwd=cwd, env=_marked(environment)) as child:
            try:
                code = child.wait()
            except BaseException:
                orphans.end(orphans.MARK, GRACE_S)
                raise
    except FileNotFoundError as error:
        raise ToolchainError(f"Expected to run {parts[0]}; it is not there ({error}). {hint}".strip()) from error
    if code != 0:
        raise ToolchainError(f"{name or f'`{shlex.join(parts)}`'} ended with code {code}. {hint}".strip())


def watched(command: Sequence[str | Path]) -> tuple[int, str]:
    """Runs a command with its output on the terminal; returns its code and what it wrote to its error output."""
    parts = command_line(command)
    print(f"$ {shlex.join(parts)}", flush=True)
    errors = []
    with subprocess.Popen(parts, env=_marked(None), stderr=subprocess.PIPE, text=True, errors="replace") as child:
        try:
            for line in child.stderr or ():
                sys.stderr.write(line)
                errors.append(line)
        except BaseException:
            orphans.end(orphans.MARK, GRACE_S)
            raise
    return child.returncode, "".join(errors)


def output(command: Sequence[str | Path], *, cwd: Path | None = None) -> str | None:
    """Returns what a command prints, stripped, or None if it fails or is not there."""
    try:
        done = subprocess.run(
            command_line(command), cwd=cwd, env=_marked(None), capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def captured(
    command: Sequence[str | Path],
    *,
    hint: str = "",
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Runs a command silently and returns what it prints.

    Args:
        command: program and arguments.
        hint: what the reader should do when it fails; added to the error.
        cwd: working directory, by default the current one.
        environment: variables to add to the current environment.

    Raises:
        ToolchainError: the command ends with another code than 0; ends with its own last words.
    """
    parts = command_line(command)
    done = subprocess.run(parts, cwd=cwd, env=_marked(environment), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        words = "\n".join((done.stderr.strip() or done.stdout.strip()).splitlines()[-12:])
        raise ToolchainError(f"`{shlex.join(parts)}` ended with code {done.returncode}:\n{words}\n{hint}".strip())
    return done.stdout


def _marked(environment: Mapping[str, str] | None) -> dict[str, str]:
    return {**os.environ, **(environment or {}), orphans.VARIABLE: orphans.MARK}


@contextmanager
def stoppable() -> Iterator[None]:
    """Within this block SIGTERM is what Ctrl-C is; either way, and after a full disk, the next step is said.

    Raises:
        ToolchainError: a file cannot be written or read.
    """

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        note("stopped; nothing half-made will be used: run it again")
        raise
    except OSError as error:
        raise ToolchainError(f"{error}. Make room there or make it writable, and run this again.") from error
    finally:
        signal.signal(signal.SIGTERM, before)


def cores() -> int:
    """Returns how many processes may compile at once: $CMAKE_BUILD_PARALLEL_LEVEL, else the usable cores."""
    chosen = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", "")
    return int(chosen) if chosen.isdigit() and chosen != "0" else len(os.sched_getaffinity(0))


def write_json(path: Path | None, content: object) -> None:
    """Writes JSON into a file, unless there is none to write to.

    Raises:
        ToolchainError: the file cannot be written.
    """
    if not path:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ToolchainError(f"Expected to write {path}; {error}.") from error


def is_offline() -> bool:
    """Says whether this session keeps off the network: $THRESHER_OFFLINE, which --offline sets."""
    return os.environ.get("THRESHER_OFFLINE") == "1"


def note(text: str) -> None:
    """Prints a line that says what happens next."""
    print(f"-- {text}", file=sys.stdout, flush=True)

"""Processes that a session started and that outlived it: a killed session leaves pip, Conan or a compiler at work.

Every process that a session starts carries the session's mark in its environment, and a lock's file holds the mark of
the session that has the lock. So the next session can end what would else write beside it.
"""

from __future__ import annotations

import os
import signal
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TextIO

VARIABLE = "SESSION_OF_THRESHER"
# A process's own: a session may be started by the tests of another one.
MARK = uuid.uuid4().hex
_POLITE_S = 10.0


def running(mark: str) -> list[int]:
    """Lists the processes that carry a mark, this one left out."""
    found = []
    wanted = f"{VARIABLE}={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is another user's
            if wanted in (folder / "environ").read_bytes().split(b"\0") and int(folder.name) != os.getpid():
                found.append(int(folder.name))
    return found


def end(mark: str, grace_s: float = 0.0) -> None:
    """Ends the processes that carry a mark: waits for them, then asks them to end, then kills them.

    Args:
        mark: what they carry.
        grace_s: how long they may go on, such as after a Ctrl-C that reached them, too.
    """
    left = _wait(mark, grace_s)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        left = left and _wait(mark, _POLITE_S)


def _wait(mark: str, seconds: float) -> list[int]:
    """Waits until no process carries the mark; returns those that still do."""
    until = time.monotonic() + seconds
    while (left := running(mark)) and time.monotonic() < until:
        time.sleep(0.05)
    return left


def take_over(lock: TextIO) -> list[str]:
    """Ends what the last holder of a lock left behind, and marks the lock as this session's.

    Args:
        lock: the file of the lock, which this process holds.

    Returns:
        The names of what was ended.
    """
    lock.seek(0)
    mark = lock.read().strip()
    names = []
    if mark and mark != MARK:
        for pid in running(mark):
            with suppress(OSError):
                names.append(Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip())
        end(mark)
    _write(lock, MARK)
    return names


def leave(lock: TextIO) -> None:
    """Takes the mark out of a lock: all that the session started has ended."""
    _write(lock, "")


def _write(lock: TextIO, text: str) -> None:
    lock.seek(0)
    lock.truncate()
    lock.write(text)
    lock.flush()

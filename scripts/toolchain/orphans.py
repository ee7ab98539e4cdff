"""Processes that a session started and that outlived it: a killed session leaves pip, Conan or a compiler at work.

Every process that a session starts carries the session's mark in its environment, and beside a lock stands the mark of
the session that has it. So the next session can end what would else write beside it.
"""

from __future__ import annotations

import os
import signal
import time
import uuid
from contextlib import suppress
from pathlib import Path

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


def take_over(holder: Path) -> list[str]:
    """Ends what the last holder of a lock left behind, and marks the lock as this session's.

    Args:
        holder: the file that says whose the lock is, which this process holds.

    Returns:
        The names of what was ended.
    """
    mark = holder.read_text(encoding="utf-8").strip() if holder.exists() else ""
    names = []
    if mark and mark != MARK:
        for pid in running(mark):
            with suppress(OSError):
                names.append(Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip())
        end(mark)
    holder.write_text(MARK, encoding="utf-8")
    return names

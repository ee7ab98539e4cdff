"""Processes that report to a dashboard, many at once: does it keep up?

python tests/python/dashboard_load.py 600                      # prints what it saw in so many seconds
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import random
import re
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from processes import without_settings

from thresher.dashboard.durations import counted
from thresher.dashboard.records import FIELDS, Message, Record

PER_SECOND = 10  # records of a process
PER_MESSAGE = 2  # as thresher.dashboard.report sends them
CALLS = 10  # of a record
_LOOK_S = 0.5  # as the page asks
_AT = {name: place for place, name in enumerate(FIELDS)}


@dataclasses.dataclass(frozen=True)
class Seen:
    """What a load has shown.

    Attributes:
      records: that the processes sent.
      kept: that the file holds at the end.
      calls: that the sums of all runs hold at the end.
      dropped: records that the dashboard gave up.
      behind_s: how late the last message was taken.
      ages_s: of every look, the age of the newest record of the process that was the farthest behind.
      looks_s: of every look, how long the answer took.
      resident: memory of the dashboard in bytes: after a tenth of the time, after half of it, at the end.
      cpu_s: processor time of the dashboard.
      file_bytes: of the history.
    """

    records: int
    kept: int
    calls: int
    dropped: int
    behind_s: float
    ages_s: list[float]
    looks_s: list[float]
    resident: list[int]
    cpu_s: float
    file_bytes: int

    def __str__(self) -> str:
        """The figures in lines."""
        ages = sorted(self.ages_s)
        memory = ", ".join(f"{size / 1e6:.0f}" for size in self.resident)
        return (
            f"{self.records} records sent, {self.kept} in the file ({self.file_bytes / 1e6:.0f} MB), "
            f"{self.dropped} dropped, {self.calls} calls\n"
            f"the last message was taken {self.behind_s:.2f} s late\n"
            f"newest record of the slowest of all processes: {statistics.median(ages):.2f} s old in the middle of "
            f"{len(ages)} looks, {ages[int(0.99 * (len(ages) - 1))]:.2f} s at 99 %, {ages[-1]:.2f} s at most\n"
            f"an answer took {1e3 * statistics.median(self.looks_s):.0f} ms, {1e3 * max(self.looks_s):.0f} ms at most\n"
            f"memory after a tenth, after half, at the end: {memory} MB; {self.cpu_s:.1f} s of processor time"
        )


@contextlib.contextmanager
def running(history: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A dashboard in a process of its own, and its port."""
    command = [sys.executable, "-m", "thresher", "dashboard", "--port", "0", "--history", str(history)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=without_settings())
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        found = re.search(r":(\d+)$", said.strip())
        assert found, f"expected the address of the dashboard, got {said!r}"
        yield process, int(found[1])
    finally:
        process.terminate()
        process.wait(20)


def load(history: Path, seconds: float, processes: int = 100) -> Seen:
    """Lets processes report for so long, looks at them as a page does, and waits until all is in the file."""
    with running(history) as (process, port):
        return asyncio.run(_load(history, process.pid, port, seconds, processes))


async def _load(history: Path, pid: int, port: int, seconds: float, processes: int) -> Seen:
    messages = int(seconds * PER_SECOND / PER_MESSAGE)
    start = time.time() + 0.5
    sending = asyncio.gather(*(_send(port, number, start, messages) for number in range(processes)))
    client = await _Client.open(port)
    ages: list[float] = []
    looks: list[float] = []
    resident: list[int] = []
    newest: dict[str, float] = {}
    after = 0
    while not sending.done():
        asked = time.monotonic()
        live = await client.ask("GET", f"/live?after={after}")
        looks.append(time.monotonic() - asked)
        after = live["last"]
        for one in live["processes"]:
            if one["records"]:
                newest[one["run"]] = one["records"][-1][_AT["time_s"]]
        now = time.time()
        if len(newest) == processes and start + 1 < now < start + seconds:
            ages.append(now - min(newest.values()))
        if len(resident) < 2 and now > start + seconds * (0.1, 0.5)[len(resident)]:
            resident.append(_resident(pid))
        await asyncio.sleep(max(0.0, _LOOK_S - (time.monotonic() - asked)))
    behind = max(await sending)
    resident.append(_resident(pid))
    records = processes * messages * PER_MESSAGE
    while (live := await client.ask("GET", f"/live?after={after}"))["waiting"]:
        await asyncio.sleep(0.1)
    runs = (await client.ask("GET", "/runs"))["runs"]
    with contextlib.closing(sqlite3.connect(history)) as kept_in:
        (kept,) = kept_in.execute("SELECT count(*) FROM records").fetchone()
    ticks = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return Seen(
        records,
        kept,
        sum(run["calls"] for run in runs),
        live["dropped"],
        behind,
        ages,
        looks,
        resident,
        (int(ticks[11]) + int(ticks[12])) / os.sysconf("SC_CLK_TCK"),
        history.stat().st_size,
    )


class _Client:
    """A connection that stays open."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
        self._reader, self._writer, self._port = reader, writer, port

    @classmethod
    async def open(cls, port: int) -> _Client:
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 25), port)

    async def ask(self, method: str, path: str, body: bytes = b"") -> Any:
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\n"
        if body:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        self._writer.write(head.encode() + b"\r\n" + body)
        said = await self._reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", said.lower())
        assert length, said
        answer = json.loads(await self._reader.readexactly(int(length[1])))
        assert said.startswith(b"HTTP/1.1 200"), answer
        return answer


async def _send(port: int, number: int, start: float, messages: int) -> float:
    """Sends what one process would; how late the last message was taken, in seconds."""
    draw = random.Random(number)
    client = await _Client.open(port)
    run, every = uuid.UUID(int=number + 1).hex, PER_MESSAGE / PER_SECOND
    about = {"cpu": "x", "threads": "2", "version": "1"}
    due = start + draw.random() * every
    for _ in range(messages):
        due += every
        await asyncio.sleep(max(0.0, due - time.time()))
        records = []
        for place in range(PER_MESSAGE):
            took = [draw.gauss(5e6, 2e5) for _ in range(CALLS)]
            records.append(
                Record(
                    *(due - (PER_MESSAGE - 1 - place) / PER_SECOND, CALLS, sum(took) / 1e6, 200 << 20, 50 << 20),
                    durations=counted((ns, 1) for ns in took),
                )
            )
        message = Message(run, f"service {number % 10}", 1000 + number, about, tuple(records))
        await client.ask("POST", "/records", json.dumps(message.to_dict()).encode())
    return time.time() - due


def _resident(pid: int) -> int:
    found = re.search(r"^VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), flags=re.MULTILINE)
    assert found
    return int(found[1]) * 1024


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        print(load(Path(folder) / "history.sqlite", float(sys.argv[1])))

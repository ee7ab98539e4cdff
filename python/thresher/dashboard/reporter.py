"""What a running process does to be seen on a dashboard."""

from __future__ import annotations

import http.client
import json
import os
import sys
import threading
import time
import uuid
from collections import deque
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from thresher.dashboard.durations import counted
from thresher.dashboard.records import MOST_RECORDS, Message, Record

DEFAULT_URL = "http://127.0.0.1:8650"
_MOST_WAITING = 10_000
_CACHE_S = 10.0  # the folder of the cache is looked at this often
_TIMEOUT_S = 2.0
_SEND_S = 0.25  # between messages; records that come faster go together


class Reporter:
    """Reports this process until `close`.

    Attributes:
      run: names this run.
      problem: why the last message did not arrive, None where it did.
      dropped: records that went because the dashboard did not take them for too long.
    """

    def __init__(self, url: str, name: str, every_s: float, profile_url: str | None) -> None:
        """Starts to report; use ``thresher.dashboard.report``."""
        from thresher import _engine, profiler, startup
        from thresher.profiler.energy import EnergyMeter

        startup.initialize()
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"url: expected an address such as {DEFAULT_URL}, got {url!r}")
        if not 0.05 <= every_s <= 60:
            raise ValueError(f"every_s: expected 0.05 to 60 seconds, got {every_s}")
        self.run = uuid.uuid4().hex
        self.problem: str | None = None
        self.dropped = 0
        self._engine: Any = _engine
        self._address = (parts.hostname, parts.port or 80)
        self._name, self._every_s = name, every_s
        self._waiting: deque[Record] = deque()
        self._end = threading.Event()
        self._meter = EnergyMeter()
        self._cache: tuple[float, int | None] = (-_CACHE_S, None)
        self._was_on = profiler.is_enabled()
        if not self._was_on:
            profiler.start()
        self._sums = self._totals()
        self._meter.start()
        self._about = {
            "cpu": _engine.cpu_model(),
            "threads": str(_engine.num_threads()),
            "version": _engine.version(),
            **({} if profile_url is None else {"profile": profile_url}),
        }
        self._thread = threading.Thread(target=self._work, name="thresher dashboard", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Sends what there is and ends; the second call does nothing."""
        from thresher import profiler

        if self._end.is_set():
            return
        self._end.set()
        self._thread.join()
        if not self._was_on:
            profiler.stop()

    def _work(self) -> None:
        connection: http.client.HTTPConnection | None = None
        due = sent = time.monotonic()
        while True:
            due += self._every_s
            ended = self._end.wait(max(0.0, due - time.monotonic()))
            self._waiting.append(self._measure())
            while len(self._waiting) > _MOST_WAITING:
                self._waiting.popleft()
                self.dropped += 1
            if ended or time.monotonic() >= sent + _SEND_S - self._every_s / 2:
                sent = time.monotonic()
                connection = self._send(connection)
            if ended:
                break
            due = max(due, time.monotonic() - self._every_s)  # after a stall there is nothing to catch up with
        self._meter.stop()
        if connection is not None:
            connection.close()

    def _measure(self) -> Record:
        from thresher.measure.resident import resident_bytes

        calls, wall_ns, took = self._totals()
        before_calls, before_ns, before_took = self._sums
        self._sums = (calls, wall_ns, took)
        if calls < before_calls:  # somebody has reset the profiler
            before_calls, before_ns, before_took = 0, 0, {}
        new = [(ns, count - before_took.get(ns, 0)) for ns, count in took.items()]
        energy = self._meter.stop()
        self._meter.start()
        if energy["joules"] is None:
            self._about["energy"] = str(energy["reason"])
        return Record(
            time.time(),
            calls - before_calls,
            (wall_ns - before_ns) / 1e6,
            resident_bytes(),
            int(self._engine.allocated_bytes()),
            self._cache_bytes(),
            energy["joules"],
            counted([(ns, count) for ns, count in new if count > 0]),
        )

    def _totals(self) -> tuple[int, int, dict[int, int]]:
        """Calls until now, how long they took together, and how many took how long."""
        summary = self._engine.profile_summary()
        phases = summary["phases"]
        wall_ns = sum(phase["wall_ns"] for phase in phases)
        return sum(phase["calls"] for phase in phases), wall_ns, dict(summary["calls"])

    def _cache_bytes(self) -> int | None:
        from thresher import cache

        looked, known = self._cache
        if time.monotonic() - looked < _CACHE_S:
            return known
        folder = cache.folder()
        size = None
        if folder is not None:
            size = sum(_size(Path(root) / name) for root, _, names in os.walk(folder) for name in names)
        self._cache = (time.monotonic(), size)
        return size

    def _send(self, connection: http.client.HTTPConnection | None) -> http.client.HTTPConnection | None:
        """Sends what waits; the connection to go on with, None after a failure."""
        while self._waiting:
            records = tuple(list(self._waiting)[:MOST_RECORDS])
            message = Message(self.run, self._name, os.getpid(), self._about, records)
            try:
                connection = connection or http.client.HTTPConnection(*self._address, timeout=_TIMEOUT_S)
                body = json.dumps(message.to_dict()).encode()
                connection.request("POST", "/records", body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                said = answer.read()
            except (OSError, http.client.HTTPException) as error:
                self.problem = f"expected a dashboard at {self._address[0]}:{self._address[1]}, got: {error}"
                if connection is not None:
                    connection.close()
                return None
            if answer.status != 200:
                self.problem = f"expected the dashboard to take records, got {answer.status}: {said[:200]!r}"
                return connection
            self.problem = None
            for _ in records:
                self._waiting.popleft()
        return connection


def report(
    name: str | None = None, *, url: str = DEFAULT_URL, every_s: float = 0.25, profile_url: str | None = None
) -> Reporter:
    """Lets a dashboard see this process: latency, throughput, memory, energy, cache.

    >>> import thresher
    >>> reporter = thresher.dashboard.report("my service")
    >>> reporter.close()

    A thread of its own sends a few numbers every quarter of a second. They come from the profiler's sums, which it
    switches on. Where no dashboard answers nothing happens: the records of some 40 minutes wait, and arrive once there
    is one.

    Args:
      name: what the process is called; runs of one name are compared with each other. None: its script.
      url: where the dashboard is.
      every_s: how often, 0.05 to 60 seconds.
      profile_url: a page about this run that the dashboard is to link to, such as that of
        ``thresher.profiler.serve()``.

    Returns:
      What reports, until its ``close()``.

    Raises:
      ValueError: an address or a time that cannot be used.
    """
    script = Path(sys.argv[0]).name if sys.argv and sys.argv[0] not in ("", "-c", "-m") else "python"
    return Reporter(url, name or script, every_s, profile_url)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0

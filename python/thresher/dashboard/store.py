"""The dashboard's history: a SQLite file, and what is live in memory."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
import threading
import time
from collections import Counter, deque
from pathlib import Path
from typing import Any

from thresher.dashboard.durations import from_text, percentiles, to_text
from thresher.dashboard.records import FIELDS, Message, Record

SCHEMA_VERSION = 2
LIVE_SECONDS = 60.0
ENDED_SECONDS = 5.0  # a process that has said nothing for so long runs no longer
MOST_LIVE = 1200  # records of one run in memory: of the last minute, and no more than these
MOST_RUNS = 1000  # in memory
DEFAULT_RECORDS = 1_000_000  # in the file, some 140 MB; the oldest go first
MOST_WAITING = 200_000  # records that wait while the file cannot be written
_FLUSH_S = 0.5
_CLOSE_S = 5.0  # how long the end waits for a file that cannot be written
_BUSY_MS = 200

_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS runs (
  id TEXT PRIMARY KEY, name TEXT NOT NULL, pid INTEGER NOT NULL, about TEXT NOT NULL,
  first_s REAL NOT NULL, last_s REAL NOT NULL, calls INTEGER NOT NULL, busy_ms REAL NOT NULL, joules REAL,
  durations TEXT
);
CREATE TABLE IF NOT EXISTS records (run TEXT NOT NULL, {", ".join(f"{name} REAL" for name in FIELDS)});
CREATE INDEX IF NOT EXISTS records_of_run ON records (run, time_s);
CREATE INDEX IF NOT EXISTS runs_by_name ON runs (name, first_s);
"""


class StoreError(OSError):
    """The history cannot be opened; the message says why and what to do."""


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """A run of a process, summed up.

    Attributes:
      id: names it.
      name: of the process.
      pid: of the process.
      about: what is the same all the time.
      first_s: its first record, in seconds since the Unix epoch.
      last_s: its last one.
      calls: of compiled models.
      busy_ms: how long these took together.
      joules: energy of the machine; None where it is not known.
      durations: of the calls, as counts by step.
    """

    id: str
    name: str
    pid: int
    about: dict[str, str]
    first_s: float
    last_s: float
    calls: int
    busy_ms: float
    joules: float | None
    durations: dict[int, int] = dataclasses.field(default_factory=dict)

    @property
    def latency_ms(self) -> float | None:
        """The mean of its calls."""
        return self.busy_ms / self.calls if self.calls else None

    def to_dict(self) -> dict[str, Any]:
        """What JSON can hold."""
        data = dataclasses.asdict(self)
        del data["durations"]
        return {**data, "latency_ms": self.latency_ms, **percentiles(self.durations)}


class _Live:
    """A run in memory."""

    def __init__(self, message: Message) -> None:
        self.head = message.head()
        self.last_s = 0.0
        self._records: deque[tuple[int, Record]] = deque()  # of the last minute, by number
        self._durations: Counter[int] = Counter()  # of these

    def add(self, number: int, record: Record) -> None:
        """Takes a record; records are numbered in the order they come."""
        self.last_s = record.time_s
        self._records.append((number, record))
        for step, count in record.durations:
            self._durations[step] += count
        self.forget(record.time_s - LIVE_SECONDS)

    def rows(self, after: int = 0) -> list[list[Any]]:
        """The records that came after that number, in the order of FIELDS."""
        found = []
        for number, record in reversed(self._records):
            if number <= after:
                break
            found.append(record.row())
        return found[::-1]

    def percentiles(self) -> dict[str, float | None]:
        """Of the calls in the last minute."""
        return percentiles(self._durations)

    def forget(self, before_s: float) -> None:
        """Drops the records before a time, and what is too much."""
        while self._records and (self._records[0][1].time_s < before_s or len(self._records) > MOST_LIVE):
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        for step, count in self._records.popleft()[1].durations:
            self._durations[step] -= count
            if not self._durations[step]:
                del self._durations[step]


class Store:
    """Takes records from any thread; writes them in a thread of its own.

    Where the file cannot be written (it is locked, the disk is full) records wait in memory, and `problem` says why;
    they are written as soon as that is possible. At most MOST_WAITING wait: then the oldest are dropped and counted.
    """

    def __init__(self, path: Path, *, most_records: int = DEFAULT_RECORDS) -> None:
        """Opens the history.

        Args:
          path: the file; it and its folder are made if they do not exist.
          most_records: that the file keeps; the oldest go first, the sums of their runs stay.

        Raises:
          StoreError: it cannot be opened, or is no history of this version.
        """
        self.path = path
        self.problem: str | None = None
        self.dropped = 0
        self._reason = ""  # of the problem
        self._most_records = most_records
        self._live: dict[str, _Live] = {}
        self._taken = 0  # records, ever
        self._waiting: deque[tuple[Message, Record]] = deque()
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._end = threading.Event()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = self._open()
        except (OSError, sqlite3.Error) as error:
            raise StoreError(
                f"{path}: expected a file for the history, got: {error}; choose another one with --history"
            ) from error
        self._thread = threading.Thread(target=self._work, name="thresher history", daemon=True)
        self._thread.start()

    def add(self, message: Message) -> None:
        """Takes the records of a message."""
        with self._lock:
            live = self._live.get(message.run)
            if live is None:
                live = self._live[message.run] = _Live(message)
                while len(self._live) > MOST_RUNS:
                    oldest = min(self._live, key=lambda run: self._live[run].last_s)
                    del self._live[oldest]
            live.head = message.head()
            for record in message.records:
                self._taken += 1
                live.add(self._taken, record)
                self._waiting.append((message, record))
            while len(self._waiting) > MOST_WAITING:
                self._waiting.popleft()
                self.dropped += 1

    def live(self, after: int = 0, now_s: float | None = None) -> tuple[list[dict[str, Any]], int]:
        """The processes that said something just now, by name, with what they said in the last minute.

        Args:
          after: only records with a greater number.
          now_s: the time, in seconds since the Unix epoch; None: now.

        Returns:
          The processes; and the number of the latest record, for the next question.
        """
        now_s = time.time() if now_s is None else now_s
        with self._lock:
            if after > self._taken:  # the page is older than this server
                after = 0
            found = []
            for run, live in list(self._live.items()):
                live.forget(now_s - LIVE_SECONDS)
                if live.last_s >= now_s - ENDED_SECONDS:
                    found.append({**live.head, "records": live.rows(after), "percentiles": live.percentiles()})
                elif live.last_s < now_s - LIVE_SECONDS:
                    del self._live[run]  # its history is in the file
            taken = self._taken
        return sorted(found, key=lambda one: (one["name"], one["pid"])), taken

    def runs(self, limit: int = 200) -> list[Run]:
        """The latest runs, the newest first.

        Raises:
          StoreError: the file cannot be read.
        """
        rows = self._read(
            "SELECT id, name, pid, about, first_s, last_s, calls, busy_ms, joules, durations FROM runs "
            "ORDER BY first_s DESC LIMIT ?",
            (limit,),
        )
        # Runs are rows but for what is text in the file.
        return [Run(*(*row[:3], json.loads(row[3]), *row[4:9], from_text(row[9]))) for row in rows]

    def history(self, run: str, limit: int = 2000) -> list[list[Any]]:
        """The latest records of a run, in the order of FIELDS, the oldest first.

        Raises:
          StoreError: the file cannot be read.
        """
        query = f"SELECT {', '.join(FIELDS)} FROM records WHERE run = ? ORDER BY time_s DESC LIMIT ?"
        return [list(row) for row in reversed(self._read(query, (run, limit)))]

    def count(self) -> int:
        """How many records the file has."""
        return int(self._read("SELECT count(*) FROM records", ())[0][0])

    def waiting(self) -> int:
        """How many records are not in the file yet."""
        with self._lock:
            return len(self._waiting)

    def flush(self) -> bool:
        """Writes what waits; whether nothing waits any more."""
        with self._writing:
            with self._lock:
                batch = list(self._waiting)
            if batch:
                try:
                    self._write(batch)
                except sqlite3.Error as error:
                    self._reason = str(error)
                    self.problem = f"the history {self.path} is not written: {error}; records wait in memory"
                    return False
                with self._lock:
                    # What was dropped meanwhile had been written: it stood in front.
                    written = {id(record) for _, record in batch}
                    while self._waiting and id(self._waiting[0][1]) in written:
                        self._waiting.popleft()
            self.problem = None
            return True

    def close(self) -> None:
        """Writes what waits, trying for some seconds, and closes the file; the second call does nothing.

        Raises:
          StoreError: something could not be written, and is lost.
        """
        if self._end.is_set():
            return
        self._end.set()
        self._thread.join()
        end = time.monotonic() + _CLOSE_S
        while not self.flush() and time.monotonic() < end:
            time.sleep(_BUSY_MS / 1000)
        self._connection.close()
        if self._waiting:
            raise StoreError(
                f"{self.path}: expected to write {len(self._waiting)} records before the end, got: {self._reason}; "
                "they are lost; make room or end what holds the file before the next one"
            )

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=_BUSY_MS / 1000, check_same_thread=False, isolation_level=None)
        try:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version == 1:
                connection.execute("ALTER TABLE runs ADD COLUMN durations TEXT")
            elif version not in (0, SCHEMA_VERSION):
                raise sqlite3.DatabaseError(f"it is of version {version}, expected {SCHEMA_VERSION}")
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.executescript(_SCHEMA)
            connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
        except BaseException:
            connection.close()
            raise
        return connection

    def _read(self, query: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        try:
            with self._writing:
                return self._connection.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise StoreError(f"{self.path}: expected the history, got: {error}; try again") from error

    def _write(self, batch: list[tuple[Message, Record]]) -> None:
        sums: dict[str, tuple[Message, list[Record]]] = {}
        for message, record in batch:
            sums.setdefault(message.run, (message, []))[1].append(record)
        execute = self._connection.execute
        execute("BEGIN IMMEDIATE")
        try:
            self._connection.executemany(
                f"INSERT INTO records VALUES ({', '.join('?' * (1 + len(FIELDS)))})",
                [(message.run, *record.row()) for message, record in batch],
            )
            for message, records in sums.values():
                joules = [record.joules for record in records if record.joules is not None]
                kept = execute("SELECT durations FROM runs WHERE id = ?", (message.run,)).fetchone()
                durations = Counter(from_text(kept[0] if kept else None))
                for record in records:
                    durations.update(dict(record.durations))
                execute(
                    "INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET "
                    "durations = excluded.durations, "
                    "about = excluded.about, last_s = max(last_s, excluded.last_s), calls = calls + excluded.calls, "
                    "busy_ms = busy_ms + excluded.busy_ms, "
                    "joules = CASE WHEN excluded.joules IS NULL THEN joules "
                    "ELSE coalesce(joules, 0) + excluded.joules END",
                    (
                        message.run,
                        message.name,
                        message.pid,
                        json.dumps(message.about),
                        min(record.time_s for record in records),
                        max(record.time_s for record in records),
                        sum(record.calls for record in records),
                        sum(record.busy_ms or 0.0 for record in records),
                        sum(joules) if joules else None,
                        to_text(durations),
                    ),
                )
            # Rows are numbered in the order they came: the file holds the latest.
            execute("DELETE FROM records WHERE rowid <= (SELECT max(rowid) FROM records) - ?", (self._most_records,))
            execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                execute("ROLLBACK")
            raise

    def _work(self) -> None:
        while not self._end.wait(_FLUSH_S):
            self.flush()

"""The dashboard: records, history, regressions, what a process reports."""

from __future__ import annotations

import json
import math
import random
import sqlite3
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from dashboard_load import Seen, load
from hypothesis import given
from hypothesis import strategies as st

starlette = pytest.importorskip("starlette")

from thresher.dashboard.app import create_app  # noqa: E402
from thresher.dashboard.durations import counted, from_text, percentiles, to_text  # noqa: E402
from thresher.dashboard.records import FIELDS, Message, MessageError, Record, parse  # noqa: E402
from thresher.dashboard.regressions import find_regressions  # noqa: E402
from thresher.dashboard.store import ENDED_SECONDS, LIVE_SECONDS, MOST_LIVE, Run, Store, StoreError  # noqa: E402
from thresher.web.running import Server, bind, url_of  # noqa: E402


def message(run: str = "a" * 32, name: str = "service", records: int = 1, **values: Any) -> Message:
    now = time.time()
    given = {"calls": 2, "busy_ms": 10.0, "memory_bytes": 1 << 20, "durations": counted([(4e6, 1), (6e6, 1)]), **values}
    made = tuple(Record(now - (records - i) / 10, **given) for i in range(records))
    return Message(run, name, 7, {"cpu": "x", "threads": "2", "version": "1"}, made)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "history.sqlite")
    yield made
    made.close()


class Running:
    """A dashboard that answers."""

    def __init__(self, store: Store) -> None:
        self.store = store
        bound = bind("127.0.0.1", 0)
        self.url = url_of(bound)
        self._server = Server(create_app(store), drain=lambda: None, abort=lambda: None, shutdown_s=0.5)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [bound]}, daemon=True)
        self._thread.start()
        eventually(lambda: self._server.started)

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=5) as answer:  # noqa: S310
            return json.loads(answer.read())

    def post(self, data: Any, **headers: str) -> Any:
        request = urllib.request.Request(  # noqa: S310
            f"{self.url}/records", json.dumps(data).encode(), {"Content-Type": "application/json", **headers}
        )
        with urllib.request.urlopen(request, timeout=5) as answer:  # noqa: S310
            return json.loads(answer.read())

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(10)


@pytest.fixture
def dashboard(store: Store) -> Iterator[Running]:
    running = Running(store)
    yield running
    running.close()


def eventually(check: Callable[[], Any], seconds: float = 20.0) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := check():
            return found
        time.sleep(0.02)
    raise AssertionError("it did not happen")


# ---- records ----


def test_a_message_survives_the_way() -> None:
    sent = message(records=3)
    assert parse(json.loads(json.dumps(sent.to_dict()))) == sent


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"run": "../../etc"}, "run: expected 32 hexadecimal digits"),
        ({"name": ""}, "name: expected a text"),
        ({"name": "x" * 201}, "name: expected a text"),
        ({"pid": True}, "pid: expected the number of a process"),
        ({"about": {"a": 1}}, "about: expected at most 20 texts"),
        ({"records": "no"}, "records: expected a list"),
        ({"records": [[0, 0, 0, 0, 0, 0, 0, []]] * 1001}, "records: expected a list of at most 1000"),
        ({"records": [[1, 2]]}, "records: expected lists of 8: time_s"),
        ({"records": [[None, 0, 0, 0, 0, 0, 0, []]]}, "expected time_s to be a number"),
        ({"records": [[1, -1, 0, 0, 0, 0, 0, []]]}, "expected calls to be a number of at least 0, got '-1'"),
        ({"records": [[1, 1, float("nan"), 0, 0, 0, 0, []]]}, "expected busy_ms to be a number"),
        ({"records": [[1, 1, 0, 0, 0, 0, 0, None]]}, "expected durations to be a list, got None"),
        ({"records": [[1, 1, 0, 0, 0, 0, 0, [[1]]]]}, "expected durations to be pairs of a step"),
        ({"records": [[1, 1, 0, 0, 0, 0, 0, [[1.5, 1]]]]}, "expected durations to be pairs of a step"),
        ({"records": [[1, 1, 0, 0, 0, 0, 0, [[1, 0]]]]}, "expected durations to be pairs of a step"),
        ({"records": [[1, 1, 0, 0, 0, 0, 0, [[3841, 1]]]]}, "a step from 0 to 3840, each once and in order"),
        ({"records": [[1, 1, 0, 0, 0, 0, 0, [[5, 1], [5, 1]]]]}, "a step from 0 to 3840, each once and in order"),
    ],
)
def test_a_bad_message_says_what_was_expected(change: dict[str, Any], expected: str) -> None:
    with pytest.raises(MessageError, match=expected):
        parse({**message().to_dict(), **change})


# ---- history ----


def test_records_are_live_at_once_and_in_the_file_soon(store: Store, tmp_path: Path) -> None:
    store.add(message(records=3))
    (live,), last = store.live()
    assert last == 3 and store.live(after=2)[0][0]["records"] == live["records"][2:]
    assert store.live(after=4)[0][0]["records"] == live["records"], "a page of an earlier server"
    assert (live["name"], live["pid"], len(live["records"])) == ("service", 7, 3)
    assert store.live(now_s=time.time() + ENDED_SECONDS - 1) == store.live()
    assert store.live(now_s=time.time() + ENDED_SECONDS + 1)[0] == [], "it has ended"
    assert store._live and store.live(now_s=time.time() + LIVE_SECONDS + 1)[0] == [] and not store._live
    assert store.flush()
    store.add(message(records=2, joules=1.5))
    store.close()
    again = Store(tmp_path / "history.sqlite")
    (run,) = again.runs()
    assert (run.calls, run.busy_ms, run.joules, run.latency_ms) == (10, 50.0, 3.0, 5.0)
    assert len(again.history("a" * 32)) == 5 and again.history("b" * 32) == []
    again.close()


def test_the_file_keeps_the_latest_records(tmp_path: Path) -> None:
    store = Store(tmp_path / "h", most_records=100)
    for i in range(5):
        store.add(message(records=50, calls=i))
        assert store.flush()
    assert store.count() == 100
    assert {row[FIELDS.index("calls")] for row in store.history("a" * 32)} == {3, 4}
    assert store.runs()[0].calls == 50 * (0 + 1 + 2 + 3 + 4), "the sums stay"
    store.close()


def test_a_locked_file_loses_nothing(store: Store) -> None:
    other = sqlite3.connect(store.path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    store.add(message(records=4))
    assert not store.flush()
    assert store.problem is not None and "is not written: database is locked" in store.problem
    assert store.waiting() == 4 and len(store.live()[0][0]["records"]) == 4
    other.execute("ROLLBACK")
    other.close()
    assert store.flush() and store.problem is None and store.waiting() == 0
    assert store.count() == 4 and store.runs()[0].calls == 8


def test_a_full_disk_loses_nothing(store: Store) -> None:
    assert store.flush()
    (pages,) = store._connection.execute("PRAGMA page_count").fetchone()
    store._connection.execute(f"PRAGMA max_page_count={pages}")  # no page more, as on a full disk
    store.add(message(records=900))
    store.add(message(records=900))
    assert not store.flush()
    assert store.problem is not None and "database or disk is full" in store.problem and store.waiting() == 1800
    store._connection.execute("PRAGMA max_page_count=1000000")
    assert store.flush() and store.count() == 1800 and store.runs()[0].calls == 3600


def test_the_end_waits_for_a_locked_file(tmp_path: Path) -> None:
    store = Store(tmp_path / "h")
    other = sqlite3.connect(tmp_path / "h", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN EXCLUSIVE")
    store.add(message(records=4))
    threading.Timer(0.8, other.execute, ("ROLLBACK",)).start()
    store.close()
    assert Store(tmp_path / "h").count() == 4
    other.close()


def test_what_cannot_be_written_before_the_end_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thresher.dashboard.store._CLOSE_S", 0.1)
    store = Store(tmp_path / "h")
    store.add(message(records=4))
    with sqlite3.connect(tmp_path / "h", isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        store.add(message(records=3))
        wanted = "h: expected to write [37] records before the end, got: database is locked; they are lost"
        with pytest.raises(StoreError, match=wanted):
            store.close()
        store.close()
        with pytest.raises(StoreError, match="h: expected a file for the history, got: database is locked"):
            Store(tmp_path / "h")
        other.execute("ROLLBACK")
    other.close()


def test_what_waits_is_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thresher.dashboard.store.MOST_WAITING", 10)
    with store._writing:
        for i in range(5):
            store.add(message(records=4, calls=i))
        assert (store.waiting(), store.dropped) == (10, 10)
    assert store.flush()
    assert {row[1] for row in store.history("a" * 32)} == {2, 3, 4}


def test_a_file_that_is_no_history_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database at all, but long enough to be looked at" * 100)
    with pytest.raises(StoreError, match="text: expected a file for the history, got: file is not a database"):
        Store(tmp_path / "text")
    newer = sqlite3.connect(tmp_path / "newer")
    newer.execute("PRAGMA user_version=9")
    newer.close()
    with pytest.raises(StoreError, match="it is of version 9, expected 2"):
        Store(tmp_path / "newer")
    with pytest.raises(StoreError, match="expected a file for the history"):
        Store(tmp_path / "text" / "below")


def test_percentiles_of_the_last_minute_and_of_a_whole_run(store: Store, tmp_path: Path) -> None:
    now = time.time()

    def called(ago_s: float, *pairs: tuple[float, int]) -> None:
        durations = counted([(ms * 1e6, n) for ms, n in pairs])
        record = Record(now - ago_s, sum(n for _, n in pairs), 1.0, durations=durations)
        store.add(Message("a" * 32, "service", 7, {}, (record,)))

    called(90.0, (50.0, 100))
    called(2.0, (1.0, 600), (2.0, 300))
    called(1.0, (2.0, 80), (40.0, 20))
    (live,), _ = store.live(now_s=now)
    assert live["percentiles"] == pytest.approx({"p50_ms": 1.0, "p95_ms": 2.0, "p99_ms": 40.0}, rel=6e-3)
    (live,), _ = store.live(now_s=now + 2.0)
    assert live["percentiles"]["p50_ms"] == pytest.approx(1.0, rel=6e-3)
    assert store.flush()
    called(0.5, (3.0, 900))
    assert store.flush()
    (run,) = store.runs()
    assert sum(run.durations.values()) == 2000
    data = run.to_dict()
    assert [data[name] for name in ("p50_ms", "p95_ms", "p99_ms")] == pytest.approx([3.0, 40.0, 50.0], rel=6e-3)


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=400))
def test_percentiles_are_those_of_the_durations_within_a_step(times: list[float]) -> None:
    counts = dict(counted([(ms * 1e6, 1) for ms in times]))
    assert sum(counts.values()) == len(times) and from_text(to_text(counts)) == counts
    found = percentiles(counts)
    for percent in (50, 95, 99):
        exact = sorted(times)[math.ceil(percent * len(times) / 100) - 1]
        assert found[f"p{percent}_ms"] == pytest.approx(exact, rel=6e-3)


def test_no_calls_have_no_percentiles() -> None:
    assert percentiles({}) == {"p50_ms": None, "p95_ms": None, "p99_ms": None}
    assert from_text("[1]") == from_text("{") == from_text(None) == {}


def test_a_history_of_before_goes_on(tmp_path: Path) -> None:
    older = sqlite3.connect(tmp_path / "h")
    older.executescript(
        "CREATE TABLE runs (id TEXT PRIMARY KEY, name TEXT NOT NULL, pid INTEGER NOT NULL, about TEXT NOT NULL, "
        "first_s REAL NOT NULL, last_s REAL NOT NULL, calls INTEGER NOT NULL, busy_ms REAL NOT NULL, joules REAL);"
        f"INSERT INTO runs VALUES ('{'a' * 32}', 'service', 7, '{{}}', 1, 2, 3, 30, NULL); PRAGMA user_version=1;"
    )
    older.close()
    store = Store(tmp_path / "h")
    store.add(message(records=2))
    assert store.flush()
    (run,) = store.runs()
    assert (run.calls, run.latency_ms) == (7, 50 / 7) and sum(run.durations.values()) == 4
    store.close()


# ---- regressions ----


def run_of(latency_ms: float, number: int, name: str = "service", **about: str) -> Run:
    known = {"cpu": "x", "threads": "2", **about}
    return Run(uuid.uuid4().hex, name, number, known, float(number), number + 1.0, 100, 100 * latency_ms, None)


def test_a_slower_run_is_found() -> None:
    runs = [run_of(10 + 0.01 * i, i) for i in range(5)]
    assert find_regressions(runs) == []
    slow = run_of(13, 9)
    (found,) = find_regressions([slow, *runs])
    assert found.run == slow and len(found.base) == 5
    assert found.slower_percent == pytest.approx(29.7, abs=0.2) and found.noise_percent < 1


def test_noise_is_learned_from_repeats() -> None:
    draw = random.Random(1)
    noisy = [run_of(10 * draw.uniform(0.8, 1.25), i) for i in range(8)]
    quiet = [run_of(10, i) for i in range(8)]
    new = run_of(11.5, 9)
    assert find_regressions([*noisy, new]) == []
    assert [one.run for one in find_regressions([*quiet, new])] == [new]


def test_only_what_is_alike_is_compared() -> None:
    fast = [run_of(10, i) for i in range(4)]
    assert find_regressions([*fast[:2], run_of(20, 9)]) == [], "two runs are too few"
    assert find_regressions([*fast, run_of(20, 9, threads="1")]) == []
    assert find_regressions([*fast, run_of(20, 9, name="another")]) == []
    idle = Run("f" * 32, "service", 1, {"cpu": "x", "threads": "2"}, 9.0, 9.5, 3, 600.0, None)
    assert find_regressions([*fast, idle]) == [], "three calls say nothing"
    faster = [*fast, run_of(5, 9)]
    assert find_regressions(faster) == []


# ---- over HTTP ----


def test_what_is_posted_is_shown(dashboard: Running) -> None:
    assert dashboard.post(message(records=3).to_dict()) == {"taken": 3}
    live = dashboard.get("/live")
    assert live["fields"] == list(FIELDS) and live["problem"] is None
    assert [len(one["records"]) for one in live["processes"]] == [3]
    dashboard.store.flush()
    runs = dashboard.get("/runs")
    assert runs["runs"][0]["calls"] == 6 and runs["regressions"] == []
    assert len(dashboard.get(f"/runs/{'a' * 32}")["records"]) == 3
    with urllib.request.urlopen(dashboard.url, timeout=5) as answer:  # noqa: S310
        assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_strangers_are_refused(dashboard: Running) -> None:
    for headers, status in (
        ({"Origin": "http://evil.example"}, 403),
        ({"Host": "evil.example"}, 403),
        ({"Content-Type": "text/plain"}, 415),
    ):
        with pytest.raises(urllib.error.HTTPError) as refused:
            dashboard.post(message().to_dict(), **headers)
        assert refused.value.code == status
    with pytest.raises(urllib.error.HTTPError) as refused:
        dashboard.post({"run": "x"})
    assert refused.value.code == 400 and b"expected 32 hexadecimal digits" in refused.value.read()
    with pytest.raises(urllib.error.HTTPError) as missing:
        dashboard.get("/runs/nobody")
    assert missing.value.code == 404
    assert dashboard.store.live() == ([], 0)
    for query in ("after=x", "after=-1", "after=1&after=2"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            dashboard.get(f"/live?{query}")
        assert refused.value.code == 400 and b"expected the number that the last answer gave" in refused.value.read()


def test_memory_holds_the_last_minute_and_no_more_than_so_many_records(store: Store) -> None:
    now = time.time()
    for ago in (130.0, 56.0, 0.0):
        made = tuple(Record(now - ago + i / 100, 1, 1.0, durations=((9, 1),)) for i in range(900))
        store.add(Message("a" * 32, "service", 7, {}, made))
    (live,), last = store.live(now_s=now + 9)
    assert last == 2700 and len(live["records"]) == MOST_LIVE == 1200
    assert live["percentiles"]["p50_ms"] is not None
    assert store._live["a" * 32]._durations == {9: 1200}
    (live,), _ = store.live(now_s=now + 13.5)
    assert len(live["records"]) == 900, "those of before are older than a minute now"


def check_load(seen: Seen, seconds: float) -> None:
    """Nothing is lost, nothing waits, and memory has an end."""
    assert seen.records == int(1000 * seconds) == seen.kept and seen.calls == 10 * seen.records
    assert seen.dropped == 0 and seen.behind_s < 1
    assert max(seen.resident) < 500e6


@pytest.mark.release_build  # how much memory that takes
def test_many_processes(tmp_path: Path) -> None:
    seen = load(tmp_path / "history.sqlite", 3)
    check_load(seen, 3)
    assert seen.ages_s and min(seen.ages_s) < 1, "a loaded machine may be late now and then"


@pytest.mark.thorough
def test_many_processes_for_ten_minutes(tmp_path: Path) -> None:
    seen = load(tmp_path / "history.sqlite", 600)
    check_load(seen, 600)
    assert sorted(seen.ages_s)[int(0.99 * len(seen.ages_s))] < 1
    assert seen.resident[-1] < 1.1 * seen.resident[1], "from half time on it does not grow"


# ---- what a process reports ----


def test_a_process_is_seen_within_a_second(dashboard: Running) -> None:
    torch = pytest.importorskip("torch")
    import thresher
    from thresher import profiler

    model = thresher.compile(torch.nn.Linear(64, 64).eval())
    x = torch.randn(4, 64)
    with torch.no_grad():
        model(x)
    reporter = thresher.dashboard.report("mine", url=dashboard.url, every_s=0.1, profile_url="http://127.0.0.1:1/page")
    try:
        with torch.no_grad():
            for _ in range(50):
                model(x)
        called = time.monotonic()
        (seen,) = eventually(
            lambda: [one for one in dashboard.get("/live")["processes"] if sum(r[1] for r in one["records"]) >= 50]
        )
        assert time.monotonic() - called < 5, "a loaded machine may take longer than the second it takes otherwise"
        assert seen["name"] == "mine" and seen["about"]["profile"] == "http://127.0.0.1:1/page"
        last = dict(zip(FIELDS, seen["records"][-1], strict=True))
        assert last["memory_bytes"] > 1 << 20 and last["engine_bytes"] >= 64 * 64 * 4
        assert (last["joules"] is None) == ("energy" in seen["about"])
    finally:
        reporter.close()
        reporter.close()
    assert not profiler.is_enabled()
    dashboard.store.flush()
    (run,) = dashboard.store.runs()
    assert run.calls == 50 and run.latency_ms is not None and 0 < run.latency_ms < 1000
    assert sum(run.durations.values()) == 50, "every call is counted, none of those before"
    data = run.to_dict()
    assert 0 < data["p50_ms"] <= data["p95_ms"] <= data["p99_ms"] <= run.busy_ms


def test_a_process_without_a_dashboard_goes_on(store: Store) -> None:
    import thresher

    bound = bind("127.0.0.1", 0)
    url = url_of(bound)
    bound.close()
    reporter = thresher.dashboard.report("lonely", url=url, every_s=0.05)
    eventually(lambda: reporter.problem)
    assert "expected a dashboard at 127.0.0.1" in str(reporter.problem)
    reporter.close()


def test_wrong_addresses() -> None:
    import thresher

    with pytest.raises(ValueError, match=r"url: expected an address such as http://127\.0\.0\.1:8650, got 'ftp://x'"):
        thresher.dashboard.report(url="ftp://x")
    with pytest.raises(ValueError, match=r"every_s: expected 0\.05 to 60 seconds, got 0"):
        thresher.dashboard.report(every_s=0)

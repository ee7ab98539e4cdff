"""The profiler of a running process over HTTP."""

from __future__ import annotations

import gzip
import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import run_python

_engine = pytest.importorskip("thresher._engine")

from thresher import profiler  # noqa: E402 - the engine may be missing


def ask(url: str, method: str = "GET", **headers: str) -> tuple[int, str, bytes]:
    # The address is the one that the server under test gave.
    request = urllib.request.Request(url, method=method, headers=headers)  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
            return answer.status, answer.headers["Content-Type"], answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read()


def ask_json(url: str, method: str = "GET", **headers: str) -> tuple[int, Any]:
    code, type_, body = ask(url, method, **headers)
    assert type_ == "application/json"
    return code, json.loads(body)


@pytest.fixture
def server() -> Iterator[Any]:
    profiler.reset()
    running = profiler.serve()
    yield running
    running.close()
    profiler.stop()
    profiler.reset()


def test_a_recording_from_start_to_page(server: Any) -> None:
    code, status = ask_json(f"{server.url}/status")
    assert code == 200
    assert status["recording"] is False
    code, status = ask_json(f"{server.url}/start?trace=1", "POST")
    assert (code, status["recording"], status["trace"]["running"]) == (200, True, True)
    now = _engine.profile_now_ns()
    for i in range(10):
        _engine.profile_record("forward", "linear", now + 10 * i, now + 10 * i + 5)
    code, type_, text = ask(f"{server.url}/report")
    assert (code, type_) == (200, "text/plain; charset=utf-8")
    assert b"linear" in text
    code, report = ask_json(f"{server.url}/report?format=json")
    assert report["records"] == 10
    code, status = ask_json(f"{server.url}/stop", "POST")
    assert (status["recording"], status["trace"]["running"], status["warnings"]) == (False, False, [])
    code, _, trace = ask(f"{server.url}/trace")
    assert trace.startswith(b"THRTRACE")
    assert code == 200
    code, type_, chrome = ask(f"{server.url}/trace.json.gz")
    assert type_ == "application/gzip"
    assert any(event.get("name") == "linear" for event in json.loads(gzip.decompress(chrome))["traceEvents"])
    code, type_, page = ask(f"{server.url}/page")
    assert type_ == "text/html; charset=utf-8"
    assert page.lower().startswith(b"<!doctype html>")
    ask(f"{server.url}/reset", "POST")
    assert profiler.collect().records == 0


def test_what_cannot_be_done_is_said(server: Any) -> None:
    code, answer = ask_json(f"{server.url}/nowhere")
    assert code == 404
    assert "POST /start" in answer["error"]
    code, answer = ask_json(f"{server.url}/start")
    assert code == 405
    assert answer["error"] == "expected POST /start; got GET /start"
    assert not profiler.is_enabled(), "reading changes nothing"
    code, answer = ask_json(f"{server.url}/report?format=poem")
    assert code == 409
    assert "expected one of text, json, csv" in answer["error"]
    assert ask_json(f"{server.url}/start?trace=1", "POST")[0] == 200
    code, answer = ask_json(f"{server.url}/start?trace=1", "POST")
    assert code == 409
    assert "got one running" in answer["error"]
    code, listed = ask_json(f"{server.url}/")
    assert set(listed) >= {"GET /report", "POST /start", "POST /stop", "GET /page"}


def test_web_pages_are_refused(server: Any) -> None:
    for headers in ({"Origin": "http://elsewhere"}, {"Sec-Fetch-Site": "cross-site"}):
        assert ask_json(f"{server.url}/start", "POST", **headers)[0] == 403
    assert not profiler.is_enabled()


def test_ports() -> None:
    with pytest.raises(ValueError, match="from 0 to 65535"):
        profiler.serve(70000)
    first = profiler.serve()
    try:
        assert first.address[0] == "127.0.0.1"
        with pytest.raises(OSError):
            profiler.serve(first.address[1])
    finally:
        first.close()
    profiler.serve(first.address[1]).close()
    with pytest.warns(UserWarning, match="whoever reaches"):
        profiler.serve(host="0.0.0.0").close()  # noqa: S104 - the warning is what is tested


def test_several_at_once(server: Any) -> None:
    codes: list[int] = []
    threads = [threading.Thread(target=lambda: codes.append(ask(f"{server.url}/report")[0])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codes == [200] * 8


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


SCRIPT = """
import json, os, urllib.request
import thresher
url = f"http://127.0.0.1:{os.environ['THRESHER_PROFILE_PORT']}/status"
print(json.load(urllib.request.urlopen(url))["recording"])
"""


def test_the_environment_opens_a_port(tmp_path: Path) -> None:
    done = run_python(SCRIPT, THRESHER_PROFILE_PORT=str(free_port()))
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = run_python("import thresher; print('ran')", THRESHER_PROFILE_PORT=str(taken.getsockname()[1]))
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert "cannot be reached over HTTP" in done.stderr

"""thresher serve when clients leave, queues are full, engines die, and when it ends."""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
from pathlib import Path

import pytest
from serving import serve_command, serving, write_model

pytest.importorskip("uvicorn")

_LONG = {"prompt": "the cat", "max_tokens": 400, "ignore_eos": True, "temperature": 0}
_RUNNING, _WAITING, _USED = "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"

# A server whose engine sleeps in a step, or dies, once a file says so; slow enough to be watched in between.
_FRAGILE = """
import sys, time, pathlib
from thresher.llm import LLM
from thresher.serve import Service, create_app
from thresher.web.running import Server, bind, url_of

folder, orders, shutdown_s = sys.argv[1], pathlib.Path(sys.argv[2]), float(sys.argv[3])
with LLM(folder, precision="fp32", max_batch=2, max_waiting=2, num_threads=1, max_length=500) as llm:
    run, next_step = llm.runner.run, llm.engine._scheduler.next_step

    def step(work):
        time.sleep(0.02)
        while (orders / "stall").exists():
            time.sleep(0.01)
        return run(work)

    def choose():
        if (orders / "die").exists():
            raise RuntimeError("as ordered")
        return next_step()

    llm.runner.run, llm.engine._scheduler.next_step = step, choose
    service = Service(llm, "tiny", stall_s=0.5)
    bound = bind("127.0.0.1", 0)
    ready = lambda: print(f"tiny at {url_of(bound)}/v1", flush=True)
    life = dict(drain=service.drain, abort=service.abort, shutdown_s=shutdown_s, ready=ready)
    Server(create_app(service), **life).run([bound])
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def fragile(folder, tmp_path):
    with serving(["-c", _FRAGILE, folder, tmp_path, "30"], ends_well=False) as running:
        yield running


def _open(server, body, path="/v1/completions"):
    """Sends a request and leaves the answer unread."""
    data = json.dumps(body).encode()
    kind = f"Content-Type: application/json\r\nContent-Length: {len(data)}"
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{kind}\r\n\r\n"
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    connection.sendall(head.encode() + data)
    return connection


def _in_thread(server, body, answers):
    thread = threading.Thread(target=lambda: answers.append(server.request("POST", "/v1/completions", body)))
    thread.start()
    return thread


@pytest.mark.parametrize("stream", [False, True])
def test_who_leaves_frees_pages_within_a_step(fragile, stream):
    connection = _open(fragile, {**_LONG, "stream": stream})
    fragile.wait_for(lambda m: m[_RUNNING] == 1 and m[_USED] > 0 and m["thresher:steps_total"] > 3, "an answer")
    if stream:
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
    connection.close()
    before = fragile.metrics()["thresher:steps_total"]
    after = fragile.wait_idle()
    # One step may be under way when the client leaves, and one ends while the first metrics are read.
    assert after["thresher:steps_total"] - before <= 2
    assert after["vllm:generation_tokens_total"] < 100
    assert after["vllm:request_success_total"] == 1  # counted as aborted


def test_who_leaves_the_queue_is_forgotten(fragile):
    running = [_open(fragile, _LONG) for _ in range(2)]
    fragile.wait_for(lambda m: m[_RUNNING] == 2, "two answers")
    queued = _open(fragile, _LONG)
    fragile.wait_for(lambda m: m[_WAITING] == 1, "one in the queue")
    queued.close()
    fragile.wait_for(lambda m: m[_WAITING] == 0, "an empty queue", seconds=2)
    assert fragile.metrics()[_RUNNING] == 2
    for connection in running:
        connection.close()
    fragile.wait_idle()


def test_a_full_queue_is_429_and_those_before_are_answered(fragile):
    body = {**_LONG, "max_tokens": 20}
    answers: list = []
    threads = []
    for number in range(4):
        threads.append(_in_thread(fragile, body, answers))
        fragile.wait_for(lambda m, n=number: m[_RUNNING] + m[_WAITING] == n + 1, f"{number + 1} requests")
    status, error, headers = fragile.request("POST", "/v1/completions", body)
    assert status == 429 and int(headers["retry-after"]) >= 1
    assert error["error"]["code"] == "queue_full" and error["error"]["type"] == "requests"
    for thread in threads:
        thread.join()
    assert [status for status, _, _ in answers] == [200] * 4
    assert len({answer["choices"][0]["text"] for _, answer, _ in answers}) == 1
    assert fragile.wait_idle()["thresher:request_refused_total"] == 1


def test_a_dead_engine_is_said_and_nobody_waits(fragile, tmp_path):
    assert fragile.request("GET", "/health")[:2] == (200, {"status": "ok", "running": 0, "waiting": 0})
    answers: list = []
    threads = [_in_thread(fragile, _LONG, answers) for _ in range(2)]
    stream = _open(fragile, {**_LONG, "stream": True})
    fragile.wait_for(lambda m: m[_RUNNING] == 2 and m[_WAITING] == 1, "answers")
    (tmp_path / "die").touch()
    for thread in threads:
        thread.join(timeout=10)
        assert not thread.is_alive()
    assert [(status, body["error"]["code"]) for status, body, _ in answers if status != 200] == [(503, "dead")] * 2
    assert b"as ordered" in stream.recv(1 << 16)
    status, health, _ = fragile.request("GET", "/health")
    assert (status, health["status"]) == (503, "dead")
    status, error, _ = fragile.request("POST", "/v1/completions", _LONG)
    assert status == 503 and "one that is dead" in error["error"]["message"]
    assert fragile.metrics()["thresher:engine_up"] == 0


def test_a_step_that_never_ends_is_said(fragile, tmp_path):
    (tmp_path / "stall").touch()
    answers: list = []
    thread = _in_thread(fragile, {**_LONG, "max_tokens": 5}, answers)
    end = time.monotonic() + 5
    while fragile.request("GET", "/health")[0] == 200:
        assert time.monotonic() < end, "a stalled engine was called well for 5 seconds"
        time.sleep(0.05)
    status, error, _ = fragile.request("POST", "/v1/completions", _LONG)
    assert (status, error["error"]["code"]) == (503, "stalled")
    (tmp_path / "stall").unlink()
    thread.join()
    assert answers[0][0] == 200 and fragile.request("GET", "/health")[0] == 200


def test_the_end_waits_for_open_requests(folder, tmp_path):
    with serving(["-c", _FRAGILE, folder, tmp_path, "30"]) as server:
        answers: list = []
        thread = _in_thread(server, {**_LONG, "max_tokens": 100}, answers)
        server.wait_for(lambda m: m[_RUNNING] == 1, "an answer")
        server.process.send_signal(signal.SIGTERM)
        thread.join()
        assert answers[0][0] == 200 and answers[0][1]["usage"]["completion_tokens"] == 100
        assert server.process.wait(timeout=20) == 0


def test_the_end_gives_back_what_takes_too_long(folder, tmp_path):
    with serving(["-c", _FRAGILE, folder, tmp_path, "0.5"]) as server:
        answers: list = []
        thread = _in_thread(server, _LONG, answers)
        stream = _open(server, {**_LONG, "stream": True})
        server.wait_for(lambda m: m[_RUNNING] == 2, "answers")
        server.process.send_signal(signal.SIGTERM)
        begin = time.monotonic()
        thread.join(timeout=15)
        assert answers[0][0] == 503 and answers[0][1]["error"]["code"] == "shutting_down"
        text = b""
        while part := stream.recv(1 << 16):
            text += part
        assert b'"code": "shutting_down"' in text
        assert server.process.wait(timeout=20) == 0
        assert 0.4 < time.monotonic() - begin < 10


def test_a_port_that_is_taken_is_said_before_the_model_is_loaded(folder):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        begin = time.monotonic()
        command = [*serve_command(folder), "--port", port]
        with (
            pytest.raises(AssertionError, match=f"expected an address that is free, got 127.0.0.1:{port}"),
            serving(command),
        ):
            pass
        assert time.monotonic() - begin < 20


def test_what_the_command_refuses(folder, tmp_path):
    (tmp_path / "empty").touch()
    for options, text in [
        (["--tls-key", "x.pem"], "expected --tls-certificate and --tls-key together"),
        (["--api-key-file", str(tmp_path / "empty")], "expected a key a line"),
        (["--api-key-file", str(tmp_path / "none")], "expected a file of keys"),
        (["--speculation", "x"], "speculation: expected 'ngram' or None"),
        (
            ["--tls-key", str(tmp_path / "empty"), "--tls-certificate", str(tmp_path / "empty")],
            "expected a certificate",
        ),
    ]:
        with pytest.raises(AssertionError, match=text), serving(serve_command(folder, *options)):
            pass
    with pytest.raises(AssertionError, match="expected a model at"), serving(serve_command(Path("nowhere"))):
        pass

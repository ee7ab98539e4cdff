"""thresher bench-serve against a server of ours, and against ones that fail."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import xml.etree.ElementTree as ET

import pytest
from processes import without_settings
from serving import serve_command, serving, write_model

pytest.importorskip("uvicorn")

from thresher.serve.bench import summary
from thresher.serve.client import Timing


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = write_model(tmp_path_factory.mktemp("model"))
    options = ["--max-batch", "2", "--max-waiting", "2", "--max-length", "500", "--api-key", "secret"]
    with serving(serve_command(folder, *options)) as running:
        yield running


def _bench(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "thresher", "bench-serve", *map(str, arguments)],
        env=without_settings(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_load_is_measured(server, tmp_path):
    file, picture = tmp_path / "load.json", tmp_path / "load.svg"
    before = server.request("GET", "/metrics", headers={"x-api-key": "secret"})[1]
    done = _bench(
        *(server.url, "--concurrency", 2, "--requests", 6, "--prompt", 10, "--output", 8, "--ignore-eos"),
        *("--api-key", "secret", f"--json={file}", "--picture", picture),
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())
    assert (found["requests"], found["succeeded"], found["refused"], found["failed"]) == (6, 6, 0, 0)
    assert found["output_tokens"] == 48 and found["prompt_tokens"] > 6 * 10 and found["model"] == "tiny"
    assert "vllm:generation_tokens_total" in before
    assert 0 < found["ttft_ms"]["p50"] <= found["ttft_ms"]["p99"] <= found["latency_ms"]["max"]
    assert found["output_tokens_per_s"] == pytest.approx(48 / found["duration_s"])
    assert "to the first token" in done.stdout and "6 answered, 0 refused (429), 0 failed" in done.stdout
    drawn = ET.fromstring(picture.read_text())
    assert len([element for element in drawn.iter() if element.tag.endswith("polyline")]) == 2


def test_too_much_is_refused_and_nothing_fails(server, tmp_path):
    prompts = tmp_path / "prompts"
    prompts.write_text("the cat sat\nthe moon looked\n")
    options = ("--rate", 200, "--duration", 1, "--output", 60, "--ignore-eos", "--prompts", prompts, "--json")
    done = _bench(server.url, "--api-key", "secret", *options)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["refused"] > 0 and found["failed"] == 0 and found["succeeded"] > 0
    assert found["succeeded"] + found["refused"] == found["requests"]


def test_a_failure_is_exit_code_1(server):
    wrong = _bench(server.url, "--api-key", "wrong", "--model", "tiny", "--requests", 2)
    assert wrong.returncode == 1 and "2 of 2 requests failed" in wrong.stderr and "API key" in wrong.stderr
    nobody = _bench("http://127.0.0.1:9/v1", "--model", "x", "--requests", 1)
    assert nobody.returncode == 1 and "1 of 1 requests failed" in nobody.stderr
    assert _bench("ftp://x", "--model", "x").returncode == 1


def test_a_stream_that_breaks_off_has_failed():
    def answer(listener):
        for _ in range(2):
            connection, _ = listener.accept()
            connection.recv(1 << 16)
            head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
            part = b'data: {"choices": [{"delta": {"content": "x"}}]}\n\n'
            connection.sendall(head + f"{len(part):x}\r\n".encode() + part + b"\r\n")
            connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, args=(listener,))
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        done = _bench(url, "--model", "x", "--requests", 2, "--concurrency", 1, "--json")
        thread.join()
    assert done.returncode == 1 and json.loads(done.stdout)["failed"] == 2
    assert "expected an answer to its end, got a part of it" in done.stderr


def test_percentiles_are_those_of_the_answers():
    timings = [Timing(0.0, 200, "", [0.1 * i, 0.1 * i + 0.01, 0.1 * i + 0.03], 1.0 * i, 5, 3) for i in range(1, 5)]
    timings += [Timing(0.0, 429, "full", [], 9.0), Timing(0.0, 500, "broken", [], 10.0)]
    found = summary(timings)
    assert (found.requests, found.succeeded, found.refused, found.failed) == (6, 4, 1, 1)
    assert found.errors == {"broken": 1} and found.duration_s == 10.0
    assert found.ttft_ms["p50"] == pytest.approx(250) and found.ttft_ms["max"] == pytest.approx(400)
    assert found.inter_token_ms["mean"] == pytest.approx(15)
    assert found.output_tokens == 12 and found.requests_per_s == pytest.approx(0.4)

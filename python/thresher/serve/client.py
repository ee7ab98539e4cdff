"""Asks a server for one streamed answer and notes when its parts come."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import ssl
import time
from typing import Any
from urllib.parse import urlsplit

from thresher.serve.http_answer import HttpAnswer, request_head


@dataclasses.dataclass(slots=True)
class Timing:
    """What came of one request.

    Attributes:
      begun: when it was sent, in seconds of time.monotonic().
      status: of HTTP; 0: there was no answer.
      error: what went wrong; "": nothing.
      times: when each part with text came.
      ended: when all had come.
      prompt_tokens: of the prompt, as the server counts; 0: it does not say.
      output_tokens: of the answer; parts, where the server does not say.
      finish_reason: why the answer ended.
    """

    begun: float = 0.0
    status: int = 0
    error: str = ""
    times: list[float] = dataclasses.field(default_factory=list)
    ended: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    finish_reason: str | None = None

    @property
    def refused(self) -> bool:
        """Whether the server said that it has too much to do."""
        return self.status == 429

    @property
    def failed(self) -> bool:
        """Whether the request was neither answered nor refused."""
        return bool(self.error) and not self.refused


class Target:
    """A server to ask."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        """Names a server.

        Args:
          url: of its API, with /v1.
          api_key: is sent along.

        Raises:
          ValueError: the address is none.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"url: expected http://HOST:PORT/v1, got {url!r}")
        self.host, self.port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
        self._netloc, self._path = parts.netloc.rpartition("@")[2], parts.path.rstrip("/")
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._key = api_key

    async def get(self, path: str) -> tuple[int, bytes]:
        """Status and body of a page."""
        answer = _Answer()
        await self._exchange("GET", path, b"", answer, streamed=False)
        return answer.status, bytes(answer.body)

    async def stream(self, path: str, body: dict[str, Any], timeout_s: float = 600) -> Timing:
        """Sends a request that streams its answer, and waits for its end; never raises but for what is not HTTP's."""
        timing = Timing(begun=time.monotonic())
        answer = _Answer()
        try:
            await asyncio.wait_for(
                self._exchange("POST", path, json.dumps(body).encode(), answer, streamed=True), timeout_s
            )
            timing.status = answer.status
            if answer.status != 200:
                timing.error = bytes(answer.body[:300]).decode("utf-8", "replace")
            elif answer.error:
                timing.error = answer.error
            elif not answer.finished:
                timing.error = "the stream ended without [DONE]"
        except (OSError, asyncio.TimeoutError, ValueError) as error:
            timing.status, timing.error = answer.status, f"{type(error).__name__}: {error}"
        timing.times, timing.ended = answer.times, time.monotonic()
        timing.prompt_tokens, timing.finish_reason = answer.prompt_tokens, answer.finish_reason
        timing.output_tokens = answer.output_tokens or len(answer.times)
        return timing

    async def _exchange(self, method: str, path: str, body: bytes, answer: _Answer, *, streamed: bool) -> None:
        reader, writer = await asyncio.open_connection(self.host, self.port, ssl=self._tls)
        try:
            headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
            writer.write(request_head(method, f"{self._path}{path}", self._netloc, len(body), headers) + body)
            got = HttpAnswer(reader)
            await got.begin()
            answer.status = got.status
            while part := await got.part():
                answer.add(part, streamed=streamed)
        finally:
            writer.close()


class _Answer:
    """What has come of an answer."""

    def __init__(self) -> None:
        self.status = 0
        self.finished = False
        self.body = bytearray()
        self.times: list[float] = []
        self.error = ""
        self.prompt_tokens = self.output_tokens = 0
        self.finish_reason: str | None = None

    def add(self, data: bytes, *, streamed: bool) -> None:
        self.body += data
        if not streamed or self.status != 200:
            return
        *events, rest = bytes(self.body).replace(b"\r\n", b"\n").split(b"\n\n")
        self.body = bytearray(rest)
        now = time.monotonic()
        for event in events:
            for line in event.split(b"\n"):
                if line.startswith(b"data:"):
                    self._take(line[5:].strip(), now)

    def _take(self, data: bytes, now: float) -> None:
        if data == b"[DONE]":
            self.finished = True
            return
        found = json.loads(data)
        if found.get("error"):
            self.error = str(found["error"].get("message", found["error"]))
        usage = found.get("usage")
        if usage:
            self.prompt_tokens, self.output_tokens = usage["prompt_tokens"], usage["completion_tokens"]
        for choice in found.get("choices") or ():
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            delta = choice.get("delta") or {}
            if choice.get("text") or any(value for name, value in delta.items() if name != "role"):
                self.times.append(now)

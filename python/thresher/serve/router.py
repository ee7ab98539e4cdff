"""The ASGI application in front of several processes that serve the same model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol
from urllib.parse import parse_qs

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector, CollectorRegistry

from thresher.serve.http_answer import HttpAnswer, request_head
from thresher.serve.paths import endpoint_at
from thresher.serve.prefixes import blocks_of_text, preferred
from thresher.serve.workers import Worker, Workers
from thresher.web.errors import ApiError
from thresher.web.exchange import Exchange

PASSED_ON = ("accept", "content-type", "user-agent")  # headers of requests
_PASSED_BACK = ("cache-control", "retry-after", "content-security-policy", "content-disposition", "x-frame-options")
_POLL_S = 1.0
_PATIENCE_S = 5.0  # that a process has to say how it is
_OF_ONE = ("/start_profile", "/stop_profile", "/profiles")  # the first process, or `?process=N`


class Router:
    """Sends each request to the process whose cache has its beginning, unless that has much more to do than others."""

    def __init__(self, workers: Workers, *, max_body_bytes: int) -> None:
        """Stands before processes.

        Args:
          workers: that listen already.
          max_body_bytes: of a request.
        """
        self._workers = workers.all
        self._max_body_bytes = max_body_bytes
        self._draining = False
        self._poll: asyncio.Task[None] | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answers a request."""
        if self._poll is None:
            self._poll = asyncio.ensure_future(self._poll_all())
        path = scope["path"]
        handler = {"/health": self._health, "/ping": self._health, "/metrics": self._metrics}.get(path, self._pass_on)
        await endpoint_at(path, handler, self._max_body_bytes)(scope, receive, send)

    def drain(self) -> None:
        """Takes no requests from now on."""
        self._draining = True

    # ---- requests ----

    async def _pass_on(self, exchange: Exchange) -> None:
        body = await exchange.body()
        await exchange.while_listening(self._relay(exchange, body))

    async def _relay(self, exchange: Exchange, body: bytes) -> None:
        if self._draining:
            raise ApiError(503, "the server is shutting down; try again", code="draining")
        blocks = blocks_of_text(body)
        workers = self._one(exchange) if exchange.scope["path"].startswith(_OF_ONE) else self._order(blocks)
        for number, worker in enumerate(workers):
            worker.open += 1
            worker.asked += 1
            try:
                async with _ask(worker, exchange, body) as answer:
                    if answer.status == 429 and number + 1 < len(workers):
                        continue  # another one may have room
                    worker.seen.add(blocks)
                    await relay(answer, exchange)
                    return
            except (OSError, EOFError):
                raise ApiError(
                    503, f"expected an answer of process {worker.number}, got its end; try again", code="process_lost"
                ) from None
            finally:
                worker.open -= 1

    def _order(self, blocks: Sequence[bytes]) -> list[Worker]:
        """The processes that may be asked, the best first.

        Raises:
          ApiError: there is none.
        """
        up = [worker for worker in self._workers if worker.up and worker.answering]
        if not up:
            raise ApiError(503, "expected a process that answers, got none", code="dead", headers={"retry-after": "1"})
        up.sort(key=lambda worker: worker.asked)
        order = preferred([worker.open for worker in up], [worker.seen.match(blocks) for worker in up])
        return [up[number] for number in order]

    def _one(self, exchange: Exchange) -> list[Worker]:
        """The process that the query names.

        Raises:
          ApiError: there is no such one.
        """
        given = parse_qs(exchange.scope["query_string"].decode("latin-1")).get("process", ["0"])[-1]
        found = [worker for worker in self._workers if str(worker.number) == given]
        if not found:
            raise ApiError(400, f"process: expected 0 to {len(self._workers) - 1}, got {given[:20]!r}", param="process")
        if not found[0].up:
            raise ApiError(503, f"expected process {given} to answer, got its end; try again", code="process_lost")
        return found

    # ---- the state of all ----

    async def _health(self, exchange: Exchange) -> None:
        found = await asyncio.gather(*map(_state, self._workers))
        well = sum(state["status"] == "ok" for state in found)
        status = "draining" if self._draining else "ok" if well == len(found) else "degraded" if well else "dead"
        data = {
            "status": status,
            **{name: sum(state.get(name, 0) for state in found) for name in ("running", "waiting")},
            "processes": found,
        }
        await exchange.send_json(data, 200 if status in ("ok", "degraded") else 503, {"cache-control": "no-store"})

    async def _metrics(self, exchange: Exchange) -> None:
        registry = CollectorRegistry()
        texts = await asyncio.gather(*map(_metrics_of, self._workers))
        registry.register(_Together(self._workers, texts))
        encode, kind = choose_encoder(exchange.header("accept") or "")
        await exchange.send(200, kind, encode(registry))

    async def _poll_all(self) -> None:
        """Notes who does not say that it is well, so that requests go elsewhere."""
        while True:
            for worker, state in zip(self._workers, await asyncio.gather(*map(_state, self._workers)), strict=True):
                worker.answering = state["status"] == "ok"
            await asyncio.sleep(_POLL_S)


@asynccontextmanager
async def _connected(worker: Worker, request: bytes) -> AsyncIterator[HttpAnswer]:
    """Sends a request and reads the head of the answer; leaving the block cuts the connection."""
    reader, writer = await asyncio.open_unix_connection(str(worker.socket))
    try:
        writer.write(request)
        answer = HttpAnswer(reader)
        await answer.begin()
        yield answer
    finally:
        writer.close()


def _ask(worker: Worker, exchange: Exchange, body: bytes) -> Any:
    """Asks a process what a client asked."""
    scope = exchange.scope
    headers = {name.title(): value for name in PASSED_ON if (value := exchange.header(name)) is not None}
    target = scope["raw_path"].decode("latin-1")
    if scope["query_string"]:
        target += f"?{scope['query_string'].decode('latin-1')}"
    return _connected(worker, request_head(scope["method"], target, "localhost", len(body), headers) + body)


class Answer(Protocol):
    """What another process answers."""

    status: int
    headers: dict[str, str]

    async def part(self) -> bytes:
        """The next part of the body; b"": that was all."""
        ...


async def relay(answer: Answer, exchange: Exchange) -> None:
    """Gives a client the answer of a process: a stream as it comes, all else at its end."""
    kind = answer.headers.get("content-type", "application/octet-stream")
    if kind.startswith("text/event-stream"):
        await exchange.begin_events()
        rest = b""
        while part := await answer.part():
            events, end, rest = (rest + part).rpartition(b"\n\n")  # whole ones, as an error may have to follow
            if end:
                await exchange.send_events(events + end)
        await exchange.end_events(rest)
        return
    headers = {name: answer.headers[name] for name in _PASSED_BACK if name in answer.headers}
    parts = []
    while part := await answer.part():
        parts.append(part)
    await exchange.send(answer.status, kind, b"".join(parts), headers)


async def _state(worker: Worker) -> dict[str, Any]:
    """What a process says of itself, or that it does not."""
    head = {"number": worker.number, "pid": worker.pid, "restarts": max(0, worker.starts - 1)}
    if not worker.up:
        return {**head, "status": "dead"}
    try:
        return {**head, **json.loads(await asyncio.wait_for(_get(worker, "/health"), _PATIENCE_S))}
    except (OSError, ValueError, asyncio.TimeoutError):
        return {**head, "status": "stalled" if worker.up else "dead"}


async def _metrics_of(worker: Worker) -> str:
    try:
        return (await asyncio.wait_for(_get(worker, "/metrics"), _PATIENCE_S)).decode() if worker.up else ""
    except (OSError, ValueError, asyncio.TimeoutError):
        return ""


async def _get(worker: Worker, path: str) -> bytes:
    async with _connected(worker, request_head("GET", path, "localhost", 0)) as answer:
        return await answer.body()


class _Together(Collector):
    """The numbers of all processes, each with the label `process`, and which of them are up."""

    def __init__(self, workers: Sequence[Worker], texts: Sequence[str]) -> None:
        self._workers, self._texts = workers, texts

    def collect(self) -> Any:
        """All of them."""
        families: dict[str, Metric] = {}
        for worker, text in zip(self._workers, self._texts, strict=True):
            for family in text_string_to_metric_families(text):
                whole = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    whole.add_sample(sample.name, {**sample.labels, "process": str(worker.number)}, sample.value)
        yield from families.values()
        up = GaugeMetricFamily("thresher:process_up", "1: the process serves.", labels=["process"])
        starts = CounterMetricFamily("thresher:process_starts", "How often it was started.", labels=["process"])
        for worker in self._workers:
            up.add_metric([str(worker.number)], float(worker.up))
            starts.add_metric([str(worker.number)], worker.starts)
        yield from (up, starts)

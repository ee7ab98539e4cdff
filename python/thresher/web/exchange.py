"""One request and its answer, over ASGI."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any

from thresher.web.errors import ApiError, openai_body

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
ErrorBody = Callable[[ApiError], dict[str, Any]]

_log = logging.getLogger(__name__)


class Exchange:
    """A request that is being answered."""

    def __init__(self, scope: Any, receive: Any, send: Any, max_body_bytes: int = 1 << 20) -> None:
        """Takes a request.

        Args:
          scope: of ASGI.
          receive: of ASGI.
          send: of ASGI.
          max_body_bytes: of the request; a longer one is refused with 413.
        """
        self.scope: Scope = scope
        self._receive: Receive = receive
        self._send: Send = send
        self._max_body_bytes = max_body_bytes
        self.started = False  # the answer has begun
        self.ended = False

    @property
    def path_values(self) -> Mapping[str, str]:
        """What stands for the names in a route's path."""
        values: Mapping[str, str] = self.scope.get("path_params", {})
        return values

    def header(self, name: str) -> str | None:
        """A header of the request."""
        return header_of(self.scope, name)

    async def body(self) -> bytes:
        """The body of the request.

        Raises:
          ApiError: it is too long.
          ConnectionError: the client has left.
        """
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ConnectionResetError("the client has left")
            part: bytes = message.get("body", b"")
            size += len(part)
            if size > self._max_body_bytes:
                raise ApiError(
                    413, f"expected a body of at most {self._max_body_bytes} bytes, got more", code="body_too_large"
                )
            parts.append(part)
            if not message.get("more_body"):
                return b"".join(parts)

    async def json(self) -> dict[str, Any]:
        """The JSON object that the request's body is.

        Raises:
          ApiError: it is none.
          ConnectionError: the client has left.
        """
        kind = (self.header("content-type") or "application/json").partition(";")[0].strip().lower()
        if kind != "application/json":  # a web page could send anything else here without being allowed to
            raise ApiError(415, f"expected Content-Type application/json, got {kind[:80]!r}")
        body = await self.body()
        try:
            found = json.loads(body, parse_constant=_no_number)
        except (ValueError, RecursionError) as error:
            about = "too many brackets" if isinstance(error, RecursionError) else str(error)
            raise ApiError(400, f"expected JSON as the body, got {about}", code="invalid_json") from None
        if not isinstance(found, dict):
            raise ApiError(400, f"expected a JSON object as the body, got {type(found).__name__}", code="invalid_json")
        return found

    async def while_listening(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs `work`, and cancels it when the client leaves; call it once the body is read."""
        task = asyncio.ensure_future(work)
        gone = asyncio.ensure_future(self._until_gone())
        try:
            await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
        finally:
            gone.cancel()
            if not task.done():
                task.cancel()
                await asyncio.wait((task,))
                self.ended = True

    async def send(self, status: int, type_: str, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Answers with a whole body."""
        await self._begin(status, type_, {"content-length": str(len(body)), **(headers or {})})
        await self._send({"type": "http.response.body", "body": body})
        self.ended = True

    async def send_json(self, data: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        """Answers with JSON."""
        await self.send(status, "application/json", json.dumps(data).encode(), headers)

    async def begin_events(self) -> None:
        """Begins a stream of server-sent events."""
        await self._begin(
            200, "text/event-stream; charset=utf-8", {"cache-control": "no-cache", "x-accel-buffering": "no"}
        )

    async def send_events(self, events: bytes) -> None:
        """Sends events, as event() makes them."""
        await self._send({"type": "http.response.body", "body": events, "more_body": True})

    async def end_events(self, last: bytes = b"") -> None:
        """Ends the stream."""
        await self._send({"type": "http.response.body", "body": last})
        self.ended = True

    async def _begin(self, status: int, type_: str, headers: Mapping[str, str]) -> None:
        pairs: Iterable[tuple[str, str]] = (("content-type", type_), *headers.items())
        self.started = True
        await self._send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in pairs],
            }
        )

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass


class Endpoint:
    """An ASGI application that answers one kind of request."""

    def __init__(
        self,
        handler: Callable[[Exchange], Awaitable[None]],
        error_body: ErrorBody = openai_body,
        max_body_bytes: int = 1 << 20,
        stream_error: ErrorBody | None = None,
    ) -> None:
        """Makes a handler an application.

        Args:
          handler: answers; an ApiError that it raises becomes the answer.
          error_body: what an error looks like.
          max_body_bytes: of a request.
          stream_error: what an error looks like in a stream that has begun, where that is another.
        """
        self._handler, self._error_body, self._max_body_bytes = handler, error_body, max_body_bytes
        self._stream_error = stream_error or error_body

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answers a request."""
        exchange = Exchange(scope, receive, send, self._max_body_bytes)
        try:
            await self._handler(exchange)
        except ConnectionError:
            return
        except ApiError as error:
            await self._fail(exchange, error)
        except Exception:
            _log.exception("%s failed", scope.get("path"))
            await self._fail(exchange, ApiError(500, "expected an answer, got an error inside the server; see its log"))

    async def _fail(self, exchange: Exchange, error: ApiError) -> None:
        if exchange.ended:
            return
        body = (self._stream_error if exchange.started else self._error_body)(error)
        if exchange.started:  # a stream: the status has been sent
            await exchange.end_events(event(body, "error" if "type" in body else None))
        else:
            await exchange.send_json(body, error.status, error.headers)


def event(data: Any, name: str | None = None) -> bytes:
    """A server-sent event with JSON as its data."""
    head = "" if name is None else f"event: {name}\n"
    return f"{head}data: {json.dumps(data)}\n\n".encode()


def header_of(scope: Any, name: str) -> str | None:
    """A header of a request; of several with the same name the first."""
    wanted = name.lower().encode("latin-1")
    for key, value in scope["headers"]:
        if key == wanted:
            return str(value.decode("latin-1"))
    return None


def _no_number(text: str) -> float:
    raise ValueError(f"{text}, which is no number of JSON")

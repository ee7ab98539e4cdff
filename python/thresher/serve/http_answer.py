"""The answer of a server of HTTP, as it comes."""

from __future__ import annotations

import asyncio

import httptools

_READ = 1 << 16


class HttpAnswer:
    """An answer that is read from a connection.

    Attributes:
      status: of HTTP; 0: it has not begun.
      headers: by their names in small letters; of several with a name the last.
    """

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self._reader = reader
        self._parser = httptools.HttpResponseParser(self)
        self._headed = self._whole = False
        self._parts: list[bytes] = []

    async def begin(self) -> None:
        """Waits for status and headers.

        Raises:
          ConnectionError: they do not come, or are no HTTP.
        """
        while not self._headed:
            await self._more()

    async def part(self) -> bytes:
        """The next part of the body; b"": that was all.

        Raises:
          ConnectionError: it ends before its end, or is no HTTP.
        """
        while not self._parts:
            if self._whole:
                return b""
            await self._more()
        found = b"".join(self._parts)
        self._parts.clear()
        return found

    async def body(self) -> bytes:
        """All of the body that has not been read.

        Raises:
          ConnectionError: it ends before its end, or is no HTTP.
        """
        parts = []
        while part := await self.part():
            parts.append(part)
        return b"".join(parts)

    async def _more(self) -> None:
        data = await self._reader.read(_READ)
        if data:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserError as error:
                raise ConnectionResetError(f"expected an answer of HTTP, got {error}") from None
        elif self._headed and not self.headers.keys() & {"content-length", "transfer-encoding"}:
            self._whole = True  # its end is that of the connection
        else:
            raise ConnectionResetError("expected an answer to its end, got a part of it")

    # ---- what the parser calls ----

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """The body begins."""
        self.status, self._headed = int(self._parser.get_status_code()), True

    def on_body(self, data: bytes) -> None:
        """A part of the body."""
        self._parts.append(data)

    def on_message_complete(self) -> None:
        """The end."""
        self._whole = True


def request_head(method: str, target: str, host: str, length: int, headers: dict[str, str] | None = None) -> bytes:
    """The head of a request with a JSON body of so many bytes, on a connection of its own."""
    own = {"Host": host, "Connection": "close", "Content-Type": "application/json", "Content-Length": str(length)}
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in {**own, **(headers or {})}.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")

"""Requests to the profiler's HTTP server. What they would do is left out: only the answer counts."""

from __future__ import annotations

import io
from unittest import mock

from thresher.profiler import server

HARMLESS = {key: (lambda query: server._json(query), about) for key, (_, about) in server.ROUTES.items()}


class Connection(io.BytesIO):
    """A connection whose other side has sent all it will send, and reads nothing."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.sent = bytearray()

    def makefile(self, mode: str, *_: object) -> io.BytesIO:
        return self

    def sendall(self, data: bytes) -> None:
        self.sent += data

    def settimeout(self, _: object) -> None:
        pass

    def close(self) -> None:
        pass


def run(data: bytes) -> None:
    connection = Connection(data)
    # Only meanwhile: the ordinary tests run this in the process of others.
    with mock.patch.dict(server.ROUTES, HARMLESS):
        server._Handler(connection, ("127.0.0.1", 1), None)  # type: ignore[arg-type]

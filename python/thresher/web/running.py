"""The life of a server: a socket, requests, and an end that loses none of them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import uvicorn

_BACK_STOP_S = 5  # beyond the end of all requests, before connections are cut


class AddressError(OSError):
    """The address cannot be bound."""


def bind(host: str, port: int) -> socket.socket:
    """Takes an address; whoever connects is refused until the server runs.

    Raises:
      AddressError: it is taken, or there is no such one.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, kind, protocol)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind(address)
        except OSError:
            made.close()
            raise
    except OSError as error:
        raise AddressError(f"expected an address that is free, got {host}:{port}: {error.strerror}") from None
    return made


def url_of(bound: socket.socket, *, tls: bool = False) -> str:
    """Where a bound socket is reached."""
    host, port = bound.getsockname()[:2]
    return f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


class Server(uvicorn.Server):
    """Runs an ASGI application until SIGINT or SIGTERM; then takes no new requests and lets the open ones end."""

    def __init__(
        self,
        app: Any,
        *,
        drain: Callable[[], None],
        abort: Callable[[], None],
        shutdown_s: float,
        ready: Callable[[], None] = lambda: None,
        tls_certificate: Path | None = None,
        tls_key: Path | None = None,
        access_log: bool = False,
    ) -> None:
        """Prepares to run.

        Args:
          app: the application.
          drain: is called when the end begins.
          abort: is called when open requests have had their time: they have to answer now.
          shutdown_s: that time.
          ready: is called when the server listens.
          tls_certificate: a file in PEM, for HTTPS.
          tls_key: the same.
          access_log: a line for each request on standard error.

        Raises:
          OSError: a file of TLS cannot be read.
        """
        super().__init__(
            uvicorn.Config(
                app,
                http="httptools",
                loop="uvloop",
                ws="none",
                lifespan="off",
                log_level="info" if access_log else "warning",
                access_log=access_log,
                server_header=False,
                proxy_headers=False,
                ssl_certfile=tls_certificate,
                ssl_keyfile=tls_key,
                timeout_graceful_shutdown=int(shutdown_s) + _BACK_STOP_S,
            )
        )
        self.config.load()
        self._drain, self._abort, self._shutdown_s, self._ready = drain, abort, shutdown_s, ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listens."""
        await super().startup(sockets)
        # What is there now stays: looking through all of it again and again would hold up answers.
        gc.collect()
        gc.freeze()
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends, with all requests answered."""
        self._drain()
        timer = asyncio.get_running_loop().call_later(self._shutdown_s, self._abort)
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Obeys signals; unlike uvicorn it does not raise them again afterwards: the process has ended well."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

"""The profiler of a running process over HTTP, for services that cannot be stopped to be looked at.

thresher.profiler.serve(8642)               # or THRESHER_PROFILE_PORT=8642

curl -X POST localhost:8642/start?trace=1   # record
curl localhost:8642/report                  # what was recorded so far
curl -X POST localhost:8642/stop
curl localhost:8642/page > run.html
"""

from __future__ import annotations

import json
import re
import tempfile
import threading
import warnings
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from thresher.profiler import control

LOOPBACK = ("127.0.0.1", "::1", "localhost")
_TYPES = {"text": "text/plain; charset=utf-8", "json": "application/json", "csv": "text/csv; charset=utf-8"}
_LENGTH = re.compile(r"[0-9]{1,15}")

Query = dict[str, str]
Answer = tuple[str, bytes]  # type and body


class ProfilerServer:
    """Answers requests in a thread of its own until `close`.

    Attributes:
        address: host and port that it listens on.
    """

    def __init__(self, host: str, port: int) -> None:
        """Starts to listen.

        Raises:
            OSError: The port is taken or may not be used.
        """
        self._server = ThreadingHTTPServer((host, port), _Handler)
        self._server.daemon_threads = True
        name, number = self._server.server_address[:2]
        self.address: tuple[str, int] = (str(name), int(number))
        self._thread = threading.Thread(target=self._server.serve_forever, name="thresher profiler", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://{self.address[0]}:{self.address[1]}"

    def close(self) -> None:
        """Ends the thread; the port is free again. The second call does nothing."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def serve(port: int = 0, *, host: str = "127.0.0.1") -> ProfilerServer:
    """Lets other processes of this machine switch the profiler on and off and read what it found.

    Args:
        port: To listen on; 0: any that is free, see ``address`` of the result.
        host: Address to listen on. Whoever reaches it can slow the process down and see its models' names and shapes:
            leave it at this machine's own unless the network is trusted.

    Raises:
        ValueError: The port is not from 0 to 65535.
        OSError: The port is taken or may not be used.
    """
    if not 0 <= port <= 65535:
        raise ValueError(f"profiler server: expected a port from 0 to 65535, got {port}")
    if host not in LOOPBACK:
        warnings.warn(
            f"the profiler answers whoever reaches {host}; expected {LOOPBACK[0]} for this machine", stacklevel=2
        )
    return ProfilerServer(host, port)


def _status(_: Query) -> Answer:
    from thresher import _engine

    trace: dict[str, Any] = _engine.trace_status()
    return _json({"recording": control.is_enabled(), "dropped": _engine.profile_dropped(), "trace": trace})


def _report(query: Query) -> Answer:
    format = query.get("format", "text")
    if format not in _TYPES:
        raise ValueError(f"format: expected one of {', '.join(_TYPES)}, got {format!r}")
    return _TYPES[format], str(control.render(control.collect(), format)).encode()


def _export(suffix: str, type_: str) -> Callable[[Query], Answer]:
    def answer(_: Query) -> Answer:
        with tempfile.TemporaryDirectory(prefix="thresher-") as folder:
            path = Path(folder) / f"profile{suffix}"
            control.export_trace(path)
            return type_, path.read_bytes()

    return answer


def _start(query: Query) -> Answer:
    control.start(trace=query.get("trace", "0") not in ("0", "false", "off", ""))
    return _status(query)


def _stop(query: Query) -> Answer:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        control.stop()
    type_, body = _status(query)
    return type_, _json({**json.loads(body), "warnings": [str(entry.message) for entry in caught]})[1]


def _reset(query: Query) -> Answer:
    control.reset()
    return _status(query)


def _help(_: Query) -> Answer:
    return _json({f"{method} {path}": about for (method, path), (_, about) in ROUTES.items()})


def _json(value: object) -> Answer:
    return _TYPES["json"], (json.dumps(value, indent=2) + "\n").encode()


ROUTES: dict[tuple[str, str], tuple[Callable[[Query], Answer], str]] = {
    ("GET", "/"): (_help, "this list"),
    ("GET", "/status"): (_status, "whether operators are recorded, and the state of the trace"),
    ("POST", "/start"): (_start, "record; ?trace=1 also keeps every record, in memory"),
    ("POST", "/stop"): (_stop, "record no longer; what was recorded stays"),
    ("POST", "/reset"): (_reset, "forget the sums of the operator report"),
    ("GET", "/report"): (_report, "the operator report; ?format=text, json or csv"),
    ("GET", "/trace"): (_export(".thrtrace", "application/octet-stream"), "the trace, for `thresher report`"),
    ("GET", "/trace.json.gz"): (_export(".json.gz", "application/gzip"), "the trace as Chrome JSON"),
    ("GET", "/page"): (_export(".html", "text/html; charset=utf-8"), "the trace as a page"),
}


class _Handler(BaseHTTPRequestHandler):
    server_version = "thresher"
    timeout = 60  # seconds without a byte, after which a client is gone

    def do_GET(self) -> None:
        self._answer("GET")

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length") or "0"
        if not _LENGTH.fullmatch(length):
            self.close_connection = True  # where the next request begins is not known
            self._send(400, *_json({"error": f"expected a Content-Length in bytes, got {length[:20]!r}"}))
            return
        # A body says nothing, but the client wants it read.
        self.rfile.read(min(int(length), 1 << 16))
        self._answer("POST")

    def _answer(self, method: str) -> None:
        try:
            parts = urlsplit(self.path)
        except ValueError as error:
            self._send(400, *_json({"error": f"expected the address of a page, got {self.path[:80]!r}: {error}"}))
            return
        route = ROUTES.get((method, parts.path))
        if route is None:
            known = [m for m, path in ROUTES if path == parts.path]
            wanted = f"{known[0]} {parts.path}" if known else ", ".join(f"{m} {path}" for m, path in ROUTES)
            self._send(405 if known else 404, *_json({"error": f"expected {wanted}; got {method} {parts.path}"}))
            return
        # A page in a browser must not reach the profiler of its reader's machine.
        if self.headers.get("Origin") or self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            self._send(403, *_json({"error": "expected a request that no other web page has made"}))
            return
        query = {name: values[-1] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        try:
            type_, body = route[0](query)
        except (ValueError, OSError) as error:
            self._send(409, *_json({"error": str(error)}))
            return
        self._send(200, type_, body)

    def _send(self, code: int, type_: str, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", type_)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Says nothing: standard error is the program's."""

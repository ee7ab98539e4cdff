"""Who may come in: keys, rates, and requests that other web pages make in a reader's browser."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from typing import Any
from urllib.parse import urlsplit

from thresher.web.errors import ApiError
from thresher.web.exchange import ErrorBody, Exchange, header_of

_MOST_CLIENTS = 10_000


class Guard:
    """ASGI middleware that refuses requests before anything reads them."""

    def __init__(
        self,
        app: Any,
        *,
        keys: Sequence[str] = (),
        open_paths: Collection[str] = (),
        origins: Collection[str] = (),
        loopback: bool = True,
        requests_per_minute: int | None = None,
        free_paths: Collection[str] = (),
        error_body: Callable[[Any], ErrorBody],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Stands before an application.

        Args:
          app: the application.
          keys: one of them has to be sent, as `Authorization: Bearer KEY` or `x-api-key: KEY`; none: anybody may come.
          open_paths: that need no key.
          origins: web pages that may send requests, beside the server's own.
          loopback: the server is bound to this machine alone: names that lead elsewhere are refused, so that a web
            page cannot reach it under a name of its own.
          requests_per_minute: of one key, or without keys of one address; None: any number.
          free_paths: that are not counted.
          error_body: which errors belong to a request's scope.
          clock: seconds.
        """
        self._app = app
        self._keys = [_digest(key) for key in keys]
        self._open, self._origins, self._loopback = frozenset(open_paths), frozenset(origins), loopback
        self._free = frozenset(free_paths)
        self._rates = None if requests_per_minute is None else _Rates(requests_per_minute, clock)
        self._error_body = error_body

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answers a request."""
        if scope["type"] == "http":
            try:
                self._check(scope)
            except ApiError as error:
                await Exchange(scope, receive, send).send_json(
                    self._error_body(scope)(error), error.status, error.headers
                )
                return
        await self._app(scope, receive, send)

    def _check(self, scope: Any) -> None:
        host = header_of(scope, "host") or ""
        if self._loopback and not _is_loopback(host):
            raise ApiError(403, f"expected a name of this machine as Host, got {host[:80]!r}")
        origin = header_of(scope, "origin")
        if origin is not None and origin not in self._origins and urlsplit_host(origin) != host.lower():
            raise ApiError(403, f"expected a request of this server's own page, got one of {origin[:80]!r}")
        if scope["method"] == "OPTIONS":
            return
        client = str((scope.get("client") or ("",))[0])
        if self._keys and scope["path"] not in self._open:
            key = _key(scope)
            if key is None:
                raise ApiError(
                    401,
                    "expected an API key, got none; send `Authorization: Bearer KEY`",
                    code="invalid_api_key",
                    headers={"www-authenticate": "Bearer"},
                )
            digest = _digest(key)
            # All are compared, so that the time says nothing about which one it is.
            if not sum(hmac.compare_digest(digest, known) for known in self._keys):
                raise ApiError(
                    401,
                    "expected an API key that the server knows, got another",
                    code="invalid_api_key",
                    headers={"www-authenticate": "Bearer"},
                )
            client = digest.hex()
        if self._rates is not None and scope["path"] not in self._free:
            wait_s = self._rates.take(client)
            if wait_s:
                raise ApiError(
                    429,
                    f"expected at most {self._rates.per_minute} requests a minute, got more; try again in {wait_s} s",
                    code="rate_limit_exceeded",
                    headers={"retry-after": str(wait_s)},
                )


class _Rates:
    """How many requests each client may still send: a bucket that holds and gets back so many a minute."""

    def __init__(self, per_minute: int, clock: Callable[[], float]) -> None:
        self.per_minute = per_minute
        self._clock = clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # requests, and when that was

    def take(self, client: str) -> int:
        """Takes one; otherwise the seconds until there is one."""
        now = self._clock()
        left, since = self._left.pop(client, (float(self.per_minute), now))
        left = min(float(self.per_minute), left + (now - since) * self.per_minute / 60)
        allowed = left >= 1
        self._left[client] = (left - 1 if allowed else left, now)
        while len(self._left) > _MOST_CLIENTS:
            self._left.popitem(last=False)
        return 0 if allowed else max(1, math.ceil((1 - left) * 60 / self.per_minute))


def _key(scope: Any) -> str | None:
    given = header_of(scope, "authorization")
    if given is not None:
        scheme, _, key = given.partition(" ")
        if scheme.lower() == "bearer" and key.strip():
            return key.strip()
    return header_of(scope, "x-api-key")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def urlsplit_host(origin: str) -> str:
    """The host and port of an origin; "" where it has none."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def is_loopback_address(host: str) -> bool:
    """Whether an address to bind to is reached from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_loopback(host: str) -> bool:
    name = host.rpartition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]
    return name == "" or is_loopback_address(name.lower()) or name.lower().endswith(".localhost")

"""Which API a path belongs to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from thresher.serve.responses import stream_error
from thresher.web.errors import anthropic_body, openai_body
from thresher.web.exchange import Endpoint, ErrorBody, Exchange

OPEN = ("/", "/health", "/ping")  # without a key
UNCOUNTED = (*OPEN, "/metrics")


def error_body_of(path: str) -> ErrorBody:
    """What errors look like there."""
    return anthropic_body if path.startswith("/v1/messages") else openai_body


def endpoint_at(path: str, handler: Callable[[Exchange], Awaitable[None]], max_body_bytes: int) -> Endpoint:
    """What answers there, with errors as its API has them; streams that have begun may have others."""
    error_body = error_body_of(path)
    return Endpoint(handler, error_body, max_body_bytes, stream_error if path == "/v1/responses" else error_body)

"""Which API a path belongs to."""

from __future__ import annotations

from thresher.serve.responses import stream_error
from thresher.web.errors import anthropic_body, openai_body
from thresher.web.exchange import ErrorBody

OPEN = ("/", "/health", "/ping")  # without a key
UNCOUNTED = (*OPEN, "/metrics")


def error_body_of(path: str) -> ErrorBody:
    """What errors look like there."""
    return anthropic_body if path.startswith("/v1/messages") else openai_body


def stream_error_of(path: str) -> ErrorBody:
    """What errors look like in a stream that has begun there."""
    return stream_error if path == "/v1/responses" else error_body_of(path)

"""What is said to a client when a request cannot be answered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    415: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class ApiError(Exception):
    """A request that is answered with an error.

    Attributes:
      status: of HTTP.
      message: for people.
      param: the field of the request that is wrong.
      code: for programs.
      headers: sent along.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    @property
    def kind(self) -> str:
        """The kind of error, in the words that APIs share."""
        return _KINDS.get(self.status, "invalid_request_error" if self.status < 500 else "api_error")


def openai_body(error: ApiError) -> dict[str, Any]:
    """The error as OpenAI's API has it."""
    kind = error.kind
    if error.status in (401, 403, 404, 413):
        kind = "invalid_request_error"
    elif error.status == 429:
        kind = "requests"
    elif error.status >= 500:
        kind = "server_error"
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}}


def anthropic_body(error: ApiError) -> dict[str, Any]:
    """The error as Anthropic's API has it."""
    return {"type": "error", "error": {"type": error.kind, "message": error.message}}

"""The ASGI application."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route

from thresher.llm import LLM
from thresher.serve.chat_completions import ChatCompletions
from thresher.serve.completions import Completions
from thresher.serve.embeddings import Embeddings
from thresher.serve.messages import Messages
from thresher.serve.paths import OPEN, UNCOUNTED, endpoint_at, error_body_of
from thresher.serve.profiles import Profiles
from thresher.serve.rerank import Rerank
from thresher.serve.responses import Responses
from thresher.serve.service import Service
from thresher.serve.simple_endpoints import Health, Metrics, Models, Tokens
from thresher.web.errors import ApiError
from thresher.web.exchange import ErrorBody, Exchange
from thresher.web.guard import Guard
from thresher.web.page import Page

DEFAULT_BODY_BYTES = 16 << 20
_PAGE = Path(__file__).parent / "page.html"


def create_app(
    llm: LLM | Service,
    name: str = "model",
    *,
    api_keys: Sequence[str] = (),
    allow_origins: Sequence[str] = (),
    loopback: bool = True,
    requests_per_minute: int | None = None,
    max_body_bytes: int = DEFAULT_BODY_BYTES,
) -> Any:
    """An ASGI application that serves a model.

    Args:
      llm: the model, or a Service that has it.
      name: as clients call it.
      api_keys: one of them has to be sent; none: anybody may come.
      allow_origins: web pages of other servers that may send requests.
      loopback: names of this machine alone are answered; switch it off where the server is reached by others.
      requests_per_minute: of one key, or without keys of one address; None: any number.
      max_body_bytes: of a request.
    """
    return guarded(
        create_routes(llm if isinstance(llm, Service) else Service(llm, name), max_body_bytes),
        api_keys=api_keys,
        allow_origins=allow_origins,
        loopback=loopback,
        requests_per_minute=requests_per_minute,
    )


def create_routes(service: Service, max_body_bytes: int = DEFAULT_BODY_BYTES) -> Any:
    """The same with nothing before it: whoever reaches it may ask."""

    def route(path: str, handler: Any, method: str) -> Route:
        return Route(path, endpoint_at(path, handler, max_body_bytes), methods=[method])

    models, tokens, messages = Models(service), Tokens(service), Messages(service)
    profiles = Profiles()
    routes = [
        route("/v1/chat/completions", ChatCompletions(service), "POST"),
        route("/v1/completions", Completions(service), "POST"),
        route("/v1/responses", Responses(service), "POST"),
        route("/v1/messages", messages.answer, "POST"),
        route("/v1/messages/count_tokens", messages.count, "POST"),
        route("/v1/embeddings", Embeddings(service), "POST"),
        route("/v1/rerank", Rerank(service), "POST"),
        route("/rerank", Rerank(service), "POST"),
        route("/v1/models", models.all, "GET"),
        route("/v1/models/{name:path}", models.one, "GET"),
        route("/tokenize", tokens.encode, "POST"),
        route("/detokenize", tokens.decode, "POST"),
        route("/health", Health(service), "GET"),
        route("/ping", Health(service), "GET"),
        route("/metrics", Metrics(service), "GET"),
        route("/start_profile", profiles.start, "POST"),
        route("/stop_profile", profiles.stop, "POST"),
        route("/profiles", profiles.all, "GET"),
        route("/profiles/{number}/{file}", profiles.one, "GET"),
        route("/", Page(_PAGE), "GET"),
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: _unknown})


def guarded(
    app: Any,
    *,
    api_keys: Sequence[str] = (),
    allow_origins: Sequence[str] = (),
    loopback: bool = True,
    requests_per_minute: int | None = None,
) -> Any:
    """An application with a door before it; the arguments are those of create_app()."""
    if allow_origins:
        app = CORSMiddleware(app, allow_origins=list(allow_origins), allow_methods=["GET", "POST"], allow_headers=["*"])
    return Guard(
        app,
        keys=api_keys,
        open_paths=OPEN,
        origins=allow_origins,
        loopback=loopback,
        requests_per_minute=requests_per_minute,
        free_paths=UNCOUNTED,
        error_body=_body_for,
    )


def _body_for(scope: Any) -> ErrorBody:
    return error_body_of(scope["path"])


async def _unknown(request: Any, error: Exception) -> Any:
    """Answers for routes that there are not."""
    assert isinstance(error, HTTPException)
    about = "Unknown request URL" if error.status_code == 404 else "Not allowed to"

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        found = ApiError(
            error.status_code,
            f"{about}: {scope['method']} {scope['path'][:200]}. See docs/serving.md for what there is.",
            code="unknown_url" if error.status_code == 404 else "method_not_supported",
        )
        await Exchange(scope, receive, send).send_json(_body_for(scope)(found), error.status_code, error.headers)

    return answer

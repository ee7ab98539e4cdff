"""The dashboard over HTTP."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.routing import Route

from thresher.dashboard.records import FIELDS, MessageError, parse
from thresher.dashboard.regressions import find_regressions
from thresher.dashboard.store import Store, StoreError
from thresher.web.errors import ApiError, openai_body
from thresher.web.exchange import Endpoint, Exchange
from thresher.web.guard import Guard

_FOLDER = Path(__file__).parent / "page"
_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}
_POLICY = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cache-control": "no-cache",
    "x-content-type-options": "nosniff",
}


def create_app(store: Store, *, loopback: bool = True) -> Any:
    """An ASGI application that takes records and shows them.

    Args:
      store: keeps them.
      loopback: names of this machine alone are answered.
    """

    async def take(exchange: Exchange) -> None:
        try:
            message = parse(await exchange.json())
        except MessageError as error:
            raise ApiError(400, str(error)) from None
        store.add(message)
        await exchange.send_json({"taken": len(message.records)})

    async def live(exchange: Exchange) -> None:
        processes, taken = store.live(_after(exchange))
        await exchange.send_json(
            {
                "fields": FIELDS,
                "processes": processes,
                "last": taken,
                "problem": store.problem,
                "waiting": store.waiting(),
                "dropped": store.dropped,
            }
        )

    async def runs(exchange: Exchange) -> None:
        found = _or_503(store.runs)
        regressions = [one.to_dict() for one in find_regressions(found)]
        await exchange.send_json({"runs": [run.to_dict() for run in found], "regressions": regressions})

    async def history(exchange: Exchange) -> None:
        run = exchange.path_values["run"]
        records = _or_503(lambda: store.history(run))
        if not records:
            raise ApiError(404, f"expected the name of a run, got {run[:80]!r}; GET /runs lists them")
        await exchange.send_json({"run": run, "fields": FIELDS, "records": records})

    def page(name: str, kind: str) -> Any:
        async def answer(exchange: Exchange) -> None:
            await exchange.send(200, kind, _file(name), _POLICY)

        return answer

    routes = [
        Route("/records", Endpoint(take, max_body_bytes=1 << 20), methods=["POST"]),
        Route("/live", Endpoint(live), methods=["GET"]),
        Route("/runs", Endpoint(runs), methods=["GET"]),
        Route("/runs/{run}", Endpoint(history), methods=["GET"]),
        *(Route(path, Endpoint(page(*file)), methods=["GET"]) for path, file in _FILES.items()),
    ]
    app: Any = Starlette(routes=routes)
    return Guard(app, loopback=loopback, error_body=lambda scope: openai_body)


def _after(exchange: Exchange) -> int:
    """What the query says of records that the client has."""
    values = parse_qs(exchange.scope["query_string"].decode("latin-1")).get("after", ["0"])
    if len(values) > 1 or not values[0].isdecimal() or len(values[0]) > 18:
        raise ApiError(400, f"after: expected the number that the last answer gave, got {', '.join(values)[:80]!r}")
    return int(values[0])


def _or_503(read: Any) -> Any:
    try:
        return read()
    except StoreError as error:
        raise ApiError(503, str(error)) from None


@cache
def _file(name: str) -> bytes:
    return (_FOLDER / name).read_bytes()

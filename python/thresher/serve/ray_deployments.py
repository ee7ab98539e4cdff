"""What runs in a Ray cluster: a door that reads requests, replicas with the model, and what chooses among these."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

from ray import serve
from ray.exceptions import RayError
from ray.serve.config import RequestRouterConfig
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.request_router import RequestRouter

from thresher.serve.app import create_routes, guarded
from thresher.serve.paths import endpoint_at
from thresher.serve.prefixes import Prefixes, blocks_of_text, preferred
from thresher.serve.router import PASSED_ON, relay
from thresher.serve.served_model import ServedModel
from thresher.web.errors import ApiError
from thresher.web.exchange import Exchange

_LOOK_S = 5.0  # between two looks of Ray at a replica
_MOST_OPEN = 10_000  # requests at the door
_LATER = {"retry-after": "1"}
_OF_ONE = ("/metrics", "/start_profile", "/stop_profile", "/profiles")  # what says nothing of all replicas


def application(
    served: ServedModel,
    *,
    min_replicas: int,
    max_replicas: int,
    cpus: float,
    max_open: int,
    api_keys: Sequence[str],
    requests_per_minute: int | None,
    max_body_bytes: int,
) -> Any:
    """The application: the arguments are those of ray_app(); a replica has `max_open` requests at most."""
    model = serve.deployment(
        Model,
        name="Model",
        ray_actor_options={"num_cpus": cpus},
        max_ongoing_requests=max_open,
        max_queued_requests=max_open,
        autoscaling_config={
            "min_replicas": min_replicas,
            "max_replicas": max_replicas,
            "target_ongoing_requests": max(1, max_open // 2),
        },
        health_check_period_s=_LOOK_S,
        request_router_config=RequestRouterConfig(request_router_class=PrefixRouter),
    )
    door = serve.deployment(
        serve.ingress()(Door), name="Door", ray_actor_options={"num_cpus": 0}, max_ongoing_requests=_MOST_OPEN
    )
    return door.bind(model.bind(served, max_body_bytes), list(api_keys), requests_per_minute, max_body_bytes)


class Model:
    """A replica with the model."""

    def __init__(self, served: ServedModel, max_body_bytes: int) -> None:
        self._service = served.load()
        self._app = create_routes(self._service, max_body_bytes)

    async def ask(self, blocks: Sequence[bytes], scope: dict[str, Any], body: bytes) -> AsyncIterator[Any]:
        """Answers a request: status and headers, then the parts of the body.

        Args:
          blocks: what it begins with; PrefixRouter reads them.
          scope: of ASGI.
          body: all of it.
        """
        messages: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        given = iter([{"type": "http.request", "body": body}])
        gone = asyncio.Event()

        async def receive() -> dict[str, Any]:
            for message in given:
                return message
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            messages.put_nowait(message)

        async def work() -> None:
            try:
                await self._app(scope, receive, send)
            finally:
                messages.put_nowait(None)

        task = asyncio.ensure_future(work())
        try:
            while (message := await messages.get()) is not None:
                if message["type"] == "http.response.start":
                    yield message["status"], {name.decode(): value.decode() for name, value in message["headers"]}
                elif message.get("body"):
                    yield message["body"]
        finally:
            gone.set()  # nobody listens any more, or all has been said
            await task

    def check_health(self) -> None:
        """Lets Ray replace a replica from which no answer would come.

        Raises:
          RuntimeError: it is one.
        """
        condition = self._service.condition
        if condition in ("dead", "stalled"):
            raise RuntimeError(f"expected an engine that answers, got one that is {condition}")

    def __del__(self) -> None:
        """Ends the engine."""
        service = getattr(self, "_service", None)
        if service is not None:
            service.llm.close()


class PrefixRouter(RequestRouter):  # type: ignore[misc]
    """Prefers the replica that was sent the same beginning before."""

    def initialize_state(self, **_: Any) -> None:
        """Knows nothing at first."""
        self._seen: dict[Any, Prefixes] = {}
        self._open: Counter[Any] = Counter()

    async def choose_replicas(self, candidate_replicas: list[Any], pending_request: Any = None) -> list[list[Any]]:
        """Replicas that have room, the best first."""
        blocks = [] if pending_request is None else pending_request.args[0]
        replicas = self.select_available_replicas(candidate_replicas)
        opened = [self._open[replica.replica_id] for replica in replicas]
        matched = [self._of(replica.replica_id).match(blocks) for replica in replicas]
        return [[replicas[number]] for number in preferred(opened, matched)]

    def on_request_routed(self, pending_request: Any, replica_id: Any, result: Any) -> None:
        """Notes what a replica was sent."""
        self._of(replica_id).add(pending_request.args[0])
        self._open[replica_id] += 1
        if len(self._seen) > 2 * len(self.curr_replicas):
            self._seen = {known: seen for known, seen in self._seen.items() if known in self.curr_replicas}
            self._open = Counter({known: count for known, count in self._open.items() if known in self.curr_replicas})

    def on_request_completed(self, replica_id: Any, internal_request_id: str) -> None:
        """Notes that it has one request less."""
        self._open[replica_id] -= 1

    def _of(self, replica_id: Any) -> Prefixes:
        return self._seen.setdefault(replica_id, Prefixes())


class Door:
    """Reads requests, and gives clients what replicas answer."""

    def __init__(
        self, model: Any, api_keys: Sequence[str], requests_per_minute: int | None, max_body_bytes: int
    ) -> None:
        self._ask = model.options(stream=True).ask
        self._max_body_bytes = max_body_bytes
        self._guard: dict[str, Any] = {"api_keys": api_keys, "requests_per_minute": requests_per_minute}

    def __serve_build_asgi_app__(self) -> Any:
        """The application; Ray calls this."""
        return guarded(self._answer, loopback=False, **self._guard)

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        await endpoint_at(scope["path"], self._pass_on, self._max_body_bytes)(scope, receive, send)

    async def _pass_on(self, exchange: Exchange) -> None:
        if exchange.scope["path"] in _OF_ONE:
            raise ApiError(404, "expected Ray's own metrics and logs of replicas, got a path of one server")
        body = await exchange.body()
        await exchange.while_listening(self._relay(exchange, body))

    async def _relay(self, exchange: Exchange, body: bytes) -> None:
        scope = exchange.scope
        kept = {name: scope[name] for name in ("type", "method", "path", "raw_path", "query_string", "http_version")}
        headers = [(name.encode(), value.encode("latin-1")) for name in PASSED_ON if (value := exchange.header(name))]
        parts = self._ask.remote(blocks_of_text(body), {**kept, "headers": headers, "root_path": ""}, body)
        try:
            status, found = await anext(parts)
            await relay(_Parts(status, found, parts), exchange)
        except BackPressureError:
            raise ApiError(
                429, "expected fewer requests in the queue; try again later", code="queue_full", headers=_LATER
            ) from None
        except (RayError, DeploymentUnavailableError):
            raise ApiError(
                503, "expected the answer of a replica, got its end; try again", code="process_lost", headers=_LATER
            ) from None
        finally:
            with contextlib.suppress(BackPressureError, RayError):  # said again by what it ended with
                parts.cancel()  # what is done already stays as it is


class _Parts:
    """The answer of a replica."""

    def __init__(self, status: int, headers: dict[str, str], parts: AsyncIterator[bytes]) -> None:
        self.status, self.headers, self._parts = status, headers, parts

    async def part(self) -> bytes:
        """The next part of the body; b"": that was all."""
        return await anext(self._parts, b"")

"""An encoder that is served: texts of all requests are computed together."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from thresher.llm.text_encoder import Encoded, TextEncoder
from thresher.serve.metrics import Metrics
from thresher.web.errors import ApiError

_TURN_TOKENS = 4096  # that are computed before those who came meanwhile get their turn
_MOST_WAITING = 1 << 20  # tokens in the queue, beyond which requests are refused


def usage_of(items: Sequence[Encoded]) -> dict[str, int]:
    """What texts cost, as answers say it."""
    tokens = sum(len(item.tokens) for item in items)
    return {"prompt_tokens": tokens, "total_tokens": tokens}


class Encoding:
    """An encoder and the queue before it; belongs to one event loop."""

    def __init__(self, encoder: TextEncoder, name: str, metrics: Metrics) -> None:
        """Serves an encoder.

        Args:
          encoder: the model.
          name: as clients call it.
          metrics: are told what was computed.
        """
        self.encoder = encoder
        self.name = name
        self.created = int(time.time())
        self._metrics = metrics
        self._queue: deque[tuple[Encoded, asyncio.Future[npt.NDArray[np.float32]]]] = deque()
        self._tokens = 0  # in the queue
        self._worker: asyncio.Task[None] | None = None
        self._began = 0.0  # when the present turn did; 0: there is none

    @property
    def busy_s(self) -> float:
        """For how long the present turn has lasted."""
        return time.monotonic() - self._began if self._began else 0.0

    async def run(self, items: Sequence[Encoded]) -> npt.NDArray[np.float32]:
        """Vectors or scores, f32 [items, ...], as TextEncoder.run() gives them.

        Raises:
          ApiError: too much waits already.
        """
        tokens = sum(len(item.tokens) for item in items)
        if self._tokens and self._tokens + tokens > _MOST_WAITING:
            self._metrics.refuse(429)
            raise ApiError(
                429,
                "expected fewer texts in the queue; try again later",
                code="queue_full",
                headers={"retry-after": "1"},
            )
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in items]
        self._queue.extend(zip(items, futures, strict=True))
        self._tokens += tokens
        if self._worker is None or self._worker.done():
            self._worker = asyncio.ensure_future(self._work())
        try:
            return np.stack(await asyncio.gather(*futures))
        finally:
            for future in futures:
                future.cancel()  # of who has left; what is done stays as it is

    def abort(self, error: ApiError) -> None:
        """Fails what waits."""
        while self._queue:
            item, future = self._queue.popleft()
            self._tokens -= len(item.tokens)
            if not future.done():
                future.set_exception(error)

    async def _work(self) -> None:
        while self._queue:
            turn: list[tuple[Encoded, asyncio.Future[npt.NDArray[np.float32]]]] = []
            tokens = 0
            while self._queue and (not turn or tokens + len(self._queue[0][0].tokens) <= _TURN_TOKENS):
                item, future = self._queue.popleft()
                self._tokens -= len(item.tokens)
                if not future.done():
                    turn.append((item, future))
                    tokens += len(item.tokens)
            if not turn:
                continue
            self._began = time.monotonic()
            try:
                found = await asyncio.to_thread(self.encoder.run, [item for item, _ in turn])
            except Exception as error:
                for _, future in turn:
                    if not future.done():
                        future.set_exception(error)
                continue
            finally:
                self._began = 0.0
            self._metrics.encoded(len(turn), tokens)
            for (_, future), row in zip(turn, found, strict=True):
                if not future.done():
                    future.set_result(row)

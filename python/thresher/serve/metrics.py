"""What Prometheus is told, under the names that vLLM gave them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, GCCollector, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from thresher.llm import LLM, RequestStats

_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0)
_BETWEEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0)
_REQUEST = (0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 60.0, 120.0, 240.0, 480.0)
_MOST_NEW = 4096  # times that wait to be told
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)


class _Times:
    """A histogram that is told of many times together: one by one, a token's would cost as much as its JSON."""

    def __init__(self, histogram: Any) -> None:
        self._histogram = histogram
        self._new: list[float] = []

    def observe(self, seconds: float) -> None:
        """One more."""
        self._new.append(seconds)
        if len(self._new) >= _MOST_NEW:
            self.flush()

    def flush(self) -> None:
        """Tells it of what is new."""
        taken, self._new = self._new, []
        for seconds in taken:
            self._histogram.observe(seconds)


class Metrics:
    """Counts and times of one served model."""

    def __init__(self, llm: LLM, name: str) -> None:
        """Begins at zero.

        Args:
          llm: whose engine is asked when somebody wants to know.
          name: of the model, as clients call it.
        """
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self.registry.register(_EngineCollector(llm, name))

        def histogram(key: str, about: str, buckets: tuple[float, ...]) -> Any:
            made = Histogram(f"vllm:{key}", about, ["model_name"], buckets=buckets, registry=self.registry)
            return made.labels(name)

        self.first = histogram("time_to_first_token_seconds", "From a request to its first token.", _SECONDS)
        self.between = _Times(histogram("inter_token_latency_seconds", "Between two tokens of an answer.", _BETWEEN))
        self._whole = histogram("e2e_request_latency_seconds", "From a request to its end.", _REQUEST)
        self._queue = histogram("request_queue_time_seconds", "In the queue.", _REQUEST)
        self._prompt = histogram("request_prompt_tokens", "Tokens of a prompt.", _TOKENS)
        self._output = histogram("request_generation_tokens", "Tokens of the answers to a prompt.", _TOKENS)
        ended = Counter("vllm:request_success", "Answers that ended, by why.", ["model_name", "finished_reason"])
        self.registry.register(ended)
        self._ended = {reason: ended.labels(name, reason) for reason in ("stop", "length", "abort", "error")}
        refused = Counter(
            "thresher:request_refused", "Requests that were refused, by status.", ["model_name", "status"]
        )
        self.registry.register(refused)
        self._refused, self._name = refused, name
        encoded = [("texts", "Texts that an encoder has read."), ("tokens", "Tokens of them.")]
        self._encoded = [Counter(f"thresher:encoded_{key}", about, registry=self.registry) for key, about in encoded]

    def end(self, stats: RequestStats, now: float) -> None:
        """A prompt has all its answers."""
        self._whole.observe(now - stats.arrived)
        self._queue.observe(stats.queue_s)
        self._prompt.observe(stats.prompt_tokens)
        self._output.observe(stats.output_tokens)

    def end_answer(self, reason: str) -> None:
        """An answer has ended: "stop", "length", "cancel" or "error"."""
        self._ended["abort" if reason == "cancel" else reason].inc()

    def refuse(self, status: int) -> None:
        """A request was refused."""
        self._refused.labels(self._name, str(status)).inc()

    def encoded(self, texts: int, tokens: int) -> None:
        """An encoder has read texts."""
        for counter, count in zip(self._encoded, (texts, tokens), strict=True):
            counter.inc(count)

    def text(self, accept: str) -> tuple[bytes, str]:
        """All of it, and its content type, as a scraper that sends `accept` wants it."""
        self.between.flush()
        encode, kind = choose_encoder(accept)
        return encode(self.registry), kind


class _EngineCollector(Collector):
    """The engine's own sums."""

    def __init__(self, llm: LLM, name: str) -> None:
        self._llm, self._name = llm, name

    def collect(self) -> Iterator[Any]:
        """Asks the engine."""
        stats = self._llm.stats()
        gauges = {
            "vllm:num_requests_running": ("Answers that are computed.", stats.running),
            "vllm:num_requests_waiting": ("Answers in the queue.", stats.waiting),
            "vllm:kv_cache_usage_perc": ("Share of the cache's pages in use, 0 to 1.", stats.pages_used / stats.pages),
            "thresher:kv_cache_kept_perc": (
                "Share of pages that hold beginnings of prompts nobody uses now.",
                stats.pages_kept / stats.pages,
            ),
            "thresher:engine_up": ("1: the engine's thread lives.", float(self._llm.engine.failure is None)),
        }
        counters = {
            "vllm:prompt_tokens": ("Tokens of prompts.", stats.prompt_tokens),
            "vllm:generation_tokens": ("Tokens of answers.", stats.output_tokens),
            "vllm:num_preemptions": ("Answers that began again because pages ran out.", stats.preemptions),
            "vllm:prefix_cache_queries": ("Tokens that were looked for in the cache.", stats.looked_up_tokens),
            "vllm:prefix_cache_hits": ("Of those, found.", stats.cached_tokens),
            "vllm:spec_decode_num_draft_tokens": ("Guesses that were computed.", stats.drafted_tokens),
            "vllm:spec_decode_num_accepted_tokens": ("Of those, that came true.", stats.accepted_tokens),
            "thresher:steps": ("Steps of the engine.", stats.steps),
        }
        for key, (about, value) in gauges.items():
            gauge = GaugeMetricFamily(key, about, labels=["model_name"])
            gauge.add_metric([self._name], value)
            yield gauge
        for key, (about, value) in counters.items():
            counter = CounterMetricFamily(key, about, labels=["model_name"])
            counter.add_metric([self._name], value)
            yield counter

"""POST /v1/completions: texts that go on."""

from __future__ import annotations

import time
import uuid
from typing import Any

from thresher.llm import Delta
from thresher.serve import sampling_fields
from thresher.serve.logprobs import CompletionLogprobs, shown
from thresher.serve.service import Answers, Service
from thresher.web.errors import ApiError
from thresher.web.exchange import Exchange, event
from thresher.web.fields import Fields, wrong

_DEFAULT_TOKENS = 16
_MOST_PROMPTS = 256
_MOST_LOGPROBS = 20


class Completions:
    """Answers requests for completions."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, exchange: Exchange) -> None:
        """Answers one."""
        fields = Fields(await exchange.json())
        self._service.check_name(fields.text("model"))
        stream = fields.flag("stream")
        usage = sampling_fields.include_usage(fields, stream)
        echo = fields.flag("echo")
        options = sampling_fields.common_options(fields, grammars=self._service.grammars)
        logprobs = fields.integer("logprobs", 0, _MOST_LOGPROBS)
        options["logprobs"] = logprobs
        if echo and logprobs is not None:
            options["prompt_logprobs"] = logprobs
        max_tokens = fields.integer("max_tokens", 0)
        max_tokens = _DEFAULT_TOKENS if max_tokens is None else max_tokens
        if max_tokens == 0 and not echo:
            raise wrong("max_tokens", "an integer of at least 1, or echo", 0)
        options["max_tokens"] = max(max_tokens, 1)
        best_of = fields.integer("best_of", 1)
        if best_of not in (None, options.get("n", 1)):
            raise ApiError(400, f"best_of: expected n, got {best_of}; all answers are returned", param="best_of")
        fields.refuse(suffix="put both texts into the prompt, as the model's own marks have it")
        priority = fields.integer("priority", -(2**31), 2**31) or 0
        given = fields.raw("prompt")
        fields.done()
        params = sampling_fields.sampling_params(options)
        prompts = await self._prompts(given)
        if stream and echo:
            raise ApiError(400, "echo: expected false with stream, got true", param="echo")

        async def work() -> None:
            async with await self._service.answer(prompts, params, priority) as answers:
                made = _Completion(self._service, answers, logprobs)
                if stream:
                    await made.stream(exchange, usage)
                else:
                    await made.whole(exchange, echo, silent=max_tokens == 0)

        await exchange.while_listening(work())

    async def _prompts(self, given: Any) -> list[list[int]]:
        """The tokens of one text or many, or tokens themselves."""
        if given is None:
            raise wrong("prompt", "a text, tokens, or a list of them", None)
        many = given if isinstance(given, list) and given and not isinstance(given[0], int) else [given]
        if len(many) > _MOST_PROMPTS:
            raise wrong("prompt", f"at most {_MOST_PROMPTS} prompts", len(many))
        found = []
        for each in many:
            if isinstance(each, str):
                found.append(await self._service.encode(each))
            elif isinstance(each, list) and all(type(token) is int for token in each):
                found.append(each)
            else:
                raise wrong("prompt", "a text, tokens, or a list of them", each)
        return found


class _Completion:
    """What is sent about one request."""

    def __init__(self, service: Service, answers: Answers, logprobs: int | None) -> None:
        self._service, self._answers, self._logprobs = service, answers, logprobs
        self._head = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": service.name,
        }
        self._n = answers.requests[0].params.n
        self._reports: dict[int, CompletionLogprobs] = {}

    async def stream(self, exchange: Exchange, usage: bool) -> None:
        """Sends parts as they come."""
        while taken := await self._answers.take():
            if not exchange.started:
                await exchange.begin_events()
            events = b""
            for number, delta in taken:
                if not delta.text and not delta.logprobs and delta.finish_reason is None:
                    continue
                choice = self._choice(number * self._n + delta.index, delta.text, delta.finish_reason)
                if self._logprobs is not None:
                    choice["logprobs"] = self._report(choice["index"], delta)
                events += event({**self._head, "choices": [choice], **({"usage": None} if usage else {})})
            if events:
                await exchange.send_events(events)
        last = event({**self._head, "choices": [], "usage": self._answers.usage()}) if usage else b""
        await exchange.end_events(last + b"data: [DONE]\n\n")

    async def whole(self, exchange: Exchange, echo: bool, *, silent: bool) -> None:
        """Sends all at once; `silent`: prompts alone were asked for."""
        count = len(self._answers.requests) * self._n
        texts = [""] * count
        reasons: list[str | None] = [None] * count
        reports: list[list[Any]] = [[] for _ in range(count)]
        while taken := await self._answers.take():
            for number, delta in taken:
                at = number * self._n + delta.index
                if not silent:
                    texts[at] += delta.text
                    reports[at] += shown(delta)
                reasons[at] = delta.finish_reason
        choices = []
        for at in range(count):
            request = self._answers.requests[at // self._n]
            if echo:
                tokenizer = self._service.tokenizer
                texts[at] = tokenizer.decode(request.prompt, skip_special=False) + texts[at]
                reports[at] = [request.prompt[0], *request.prompt_logprobs, *reports[at]]
            choice = self._choice(at, texts[at], reasons[at])
            if self._logprobs is not None:
                choice["logprobs"] = CompletionLogprobs(self._service.tokenizer).of(reports[at], self._logprobs)
            choices.append(choice)
        usage = self._answers.usage()
        if silent:
            usage.update(completion_tokens=0, total_tokens=usage["prompt_tokens"])
        await exchange.send_json({**self._head, "choices": choices, "usage": usage})

    def _choice(self, index: int, text: str, reason: str | None) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": None, "finish_reason": reason}

    def _report(self, index: int, delta: Delta) -> dict[str, Any]:
        report = self._reports.setdefault(index, CompletionLogprobs(self._service.tokenizer))
        return report.of(shown(delta), self._logprobs or 0)

"""The small endpoints: models, tokens, health, metrics."""

from __future__ import annotations

from typing import Any

from thresher.serve.chat_prompt import Chat, chat_prompt, read_messages
from thresher.serve.service import Service
from thresher.web.errors import ApiError
from thresher.web.exchange import Exchange
from thresher.web.fields import Fields, wrong


class Models:
    """GET /v1/models."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def all(self, exchange: Exchange) -> None:
        """What is served."""
        await exchange.send_json({"object": "list", "data": [_card(*model) for model in self._service.models]})

    async def one(self, exchange: Exchange) -> None:
        """One of them."""
        wanted = exchange.path_values["name"]
        found = next((model for model in self._service.models if model[0] == wanted), None)
        if found is None:
            self._service.check_name(wanted)
        else:
            await exchange.send_json(_card(*found))


def _card(name: str, created: int, max_length: int) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": created, "owned_by": "thresher", "max_model_len": max_length}


class Tokens:
    """POST /tokenize and /detokenize, as vLLM has them."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def encode(self, exchange: Exchange) -> None:
        """Tokens of a text or of a chat."""
        fields = Fields(await exchange.json())
        self._service.check_name(fields.text("model"))
        text, messages = fields.text("prompt"), fields.objects("messages")
        special = fields.flag("add_special_tokens", True)
        texts = fields.flag("return_token_strs")
        fields.done()
        if (text is None) == (messages is None):
            raise ApiError(400, "expected either prompt or messages", param="prompt")
        if text is not None:
            found = await self._service.encode(text, special=special)
        else:
            found = (await chat_prompt(self._service, Chat(read_messages(messages)))).tokens
        backend = self._service.tokenizer.backend
        await exchange.send_json(
            {
                "count": len(found),
                "max_model_len": self._service.llm.engine.max_length,
                "tokens": found,
                "token_strs": [backend.id_to_token(token) for token in found] if texts else None,
            }
        )

    async def decode(self, exchange: Exchange) -> None:
        """The text of tokens."""
        fields = Fields(await exchange.json())
        self._service.check_name(fields.text("model"))
        tokens = fields.raw("tokens")
        fields.done()
        size = self._service.llm.config.vocab_size
        if not isinstance(tokens, list) or not all(type(token) is int and 0 <= token < size for token in tokens):
            raise wrong("tokens", f"a list of numbers from 0 to {size - 1}", tokens)
        await exchange.send_json({"prompt": self._service.tokenizer.decode(tokens, skip_special=False)})


class Health:
    """GET /health: 200, or 503 where no answer would come."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, exchange: Exchange) -> None:
        """Says how the engine is."""
        condition = self._service.condition
        stats = self._service.llm.stats()
        data = {"status": condition, "running": stats.running, "waiting": stats.waiting}
        await exchange.send_json(data, 200 if condition == "ok" else 503, {"cache-control": "no-store"})


class Metrics:
    """GET /metrics, for Prometheus."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, exchange: Exchange) -> None:
        """Says all numbers."""
        body, kind = self._service.metrics.text(exchange.header("accept") or "")
        await exchange.send(200, kind, body)

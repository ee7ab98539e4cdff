"""POST /v1/embeddings: texts to vectors."""

from __future__ import annotations

import base64
from typing import Any

from thresher.llm.text_encoder import Encoded, TextEncoder
from thresher.serve.encoding import usage_of
from thresher.serve.service import Service
from thresher.web.errors import ApiError
from thresher.web.exchange import Exchange
from thresher.web.fields import Fields, wrong

_MOST_TEXTS = 2048  # as OpenAI has it


class Embeddings:
    """Answers requests for vectors."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, exchange: Exchange) -> None:
        """Answers one."""
        fields = Fields(await exchange.json())
        encoding = self._service.encoding(fields.text("model"))
        encoder = encoding.encoder
        given = fields.raw("input")
        form = fields.choice("encoding_format", ("float", "base64")) or "float"
        dimensions = fields.integer("dimensions", 1)
        truncate = fields.integer("truncate_prompt_tokens", -1)
        fields.ignore("user")
        fields.done()
        if encoder.scores_pairs:
            raise ApiError(400, f"expected a model that embeds, got {encoding.name!r}, which scores; use /v1/rerank")
        if dimensions not in (None, encoder.dimensions):
            raise wrong("dimensions", f"{encoder.dimensions}, which the model has", dimensions)
        limit = encoder.max_length if truncate == -1 else truncate
        items = await self._service.beside_the_loop(_size(given), lambda: self._items(encoding.encoder, given, limit))

        async def work() -> None:
            vectors = await encoding.run(items)
            data = [
                {
                    "object": "embedding",
                    "index": index,
                    "embedding": (
                        vector.tolist()
                        if form == "float"
                        else base64.b64encode(vector.astype("<f4").tobytes()).decode()
                    ),
                }
                for index, vector in enumerate(vectors)
            ]
            await exchange.send_json({"object": "list", "data": data, "model": encoding.name, "usage": usage_of(items)})

        await exchange.while_listening(work())

    @staticmethod
    def _items(encoder: TextEncoder, given: Any, limit: int | None) -> list[Encoded]:
        """The tokens of one text or many, or tokens themselves."""
        many = given if isinstance(given, list) and given and not isinstance(given[0], int) else [given]
        if len(many) > _MOST_TEXTS:
            raise wrong("input", f"at most {_MOST_TEXTS} texts", len(many))
        found = []
        for each in many:
            tokens = isinstance(each, list) and bool(each) and all(type(token) is int for token in each)
            if not tokens and (not isinstance(each, str) or not each):
                raise wrong("input", "a text, tokens, or a list of them", each)
            found.append(encoder.encode(each, truncate=limit))
        return found


def _size(given: Any) -> int:
    """About how many characters there are to read."""
    return sum(len(each) for each in given if isinstance(each, str)) if isinstance(given, list) else len(str(given))

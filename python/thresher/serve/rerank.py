"""POST /v1/rerank: how well documents answer a query, the best first, as Cohere and Jina have it."""

from __future__ import annotations

import uuid
from typing import Any

from thresher.llm.text_encoder import Encoded, TextEncoder, cosines
from thresher.serve.encoding import usage_of
from thresher.serve.service import Service
from thresher.web.exchange import Exchange
from thresher.web.fields import Fields, wrong

_MOST_DOCUMENTS = 2048


class Rerank:
    """Answers requests for the order of documents."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, exchange: Exchange) -> None:
        """Answers one."""
        fields = Fields(await exchange.json())
        encoding = self._service.encoding(fields.text("model"))
        encoder = encoding.encoder
        query = fields.wanted_text("query")
        documents = _documents(fields.raw("documents"))
        top = fields.integer("top_n", 1) or len(documents)
        show = fields.flag("return_documents", True)
        truncate = fields.integer("truncate_prompt_tokens", -1)
        fields.ignore("user")
        fields.done()
        limit = encoder.max_length if truncate == -1 else truncate
        size = len(query) + sum(map(len, documents))
        items = await self._service.beside_the_loop(size, lambda: _items(encoder, query, documents, limit))

        async def work() -> None:
            found = await encoding.run(items)
            scores = (found[:, 0] if encoder.scores_pairs else cosines(found)).tolist()
            order = sorted(range(len(scores)), key=lambda index: -scores[index])[:top]
            results: list[dict[str, Any]] = [{"index": index, "relevance_score": scores[index]} for index in order]
            if show:
                for result in results:
                    result["document"] = {"text": documents[result["index"]]}
            head = {"id": f"rerank-{uuid.uuid4().hex}", "model": encoding.name}
            await exchange.send_json({**head, "usage": usage_of(items), "results": results})

        await exchange.while_listening(work())


def _documents(given: Any) -> list[str]:
    if not isinstance(given, list) or not 1 <= len(given) <= _MOST_DOCUMENTS:
        raise wrong("documents", f"a list of 1 to {_MOST_DOCUMENTS} texts", given)
    found = []
    for number, each in enumerate(given):
        text = each.get("text") if isinstance(each, dict) else each
        if not isinstance(text, str):
            raise wrong(f"documents[{number}]", 'a text, or an object with "text"', each)
        found.append(text)
    return found


def _items(encoder: TextEncoder, query: str, documents: list[str], limit: int | None) -> list[Encoded]:
    if encoder.scores_pairs:
        return [encoder.encode(query, document, truncate=limit) for document in documents]
    return [encoder.encode(text, truncate=limit) for text in (query, *documents)]

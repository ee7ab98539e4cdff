"""Requests to the server of language models: a line that says where to, lines of headers, an empty line, the body."""

from __future__ import annotations

from served import ask, check

_PATHS = (
    *("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens"),
    *("/v1/embeddings", "/v1/rerank", "/tokenize", "/detokenize", "/v1/models/tiny", "/health", "/"),
)


def run(data: bytes) -> None:
    head, _, body = data.partition(b"\n\n")
    first, *lines = head.split(b"\n")
    path = _PATHS[first[0] % len(_PATHS)] if first else "/v1/completions"
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    for line in lines[:20]:  # as a parser of HTTP gives them
        name, _, value = line.partition(b":")
        headers.insert(0, (name.strip().lower(), value.strip()))
    get = path in ("/v1/models/tiny", "/health", "/")
    check(*ask("GET" if get else "POST", path, headers, body))

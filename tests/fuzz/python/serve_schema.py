"""JSON schemas, regular expressions and grammars that answers have to keep to; an answer that ended keeps to JSON."""

from __future__ import annotations

import json

from served import ask, check

_HEADERS = [(b"host", b"localhost"), (b"content-type", b"application/json")]
_TOOL = "weather"


def run(data: bytes) -> None:
    kind, text = data[:1], data[1:].decode("utf-8", "replace")
    body: dict[str, object] = {"messages": [{"role": "user", "content": "a"}], "max_completion_tokens": 12, "seed": 1}
    form = {b"r": "regex", b"g": "grammar"}.get(kind)
    if form is not None:
        body["structured_outputs"] = {form: text}
    else:
        try:
            schema = json.loads(text)
        except (ValueError, RecursionError):
            return
        if kind == b"t":
            body["tools"] = [{"type": "function", "function": {"name": _TOOL, "parameters": schema}}]
            body["tool_choice"] = "required"
        else:
            body["response_format"] = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    try:
        sent = json.dumps(body).encode()
    except (ValueError, RecursionError):
        return
    status, answer = ask("POST", "/v1/chat/completions", _HEADERS, sent)
    check(status, answer)
    if status == 200 and form is None:
        choice = json.loads(answer)["choices"][0]
        if choice["finish_reason"] == "stop":
            json.loads(choice["message"]["content"])
        elif choice["finish_reason"] == "tool_calls":
            for call in choice["message"]["tool_calls"]:
                assert call["function"]["name"] == _TOOL
                json.loads(call["function"]["arguments"])

"""Text of an answer with thoughts and calls of tools: however it is cut, the pieces say the same together."""

from __future__ import annotations

from thresher.serve.answer_text import AnswerText
from thresher.serve.tool_formats import HERMES, LLAMA, MISTRAL

_FORMATS = (None, HERMES, LLAMA, MISTRAL)


def run(data: bytes) -> None:
    options, size, text = data[:1] or b"\0", data[1:2] or b"\1", data[2:].decode("utf-8", "replace")
    bits = options[0]
    wanted = _pieces([text], bits)
    step = max(1, size[0])
    assert _pieces([text[i : i + step] for i in range(0, len(text), step)], bits) == wanted
    assert _pieces(list(text), bits) == wanted


def _pieces(parts: list[str], bits: int) -> list[tuple[str, int, str]]:
    reader = AnswerText(think=bool(bits & 4), thinking=bool(bits & 8), tools=_FORMATS[bits & 3], names=["f", "g"])
    together: dict[tuple[str, int], str] = {}
    for piece in [piece for part in parts for piece in reader.add(part)] + reader.finish():
        key = (piece.kind, piece.call)
        assert piece.kind == "call" or piece.text
        together[key] = together.get(key, "") + piece.text
    assert reader.calls == sum(kind == "call" for kind, _ in together)
    return sorted((kind, call, text) for (kind, call), text in together.items())

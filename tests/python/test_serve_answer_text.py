"""Thoughts and calls in the text of answers, however it is cut into parts."""

from __future__ import annotations

import itertools
import json

import pytest

pytest.importorskip("uvicorn")
hypothesis = pytest.importorskip("hypothesis")
st = hypothesis.strategies

from thresher.serve.answer_text import AnswerText  # noqa: E402
from thresher.serve.tool_formats import HERMES, LLAMA, MISTRAL, format_of  # noqa: E402

_HERMES = '<tool_call>\n{"name": "f", "arguments": {"a": "}\\"{"}}\n</tool_call>'


def _read(parts, **options):
    """Text, thoughts and calls of an answer, and what of them came before its end."""
    reader = AnswerText(names=["f", "g"], **options)
    pieces = []
    for part in parts:
        pieces += reader.add(part)
    before = len(pieces)
    pieces += reader.finish()
    text = "".join(p.text for p in pieces if p.kind == "text")
    thought = "".join(p.text for p in pieces if p.kind == "reasoning")
    calls = [
        (c.text, "".join(p.text for p in pieces if p.kind == "arguments" and p.call == c.call))
        for c in pieces
        if c.kind == "call"
    ]
    assert [c.call for c in pieces if c.kind == "call"] == list(range(len(calls))) and reader.calls == len(calls)
    return text, thought, calls, pieces[:before]


@pytest.mark.parametrize(
    ("options", "said", "text", "thought", "calls"),
    [
        ({}, "<think>a</think>", "<think>a</think>", "", []),
        ({"think": True}, "<think>a\n</think>\n\nb ", "b ", "a", []),
        ({"think": True}, " <thin", " <thin", "", []),
        ({"think": True, "thinking": True}, "a </think> b", "b", "a", []),
        ({"think": True, "thinking": True}, "a </thin", "", "a </thin", []),
        ({"think": True}, "b <think>a</think>", "b <think>a</think>", "", []),
        ({"tools": HERMES}, "hi", "hi", "", []),
        ({"tools": HERMES}, f"ok\n{_HERMES}\n{_HERMES}\n", "ok", "", [("f", '{"a": "}\\"{"}')] * 2),
        ({"tools": HERMES}, f"{_HERMES}\nand so", "and so", "", [("f", '{"a": "}\\"{"}')]),
        ({"tools": HERMES}, '<tool_call>{"arguments": {"b": [1]}, "name": "g"}</tool_call>', "", "",
         [("g", '{"b": [1]}')]),
        ({"tools": HERMES}, '<tool_call>{"name": "g"}</tool_call>', "", "", [("g", "{}")]),
        ({"tools": HERMES}, '<tool_call>{"name": "f", "arguments": {"a": 1', "", "", [("f", '{"a": 1')]),
        ({"tools": HERMES}, "<tool_call>hello", "<tool_call>hello", "", []),
        ({"tools": HERMES}, '<tool_call>{"x": 1}</tool_call>', '<tool_call>{"x": 1}</tool_call>', "", []),
        ({"tools": HERMES}, '<tool_call>{"name', '<tool_call>{"name', "", []),
        ({"tools": HERMES, "think": True}, f"<think>{_HERMES}</think>{_HERMES}", "", _HERMES,
         [("f", '{"a": "}\\"{"}')]),
        ({"tools": LLAMA}, '{"name": "f", "parameters": {"a": 1}}', "", "", [("f", '{"a": 1}')]),
        ({"tools": LLAMA}, '{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}', "", "",
         [("f", "{}"), ("g", "{}")]),
        ({"tools": LLAMA}, '{"name": "other", "parameters": {}}', '{"name": "other", "parameters": {}}', "", []),
        ({"tools": LLAMA}, '{"a": 1} is JSON', '{"a": 1} is JSON', "", []),
        ({"tools": LLAMA}, "no {call}", "no {call}", "", []),
        ({"tools": MISTRAL}, '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]', "",
         "",
         [("f", '{"a": 1}'), ("g", "{}")]),
        ({"tools": MISTRAL}, 'ok[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g{"b": 2}', "ok", "",
         [("f", '{"a": 1}'), ("g", '{"b": 2}')]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_an_answer_is_taken_apart(options, said, text, thought, calls, size):
    parts = [said[i : i + size] for i in range(0, len(said), size)]
    assert _read(parts, **options)[:3] == (text, thought, calls)


def test_arguments_come_as_they_are_made():
    reader = AnswerText(tools=HERMES)
    assert reader.add('<tool_call>\n{"name": "f", "arguments": ') == []
    assert [(p.kind, p.text) for p in reader.add('{"a"')] == [("call", "f"), ("arguments", '{"a"')]
    assert [(p.kind, p.text) for p in reader.add(': "b')] == [("arguments", ': "b')]
    assert [(p.kind, p.text) for p in reader.add('"}}\n</tool')] == [("arguments", '"}')]
    assert reader.add("_call>") == [] == reader.finish()


_MARKS = st.sampled_from(
    [
        *("<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", *'[],;{}"\\ \nf<', "\ud800"),
        *('{"name": "f", "arguments": ', '{"name": "f", "parameters": {"a": 1}}', _HERMES),
    ]
)


@hypothesis.settings(max_examples=400, deadline=None)
@hypothesis.given(
    said=st.lists(_MARKS | st.text(max_size=3), max_size=12).map("".join),
    cuts=st.lists(st.integers(0, 60), max_size=12),
    tools=st.sampled_from([None, HERMES, LLAMA, MISTRAL]),
    think=st.booleans(),
    thinking=st.booleans(),
)
def test_cuts_change_nothing(said, cuts, tools, think, thinking):
    options = {"tools": tools, "think": think or thinking, "thinking": thinking}
    places = sorted({0, len(said), *(cut for cut in cuts if cut < len(said))})
    parts = [said[a:b] for a, b in itertools.pairwise(places)]
    whole, cut = _read([said], **options), _read(parts, **options)
    assert whole[:3] == cut[:3]
    letters = _read(list(said), **options)
    assert whole[:3] == letters[:3]
    for _, arguments in whole[2]:  # a whole answer's calls are JSON, or were cut off at its end
        if arguments:
            assert arguments[0] in '{["' or not arguments.strip() or json.loads(arguments) is not None


def test_templates_tell_their_family():
    assert format_of("{% if tools %}<tool_call>{% endif %}") is HERMES
    assert format_of("{% if tools %}[TOOL_CALLS]{% endif %}") is MISTRAL
    assert format_of('{% if tools %}<|start_header_id|> {"name": n, "parameters": p}{% endif %}') is LLAMA
    assert format_of("{{ messages }}") is None is format_of(None)
    assert format_of("{% if tools %}<tool_call><function=f>{% endif %}") is None

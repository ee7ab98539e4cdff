"""thresher serve, asked by agents: Anthropic's messages by its own client, OpenAI's responses by its."""

from __future__ import annotations

import json

import pytest
from serving import serve_command, serving, write_model

anthropic = pytest.importorskip("anthropic")
openai = pytest.importorskip("openai")
pytest.importorskip("uvicorn")
pytest.importorskip("llguidance")

from thresher.llm import LLM  # noqa: E402

_CHAT = [{"role": "user", "content": "the cat sat"}]
_SCHEMA = {
    "type": "object",
    "properties": {"days": {"enum": [1, 2]}},
    "required": ["days"],
    "additionalProperties": False,
}
_ANTHROPIC_TOOL = {"name": "weather", "description": "of a town", "input_schema": _SCHEMA}
_OPENAI_TOOL = {"type": "function", "name": "weather", "description": "of a town", "parameters": _SCHEMA}
_CALL = '<tool_call>\n{"name": "weather", "arguments": {"days": 1}}\n</tool_call>'


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def llm(folder):
    with LLM(folder, precision="fp32", max_length=500, num_threads=1) as made:
        yield made


@pytest.fixture(scope="module")
def server(folder):
    with serving(serve_command(folder, "--max-batch", "4", "--max-length", "500", "--api-key", "secret")) as running:
        yield running


@pytest.fixture(scope="module")
def claude(server):
    url = server.url.removesuffix("/v1")
    with anthropic.Anthropic(base_url=url, api_key="secret", max_retries=0, timeout=60) as made:
        yield made


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=server.url, api_key="secret", max_retries=0, timeout=60) as made:
        yield made


def _message(claude, messages=_CHAT, **options):
    return claude.messages.create(
        model="tiny", messages=messages, **{"max_tokens": 12, "extra_body": {"temperature": 0}, **options}
    )


def test_a_message_is_what_the_engine_says(claude, llm):
    system = "round the old house"
    expected = llm.chat([{"role": "system", "content": system}, *_CHAT], temperature=0, max_tokens=12)
    for given in (system, [{"type": "text", "text": system, "cache_control": {"type": "ephemeral"}}]):
        found = _message(claude, system=given)
        assert [block.type for block in found.content] == ["text"] and found.content[0].text == expected.text
        usage = found.usage
        assert usage.input_tokens + usage.cache_read_input_tokens == len(expected.prompt_token_ids)
        assert usage.output_tokens == len(expected.completions[0].token_ids)
        assert found.stop_reason == {"length": "max_tokens", "stop": "end_turn"}[expected.completions[0].finish_reason]
    counted = claude.messages.count_tokens(model="tiny", messages=_CHAT, system=system)
    assert counted.input_tokens == len(expected.prompt_token_ids)


def test_a_stop_sequence_is_named(claude):
    text = _message(claude).content[0].text
    found = _message(claude, stop_sequences=["never there", text[2:5]])
    assert (found.stop_reason, found.stop_sequence) == ("stop_sequence", text[2:5])
    assert found.content[0].text == text[: text.index(text[2:5])]


def test_a_stream_of_messages_says_the_same(claude):
    whole = _message(claude)
    with claude.messages.stream(model="tiny", messages=_CHAT, max_tokens=12, extra_body={"temperature": 0}) as stream:
        kinds = [event.type for event in stream]
        found = stream.get_final_message()
    assert found.content[0].text == whole.content[0].text and found.stop_reason == whole.stop_reason
    assert found.usage.output_tokens == whole.usage.output_tokens
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop"
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_that_has_to_be_used(claude, stream):
    options = {"tools": [_ANTHROPIC_TOOL, {"type": "web_search_20250305", "name": "web_search"}], "max_tokens": 60}
    options |= {"tool_choice": {"type": "any"}, "extra_body": {"temperature": 0}}
    if stream:
        with claude.messages.stream(model="tiny", messages=_CHAT, **options) as opened:
            found = opened.get_final_message()
    else:
        found = _message(claude, **options)
    (use,) = found.content
    assert found.stop_reason == "tool_use" and (use.type, use.name) == ("tool_use", "weather")
    assert use.input["days"] in (1, 2) and use.id.startswith("toolu_")
    result = {"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": "rain"}]}
    history = [*_CHAT, {"role": "assistant", "content": found.content}]
    history.append({"role": "user", "content": [result, {"type": "text", "text": "and now?"}]})
    assert _message(claude, history, tools=[_ANTHROPIC_TOOL], tool_choice={"type": "none"}).content
    long = claude.messages.count_tokens(model="tiny", messages=history).input_tokens
    assert long > claude.messages.count_tokens(model="tiny", messages=history[:2]).input_tokens


def test_what_messages_refuse(claude, server):
    for options, text in [
        ({"extra_body": {"temperature": 2}}, "temperature: expected a number from 0 to 1, got 2"),
        ({"extra_body": {"surprise": 1}}, "Unrecognized request argument supplied: surprise"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "this model reads text"),
        ({"messages": []}, "messages: expected at least one message"),
        ({"stop_sequences": [" "]}, "stop_sequences: expected a list of texts"),
    ]:
        with pytest.raises(anthropic.BadRequestError) as caught:
            _message(claude, **options)
        assert caught.value.body["type"] == "error" and caught.value.body["error"]["type"] == "invalid_request_error"
        assert text in caught.value.body["error"]["message"]
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.create(model="other", messages=_CHAT, max_tokens=1)
    wrong = anthropic.Anthropic(base_url=server.url.removesuffix("/v1"), api_key="wrong", max_retries=0)
    with pytest.raises(anthropic.AuthenticationError) as refused:
        _message(wrong)
    assert refused.value.body["error"]["type"] == "authentication_error"
    status, body, _ = server.request("POST", "/v1/messages", {"messages": _CHAT}, {"x-api-key": "secret"})
    assert status == 400 and "max_tokens: expected an integer of at least 1, got none" in body["error"]["message"]


def _respond(client, given="the cat sat", **options):
    return client.responses.create(model="tiny", input=given, **{"max_output_tokens": 12, "temperature": 0, **options})


def test_a_response_is_what_the_engine_says(client, llm):
    expected = llm.chat([{"role": "system", "content": "round"}, *_CHAT], temperature=0, max_tokens=12)
    items = [{"role": "user", "content": [{"type": "input_text", "text": "the cat sat"}]}]
    for given in ("the cat sat", items):
        found = _respond(client, given, instructions="round", metadata={"a": "b"})
        assert found.output_text == expected.text and found.metadata == {"a": "b"} and found.store is False
        ended = expected.completions[0].finish_reason
        assert found.status == {"length": "incomplete", "stop": "completed"}[ended]
        assert found.usage.input_tokens == len(expected.prompt_token_ids)
        assert found.usage.output_tokens == len(expected.completions[0].token_ids)


def test_a_stream_of_responses_says_the_same(client):
    whole = _respond(client)
    events = list(_respond(client, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created" and events[-1].type == f"response.{whole.status}"
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == whole.output_text == events[-1].response.output_text
    kinds = [event.type for event in events]
    for begin, end in [("output_item.added", "output_item.done"), ("content_part.added", "content_part.done")]:
        assert kinds.count(f"response.{begin}") == kinds.count(f"response.{end}") == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_function_that_has_to_be_called(client, stream):
    options = {"tools": [_OPENAI_TOOL, {"type": "web_search"}], "tool_choice": "required", "max_output_tokens": 60}
    if stream:
        events = list(_respond(client, stream=True, **options))
        found = events[-1].response
        (done,) = [event for event in events if event.type == "response.function_call_arguments.done"]
        deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
        assert "".join(deltas) == done.arguments == found.output[0].arguments
    else:
        found = _respond(client, **options)
    (call,) = found.output
    assert call.type == "function_call" and call.name == "weather" and json.loads(call.arguments)["days"] in (1, 2)
    history = [{"role": "user", "content": "the cat sat"}, call.model_dump(exclude_none=True)]
    history.append({"type": "function_call_output", "call_id": call.call_id, "output": "rain"})
    again = _respond(client, history, tools=[_OPENAI_TOOL], tool_choice="none")
    assert again.output[0].type == "message"


def test_a_response_of_a_schema(client):
    form = {"format": {"type": "json_schema", "name": "days", "schema": _SCHEMA, "strict": True}}
    assert json.loads(_respond(client, text=form, max_output_tokens=60).output_text)["days"] in (1, 2)


def test_what_responses_refuse(client):
    for options, param, text in [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "nothing is kept"),
        ({"given": [{"type": "item_reference", "id": "x"}]}, "input[0].type", "expected message"),
        ({"given": []}, "input", "expected a text or a list of items"),
        ({"extra_body": {"surprise": 1}}, "surprise", "Unrecognized request argument"),
        ({"background": True}, "background", "wait for the answer"),
    ]:
        with pytest.raises(openai.BadRequestError) as caught:
            _respond(client, **options)
        assert caught.value.param == param and text in caught.value.message


def test_thoughts_are_blocks_of_their_own(client, claude, llm):
    """The kinds of blocks follow from one reading; that of chats is tested against all texts."""
    from thresher.serve.answer_text import AnswerText
    from thresher.serve.reading import Blocks
    from thresher.serve.tool_formats import HERMES

    reader, blocks = AnswerText(think=True, tools=HERMES), Blocks()
    changes = []
    for part in (f"<think>hm</think>ok{_CALL}{_CALL}", ""):
        for piece in reader.add(part) if part else reader.finish():
            changes += list(blocks.add(piece))
    changes += list(blocks.finish())
    assert [(b.kind, b.text, b.name) for b in blocks.blocks] == [
        ("reasoning", "hm", ""),
        ("text", "ok", ""),
        ("call", '{"days": 1}', "weather"),
        ("call", '{"days": 1}', "weather"),
    ]
    assert [what for what, _, _ in changes] == ["begin", "add", "end"] * 4
    prompt = {"chat_template_kwargs": {"enable_thinking": True}}
    assert client.chat.completions.create(model="tiny", messages=_CHAT, max_tokens=4, extra_body=prompt).choices
    thinking = _message(claude, extra_body={"temperature": 0, "thinking": {"type": "enabled", "budget_tokens": 1024}})
    assert [block.type for block in thinking.content] == ["thinking"]

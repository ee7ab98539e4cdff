"""thresher serve, asked by OpenAI's own client."""

from __future__ import annotations

import json
import re

import pytest
from serving import serve_command, serving, write_model

openai = pytest.importorskip("openai")
pytest.importorskip("uvicorn")
pytest.importorskip("llguidance")

from thresher.llm import LLM  # noqa: E402

_CHAT = [{"role": "user", "content": "the cat sat"}]
_TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "of a town",
        "parameters": {
            "type": "object",
            "properties": {"days": {"$ref": "#/$defs/days"}},
            "required": ["days"],
            "additionalProperties": False,
            "$defs": {"days": {"enum": [1, 2]}},
        },
    },
}
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
    options = ["--max-batch", "4", "--max-waiting", "16", "--max-length", "500", "--allow-grammars"]
    with serving(serve_command(folder, *options)) as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=server.url, api_key="any", max_retries=0, timeout=60) as made:
        yield made


def _ask(client, messages=_CHAT, **options):
    options = {"max_completion_tokens": 12, "temperature": 0, **options}
    return client.chat.completions.create(model="tiny", messages=messages, **options)


def test_a_chat_is_what_the_engine_says(client, llm):
    expected = llm.chat(_CHAT, temperature=0, max_tokens=12)
    found = _ask(client)
    assert found.choices[0].message.content == expected.text
    assert found.choices[0].message.role == "assistant" and found.choices[0].message.tool_calls is None
    assert found.choices[0].finish_reason == expected.completions[0].finish_reason
    assert found.usage.prompt_tokens == len(expected.prompt_token_ids)
    assert found.usage.completion_tokens == len(expected.completions[0].token_ids)
    assert found.usage.total_tokens == found.usage.prompt_tokens + found.usage.completion_tokens
    assert (found.object, found.model) == ("chat.completion", "tiny")


def test_a_stream_says_the_same_in_parts(client):
    whole = _ask(client, n=2, temperature=1, seed=5, logprobs=True, top_logprobs=2)
    chunks = list(
        _ask(
            client,
            n=2,
            temperature=1,
            seed=5,
            logprobs=True,
            top_logprobs=2,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    last = chunks.pop()
    assert last.choices == [] and last.usage.model_dump() == {
        **whole.usage.model_dump(),
        "prompt_tokens_details": last.usage.prompt_tokens_details.model_dump(),
    }
    assert {chunk.id for chunk in chunks} == {last.id} and all(chunk.usage is None for chunk in chunks)
    for choice in whole.choices:
        parts = [c.choices[0] for c in chunks if c.choices[0].index == choice.index]
        assert parts[0].delta.role == "assistant" and not any(part.delta.role for part in parts[1:])
        assert "".join(part.delta.content or "" for part in parts) == choice.message.content
        assert [part.finish_reason for part in parts] == [None] * (len(parts) - 1) + [choice.finish_reason]
        logprobs = [entry for part in parts for entry in (part.logprobs.content if part.logprobs else [])]
        assert logprobs == choice.logprobs.content and len(logprobs) >= 1


def test_logprobs_say_tokens_and_their_bytes(client, llm):
    choice = _ask(client, logprobs=True, top_logprobs=3).choices[0]
    expected = llm.chat(_CHAT, temperature=0, max_tokens=12, logprobs=3).completions[0]
    entries = choice.logprobs.content
    assert [e.logprob for e in entries] == pytest.approx(
        [e.logprob for e in expected.logprobs][: len(entries)], abs=1e-4
    )
    assert all(len(e.top_logprobs) == 3 and e.top_logprobs[0].bytes == e.bytes for e in entries)
    text = b"".join(bytes(e.bytes) for e in entries).decode("utf-8", "replace")
    # Of a character whose last bytes never came the text has nothing.
    assert text.startswith(choice.message.content) and not text[len(choice.message.content) :].strip("\ufffd")


def test_stop_seed_bias_and_n(client, llm):
    text = _ask(client).choices[0].message.content
    stop = text[2:5]
    stopped = _ask(client, stop=stop).choices[0]
    assert stopped.message.content == text[: text.index(stop)] and stopped.finish_reason == "stop"
    many = [[c.message.content for c in _ask(client, n=3, temperature=1, seed=7).choices] for _ in range(2)]
    assert many[0] == many[1] and len(set(many[0])) > 1
    token = llm.encode("cat")[0]
    biased = _ask(client, logit_bias={str(token): 100}, max_completion_tokens=2).choices[0]
    assert biased.message.content == llm.tokenizer.decode([token] * 2) and biased.finish_reason == "length"


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_keeps_to_a_schema(client, stream):
    schema = {
        "type": "object",
        "properties": {"legs": {"type": "integer", "minimum": 0, "maximum": 9}, "name": {"enum": ["cat", "dog"]}},
        "required": ["legs", "name"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "animal", "strict": True, "schema": schema}}
    found = _ask(client, response_format=form, temperature=1, seed=3, max_completion_tokens=60, stream=stream)
    if stream:
        text = "".join(chunk.choices[0].delta.content or "" for chunk in found)
    else:
        text = found.choices[0].message.content
    animal = json.loads(text)
    assert set(animal) == {"legs", "name"} and animal["name"] in ("cat", "dog") and 0 <= animal["legs"] <= 9


def test_a_json_object(client):
    text = _ask(
        client,
        response_format={"type": "json_object"},
        extra_body={"min_tokens": 0},
        logit_bias={},
        temperature=1,
        seed=1,
        max_completion_tokens=150,
    ).choices[0]
    assert text.message.content.startswith("{") and (text.finish_reason == "length" or json.loads(text.message.content))


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_tool_that_has_to_be_called(client, choice):
    found = _ask(client, tools=[_TOOL], tool_choice=choice, parallel_tool_calls=False, max_completion_tokens=60)
    message = found.choices[0].message
    assert found.choices[0].finish_reason == "tool_calls" and message.content is None
    (call,) = message.tool_calls
    assert call.function.name == "weather" and json.loads(call.function.arguments)["days"] in (1, 2)
    again = _ask(
        client,
        [*_CHAT, message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": "rain"}],
        tools=[_TOOL],
        tool_choice="none",
    )
    assert again.choices[0].finish_reason in ("stop", "length") and again.choices[0].message.tool_calls is None


def _steered(llm, text):
    """Lets the model say a text of ours: what is tested is how it is read."""
    parts = re.split("(</?tool_call>)", text)
    said = [f"<[{llm.tokenizer.token_id(p)}]>" if p.endswith("tool_call>") else json.dumps(p) for p in parts if p]
    return {"structured_outputs": {"grammar": f"start: {' '.join(said)}"}}


def test_thoughts_and_calls_of_an_answer_are_told_apart(client, llm):
    text = f"<think>\nhm, rain?\n</think>\n\nLet me see.\n{_CALL}\n{_CALL.replace('1', '2')}"
    options = {"tools": [_TOOL], "max_completion_tokens": 150, "extra_body": _steered(llm, text)}
    message = _ask(client, **options).choices[0].message
    assert (message.reasoning_content, message.content) == ("hm, rain?", "Let me see.")
    assert [json.loads(call.function.arguments) for call in message.tool_calls] == [{"days": 1}, {"days": 2}]
    assert len({call.id for call in message.tool_calls}) == 2
    thoughts, content, calls = "", "", {}
    chunks = list(_ask(client, stream=True, **options))
    for chunk in chunks:
        delta = chunk.choices[0].delta
        thoughts += getattr(delta, "reasoning_content", None) or ""
        content += delta.content or ""
        for call in delta.tool_calls or []:
            if call.id:
                calls[call.index] = [call.function.name, ""]
            calls[call.index][1] += call.function.arguments or ""
    assert (thoughts, content) == ("hm, rain?", "Let me see.")
    assert calls == {0: ["weather", '{"days": 1}'], 1: ["weather", '{"days": 2}']}
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_a_thought_that_the_prompt_begins(client):
    found = _ask(client, extra_body={"chat_template_kwargs": {"enable_thinking": True}})
    assert found.choices[0].message.content == "" and found.choices[0].message.reasoning_content
    assert found.usage.completion_tokens_details.reasoning_tokens >= found.usage.completion_tokens - 1


def test_completions(client, llm):
    prompts = ["the cat sat", "the moon looked"]
    expected = [llm.generate(p, temperature=0, max_tokens=6)[0] for p in prompts]
    found = client.completions.create(model="tiny", prompt=prompts, temperature=0, max_tokens=6)
    assert [c.text for c in found.choices] == [e.text for e in expected]
    assert [c.index for c in found.choices] == [0, 1]
    tokens = client.completions.create(model="tiny", prompt=llm.encode(prompts[0]), temperature=0, max_tokens=6)
    assert tokens.choices[0].text == expected[0].text
    parts: dict[int, str] = {}
    for chunk in client.completions.create(
        model="tiny", prompt=prompts, n=2, seed=1, temperature=0, max_tokens=6, stream=True
    ):
        parts[chunk.choices[0].index] = parts.get(chunk.choices[0].index, "") + chunk.choices[0].text
    assert parts == {0: expected[0].text, 1: expected[0].text, 2: expected[1].text, 3: expected[1].text}


def test_the_likelihood_of_a_prompt(client, llm):
    text = "the cat sat on the mat"
    found = client.completions.create(model="tiny", prompt=text, max_tokens=0, echo=True, logprobs=1)
    expected = llm.generate(text, max_tokens=1, prompt_logprobs=1)[0]
    report = found.choices[0].logprobs
    assert found.choices[0].text == text and found.usage.completion_tokens == 0
    assert report.token_logprobs[0] is None and "".join(report.tokens) == text
    assert report.token_logprobs[1:] == pytest.approx([e.logprob for e in expected.prompt_logprobs], abs=1e-4)
    assert report.text_offset == [len("".join(report.tokens[:i])) for i in range(len(report.tokens))]


def test_a_known_beginning_is_counted(client):
    prompt = "a dog ran round the old house in the rain " * 3
    first, second = (client.completions.create(model="tiny", prompt=prompt, max_tokens=2).usage for _ in range(2))
    assert first.prompt_tokens_details.cached_tokens == 0
    assert second.prompt_tokens_details.cached_tokens >= 32


def test_models(client):
    (card,) = client.models.list().data
    assert (card.id, card.object, card.owned_by) == ("tiny", "model", "thresher")
    assert card.max_model_len == 500
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError, match="expected the model 'tiny', got 'gpt-9'"):
        client.models.retrieve("gpt-9")


@pytest.mark.parametrize(
    ("options", "param", "code", "text"),
    [
        ({"temperature": 3}, "temperature", "invalid_value", "expected a number from 0 to 2, got 3"),
        ({"temperature": "hot"}, "temperature", "invalid_value", 'expected a number from 0 to 2, got "hot"'),
        ({"top_p": 0}, "top_p", "invalid_value", "expected above 0"),
        ({"n": 0}, "n", "invalid_value", "expected an integer from 1 to 128, got 0"),
        ({"n": True}, "n", "invalid_value", "expected an integer"),
        ({"stop": [""]}, "stop", "invalid_value", "not empty"),
        ({"stop": ["a"] * 17}, "stop", "invalid_value", "at most 16"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "invalid_value", "numbers of tokens"),
        ({"logit_bias": {"99999": 1}}, "logit_bias", "invalid_value", "expected tokens from 0 to"),
        ({"top_logprobs": 2}, "top_logprobs", None, "expected logprobs beside it"),
        ({"messages": []}, "messages", "invalid_value", "at least one message"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "missing_required_parameter", "got none"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role", "invalid_value", "one of system"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
         "messages[0].content[0].type", "invalid_value", "this model reads text"),
        ({"messages": [{"role": "user", "content": "the cat " * 400}]}, "prompt", "context_length_exceeded",
         "expected at most 499 tokens"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "invalid_value", "expected one of text"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}},
         "json_schema", "invalid_value", "expected keywords that are supported, got 'not'"),
        ({"tools": [{"type": "retrieval"}]}, "tools[0].type", "invalid_value", "expected one of function"),
        ({"tools": [_TOOL], "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice",
         "invalid_value", "expected one of the tools: weather"),
        ({"tool_choice": "required"}, "tool_choice", None, "expected tools beside it"),
        ({"functions": [{"name": "x"}]}, "functions", "unsupported_parameter", "send tools"),
        ({"stream_options": {"include_usage": True}}, "stream_options", None, "expected none without stream"),
        ({"surprise": 1}, "surprise", "unknown_parameter", "Unrecognized request argument supplied: surprise"),
        ({"model": "other"}, "model", "model_not_found", "expected the model 'tiny', got 'other'"),
    ],
)  # fmt: skip
def test_what_is_refused_and_how(client, options, param, code, text):
    given = {"model": "tiny", "messages": _CHAT, **options}
    names = ("model", "messages")
    with pytest.raises((openai.BadRequestError, openai.NotFoundError)) as caught:
        client.chat.completions.create(
            **{name: given[name] for name in names}, extra_body={k: v for k, v in given.items() if k not in names}
        )
    error = caught.value
    assert text in error.message
    assert (error.param, error.code, error.type) == (param, code, "invalid_request_error")
    assert _ask(client, max_completion_tokens=1).choices  # and nothing else is harmed


def test_what_changes_nothing_is_accepted(client):
    plain = _ask(client).choices[0].message.content
    assert (
        _ask(client, user="me", store=False, metadata={"a": "b"}, service_tier="auto").choices[0].message.content
        == plain
    )
    texts = [{"role": "user", "content": [{"type": "text", "text": "the cat sat"}], "name": "me"}]
    assert _ask(client, texts).choices[0].message.content == plain


def test_many_at_a_time(client, llm):
    from concurrent.futures import ThreadPoolExecutor

    prompts = [f"the {word} sat" for word in ("cat", "dog", "moon", "house", "rain", "mat", "old", "round")]
    expected = [o.text for o in llm.generate(prompts, temperature=0, max_tokens=20)]

    def ask(prompt):
        return client.completions.create(model="tiny", prompt=prompt, temperature=0, max_tokens=20).choices[0].text

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, prompts)) == expected

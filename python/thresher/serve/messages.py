"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API."""

from __future__ import annotations

import json
import uuid
from typing import Any

from thresher.serve.chat_prompt import Chat, ChatPrompt, chat_prompt, text_of
from thresher.serve.reading import Block, Blocks, Reading
from thresher.serve.service import Answers, Service
from thresher.web.errors import ApiError
from thresher.web.exchange import Exchange, event
from thresher.web.fields import Fields, wrong

# Who asks, what it costs, where it is kept, and what only the makers' own models have.
_WITHOUT_EFFECT = (
    *("metadata", "service_tier", "container", "mcp_servers", "context_management", "cache_control", "inference_geo"),
    *("speed", "betas"),
)


class Messages:
    """Answers chats."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def answer(self, exchange: Exchange) -> None:
        """Answers one."""
        fields = Fields(await exchange.json())
        self._service.check_name(fields.text("model"))
        stream = fields.flag("stream")
        most = fields.integer("max_tokens", 1)
        if most is None:
            raise wrong("max_tokens", "an integer of at least 1", None)
        chat = _read(fields)
        chat.options["max_tokens"] = most
        prompt = await chat_prompt(self._service, chat)

        async def work() -> None:
            async with await self._service.answer([prompt.tokens], prompt.params) as answers:
                made = _Message(self._service, answers, prompt)
                await (made.stream(exchange) if stream else made.whole(exchange))

        await exchange.while_listening(work())

    async def count(self, exchange: Exchange) -> None:
        """Says how many tokens the prompt of a chat has."""
        fields = Fields(await exchange.json())
        self._service.check_name(fields.text("model"))
        prompt = await chat_prompt(self._service, _read(fields))
        await exchange.send_json({"input_tokens": len(prompt.tokens)})


def _read(fields: Fields) -> Chat:
    options: dict[str, Any] = {
        "temperature": fields.number("temperature", 0, 1),
        "top_p": fields.number("top_p", 0, 1),
        "top_k": fields.integer("top_k", 0),
        "stop": fields.raw("stop_sequences") or None,
        **_form(fields),
    }
    stops = options["stop"]
    if stops is not None and (
        not isinstance(stops, list) or not all(isinstance(text, str) and text.strip() for text in stops)
    ):
        raise wrong("stop_sequences", "a list of texts", stops)
    thinking = fields.object("thinking")
    thinks = thinking is not None and thinking.text("type") in ("enabled", "adaptive")
    given = fields.objects("messages")
    if not given:
        raise wrong("messages", "at least one message", None if given is None else [])
    messages = [made for message in given for made in _messages(message)]
    system = text_of(fields.raw("system"), "system")
    if system:
        messages.insert(0, {"role": "system", "content": system})
    tools = []
    for tool in fields.objects("tools") or []:
        if tool.text("type") not in (None, "custom"):
            continue  # a tool that runs at the makers'
        name = tool.wanted_text("name")
        made: dict[str, Any] = {"name": name, "parameters": dict(tool.mapping("input_schema") or {"type": "object"})}
        if tool.text("description"):
            made["description"] = tool.text("description")
        tools.append(made)
    choice, many = _choice(fields, bool(tools))
    fields.ignore(*_WITHOUT_EFFECT)
    fields.done()
    options = {name: value for name, value in options.items() if value is not None}
    return Chat(messages, tools, choice, many, options, {"enable_thinking": thinks})


def _form(fields: Fields) -> dict[str, Any]:
    settings = fields.object("output_config")
    given = fields.object("output_format") if settings is None else settings.object("format")
    if given is None:
        return {}
    if given.choice("type", ("json_schema",)) is None:
        raise wrong(given.place("type"), "json_schema", None)
    schema = given.mapping("schema")
    if schema is None:
        raise wrong(given.place("schema"), "an object", None)
    return {"json_schema": schema}


def _choice(fields: Fields, tools: bool) -> tuple[str, bool]:
    given = fields.object("tool_choice")
    if given is None or not tools:
        return "auto", False
    many = not given.flag("disable_parallel_tool_use", True)
    kind = given.choice("type", ("auto", "any", "tool", "none"))
    if kind == "tool":
        return f"={given.wanted_text('name')}", many
    return {"any": "required", "none": "none"}.get(kind or "auto", "auto"), many


def _messages(message: Fields) -> list[dict[str, Any]]:
    """One message of theirs as messages of templates: results of tools are messages there."""
    role = message.choice("role", ("user", "assistant"))
    if role is None:
        raise wrong(message.place("role"), "user or assistant", None)
    content = message.raw("content")
    if content is None or isinstance(content, str):
        return [{"role": role, "content": text_of(content, message.place("content"))}]
    found: list[dict[str, Any]] = []
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for block in message.objects("content") or []:
        kind = block.text("type")
        if kind == "text":
            texts.append(block.wanted_text("text"))
        elif kind == "thinking":
            thoughts.append(block.text("thinking") or "")
        elif kind == "redacted_thinking":
            continue
        elif kind == "tool_use" and role == "assistant":
            function = {"name": block.wanted_text("name"), "arguments": dict(block.mapping("input") or {})}
            calls.append({"id": block.text("id") or "", "type": "function", "function": function})
        elif kind == "tool_result" and role == "user":
            text = text_of(block.raw("content"), block.place("content"))
            if block.flag("is_error"):
                text = f"Error: {text}"
            found.append({"role": "tool", "tool_call_id": block.wanted_text("tool_use_id"), "content": text})
        else:
            raise ApiError(
                400,
                f"{block.place('type')}: expected text, tool_use or tool_result, got {str(kind)[:40]!r}; this model "
                "reads text",
            )
    if texts or calls or not found:
        made: dict[str, Any] = {"role": role, "content": "\n".join(texts)}
        if calls:
            made["tool_calls"] = calls
        if any(thoughts):
            made["reasoning_content"] = "\n".join(thoughts)
        found.append(made)
    return found


class _Message:
    """What is sent about one chat."""

    def __init__(self, service: Service, answers: Answers, prompt: ChatPrompt) -> None:
        self._reading = Reading(answers, prompt)
        self._blocks = Blocks()
        self._head = {
            "id": f"msg_{uuid.uuid4().hex[:24]}",
            "type": "message",
            "role": "assistant",
            "model": service.name,
        }
        self._stop: dict[str, Any] = {"stop_reason": None, "stop_sequence": None}

    async def whole(self, exchange: Exchange) -> None:
        """Sends all at once."""
        while taken := await self._reading.take():
            for delta, pieces in taken:
                for piece in pieces:
                    list(self._blocks.add(piece))
                self._note_end(delta.finish_reason, delta.stop)
        content = [_content(block) for block in self._blocks.blocks]
        await exchange.send_json({**self._head, "content": content, **self._stop, "usage": self._usage()})

    async def stream(self, exchange: Exchange) -> None:
        """Sends parts as they come."""
        while taken := await self._reading.take():
            events = b""
            if not exchange.started:
                await exchange.begin_events()
                message = {**self._head, "content": [], **self._stop, "usage": {**self._usage(), "output_tokens": 0}}
                events = _event("message_start", message=message)
            for delta, pieces in taken:
                for piece in pieces:
                    events += b"".join(_change(*change) for change in self._blocks.add(piece))
                self._note_end(delta.finish_reason, delta.stop)
            if events:
                await exchange.send_events(events)
        events = b"".join(_change(*change) for change in self._blocks.finish())
        events += _event("message_delta", delta=self._stop, usage=self._usage())
        await exchange.end_events(events + _event("message_stop"))

    def _note_end(self, reason: str | None, stop: str | None) -> None:
        if reason is None:
            return
        if reason == "stop" and self._reading.called(0):
            found = "tool_use"
        elif stop is not None:
            found = "stop_sequence"
        else:
            found = "max_tokens" if reason == "length" else "end_turn"
        self._stop = {"stop_reason": found, "stop_sequence": stop if found == "stop_sequence" else None}

    def _usage(self) -> dict[str, Any]:
        usage = self._reading.answers.usage()
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return {
            "input_tokens": usage["prompt_tokens"] - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": usage["completion_tokens"],
        }


def _content(block: Block) -> dict[str, Any]:
    if block.kind == "text":
        return {"type": "text", "text": block.text}
    if block.kind == "reasoning":
        return {"type": "thinking", "thinking": block.text, "signature": ""}
    try:
        arguments = json.loads(block.text) if block.text else {}
    except (ValueError, RecursionError):  # cut short
        arguments = {}
    return {"type": "tool_use", "id": f"toolu_{block.identity}", "name": block.name, "input": arguments}


def _change(what: str, block: Block, text: str) -> bytes:
    if what == "end":
        return _event("content_block_stop", index=block.number)
    if what == "begin":
        empty = _content(Block(block.kind, block.number, name=block.name, identity=block.identity))
        return _event("content_block_start", index=block.number, content_block=empty)
    kinds = {"text": ("text_delta", "text"), "reasoning": ("thinking_delta", "thinking")}
    kind, key = kinds.get(block.kind, ("input_json_delta", "partial_json"))
    return _event("content_block_delta", index=block.number, delta={"type": kind, key: text})


def _event(name: str, **data: Any) -> bytes:
    return event({"type": name, **data}, name)

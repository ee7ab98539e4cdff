"""POST /v1/responses: OpenAI's API for agents, without memory: every request says all that came before."""

from __future__ import annotations

import time
import uuid
from typing import Any

from thresher.serve import sampling_fields
from thresher.serve.chat_prompt import Chat, ChatPrompt, arguments_of, chat_prompt, read_tool, text_of
from thresher.serve.logprobs import chat_logprobs
from thresher.serve.reading import Block, Blocks, Reading
from thresher.serve.service import Answers, Service
from thresher.web.errors import ApiError
from thresher.web.exchange import Exchange, event
from thresher.web.fields import Fields, wrong

_TEXTS = ("input_text", "output_text", "text")
_ROLES = ("user", "assistant", "system", "developer")
_MOST_LOGPROBS = 20
_PREFIXES = {"reasoning": "rs", "call": "fc", "text": "msg"}  # of the names of items


class Responses:
    """Answers chats."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, exchange: Exchange) -> None:
        """Answers one."""
        fields = Fields(await exchange.json())
        self._service.check_name(fields.text("model"))
        stream = fields.flag("stream")
        chat, echoed = _read(fields)
        prompt = await chat_prompt(self._service, chat)

        async def work() -> None:
            async with await self._service.answer([prompt.tokens], prompt.params, chat.priority) as answers:
                made = _Response(self._service, answers, prompt, echoed)
                await (made.stream(exchange) if stream else made.whole(exchange))

        await exchange.while_listening(work())


def _read(fields: Fields) -> tuple[Chat, dict[str, Any]]:
    """The chat, and what a response repeats of its request."""
    fields.refuse(
        previous_response_id="nothing is kept: send all messages as input",
        conversation="nothing is kept: send all messages as input",
        background="wait for the answer, or stream it",
        prompt="send the text itself as input",
    )
    fields.ignore("include", "truncation", "max_tool_calls", "stream_options", *sampling_fields.WITHOUT_EFFECT)
    form, settings = _form(fields)
    temperature, top_p = fields.number("temperature", 0, 2), fields.number("top_p", 0, 1)
    most, logprobs = fields.integer("max_output_tokens", 1), fields.integer("top_logprobs", 0, _MOST_LOGPROBS)
    options = {"temperature": temperature, "top_p": top_p, "max_tokens": most, "logprobs": logprobs, **form}
    messages = _messages(fields)
    instructions = fields.text("instructions")
    if instructions:
        messages.insert(0, {"role": "system", "content": instructions})
    tools = [read_tool(tool) for tool in fields.objects("tools") or [] if tool.text("type") == "function"]
    choice = _choice(fields, bool(tools))
    many = fields.flag("parallel_tool_calls")
    reasoning = fields.mapping("reasoning")
    effort = None if reasoning is None else Fields(reasoning, "reasoning").text("effort")
    template_options: dict[str, Any] = {} if effort is None else {"reasoning_effort": effort}
    if effort == "none":
        template_options["enable_thinking"] = False
    priority = fields.integer("priority", -(2**31), 2**31) or 0
    echoed = {
        "instructions": instructions,
        "max_output_tokens": most,
        "metadata": fields.mapping("metadata") or {},
        "parallel_tool_calls": many,
        "previous_response_id": None,
        "reasoning": {"effort": effort, "summary": None},
        "store": False,
        "temperature": 1.0 if temperature is None else temperature,
        "text": settings,
        "tool_choice": fields.raw("tool_choice") or "auto",
        "tools": [{"type": "function", "strict": False, "description": None, **tool} for tool in tools],
        "top_p": 1.0 if top_p is None else top_p,
        "truncation": "disabled",
    }
    fields.done()
    options = {name: value for name, value in options.items() if value is not None}
    return Chat(messages, tools, choice, many, options, template_options, priority), echoed


def _form(fields: Fields) -> tuple[dict[str, Any], dict[str, Any]]:
    """The form of the answer as options, and what says so."""
    plain = {"format": {"type": "text"}}
    settings = fields.object("text")
    given = None if settings is None else settings.object("format")
    if given is None:
        return {}, plain
    kind = given.choice("type", ("text", "json_object", "json_schema"))
    if kind == "json_object":
        return {"json_schema": {"type": "object"}}, {"format": {"type": "json_object"}}
    if kind == "json_schema":
        schema = given.mapping("schema")
        if schema is None:
            raise wrong(given.place("schema"), "an object", None)
        named = {"type": kind, "name": given.text("name") or "", "strict": True, "schema": schema}
        return {"json_schema": schema}, {"format": named}
    return {}, plain


def _choice(fields: Fields, tools: bool) -> str:
    given = fields.raw("tool_choice")
    if given is None or not tools:
        return "auto"
    if isinstance(given, str):
        choice = fields.choice("tool_choice", ("none", "auto", "required"))
        return choice or "auto"
    named = Fields(given, "tool_choice")
    if named.text("type") == "function":
        return f"={named.wanted_text('name')}"
    return "required" if named.text("mode") == "required" else "auto"


def _messages(fields: Fields) -> list[dict[str, Any]]:
    given = fields.raw("input")
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    items = fields.objects("input")
    if not items:
        raise wrong("input", "a text or a list of items", given)
    found: list[dict[str, Any]] = []
    thought = ""
    for item in items:
        kind = item.text("type") or "message"
        if kind == "message":
            role = item.choice("role", _ROLES)
            if role is None:
                raise wrong(item.place("role"), f"one of {', '.join(_ROLES)}", None)
            content = text_of(item.raw("content"), item.place("content"), _TEXTS)
            made: dict[str, Any] = {"role": "system" if role == "developer" else role, "content": content}
        elif kind == "function_call":
            function = {"name": item.wanted_text("name"), "arguments": arguments_of(item.wanted_text("arguments"))}
            call = {"id": item.wanted_text("call_id"), "type": "function", "function": function}
            if found and found[-1]["role"] == "assistant":  # calls of one turn are one message's
                found[-1].setdefault("tool_calls", []).append(call)
                continue
            made = {"role": "assistant", "content": "", "tool_calls": [call]}
        elif kind == "function_call_output":
            content = text_of(item.raw("output"), item.place("output"), _TEXTS)
            made = {"role": "tool", "tool_call_id": item.wanted_text("call_id"), "content": content}
        elif kind == "reasoning":
            parts = item.objects("content") or item.objects("summary") or []
            thought = "\n".join(part.text("text") or "" for part in parts)
            continue
        else:
            raise ApiError(
                400,
                f"{item.place('type')}: expected message, function_call or its output, reasoning, got {kind[:40]!r}",
                param=item.place("type"),
                code="invalid_value",
            )
        if thought and made["role"] == "assistant":
            made["reasoning_content"] = thought
        thought = ""
        found.append(made)
    return found


class _Response:
    """What is sent about one request."""

    def __init__(self, service: Service, answers: Answers, prompt: ChatPrompt, echoed: dict[str, Any]) -> None:
        self._service = service
        self._reading = Reading(answers, prompt)
        self._blocks = Blocks()
        self._logprobs: dict[int, list[Any]] | None = None if prompt.params.logprobs is None else {}
        self._reason: str | None = None
        self._number = 0
        self._head = {"id": f"resp_{uuid.uuid4().hex}", "object": "response", "created_at": int(time.time())}
        self._echoed = echoed

    async def whole(self, exchange: Exchange) -> None:
        """Sends all at once."""
        while taken := await self._reading.take():
            for delta, pieces in taken:
                for piece in pieces:
                    list(self._blocks.add(piece))
                self._note(delta)
        await exchange.send_json(self._response(self._status()))

    async def stream(self, exchange: Exchange) -> None:
        """Sends parts as they come."""
        while taken := await self._reading.take():
            events = b""
            if not exchange.started:
                await exchange.begin_events()
                events += self._event("response.created", response=self._response("in_progress"))
                events += self._event("response.in_progress", response=self._response("in_progress"))
            for delta, pieces in taken:
                for piece in pieces:
                    for change in self._blocks.add(piece):
                        events += self._change(*change)
                self._note(delta)
            if events:
                await exchange.send_events(events)
        events = b"".join(self._change(*change) for change in self._blocks.finish())
        status = self._status()
        await exchange.end_events(events + self._event(f"response.{status}", response=self._response(status)))

    def _note(self, delta: Any) -> None:
        self._reason = delta.finish_reason
        if self._logprobs is not None and self._blocks.blocks:
            entries = chat_logprobs(self._service.tokenizer, delta)
            self._logprobs.setdefault(self._blocks.blocks[-1].number, []).extend(entries)

    def _status(self) -> str:
        return "incomplete" if self._reason == "length" else "completed"

    def _response(self, status: str) -> dict[str, Any]:
        begun = status == "in_progress"
        usage = self._reading.answers.usage()
        return {
            **self._head,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "model": self._service.name,
            "output": [] if begun else [self._item(block, status) for block in self._blocks.blocks],
            **self._echoed,
            "usage": None
            if begun
            else {
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": usage["prompt_tokens_details"],
                "output_tokens": usage["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": self._reading.thoughts},
                "total_tokens": usage["total_tokens"],
            },
        }

    def _item(self, block: Block, status: str, *, empty: bool = False) -> dict[str, Any]:
        """A block as an item of the output."""
        if status == "incomplete" and block is not self._blocks.blocks[-1]:
            status = "completed"
        text = "" if empty else block.text
        if block.kind == "reasoning":
            content = [] if empty else [{"type": "reasoning_text", "text": text}]
            return {"type": "reasoning", "id": self._id(block), "summary": [], "content": content, "status": status}
        if block.kind == "call":
            call = {"call_id": f"call_{block.identity}", "name": block.name, "arguments": text}
            return {"type": "function_call", "id": self._id(block), **call, "status": status}
        parts = [] if empty else [self._part(block, text)]
        return {"type": "message", "id": self._id(block), "role": "assistant", "content": parts, "status": status}

    def _part(self, block: Block, text: str) -> dict[str, Any]:
        logprobs = [] if self._logprobs is None else self._logprobs.get(block.number, [])
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    def _id(self, block: Block) -> str:
        return f"{_PREFIXES[block.kind]}_{block.identity}"

    def _change(self, what: str, block: Block, text: str) -> bytes:
        item = {"item_id": self._id(block), "output_index": block.number}
        place = {**item, "content_index": 0}
        if what == "begin":
            added = self._item(block, "in_progress", empty=True)
            events = self._event("response.output_item.added", output_index=block.number, item=added)
            if block.kind == "text":
                events += self._event("response.content_part.added", **place, part=self._part(block, ""))
            return events
        if what == "add":
            if block.kind == "call":
                return self._event("response.function_call_arguments.delta", **item, delta=text)
            if block.kind == "reasoning":
                return self._event("response.reasoning_text.delta", **place, delta=text)
            return self._event("response.output_text.delta", **place, delta=text, logprobs=[])
        if block.kind == "call":
            done = {"name": block.name, "arguments": block.text}
            events = self._event("response.function_call_arguments.done", **item, **done)
        elif block.kind == "reasoning":
            events = self._event("response.reasoning_text.done", **place, text=block.text)
        else:
            part = self._part(block, block.text)
            events = self._event("response.output_text.done", **place, text=block.text, logprobs=part["logprobs"])
            events += self._event("response.content_part.done", **place, part=part)
        last = self._item(block, self._status())
        return events + self._event("response.output_item.done", output_index=block.number, item=last)

    def _event(self, kind: str, **data: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        return event({"type": kind, "sequence_number": number, **data}, kind)


def stream_error(error: ApiError) -> dict[str, Any]:
    """An error in a stream that has begun."""
    return {"type": "error", "code": error.code, "message": error.message, "param": error.param, "sequence_number": 0}

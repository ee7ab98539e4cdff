"""POST /v1/chat/completions."""

from __future__ import annotations

import re
import time
import uuid
from json.encoder import encode_basestring_ascii as quoted
from typing import Any

from thresher.llm import Delta
from thresher.serve import sampling_fields
from thresher.serve.answer_text import Piece
from thresher.serve.chat_prompt import Chat, ChatPrompt, chat_prompt, read_messages, read_tool
from thresher.serve.logprobs import chat_logprobs
from thresher.serve.reading import Reading
from thresher.serve.service import Answers, Service
from thresher.web.errors import ApiError
from thresher.web.exchange import Exchange, event
from thresher.web.fields import Fields, wrong

_MOST_LOGPROBS = 20
_MOST_TOOLS = 128
_AT, _TEXT = 987654321, "the text itself"  # stand for what is put in later
_PLAIN = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": None}  # a part of an answer


class ChatCompletions:
    """Answers chats."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, exchange: Exchange) -> None:
        """Answers one."""
        fields = Fields(await exchange.json())
        self._service.check_name(fields.text("model"))
        stream = fields.flag("stream")
        usage = sampling_fields.include_usage(fields, stream)
        chat = _read(fields, self._service.grammars)
        prompt = await chat_prompt(self._service, chat)

        frame = _Frame(
            self._service.name, usage
        )  # now: once the request is submitted, the engine waits for nothing here

        async def work() -> None:
            async with await self._service.answer([prompt.tokens], prompt.params, chat.priority) as answers:
                made = _ChatAnswer(self._service, answers, prompt, frame)
                if stream:
                    await made.stream(exchange, usage)
                else:
                    await made.whole(exchange)

        await exchange.while_listening(work())


def _read(fields: Fields, grammars: bool) -> Chat:
    options = sampling_fields.common_options(fields, grammars=grammars)
    limits = [fields.integer(name, 1) for name in ("max_completion_tokens", "max_tokens")]
    options["max_tokens"] = next((limit for limit in limits if limit is not None), None)
    if fields.flag("logprobs"):
        options["logprobs"] = fields.integer("top_logprobs", 0, _MOST_LOGPROBS) or 0
    elif fields.integer("top_logprobs", 0, _MOST_LOGPROBS):
        raise ApiError(400, "top_logprobs: expected logprobs beside it, got none", param="top_logprobs")
    messages = read_messages(fields.objects("messages"))
    tools = _tools(fields)
    choice = _choice(fields, bool(tools))
    many = fields.flag("parallel_tool_calls")
    kinds = fields.raw("modalities")
    if kinds not in (None, ["text"]):
        raise wrong("modalities", 'text alone, ["text"]', kinds)
    fields.refuse(
        functions="send tools",
        function_call="send tool_choice",
        audio="this model answers in text",
        web_search_options="give the model a tool for that",
    )
    template_options = dict(fields.mapping("chat_template_kwargs") or {})
    effort = fields.text("reasoning_effort")
    if effort is not None:
        template_options.setdefault("reasoning_effort", effort)
        if effort == "none":
            template_options.setdefault("enable_thinking", False)
    for name in ("messages", "tools", "add_generation_prompt"):
        if name in template_options:
            raise ApiError(400, f"chat_template_kwargs: expected names of options, got {name}", param=name)
    priority = fields.integer("priority", -(2**31), 2**31) or 0
    fields.done()
    return Chat(messages, tools, choice, many, options, template_options, priority)


def _tools(fields: Fields) -> list[dict[str, Any]]:
    given = fields.objects("tools") or []
    if len(given) > _MOST_TOOLS:
        raise wrong("tools", f"at most {_MOST_TOOLS} tools", len(given))
    found = []
    for tool in given:
        kind = tool.choice("type", ("function",))
        function = tool.object("function")
        if kind is None or function is None:
            raise wrong(tool.place("function"), "an object, with type function beside it", None)
        found.append(read_tool(function))
    return found


def _choice(fields: Fields, tools: bool) -> str:
    """What `tool_choice` says, as Chat has it."""
    given = fields.raw("tool_choice")
    if given is None:
        return "auto"
    if not tools:
        if given in ("none", "auto"):
            return "auto"
        raise ApiError(400, "tool_choice: expected tools beside it, got none", param="tool_choice")
    if isinstance(given, str):
        if given not in ("none", "auto", "required"):
            raise wrong("tool_choice", "none, auto, required or a function", given)
        return given
    named = Fields(given, "tool_choice")
    named.choice("type", ("function",))
    function = named.object("function")
    if function is None:
        raise wrong("tool_choice.function", "an object", None)
    return f"={function.wanted_text('name')}"


def _is_text(pieces: list[Piece]) -> bool:
    return len(pieces) == 1 and pieces[0].kind == "text"


class _Frame:
    """What all parts of an answer have in common.

    Attributes:
      head: of the answer.
      chunk_head, chunk_tail: of a part of it.
      plain: of a part that differs in its number and text alone, as nearly all do: what stands before, between, after.
    """

    def __init__(self, model: str, usage: bool) -> None:
        self.head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}
        self.chunk_head = {**self.head, "object": "chat.completion.chunk"}
        self.chunk_tail = {"usage": None} if usage else {}
        choice = {**_PLAIN, "index": _AT, "delta": {"content": _TEXT}}
        plain = event({**self.chunk_head, "choices": [choice], **self.chunk_tail}).decode()
        self.plain = tuple(re.split(f'{_AT}|"{_TEXT}"', plain))


class _ChatAnswer:
    """What is sent about one chat."""

    def __init__(self, service: Service, answers: Answers, prompt: ChatPrompt, frame: _Frame) -> None:
        self._service, self._answers = service, answers
        self._count = prompt.params.n
        self._logprobs = prompt.params.logprobs is not None
        self._reading = Reading(answers, prompt)
        self._ids: dict[tuple[int, int], str] = {}
        self._frame = frame

    async def stream(self, exchange: Exchange, usage: bool) -> None:
        """Sends parts as they come."""
        head, tail = self._frame.chunk_head, self._frame.chunk_tail
        begun: set[int] = set()
        before, between, after = self._frame.plain
        while taken := await self._reading.take():
            if not exchange.started:
                await exchange.begin_events()
            events = b""
            for delta, pieces in taken:
                reason = self._reason(delta)
                if delta.index in begun and not reason and not self._logprobs and _is_text(pieces):
                    events += f"{before}{delta.index}{between}{quoted(pieces[0].text)}{after}".encode()
                    continue
                changes = [self._change(delta.index, piece) for piece in pieces]
                if delta.index not in begun:
                    begun.add(delta.index)
                    first = {"role": "assistant", "content": ""}
                    changes = [first | changes[0], *changes[1:]] if changes else [first]
                if not changes and (delta.logprobs or reason):
                    changes = [{}]
                for number, change in enumerate(changes):
                    last = number == len(changes) - 1
                    choice = {
                        "index": delta.index,
                        "delta": change,
                        "logprobs": self._report(delta) if last else None,
                        "finish_reason": reason if last else None,
                    }
                    events += event({**head, "choices": [choice], **tail})
            if events:
                await exchange.send_events(events)
        last_event = event({**head, "choices": [], "usage": self._usage()}) if usage else b""
        await exchange.end_events(last_event + b"data: [DONE]\n\n")

    async def whole(self, exchange: Exchange) -> None:
        """Sends all at once."""
        count = self._count
        found: list[list[Piece]] = [[] for _ in range(count)]
        reports: list[list[Any]] = [[] for _ in range(count)]
        reasons: list[str | None] = [None] * count
        while taken := await self._reading.take():
            for delta, pieces in taken:
                found[delta.index] += pieces
                if self._logprobs:
                    reports[delta.index] += chat_logprobs(self._service.tokenizer, delta)
                reasons[delta.index] = self._reason(delta)
        choices = [
            {
                "index": index,
                "message": self._message(index, found[index]),
                "logprobs": {"content": reports[index], "refusal": None} if self._logprobs else None,
                "finish_reason": reasons[index],
            }
            for index in range(count)
        ]
        await exchange.send_json(
            {**self._frame.head, "object": "chat.completion", "choices": choices, "usage": self._usage()}
        )

    def _reason(self, delta: Delta) -> str | None:
        if delta.finish_reason == "stop" and self._reading.called(delta.index):
            return "tool_calls"
        return delta.finish_reason

    def _change(self, index: int, piece: Piece) -> dict[str, Any]:
        """A part of an answer as a stream has it."""
        if piece.kind == "text":
            return {"content": piece.text}
        if piece.kind == "reasoning":
            return {"reasoning_content": piece.text}
        if piece.kind == "call":
            function = {"name": piece.text, "arguments": ""}
            call = {"index": piece.call, "id": self._id(index, piece.call), "type": "function", "function": function}
            return {"tool_calls": [call]}
        return {"tool_calls": [{"index": piece.call, "function": {"arguments": piece.text}}]}

    def _message(self, index: int, pieces: list[Piece]) -> dict[str, Any]:
        text = "".join(piece.text for piece in pieces if piece.kind == "text")
        thought = "".join(piece.text for piece in pieces if piece.kind == "reasoning")
        calls = []
        for piece in pieces:
            if piece.kind == "call":
                calls.append(
                    {
                        "id": self._id(index, piece.call),
                        "type": "function",
                        "function": {
                            "name": piece.text,
                            "arguments": "".join(
                                p.text for p in pieces if p.kind == "arguments" and p.call == piece.call
                            ),
                        },
                    }
                )
        message: dict[str, Any] = {"role": "assistant", "content": text or (None if calls else ""), "refusal": None}
        if thought:
            message["reasoning_content"] = thought
        if calls:
            message["tool_calls"] = calls
        return message

    def _id(self, index: int, call: int) -> str:
        return self._ids.setdefault((index, call), f"call_{uuid.uuid4().hex[:24]}")

    def _report(self, delta: Delta) -> dict[str, Any] | None:
        if not self._logprobs:
            return None
        return {"content": chat_logprobs(self._service.tokenizer, delta), "refusal": None}

    def _usage(self) -> dict[str, Any]:
        usage = self._answers.usage()
        usage["completion_tokens_details"]["reasoning_tokens"] = self._reading.thoughts
        return usage

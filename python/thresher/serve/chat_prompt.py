"""Makes a chat and its tools a prompt, and knows how to read the answer."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from thresher.llm import ChatTemplateError, SamplingParams
from thresher.llm.constraints import check_schema
from thresher.serve.answer_text import THINK, THOUGHT, AnswerText
from thresher.serve.sampling_fields import FORMS, sampling_params
from thresher.serve.service import Service, refusal
from thresher.serve.tool_formats import ToolFormat, format_of
from thresher.web.errors import ApiError
from thresher.web.fields import Fields, wrong

ROLES = ("system", "developer", "user", "assistant", "tool")


@dataclasses.dataclass(slots=True)
class Chat:
    """A chat to answer, whatever API it came by.

    Attributes:
      messages: as chat templates take them.
      tools: functions: each with "name" and perhaps "description" and "parameters".
      choice: "auto", "none", "required", or the name of the tool to call, behind "=".
      many_calls: an answer that has to call tools may call several; one that may does so as the model likes.
      options: of SamplingParams.
      template_options: more names for the template.
      priority: of the request.
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    choice: str = "auto"
    many_calls: bool = False
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    template_options: dict[str, Any] = dataclasses.field(default_factory=dict)
    priority: int = 0


@dataclasses.dataclass(slots=True)
class ChatPrompt:
    """What the engine is asked, and how its answers are read.

    Attributes:
      tokens: of the prompt.
      params: of the request.
      think: the model may think before it answers.
      thinking: the prompt ends within a thought.
      format: how tools are called; None: there are none.
      names: of the tools.
    """

    tokens: list[int]
    params: SamplingParams
    think: bool
    thinking: bool
    format: ToolFormat | None
    names: frozenset[str]

    def reader(self) -> AnswerText:
        """Takes the text of an answer apart."""
        return AnswerText(think=self.think, thinking=self.thinking, tools=self.format, names=self.names)


async def chat_prompt(service: Service, chat: Chat) -> ChatPrompt:
    """Makes a chat a prompt.

    Raises:
      ApiError: the model has no chat template, or it cannot take this chat.
    """
    tokenizer = service.tokenizer
    template = tokenizer.template or ""
    used = chat.choice != "none" and bool(chat.tools)
    form = format_of(template) if used else None
    if used and form is None:
        raise ApiError(
            400, f"tools: expected a model whose chat template takes tools, got {service.name}", param="tools"
        )
    options = dict(chat.options)
    if form is not None and (chat.choice == "required" or chat.choice.startswith("=")):
        if any(name in options for name in FORMS):
            raise ApiError(400, "tool_choice: expected auto beside a form of the answer", param="tool_choice")
        options["grammar"] = _forced(service, chat, form)
    tools = [{"type": "function", "function": tool} for tool in chat.tools] if form is not None else None
    try:
        text = tokenizer.chat_text(chat.messages, tools, **chat.template_options)
    except ChatTemplateError as error:
        raise ApiError(400, str(error), param="messages") from None
    think = THOUGHT in template
    marks = [THINK, THOUGHT] if think else []
    if form is not None:
        marks += [mark for mark in (form.begin, form.end) if mark]
    if any(tokenizer.is_special(mark) for mark in marks):
        options["skip_special_tokens"] = False
    tokens = await service.encode(text, special=False)
    # An answer of a form has it from its first token on: there is no room for a thought.
    thinking = think and not any(name in options for name in FORMS) and text.rstrip().endswith(THINK)
    names = frozenset(tool["name"] for tool in chat.tools)
    return ChatPrompt(tokens, sampling_params(options), think, thinking, form, names)


def _forced(service: Service, chat: Chat, form: ToolFormat) -> str:
    """The grammar of answers that call a tool."""
    tools = [tool for tool in chat.tools if chat.choice in ("required", f"={tool['name']}")]
    if not tools:
        raise wrong("tool_choice", f"one of the tools: {', '.join(t['name'] for t in chat.tools)}", chat.choice[1:])
    for tool in tools:
        try:
            check_schema(tool.get("parameters") or {})
        except ValueError as error:
            raise refusal(error) from None
    many = chat.many_calls and chat.choice == "required"
    return form.grammar(tools, service.tokenizer.token_id, many=many)


def read_messages(given: list[Fields] | None) -> list[dict[str, Any]]:
    """The messages of OpenAI's chat API, as templates take them.

    Raises:
      ApiError: one is not legal.
    """
    if not given:
        raise wrong("messages", "at least one message", None if given is None else [])
    found = []
    for message in given:
        role = message.choice("role", ROLES)
        if role is None:
            raise wrong(message.place("role"), f"one of {', '.join(ROLES)}", None)
        made: dict[str, Any] = {"role": "system" if role == "developer" else role}
        made["content"] = text_of(message.raw("content"), message.place("content"))
        if role == "assistant":
            calls = message.objects("tool_calls")
            if calls:
                made["tool_calls"] = [_call(call) for call in calls]
            thought = message.text("reasoning_content") or message.text("reasoning")
            if thought:
                made["reasoning_content"] = thought
        elif role == "tool":
            made["tool_call_id"] = message.wanted_text("tool_call_id")
        if message.text("name"):
            made["name"] = message.text("name")
        if message.raw("content") is None and role != "assistant":
            raise wrong(message.place("content"), "a string or a list of texts", None)
        found.append(made)
    return found


def text_of(content: Any, place: str, kinds: Sequence[str] = ("text",)) -> str:
    """The text of a content, which may be a list of parts.

    Raises:
      ApiError: a part is something else.
    """
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise wrong(place, "a string or a list of texts", content)
    texts = []
    for number, each in enumerate(content):
        part = Fields(each, f"{place}[{number}]")
        kind = part.text("type")
        if kind == "refusal":
            texts.append(part.wanted_text("refusal"))
        elif kind in kinds:
            texts.append(part.wanted_text("text"))
        else:
            raise ApiError(
                400,
                f"{part.place('type')}: expected {' or '.join(kinds)}, got {str(kind)[:40]!r}; this model reads text",
                param=part.place("type"),
                code="invalid_value",
            )
    return "\n".join(texts)


def read_tool(function: Fields) -> dict[str, Any]:
    """A function that may be called: name, description and parameters.

    Raises:
      ApiError: it is not legal.
    """
    name = function.wanted_text("name")
    if not name:
        raise wrong(function.place("name"), "a name", name)
    made: dict[str, Any] = {"name": name}
    description = function.text("description")
    if description is not None:
        made["description"] = description
    made["parameters"] = function.mapping("parameters") or {"type": "object", "properties": {}}
    return made


def arguments_of(text: str) -> Any:
    """The arguments of a call as an object, which templates want; what is none stays text."""
    try:
        found = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        return text
    return found if isinstance(found, Mapping) else text


def _call(call: Fields) -> dict[str, Any]:
    function = call.object("function")
    if function is None:
        raise wrong(call.place("function"), "an object", None)
    arguments = function.raw("arguments")
    return {
        "id": call.text("id") or "",
        "type": "function",
        "function": {
            "name": function.wanted_text("name"),
            "arguments": arguments_of(arguments) if isinstance(arguments, str) else arguments or {},
        },
    }

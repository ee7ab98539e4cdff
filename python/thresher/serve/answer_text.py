"""Finds thoughts and calls of tools in the text of an answer, as it comes."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import NamedTuple

from thresher.serve.tool_formats import ToolFormat

THINK, THOUGHT = "<think>", "</think>"
_HEADER = re.compile(r'\{\s*"name"\s*:\s*"((?:[^"\\]|\\.)*)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')
_LONGEST_HEADER = 4096  # characters in which it has to come
_NAMED = re.compile(r"\s*([\w.-]+)\s*(?:\[CALL_ID\]\w+)?(?:\[ARGS\])?\s*(?=\{)")


class Piece(NamedTuple):
    """A part of an answer.

    Attributes:
      kind: "text", "reasoning", "call" (of a tool: it begins) or "arguments" (of that call, JSON).
      text: it; of a "call" the tool's name.
      call: which call.
    """

    kind: str
    text: str
    call: int = 0


class AnswerText:
    """Takes the text of one answer apart. However it is cut into parts, the pieces say the same together."""

    def __init__(
        self,
        *,
        think: bool = False,
        thinking: bool = False,
        tools: ToolFormat | None = None,
        names: Collection[str] = (),
    ) -> None:
        """Begins with an answer.

        Args:
          think: the model may think before it answers.
          thinking: the prompt ends with the mark that begins a thought.
          tools: how the model calls tools; None: it has none.
          names: of the tools.
        """
        self._think, self._tools, self._names = think, tools, frozenset(names)
        self._held = ""
        self._state = "reasoning" if thinking else "start" if think or (tools and not tools.begin) else "text"
        self._trim = thinking  # white space at the beginning of what comes next is dropped
        self._call: _Call | None = None
        self._in_list = False
        self.calls = 0
        self.may_think = think or thinking

    @property
    def thinking(self) -> bool:
        """Whether what comes next is part of a thought."""
        return self._state == "reasoning"

    def add(self, text: str) -> list[Piece]:
        """What is certain now that the answer goes on with `text`."""
        if self._state == "text" and self._tools is None and not self._trim:
            return [Piece("text", text)] if text else []
        self._held += text
        return self._pieces(final=False)

    def finish(self) -> list[Piece]:
        """The rest."""
        return self._pieces(final=True)

    def _pieces(self, *, final: bool) -> list[Piece]:
        found: list[Piece] = []
        while True:
            state, held = self._state, self._held
            getattr(self, f"_{state}")(found, final)
            if (self._state, self._held) == (state, held):
                break
        merged: list[Piece] = []
        for piece in found:
            if merged and piece.kind != "call" and (merged[-1].kind, merged[-1].call) == (piece.kind, piece.call):
                merged[-1] = piece._replace(text=merged[-1].text + piece.text)
            else:
                merged.append(piece)
        return merged

    def _start(self, found: list[Piece], final: bool) -> None:
        text = self._held.lstrip()
        if not text and not final:
            return
        if self._think and text.startswith(THINK):
            self._held, self._state, self._trim, self._think = text[len(THINK) :], "reasoning", True, False
        elif self._think and THINK.startswith(text) and not final:
            return
        elif self._tools is not None and not self._tools.begin and text.startswith("{"):
            self._held, self._state = text, "calls"
        else:
            self._state = "text"

    def _reasoning(self, found: list[Piece], final: bool) -> None:
        if self._upto(THOUGHT, "reasoning", found, final):
            self._think, self._trim = False, True
            self._state = "start" if self._tools is not None and not self._tools.begin else "text"

    def _text(self, found: list[Piece], final: bool) -> None:
        begin = "" if self._tools is None else self._tools.begin
        if begin:
            if self._upto(begin, "text", found, final):
                self._state = "calls"
        else:
            self._put("text", self._trimmed(self._held), found)
            self._held = ""

    def _calls(self, found: list[Piece], final: bool) -> None:
        tools = self._tools
        assert tools is not None
        if self._call is None and not self._begin_call(tools, found, final):
            return
        call = self._call
        assert call is not None
        self._held = self._held[call.add(self._held) :]
        if call.name is None and call.read_header() and not tools.begin and call.name not in self._names:
            self._give_up(call, found)
            return
        if call.name is not None:
            if not call.begun:
                call.begun, call.number = True, self.calls
                self.calls += 1
                found.append(Piece("call", call.name, call.number))
            self._put("arguments", call.fresh(), found, call.number)
        if call.whole:
            if call.name is None:
                read = call.read()
                if read is None or (not tools.begin and read[0] not in self._names):
                    self._give_up(call, found)
                    return
                found += [Piece("call", read[0], self.calls), Piece("arguments", read[1], self.calls)]
                self.calls += 1
            self._call = None
        elif final:
            if call.name is None:
                self._give_up(call, found)
            else:
                self._call, self._state = None, "text"

    def _begin_call(self, tools: ToolFormat, found: list[Piece], final: bool) -> bool:
        """Goes to where a call's JSON begins; False: it does not begin here, or not yet."""
        text = self._held.lstrip()
        if tools.end and text.startswith(tools.end):
            self._held, self._state, self._trim = text[len(tools.end) :], "text", True
            return False
        if tools.end and text and tools.end.startswith(text) and not final:
            return False
        if tools.begin and not tools.end and not self._in_list:
            if text.startswith(tools.begin):
                self._held = text[len(tools.begin) :]
                return False
            if text and tools.begin.startswith(text) and not final:
                return False
        if text and text[0] in tools.between:
            self._in_list = text[0] != "]" and (self._in_list or text[0] == "[")
            self._held = text[1:]
            if text[0] == "]":
                self._state, self._trim = "text", True
            return False
        name = None
        if tools.named and not self._in_list:
            match = _NAMED.match(text)
            if match:
                name, text = match[1], text[match.end() :]
            elif not final and re.fullmatch(r"[\w.\-\[\]]*\s*", text):
                return False
        if text.startswith("{"):
            self._held, self._call = text, _Call(name)
            return True
        if text or final:
            self._state = "text"
            self._trim = bool(self.calls)
            if not self.calls and tools.begin:
                self._put("text", tools.begin, found)
        return False

    def _give_up(self, call: _Call, found: list[Piece]) -> None:
        """What looked like a call is text."""
        begin = "" if self._tools is None else self._tools.begin
        self._put("text", begin + call.raw, found)
        self._call, self._state, self._trim = None, "text", False

    def _upto(self, mark: str, kind: str, found: list[Piece], final: bool) -> bool:
        """Gives what stands before a mark; True: the mark was there, and is gone."""
        at = self._held.find(mark)
        if at >= 0:
            self._put(kind, self._trimmed(self._held[:at]).rstrip(), found)
            self._held = self._held[at + len(mark) :]
            return True
        text = self._trimmed(self._held)
        if final:
            keep = len(text) if self.calls and not text.strip() else 0
        else:
            keep = _beginning(text, mark)
            keep = len(text) - len(text[: len(text) - keep].rstrip())
        self._put(kind, text[: len(text) - keep], found)
        self._held = text[len(text) - keep :]
        if final:
            self._held = ""
        return False

    def _trimmed(self, text: str) -> str:
        if self._trim:
            text = text.lstrip()
            self._trim = not text
        return text

    def _put(self, kind: str, text: str, found: list[Piece], call: int = 0) -> None:
        if text:
            found.append(Piece(kind, text, call))


class _Call:
    """The JSON of one call while it comes."""

    def __init__(self, name: str | None) -> None:
        self.name = name  # None: it is in the JSON
        self.raw = ""
        self.whole = False
        self.begun = False
        self.number = 0
        self._from = 0 if name is not None else -1  # where arguments begin
        self._sent = 0
        self._level = 0 if name is not None else 1  # of brackets around them
        self._to = -1
        self._depth = 0
        self._string = self._escaped = False
        self._ends: list[int] = []  # where the depth went back to 1

    def add(self, text: str) -> int:
        """Takes characters up to the end of the JSON; how many."""
        start = len(self.raw)
        used = len(text)
        for place, character in enumerate(text):
            if self._string:
                if self._escaped:
                    self._escaped = False
                elif character == "\\":
                    self._escaped = True
                elif character == '"':
                    self._string = False
            elif character == '"':
                self._string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth == 1:
                    self._ends.append(start + place + 1)
                elif self._depth == 0:
                    self.whole = True
                    used = place + 1
                    break
        self.raw += text[:used]
        return used

    def read_header(self) -> bool:
        """Whether the name and the beginning of the arguments are there."""
        if len(self.raw) > _LONGEST_HEADER and not self.whole:
            return False
        match = _HEADER.match(self.raw)
        if match is None:
            return False
        try:
            self.name = str(json.loads(f'"{match[1]}"', strict=False))
        except ValueError:
            return False
        self._from = self._sent = match.end()
        return True

    def fresh(self) -> str:
        """Arguments that were not given yet."""
        if self._to < 0:
            if self._level == 0:
                self._to = len(self.raw) if self.whole else -1
            else:
                self._to = next((end for end in self._ends if end > self._from), -1)
        last = len(self.raw) if self._to < 0 else self._to
        text, self._sent = self.raw[self._sent : last], max(last, self._sent)
        return text

    def read(self) -> tuple[str, str] | None:
        """Name and arguments where the JSON has them in another order; None: it is no call."""
        try:
            found = json.loads(self.raw, strict=False)
        except (ValueError, RecursionError):
            return None
        if not isinstance(found, dict) or not isinstance(found.get("name"), str):
            return None
        arguments = found.get("arguments", found.get("parameters", {}))
        return found["name"], arguments if isinstance(arguments, str) else json.dumps(arguments)


def _beginning(text: str, mark: str) -> int:
    """How many characters at the end of a text may be the beginning of a mark."""
    for length in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:length]):
            return length
    return 0

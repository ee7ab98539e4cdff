"""How families of models call tools."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True)
class ToolFormat:
    """What a call looks like in the text of an answer.

    Attributes:
      name: of the family.
      begin: stands before a call; "": an answer that is a JSON object is one.
      end: stands behind it, where something does.
      key: of the arguments in a call's JSON.
      between: characters that may stand between calls; with "[" they may be a JSON list.
      named: the name may stand before the JSON, which is the arguments then.
    """

    name: str
    begin: str
    end: str
    key: str = "arguments"
    between: str = ""
    named: bool = False

    def grammar(self, tools: Sequence[Mapping[str, Any]], token_id: Callable[[str], int | None], *, many: bool) -> str:
        """A grammar, for llguidance, of answers that are calls and nothing else.

        Args:
          tools: each with "name" and perhaps "parameters", a JSON schema.
          token_id: the number of a mark that is one token: the library wants those by number.
          many: several calls are legal.
        """

        def mark(text: str) -> str:
            token = token_id(text)
            return json.dumps(text) if token is None else f"<[{token}]>"

        if "[" in self.between:
            more = ' (", " json)*' if many else ""
            start = f'{mark(self.begin)} "[" json{more} "]"'
        elif self.begin:
            call = f'{mark(self.begin)} "\\n" json "\\n" {mark(self.end)}'
            start = f'{call} ("\\n" {call})*' if many else call
        else:
            start = "json"
        names = [f"call_{number}" for number in range(len(tools))]
        rules = [f"{n}: %json {json.dumps(self._schema(tool))}\n" for n, tool in zip(names, tools, strict=True)]
        return f"start: {start}\njson: {' | '.join(names)}\n{''.join(rules)}"

    def _schema(self, tool: Mapping[str, Any]) -> dict[str, Any]:
        """The schema of one call."""
        parameters = dict(tool.get("parameters") or {"type": "object"})
        shared = {name: parameters.pop(name) for name in ("$defs", "definitions") if name in parameters}
        return {
            "type": "object",
            "properties": {"name": {"const": tool["name"]}, self.key: parameters},
            "required": ["name", self.key],
            "additionalProperties": False,
            **shared,  # references begin at the root
            "x-guidance": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "},
        }


HERMES = ToolFormat("hermes", "<tool_call>", "</tool_call>")
MISTRAL = ToolFormat("mistral", "[TOOL_CALLS]", "", between="[,]", named=True)
LLAMA = ToolFormat("llama", "", "", key="parameters", between=";")


def format_of(template: str | None) -> ToolFormat | None:
    """How the model of a chat template calls tools; None: the template takes none, or in a way not known here."""
    if template is None or "tools" not in template:
        return None
    if "<tool_call>" in template and "<function=" not in template:
        return HERMES
    if "[TOOL_CALLS]" in template:
        return MISTRAL
    if "<|start_header_id|>" in template and '"parameters"' in template:
        return LLAMA
    return None

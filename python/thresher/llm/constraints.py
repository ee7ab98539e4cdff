"""Answers that keep to a form: a regular expression, one of several texts, a JSON schema, a grammar.

The library llguidance tells which tokens may come next; it is asked for when the first such request comes.
"""

from __future__ import annotations

import dataclasses
import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from thresher.llm.tokenizer import Tokenizer

_SCHEMAS = ("additionalProperties", "items")  # keywords whose value is a schema
_LISTS = ("anyOf", "allOf", "prefixItems")  # a list of schemas
_MAPS = ("properties", "$defs", "definitions")  # schemas by name
_VALUES = (
    *(
        "type",
        "enum",
        "const",
        "required",
        "$ref",
        "minItems",
        "maxItems",
        "minLength",
        "maxLength",
        "pattern",
        "format",
    ),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
)
_NOTES = ("title", "description", "default", "examples", "deprecated", "$schema", "$id", "$comment")
KEYWORDS = frozenset((*_SCHEMAS, *_LISTS, *_MAPS, *_VALUES, *_NOTES))
_DEEPEST = 64
_LAYOUT: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


@dataclasses.dataclass(frozen=True, slots=True)
class Form:
    """What an answer has to keep to; one of them.

    Attributes:
      regex: it matches this regular expression as a whole.
      choice: it is one of these texts.
      json_schema: it is JSON that this schema accepts, as an object or as text; see KEYWORDS for what a schema may say.
      grammar: a context-free grammar in llguidance's variant of Lark accepts it.
    """

    regex: str | None = None
    choice: Sequence[str] | None = None
    json_schema: Mapping[str, Any] | bool | str | None = None
    grammar: str | None = None

    def check(self) -> None:
        """Raises ValueError where it is none of them or several."""
        given = [field.name for field in dataclasses.fields(self) if getattr(self, field.name) is not None]
        if len(given) != 1:
            raise ValueError(f"expected one of regex, choice, json_schema and grammar, got {' and '.join(given)}")
        if self.choice is not None and (
            isinstance(self.choice, str) or not self.choice or not all(isinstance(c, str) and c for c in self.choice)
        ):
            raise ValueError(f"choice: expected texts that are not empty, got {self.choice!r}")
        for name in ("regex", "grammar"):
            text = getattr(self, name)
            if text is not None and (not isinstance(text, str) or not text):
                raise ValueError(f"{name}: expected a text that is not empty, got {text!r}")


class Guide:
    """Watches one answer: which tokens may come next."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def copy(self) -> Guide:
        """Another answer, at the same place."""
        return Guide(self._matcher.deep_copy())

    def forbid(self, logits: npt.NDArray[np.float32]) -> None:
        """Makes the scores of tokens that must not come next -inf.

        Raises:
          ValueError: the form has become too complex.
        """
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._raise()
        allowed = np.unpackbits(bits, count=len(logits), bitorder="little").view(np.bool_)
        logits[~allowed] = -np.inf

    def take(self, token: int) -> None:
        """The answer goes on with a token."""
        self._matcher.consume_token(token)
        self._raise()

    @property
    def whole(self) -> bool:
        """Whether nothing may follow."""
        return bool(self._matcher.is_stopped())

    def _raise(self) -> None:
        if self._matcher.is_error():
            raise ValueError(f"expected a form that can be followed, got: {_line(self._matcher.get_error())}")


class Guides:
    """Makes guides for one model. May be used from any thread."""

    def __init__(
        self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Sequence[int], *, grammars: bool = False
    ) -> None:
        """Takes grammars only where it is told to: llguidance does not return from some, and with it the engine."""
        self._grammars = grammars
        self._tokenizer, self._vocab_size, self._eos = tokenizer, vocab_size, list(eos_token_ids)
        self._lock = threading.Lock()
        self._known: Any = None

    def make(self, form: Form) -> Guide:
        """The guide of an answer that has not begun.

        Raises:
          ValueError: the form is not legal, or nothing keeps to it, or it is a grammar and none are taken.
          ModuleNotFoundError: llguidance is not installed.
        """
        if form.grammar is not None and not self._grammars:
            raise ValueError(
                "grammar: expected a model that takes grammars, got one that does not, as some never end; use regex, "
                "choice or json_schema, or load it with allow_grammars=True where you know who writes them"
            )
        try:
            from llguidance import LLMatcher
        except ModuleNotFoundError:
            raise ModuleNotFoundError(
                "expected the module llguidance for answers of a form, got none; pip install 'thresher[llm]'",
                name="llguidance",
            ) from None
        if form.regex is not None:
            name, grammar = "regex", LLMatcher.grammar_from_regex(form.regex)
        elif form.choice is not None:
            name, grammar = "choice", LLMatcher.grammar_from_regex("|".join(f"(?:{_escaped(c)})" for c in form.choice))
        elif form.json_schema is not None:
            name, grammar = "json_schema", LLMatcher.grammar_from_json_schema(_schema(form.json_schema), _LAYOUT)
        else:
            name, grammar = "grammar", LLMatcher.grammar_from_lark(form.grammar or "")
        matcher = LLMatcher(self._table(), grammar, log_level=0)
        if matcher.is_error():
            raise ValueError(f"{name}: expected one that something keeps to, got: {_line(matcher.get_error())}")
        if not any(matcher.compute_bitmask()):
            raise ValueError(f"{name}: expected one that something keeps to, got one without a first token")
        return Guide(matcher)

    def _table(self) -> Any:
        from llguidance import LLTokenizer

        with self._lock:
            if self._known is None:
                if not self._eos:
                    raise ValueError("expected a model with a token that ends answers, got none; answers have no form")
                try:
                    self._known = LLTokenizer(self._tokenizer.backend.to_str(), self._vocab_size, self._eos)
                except Exception as error:  # the library raises what its tokenizers do
                    raise ValueError(f"expected a tokenizer that llguidance knows, got: {_line(str(error))}") from None
            return self._known


def _escaped(text: str) -> str:
    return re.sub(r"([\\.+*?()|\[\]{}^$/#&~\-])", r"\\\1", text)


def _schema(schema: Mapping[str, Any] | bool | str) -> str:
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except ValueError as error:
            raise ValueError(f"json_schema: expected JSON, got {error}") from None
    check_schema(schema)
    if schema is False:
        raise ValueError("json_schema: expected one that something keeps to, got false")
    return json.dumps({} if schema is True else schema)


def check_schema(schema: Any) -> None:
    """Raises ValueError where a schema says something that nobody would keep to."""
    odd = next(_unknown(schema, "", 0), None)
    if odd is not None:
        raise ValueError(f"json_schema: {odd}")


def _unknown(schema: Any, place: str, depth: int) -> Iterator[str]:
    """What is in a schema beside KEYWORDS."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, Mapping):
        yield f"expected an object or a truth value at {place or '/'}, got {schema!r}"
        return
    if depth > _DEEPEST:
        yield f"expected at most {_DEEPEST} schemas within each other, got more at {place}"
        return
    for name, value in schema.items():
        here = f"{place}/{name}"
        if name not in KEYWORDS:
            yield f"expected keywords that are supported, got {name!r} at {here}; leave it out"
        elif name in _SCHEMAS:
            yield from _unknown(value, here, depth + 1)
        elif name in _LISTS:
            if not isinstance(value, (list, tuple)):
                yield f"expected a list at {here}, got {value!r}"
            else:
                for number, each in enumerate(value):
                    yield from _unknown(each, f"{here}/{number}", depth + 1)
        elif name in _MAPS:
            if not isinstance(value, Mapping):
                yield f"expected an object at {here}, got {value!r}"
            else:
                for key, each in value.items():
                    yield from _unknown(each, f"{here}/{key}", depth + 1)
        elif name == "$ref" and not str(value).startswith("#"):
            yield f"expected references within the schema (#...), got {value!r} at {here}"


def _line(message: str) -> str:
    return " ".join(message.split())[:300]

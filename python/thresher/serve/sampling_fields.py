"""Reads the fields of a request that say how tokens are chosen."""

from __future__ import annotations

import re
from typing import Any

from thresher.llm import SamplingParams
from thresher.serve.service import refusal
from thresher.web.errors import ApiError
from thresher.web.fields import Fields, wrong

_MOST_STOPS = 16
_MOST_ANSWERS = 128
# Fields of OpenAI's API that change nothing here: who asks, where it is kept, what it costs, hints.
WITHOUT_EFFECT = (
    *("user", "safety_identifier", "metadata", "store", "service_tier", "prompt_cache_key", "prompt_cache_retention"),
    *("prediction", "verbosity"),
)
FORMS = ("regex", "choice", "json_schema", "grammar")  # options that say what form an answer has
_TOKEN = re.compile(r"[0-9]{1,9}")


def common_options(fields: Fields, *, grammars: bool) -> dict[str, Any]:
    """Options of SamplingParams that chats and completions share.

    Args:
      fields: of the request.
      grammars: clients may send some.

    Raises:
      ApiError: a field has a wrong value.
    """
    fields.ignore(*WITHOUT_EFFECT)
    options: dict[str, Any] = {
        "temperature": fields.number("temperature", 0, 2),
        "top_p": fields.number("top_p", 0, 1),
        "n": fields.integer("n", 1, _MOST_ANSWERS),
        "seed": fields.integer("seed", -(2**63), 2**63 - 1),
        "presence_penalty": fields.number("presence_penalty", -2, 2),
        "frequency_penalty": fields.number("frequency_penalty", -2, 2),
        "stop": _stops(fields),
        "logit_bias": _bias(fields),
        # Beyond OpenAI's API, under vLLM's names.
        "top_k": fields.integer("top_k", -1),
        "min_p": fields.number("min_p", 0, 1),
        "repetition_penalty": fields.number("repetition_penalty"),
        "no_repeat_ngram_size": fields.integer("no_repeat_ngram_size", 0),
        "min_tokens": fields.integer("min_tokens", 0),
        "stop_token_ids": _tokens(fields, "stop_token_ids"),
        "ignore_eos": fields.flag("ignore_eos"),
        "skip_special_tokens": fields.flag("skip_special_tokens", True),
        **_merged_forms(_form(fields, grammars), _response_form(fields)),
    }
    if options["top_k"] == -1:
        options["top_k"] = 0
    return {name: value for name, value in options.items() if value is not None}


def sampling_params(options: dict[str, Any]) -> SamplingParams:
    """The options as the engine takes them.

    Raises:
      ApiError: they are not legal together.
    """
    try:
        return SamplingParams(**options)
    except ValueError as error:
        raise refusal(error) from None


def _response_form(fields: Fields) -> dict[str, Any]:
    """What `response_format` asks for, as options of SamplingParams.

    Raises:
      ApiError: it is not legal.
    """
    given = fields.object("response_format")
    if given is None:
        return {}
    kind = given.choice("type", ("text", "json_object", "json_schema"))
    if kind == "json_object":
        return {"json_schema": {"type": "object"}}
    if kind == "json_schema":
        described = given.object("json_schema")
        schema = None if described is None else described.mapping("schema")
        if schema is None:
            raise wrong("response_format.json_schema.schema", "an object", None)
        return {"json_schema": schema}
    if kind is None:
        raise wrong("response_format.type", "one of text, json_object, json_schema", None)
    return {}


def _merged_forms(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Two forms of an answer, at most one of which is there.

    Raises:
      ApiError: both are.
    """
    if first and second:
        raise ApiError(400, "expected one form of the answer, got two; leave one out", param="response_format")
    return first or second


def include_usage(fields: Fields, stream: bool) -> bool:
    """Whether a stream ends with numbers of tokens.

    Raises:
      ApiError: it is asked for without a stream.
    """
    given = fields.object("stream_options")
    if given is None:
        return False
    if not stream:
        raise ApiError(400, "stream_options: expected none without stream, got some", param="stream_options")
    return given.flag("include_usage")


def _form(fields: Fields, grammars: bool) -> dict[str, Any]:
    """What `structured_outputs` asks for, which vLLM's API has beside response_format."""
    given = fields.object("structured_outputs")
    if given is None:
        return {}
    names = {"json": "json_schema", "regex": "regex", "choice": "choice", "grammar": "grammar"}
    found = {option: given.raw(name) for name, option in names.items() if given.raw(name) is not None}
    given.done()
    if "grammar" in found and not grammars:  # llguidance does not end with some, and with it the engine
        raise ApiError(
            400,
            "structured_outputs.grammar: expected a server that takes grammars, got one that does not; "
            "send json, regex or choice, or start it with --allow-grammars",
            param="structured_outputs.grammar",
            code="unsupported_parameter",
        )
    if len(found) != 1:
        raise ApiError(
            400,
            f"structured_outputs: expected one of {', '.join(names)}, got {len(found)}",
            param="structured_outputs",
            code="invalid_value",
        )
    return found


def _stops(fields: Fields) -> list[str] | None:
    value = fields.raw("stop")
    if value is None or value == []:
        return None
    texts = [value] if isinstance(value, str) else value
    if (
        not isinstance(texts, list)
        or len(texts) > _MOST_STOPS
        or not all(isinstance(text, str) and text for text in texts)
    ):
        raise wrong("stop", f"a string that is not empty, or at most {_MOST_STOPS} of them", value)
    return texts


def _bias(fields: Fields) -> dict[int, float] | None:
    given = fields.mapping("logit_bias")
    if given is None:
        return None
    found = {}
    for token, bias in given.items():
        if not _TOKEN.fullmatch(token):
            raise wrong("logit_bias", "numbers of tokens", token)
        if isinstance(bias, bool) or not isinstance(bias, (int, float)) or not -100 <= bias <= 100:
            raise wrong(f"logit_bias.{token}", "a number from -100 to 100", bias)
        found[int(token)] = float(bias)
    return found


def _tokens(fields: Fields, name: str) -> list[int] | None:
    value = fields.raw(name)
    if value is None:
        return None
    if not isinstance(value, list) or not all(type(token) is int for token in value):
        raise wrong(name, "a list of numbers of tokens", value)
    return value

"""Answers of a form: every one parses, whatever the model would say, and a form that nothing keeps to is refused."""

from __future__ import annotations

import json
import re

import pytest
from test_llm_engine import _prompts, folder  # noqa: F401

from thresher.llm import LLM

pytest.importorskip("llguidance")

_PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 3},
        "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/point"}]},
    },
    "required": ["name", "age", "tags", "next"],
    "additionalProperties": False,
    "$defs": {
        "point": {
            "type": "object",
            "properties": {"x": {"type": "boolean"}},
            "required": ["x"],
            "additionalProperties": False,
        }
    },
}


@pytest.fixture(scope="module")
def llm(folder):  # noqa: F811
    options = {"max_length": 300, "max_batch": 6, "speculation": "ngram", "allow_grammars": True}
    with LLM(folder, precision="fp32", **options) as made:
        yield made


def _texts(llm, **form):
    """Of prompts that run together, beside one without a form; greedy and by chance, n answers each."""
    plain = llm.generate([4, 5], temperature=0, max_tokens=20, ignore_eos=True)[0].completions[0].token_ids
    beside = llm.stream([4, 5], temperature=0, max_tokens=20, ignore_eos=True)
    texts = []
    for temperature in (0, 1.5):
        for output in llm.generate(_prompts(5), temperature=temperature, seed=4, max_tokens=150, n=2, **form):
            for completion in output.completions:
                assert completion.finish_reason == "stop", completion
                texts.append(completion.text)
    assert beside.result().completions[0].token_ids == plain
    return texts


def test_regular_expressions(llm):
    form = r"[A-Z][a-z]{2,5}, (19|20)[0-9]{2}"
    texts = _texts(llm, regex=form)
    assert all(re.fullmatch(form, text) for text in texts)
    assert len(set(texts)) > 3


def test_choices(llm):
    choices = ["yes", "no", "a.c|(d)", 'with "quotes" / and \\', "\u00e9t\u00e9"]
    texts = _texts(llm, choice=choices)
    assert set(texts) <= set(choices) and len(set(texts)) > 1
    assert _texts(llm, choice=["a.c|(d)*[x]{2}^$#&~-/\\"]) == ["a.c|(d)*[x]{2}^$#&~-/\\"] * 20


def test_json_schemas(llm):
    for schema in (_PERSON, json.dumps(_PERSON)):
        for text in _texts(llm, json_schema=schema):
            found = json.loads(text)
            assert list(found) == ["name", "age", "tags", "next"]
            assert isinstance(found["name"], str) and len(found["name"]) <= 6
            assert type(found["age"]) is int and 0 <= found["age"] <= 150
            assert 1 <= len(found["tags"]) <= 3 and set(found["tags"]) <= {"a", "b"}
            assert found["next"] is None or (list(found["next"]) == ["x"] and type(found["next"]["x"]) is bool)


def test_grammars(llm):
    texts = _texts(llm, grammar='start: sum\nsum: NUMBER | NUMBER "+" NUMBER "=" NUMBER\nNUMBER: /[0-9]{1,3}/')
    assert all(re.fullmatch(r"\d{1,3}(\+\d{1,3}=\d{1,3})?", text) for text in texts)


def test_grammars_are_taken_only_where_they_are_allowed(folder):  # noqa: F811
    with LLM(folder, precision="fp32", max_length=100, max_batch=1) as careful:
        with pytest.raises(ValueError, match="grammar: expected a model that takes grammars"):
            careful.generate("a", grammar="start: a b\na: /x+/\nb: /x+/", max_tokens=4)
        assert careful.generate("a", choice=["yes"], max_tokens=4)[0].text == "yes"


def test_min_tokens_do_not_keep_a_whole_answer_open(llm):
    output = llm.generate([1, 2], choice=["yes"], stop="s!", min_tokens=30, max_tokens=40)[0]
    assert output.text == "yes" and output.completions[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ({"regex": "[0-9"}, "regex: expected one that something keeps to, got: .*unclosed character class"),
        ({"regex": ""}, "regex: expected a text that is not empty"),
        ({"choice": []}, "choice: expected texts"),
        ({"choice": "yes"}, "choice: expected texts"),
        ({"regex": "a", "choice": ["a"]}, "expected one of regex, .* got regex and choice"),
        ({"grammar": "start: other"}, "grammar: .*unknown name"),
        ({"json_schema": "{"}, "json_schema: expected JSON"),
        ({"json_schema": {"type": "string", "contentEncoding": "x"}}, "got 'contentEncoding' at /contentEncoding"),
        ({"json_schema": {"properties": {"a": {"not": {}}}}}, "got 'not' at /properties/a/not"),
        ({"json_schema": {"$ref": "https://example.org/x"}}, "expected references within the schema"),
        ({"json_schema": {"$ref": "#/$defs/none"}}, "json_schema: expected one that something keeps to"),
        ({"json_schema": {"anyOf": 3}}, "expected a list at /anyOf, got 3"),
        ({"json_schema": {"items": [1]}}, "expected an object or a truth value at /items"),
        ({"json_schema": {"type": "integer", "minimum": 5, "maximum": 3}}, "minimum .5. is greater than maximum"),
        ({"json_schema": False}, "json_schema: expected one that something keeps to, got false"),
    ],
)
def test_what_nothing_keeps_to_is_refused_and_the_engine_goes_on(llm, form, text):
    beside = llm.stream([4, 5], temperature=0, max_tokens=40, ignore_eos=True)
    with pytest.raises(ValueError, match=text):
        llm.generate([1, 2], max_tokens=10, **form)
    assert len(beside.result().completions[0].token_ids) == 40
    assert llm.generate([1, 2], choice=["yes"])[0].text == "yes"
    assert llm.stats().pages_used == 0


def test_an_endless_schema_is_refused(llm):
    schema: dict[str, object] = {"type": "null"}
    for _ in range(70):
        schema = {"items": schema}
    with pytest.raises(ValueError, match="expected at most 64 schemas within each other"):
        llm.generate([1], json_schema=schema)

"""Who may ask thresher serve, and how: keys, rates, web pages, bodies, TLS, and the small endpoints."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess

import pytest
from serving import serve_command, serving, write_model

pytest.importorskip("uvicorn")
hypothesis = pytest.importorskip("hypothesis")
st = hypothesis.strategies

from thresher.web.guard import _Rates  # noqa: E402

_BODY = {"prompt": "the cat", "max_tokens": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def server(folder):
    with serving(serve_command(folder, "--max-length", "200", "--max-body-bytes", "20000")) as running:
        yield running


@pytest.fixture(scope="module")
def guarded(folder, tmp_path_factory):
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("first\n\nsecond\n")
    options = ["--api-key-file", str(keys), "--api-key", "third", "--allow-origin", "https://chat.example"]
    with serving(serve_command(folder, "--max-length", "200", *options, "--requests-per-minute", "5")) as running:
        yield running


def test_tokens_and_back(server):
    text = "the cat \N{SNOWMAN} sat"
    status, found, _ = server.request("POST", "/tokenize", {"prompt": text, "return_token_strs": True})
    assert status == 200 and found["count"] == len(found["tokens"]) == len(found["token_strs"])
    assert found["max_model_len"] == 200
    assert server.request("POST", "/detokenize", {"tokens": found["tokens"]})[1] == {"prompt": text}
    chat = server.request("POST", "/tokenize", {"messages": [{"role": "user", "content": "the cat"}]})[1]
    said = server.request("POST", "/detokenize", {"tokens": chat["tokens"]})[1]["prompt"]
    assert said == "<s>user: the cat</s><s>assistant: "
    assert server.request("POST", "/tokenize", {})[0] == 400
    assert server.request("POST", "/detokenize", {"tokens": [-1]})[0] == 400


def test_metrics_have_the_names_that_dashboards_know(server):
    before = server.metrics()
    assert server.request("POST", "/v1/completions", {**_BODY, "max_tokens": 5, "ignore_eos": True})[0] == 200
    after = server.metrics()
    grown = {name: after[name] - before.get(name, 0) for name in after}
    assert grown["vllm:generation_tokens_total"] == 5 and grown["vllm:prompt_tokens_total"] > 0
    for name, count in {
        "time_to_first_token_seconds": 1,
        "inter_token_latency_seconds": 4,
        "e2e_request_latency_seconds": 1,
        "request_queue_time_seconds": 1,
        "request_prompt_tokens": 1,
        "request_generation_tokens": 1,
    }.items():
        assert grown[f"vllm:{name}_count"] == count, name
    assert grown["vllm:request_success_total"] == 1
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "num_preemptions_total"):
        assert f"vllm:{name}" in after
    for name in ("prefix_cache_queries_total", "prefix_cache_hits_total"):
        assert f"vllm:{name}" in after
    _, text, headers = server.request("GET", "/metrics", headers={"Accept": "application/openmetrics-text"})
    assert headers["content-type"].startswith("application/openmetrics-text") and text.endswith("# EOF\n")


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status", "text"),
    [
        ("GET", "/nowhere", None, {}, 404, "Unknown request URL: GET /nowhere"),
        ("GET", "/v1/completions", None, {}, 405, "Not allowed to: GET /v1/completions"),
        ("POST", "/v1/completions", "{", {}, 400, "expected JSON as the body"),
        ("POST", "/v1/completions", "[1]", {}, 400, "expected a JSON object as the body, got list"),
        ("POST", "/v1/completions", b"\xff", {}, 400, "expected JSON as the body"),
        ("POST", "/v1/completions", '{"a": NaN}', {}, 400, "NaN, which is no number of JSON"),
        ("POST", "/v1/completions", "[" * 10000, {}, 400, "expected JSON as the body"),
        ("POST", "/v1/completions", " " * 30000, {}, 413, "expected a body of at most 20000 bytes"),
        ("POST", "/v1/completions", json.dumps(_BODY), {"Content-Type": "text/plain"}, 415, "expected Content-Type"),
        ("POST", "/v1/completions", _BODY, {"Origin": "https://evil.example"}, 403, "this server's own page"),
        ("GET", "/v1/models", None, {"Host": "evil.example"}, 403, "expected a name of this machine as Host"),
        ("POST", "/v1/completions", {}, {}, 400, "prompt: expected a text, tokens, or a list of them, got none"),
        ("POST", "/v1/completions", {"prompt": "a", "structured_outputs": {"grammar": 'start: "a"'}}, {}, 400,
         "structured_outputs.grammar: expected a server that takes grammars"),
        ("POST", "/v1/completions", {"prompt": 5}, {}, 400, "prompt: expected a text"),
        ("POST", "/v1/completions", {"prompt": ["a", [1, True]]}, {}, 400, "prompt: expected a text"),
        ("POST", "/v1/completions", {"prompt": [[]]}, {}, 400, "expected at least one token"),
        ("POST", "/v1/completions", {**_BODY, "best_of": 3}, {}, 400, "best_of: expected n, got 3"),
        ("POST", "/v1/completions", {**_BODY, "suffix": "x"}, {}, 400, "suffix: expected none"),
        ("POST", "/v1/completions", {**_BODY, "max_tokens": 0}, {}, 400, "max_tokens: expected"),
        ("POST", "/v1/completions", {**_BODY, "structured_outputs": {"regex": "("}}, {}, 400, "regex: expected"),
        ("POST", "/v1/completions", {**_BODY, "structured_outputs": {}}, {}, 400, "structured_outputs: expected one"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(server, method, path, body, headers, status, text):
    found, answer, _ = server.request(method, path, body, headers)
    assert found == status and text in answer["error"]["message"], answer
    assert set(answer["error"]) == {"message", "type", "param", "code"}


def test_pages_of_the_server_itself_may_ask(server):
    for host in (f"localhost:{server.port}", f"127.0.0.1:{server.port}"):
        headers = {"Host": host, "Origin": f"http://{host}"}
        assert server.request("POST", "/v1/completions", _BODY, headers)[0] == 200
    assert "access-control-allow-origin" not in server.request("GET", "/health", headers={"Origin": "x"})[2]


def _bearer(key):
    return {"Authorization": f"Bearer {key}"}


def test_a_key_is_wanted(guarded):
    assert guarded.request("GET", "/health")[0] == 200
    for headers in ({}, _bearer("fourth"), {"x-api-key": "firs"}, {"Authorization": "Basic first"}):
        status, error, sent = guarded.request("GET", "/v1/models", headers=headers)
        assert status == 401 and sent["www-authenticate"] == "Bearer", headers
        assert error["error"]["code"] == "invalid_api_key"
        assert guarded.request("GET", "/metrics", headers=headers)[0] == 401
    for headers in (_bearer("first"), {"x-api-key": "second"}):
        assert guarded.request("GET", "/v1/models", headers=headers)[0] == 200


def test_a_key_has_a_rate(guarded):
    statuses = [guarded.request("GET", "/v1/models", headers=_bearer("third"))[0] for _ in range(6)]
    assert statuses == [200] * 5 + [429]
    status, error, headers = guarded.request("GET", "/v1/models", headers=_bearer("third"))
    assert status == 429 and 1 <= int(headers["retry-after"]) <= 12
    assert error["error"]["code"] == "rate_limit_exceeded"
    assert guarded.request("GET", "/metrics", headers=_bearer("third"))[0] == 200


def test_rates_come_back_with_time():
    now = [0.0]
    rates = _Rates(6, lambda: now[0])
    assert [rates.take("a") for _ in range(7)] == [0] * 6 + [10]
    assert rates.take("b") == 0
    now[0] = 9.0
    assert rates.take("a") == 1
    now[0] = 10.0
    assert rates.take("a") == 0 and rates.take("a") > 0


def test_other_pages_only_where_they_are_named(guarded):
    headers = {"Origin": "https://chat.example", "Access-Control-Request-Method": "POST"}
    status, _, sent = guarded.request("OPTIONS", "/v1/completions", headers=headers)
    assert status == 200 and sent["access-control-allow-origin"] == "https://chat.example"
    asked = guarded.request("POST", "/v1/completions", _BODY, {**_bearer("first"), "Origin": "https://chat.example"})
    assert asked[0] == 200 and asked[2]["access-control-allow-origin"] == "https://chat.example"
    evil = guarded.request("POST", "/v1/completions", _BODY, {**_bearer("first"), "Origin": "https://evil.example"})
    assert evil[0] == 403 and "access-control-allow-origin" not in evil[2]


def test_tls(folder, tmp_path):
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names, *files],
        capture_output=True,
        check=False,
    )
    if made.returncode:
        pytest.skip("needs openssl")
    options = ["--tls-certificate", str(certificate), "--tls-key", str(key)]
    with serving(serve_command(folder, *options)) as server:
        assert server.url.startswith("https://")
        context = ssl.create_default_context(cafile=str(certificate))
        plain = socket.create_connection(("localhost", server.port), timeout=20)
        with context.wrap_socket(plain, server_hostname="localhost") as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            text = b""
            while part := connection.recv(4096):
                text += part
        assert text.startswith(b"HTTP/1.1 200") and b'"ok"' in text


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
_NAMES = st.sampled_from(
    [
        *(
            "messages",
            "prompt",
            "tools",
            "tool_choice",
            "stop",
            "logit_bias",
            "response_format",
            "stream",
            "n",
            "model",
        ),
        *("temperature", "top_p", "seed", "logprobs", "top_logprobs", "structured_outputs", "chat_template_kwargs"),
        *("stream_options", "echo", "stop_token_ids", "tokens", "max_completion_tokens"),
    ]
)
_MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "system", "bad"])},
    optional={"content": _VALUES, "tool_calls": _VALUES, "tool_call_id": st.text(max_size=3), "name": _VALUES},
)


@hypothesis.settings(max_examples=150, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(
    path=st.sampled_from(["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"]),
    fields=st.dictionaries(_NAMES, _VALUES, max_size=4),
    messages=st.lists(_MESSAGE, max_size=3) | st.none(),
)
def test_no_body_breaks_the_server(server, path, fields, messages):
    body = {"max_tokens": 2, "model": "tiny", **fields}
    if messages is not None:
        body["messages"] = messages
    status, _, _ = server.request("POST", path, body)
    assert status < 500, (path, body)
    assert server.request("GET", "/health")[0] == 200


@hypothesis.settings(max_examples=100, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(head=st.lists(st.binary(max_size=30), max_size=6), body=st.binary(max_size=40))
def test_no_header_breaks_the_server(server, head, body):
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        lines = [b"POST /v1/completions HTTP/1.1", b"Host: localhost", *head]
        connection.sendall(b"\r\n".join(lines) + b"\r\n\r\n" + body)
        connection.shutdown(socket.SHUT_WR)
        answer = connection.recv(1 << 16)
    assert b" 500 " not in answer[:20]
    assert server.request("GET", "/health")[0] == 200


def test_profiles(server):
    assert server.request("POST", "/stop_profile", {})[0] == 409
    assert server.request("POST", "/start_profile", {})[:2] == (200, {"recording": True})
    assert server.request("POST", "/start_profile", {})[0] == 409
    assert server.request("POST", "/v1/completions", {**_BODY, "max_tokens": 8, "ignore_eos": True})[0] == 200
    status, card, _ = server.request("POST", "/stop_profile", {})
    assert status == 200
    assert server.request("GET", "/profiles")[1] == {"recording": False, "data": [card]}
    assert "paged_attention" in server.request("GET", card["report"])[1]
    page = server.request("GET", card["page"])
    assert page[0] == 200 and page[1].startswith("<!doctype html>")
    for path in ("/profiles/9/page.html", "/profiles/1/other", "/profiles/x/page.html", "/profiles/1/..%2fx"):
        assert server.request("GET", path)[0] == 404, path

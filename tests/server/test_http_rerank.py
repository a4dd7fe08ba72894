"""POST /rerank: Jina's, Cohere's and TEI's shapes, and servers of another kind."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
from embed_world import N_CTX, FakeEmbedContext, make_embedder
from http_world import RunningServer, make_model, running

from lamella.model.pooling import Pooling
from lamella.server import embed_inputs
from lamella.server.routes_embed import ROUTES

DOCUMENTS = ["a", "bcd", "ef", "a"]
QUERY = {"query": "x", "documents": DOCUMENTS}
ALIASES = ("/rerank", "/reranking", "/v1/rerank", "/v1/reranking", "/v2/rerank")


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running(lambda: make_embedder(pooling=Pooling.RANK)) as server:
        yield server


def scores(server: RunningServer, documents: list[str] = DOCUMENTS) -> list[float]:
    """The model's score of each document."""
    context = FakeEmbedContext(Pooling.RANK)
    model = server.embedding_model
    return [float(context.vector(model.pair_tokens("x", text))[0]) for text in documents]


def test_the_native_route_returns_all_scores_as_computed() -> None:
    context, ids = FakeEmbedContext(Pooling.RANK, n_out=3), [[1, 2, 3], [4, 5]]
    with running(lambda: make_embedder(pooling=Pooling.RANK, n_out=3)) as server:
        for more in ({}, {"embd_normalize": 2}):
            reply = server.ok("/embedding", input=ids, **more)
            found = np.array([one["embedding"][0] for one in reply], np.float32)
            assert (found == [context.vector(tokens) for tokens in ids]).all()


@pytest.mark.parametrize("path", ALIASES)
def test_the_highest_score_comes_first(server: RunningServer, path: str) -> None:
    reply = server.ok(path, **QUERY, model="m", user="me")
    assert (reply["object"], reply["model"]) == ("list", "m")
    wanted = scores(server)
    order = sorted(range(4), key=lambda i: (-wanted[i], i))
    assert [one["index"] for one in reply["results"]] == order
    for one in reply["results"]:
        assert sorted(one) == ["index", "relevance_score"]
        assert one["relevance_score"] == pytest.approx(wanted[one["index"]], rel=1e-7)
    n_tokens = sum(len(server.embedding_model.pair_tokens("x", text)) for text in DOCUMENTS)
    assert reply["usage"] == {"prompt_tokens": n_tokens, "total_tokens": n_tokens}


def test_top_n(server: RunningServer) -> None:
    every = server.ok("/rerank", **QUERY)["results"]
    for n, wanted in ((0, every), (1, every[:1]), (3, every[:3]), (99, every)):
        assert server.ok("/rerank", **QUERY, top_n=n)["results"] == wanted


def test_documents_as_objects_and_in_the_reply(server: RunningServer) -> None:
    documents = [{"text": text} for text in DOCUMENTS]
    found = server.ok("/rerank", query={"text": "x"}, documents=documents, return_documents=True)
    for one in found["results"]:
        assert one.pop("document") == documents[one["index"]]
    assert found["results"] == server.ok("/rerank", **QUERY)["results"]


def test_the_tokens_of_a_request_are_limited(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embed_inputs, "N_PAIR_TOKENS_MAX", 6)
    error = server.post("/rerank", QUERY).error
    assert error["code"] == 400
    assert error["message"].endswith("may have 6: send the documents in several requests")
    assert '"query" with the first 2 "documents" has ' in error["message"]


def test_tei(server: RunningServer) -> None:
    reply = server.ok("/rerank", query="x", texts=DOCUMENTS, return_text=True)
    for one in reply:
        assert one.pop("text") == DOCUMENTS[one["index"]]
        sigmoid = 1 / (1 + math.exp(-scores(server)[one["index"]]))
        assert one.pop("score") == pytest.approx(sigmoid, rel=1e-6)
        assert sorted(one) == ["index"]
    raw = server.ok("/rerank", query="x", texts=DOCUMENTS, raw_scores=True)
    results = server.ok("/rerank", **QUERY)["results"]
    assert [one["score"] for one in raw] == [one["relevance_score"] for one in results]
    assert [one["index"] for one in raw] == [one["index"] for one in reply]
    assert server.ok("/", query="x", texts=DOCUMENTS, raw_scores=True) == raw


def test_probabilities_in_the_other_shape(server: RunningServer) -> None:
    reply = server.ok("/rerank", **QUERY, raw_scores=False)["results"]
    tei = server.ok("/rerank", query="x", texts=DOCUMENTS)
    assert [one["relevance_score"] for one in reply] == [one["score"] for one in tei]


def test_probabilities_of_several_labels_stay() -> None:
    with running(lambda: make_embedder(pooling=Pooling.RANK, n_out=2)) as server:
        reply = server.ok("/rerank", query="x", texts=DOCUMENTS)
        assert reply == server.ok("/rerank", query="x", texts=DOCUMENTS, raw_scores=True)


def test_a_pair_that_is_too_long(server: RunningServer) -> None:
    body = {"query": "x", "documents": ["a", "b" * N_CTX]}
    error = server.post("/rerank", body).error
    assert error["type"] == "exceed_context_size_error"
    assert error["message"].startswith('"query" with "documents[1]" has ')
    assert server.ok("/rerank", **body, truncate=True)["usage"]["total_tokens"] < 2 * N_CTX
    error = server.post("/rerank", {**body, "query": "x" * N_CTX, "truncate": True}).error
    assert ": shorten the query, or make" in error["message"]


@pytest.mark.parametrize("path", ALIASES)
@pytest.mark.parametrize(
    ("body", "start"),
    [
        ({}, '"query" is missing'),
        ({"query": "x"}, '"documents" is missing'),
        ({"query": 3, "documents": ["a"]}, '"query" must be a string'),
        ({"query": "x", "documents": []}, '"documents" must be a list of at least one text'),
        ({"query": "x", "documents": "a"}, '"documents" must be a list of at least one text'),
        ({"query": "x", "texts": []}, '"texts" must be a list of at least one text'),
        ({"query": "x", "documents": ["a", 7]}, '"documents[1]" must be a string'),
        ({"query": "x", "documents": [{"image": "a"}]}, '"documents[0]" must be a string'),
        ({"query": "x", "documents": ["a"], "texts": ["a"]}, '"documents" and "texts" must not'),
        ({"query": "x", "documents": ["a"], "top_n": -1}, '"top_n" must be'),
    ],
)
def test_invalid_bodies(
    server: RunningServer, path: str, body: dict[str, object], start: str
) -> None:
    error = server.post(path, body).error
    assert (error["code"], error["type"]) == (400, "invalid_request_error")
    assert error["message"].startswith(start)


# --- servers of another kind ---


@pytest.mark.parametrize("kind", ["text", "embedding", "ranking"])
def test_other_kinds_of_servers_say_which_to_start(kind: str) -> None:
    pooling = Pooling.RANK if kind == "ranking" else Pooling.MEAN
    load = make_model if kind == "text" else lambda: make_embedder(pooling=pooling)
    flags = {"ranking": "RERANKER --rerank", "embedding": "MODEL --embeddings", "text": "MODEL"}
    paths = {"text": {"/completion", "/v1/completions", "/v1/chat/completions", "/apply-template"}}
    embed_paths = {route.path for route in ROUTES} - {"/"}  # all kinds but text have it
    embed_paths -= {path for path in embed_paths if path.startswith("/api/")}  # errors are texts
    native = {"/embedding", "/embeddings"}  # a reranker's scores, too
    paths["ranking"] = {path for path in embed_paths if "rerank" in path}
    paths["embedding"] = embed_paths - paths["ranking"]
    if kind == "ranking":
        paths = {
            **paths,
            "ranking": paths["ranking"] | native,
            "embedding": paths["embedding"] - native,
        }
    with running(load) as server:
        for other in paths.keys() - {kind}:
            for path in paths[other]:
                error = server.post(path, b"whatever").error
                assert (error["code"], error["type"]) == (501, "not_supported_error"), path
                assert f"lamella serve {flags[other]} --port" in error["message"]
        for path in paths[kind]:
            assert server.post(path, b"whatever").status == 400, path

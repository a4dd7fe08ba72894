"""Embeddings and scores from Python: their shapes and bits, and wrong arguments."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from api_models import WAIT_S, tiny_file
from arch_goldens import EMBEDDINGS
from tiny_models import TINY, write_model

import lamella
from lamella import ClosedError, ContextSizeError, RequestError

N_CTX = 32
TEXTS = ["a b c", "", "fox", "a b c"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_file(tmp_path_factory)


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[lamella.Model]:
    with lamella.load(path, embeddings=True, pooling="mean", n_ctx=N_CTX) as model:
        yield model


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[lamella.Model]:
    path = tmp_path_factory.mktemp("rerank") / "tiny.gguf"
    rows = np.random.default_rng(1).standard_normal((1, TINY["llama"].n_embd)).astype(np.float32)
    write_model(TINY["llama"], path, replace={"cls.output.weight": rows})
    with lamella.load(path, pooling="rank", n_ctx=N_CTX) as model:
        yield model


def test_vectors_of_texts(model: lamella.Model) -> None:
    vectors = model.embed(TEXTS)
    assert vectors.shape == (4, model.n_embd)
    assert vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1)
    assert (vectors[0] == vectors[3]).all()
    for text, vector in zip(TEXTS, vectors, strict=True):
        assert (model.embed(text) == vector).all()
    assert model.embed([]).shape == (0, model.n_embd)
    assert model.embed(iter(TEXTS)).shape == vectors.shape


def test_vectors_of_token_ids(model: lamella.Model) -> None:
    ids = model.tokenize("a b c")
    vector = model.embed("a b c")
    given: Any
    for given in (ids, tuple(ids), np.array(ids)):
        assert (model.embed(given) == vector).all()
        assert (model.embed([given, "fox"])[0] == vector).all()
    assert model.embed(np.array([ids, ids])).shape == (2, model.n_embd)


def test_normalize_and_dimensions(model: lamella.Model) -> None:
    raw = model.embed(TEXTS, normalize=False)
    assert not np.allclose(np.linalg.norm(raw, axis=1), 1)
    assert (model.embed(TEXTS, normalize=False, dimensions=8) == raw[:, :8]).all()
    cut = model.embed(TEXTS, dimensions=8)
    assert np.allclose(np.linalg.norm(cut, axis=1), 1)
    assert np.allclose(cut, raw[:, :8] / np.linalg.norm(raw[:, :8], axis=1, keepdims=True))


def test_long_texts_are_refused_or_cut(model: lamella.Model) -> None:
    ids: list[int] = [5] * (N_CTX + 1)
    texts: list[str | list[int]] = ["a", ids]
    with pytest.raises(ContextSizeError, match="text 1 has 33 tokens, the context holds 32"):
        model.embed(texts)
    with pytest.raises(ContextSizeError, match="the text has"):
        model.embed("a b " * 100)
    assert (model.embed(ids, truncate=True) == model.embed(ids[:N_CTX])).all()
    assert model.embed("a b " * 100, truncate=True).shape == (model.n_embd,)


def test_a_vector_for_each_token(path: Path, model: lamella.Model) -> None:
    with lamella.load(path, pooling="none", n_ctx=N_CTX) as rows:
        assert rows.pooling == "none"
        one = rows.embed("a b c", normalize=False)
        assert one.shape == (len(rows.tokenize("a b c")), rows.n_embd)
        several: Any = rows.embed(TEXTS, normalize=False, dimensions=8)
        assert isinstance(several, list)
        assert (several[0] == one[:, :8]).all()
    assert np.allclose(one.mean(axis=0), model.embed("a b c", normalize=False), atol=1e-5)


def test_facts(model: lamella.Model, reranker: lamella.Model) -> None:
    assert (model.pooling, model.n_embd, model.n_ctx) == ("mean", 64, N_CTX)
    assert reranker.pooling == "rank"
    assert model.detokenize(model.tokenize("fox")) == "fox"


def test_the_coroutines_return_the_same(model: lamella.Model, reranker: lamella.Model) -> None:
    async def run() -> tuple[Any, Any]:
        return await asyncio.gather(model.aembed(TEXTS), reranker.arerank("a", ["b", "c"]))

    vectors, scores = asyncio.run(run())
    assert (vectors == model.embed(TEXTS)).all()
    assert scores == reranker.rerank("a", ["b", "c"])


def test_a_cancelled_task_drops_its_texts(
    model: lamella.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = model._embedding().embedder
    in_step, go_on, embed = threading.Event(), threading.Event(), embedder.context.embed

    def held(texts: Any) -> Any:
        in_step.set()
        assert go_on.wait(WAIT_S)
        return embed(texts)

    monkeypatch.setattr(embedder.context, "embed", held)

    async def run() -> None:
        task = asyncio.create_task(model.aembed(["a b c d"] * 5000))
        assert await asyncio.to_thread(in_step.wait, WAIT_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()

    before = embedder.counters.n_prompt
    asyncio.run(run())
    model.embed("a")
    assert embedder.counters.n_prompt - before < 5000


# --- reranking ---


def test_documents_by_score(reranker: lamella.Model) -> None:
    documents = ["fox", "a b c", "fox", "d e"]
    scores = reranker.rerank("a b", documents)
    assert sorted(i for i, _ in scores) == [0, 1, 2, 3]
    assert [score for _, score in scores] == sorted((s for _, s in scores), reverse=True)
    by_index = dict(scores)
    assert by_index[0] == by_index[2]
    assert [i for i, _ in scores].index(0) < [i for i, _ in scores].index(2)
    assert reranker.rerank("a b", documents, top_n=2) == scores[:2]
    assert reranker.rerank("a b", ["d e"]) == [(0, by_index[3])]
    assert reranker.rerank("a b", []) == []


def test_a_reranker_s_vectors_are_its_scores(reranker: lamella.Model) -> None:
    [(_, score)] = reranker.rerank("a b", ["d e"])
    pair = reranker._embedding().pair_tokens("a b", "d e")
    assert reranker.embed([pair, [1, 2]]).shape == (2, 1)
    assert reranker.embed(pair).tolist() == [score]  # not normalized
    assert asyncio.run(reranker.aembed(pair)).tolist() == [score]


def test_long_documents_are_refused_or_cut(reranker: lamella.Model) -> None:
    long = "a b " * 100
    with pytest.raises(ContextSizeError, match=r"text 1 has .* tokens, the context"):
        reranker.rerank("a", ["b", long])
    assert len(reranker.rerank("a", ["b", long], truncate=True)) == 2


# --- errors ---


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (b"Once", "the text is bytes, not a text: decode it first"),
        (None, "texts: None is not a text or a list of texts"),
        ({"a": 1}, "is not a text or a list of texts"),
        (7, "is not a text or a list of texts"),
        (["a", None], "text 1: None are not token ids"),
        (["a", 5], "text 1: 5 are not token ids"),
        ([[1.5]], "the text: .* are not token ids"),
        (["a", []], "text 1 has no tokens"),
        (["a", [288]], "token 288 of text 1: must be 0 to 287"),
        ([-1], "token -1 of the text: must be 0 to 287"),
        (["a", "caf\udce9"], "text 1 is not valid UTF-8"),
    ],
)
def test_wrong_texts(model: lamella.Model, texts: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        model.embed(texts)
    with pytest.raises(RequestError, match=message):
        asyncio.run(model.aembed(texts))


@pytest.mark.parametrize("dimensions", [0, -1, 65, 1.5, "8", True])
def test_wrong_dimensions(model: lamella.Model, dimensions: Any) -> None:
    with pytest.raises(RequestError, match=r"dimensions is .*: must be 1 to 64"):
        model.embed("a", dimensions=dimensions)


@pytest.mark.parametrize(
    ("query", "documents", "more", "message"),
    [
        (None, ["a"], {}, "the query: None is not a string"),
        ("a", "b", {}, "documents: 'b' is not a list of texts"),
        ("a", ["b", 5], {}, "document 1: 5 is not a string"),
        ("a", ["b"], {"top_n": 0}, "top_n is 0: must be at least 1"),
    ],
)
def test_wrong_documents(
    reranker: lamella.Model, query: Any, documents: Any, more: Any, message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        reranker.rerank(query, documents, **more)


def test_other_kinds_of_models(path: Path, model: lamella.Model, reranker: lamella.Model) -> None:
    for text in (model.chat, model.generate, model.complete, model.apply_chat_template):
        with pytest.raises(RequestError, match=r"call model.embed, or .*embeddings=False"):
            text("a")
    with pytest.raises(RequestError, match="loaded for embeddings"):
        model.logits([1])
    with pytest.raises(RequestError, match="loaded for embeddings"):
        asyncio.run(model.achat("a"))
    with pytest.raises(RequestError, match="load a reranker"):
        model.rerank("a", ["b"])
    with lamella.load(path) as text_model:
        assert text_model.pooling is None
        for method in (text_model.embed, lambda text: text_model.rerank(text, [])):
            with pytest.raises(RequestError, match="embeddings=True"):
                method("a")


def test_a_closed_model(path: Path) -> None:
    model = lamella.load(path, embeddings=True)
    model.close()
    with pytest.raises(ClosedError):
        model.embed("a")


@pytest.mark.parametrize("name", sorted(EMBEDDINGS)[:1])
def test_an_encoder_opens_by_itself(name: str) -> None:
    with lamella.load(EMBEDDINGS[name]) as model:
        assert model.embed([[1, 2, 3]]).shape == (1, model.n_embd)
        with pytest.raises(RequestError, match=r"call model\.embed"):
            model.chat("a")

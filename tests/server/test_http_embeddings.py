"""Vectors over HTTP: OpenAI's, llama-server's and TEI's shapes, and the errors for bad input."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import pytest
from embed_world import N_CTX, N_OUT, FakeEmbedContext, decoded, make_embedder, unit
from http_world import HttpVocab, RunningServer, running
from openai import BadRequestError, OpenAI

from lamella.model.pooling import F32Array, Pooling
from lamella.server.json_pieces import N_PIECE

VOCAB = HttpVocab()
N_VOCAB = VOCAB.n_tokens
PATHS = ("/v1/embeddings", "/embeddings", "/embedding")


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running(make_embedder) as server:
        yield server


@pytest.fixture(scope="module")
def unpooled() -> Iterator[RunningServer]:
    with running(lambda: make_embedder(pooling=Pooling.NONE)) as server:
        yield server


def vector(text: str | list[int]) -> F32Array:
    """The model's vector of a text or of token ids."""
    tokens = VOCAB.tokenize(text) if isinstance(text, str) else text
    return FakeEmbedContext().vector(tokens)


def message(server: RunningServer, path: str = "/v1/embeddings", **body: object) -> str:
    """The message of an invalid request."""
    error = server.post(path, body).error
    assert (error["code"], error["type"]) == (400, "invalid_request_error")
    return cast(str, error["message"])


# --- OpenAI ---


def test_one_text(server: RunningServer) -> None:
    reply = server.ok("/v1/embeddings", input="abc", model="some-name", user="me")
    assert reply["object"] == "list"
    assert reply["model"] == "some-name"
    assert reply["usage"] == {"prompt_tokens": 4, "total_tokens": 4}
    (data,) = reply["data"]
    assert (data["object"], data["index"], len(data["embedding"])) == ("embedding", 0, N_OUT)
    assert np.array_equal(decoded(data["embedding"]), unit(vector("abc")))
    assert server.ok("/v1/embeddings", input="abc")["model"] == "fake"


def test_all_forms_of_input(server: RunningServer) -> None:
    a, ids = VOCAB.tokenize("a"), [5, 6, 7]
    for given, texts in (
        (["a", "bc"], [a, VOCAB.tokenize("bc")]),
        (ids, [ids]),
        ([ids, [4]], [ids, [4]]),
        ([4, "a"], [[4, *VOCAB.tokenize("a", add_special=False)]]),
        (["a", ids, ["a", 9]], [a, ids, [*a, 9]]),
        ([{"prompt_string": "a"}], [a]),
        ([{"content": [{"type": "text", "text": "a"}]}], [a]),
    ):
        reply = server.ok("/v1/embeddings", input=given)
        assert [data["index"] for data in reply["data"]] == list(range(len(texts))), given
        for data, tokens in zip(reply["data"], texts, strict=True):
            assert np.array_equal(decoded(data["embedding"]), unit(vector(tokens))), given
        assert reply["usage"]["prompt_tokens"] == sum(map(len, texts))


def test_base64(server: RunningServer) -> None:
    reply = server.ok("/v1/embeddings", input=["a", "b"], encoding_format="base64")
    for data, text in zip(reply["data"], "ab", strict=True):
        assert data["encoding_format"] == "base64"
        found = np.frombuffer(base64.b64decode(data["embedding"]), "<f4")
        assert np.array_equal(found, unit(vector(text)))


def test_dimensions_are_cut_and_then_normalized(server: RunningServer) -> None:
    for n in (1, 3, N_OUT):
        (data,) = server.ok("/v1/embeddings", input="a", dimensions=n)["data"]
        assert np.array_equal(decoded(data["embedding"]), unit(vector("a")[:n]))
    (data,) = server.ok("/v1/embeddings", input="a", dimensions=2, embd_normalize=-1)["data"]
    assert np.array_equal(decoded(data["embedding"]), vector("a")[:2])


@pytest.mark.parametrize(
    ("norm", "size"),
    [(-1, None), (0, lambda v: np.abs(v).max() / 32760), (1, lambda v: np.abs(v).sum())],
)
def test_norms(server: RunningServer, norm: int, size: Any) -> None:
    (data,) = server.ok("/v1/embeddings", input="a", embd_normalize=norm)["data"]
    raw = vector("a")
    wanted = raw if size is None else raw / size(raw.astype(np.float64))
    np.testing.assert_allclose(decoded(data["embedding"]), wanted, rtol=1e-6)


def test_the_openai_package(server: RunningServer) -> None:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        reply = client.embeddings.create(model="m", input=["a", "bc"])  # base64 by default
        for data, text in zip(reply.data, ("a", "bc"), strict=True):
            assert np.array_equal(np.array(data.embedding, np.float32), unit(vector(text)))
        assert reply.usage.total_tokens == 5
        short = client.embeddings.create(model="m", input=[[4, 5]], dimensions=2)
        assert len(short.data[0].embedding) == 2
        with pytest.raises(BadRequestError, match=r'"dimensions" must be at most 8, found 9'):
            client.embeddings.create(model="m", input="a", dimensions=N_OUT + 1)


def test_a_long_reply_comes_in_pieces(server: RunningServer) -> None:
    texts = [chr(97 + i % 26) * (1 + i % 7) for i in range(2000)]
    reply = server.post("/v1/embeddings", {"input": texts})
    assert len(reply.raw) > N_PIECE
    assert reply.headers["transfer-encoding"] == "chunked"
    assert [data["index"] for data in reply.json["data"]] == list(range(2000))
    for data, text in list(zip(reply.json["data"], texts, strict=True))[::97]:
        assert np.array_equal(decoded(data["embedding"]), unit(vector(text)))


# --- llama-server ---


@pytest.mark.parametrize("field", ["content", "input"])
def test_native_reply(server: RunningServer, field: str) -> None:
    for path in ("/embedding", "/embeddings"):
        reply = server.ok(path, **{field: ["a", "b"]})
        assert [sorted(one) for one in reply] == [["embedding", "index"]] * 2
        for i, text in enumerate("ab"):
            (found,) = reply[i]["embedding"]
            assert np.array_equal(decoded(found), unit(vector(text)))


def test_content_gets_the_native_reply_from_openais_path(server: RunningServer) -> None:
    reply = server.ok("/v1/embeddings", content="a")
    assert [one["index"] for one in reply] == [0]


def test_vectors_of_all_tokens(unpooled: RunningServer) -> None:
    reply = unpooled.ok("/embedding", content=["abc", "d"], embd_normalize=2)
    context = FakeEmbedContext(Pooling.NONE)
    for one, text in zip(reply, ("abc", "d"), strict=True):
        wanted = context.vector(VOCAB.tokenize(text))
        assert wanted.shape == (1 + len(text), N_OUT)
        assert np.array_equal(decoded(one["embedding"]), wanted)  # not normalized
    reply = unpooled.ok("/embedding", content="a", encoding_format="base64")
    first = np.frombuffer(base64.b64decode(reply[0]["embedding"][0]), "<f4")
    assert np.array_equal(first, context.vector([1]).ravel())


def test_openais_shape_needs_pooling(unpooled: RunningServer) -> None:
    for path, body in (("/v1/embeddings", {"input": "a"}), ("/embed", {"inputs": "a"})):
        assert "--pooling none" in message(unpooled, path, **body)
    assert message(unpooled, "/embedding", input="a", dimensions=2).startswith('"dimensions"')


# --- TEI ---


def test_tei(server: RunningServer) -> None:
    assert np.array_equal(decoded(server.ok("/embed", inputs="a")), unit(vector("a"))[None])
    reply = server.ok("/embed", inputs=["a", "b"], normalize=False)
    assert np.array_equal(decoded(reply), np.stack([vector("a"), vector("b")]))
    assert server.ok("/", inputs=["a", "b"], normalize=False) == reply
    long = "a" * 100
    assert server.ok("/embed", inputs=long, truncate=True) != []
    assert server.post("/embed", {"inputs": long}).status == 400


# --- bad input ---


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("body", "start"),
    [
        ({}, '"input" is missing'),
        ({"input": None}, '"input" is missing'),
        ({"input": []}, '"input" must not be empty'),
        ({"input": 7}, '"input" must be a string'),
        ({"input": [[]]}, '"input" is empty: '),
        ({"input": ""}, '"input" is empty: '),
        ({"input": ["a", ""]}, '"input[1]" is empty: '),
        ({"input": ["a", []]}, '"input[1]" is empty: '),
        ({"input": ["a", "b", {"a": 1}]}, '"input[2]" must be a string'),
        ({"input": ["a", ["b", "c"]]}, '"input[1]" must be a string'),
        ({"input": [[1, True]]}, '"input[0]" must be a string'),
        ({"content": ["a", 1.5]}, '"content[1]" must be a string'),
        (
            {"input": [["a", -1], [4]]},
            f'"input[0]" has the token id -1: must be 0 to {N_VOCAB - 1}',
        ),
        ({"input": [[4], [5, N_VOCAB]]}, f'"input[1]" has the token id {N_VOCAB}: must be 0 to'),
        ({"input": [10**40]}, '"input" has the token id 10000000000000000000'),
        ({"input": "a", "encoding_format": "int8"}, '"encoding_format" must be'),
        ({"input": "a", "dimensions": 0}, '"dimensions" must be'),
        ({"input": "a", "dimensions": 9}, '"dimensions" must be at most 8, found 9'),
        ({"input": "a", "embd_normalize": -2}, '"embd_normalize" must be'),
        ({"input": "a", "truncate": 1}, '"truncate" must be'),
        ({"input": "a", "prompt_name": "query"}, '"prompt_name" is not supported'),
    ],
)
def test_invalid_bodies(
    server: RunningServer, path: str, body: dict[str, object], start: str
) -> None:
    assert message(server, path, **body).startswith(start)


@pytest.mark.parametrize("raw", [b"", b"[1]", b'{"input": "\xff"}', b'{"input": NaN}', b"{" * 9999])
def test_bodies_that_are_no_objects(server: RunningServer, raw: bytes) -> None:
    assert server.post("/v1/embeddings", raw).error["type"] == "invalid_request_error"


def test_a_text_that_is_too_long(server: RunningServer) -> None:
    error = server.post("/v1/embeddings", {"input": ["a", "b" * N_CTX]}).error
    assert error["type"] == "exceed_context_size_error"
    assert (error["n_prompt_tokens"], error["n_ctx"]) == (N_CTX + 1, N_CTX)
    assert error["message"].startswith('"input[1]" has 65 tokens, the context holds 64')
    assert '"truncate": true' in error["message"]
    for cut in ({"truncate": True}, {"truncate_prompt_tokens": -1}):
        (data,) = server.ok("/v1/embeddings", input="b" * N_CTX, **cut)["data"]
        wanted = VOCAB.tokenize("b" * (N_CTX - 1))
        assert np.array_equal(decoded(data["embedding"]), unit(vector(wanted)))
    ids = {"input": [[4] * 100], "truncate": True}
    assert server.ok("/v1/embeddings", **ids)["usage"]["prompt_tokens"] == N_CTX


def test_another_models_name(server: RunningServer) -> None:
    error = server.post("/v1/embeddings", {"input": "a", "model": "other.gguf"}).error
    assert error["type"] == "not_found_error"


def test_vectors_that_need_too_much_memory() -> None:
    with running(lambda: make_embedder(n_out=2**20)) as server:
        found = message(server, input=["a"] * 129)
        assert found.startswith('"input" needs 129 vectors of 516.00 MiB, one request may')


def test_a_broken_model_gets_a_named_error() -> None:
    context = FakeEmbedContext()
    context.vector = lambda tokens: np.full(N_OUT, np.nan if len(tokens) > 3 else 1.0, np.float32)  # type: ignore[method-assign]
    with running(lambda: make_embedder(context)) as server:
        error = server.post("/v1/embeddings", {"input": ["a", "abc"]}).error
        assert (error["code"], error["type"]) == (500, "server_error")
        assert error["message"] == 'the model\'s vector of "input[1]" has NaN or infinity'

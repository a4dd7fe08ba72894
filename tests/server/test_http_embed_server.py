"""The other routes of a server for embeddings: properties, models, slots, metrics, page and log."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from embed_world import N_CTX, N_OUT, decoded, make_embedder
from fake_context import WAIT_S
from http_world import RunningServer, running
from open_params import open_params
from tiny_models import TINY, write_model

from lamella.model.pooling import Pooling
from lamella.runtime.instance import EmbeddingInstance
from lamella.runtime.open import open_model
from lamella.server.config import ServerConfig
from lamella.server.page_calls import EMBEDDING, RANKING
from lamella.server.request_record import RequestRecord
from lamella.server.routes_embed import ROUTES


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running(make_embedder, ServerConfig(port=0, metrics=True)) as server:
        yield server


@pytest.fixture(scope="module")
def ranker() -> Iterator[RunningServer]:
    with running(lambda: make_embedder(pooling=Pooling.RANK)) as server:
        yield server


def test_health(server: RunningServer) -> None:
    assert server.get("/health").json == {"status": "ok"}


def test_props(server: RunningServer, ranker: RunningServer) -> None:
    props = server.get("/props").json
    assert props["default_generation_settings"]["n_ctx"] == N_CTX
    assert (props["pooling"], props["n_embd_out"], props["chat_template"]) == ("mean", N_OUT, "")
    assert (props["total_slots"], props["model_alias"]) == (1, "fake")
    assert ranker.get("/props").json["pooling"] == "rank"


def test_models(server: RunningServer, ranker: RunningServer) -> None:
    reply = server.get("/v1/models").json
    assert reply["models"][0]["capabilities"] == ["embedding"]
    meta = reply["data"][0]["meta"]
    assert (meta["pooling"], meta["n_embd_out"], meta["n_ctx"]) == ("mean", N_OUT, N_CTX)
    assert ranker.get("/v1/models").json["models"][0]["capabilities"] == ["rerank"]


def test_slots(server: RunningServer) -> None:
    (slot,) = server.get("/slots?fail_on_no_slot=1").json
    assert slot == {"id": 0, "n_ctx": N_CTX, "speculative": False, "is_processing": False}


def test_tokenize(server: RunningServer) -> None:
    tokens = server.ok("/tokenize", content="ab")["tokens"]
    assert server.ok("/detokenize", tokens=tokens)["content"] == "ab"


def test_metrics(server: RunningServer) -> None:
    def samples() -> dict[str, float]:
        lines = server.get("/metrics").raw.decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    before = samples()
    server.ok("/v1/embeddings", input=["abc", "d"])
    after = samples()
    name = "llamacpp:prompt_tokens_total"
    assert after[name] - before[name] == 4 + 2
    assert after["llamacpp:n_decode_total"] > before["llamacpp:n_decode_total"]
    assert after["llamacpp:requests_processing"] == 0
    assert after['lamella_buffer_bytes{buffer_type="CPU",usage="weights"}'] == 1000


def test_page(server: RunningServer, ranker: RunningServer) -> None:
    for one, calls, path in (
        (server, EMBEDDING, "/v1/embeddings"),
        (ranker, RANKING, "/v1/rerank"),
    ):
        text = one.get("/").raw.decode()
        assert f"curl {one.url}{path}" in text
        assert "Pooling:" in text
        assert "chat" not in text
        assert "chat" not in one.get("/", Accept="text/html").raw.decode()
        for method, endpoint, _ in calls.endpoints:
            assert endpoint in text
            assert one.call(method, endpoint, b"{}").status in (200, 400, 501), endpoint


def test_log(server: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lamella.server")
    server.ok("/v1/embeddings", input=["abc", "d"])
    server.ok("/v1/embeddings", input="abc")
    deadline = time.monotonic() + WAIT_S
    found: list[RequestRecord] = []
    while len(found) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.005)
        records = [r.msg for r in caplog.records if isinstance(r.msg, RequestRecord)]
        found = [record for record in records if record.n_texts]  # not those of earlier tests
    first, second = found
    line = r"POST /v1/embeddings +200  in +6 in 2 texts +\d+ ms +\d+ tok/s +req_\w+"
    assert re.fullmatch(line, str(first)), str(first)
    assert " in     4 in 1 text " in str(second)
    fields = first.as_dict()
    assert (fields["texts"], fields["prompt_tokens"], fields["end"]) == (2, 6, "")


def test_keys_guard_all_requests_for_vectors() -> None:
    config = ServerConfig(port=0, api_keys=("secret",))
    with running(make_embedder, config) as server:
        for path in (route.path for route in ROUTES):
            refused = server.post(path, {"inputs": "a", "input": "a"})
            assert refused.status == 401, path
            if not path.startswith("/api/"):  # ollama's errors are texts
                assert refused.error["type"] == "authentication_error", path
        reply = server.call("POST", "/", {"inputs": "a"}, {"X-Api-Key": "secret"})
        assert len(reply.json) == 1
        assert server.get("/").status == 200


def test_a_real_model(tmp_path: Path) -> None:
    write_model(TINY["llama"], tmp_path / "m.gguf")
    params = open_params(
        tmp_path / "m.gguf", n_ctx=64, devices=("none",), embeddings=True, pooling="mean"
    )
    texts = ["a b c", "b", "once upon a time", "fox " * 12]
    with open_model(params) as model, running(lambda: model) as server:
        assert isinstance(model, EmbeddingInstance)
        wanted = model.normalized(
            np.stack(model.embedder.submit([model.tokens(text) for text in texts]).result())
        )
        together = server.ok("/v1/embeddings", input=texts * 20)["data"]
        for i, text in enumerate(texts):
            (alone,) = server.ok("/v1/embeddings", input=text)["data"]
            assert np.array_equal(decoded(alone["embedding"]), wanted[i])
            for data in together[i :: len(texts)]:
                assert data["embedding"] == alone["embedding"]
        assert server.post("/completion", {"prompt": "a"}).status == 501

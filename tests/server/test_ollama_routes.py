"""Ollama's endpoints with plain requests: lines, defaults, errors, and what clients may not do."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from anthropic_world import messages_server
from embed_world import make_embedder
from http_world import Reply, RunningServer, running
from open_params import open_params
from tiny_models import TINY, write_model

from lamella.runtime.open import open_instance
from lamella.server.config import ServerConfig
from lamella.server.ollama.models import Known, shown_file
from lamella.server.ollama.models import running as running_model
from lamella.server.routes import json_response

ASK = [{"role": "user", "content": "play text"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with messages_server(tmp_path_factory.mktemp("model"), api_prefix="/api") as server:
        yield server


def lines(reply: Reply) -> list[dict[str, Any]]:
    assert reply.headers["content-type"].startswith("application/x-ndjson")
    return [json.loads(line) for line in reply.raw.splitlines()]


def test_a_stream_is_the_default_and_has_a_line_per_piece(server: RunningServer) -> None:
    found = lines(server.post("/api/api/chat", {"model": "m", "messages": ASK}))
    assert "".join(line["message"]["content"] for line in found) == "Hello there, ☃."
    assert all(line["model"] == "m" and line["created_at"].endswith("Z") for line in found)
    assert [line["done"] for line in found] == [False] * (len(found) - 1) + [True]
    whole = server.post("/api/api/chat", {"messages": ASK, "stream": False}).json
    assert whole["message"] == {"role": "assistant", "content": "Hello there, ☃."}
    assert whole["model"] == server.model.alias
    assert whole["done_reason"] == "stop"


def test_raw_continues_the_prompt_itself(server: RunningServer) -> None:
    body = {"prompt": "play text", "raw": True, "stream": False}
    raw = server.post("/api/api/generate", body).json
    asked = server.post("/api/api/generate", body | {"raw": False}).json
    assert raw["response"] == asked["response"] == "Hello there, ☃."
    assert raw["prompt_eval_count"] < asked["prompt_eval_count"]
    assert "context" not in raw
    n = asked["prompt_eval_count"] + asked["eval_count"] - 1  # without the token that ends it
    assert len(asked["context"]) == n
    more = server.post("/api/api/generate", body | {"raw": False, "context": asked["context"]}).json
    assert more["prompt_eval_count"] == n + asked["prompt_eval_count"]  # an end, and no second BOS


@pytest.mark.parametrize("stream", [True, False])
def test_a_request_without_a_text_loads_the_model(server: RunningServer, stream: bool) -> None:
    found = server.post("/api/api/generate", {"model": "m", "stream": stream}).json
    assert (found["response"], found["done"], found["done_reason"]) == ("", True, "load")
    found = server.post("/api/api/chat", {"messages": [], "keep_alive": 0}).json
    assert found["message"] == {"role": "assistant", "content": ""}


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("chat", {"messages": "x"}, 400, '"messages" must be a list'),
        ("chat", {"messages": ASK, "options": {"top_k": "x"}}, 400, "options.top_k"),
        ("chat", {"messages": ASK, "format": {"type": "nothing"}}, 400, "format"),
        ("chat", {"messages": ASK, "format": {"enum": ["x" * 10**6]}}, 400, "format"),
        ("chat", {"messages": ASK, "tools": [{"function": {}}]}, 400, "tools[0].function.name"),
        ("generate", {"prompt": "x" * 50000, "raw": True}, 400, "4096"),
        ("generate", {"prompt": "x", "context": [10**9]}, 400, "1000000000"),
        ("generate", {"model": "a/b:Q8_0", "prompt": "x"}, 404, '"a/b:Q8_0" is not loaded'),
        ("show", {}, 400, '"model" is missing'),
        ("show", {"model": "hf.co/a/b/c/d"}, 404, "not found"),
        ("embed", {"input": "x"}, 501, "--embeddings"),
        ("pull", {"model": "llama3.2"}, 400, "USER/REPO"),
        ("pull", {"model": "https://example.com/a.gguf"}, 400, "USER/REPO"),
        ("create", {"model": "x"}, 501, "making models"),
        ("push", {"model": "x"}, 501, "making models"),
        ("nothing", {}, 404, "Not Found"),
    ],
)
def test_errors_are_one_text(
    server: RunningServer, path: str, body: dict[str, Any], status: int, message: str
) -> None:
    reply = server.post(f"/api/api/{path}", body)
    assert (reply.status, list(reply.json)) == (status, ["error"]), reply.raw
    assert message in reply.json["error"]


def test_a_prefix_of_the_server_changes_no_other_error(server: RunningServer) -> None:
    assert server.post("/api/v1/chat/completions", {}).error["code"] == 400


def test_an_error_in_a_stream_is_a_line(tmp_path: Any) -> None:
    """The script does not match the schema: the request fails after its first token."""
    with messages_server(tmp_path) as server:
        schema = {"type": "object", "properties": {"name": {"const": "Bob"}}, "required": ["name"]}
        ask = [{"role": "user", "content": "play person"}]
        found = server.post("/api/chat", {"messages": ask, "format": schema})
    *_, last = lines(found) if found.status == 200 else [found.json]
    assert list(last) == ["error"] and isinstance(last["error"], str)


def test_ollamas_programs_find_their_words() -> None:
    with running() as server:
        agent = {"User-Agent": "ollama-python/0.6.1 (x86_64 linux) Python/3.12"}
        assert server.call("GET", "/", None, agent).raw == b"Ollama is running"
        assert server.call("HEAD", "/", None, agent).status == 200
        assert b"Lamella" in server.get("/").raw
        assert server.get("/api/version").json["version"].split(".")[0] == "0"


def test_numbers_of_a_file_that_json_lacks(tmp_path: Path) -> None:
    path, keys = tmp_path / "m.gguf", {"llama.a": math.inf, "llama.b": math.nan, "llama.c": 0.5}
    write_model(TINY["llama"], path, metadata=keys)
    reply = json_response(shown_file("m", path)).body
    assert isinstance(reply, bytes)
    info = json.loads(reply)["model_info"]
    assert [info[key] for key in keys] == [None, None, 0.5]


def test_the_size_counts_the_draft_model(tmp_path: Path) -> None:
    write_model(TINY["llama"], path := tmp_path / "m.gguf")
    params = open_params(path, n_ctx=64, devices=("none",), draft_model=str(path))
    with open_instance(params) as instance:
        assert running_model(instance)["size"] == sum(instance.buffer_bytes().values())


def test_a_request_without_a_text_for_a_vector_loads_the_model() -> None:
    with running(make_embedder) as server:
        bodies: list[dict[str, Any]] = [{}, {"input": None}, {"input": ""}, {"input": []}]
        for body in bodies:
            empty = server.ok("/api/embed", model="m", keep_alive=0, **body)
            assert (empty["embeddings"], empty["prompt_eval_count"]) == ([], 0)
        for prompt in (None, ""):
            assert server.ok("/api/embeddings", model="m", prompt=prompt) == {"embedding": []}
        assert server.post("/api/embed", {"input": [""]}).status == 400
        assert server.post("/api/embed", {"input": 0}).status == 400


def test_vectors() -> None:
    with running(make_embedder) as server:
        one = server.ok("/api/embed", model="m", input="hi", options={"num_ctx": 3}, keep_alive=0)
        assert (one["model"], one["prompt_eval_count"] > 0) == ("m", True)
        (vector,) = one["embeddings"]
        assert sum(x * x for x in vector) == pytest.approx(1)
        two = server.ok("/api/embed", input=["hi", "ho"])["embeddings"]
        assert two[0] == vector != two[1]
        raw = server.ok("/api/embeddings", prompt="hi")["embedding"]
        assert sum(x * x for x in raw) != pytest.approx(1)
        assert raw[0] / raw[1] == pytest.approx(vector[0] / vector[1], rel=1e-4)
        assert len(server.ok("/api/embed", input="hi", dimensions=3)["embeddings"][0]) == 3
        assert len(server.ok("/api/embed", input="hi" * 500)["embeddings"]) == 1  # cut
        assert server.post("/api/embed", {"input": "hi" * 500, "truncate": False}).status == 400
        assert server.post("/api/chat", {"messages": ASK}).status == 501
        assert server.get("/api/tags").json["models"][0]["name"] == "fake"


def test_another_machine_may_not_change_the_models(monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"model": "a/b"}
    monkeypatch.setattr("lamella.server.ollama.pull.is_local", lambda _: False)
    with running() as server:
        for method, path in (("POST", "/api/pull"), ("DELETE", "/api/delete")):
            reply = server.call(method, path, body)
            assert reply.status == 403 and "--api-key" in reply.json["error"]
    with running(config=ServerConfig(port=0, api_keys=("k",))) as server:
        reply = server.call("DELETE", "/api/delete", body, {"X-Api-Key": "k"})
        assert (reply.status, reply.json) == (404, {"error": "model 'a/b' not found"})


def test_a_file_whose_name_is_not_utf8_has_a_digest() -> None:
    path = Path(os.fsdecode(b"caf\xe9.gguf"))
    known = Known(name="caf?", path=path, size=1, family="llama", n_params=1, quant="F16")
    assert len(known.as_json()["digest"]) == 64
